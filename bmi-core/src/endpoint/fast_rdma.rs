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

use std::cell::OnceCell;

use super::peer::{Content, Parked, Repost};
use super::receive::Violation;
use super::report::{Place, Unexpected};
use super::send::{Attempt, Message};
use super::work::Work;
use super::{Endpoint, grant, staging};
use crate::capability::Registration;
use crate::error::{Error, ErrorKind};
use crate::mem::{Access, MemList, MemSlice, Memory, MemoryRegion, RemoteSlice, Segment};
use crate::op::{OpId, PeerId, Tag};
use crate::proto::header::{HEADER_LEN, Header, Kind};
use crate::transport::{HostWork, Payload, PostError, ServiceClass, Transport, WorkOptions, WriteTarget};
use crate::{mutated, mutated_each};

/// Alignment of a slot: each begins on a page.
const PAGE: usize = 4096;
/// Pieces up to this length are copied rather than registered, even if registration is free. An
/// entry of their own costs more than the copy.
const SMALL: usize = 1024;

/// The slots of this side, which the peer writes into.
pub(super) struct FastSlots {
    memory: Memory,
    // The exposure holds the region too, until the connection ends.
    _region: MemoryRegion,
    slot_len: usize,
}

impl FastSlots {
    /// Gives the pages of the slots back to the system, if the peer has not mapped them.
    pub(super) fn discard(&self) {
        self.memory.discard();
    }

    fn slice(&self, slot: u8, offset: usize, len: usize) -> MemSlice {
        self.memory.slice(usize::from(slot) * self.slot_len + offset, len)
    }
}

/// The description of the peer's slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct TheirSlots {
    remote: RemoteSlice,
    slot_len: u64,
}

impl TheirSlots {
    /// Returns the length of the longest payload.
    fn payload(&self) -> usize {
        usize::try_from(self.slot_len).map_or(usize::MAX, |len| len - HEADER_LEN)
    }

    fn target(&self, slot: u8, len: u64) -> Option<RemoteSlice> {
        self.remote.slice(u64::from(slot) * self.slot_len, len)
    }
}

impl<T: Transport> Endpoint<T> {
    // ---- the receiver ---------------------------------------------------------------------------

    /// Makes the slots of a connection and tells the peer. Returns true if the notice is off the
    /// list.
    pub(super) fn send_slots(&mut self, peer_id: PeerId) -> bool {
        let count = self.config.credits.fast_slots;
        let slot_len = (HEADER_LEN + self.config.credits.fast_slot_bytes).next_multiple_of(PAGE);
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        if !peer.credit.as_mut().is_some_and(|credit| credit.spend_message()) {
            return false;
        }
        let conn = peer.conn;
        let made = self.make_fast_slots(count, slot_len).and_then(|slots| {
            let all = slots._region.segment(0, slots.memory.len());
            self.transport.expose(conn, &all, Access::WRITE).map(|remote| (slots, remote))
        });
        let (slots, remote) = match made {
            Ok(made) => made,
            Err(error) => {
                // The connection does without slots.
                tracing::debug!(peer = ?peer_id, %error, "no fast-RDMA slots");
                self.unspend(peer_id, 0);
                self.drop_notice(peer_id);
                return true;
            }
        };
        let message = Message { kind: Kind::FastSlots, tag: 0, len: slot_len as u64, op: count.into() };
        let options = WorkOptions { signalled: false, class: ServiceClass::Control };
        if let Err(error) = self.transmit(peer_id, message, &remote.to_wire(), Payload::EMPTY, Work::Silent, options) {
            self.transport.revoke(conn, remote.key);
            self.unspend(peer_id, 0);
            self.refused(peer_id, error);
            return false;
        }
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        peer.fast = Some(slots);
        peer.grant.grant_slots(count);
        self.drop_notice(peer_id);
        true
    }

    fn make_fast_slots(&mut self, count: u8, slot_len: usize) -> Result<FastSlots, Error> {
        let len = usize::from(count) * slot_len;
        // There is nothing else in these pages, so the peer may have them. No other peer gets them.
        let shares = self.transport.capabilities().shares_pages;
        let memory = if shares { Memory::shareable_with_one(len) } else { Memory::sparse(len) }?;
        let region = self.registry.register_own(|| self.transport.register(&memory))?;
        Ok(FastSlots { memory, _region: region, slot_len })
    }

    /// Handles a write with immediate data: a message is in a slot, or a grant was used.
    pub(super) fn on_immediate(&mut self, peer_id: PeerId, slot: usize, immediate: u32) {
        let Some(peer) = self.peers.get_mut(peer_id.0) else { return };
        if !peer.is_up() {
            return;
        }
        peer.steps += 1;
        peer.used = self.now;
        // The receive itself holds no message.
        self.repost(peer_id, slot, Repost::Message);
        if mutated_each(10, "fast/immediate-data-lost") {
            return;
        }
        let handled = match grant::is_granted(immediate) {
            true => self.on_granted(peer_id, immediate),
            false => self.on_fast(peer_id, immediate),
        };
        match handled {
            Ok(()) => self.mark_dirty(peer_id),
            Err(violation) => self.violated(peer_id, violation),
        }
    }

    fn on_fast(&mut self, peer_id: PeerId, immediate: u32) -> Result<(), Violation> {
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        let slot = peer.grant.slot_arrived(immediate)?;
        let fast = peer.fast.as_ref().expect("slots are granted when they are made");
        let mut wire = [0; HEADER_LEN];
        fast.slice(slot, 0, HEADER_LEN).copy_to(&mut wire);
        let header = Header::decode_in_slot(&wire, fast.slot_len - HEADER_LEN)?;
        let len = usize::try_from(header.len).expect("checked against the slot");
        let payload = fast.slice(slot, HEADER_LEN, len);
        self.take_credits(peer_id, header.returned)?;
        match header.kind {
            Kind::Probe => return self.on_fast_probe(peer_id, slot, &header),
            Kind::Unexpected => {
                let bytes = Place::Fast { slice: payload, slot, copy: OnceCell::new() };
                let released = self.released.clone();
                self.unexpected.push_back(Unexpected { peer: peer_id, tag: header.tag, bytes, cost: 0, released });
                self.counters.bytes_received += len as u64;
            }
            _ => {
                let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
                peer.seen += 1;
                match peer.posted.pop(header.tag) {
                    Some(id) => self.deliver_fast(peer_id, id, slot, &payload),
                    None => {
                        let parked = Parked { cost: 0, content: Content::Fast(slot, len) };
                        if peer.is_late(header.tag) {
                            return self.drop_parked(peer_id, parked);
                        }
                        self.counters.unmatched += 1;
                        peer.park(header.tag, parked);
                    }
                }
            }
        }
        Ok(())
    }

    /// Delivers a message in a slot to its receive.
    fn deliver_fast(&mut self, peer_id: PeerId, id: OpId, slot: u8, payload: &MemSlice) {
        let status = match self.ops.get(id.0).and_then(|op| op.list.as_ref()) {
            Some(list) if payload.len() > list.len() => Err(ErrorKind::TooLong),
            Some(list) => {
                scatter(list, payload);
                self.transport.charge(HostWork::copy(payload.len(), list));
                Ok(())
            }
            // A discard.
            None => {
                self.counters.discarded += 1;
                Ok(())
            }
        };
        if !mutated_each(5, "fast/slot-not-freed") {
            self.free_fast(peer_id, slot);
        }
        self.received(id, status, payload.len() as u64);
    }

    /// Delivers a parked message in a slot to its receive.
    pub(super) fn deliver_parked_fast(&mut self, peer_id: PeerId, id: OpId, slot: u8, len: usize) {
        let peer = self.peers.get(peer_id.0).expect("the caller has it");
        let payload = peer.fast.as_ref().expect("slots stay while the connection stands").slice(slot, HEADER_LEN, len);
        self.deliver_fast(peer_id, id, slot, &payload);
    }

    /// Frees a slot that no longer holds a message. Its bit goes back with the next header.
    pub(super) fn free_fast(&mut self, peer_id: PeerId, slot: u8) {
        if let Some(peer) = self.peers.get_mut(peer_id.0) {
            peer.grant.slot_freed(slot);
            self.mark_dirty(peer_id);
        }
    }

    // ---- the sender -----------------------------------------------------------------------------

    /// Handles a FastSlots message, which describes the peer's slots.
    pub(super) fn on_slots(
        &mut self,
        peer_id: PeerId,
        slot: usize,
        header: &Header,
        len: usize,
    ) -> Result<(), Violation> {
        self.spent_message(peer_id)?;
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        // SAFETY: the completion just gave the slot back, and it is posted again only below.
        let wire = &unsafe { peer.slots.bytes(slot, HEADER_LEN + len) }[HEADER_LEN..];
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
        peer.limits.fast = slots.payload().min(self.config.credits.fast_slot_bytes);
        peer.their_fast = Some(slots);
        peer.credit.as_mut().expect("a peer that is up has credit").grant_slots(count);
        self.repost(peer_id, slot, Repost::Message);
        Ok(())
    }

    /// Returns true if a message of this length could go into a slot of the peer right now.
    pub fn has_fast_slot(&self, peer: PeerId, len: usize) -> bool {
        self.peers.get(peer.0).is_some_and(|peer| peer.has_fast_slot(len))
    }

    /// Writes a message into a slot of the peer. Returns `Blocked` if there is no slot, no credit,
    /// or no free staging buffer yet, and `Failed` if a staging buffer cannot be had. Without an
    /// operation, only messages that complete at once are sent.
    pub(super) fn send_fast(
        &mut self,
        peer_id: PeerId,
        kind: Kind,
        tag: Tag,
        list: &MemList,
        class: ServiceClass,
        id: Option<OpId>,
    ) -> Attempt {
        if !self.has_fast_slot(peer_id, list.len()) {
            return Attempt::Blocked;
        }
        // Registered pieces are sent in place, which takes an operation. They are not copied just
        // to complete at once.
        let stays = |piece: &crate::MemSlice| piece.len() > SMALL && self.registry.is_registered(piece.memory());
        if id.is_none() && list.pieces().iter().any(stays) {
            return Attempt::Blocked;
        }
        let mut segments = std::mem::take(&mut self.segments);
        let gathered = self.gather(list, id.is_some(), &mut segments);
        let attempt = match gathered {
            Ok(Some(gathered)) => {
                let Gathered { staged, all_staged } = gathered;
                // If the whole message is staged, the operation completes now. Otherwise it waits
                // until the adapter has read the program's memory.
                let work = match (id, &staged) {
                    (_, Some(filling)) if all_staged => Work::Staged(filling.buffer),
                    (Some(id), _) => Work::Op(id),
                    (None, _) => unreachable!("without an operation everything is staged"),
                };
                let posted = self.write_to_slot(
                    peer_id,
                    Message { kind, tag, len: list.len() as u64, op: 0 },
                    &segments,
                    work,
                    class,
                );
                self.sent_fast(peer_id, kind, tag, list.len(), posted, work, staged)
            }
            // A staging buffer comes back when the adapter has made progress.
            Ok(None) => {
                self.block(peer_id);
                Attempt::Blocked
            }
            Err(error) => {
                tracing::debug!(%error, "no staging buffer");
                Attempt::Failed(error.kind())
            }
        };
        segments.clear();
        self.segments = segments;
        attempt
    }

    /// Gathers a message: registered pieces in place, the others copied to a staging buffer.
    /// Returns `None` if no staging buffer is free.
    fn gather(
        &mut self,
        list: &MemList,
        may_wait: bool,
        segments: &mut Vec<Segment>,
    ) -> Result<Option<Gathered>, Error> {
        let capabilities = self.transport.capabilities();
        let free = capabilities.registration == Registration::Free;
        let room = capabilities.max_segments;
        let straight = list.pieces().len() <= room;
        let known = |piece: &MemSlice| free || self.registry.is_registered(piece.memory());
        if !may_wait && straight && list.pieces().iter().any(|piece| piece.len() > SMALL && known(piece)) {
            // Not all of the message needs the copy with which the operation would complete at
            // once.
            return Ok(None);
        }
        let mut staged: Option<staging::Filling> = None;
        let (mut copied, mut pieces) = (0u64, 0u64);
        for piece in list.pieces() {
            let region = match straight && piece.len() > SMALL {
                true if free => self.registry.register(&mut self.transport, piece.memory()).ok(),
                true => self.registry.check_if_registered(piece.memory()),
                false => None,
            };
            if let Some(region) = region {
                segments.push(region.into_segment(piece.offset(), piece.len()));
                continue;
            }
            if staged.is_none() {
                staged = self.registry.register_own(|| self.staging.take(&mut self.transport))?;
            }
            let Some(filling) = &mut staged else { return Ok(None) };
            let segment = self.staging.append(filling, piece);
            (copied, pieces) = (copied + segment.len() as u64, pieces + 1);
            match segments.last_mut().and_then(|last| last.joined(&segment)) {
                Some(joined) => *segments.last_mut().expect("it was joined to") = joined,
                None => segments.push(segment),
            }
        }
        if copied > 0 {
            self.transport.charge(HostWork::Copy { bytes: copied, pieces });
        }
        Ok(Some(Gathered { staged, all_staged: copied == list.len() as u64 }))
    }

    /// Posts the write of a message into a free slot.
    fn write_to_slot(
        &mut self,
        peer_id: PeerId,
        message: Message,
        segments: &[Segment],
        work: Work,
        class: ServiceClass,
    ) -> Result<(), PostError> {
        let peer = self.peers.get_mut(peer_id.0).ok_or(PostError::NotConnected)?;
        let (Some(credit), Some(slots)) = (peer.credit.as_mut(), peer.their_fast) else {
            return Err(PostError::NotConnected);
        };
        let slot = credit.spend_slot().ok_or(PostError::QueueFull)?;
        let Message { kind, tag, len, op } = message;
        let returned = peer.grant.take();
        let header = Header { kind, returned, tag, len, op }.encode();
        // The peer causes an address that wraps around. Its adapter will refuse the access.
        let remote = slots.target(slot, HEADER_LEN as u64 + len).unwrap_or(slots.remote);
        let target = WriteTarget { remote, immediate: Some(slot.into()) };
        let options = WorkOptions { signalled: true, class };
        let posted = self.transport.post_write(peer.conn, work.to_id(), &header, segments, target, options);
        match posted {
            Ok(()) => (self.transmitted, peer.used) = (self.transmitted + 1, self.now),
            Err(_) => {
                peer.grant.put_back(returned);
                peer.credit.as_mut().expect("it was spent from").unspend_slot(slot);
            }
        }
        posted
    }

    /// Updates counters and buffers after an attempt to write.
    #[expect(clippy::too_many_arguments, reason = "the parts of one message and what became of it")]
    fn sent_fast(
        &mut self,
        peer_id: PeerId,
        kind: Kind,
        tag: Tag,
        len: usize,
        posted: Result<(), PostError>,
        work: Work,
        staged: Option<staging::Filling>,
    ) -> Attempt {
        if let Err(error) = posted {
            staged.into_iter().for_each(|filling| self.staging.free(filling.buffer));
            return self.refused(peer_id, error);
        }
        self.counters.fast += 1;
        self.counters.bytes_sent += len as u64;
        if kind == Kind::Eager {
            self.sent_expected(peer_id, tag);
        }
        match work {
            Work::Op(id) => {
                self.counters.fast_gathered += 1;
                self.work += 1;
                if let Some(op) = self.ops.get_mut(id.0) {
                    op.staged = staged.map(|filling| filling.buffer);
                }
                Attempt::Posted
            }
            _ => Attempt::Sent,
        }
    }
}

/// A message that was gathered.
struct Gathered {
    staged: Option<staging::Filling>,
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
