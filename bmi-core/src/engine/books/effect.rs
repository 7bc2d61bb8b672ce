//! Effects: what a handler of an event leaves to do. [`crate::engine::ending::settlement`] does it.
//!
//! **Why.** A message or a completion may end an operation, hand a message to the program, or let
//! transfers go on. Each of these reaches further than the peer that it came from. If handlers did
//! it themselves, each of them could call all others. So a handler works on three things only: the
//! adapter side, the operations and its peer. It returns the rest as an [`Effect`], which is a
//! value: nothing is allocated. A handler that finds a violation returns that instead, and its peer
//! is cut off.
//!
//! ```text
//!   event ──> look up the peer ──> handler(adapter, operations, peer) ──> Effect or Violation
//!                                                                              │
//!             the peer is marked if it has something to send  <── carry_out ───┘
//! ```

use super::report::Place;
use crate::error::ErrorKind;
use crate::op::{OpId, Tag};
use crate::wire::header::Header;

/// A message in a receive slot: the slot, the header, and the number of bytes behind it.
#[derive(Clone, Copy)]
pub(in crate::engine) struct SlotMessage<'a> {
    pub(in crate::engine) slot: usize,
    pub(in crate::engine) header: &'a Header,
    pub(in crate::engine) len: usize,
}

/// What follows from an event.
#[must_use]
pub(in crate::engine) enum Effect {
    /// Nothing more.
    None,
    /// An operation of the peer ends.
    Finish(End),
    /// The program gets an unexpected message.
    Deliver(Arrival),
    /// A transfer has queued bytes, so the transfers of all peers take their turns.
    TakeTurns,
}

/// The end of an operation.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct End {
    pub(in crate::engine) op: OpId,
    pub(in crate::engine) status: Result<(), ErrorKind>,
    pub(in crate::engine) len: u64,
}

/// An unexpected message of a peer.
pub(in crate::engine) struct Arrival {
    pub(in crate::engine) tag: Tag,
    pub(in crate::engine) bytes: Place,
    /// The credits that the message keeps, in bytes.
    pub(in crate::engine) cost: u32,
}

impl Effect {
    /// The operation ends with this status.
    #[inline]
    pub(in crate::engine) fn ends(op: OpId, status: Result<(), ErrorKind>, len: u64) -> Effect {
        Effect::Finish(End { op, status, len })
    }
}
