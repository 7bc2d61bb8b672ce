//! Fast RDMA: messages of medium size, written into slots that the peer registered when the
//! connection was made.
//!
//! **Why.** An announced message costs its reader a round trip. Registering a short one costs more
//! than moving it. A fast-RDMA slot is registered already. One RDMA write with immediate data
//! carries header, request and data, from the user's memory if that is registered, and notifies the
//! peer at once.
//!
//! **Protocol**
//!
//! ```text
//!   receiver                                         sender
//!   connected   ──FastSlots(memory, count, length)──> keeps the description
//!                                                     message: header in the head, small and unregistered pieces
//!                                                     in a staging buffer, registered pieces in place
//!   receive     <══ write to slot n, immediate n ═══  slot n is spent, with a message credit
//!   message handled
//!               ──any header, bit n of its slots───>  slot n is free
//!
//!   slot   | header, 32 bytes | payload, up to Config::fast_slot_bytes | … next slot, on a page of its own
//! ```
//!
//! A message in a slot is an Eager or Unexpected message like any other. It is matched, parked and
//! delivered by the same rules and in the same order (C3 orders writes and sends of a connection).
//!
//! **Invariants**
//! 1. The peer may write to a slot until its immediate data arrives. Then the slot belongs to this
//!    side until its bit has gone back. A peer that names a slot that it may not use is cut off.
//! 2. The peer *can* write to a slot at any time. So there is never a reference into a slot. Header
//!    and payload are copied out, the header once, and the copy is checked. A peer that writes too
//!    early spoils only its own messages.
//! 3. A message that can be sent in another way never waits for a slot: an expected message is
//!    announced instead. An unexpected message beyond the eager limit has no other way, and waits.
//!    Its slot comes back as soon as the program drops the message in it, as a credit does.
//!
//! **Source.** [PVFS-IB §4.1.2]. The paper has one slot for each connection. With several slots,
//! the bits are needed, so that later requests do not overwrite earlier ones.

use std::sync::OnceLock;

use super::decide::Outgoing;
use super::eager;
use crate::engine::Engine;
use crate::engine::adapter::{AdapterSide, Attempt, Message, Work, unsignalled};
use crate::engine::books::{
    Arrival, Content, Effect, FastSlots, Notice, Operations, Parked, Peer, Place, Record, Repost, SlotMessage,
    TheirSlots, record,
};
use crate::engine::buffers::Filling;
use crate::error::{Error, ErrorKind};
use crate::mem::{Access, MemList, MemSlice, Memory, RemoteSlice, Segment};
use crate::op::{OpId, PeerId};
use crate::timeline::{Class, Way};
use crate::transport::{HostWork, Payload, PostError, ServiceClass, Transport, WorkOptions, WriteTarget};
use crate::wire::Violation;
use crate::wire::header::{HEADER_LEN, Header, Kind};
use crate::{mutated, mutated_each};

/// Alignment of a slot: each begins on a page.
const PAGE: usize = 4096;
/// Pieces up to this length are copied rather than registered, even if registration is free. An
/// entry of their own costs more than the copy.
const SMALL: usize = 1024;

// ---- the receiver -------------------------------------------------------------------------------

/// Makes the slots of a connection and tells the peer. Returns true if the notice is off the queue.
pub(super) fn send_slots(adapter: &mut AdapterSide, peer: &mut Peer) -> bool {
    let count = adapter.config.tuning.fast_slots;
    let slot_len = (HEADER_LEN + adapter.config.credits.fast_slot_bytes).next_multiple_of(PAGE);
    if !peer.spend_message() {
        return false;
    }
    let made = make_slots(adapter, count, slot_len).and_then(|slots| {
        let all = slots.region.segment(0, slots.memory.len());
        adapter.transport.expose(peer.conn, &all, Access::WRITE).map(|remote| (slots, remote))
    });
    let (slots, remote) = match made {
        Ok(made) => made,
        Err(error) => {
            // The connection does without slots.
            tracing::debug!(peer = ?peer.id, %error, "no fast-RDMA slots");
            peer.unspend(0);
            peer.drop_notice();
            return true;
        }
    };
    let message = Message { kind: Kind::FastSlots, tag: 0, len: slot_len as u64, op: count.into() };
    let options = unsignalled(ServiceClass::Control);
    if let Err(error) = adapter.transmit(peer, message, &remote.to_wire(), Payload::EMPTY, Work::Silent, options) {
        adapter.transport.revoke(peer.conn, remote.key);
        peer.unspend(0);
        adapter.refused(peer, error);
        return false;
    }
    peer.fast = Some(slots);
    peer.account.grant_slots(count);
    peer.drop_notice();
    true
}

fn make_slots(adapter: &mut AdapterSide, count: u8, slot_len: usize) -> Result<FastSlots, Error> {
    let len = usize::from(count) * slot_len;
    // There is nothing else in these pages, so the peer may have them. No other peer gets them.
    let shares = adapter.transport.capabilities().shares_pages;
    let memory = if shares { Memory::shareable_with_one(len) } else { Memory::sparse(len) }?;
    let region = adapter.registry.register_own(|| adapter.transport.register(&memory))?;
    Ok(FastSlots { memory, region, slot_len })
}

/// Handles the immediate data of a message in a slot.
pub(in crate::engine) fn on_fast(
    adapter: &mut AdapterSide,
    ops: &Operations,
    peer: &mut Peer,
    immediate: u32,
) -> Result<Effect, Violation> {
    let slot = peer.account.slot_arrived(immediate)?;
    let fast = peer.fast.as_ref().ok_or("a message in a slot that was never made")?;
    let mut wire = [0; HEADER_LEN];
    fast.slice(slot, 0, HEADER_LEN).copy_to(&mut wire);
    let header = Header::decode_in_slot(&wire, fast.slot_len - HEADER_LEN)?;
    let Header { kind, returned, tag, .. } = header;
    let len = usize::try_from(header.len).expect("checked against the slot");
    let payload = fast.slice(slot, HEADER_LEN, len);
    peer.refill_credits(returned)?;
    match kind {
        Kind::Probe => {
            peer.account.slot_freed(slot);
            peer.answer(adapter.most_answers(), Notice::Answer { name: tag, area: None })?;
            Ok(Effect::None)
        }
        Kind::Unexpected => {
            adapter.counters.bytes_received += len as u64;
            record::written(&adapter.recorder, peer, Class::Unexpected, Way::Slot, tag, len as u64);
            let bytes = Place::Fast { slice: payload, slot, copy: OnceLock::new() };
            Ok(Effect::Deliver(Arrival { tag, bytes, cost: 0 }))
        }
        _ => {
            record::written(&adapter.recorder, peer, Class::Expected, Way::Slot, tag, len as u64);
            if let Some(id) = peer.posted.pop(tag) {
                return Ok(deliver(adapter, ops, peer, id, slot, &payload));
            }
            let parked = Parked { cost: 0, content: Content::Fast(slot, len) };
            if peer.is_late(tag) {
                adapter.drop_parked(peer, parked)?;
            } else {
                adapter.counters.unmatched += 1;
                peer.park(tag, parked);
            }
            Ok(Effect::None)
        }
    }
}

/// Delivers a message in a slot to its receive, and frees the slot.
fn deliver(
    adapter: &mut AdapterSide,
    ops: &Operations,
    peer: &mut Peer,
    id: OpId,
    slot: u8,
    payload: &MemSlice,
) -> Effect {
    let status = match ops.get(id).and_then(|op| op.list.as_ref()) {
        Some(list) if payload.len() > list.len() => Err(ErrorKind::TooLarge),
        Some(list) => {
            scatter(list, payload);
            adapter.transport.charge(HostWork::copy(payload.len(), list));
            Ok(())
        }
        // A discard.
        None => {
            adapter.counters.discarded += 1;
            Ok(())
        }
    };
    if !mutated_each(5, "fast/slot-not-freed") {
        peer.account.slot_freed(slot);
    }
    eager::received(adapter, ops, id, status, payload.len() as u64)
}

/// Delivers a parked message in a slot to its receive.
pub(super) fn deliver_parked(
    adapter: &mut AdapterSide,
    ops: &Operations,
    peer: &mut Peer,
    id: OpId,
    slot: u8,
    len: usize,
) -> Effect {
    let Some(payload) = peer.fast.as_ref().map(|fast| fast.slice(slot, HEADER_LEN, len)) else { return Effect::None };
    deliver(adapter, ops, peer, id, slot, &payload)
}

// ---- the sender ---------------------------------------------------------------------------------

/// Handles a FastSlots message, which describes the peer's slots.
pub(in crate::engine) fn on_slots(
    adapter: &mut AdapterSide,
    peer: &mut Peer,
    SlotMessage { slot, header, len }: SlotMessage<'_>,
) -> Result<Effect, Violation> {
    peer.arrived_without_bytes()?;
    // SAFETY: the completion just gave the slot back. It is posted again only below.
    let wire = unsafe { peer.payload(slot, len) };
    let remote = RemoteSlice::from_wire(wire.try_into().expect("the header's check"));
    let count = u8::try_from(header.op).ok().filter(|count| (1..=8).contains(count));
    let count = count.ok_or("an impossible number of fast-RDMA slots")?;
    if header.len < HEADER_LEN as u64 || header.len.checked_mul(count.into()).is_none_or(|all| all > remote.len) {
        return Err("fast-RDMA slots that lie outside their memory");
    }
    if peer.their_fast.is_some() {
        return Err("fast-RDMA slots a second time");
    }
    let slots = TheirSlots { remote, slot_len: header.len };
    peer.limits.fast = slots.payload().min(adapter.config.credits.fast_slot_bytes);
    peer.their_fast = Some(slots);
    if let Some(credit) = peer.credit.as_mut() {
        credit.grant_slots(count);
    }
    adapter.repost(peer, slot, Repost::Message);
    Ok(Effect::None)
}

impl Engine {
    /// Returns true if a message of this length could go into a slot of the peer right now.
    pub fn has_fast_slot(&self, peer: PeerId, len: usize) -> bool {
        self.peers.get(peer).is_some_and(|peer| peer.has_fast_slot(len))
    }
}

/// Writes a message into a slot of the peer. Returns `Blocked` if there is no slot, no credit, or
/// no free staging buffer yet, and `Failed` if a staging buffer cannot be had. Without a record,
/// only messages that complete at once are sent.
pub(in crate::engine) fn send(
    adapter: &mut AdapterSide,
    peer: &mut Peer,
    message: Outgoing<'_>,
    record: Option<Record<'_>>,
) -> Attempt {
    if !peer.has_fast_slot(message.list.len()) {
        return Attempt::Blocked;
    }
    // Registered pieces are sent in place, which takes an operation. They are not copied just to
    // complete at once. A list without pieces takes an operation too, because nothing is staged.
    let stays = |piece: &MemSlice| piece.len() > SMALL && adapter.registry.is_registered(piece.memory());
    let pieces = message.list.pieces();
    if record.is_none() && (pieces.is_empty() || pieces.iter().any(stays)) {
        return Attempt::Blocked;
    }
    let mut segments = std::mem::take(&mut adapter.segments);
    let attempt = match gather(adapter, message.list, record.is_some(), &mut segments) {
        Ok(Some(gathered)) => write(adapter, peer, message, &segments, gathered, record),
        // A staging buffer comes back when the adapter has made progress.
        Ok(None) => {
            adapter.block(peer.id);
            Attempt::Blocked
        }
        Err(error) => {
            tracing::debug!(%error, "no staging buffer");
            Attempt::Failed(error.kind())
        }
    };
    segments.clear();
    adapter.segments = segments;
    attempt
}

/// Gathers a message: registered pieces in place, the others copied to a staging buffer. Returns
/// `None` if no staging buffer is free, or if the message may not wait and has pieces that stay in
/// place.
fn gather(
    adapter: &mut AdapterSide,
    list: &MemList,
    may_wait: bool,
    segments: &mut Vec<Segment>,
) -> Result<Option<Gathered>, Error> {
    let free = adapter.registration_is_free();
    let straight = list.pieces().len() <= adapter.transport.capabilities().max_segments;
    let known = |piece: &MemSlice| free || adapter.registry.is_registered(piece.memory());
    if !may_wait && straight && list.pieces().iter().any(|piece| piece.len() > SMALL && known(piece)) {
        // Not all of the message needs the copy with which the operation would complete at once.
        return Ok(None);
    }
    let AdapterSide { transport, registry, staging, .. } = adapter;
    let mut staged: Option<Filling> = None;
    let (mut copied, mut pieces) = (0u64, 0u64);
    for piece in list.pieces() {
        let region = match straight && piece.len() > SMALL {
            true if free => registry.register(transport, piece.memory()).ok(),
            true => registry.check_if_registered(piece.memory()),
            false => None,
        };
        if let Some(region) = region {
            if !free && registry.recorder.is_on() {
                registry.record_hit(piece.memory());
            }
            segments.push(region.into_segment(piece.offset(), piece.len()));
            continue;
        }
        if staged.is_none() {
            staged = registry.register_own(|| staging.take(transport))?;
        }
        let Some(filling) = &mut staged else { return Ok(None) };
        let segment = staging.append(filling, piece);
        (copied, pieces) = (copied + segment.len() as u64, pieces + 1);
        match segments.last_mut().and_then(|last| last.joined(&segment)) {
            Some(joined) => *segments.last_mut().expect("it was joined to") = joined,
            None => segments.push(segment),
        }
    }
    if copied > 0 {
        transport.charge(HostWork::Copy { bytes: copied, pieces });
    }
    Ok(Some(Gathered { staged, all_staged: copied == list.len() as u64 }))
}

/// Posts the write of a gathered message into a free slot.
fn write(
    adapter: &mut AdapterSide,
    peer: &mut Peer,
    message: Outgoing<'_>,
    segments: &[Segment],
    Gathered { staged, all_staged }: Gathered,
    record: Option<Record<'_>>,
) -> Attempt {
    let buffer = staged.map(|filling| filling.buffer);
    // If the whole message is staged, the operation completes now. Otherwise it waits until the
    // adapter has read the program's memory.
    let (work, record) = match (buffer, record) {
        (Some(buffer), _) if all_staged => (Work::Staged(buffer), None),
        (_, Some(record)) => (Work::Op(record.id), Some(record)),
        (_, None) => unreachable!("without a record everything is staged"),
    };
    if let Err(error) = post_write(adapter, peer, message, segments, work) {
        buffer.into_iter().for_each(|buffer| adapter.staging.free(buffer));
        return adapter.refused(peer, error);
    }
    adapter.counters.fast += 1;
    adapter.counters.bytes_sent += message.list.len() as u64;
    record::sent(&adapter.recorder, peer, message.kind, Way::Slot, message.tag, message.list.len() as u64);
    let Some(Record { op, .. }) = record else { return Attempt::Sent };
    adapter.counters.fast_gathered += 1;
    adapter.work += 1;
    op.staged = buffer;
    Attempt::Posted
}

fn post_write(
    adapter: &mut AdapterSide,
    peer: &mut Peer,
    message: Outgoing<'_>,
    segments: &[Segment],
    work: Work,
) -> Result<(), PostError> {
    let (Some(credit), Some(slots)) = (peer.credit.as_mut(), peer.their_fast) else {
        return Err(PostError::NotConnected);
    };
    let slot = credit.spend_slot().ok_or(PostError::QueueFull)?;
    let Outgoing { kind, tag, list, class, .. } = message;
    let (len, returned) = (list.len() as u64, peer.account.return_to_peer());
    let header = Header { kind, returned, tag, len, op: 0 }.encode();
    // The peer causes an address that wraps around. Its adapter will refuse the access.
    let remote = slots.target(slot, HEADER_LEN as u64 + len).unwrap_or(slots.remote);
    let target = WriteTarget { remote, immediate: Some(slot.into()) };
    let options = WorkOptions { signalled: true, class };
    let posted = adapter.transport.post_write(peer.conn, work.to_id(), &header, segments, target, options);
    match posted {
        Ok(()) => (adapter.transmitted, peer.used) = (adapter.transmitted + 1, adapter.now),
        Err(_) => {
            peer.account.unreturn(returned);
            credit.unspend_slot(slot);
        }
    }
    posted
}

/// A message that was gathered.
struct Gathered {
    staged: Option<Filling>,
    all_staged: bool,
}

/// Copies `payload` to the pieces of a list, as far as it reaches.
fn scatter(list: &MemList, payload: &MemSlice) {
    let mut at = 0;
    for piece in list.pieces() {
        let len = piece.len().min(payload.len() - at);
        if at == payload.len() || (at > 0 && mutated("fast/only-the-first-piece")) {
            break;
        }
        piece.slice(0, len).copy_from_slice_of(&payload.slice(at, len));
        at += len;
    }
}
