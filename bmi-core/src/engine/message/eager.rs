//! Eager messages: header and payload in one message, into a receive slot of the peer.
//!
//! **Sending.** An eager message goes to the adapter in one of three ways, cheapest first. It is
//! copied while posting ([`Payload::Inline`]). It is gathered in place, if registration is free or
//! was already done (`check_if_registered`). Or it is copied to a bounce buffer
//! ([`crate::engine::buffers::bounce`]). The first and the last complete the operation at once
//! ([PVFS-IB §3.2.3, §4.1.1]).
//!
//! **Receiving.** An expected message is copied to the receive that waits for it. Without one it is
//! parked: in its slot, or in a copy if many slots are held already. An unexpected message goes to
//! the program in the same two ways.

use super::decide::{Known, Outgoing, SendPath, eager_path};
use crate::engine::adapter::{AdapterSide, Attempt, Message, Work, unsignalled};
use crate::engine::books::{
    Arrival, Content, Effect, Operations, Parked, Peer, Place, Record, Repost, SlotMessage, record,
};
use crate::error::ErrorKind;
use crate::mem::MemList;
use crate::mutated;
use crate::op::{OpId, Tag};
use crate::timeline::Way;
use crate::transport::{HostWork, Payload, PostError, Transport, WorkOptions};
use crate::wire::header::{Header, Kind};
use crate::wire::{Violation, credit};

// ---- sending ------------------------------------------------------------------------------------

/// Returns how an eager message leaves that needs no decision, because it must be eager.
pub(super) fn path_of(adapter: &AdapterSide, peer: &Peer, message: Outgoing<'_>) -> SendPath {
    eager_path(&Known { adapter, peer, message })
}

/// Sends a message in the eager way that was decided. A gathered one needs a record.
pub(in crate::engine) fn send(
    path: SendPath,
    adapter: &mut AdapterSide,
    peer: &mut Peer,
    message: Outgoing<'_>,
    record: Option<Record<'_>>,
) -> Attempt {
    let cost = credit::cost(message.list.len());
    if !peer.spend(cost) {
        return Attempt::Blocked;
    }
    let posted = match (path, record) {
        (SendPath::CopiedAtPost, _) => copied_at_post(adapter, peer, message),
        (SendPath::Gathered, Some(record)) => gathered(adapter, peer, message, record.id),
        _ => bounced(adapter, peer, message),
    };
    match posted {
        Ok(attempt) => {
            count(adapter, peer, message);
            attempt
        }
        Err(error) => {
            peer.unspend(cost);
            adapter.refused(peer, error)
        }
    }
}

fn header_of(message: Outgoing<'_>) -> Message {
    Message { kind: message.kind, tag: message.tag, len: message.list.len() as u64, op: 0 }
}

/// Counts a message that was sent.
fn count(adapter: &mut AdapterSide, peer: &mut Peer, message: Outgoing<'_>) {
    let counters = &mut adapter.counters;
    let counter = if message.kind == Kind::Unexpected { &mut counters.unexpected } else { &mut counters.eager };
    *counter += 1;
    counters.bytes_sent += message.list.len() as u64;
    record::sent(&adapter.recorder, peer, message.kind, Way::Eager, message.tag, message.list.len() as u64);
}

fn copied_at_post(adapter: &mut AdapterSide, peer: &mut Peer, message: Outgoing<'_>) -> Result<Attempt, PostError> {
    let (payload, options) = (Payload::Inline(message.list.pieces()), unsignalled(message.class));
    adapter.transmit(peer, header_of(message), &[], payload, Work::Silent, options)?;
    Ok(Attempt::Sent)
}

fn gathered(adapter: &mut AdapterSide, peer: &mut Peer, message: Outgoing<'_>, id: OpId) -> Result<Attempt, PostError> {
    let mut segments = std::mem::take(&mut adapter.segments);
    let mut registered = true;
    for piece in message.list.pieces() {
        match adapter.registry.register(&mut adapter.transport, piece.memory()) {
            Ok(region) => segments.push(region.into_segment(piece.offset(), piece.len())),
            Err(_) => {
                registered = false;
                break;
            }
        }
    }
    let options = WorkOptions { signalled: true, class: message.class };
    let posted = registered
        .then(|| adapter.transmit(peer, header_of(message), &[], Payload::Gather(&segments), Work::Op(id), options));
    segments.clear();
    adapter.segments = segments;
    match posted {
        None => bounced(adapter, peer, message),
        Some(posted) => posted.map(|()| {
            adapter.work += 1;
            Attempt::Posted
        }),
    }
}

fn bounced(adapter: &mut AdapterSide, peer: &mut Peer, message: Outgoing<'_>) -> Result<Attempt, PostError> {
    let Some((slot, segment)) = adapter.bounce.fill(message.list) else { return Err(PostError::QueueFull) };
    adapter.transport.charge(HostWork::copy(message.list.len(), message.list));
    let options = WorkOptions { signalled: true, class: message.class };
    let payload = Payload::Gather(&[segment]);
    let posted = adapter.transmit(peer, header_of(message), &[], payload, Work::Bounce(slot), options);
    if posted.is_err() {
        adapter.bounce.free(slot);
    }
    posted.map(|()| Attempt::Sent)
}

// ---- receiving ----------------------------------------------------------------------------------

/// Handles an expected message.
#[inline]
pub(in crate::engine) fn on_eager(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    slot: usize,
    tag: Tag,
    len: usize,
) -> Result<Effect, Violation> {
    let cost = credit::cost(len);
    peer.account.arrived(cost)?;
    peer.seen += 1;
    let Some(id) = peer.posted.pop(tag) else {
        return Ok(without_receive(adapter, peer, slot, tag, len));
    };
    // SAFETY: the completion just gave the slot back. It is posted again only below.
    let payload = unsafe { peer.payload(slot, len) };
    let list = ops.get(id).and_then(|op| op.list.as_ref());
    let status = deliver(adapter, list, payload);
    peer.account.unparked(cost);
    adapter.repost(peer, slot, Repost::Message);
    Ok(received(adapter, ops, id, status, len as u64))
}

/// Handles an expected message that has no receive: it is dropped if its call is over, and parked
/// otherwise.
fn without_receive(adapter: &mut AdapterSide, peer: &mut Peer, slot: usize, tag: Tag, len: usize) -> Effect {
    let cost = credit::cost(len);
    if peer.is_late(tag) {
        peer.account.unparked(cost);
        adapter.counters.discarded += 1;
        adapter.repost(peer, slot, Repost::Message);
        return Effect::None;
    }
    adapter.counters.unmatched += 1;
    if peer.may_hold() {
        peer.held += 1;
        peer.park(tag, Parked { cost, content: Content::Slot(slot, len) });
        return Effect::None;
    }
    adapter.transport.charge(HostWork::Copy { bytes: len as u64, pieces: 1 });
    // SAFETY: the completion just gave the slot back. It is posted again only below.
    let copy = unsafe { peer.payload(slot, len) }.into();
    peer.park(tag, Parked { cost, content: Content::Copied(copy) });
    adapter.repost(peer, slot, Repost::Message);
    Effect::None
}

/// Delivers a parked message that is in its slot to its receive.
pub(super) fn deliver_from_slot(
    adapter: &mut AdapterSide,
    ops: &Operations,
    peer: &mut Peer,
    id: OpId,
    slot: usize,
    len: usize,
) -> Effect {
    // SAFETY: a slot that holds a parked message is here. It is posted again only below.
    let payload = unsafe { peer.payload(slot, len) };
    let status = deliver(adapter, ops.get(id).and_then(|op| op.list.as_ref()), payload);
    peer.held -= 1;
    adapter.repost(peer, slot, Repost::Message);
    received(adapter, ops, id, status, len as u64)
}

/// Delivers a parked message that was copied out of its slot to its receive.
pub(super) fn deliver_copy(adapter: &mut AdapterSide, ops: &Operations, id: OpId, payload: &[u8]) -> Effect {
    let status = deliver(adapter, ops.get(id).and_then(|op| op.list.as_ref()), payload);
    received(adapter, ops, id, status, payload.len() as u64)
}

/// Copies a payload to the list of a receive, if it fits. Without a list the message is discarded.
#[inline]
fn deliver(adapter: &mut AdapterSide, list: Option<&MemList>, payload: &[u8]) -> Result<(), ErrorKind> {
    let Some(list) = list else {
        adapter.counters.discarded += 1;
        return Ok(());
    };
    adapter.transport.charge(HostWork::copy(payload.len(), list));
    if payload.len() > list.len() + usize::from(mutated("receive/bound-off-by-one")) {
        return Err(ErrorKind::TooLarge);
    }
    match list.pieces() {
        [piece] => piece.copy_from(payload),
        _ => {
            list.copy_from(0, payload);
        }
    }
    Ok(())
}

/// The end of a receive whose message of `len` bytes has arrived.
#[inline]
pub(super) fn received(
    adapter: &mut AdapterSide,
    ops: &Operations,
    id: OpId,
    status: Result<(), ErrorKind>,
    len: u64,
) -> Effect {
    if status.is_ok() {
        adapter.counters.bytes_received += len;
    }
    let room = || ops.get(id).map_or(len, |op| op.len() as u64);
    let len = if mutated("receive/short-message-reported-as-full") { room() } else { len };
    Effect::ends(id, status, len)
}

/// Handles a message that needs no receive.
pub(in crate::engine) fn on_unexpected(
    adapter: &mut AdapterSide,
    peer: &mut Peer,
    SlotMessage { slot, header, len }: SlotMessage<'_>,
) -> Result<Effect, Violation> {
    let Header { tag, .. } = *header;
    let cost = credit::cost(len);
    peer.account.arrived(cost)?;
    peer.seen_unexpected += 1;
    let held = peer.may_hold();
    let bytes = if held {
        peer.held += 1;
        let (memory, offset) = (peer.slots.memory().clone(), peer.slots.payload_offset(slot));
        Place::Slot { memory, offset, len, slot: u32::try_from(slot).expect("few slots") }
    } else {
        adapter.transport.charge(HostWork::Copy { bytes: len as u64, pieces: 1 });
        // SAFETY: the completion just gave the slot back. It is posted again only below.
        Place::Copied(unsafe { peer.payload(slot, len) }.into())
    };
    adapter.counters.bytes_received += len as u64;
    if !held {
        adapter.repost(peer, slot, Repost::Message);
    }
    Ok(Effect::Deliver(Arrival { tag, bytes, cost }))
}
