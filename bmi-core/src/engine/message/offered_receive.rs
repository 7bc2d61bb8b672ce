//! Offered receives: a message of medium size is written straight into a receive that was posted
//! before it.
//!
//! **Why.** A rendezvous costs two more trips than the data: the announcement and the read. If the
//! receive was posted first, the receiver can describe it to the sender ahead of time, off the
//! critical path. Then the sender needs one trip: an RDMA write and a short message behind it.
//!
//! **Protocol**
//!
//! ```text
//!   receiver                                     sender
//!   post_recv(tag)  ──Ready(tag, seen, memory)─>  kept, by tag
//!                                                 post_send(tag)
//!                   <════ RDMA write ═══════════
//!   ends            <──Written(op, length)──────  ends when the adapter is done
//!
//!   cancel          ──Withdraw(op)─────────────>  forgotten, if it was still kept
//!   ends            <──Withdrawn(op)────────────  after a Written, if it was used
//! ```
//!
//! **Matching** must come out the same on both sides: the k-th message of a tag matches the k-th
//! receive of that tag. `docs/design/protocol.md`, section 7, has the three rules for that. The
//! list of messages that the receiver had not seen is bounded: there are at most as many as message
//! credits that have not come back, so a list that is full is cleared of the others.
//!
//! **When offers do not pay.** If the sender is ahead of the receiver, offers and messages cross,
//! and every offer is a wasted message. So after [`crate::engine::books::peer::offers::WASTED`]
//! offers in a row that no message used, only one receive in
//! [`crate::engine::books::peer::offers::TRIAL`] is offered, until an offer is used again.
//!
//! **Limits.** The receiver's list has one piece, the sender needs one work request, and the
//! message is at most a transfer unit. So write and Written leave together, and no message of the
//! same tag can come between. Longer messages lose little by a rendezvous.
//!
//! **Source.** Client-based RDMA write with the grant sent ahead ([PVFS-IB §3.2.3, §4.1.2]: the
//! first control message is avoided by buffers that the peer knows). The paper uses fixed buffers
//! and copies the data afterwards. Here the buffer is the receive itself.

use super::decide::Outgoing;
use super::{eager, write_rendezvous};
use crate::engine::adapter::{AdapterSide, Attempt, Message, Work, unsignalled};
use crate::engine::books::{
    Effect, Notice, Offer, Op, Operations, Peer, ReadyReceive, Record, Repost, SlotMessage, State, record,
};
use crate::engine::ending::{end_early, name_of, op_of};
use crate::error::{Error, ErrorKind};
use crate::mem::{Access, MemList, RemoteSlice, Segment};
use crate::mutated;
use crate::op::{OpId, OpKind};
use crate::timeline::{Class, Way};
use crate::transport::{Payload, ServiceClass, Transport, WorkOptions};
use crate::wire::header::Kind;
use crate::wire::{Violation, credit};

// ---- the receiver -------------------------------------------------------------------------------

/// Returns true if a receive has a size and shape that can be offered.
#[inline]
pub(super) fn may_be_offered(adapter: &AdapterSide, peer: &Peer, list: &MemList) -> bool {
    let (eager, unit) = (adapter.eager_limit(peer), adapter.config.tuning.transfer_unit);
    peer.is_up() && list.pieces().len() == 1 && (eager + 1..=unit).contains(&list.len())
}

/// Offers a receive that [may be offered](may_be_offered) and was just posted behind `behind`, if
/// rule 1 allows it.
pub(in crate::engine) fn offer(ops: &mut Operations, peer: &mut Peer, id: OpId, behind: Option<OpId>) {
    let worth = peer.offers.are_worth_it();
    if worth
        && may_follow(ops, behind)
        && let Some(op) = ops.get_mut(id)
    {
        op.offer = Offer::Intended;
        peer.notify(Notice::Ready { op: id });
    }
}

/// Returns true if rule 1 allows to offer a receive behind this one.
fn may_follow(ops: &Operations, behind: Option<OpId>) -> bool {
    behind.and_then(|op| ops.get(op)).is_none_or(|op| op.offer != Offer::None)
        || mutated("offered-receive/offered-out-of-order")
}

/// Sends an offer at the head of the notices. Returns true if the notice is off the queue.
pub(super) fn send_ready(adapter: &mut AdapterSide, ops: &mut Operations, peer: &mut Peer, id: OpId) -> bool {
    let waiting = ops.get(id).filter(|op| op.offer == Offer::Intended);
    let waiting = waiting.and_then(|op| match op.state() {
        State::Matching(place) => Some((op.tag, op.list.clone()?, peer.posted.before(*place).copied())),
        _ => None,
    });
    let Some((tag, list, behind)) = waiting else {
        peer.drop_notice();
        return true;
    };
    // The offers before this one have left, or were not made after all.
    if !may_follow(ops, behind) {
        withhold(ops, peer, id);
        return true;
    }
    let cost = credit::cost(RemoteSlice::WIRE_LEN);
    let Some(credit) = peer.credit.as_mut() else { return false };
    // A notice waits for a message credit, but never for bytes, because these may wait for the
    // program.
    let affordable = credit.may_offer(cost);
    if affordable && !credit.spend(cost) {
        return false;
    }
    let offered = if affordable { adapter.expose_list(peer, &list, Access::WRITE).ok() } else { None };
    let Some(offered) = offered else {
        // Then this receive is not offered, and neither are those behind it while it waits.
        if affordable {
            peer.unspend(cost);
        }
        withhold(ops, peer, id);
        return true;
    };
    let memory = offered.as_slice()[0];
    let message = Message { kind: Kind::Ready, tag, len: peer.seen, op: name_of(id) };
    let options = unsignalled(ServiceClass::Control);
    if let Err(error) = adapter.transmit(peer, message, &memory.to_wire(), Payload::EMPTY, Work::Silent, options) {
        adapter.revoke_all(peer, &[memory]);
        peer.unspend(cost);
        adapter.refused(peer, error);
        return false;
    }
    if let Some(op) = ops.get_mut(id) {
        op.offer = Offer::Made(memory);
    }
    peer.drop_notice();
    true
}

/// Cancels the intended offer at the head of the notices.
fn withhold(ops: &mut Operations, peer: &mut Peer, id: OpId) {
    if let Some(op) = ops.get_mut(id) {
        op.offer = Offer::None;
    }
    peer.drop_notice();
}

/// Handles a Written: the sender has written a message into a receive that was offered, or that
/// awaits a write.
pub(in crate::engine) fn on_written(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    SlotMessage { slot, header, .. }: SlotMessage<'_>,
) -> Result<Effect, Violation> {
    peer.arrived_without_bytes()?;
    let id = op_of(header.op);
    let op =
        ops.get_mut(id).filter(|op| op.peer == Some(peer.id)).ok_or("a message written into no receive of ours")?;
    if matches!(op.state(), State::AwaitingWrite { .. }) {
        adapter.repost(peer, slot, Repost::Message);
        return write_rendezvous::on_written(adapter, ops, peer, id, header.len);
    }
    let (State::Matching(place), Offer::Made(memory)) = (op.state(), op.offer) else {
        return Err("a message written into a receive that was not offered");
    };
    if header.len > memory.len {
        return Err("a message written beyond its receive");
    }
    let tag = op.tag;
    let found = peer.posted.remove(*place);
    debug_assert!(found.is_some(), "a receive that waits is on the list");
    record::written(&adapter.recorder, peer, Class::Expected, Way::Offered, tag, header.len);
    op.offer = Offer::Used(memory);
    adapter.repost(peer, slot, Repost::Message);
    Ok(eager::received(adapter, ops, id, Ok(()), header.len))
}

/// Handles a Withdrawn: the sender has forgotten an offer. The receive ends if it still has no
/// message.
pub(in crate::engine) fn on_withdrawn(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    SlotMessage { slot, header, .. }: SlotMessage<'_>,
) -> Result<Effect, Violation> {
    peer.arrived_without_bytes()?;
    adapter.repost(peer, slot, Repost::Message);
    let id = op_of(header.op);
    let Some(op) = ops.get(id).filter(|op| op.peer == Some(peer.id) && op.kind == OpKind::Recv) else {
        return Ok(Effect::None);
    };
    if matches!(op.state(), State::AwaitingWrite { .. }) {
        return Ok(write_rendezvous::on_withdrawn(adapter, ops, peer, id));
    }
    let (State::Matching(place), Some(ending)) = (op.state(), op.ending) else { return Ok(Effect::None) };
    let found = peer.posted.remove(*place);
    debug_assert!(found.is_some(), "a receive that waits is on the list");
    Ok(Effect::ends(id, Err(ending), 0))
}

// ---- the sender ---------------------------------------------------------------------------------

/// Handles a Ready: the peer offers a receive.
pub(in crate::engine) fn on_ready(
    adapter: &mut AdapterSide,
    peer: &mut Peer,
    SlotMessage { slot, header, len }: SlotMessage<'_>,
) -> Result<Effect, Violation> {
    let cost = credit::cost(len);
    peer.account.arrived(cost)?;
    if header.len > peer.sent {
        return Err("an offer after messages that were not sent");
    }
    // SAFETY: the completion just gave the slot back. It is posted again only below.
    let wire = unsafe { peer.payload(slot, len) };
    let memory = RemoteSlice::from_wire(wire.try_into().expect("the header's check"));
    peer.unseen.seen_before(header.len);
    if !mutated("offered-receive/crossing-message-overlooked") && peer.unseen.set_off(header.tag) {
        peer.account.unparked(cost);
    } else {
        peer.ready.push(header.tag, ReadyReceive { op: header.op, memory });
    }
    adapter.repost(peer, slot, Repost::Message);
    Ok(Effect::None)
}

/// Handles a Withdraw: the peer wants an offer back, or the memory that it had cleared to write.
pub(in crate::engine) fn on_withdraw(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    SlotMessage { slot, header, .. }: SlotMessage<'_>,
) -> Result<Effect, Violation> {
    let name = header.op;
    peer.arrived_without_bytes()?;
    adapter.repost(peer, slot, Repost::Message);
    if let Some(writing) = peer.moving.of_name(name, true) {
        return Ok(end_early(adapter, ops, Some(peer), writing, ErrorKind::Cancelled));
    }
    if !mutated("offered-receive/withdrawn-offer-kept") && peer.ready.take_named(name).is_some() {
        peer.account.unparked(credit::cost(RemoteSlice::WIRE_LEN));
    }
    peer.answer(adapter.most_answers(), Notice::Withdrawn { op: name })?;
    Ok(Effect::None)
}

/// Writes a message into the receive that it matches.
pub(in crate::engine) fn send(
    adapter: &mut AdapterSide,
    peer: &mut Peer,
    message: Outgoing<'_>,
    Record { id, op }: Record<'_>,
) -> Attempt {
    let Some(ReadyReceive { op: receive, memory }) = peer.ready.first(message.tag).copied() else {
        return Attempt::Blocked;
    };
    let len = message.list.len() as u64;
    let mut segments = std::mem::take(&mut adapter.segments);
    let gathered = gather(adapter, op, message.list, &mut segments);
    let target = memory.slice(0, len).unwrap_or(RemoteSlice { len, ..memory });
    let options = WorkOptions { signalled: true, class: message.class };
    let work = Work::Op(id).to_id();
    let posted =
        gathered.map(|()| adapter.transport.post_write(peer.conn, work, &[], &segments, target.into(), options));
    segments.clear();
    adapter.segments = segments;
    match posted {
        Err(error) => return adapter.without_fallback_buffer(peer, message.list.len(), &error),
        Ok(Err(refused)) => {
            op.fallback = None;
            return adapter.refused(peer, refused);
        }
        Ok(Ok(())) => {}
    }
    adapter.work += 1;
    adapter.count_fallback_buffer(op);
    adapter.counters.offered += 1;
    adapter.counters.bytes_sent += len;
    record::sent(&adapter.recorder, peer, Kind::Eager, Way::Offered, message.tag, len);
    // This goes ahead of all messages, so that nothing comes between write and Written. It also
    // goes ahead of other notices, whose order does not matter.
    peer.notices.push_front(Notice::Written { op: receive, len });
    Attempt::Posted
}

/// Gathers a message from where it is, or from a copy if its memory cannot be registered.
fn gather(adapter: &mut AdapterSide, op: &mut Op, list: &MemList, segments: &mut Vec<Segment>) -> Result<(), Error> {
    for piece in list.pieces() {
        match adapter.registry.register(&mut adapter.transport, piece.memory()) {
            Ok(region) => segments.push(region.into_segment(piece.offset(), piece.len())),
            Err(error) => {
                segments.clear();
                segments.push(adapter.copy_to_fallback_buffer(op, list).ok_or(error)?);
                return Ok(());
            }
        }
    }
    Ok(())
}
