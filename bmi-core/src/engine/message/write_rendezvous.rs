//! Write rendezvous, for adapters without RDMA read: the receiver tells the sender where to write
//! an announced message.
//!
//! **Why.** A long message is announced, and read by its receiver. An adapter without RDMA read
//! ([`Capabilities::rdma_read`](crate::Capabilities::rdma_read)) cannot read it. So the data moves
//! in the other direction, as with a grant ([`crate::engine::bulk::grant`]): the receiver describes
//! its memory.
//!
//! **Protocol**
//!
//! ```text
//!   receiver                                                    sender
//!                  <──Announce(tag, op, length)───────────────  post_send
//!   has a receive  ──ClearToWrite(op, receive, memory)───────>  revokes its exposure: Announced becomes Moving
//!                  <════ RDMA writes, in units ═══════════════
//!   ends           <──Written(receive, length)────────────────  ends when the adapter is done
//!
//!   cancel         ──Withdraw(receive)───────────────────────>  posts no more, waits for its adapter
//!   ends           <──Withdrawn(receive), or Written──────────  ends
//! ```
//!
//! A sender that gives up sends Cancel, as for any announcement. If a ClearToWrite is already on
//! its way, the sender answers it with Withdrawn.
//!
//! **Memory.** A receive may have more pieces than a ClearToWrite has room for, or memory that
//! cannot be registered. Then the message is written into a fallback buffer
//! ([`crate::engine::buffers::fallback`]) and copied from there. If there is no such buffer, both
//! sides end in `Exhausted`.
//!
//! **Invariants.** The memory of the receive is revoked only after the sender has said that it
//! writes no more. A write with a revoked key would end the connection. A ClearToWrite spends a
//! message credit and no bytes, because it is never parked.
//!
//! **Source.** Client-based RDMA write ([PVFS-IB §3.2.3]). Tested by the conformance suite over an
//! adapter without RDMA read, and by the sweeps.

use super::eager;
use crate::engine::adapter::{AdapterSide, Message};
use crate::engine::books::{Effect, Notice, Operations, Peer, Plan, Repost, SlotMessage, State};
use crate::engine::buffers::Cursor;
use crate::engine::bulk::transfer;
use crate::engine::ending::{name_of, op_of};
use crate::error::ErrorKind;
use crate::hooks::step;
use crate::mem::{Access, MemList, OneOrMany, RemoteSlice};
use crate::mutated;
use crate::op::OpId;
use crate::transport::{HostWork, Transport};
use crate::wire::Violation;
use crate::wire::header::{FinishStatus, Kind};

// ---- the receiver -------------------------------------------------------------------------------

/// Has an announced message of `len` bytes written into its receive. The message fits.
pub(in crate::engine) fn start(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    id: OpId,
    named: u64,
    len: u64,
) -> Effect {
    let understood = peer.understands_write_rendezvous;
    let remote = if understood { expose_receive(adapter, ops, peer, id, len) } else { None };
    let (Some(remote), Some(op)) = (remote, ops.get_mut(id)) else {
        peer.notify(Notice::Finish { op: named, status: FinishStatus::Exhausted, len: 0 });
        let kind = if understood { ErrorKind::Exhausted } else { ErrorKind::Unsupported };
        return Effect::ends(id, Err(kind), len);
    };
    op.enter(State::AwaitingWrite { named, remote });
    peer.busy += 1;
    peer.notify(Notice::ClearToWrite { op: id });
    Effect::None
}

/// Exposes the first `len` bytes of a receive for writing, or a fallback buffer for them.
fn expose_receive(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    id: OpId,
    len: u64,
) -> Option<OneOrMany<RemoteSlice>> {
    let len = usize::try_from(len).ok()?;
    let op = ops.get_mut(id)?;
    let list: MemList = op.list.as_ref()?.range(0, len).collect();
    if list.pieces().len() <= adapter.describable_pieces(peer)
        && let Ok(remote) = adapter.expose_list(peer, &list, Access::WRITE)
    {
        return Some(remote);
    }
    // The peer may take its time, so the last reserved buffer is not used for this.
    let fallback = adapter.fallback_buffers.take(&mut adapter.transport, &mut adapter.registry, len, 1)?;
    fallback.clear(len);
    let remote = adapter.transport.expose(peer.conn, &fallback.segment(len), Access::WRITE).ok()?;
    peer.exposures += 1;
    adapter.counters.bounced += 1;
    op.fallback = Some(Box::new(fallback));
    Some(OneOrMany::One(remote))
}

/// Sends a ClearToWrite at the head of the notices. Returns true if the notice is off the queue.
pub(super) fn send_clear_to_write(adapter: &mut AdapterSide, ops: &Operations, peer: &mut Peer, id: OpId) -> bool {
    let Some(State::AwaitingWrite { named, remote }) = ops.get(id).map(|op| op.state()) else {
        peer.drop_notice();
        return true;
    };
    if !peer.spend_message() {
        return false;
    }
    let len = remote.as_slice().iter().map(|piece| piece.len).sum();
    let message = Message { kind: Kind::ClearToWrite, tag: name_of(id), len, op: *named };
    if let Err(error) = adapter.transmit_pieces(peer, message, remote.as_slice()) {
        peer.unspend(0);
        adapter.refused(peer, error);
        return false;
    }
    peer.drop_notice();
    true
}

/// Handles a Written: the sender has written the message that a receive awaits.
pub(in crate::engine) fn on_written(
    adapter: &mut AdapterSide,
    ops: &Operations,
    peer: &mut Peer,
    id: OpId,
    len: u64,
) -> Result<Effect, Violation> {
    let Some((op, State::AwaitingWrite { remote, .. })) = ops.get(id).map(|op| (op, op.state())) else {
        return Err("a message written that was not wanted");
    };
    if len != remote.as_slice().iter().map(|piece| piece.len).sum::<u64>() {
        return Err("a message written that is not as long as announced");
    }
    if let (Some(fallback), Some(list)) = (&op.fallback, &op.list) {
        let pieces = fallback.spill(list, usize::try_from(len).unwrap_or(usize::MAX));
        adapter.transport.charge(HostWork::Copy { bytes: len, pieces });
    }
    if !mutated("write-rendezvous/good-for-ever") {
        adapter.revoke_all(peer, remote.as_slice());
    }
    peer.no_longer_busy();
    Ok(eager::received(adapter, ops, id, Ok(()), len))
}

/// Handles a Withdrawn: the sender writes no more, and has not written all.
pub(in crate::engine) fn on_withdrawn(
    adapter: &mut AdapterSide,
    ops: &Operations,
    peer: &mut Peer,
    id: OpId,
) -> Effect {
    let Some((op, State::AwaitingWrite { remote, .. })) = ops.get(id).map(|op| (op, op.state())) else {
        return Effect::None;
    };
    adapter.revoke_all(peer, remote.as_slice());
    peer.no_longer_busy();
    Effect::ends(id, Err(op.ending.unwrap_or(ErrorKind::Cancelled)), 0)
}

// ---- the sender ---------------------------------------------------------------------------------

/// Handles a ClearToWrite: the peer describes where to write an announced message.
pub(in crate::engine) fn on_clear_to_write(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    SlotMessage { slot, header, len }: SlotMessage<'_>,
) -> Result<Effect, Violation> {
    peer.arrived_without_bytes()?;
    // SAFETY: the completion just gave the slot back. It is posted again only below.
    let table = unsafe { peer.payload(slot, len) };
    let wire = table.chunks_exact(RemoteSlice::WIRE_LEN).inspect(|_| step());
    let remote: OneOrMany<RemoteSlice> =
        wire.map(|wire| RemoteSlice::from_wire(wire.try_into().expect("exact chunks"))).collect();
    let id = op_of(header.op);
    let op = ops.get_mut(id).filter(|op| op.peer == Some(peer.id)).ok_or("a ClearToWrite for no operation of ours")?;
    let State::Announced(shown) = op.state() else {
        return Err("a ClearToWrite for an operation that was not announced");
    };
    let total = remote.as_slice().iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.len));
    if header.len != op.len() as u64 || total != Some(header.len) {
        return Err("a ClearToWrite that is not as long as what was announced");
    }
    if remote.as_slice().len() > adapter.config.tuning.max_pieces {
        return Err("a ClearToWrite for more pieces than were agreed on");
    }
    if op.ending.is_some() {
        peer.answer(adapter.most_answers(), Notice::Withdrawn { op: header.tag })?;
    }
    adapter.repost(peer, slot, Repost::Message);
    // The peer will not read.
    adapter.revoke_all(peer, shown.as_slice());
    op.fallback = None;
    peer.no_longer_busy();
    if let Some(ending) = op.ending {
        return Ok(Effect::ends(id, Err(ending), header.len));
    }
    // From here on the transfer is what keeps the peer busy.
    let plan =
        Plan { remote, at: Cursor::default(), total: header.len, announced_as: Some(header.tag), immediate: None };
    Ok(transfer::start(adapter, ops, peer, id, plan))
}
