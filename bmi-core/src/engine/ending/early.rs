//! The early end of an operation: at its deadline, or because the program or the peer asks for it.
//!
//! It ends at once if no adapter can be accessing its memory. Otherwise the adapter or the peer is
//! asked to stop, and the operation ends when that is certain. [`crate::engine::books::op`] has the
//! table.

use crate::engine::adapter::AdapterSide;
use crate::engine::books::{Effect, Notice, Offer, Op, Operations, Peer, State};
use crate::engine::bulk::{lent, transfer};
use crate::error::ErrorKind;
use crate::hooks::step;
use crate::ids::Key;
use crate::mutated;
use crate::op::{OpId, OpKind};
use crate::transport::Transport;

/// Returns true if an operation that waits for its peer can end without asking anybody.
pub(in crate::engine) fn can_end_at_once(op: &Op) -> bool {
    match op.state() {
        State::Queued => true,
        State::Matching(_) => !matches!(op.offer, Offer::Made(_)),
        _ => false,
    }
}

/// Ends an operation early with the status `kind`. It ends at once if no adapter can be accessing
/// its memory. Otherwise the adapter or the peer is asked to stop.
pub(in crate::engine) fn end_early(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: Option<&mut Peer>,
    id: OpId,
    kind: ErrorKind,
) -> Effect {
    let Some(op) = ops.get(id).filter(|op| !op.is_done() && op.ending.is_none()) else { return Effect::None };
    let now = Effect::ends(id, Err(kind), 0);
    let Some(peer) = peer else { return now };
    match (op.state(), op.kind) {
        // Operations behind it may now be able to go, or a closing connection may be drained.
        (State::Queued, _) => leave_queue(ops, peer, id),
        (State::Matching(place), _) if can_end_at_once(op) => {
            let found = peer.posted.remove(*place);
            debug_assert!(found.is_some(), "a receive that waits is on the list");
        }
        (State::Granted(_), _) if !mutated("lent/revoked-at-once") => return lent::leave(ops, peer, id, kind),
        (State::Granted(_) | State::Left(_), _) => return lent::end(adapter, ops, peer, id, Err(kind)),
        (State::Waiting, OpKind::Timer | OpKind::Probe) => {}
        _ => return fence(adapter, ops, peer, id, kind),
    }
    now
}

/// Takes an operation out of the queue that ends early. There may be thousands, whose deadlines
/// pass at the same time. So those between others are taken out together.
fn leave_queue(ops: &Operations, peer: &mut Peer, id: OpId) {
    let is_queued = |op: &Op| matches!(op.state(), State::Queued);
    let waits = |queued: &OpId| {
        step();
        *queued != id && ops.get(*queued).is_some_and(is_queued)
    };
    while peer.queue.front().is_some_and(|queued| !waits(queued)) {
        peer.queue.pop_front();
    }
    while peer.queue.back().is_some_and(|queued| !waits(queued)) {
        peer.queue.pop_back();
    }
    peer.left_queue += 1;
    if 2 * peer.left_queue > peer.queue.len() || mutated("queue/cleared-for-each-that-leaves") {
        peer.queue.retain(waits);
        peer.left_queue = 0;
    }
}

/// Asks the adapter or the peer to stop accessing the memory of an operation. The operation ends
/// when that is certain, by the end of the grace period at the latest.
fn fence(adapter: &mut AdapterSide, ops: &mut Operations, peer: &mut Peer, id: OpId, kind: ErrorKind) -> Effect {
    let Some(op) = ops.get_mut(id) else { return Effect::None };
    op.ending = Some(kind);
    let receives = op.kind == OpKind::Recv;
    let waits_for_adapter = match op.state() {
        State::Waiting => {
            adapter.transport.disconnect(peer.conn, adapter.now);
            return Effect::None;
        }
        State::Announced(_) | State::Matching(_) | State::AwaitingWrite { .. } => false,
        State::Moving(transfer) => {
            if (transfer.outstanding == 0 || mutated("cancel/does-not-wait-for-the-adapter")) && !transfer.broken {
                return transfer::end(adapter, ops, peer, id);
            }
            true
        }
        _ => true,
    };
    // The grace period begins now, and the last poll may be long ago.
    ops.clear_timer(id);
    ops.fences.push(id);
    if !waits_for_adapter && !mutated("cancel/peer-not-told") {
        let op = name_of(id);
        peer.notify(if receives { Notice::Withdraw { op } } else { Notice::Cancel { op } });
    }
    Effect::None
}

/// Returns the operation of this side that a peer names. The name is unchecked, and must be looked
/// up.
pub(in crate::engine) fn op_of(name: u64) -> OpId {
    let slot = u32::try_from(name & u64::from(u32::MAX)).expect("masked");
    OpId(Key { slot, generation: u32::try_from(name >> 32).expect("shifted") })
}

/// Returns the name by which the peer refers to an operation of this side.
pub(in crate::engine) fn name_of(op: OpId) -> u64 {
    u64::from(op.0.generation) << 32 | u64::from(op.0.slot)
}
