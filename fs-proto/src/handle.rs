//! Handles of directories, files, symbolic links and datafiles. The manager assigns them in
//! ascending order and never twice.
//!
//! **Layout.** The upper bits of a handle are the manager's start epoch, the lower [`COUNT_BITS`]
//! are a count. A manager that was restored from an older copy begins a new epoch, so it does not
//! assign a number that it assigned in the time that it has forgotten.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::attr::Kind;

/// Bits of a handle that count. The bits above are the epoch.
pub const COUNT_BITS: u32 = 40;
/// The largest epoch.
pub const MAX_EPOCH: u64 = (1 << (64 - COUNT_BITS)) - 1;

/// Returns the number of a handle with the given epoch and count.
///
/// # Panics
/// If one of them does not fit.
pub fn handle_number(epoch: u64, count: u64) -> u64 {
    assert!(epoch <= MAX_EPOCH && count >> COUNT_BITS == 0, "no handles are left in epoch {epoch}");
    epoch << COUNT_BITS | count
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{:x}"), self.0)
            }
        }
    };
}

handle!(
    /// The handle of a directory at the manager.
    DirHandle,
    "dir:"
);
handle!(
    /// The handle of a metafile: a file's attributes and layout, at the manager.
    FileHandle,
    "file:"
);
handle!(
    /// The handle of a symbolic link at the manager.
    SymlinkHandle,
    "symlink:"
);
handle!(
    /// The handle of a datafile: one I/O server's share of a file.
    DatafileHandle,
    "data:"
);

impl DirHandle {
    /// The root directory, which always exists.
    pub const ROOT: DirHandle = DirHandle(1);
}

/// The handle of an object of the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Handle {
    /// A directory.
    Dir(DirHandle),
    /// A file.
    File(FileHandle),
    /// A symbolic link.
    Symlink(SymlinkHandle),
}

impl Handle {
    /// Returns the handle of an object of this kind.
    pub const fn new(kind: Kind, raw: u64) -> Handle {
        match kind {
            Kind::Dir => Handle::Dir(DirHandle(raw)),
            Kind::File => Handle::File(FileHandle(raw)),
            Kind::Symlink => Handle::Symlink(SymlinkHandle(raw)),
        }
    }

    /// Returns the number alone. All kinds of objects share one numbering.
    pub const fn raw(self) -> u64 {
        match self {
            Handle::Dir(DirHandle(raw)) | Handle::File(FileHandle(raw)) | Handle::Symlink(SymlinkHandle(raw)) => raw,
        }
    }

    /// Returns the kind of the object.
    pub const fn kind(self) -> Kind {
        match self {
            Handle::Dir(_) => Kind::Dir,
            Handle::File(_) => Kind::File,
            Handle::Symlink(_) => Kind::Symlink,
        }
    }

    /// Returns the directory handle if this is a directory.
    pub const fn dir(self) -> Option<DirHandle> {
        match self {
            Handle::Dir(dir) => Some(dir),
            Handle::File(_) | Handle::Symlink(_) => None,
        }
    }

    /// Returns the file handle if this is a file.
    pub const fn file(self) -> Option<FileHandle> {
        match self {
            Handle::File(file) => Some(file),
            Handle::Dir(_) | Handle::Symlink(_) => None,
        }
    }
}

impl From<DirHandle> for Handle {
    fn from(dir: DirHandle) -> Handle {
        Handle::Dir(dir)
    }
}

impl From<FileHandle> for Handle {
    fn from(file: FileHandle) -> Handle {
        Handle::File(file)
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Handle::Dir(dir) => dir.fmt(f),
            Handle::File(file) => file.fmt(f),
            Handle::Symlink(symlink) => symlink.fmt(f),
        }
    }
}
