//! Why an operation of a group has failed.

use std::fmt;

use crate::{Error, ErrorKind};

/// What members do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Collective {
    /// [`Groups::meet`](super::Groups::meet)
    Meet,
    /// [`Group::barrier`](super::Group::barrier)
    Barrier,
    /// [`Group::all_gather`](super::Group::all_gather)
    AllGather,
    /// [`Group::broadcast`](super::Group::broadcast)
    Broadcast {
        /// The rank of the member whose value all get.
        root: u32,
    },
    /// [`Group::all_to_all`](super::Group::all_to_all)
    AllToAll,
    /// [`Group::exchange`](super::Group::exchange)
    Exchange,
    /// [`Group::leave`](super::Group::leave)
    Leave,
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Collective::Meet => f.write_str("meet"),
            Collective::Barrier => f.write_str("barrier"),
            Collective::AllGather => f.write_str("all_gather"),
            Collective::Broadcast { root } => write!(f, "broadcast from rank {root}"),
            Collective::AllToAll => f.write_str("all_to_all"),
            Collective::Exchange => f.write_str("exchange"),
            Collective::Leave => f.write_str("leave"),
        }
    }
}

/// Why an operation has failed. All later operations of the group fail with the same error.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum GroupError {
    /// A member is gone, did not answer in time, or did what is wrong. It may be this one: then its
    /// arguments are wrong, or it dropped an operation before the end.
    Member {
        /// The member.
        rank: u32,
        /// What happened to it.
        error: Error,
    },
    /// Two members do not do the same.
    Mismatch {
        /// The number of the operation: 1 for the meeting, 2 for the first one after it.
        number: u64,
        /// What each of the two does.
        members: [(u32, Collective); 2],
    },
}

impl GroupError {
    pub(super) fn member(rank: u32, kind: ErrorKind, detail: impl Into<String>) -> GroupError {
        GroupError::Member { rank, error: Error::new(kind, detail) }
    }
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupError::Member { rank, error } => write!(f, "rank {rank}: {error}"),
            GroupError::Mismatch { number, members: [(a, does), (b, other)] } => {
                write!(f, "operation {number} is {does} at rank {a} and {other} at rank {b}")
            }
        }
    }
}

impl std::error::Error for GroupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        None
    }
}

impl From<GroupError> for Error {
    /// Keeps the kind of a member's error. A mismatch is `Invalid`.
    fn from(error: GroupError) -> Error {
        let kind = match &error {
            GroupError::Member { error, .. } => error.kind(),
            GroupError::Mismatch { .. } => ErrorKind::Invalid,
        };
        Error::new(kind, error.to_string()).during("collective operation")
    }
}
