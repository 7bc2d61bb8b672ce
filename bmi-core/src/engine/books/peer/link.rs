//! The states of a connection, what is sent ahead of messages, and how its slots are posted.
//!
//! ```text
//!  Connecting ──connected──┐
//!                          ├──> Up ──disconnect──> Closing ──┐
//!  Accepting  ──connected──┘     └───────────cut─────────────┴──> Cut
//! ```
//!
//! In every state the connection may be lost. The record is removed then.

use crate::mem::RemoteSlice;
use crate::op::OpId;
use crate::wire::header::FinishStatus;

/// The state of a connection.
#[derive(Debug)]
pub(in crate::engine) enum Link {
    /// This side asked to connect. The operation completes when the connection is up.
    Connecting(OpId),
    /// This side accepted the request.
    Accepting,
    /// The connection is up.
    Up,
    /// The connection is up, and ends when everything that was posted before is sent. Then the
    /// operation completes.
    Closing(OpId),
    /// This side told the adapter to end the connection. Everything that still arrives is ignored.
    Cut,
}

impl Link {
    /// Goes to the next state. Returns the state before. A debug build checks that the diagram has
    /// the change.
    pub(in crate::engine) fn enter(&mut self, next: Link) -> Link {
        debug_assert!(self.may_become(&next), "a connection goes from {self:?} to {next:?}");
        std::mem::replace(self, next)
    }

    fn may_become(&self, next: &Link) -> bool {
        match self {
            Link::Connecting(_) | Link::Accepting => matches!(next, Link::Up),
            Link::Up => matches!(next, Link::Closing(_) | Link::Cut),
            Link::Closing(_) => matches!(next, Link::Cut),
            Link::Cut => false,
        }
    }
}

/// The credit that goes back to the peer when a receive is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Repost {
    /// None, because the hello has granted it.
    First,
    /// A message credit.
    Message,
    /// A control credit.
    Control,
}

/// A message of this side that spends no bytes, except Ready, and is sent before all others.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) enum Notice {
    Finish {
        op: u64,
        status: FinishStatus,
        len: u64,
    },
    Cancel {
        op: u64,
    },
    /// The Finish of an announcement that was cancelled before it had a receive.
    Cancelled {
        op: u64,
    },
    Ready {
        op: OpId,
    },
    Written {
        op: u64,
        len: u64,
    },
    Withdraw {
        op: u64,
    },
    Withdrawn {
        op: u64,
    },
    /// Tells the sender where to write the message that it announced.
    ClearToWrite {
        op: OpId,
    },
    /// Describes our fast-RDMA slots.
    FastSlots,
    /// Answers a probe.
    Answer {
        name: u64,
        area: Option<RemoteSlice>,
    },
}

/// What is known about the pages of a peer's slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) enum SlotUse {
    /// No page was touched since the last ones were given back.
    #[default]
    Clean,
    /// A message came since the last sweep.
    Used,
    /// No message came between the last two sweeps.
    Quiet,
    /// The pages are to be given back.
    Due,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Key;

    #[test]
    fn a_connection_goes_through_the_diagram_and_no_other_way() {
        let op = OpId(Key { slot: 0, generation: 0 });
        let all = || [Link::Connecting(op), Link::Accepting, Link::Up, Link::Closing(op), Link::Cut];
        let allowed = [(0, 2), (1, 2), (2, 3), (2, 4), (3, 4)];
        for (from, before) in all().iter().enumerate() {
            for (to, next) in all().iter().enumerate() {
                assert_eq!(before.may_become(next), allowed.contains(&(from, to)), "{before:?} to {next:?}");
            }
        }
    }
}
