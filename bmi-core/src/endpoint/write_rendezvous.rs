//! Write rendezvous, for adapters without RDMA read: the receiver tells the sender where to write
//! an announced message.
//!
//! **Why.** A long message is announced, and read by its receiver. An adapter without RDMA read
//! ([`Capabilities::rdma_read`](crate::Capabilities::rdma_read)) cannot read it. So the data moves
//! in the other direction, as with a grant ([`super::grant`]): the receiver describes its memory.
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
//! ([`super::fallback_buffer`]) and copied from there. If there is no such buffer, both sides end
//! in `Exhausted`.
//!
//! **Invariants.** The memory of the receive is revoked only after the sender has said that it
//! writes no more. A write with a revoked key would end the connection. A ClearToWrite spends a
//! message credit and no bytes, because it is never parked.
//!
//! **Source.** Client-based RDMA write ([PVFS-IB §3.2.3]). Tested by the conformance suite over an
//! adapter without RDMA read, and by the sweeps.

use super::op::{Cursor, State};
use super::peer::{Notice, Repost};
use super::receive::Violation;
use super::send::Message;
use super::{Endpoint, timing};
use crate::error::ErrorKind;
use crate::mem::{Access, MemList, RemoteSlice};
use crate::mutated;
use crate::op::{OpId, OpKind, PeerId};
use crate::proto::header::{FinishStatus, HEADER_LEN, Header, Kind};
use crate::proto::one_or_many::OneOrMany;
use crate::transport::{HostWork, Transport};

impl<T: Transport> Endpoint<T> {
    // ---- the receiver ---------------------------------------------------------------------------

    /// Has an announced message of `len` bytes written into its receive. The message fits.
    pub(super) fn start_write_rendezvous(&mut self, peer_id: PeerId, id: OpId, named: u64, len: u64) {
        let understood = self.peers.get(peer_id.0).is_some_and(|peer| peer.understands_write_rendezvous);
        let remote = if understood { self.expose_receive(peer_id, id, len) } else { None };
        let (Some(remote), Some(peer)) = (remote, self.peers.get_mut(peer_id.0)) else {
            self.notify(peer_id, Notice::Finish { op: named, status: FinishStatus::Exhausted, len: 0 });
            let kind = if understood { ErrorKind::Exhausted } else { ErrorKind::Unsupported };
            return self.finish(id, Err(kind), len);
        };
        peer.busy += 1;
        self.ops.get_mut(id.0).expect("the caller has it").state = State::AwaitingWrite { named, remote };
        self.notify(peer_id, Notice::ClearToWrite { op: id });
    }

    /// Exposes the first `len` bytes of a receive for writing, or a fallback buffer for them.
    fn expose_receive(&mut self, peer_id: PeerId, id: OpId, len: u64) -> Option<OneOrMany<RemoteSlice>> {
        let len = usize::try_from(len).ok()?;
        let list: MemList = self.ops.get(id.0)?.list.as_ref()?.range(0, len).collect();
        let peer = self.peers.get(peer_id.0)?;
        let room = (self.eager_limit(peer) / RemoteSlice::WIRE_LEN).min(peer.limits.pieces);
        if list.pieces().len() <= room
            && let Ok(remote) = self.expose_list(peer_id, &list, Access::WRITE)
        {
            return Some(remote);
        }
        // The peer may take its time, so the last reserved buffer is not used for this.
        let fallback = self.fallback_buffers.take(&mut self.transport, &mut self.registry, len, 1)?;
        fallback.clear(len);
        let conn = self.peers.get(peer_id.0)?.conn;
        let remote = self.transport.expose(conn, &fallback.segment(len), Access::WRITE).ok()?;
        self.peers.get_mut(peer_id.0)?.exposures += 1;
        self.counters.bounced += 1;
        self.ops.get_mut(id.0)?.fallback = Some(Box::new(fallback));
        Some(OneOrMany::One(remote))
    }

    /// Sends a ClearToWrite at the head of the notices. Returns true if the notice is off the list.
    pub(super) fn send_clear_to_write(&mut self, peer_id: PeerId, id: OpId) -> bool {
        let Some(State::AwaitingWrite { named, remote }) = self.ops.get(id.0).map(|op| &op.state) else {
            self.drop_notice(peer_id);
            return true;
        };
        let (named, remote) = (*named, remote.clone());
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        if !peer.credit.as_mut().is_some_and(|credit| credit.spend_message()) {
            return false;
        }
        let len = remote.as_slice().iter().map(|piece| piece.len).sum();
        let message = Message { kind: Kind::ClearToWrite, tag: timing::name_of(id), len, op: named };
        if let Err(error) = self.transmit_pieces(peer_id, message, remote.as_slice()) {
            self.unspend(peer_id, 0);
            self.refused(peer_id, error);
            return false;
        }
        self.drop_notice(peer_id);
        true
    }

    /// Handles a Written: the sender has written the message that a receive awaits.
    pub(super) fn on_rendezvous_written(&mut self, peer_id: PeerId, id: OpId, len: u64) -> Result<(), Violation> {
        let op = self.ops.get(id.0).expect("the caller has it");
        let State::AwaitingWrite { remote, .. } = &op.state else {
            return Err("a message written that was not wanted");
        };
        let remote = remote.clone();
        if len != remote.as_slice().iter().map(|piece| piece.len).sum::<u64>() {
            return Err("a message written that is not as long as announced");
        }
        if let (Some(fallback), Some(list)) = (&op.fallback, &op.list) {
            let pieces = fallback.spill(list, usize::try_from(len).unwrap_or(usize::MAX));
            self.transport.charge(HostWork::Copy { bytes: len, pieces });
        }
        if !mutated("write-rendezvous/good-for-ever") {
            self.revoke_all(peer_id, remote.as_slice());
        }
        self.received(id, Ok(()), len);
        self.no_longer_busy(peer_id);
        Ok(())
    }

    /// Handles a Withdrawn: the sender writes no more, and has not written all.
    pub(super) fn on_rendezvous_withdrawn(&mut self, peer_id: PeerId, id: OpId) {
        let op = self.ops.get(id.0).expect("the caller has it");
        let State::AwaitingWrite { remote, .. } = &op.state else { return };
        let (remote, ending) = (remote.clone(), op.ending.unwrap_or(ErrorKind::Cancelled));
        self.revoke_all(peer_id, remote.as_slice());
        self.finish(id, Err(ending), 0);
        self.no_longer_busy(peer_id);
    }

    // ---- the sender -----------------------------------------------------------------------------

    /// Handles a ClearToWrite: the peer describes where to write an announced message.
    pub(super) fn on_clear_to_write(
        &mut self,
        peer_id: PeerId,
        slot: usize,
        header: &Header,
        len: usize,
    ) -> Result<(), Violation> {
        self.spent_message(peer_id)?;
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        // SAFETY: the completion just gave the slot back, and it is posted again only below.
        let table = &unsafe { peer.slots.bytes(slot, HEADER_LEN + len) }[HEADER_LEN..];
        let wire = table.chunks_exact(RemoteSlice::WIRE_LEN);
        let remote: OneOrMany<RemoteSlice> =
            wire.map(|wire| RemoteSlice::from_wire(wire.try_into().expect("exact chunks"))).collect();
        let op = self.ops.get(timing::op_of(header.op).0).filter(|op| op.peer == Some(peer_id));
        let op = op.ok_or("a ClearToWrite for no operation of ours")?;
        let State::Announced(shown) = &op.state else {
            return Err("a ClearToWrite for an operation that was not announced");
        };
        let total = remote.as_slice().iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.len));
        if header.len != op.len() as u64 || total != Some(header.len) {
            return Err("a ClearToWrite that is not as long as what was announced");
        }
        if remote.as_slice().len() > self.config.limits.max_pieces {
            return Err("a ClearToWrite for more pieces than were agreed on");
        }
        let (id, shown, ending, total) = (timing::op_of(header.op), shown.clone(), op.ending, header.len);
        self.repost(peer_id, slot, Repost::Message);
        // The peer will not read.
        self.revoke_all(peer_id, shown.as_slice());
        self.forget_stand_in(id);
        if let Some(ending) = ending {
            self.finish(id, Err(ending), total);
            self.no_longer_busy(peer_id);
            return self.answer(peer_id, Notice::Withdrawn { op: header.tag });
        }
        // The operation is already counted as busy.
        self.no_longer_busy(peer_id);
        self.start_transfer(id, remote, Cursor::default(), total, Some(header.tag));
        Ok(())
    }

    /// Reports the end of a transfer that the peer cleared to write.
    pub(super) fn notify_written(&mut self, peer_id: PeerId, name: u64, written: Option<u64>) {
        let notice = match written {
            None if mutated("write-rendezvous/told-written-though-stopped") => Notice::Written { op: name, len: 0 },
            Some(len) => Notice::Written { op: name, len },
            None => Notice::Withdrawn { op: name },
        };
        if let Some(peer) = self.peers.get_mut(peer_id.0) {
            // It is counted as any other Withdrawn in the queue.
            peer.answers += usize::from(matches!(notice, Notice::Withdrawn { .. }));
        }
        self.notify(peer_id, notice);
    }

    /// Stops a message that is being written, because the peer withdraws its receive. Returns true
    /// if there is such a message.
    pub(super) fn stop_rendezvous_write(&mut self, peer_id: PeerId, name: u64) -> bool {
        let moving = self.ops.iter().find(|(_, op)| {
            op.peer == Some(peer_id)
                && op.kind == OpKind::Send
                && matches!(&op.state, State::Moving(transfer) if transfer.announced_as == Some(name))
        });
        let Some(id) = moving.map(|(key, _)| OpId(key)) else { return false };
        self.end_early(id, ErrorKind::Cancelled);
        true
    }
}
