//! What this member does in an operation, and the checks of what others send it.

use bytes::Bytes;

use super::error::{Collective, GroupError, Numbered};
use super::wire::{ATTACHED, HEAD, Head};
use crate::{Error, ErrorKind, Memory};

/// What this member does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Act {
    pub(super) rank: u32,
    pub(super) number: u64,
    pub(super) call: Collective,
}

impl Act {
    /// Returns the error of an operation with a member. What this side cannot do is its own fault.
    pub(super) fn blamed(self, rank: u32, error: Error) -> GroupError {
        let is_own = matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Exhausted | ErrorKind::Cancelled);
        GroupError::Member { rank: if is_own { self.rank } else { rank }, error }
    }

    /// Returns the error for bytes of a member that are wrong.
    pub(super) fn wrong(self, rank: u32, what: &str) -> GroupError {
        GroupError::member(rank, ErrorKind::Protocol, format!("{what} in {} ({})", self.call, Numbered(self.number)))
    }

    /// Returns the error for arguments of this member that are wrong.
    pub(super) fn invalid(self, what: &str) -> GroupError {
        GroupError::member(self.rank, ErrorKind::Invalid, format!("{what} in {}", self.call))
    }

    /// Checks the first message of a member. Returns the length of its payload, and the payload if
    /// it is there.
    pub(super) fn opened(
        self,
        rank: u32,
        arrived: Result<Bytes, Error>,
        round: u8,
    ) -> Result<(u64, Option<Bytes>), GroupError> {
        let mut wire = arrived.map_err(|error| self.blamed(rank, error))?;
        let head = Head::decode(&wire).ok_or_else(|| self.wrong(rank, "a message without a head"))?;
        if head.call != self.call {
            let members = [(rank, head.call), (self.rank, self.call)];
            return Err(GroupError::Mismatch { number: self.number, members });
        }
        let attached = wire.split_off(HEAD);
        match head.len <= ATTACHED as u64 {
            _ if head.round != round => Err(self.wrong(rank, "a message of another round")),
            true if head.len == attached.len() as u64 => Ok((head.len, Some(attached))),
            false if attached.is_empty() => Ok((head.len, None)),
            _ => Err(self.wrong(rank, "a message of another length than its head says")),
        }
    }

    /// Checks the length of what has come from a member.
    pub(super) fn filled(self, rank: u32, came: Result<u64, Error>, len: u64) -> Result<(), GroupError> {
        match came {
            Ok(came) if came == len => Ok(()),
            Ok(came) => Err(self.wrong(rank, &format!("{came} bytes instead of {len}"))),
            Err(error) => Err(self.blamed(rank, error)),
        }
    }

    /// Returns memory for what a member sends. The length is checked before.
    pub(super) fn room(self, len: u64) -> Result<Memory, GroupError> {
        Memory::zeroed(len as usize).map_err(|error| GroupError::Member { rank: self.rank, error })
    }
}
