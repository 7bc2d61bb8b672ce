//! The events of the adapter: each is given to its handler.
//!
//! **Invariant.** Everything that a message says is checked against what this side granted before
//! anything is done for it. A violation cuts the peer off, and does not affect other peers.

use crate::engine::Engine;
use crate::engine::adapter::{AdapterSide, Work};
use crate::engine::books::{Effect, Operations, Peer, Repost, SlotMessage, State, is_granted, record};
use crate::engine::bulk::{grant, transfer};
use crate::engine::life::on_go_away;
use crate::engine::message::{eager, fast_rdma, offered_receive, probe, rendezvous, write_rendezvous};
use crate::mutated_each;
use crate::op::{OpId, PeerId};
use crate::transport::{Event, WorkCompletion, WorkStatus};
use crate::wire::Violation;
use crate::wire::header::{Header, Kind};

impl Engine {
    #[inline]
    pub(super) fn on_event(&mut self, event: Event) {
        match event {
            Event::Work(completion) => self.on_work(&completion),
            event => self.on_connection(event),
        }
    }

    #[cold]
    fn on_connection(&mut self, event: Event) {
        match event {
            Event::Work(_) => {}
            Event::ConnectRequest { conn, from, identity, private } => self.on_request(conn, *from, identity, &private),
            Event::Established { conn, identity, private } => self.on_established(conn, identity, &private),
            Event::Rejected { conn, private } => self.on_rejected(conn, &private),
            Event::Disconnected { conn, reason } => self.on_disconnected(conn, reason),
        }
    }

    /// Handles a completion: finds its peer, and runs the handler of what was completed.
    fn on_work(&mut self, completion: &WorkCompletion) {
        let WorkCompletion { conn, work, status, len, immediate, .. } = *completion;
        let done = Work::from_id(work);
        match done {
            Work::Bounce(slot) => self.adapter.bounce.free(slot),
            Work::Staged(buffer) => self.adapter.staging.free(buffer),
            _ => {}
        }
        let Some(peer) = self.peers.of_conn(conn) else { return };
        match (done, immediate) {
            (Work::Slot(slot), Some(immediate)) if status == WorkStatus::Ok => {
                self.handle(peer, |adapter, ops, peer| on_immediate(adapter, ops, peer, slot as usize, immediate));
            }
            (Work::Slot(slot), None) if status == WorkStatus::Ok => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                if self.adapter.recorder.is_on() {
                    self.record_message(peer, slot as usize, len);
                }
                self.handle(peer, |adapter, ops, peer| on_message(adapter, ops, peer, slot as usize, len));
            }
            (Work::Bounce(_) | Work::Staged(_), _) => self.handle(peer, |_, _, peer| {
                peer.steps += 1;
                Ok(Effect::None)
            }),
            (Work::Op(op), _) => {
                self.handle(peer, |adapter, ops, peer| Ok(on_operation_work(adapter, ops, peer, op, status)));
            }
            // A receive was flushed, or a silent message failed. The end of the connection follows.
            (Work::Slot(_) | Work::Silent, _) => {}
        }
    }

    /// Records a message that arrived in a receive slot, before it is handled.
    #[cold]
    #[inline(never)]
    fn record_message(&self, id: PeerId, slot: usize, len: usize) {
        let Some(peer) = self.peers.get(id).filter(|peer| peer.is_up()) else { return };
        // SAFETY: as in `on_message`: the completion just gave the slot back.
        if let Ok((header, payload)) = Header::decode(unsafe { peer.slots.bytes(slot, len) }) {
            record::arrived_in_slot(&self.adapter.recorder, peer, &header, payload.len() as u64);
        }
    }
}

/// Handles the completion of a request of an operation: of an eager send, of a write, or of a unit
/// of a transfer.
fn on_operation_work(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    id: OpId,
    status: WorkStatus,
) -> Effect {
    let Some(op) = ops.get(id).filter(|op| matches!(op.state(), State::Posted)) else {
        return transfer::unit_done(adapter, ops, peer, id, status);
    };
    adapter.work -= 1;
    if status != WorkStatus::Ok {
        // The end of the connection ends the operation.
        return Effect::None;
    }
    peer.no_longer_busy();
    Effect::ends(id, Ok(()), op.len() as u64)
}

// ---- messages -----------------------------------------------------------------------------------

/// Handles a message that arrived in a receive slot.
#[inline]
pub(super) fn on_message(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    slot: usize,
    len: usize,
) -> Result<Effect, Violation> {
    if !peer.is_up() {
        return Ok(Effect::None);
    }
    peer.steps += 1;
    peer.used = adapter.now;
    // SAFETY: the completion just gave the slot back. It is posted again only after the message has
    // been handled.
    let message = unsafe { peer.slots.bytes(slot, len) };
    let (header, payload) = Header::decode(message)?;
    let len = payload.len();
    peer.refill_credits(header.returned)?;
    match header.kind {
        Kind::Eager => eager::on_eager(adapter, ops, peer, slot, header.tag, len),
        _ => on_other(adapter, ops, peer, SlotMessage { slot, header: &header, len }),
    }
}

/// Handles a message that is not eager.
fn on_other(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    message: SlotMessage<'_>,
) -> Result<Effect, Violation> {
    let SlotMessage { slot, header, len } = message;
    match header.kind {
        Kind::Eager => eager::on_eager(adapter, ops, peer, slot, header.tag, len),
        Kind::Unexpected => eager::on_unexpected(adapter, peer, message),
        Kind::Announce => rendezvous::on_announce(adapter, ops, peer, message),
        Kind::Finish => rendezvous::on_finish(adapter, ops, peer, message),
        Kind::Cancel => rendezvous::on_cancel(adapter, ops, peer, message),
        Kind::Credit => on_credit(adapter, peer, slot),
        Kind::Ready => offered_receive::on_ready(adapter, peer, message),
        Kind::Written => offered_receive::on_written(adapter, ops, peer, message),
        Kind::Withdraw => offered_receive::on_withdraw(adapter, ops, peer, message),
        Kind::Withdrawn => offered_receive::on_withdrawn(adapter, ops, peer, message),
        Kind::FastSlots => fast_rdma::on_slots(adapter, peer, message),
        Kind::ClearToWrite => write_rendezvous::on_clear_to_write(adapter, ops, peer, message),
        Kind::GoAway => on_go_away(adapter, peer),
        Kind::Probe => probe::on_probe(adapter, ops, peer, message),
    }
}

fn on_credit(adapter: &mut AdapterSide, peer: &mut Peer, slot: usize) -> Result<Effect, Violation> {
    peer.account.control_arrived()?;
    adapter.repost(peer, slot, Repost::Control);
    Ok(Effect::None)
}

/// Handles a write with immediate data: a message is in a fast-RDMA slot, or a grant was used.
pub(super) fn on_immediate(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    slot: usize,
    immediate: u32,
) -> Result<Effect, Violation> {
    if !peer.is_up() {
        return Ok(Effect::None);
    }
    peer.steps += 1;
    peer.used = adapter.now;
    // The receive itself holds no message.
    adapter.repost(peer, slot, Repost::Message);
    if mutated_each(10, "fast/immediate-data-lost") {
        return Ok(Effect::None);
    }
    match is_granted(immediate) {
        true => grant::on_granted(adapter, ops, peer, immediate),
        false => fast_rdma::on_fast(adapter, ops, peer, immediate),
    }
}
