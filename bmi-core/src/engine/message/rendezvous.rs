//! Rendezvous: a long message is announced, and its receiver moves the bytes when it has a receive.
//!
//! **Protocol**
//!
//! ```text
//!   sender                                             receiver
//!   post_send  ──Announce(tag, op, length, memory)──>  matched, or parked until there is a receive
//!              <════ RDMA reads, in units ═══════════  the receive moves (`transfer`)
//!   ends       <──Finish(op, status, length)─────────  ends when the last read is done
//!
//!   cancel     ──Cancel(op)─────────────────────────>  reads no more
//!   ends       <──Finish(op, Cancelled)──────────────  ends
//! ```
//!
//! An adapter without RDMA read takes the way of [`super::write_rendezvous`] after the
//! announcement.
//!
//! **Invariants.** The memory of the send is exposed before it is announced, and revoked when the
//! Finish or a ClearToWrite arrives. An announcement spends credits for its table, because it may
//! be parked.
//!
//! **Source.** Server-based RDMA ([PVFS-IB §3.2.3, §4.1.1]).

use super::decide::Outgoing;
use super::write_rendezvous;
use crate::config::Config;
use crate::engine::adapter::{AdapterSide, Attempt, Message};
use crate::engine::books::{
    Content, Effect, Notice, Op, Operations, Parked, Peer, Plan, Record, Repost, SlotMessage, State, record,
};
use crate::engine::buffers::Cursor;
use crate::engine::bulk::transfer;
use crate::engine::ending::{end_early, name_of, op_of};
use crate::error::ErrorKind;
use crate::hooks::step;
use crate::mem::{MemList, Memory, OneOrMany, RemoteSlice};
use crate::mutated;
use crate::op::{OpId, OpKind};
use crate::timeline::Way;
use crate::transport::{HostWork, Transport};
use crate::wire::header::{FinishStatus, Kind};
use crate::wire::{Violation, credit};

// ---- the sender ---------------------------------------------------------------------------------

/// Announces a message that the peer will read.
pub(super) fn announce(
    adapter: &mut AdapterSide,
    peer: &mut Peer,
    message: Outgoing<'_>,
    Record { id, op }: Record<'_>,
) -> Attempt {
    let Some(list) = describable(adapter, peer, op, message.list) else { return Attempt::Failed(ErrorKind::Exhausted) };
    let cost = credit::cost(list.pieces().len() * RemoteSlice::WIRE_LEN);
    if !peer.spend(cost) {
        return Attempt::Blocked;
    }
    let remote = match adapter.expose_send(peer, op, &list) {
        Ok(remote) => remote,
        Err(error) => {
            peer.unspend(cost);
            return Attempt::Failed(error.kind());
        }
    };
    let len = list.len() as u64;
    let header = Message { kind: Kind::Announce, tag: message.tag, len, op: name_of(id) };
    if let Err(error) = adapter.transmit_pieces(peer, header, remote.as_slice()) {
        adapter.revoke_all(peer, remote.as_slice());
        op.fallback = None;
        peer.unspend(cost);
        return adapter.refused(peer, error);
    }
    adapter.counters.rendezvous += 1;
    adapter.counters.bytes_sent += len;
    adapter.count_fallback_buffer(op);
    record::sent(&adapter.recorder, peer, Kind::Eager, Way::Announced, message.tag, len);
    Attempt::Announced(remote)
}

/// Returns the list. If it has more pieces than an announcement has room for, a copy in one piece
/// takes its place.
fn describable(adapter: &mut AdapterSide, peer: &Peer, op: &mut Op, list: &MemList) -> Option<MemList> {
    if list.pieces().len() <= adapter.describable_pieces(peer) {
        return Some(list.clone());
    }
    let packed = Memory::zeroed(list.len()).ok()?;
    let mut at = 0;
    for piece in list.pieces() {
        at += packed.slice(at, piece.len()).copy_from_slice_of(piece);
    }
    adapter.transport.charge(HostWork::copy(list.len(), list));
    adapter.counters.packed += 1;
    let packed = MemList::from(packed);
    op.list = Some(packed.clone());
    Some(packed)
}

/// Handles a Finish: the peer has read an announced message, or will not read it.
pub(in crate::engine) fn on_finish(
    adapter: &mut AdapterSide,
    ops: &Operations,
    peer: &mut Peer,
    SlotMessage { slot, header, .. }: SlotMessage<'_>,
) -> Result<Effect, Violation> {
    peer.arrived_without_bytes()?;
    let status = FinishStatus::from_wire(header.tag).ok_or("a finish with an unknown status")?;
    let id = op_of(header.op);
    let op = ops.get(id).filter(|op| op.peer == Some(peer.id)).ok_or("a finish of no operation of its own")?;
    let State::Announced(remote) = op.state() else { return Err("a finish of an operation that was not announced") };
    let len = op.len() as u64;
    let status = match (status, op.ending) {
        (FinishStatus::Ok, _) if header.len != len => return Err("a finish of the wrong length"),
        (FinishStatus::Ok, _) => Ok(()),
        (FinishStatus::TooLong, _) => Err(ErrorKind::TooLarge),
        (FinishStatus::Exhausted, _) => Err(ErrorKind::Exhausted),
        (FinishStatus::Cancelled, ending) => Err(ending.unwrap_or(ErrorKind::Cancelled)),
    };
    if !mutated("rendezvous/exposure-kept") {
        adapter.revoke_all(peer, remote.as_slice());
    }
    peer.no_longer_busy();
    adapter.repost(peer, slot, Repost::Message);
    Ok(Effect::ends(id, status, len))
}

// ---- the receiver -------------------------------------------------------------------------------

/// Handles an announcement.
pub(in crate::engine) fn on_announce(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    SlotMessage { slot, header, len }: SlotMessage<'_>,
) -> Result<Effect, Violation> {
    let cost = credit::cost(len);
    peer.account.arrived(cost)?;
    // SAFETY: the completion just gave the slot back. It is posted again only below.
    let table = unsafe { peer.payload(slot, len) };
    let pieces = || {
        table
            .chunks_exact(RemoteSlice::WIRE_LEN)
            .inspect(|_| step())
            .map(|wire| RemoteSlice::from_wire(wire.try_into().expect("exact chunks")))
    };
    let total = pieces().try_fold(0u64, |sum, piece| sum.checked_add(piece.len));
    let Config { limits, tuning, .. } = &adapter.config;
    if total != Some(header.len) || header.len > limits.max_message || pieces().len() > tuning.max_pieces {
        return Err("an announcement whose pieces do not add up");
    }
    let remote: OneOrMany<RemoteSlice> = pieces().collect();
    peer.seen += 1;
    let effect = match peer.posted.pop(header.tag) {
        Some(id) if ops.get(id).is_some_and(|op| op.kind == OpKind::Discard) => {
            let content = Content::Announced { op: header.op, len: header.len, remote };
            adapter.drop_parked(peer, Parked { cost, content })?;
            Effect::ends(id, Ok(()), header.len)
        }
        Some(id) => {
            peer.account.unparked(cost);
            start(adapter, ops, peer, id, Announced { named: header.op, len: header.len, remote })
        }
        None => {
            let parked = Parked { cost, content: Content::Announced { op: header.op, len: header.len, remote } };
            if peer.is_late(header.tag) {
                adapter.drop_parked(peer, parked)?;
            } else {
                adapter.counters.unmatched += 1;
                peer.park(header.tag, parked);
            }
            Effect::None
        }
    };
    adapter.repost(peer, slot, Repost::Message);
    Ok(effect)
}

/// An announced message: the name of the sender's operation, its length, and its memory.
pub(in crate::engine) struct Announced {
    pub(in crate::engine) named: u64,
    pub(in crate::engine) len: u64,
    pub(in crate::engine) remote: OneOrMany<RemoteSlice>,
}

/// Starts to read an announced message into its receive, or to have it written there.
pub(in crate::engine) fn start(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    id: OpId,
    Announced { named, len, remote }: Announced,
) -> Effect {
    let Some(op) = ops.get(id) else { return Effect::None };
    let (room, ending) = (op.len() as u64, op.ending);
    let (status, kind) = if let Some(ending) = ending {
        (FinishStatus::Cancelled, ending)
    } else if len > room && !mutated("rendezvous/longer-than-the-receive") {
        (FinishStatus::TooLong, ErrorKind::TooLarge)
    } else if len > 0 && !adapter.transport.capabilities().rdma_read {
        return write_rendezvous::start(adapter, ops, peer, id, named, len);
    } else {
        let plan = Plan { remote, at: Cursor::default(), total: len, announced_as: Some(named), immediate: None };
        return transfer::start(adapter, ops, peer, id, plan);
    };
    peer.notify(Notice::Finish { op: named, status, len: 0 });
    Effect::ends(id, Err(kind), len)
}

/// Handles a Cancel: the sender of an announced message wants it back.
pub(in crate::engine) fn on_cancel(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    SlotMessage { slot, header, .. }: SlotMessage<'_>,
) -> Result<Effect, Violation> {
    let named = header.op;
    peer.arrived_without_bytes()?;
    adapter.repost(peer, slot, Repost::Message);
    if let Some(parked) = peer.parked.take_named(named) {
        peer.unparked(&parked);
        peer.account.unparked(parked.cost);
        if !mutated("rendezvous/cancel-not-answered") {
            peer.answer(adapter.most_answers(), Notice::Cancelled { op: named })?;
        }
        return Ok(Effect::None);
    }
    // If nothing reads it, our Finish is already on its way. What this side writes is named by a
    // receive, which is withdrawn and not cancelled.
    let reading = peer.moving.of_name(named, false);
    Ok(reading.map_or(Effect::None, |id| end_early(adapter, ops, Some(peer), id, ErrorKind::Cancelled)))
}
