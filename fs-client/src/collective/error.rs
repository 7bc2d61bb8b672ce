//! Why a collective operation has failed.

use std::fmt;

use bmi::group::GroupError;
use fs_proto::ErrorCode;

use crate::error::Error;

/// Why a collective operation has failed, as one member sees it.
///
/// After a failure each byte of the members' pieces is the old one or the new one. The group goes
/// on after [`CollectiveError::Own`] and [`CollectiveError::Member`], which all members are told.
/// It does not after [`CollectiveError::Group`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CollectiveError {
    /// This member's part has failed.
    Own(Error),
    /// The part of another member has failed, or what it wants is not what the others want.
    Member {
        /// The member.
        rank: u32,
        /// What failed there.
        code: ErrorCode,
        /// The reason as text.
        detail: String,
    },
    /// A member is gone, or they do not do the same.
    Group(GroupError),
}

impl fmt::Display for CollectiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CollectiveError::Own(error) => write!(f, "{error}"),
            CollectiveError::Member { rank, code, detail } => write!(f, "rank {rank}: {code}: {detail}"),
            CollectiveError::Group(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for CollectiveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CollectiveError::Own(error) => Some(error),
            CollectiveError::Member { .. } => None,
            CollectiveError::Group(error) => Some(error),
        }
    }
}

impl From<Error> for CollectiveError {
    fn from(error: Error) -> CollectiveError {
        CollectiveError::Own(error)
    }
}

impl From<GroupError> for CollectiveError {
    fn from(error: GroupError) -> CollectiveError {
        CollectiveError::Group(error)
    }
}
