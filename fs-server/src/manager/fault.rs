//! Why a request of the namespace failed.

use fs_proto::{ErrorCode, FsError};

/// The reason why a request of the namespace failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The request is not possible. Nothing was written.
    Refused(FsError),
    /// The store failed. The transaction is lost.
    Store(redb::Error),
    /// The stored data is inconsistent. The transaction is lost. Of a group of changes, only the
    /// one that met it fails.
    Corrupt(String),
    /// The request is possible, but not yet: an I/O server must create datafiles first. Nothing was
    /// written.
    Later,
}

impl Fault {
    pub(super) fn into_error(self) -> FsError {
        match self {
            Fault::Refused(error) => error,
            Fault::Store(error) => crate::store::fault(&error),
            Fault::Corrupt(what) => FsError::new(ErrorCode::Io, format!("the metadata is damaged: {what}")),
            Fault::Later => FsError::new(ErrorCode::Busy, "the I/O servers have no datafiles ready"),
        }
    }
}

impl From<FsError> for Fault {
    fn from(error: FsError) -> Fault {
        Fault::Refused(error)
    }
}

macro_rules! store_faults {
    ($($error:ty),*) => {
        $(impl From<$error> for Fault {
            fn from(error: $error) -> Fault {
                Fault::Store(error.into())
            }
        })*
    };
}
store_faults!(redb::Error, redb::StorageError, redb::TableError, redb::CommitError);
