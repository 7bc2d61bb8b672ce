//! The settlement of effects: the one place where handlers are run and where what they return is
//! carried out ([`crate::engine::books::effect`]).

use crate::engine::Engine;
use crate::engine::adapter::{AdapterSide, Inbox};
use crate::engine::books::{Arrival, Effect, End, Held, Offer, Operations, Peer};
use crate::engine::bulk::pacing;
use crate::op::PeerId;
use crate::wire::Violation;

impl Engine {
    /// Runs the handler of an event of a peer, and carries out what it returns. Does nothing if the
    /// peer is gone.
    #[inline]
    pub(in crate::engine) fn handle(
        &mut self,
        id: PeerId,
        handler: impl FnOnce(&mut AdapterSide, &mut Operations, &mut Peer) -> Result<Effect, Violation>,
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
fn carry_out(
    adapter: &mut AdapterSide,
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
pub(in crate::engine) fn finish(
    adapter: &mut AdapterSide,
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
