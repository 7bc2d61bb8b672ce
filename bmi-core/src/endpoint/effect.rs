//! What a handler of an event leaves to do, and the one place that does it.
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

use super::adapter_side::AdapterSide;
use super::inbox::Inbox;
use super::op::Offer;
use super::operations::{Held, Operations};
use super::peer::Peer;
use super::report::Place;
use super::{Endpoint, pacing};
use crate::error::ErrorKind;
use crate::op::{OpId, PeerId, Tag};
use crate::proto::Violation;
use crate::proto::header::Header;
use crate::transport::Transport;

/// A message in a receive slot: the slot, the header, and the number of bytes behind it.
#[derive(Clone, Copy)]
pub(super) struct SlotMessage<'a> {
    pub(super) slot: usize,
    pub(super) header: &'a Header,
    pub(super) len: usize,
}

/// What follows from an event.
#[must_use]
pub(super) enum Effect {
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
pub(super) struct End {
    pub(super) op: OpId,
    pub(super) status: Result<(), ErrorKind>,
    pub(super) len: u64,
}

/// An unexpected message of a peer.
pub(super) struct Arrival {
    pub(super) tag: Tag,
    pub(super) bytes: Place,
    /// The credits that the message keeps, in bytes.
    pub(super) cost: u32,
}

impl Effect {
    /// The operation ends with this status.
    #[inline]
    pub(super) fn ends(op: OpId, status: Result<(), ErrorKind>, len: u64) -> Effect {
        Effect::Finish(End { op, status, len })
    }
}

impl<T: Transport> Endpoint<T> {
    /// Runs the handler of an event of a peer, and carries out what it returns. Does nothing if the
    /// peer is gone.
    #[inline]
    pub(super) fn handle(
        &mut self,
        id: PeerId,
        handler: impl FnOnce(&mut AdapterSide<T>, &mut Operations, &mut Peer) -> Result<Effect, Violation>,
    ) {
        let Self { adapter, ops, peers, inbox, .. } = self;
        let Some((peer, dirty)) = peers.get_with_dirty(id) else { return };
        match handler(adapter, ops, peer) {
            Ok(effect) => {
                let take_turns = carry_out(adapter, ops, peer, inbox, effect);
                // Credits may wait to go back, and others may have arrived.
                dirty.mark(peer);
                if take_turns {
                    pacing::take_turns(adapter, ops, peers);
                }
            }
            Err(violation) => adapter.violated(peer, violation),
        }
    }
}

/// Carries out an effect, except for the turns: only the caller has all peers. Returns true if the
/// transfers should take their turns.
#[inline]
fn carry_out<T: Transport>(
    adapter: &mut AdapterSide<T>,
    ops: &mut Operations,
    peer: &mut Peer,
    inbox: &mut Inbox,
    effect: Effect,
) -> bool {
    match effect {
        Effect::None => {}
        Effect::Finish(end) => finish(adapter, ops, Some(peer), end),
        Effect::Deliver(Arrival { tag, bytes, cost }) => {
            inbox.push(peer.id, tag, bytes, cost);
        }
        Effect::TakeTurns => return true,
    }
    false
}

/// Ends an operation: gives back the buffers and the offer that its record held, and makes its
/// completion. The handler has settled what its peer counts. `peer` is the peer of the operation,
/// if its connection is still there.
pub(super) fn finish<T: Transport>(
    adapter: &mut AdapterSide<T>,
    ops: &mut Operations,
    peer: Option<&mut Peer>,
    End { op, status, len }: End,
) {
    let Some(Held { staged, offer }) = ops.finish(op, status, len) else { return };
    if let Some(buffer) = staged {
        adapter.staging.free(buffer);
    }
    if let (Offer::Made(memory) | Offer::Used(memory), Some(peer)) = (offer, peer) {
        peer.offers.ended(matches!(offer, Offer::Used(_)) || status.is_err());
        adapter.revoke_all(peer, &[memory]);
    }
}
