//! Why an operation of a group has failed.

use std::fmt;

use crate::{Error, ErrorKind};

/// What members do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Collective {
    /// [`Groups::meet`](super::Groups::meet)
    Meet,
    /// [`Lane::barrier`](super::Lane::barrier)
    Barrier,
    /// [`Lane::all_gather`](super::Lane::all_gather)
    AllGather,
    /// [`Lane::broadcast`](super::Lane::broadcast)
    Broadcast {
        /// The rank of the member whose value all get.
        root: u32,
    },
    /// [`Lane::all_to_all`](super::Lane::all_to_all)
    AllToAll,
    /// [`Lane::exchange`](super::Lane::exchange)
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

/// Bits of an operation's number in a lane, and what marks the lanes that are not the group's own.
pub(super) const COUNT_BITS: u32 = 20;
pub(super) const LANE: u64 = 1 << 62;

/// An operation in words, as its callers count.
pub(super) struct Numbered(pub(super) u64);

impl fmt::Display for Numbered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            number if number < LANE => write!(f, "operation {number}"),
            number => {
                let (lane, count) = ((number ^ LANE) >> COUNT_BITS, number % (1 << COUNT_BITS));
                write!(f, "operation {count} of lane {lane}")
            }
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
        /// The number of the operation: 1 for the meeting, 2 for the first one after it. In lane
        /// `n`, the first one has the number `1 << 62 | n << 20 | 1`.
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
                write!(f, "{} is {does} at rank {a} and {other} at rank {b}", Numbered(*number))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_named_as_their_callers_count() {
        let named = |number| Numbered(number).to_string();
        assert_eq!(named(2), "operation 2");
        assert_eq!(named(LANE | 7 << COUNT_BITS | 1), "operation 1 of lane 7");
    }
}
