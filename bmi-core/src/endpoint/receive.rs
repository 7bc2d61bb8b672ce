//! Incoming messages: they are checked, matched, and delivered or parked.
//!
//! **Invariant.** Everything that a message says is checked against what this side granted before
//! anything is done for it. A violation cuts the peer off, and does not affect other peers.

use super::idle_memory::SlotUse;
use super::op::{Op, State};
use super::peer::{Content, Link, Notice, Parked, Peer, Repost};
use super::report::{Place, Release, ReleasedSlot};
use super::work::Work;
use super::{Endpoint, Unexpected, timing};
use crate::error::{Error, ErrorKind};
use crate::mem::{MemList, RemoteSlice};
use crate::op::{OpId, OpKind, Options, PeerId, Posted, Tag};
use crate::proto::credit;
use crate::proto::header::{FinishStatus, HEADER_LEN, Header, Kind, Returned};
use crate::proto::hello::CONTROL_CREDITS;
use crate::proto::one_or_many::OneOrMany;

use crate::transport::{HostWork, PostError, Transport};
use crate::{mutated, mutated_each};

/// A violation of the protocol, for which a peer is cut off.
pub(super) type Violation = &'static str;

impl<T: Transport> Endpoint<T> {
    #[inline]
    pub(super) fn start_recv(
        &mut self,
        peer: PeerId,
        tag: Tag,
        list: MemList,
        options: Options,
    ) -> Result<Posted, Error> {
        // The usual case: no message is parked, and the message will arrive eagerly.
        if let Some(record) = self.peers.get_mut(peer.0).filter(|record| matches!(record.link, Link::Up))
            && record.parked.is_empty()
            && list.len() <= record.limits.eager
            && list.pieces().len() <= self.config.limits.max_pieces
            && !list.is_read_only()
        {
            let matching = |id| State::Matching(record.posted.push(tag, id));
            return Ok(Posted::Pending(self.ops.insert(OpKind::Recv, Some(peer), tag, Some(list), options, matching)));
        }
        self.start_long_recv(peer, tag, list, options)
    }

    /// Posts a receive of any kind.
    fn start_long_recv(&mut self, peer: PeerId, tag: Tag, list: MemList, options: Options) -> Result<Posted, Error> {
        self.check_target(peer, &list).map_err(|error| error.during("receive"))?;
        let record = self.peers.get(peer.0).expect("checked");
        let (waits, offered) = (!record.parked.is_empty(), self.may_be_offered(record, &list));
        let record = self.peers.get_mut(peer.0).expect("checked");
        if waits && let Some(parked) = record.unpark(tag) {
            let id = self.insert_op(OpKind::Recv, Some(peer), tag, Some(list), options, State::Waiting);
            self.deliver_parked(peer, id, parked);
            return Ok(self.posted(id));
        }
        let behind = if offered { record.posted.last(tag).copied() } else { None };
        let matching = |id| State::Matching(record.posted.push(tag, id));
        let id = self.ops.insert(OpKind::Recv, Some(peer), tag, Some(list), options, matching);
        if offered {
            self.offer(peer, id, behind);
        }
        Ok(Posted::Pending(id))
    }

    /// Posts an operation that drops a message.
    pub(super) fn start_discard(&mut self, peer: PeerId, tag: Tag, options: Options) -> Result<Posted, Error> {
        let open = self.peers.get_mut(peer.0).filter(|record| record.is_open());
        let Some(record) = open else { return Err(self.lost_error(peer).during("discard")) };
        let Some(parked) = record.unpark(tag) else {
            let matching = |id| State::Matching(record.posted.push(tag, id));
            return Ok(Posted::Pending(self.ops.insert(OpKind::Discard, Some(peer), tag, None, options, matching)));
        };
        let len = parked.content.len();
        if let Err(violation) = self.drop_parked(peer, parked) {
            self.violated(peer, violation);
        }
        let id = self.insert_op(OpKind::Discard, Some(peer), tag, None, options, State::Waiting);
        self.finish(id, Ok(()), len);
        Ok(self.posted(id))
    }

    /// Delivers a parked message to its receive.
    fn deliver_parked(&mut self, peer_id: PeerId, id: OpId, parked: Parked) {
        let record = self.peers.get_mut(peer_id.0).expect("the caller has it");
        record.grant.unparked(parked.cost);
        match parked.content {
            Content::Slot(slot, len) => {
                let list = self.ops.get(id.0).and_then(|op| op.list.as_ref()).expect("a receive has its list");
                // SAFETY: a slot that holds a parked message is here. It is posted again only
                // below.
                let payload = &unsafe { record.slots.bytes(slot, HEADER_LEN + len) }[HEADER_LEN..];
                let status = deliver(list, payload);
                self.transport.charge(HostWork::copy(len, list));
                record.held -= 1;
                self.repost(peer_id, slot, Repost::Message);
                self.received(id, status, len as u64);
            }
            Content::Copied(payload) => {
                let list = self.ops.get(id.0).and_then(|op| op.list.as_ref()).expect("a receive has its list");
                let status = deliver(list, &payload);
                self.transport.charge(HostWork::copy(payload.len(), list));
                self.received(id, status, payload.len() as u64);
            }
            Content::Fast(slot, len) => self.deliver_parked_fast(peer_id, id, slot, len),
            Content::Announced { op, len, remote } => self.start_rendezvous(peer_id, id, op, len, remote),
        }
        self.mark_dirty(peer_id);
    }

    pub(super) fn received(&mut self, id: OpId, status: Result<(), ErrorKind>, len: u64) {
        if status.is_ok() {
            self.counters.bytes_received += len;
        }
        let room = self.ops.get(id.0).map_or(len, |op| op.len() as u64);
        let len = if mutated("receive/short-message-reported-as-full") { room } else { len };
        self.finish(id, status, len);
    }

    /// Handles a message that arrived in a receive slot.
    pub(super) fn on_message(&mut self, peer_id: PeerId, slot: usize, len: usize) {
        let Some(peer) = self.peers.get_mut(peer_id.0) else { return };
        if !peer.is_up() {
            return;
        }
        peer.steps += 1;
        peer.used = self.now;
        // SAFETY: the completion just gave the slot back. It is posted again only after the message
        // has been handled.
        let message = unsafe { peer.slots.bytes(slot, len) };
        let decoded = Header::decode(message).map(|(header, payload)| (header, payload.len()));
        let taken = decoded.and_then(|(header, len)| peer.take_credits(header.returned).map(|()| (header, len)));
        let handled = match taken {
            Ok((Header { kind: Kind::Eager, tag, .. }, len)) => self.on_eager(peer_id, slot, tag, len),
            Ok((header, len)) => self.on_other(peer_id, slot, &header, len),
            Err(violation) => Err(violation),
        };
        match handled {
            // Credits may wait to go back, and others may have arrived.
            Ok(()) => self.mark_dirty(peer_id),
            Err(violation) => self.violated(peer_id, violation),
        }
    }

    /// Handles a message of any kind.
    fn on_other(&mut self, peer_id: PeerId, slot: usize, header: &Header, len: usize) -> Result<(), Violation> {
        match header.kind {
            Kind::Eager => self.on_eager(peer_id, slot, header.tag, len),
            Kind::Unexpected => self.on_unexpected(peer_id, slot, header.tag, len),
            Kind::Announce => self.on_announce(peer_id, slot, header, len),
            Kind::Finish => self.on_finish(peer_id, slot, header),
            Kind::Cancel => self.on_cancel(peer_id, slot, header.op),
            Kind::Credit => self.on_credit(peer_id, slot),
            Kind::Ready => self.on_ready(peer_id, slot, header, len),
            Kind::Written => self.on_written(peer_id, slot, header),
            Kind::Withdraw => self.on_withdraw(peer_id, slot, header.op),
            Kind::Withdrawn => self.on_withdrawn(peer_id, slot, header.op),
            Kind::FastSlots => self.on_slots(peer_id, slot, header, len),
            Kind::ClearToWrite => self.on_clear_to_write(peer_id, slot, header, len),
            Kind::Probe => self.on_probe(peer_id, slot, header, len),
        }
    }

    /// Cuts off a peer that broke the protocol.
    #[cold]
    pub(super) fn violated(&mut self, peer: PeerId, violation: Violation) {
        self.counters.violations += 1;
        self.cut(peer, Error::new(ErrorKind::Protocol, format!("it sent {violation}")));
    }

    pub(super) fn take_credits(&mut self, peer: PeerId, returned: Returned) -> Result<(), Violation> {
        self.peers.get_mut(peer.0).expect("the caller has it").take_credits(returned)
    }

    #[inline]
    fn on_eager(&mut self, peer_id: PeerId, slot: usize, tag: Tag, len: usize) -> Result<(), Violation> {
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        let cost = credit::cost(len);
        peer.grant.arrived(cost)?;
        peer.seen += 1;
        // SAFETY: as in `on_message`.
        let payload = &unsafe { peer.slots.bytes(slot, HEADER_LEN + len) }[HEADER_LEN..];
        if let Some(id) = peer.posted.pop(tag) {
            let status = match self.ops.get(id.0).and_then(|op| op.list.as_ref()) {
                Some(list) => {
                    self.transport.charge(HostWork::copy(len, list));
                    deliver(list, payload)
                }
                // A discard.
                None => {
                    self.counters.discarded += 1;
                    Ok(())
                }
            };
            peer.grant.unparked(cost);
            if let Err(error) = post_slot(&mut self.transport, peer, slot, Repost::Message) {
                self.not_posted(peer_id, slot, Repost::Message, error);
            }
            self.received(id, status, len as u64);
            return Ok(());
        }
        if peer.is_late(tag) {
            peer.grant.unparked(cost);
            self.counters.discarded += 1;
            self.repost(peer_id, slot, Repost::Message);
            return Ok(());
        }
        self.park_eager(peer_id, slot, tag, len);
        Ok(())
    }

    /// Parks an eager message that has no receive yet.
    fn park_eager(&mut self, peer_id: PeerId, slot: usize, tag: Tag, len: usize) {
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        let cost = credit::cost(len);
        // SAFETY: as in `on_message`.
        let payload = &unsafe { peer.slots.bytes(slot, HEADER_LEN + len) }[HEADER_LEN..];
        self.counters.unmatched += 1;
        let content = if peer.may_hold() {
            peer.held += 1;
            Content::Slot(slot, len)
        } else {
            self.transport.charge(HostWork::Copy { bytes: len as u64, pieces: 1 });
            Content::Copied(payload.into())
        };
        let copied = matches!(content, Content::Copied(_));
        peer.park(tag, Parked { cost, content });
        if copied {
            self.repost(peer_id, slot, Repost::Message);
        }
    }

    fn on_unexpected(&mut self, peer_id: PeerId, slot: usize, tag: Tag, len: usize) -> Result<(), Violation> {
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        let cost = credit::cost(len);
        peer.grant.arrived(cost)?;
        let held = peer.may_hold();
        let bytes = if held {
            peer.held += 1;
            let slot_name = u32::try_from(slot).expect("few slots");
            Place::Slot {
                memory: peer.slots.memory().clone(),
                offset: peer.slots.payload_offset(slot),
                len,
                slot: slot_name,
            }
        } else {
            self.transport.charge(HostWork::Copy { bytes: len as u64, pieces: 1 });
            // SAFETY: as in `on_message`.
            Place::Copied(unsafe { peer.slots.bytes(slot, HEADER_LEN + len) }[HEADER_LEN..].into())
        };
        let released = self.released.clone();
        self.unexpected.push_back(Unexpected { peer: peer_id, tag, bytes, cost, released });
        self.counters.bytes_received += len as u64;
        if !held {
            self.repost(peer_id, slot, Repost::Message);
        }
        Ok(())
    }

    fn on_announce(&mut self, peer_id: PeerId, slot: usize, header: &Header, len: usize) -> Result<(), Violation> {
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        let cost = credit::cost(len);
        peer.grant.arrived(cost)?;
        // SAFETY: as in `on_message`.
        let table = &unsafe { peer.slots.bytes(slot, HEADER_LEN + len) }[HEADER_LEN..];
        let pieces = || {
            table
                .chunks_exact(RemoteSlice::WIRE_LEN)
                .map(|wire| RemoteSlice::from_wire(wire.try_into().expect("exact chunks")))
        };
        let total = pieces().try_fold(0u64, |sum, piece| sum.checked_add(piece.len));
        if total != Some(header.len)
            || header.len > self.config.limits.max_message
            || pieces().len() > self.config.limits.max_pieces
        {
            return Err("an announcement whose pieces do not add up");
        }
        let remote: OneOrMany<RemoteSlice> = pieces().collect();
        peer.seen += 1;
        match peer.posted.pop(header.tag) {
            Some(id) if self.ops.get(id.0).is_some_and(|op| op.kind == OpKind::Discard) => {
                let content = Content::Announced { op: header.op, len: header.len, remote };
                self.drop_parked(peer_id, Parked { cost, content })?;
                self.finish(id, Ok(()), header.len);
            }
            Some(id) => {
                peer.grant.unparked(cost);
                self.start_rendezvous(peer_id, id, header.op, header.len, remote);
            }
            None => {
                let parked = Parked { cost, content: Content::Announced { op: header.op, len: header.len, remote } };
                if peer.is_late(header.tag) {
                    self.drop_parked(peer_id, parked)?;
                } else {
                    self.counters.unmatched += 1;
                    peer.park(header.tag, parked);
                }
            }
        }
        self.repost(peer_id, slot, Repost::Message);
        Ok(())
    }

    fn on_finish(&mut self, peer_id: PeerId, slot: usize, header: &Header) -> Result<(), Violation> {
        self.spent_message(peer_id)?;
        let status = FinishStatus::from_wire(header.tag).ok_or("a finish with an unknown status")?;
        let id = timing::op_of(header.op);
        let op = self
            .ops
            .get_mut(id.0)
            .filter(|op| op.peer == Some(peer_id))
            .ok_or("a finish of no operation of its own")?;
        let State::Announced(remote) = &op.state else { return Err("a finish of an operation that was not announced") };
        let (remote, len) = (remote.clone(), op.len() as u64);
        let status = match (status, op.ending) {
            (FinishStatus::Ok, _) if header.len != len => return Err("a finish of the wrong length"),
            (FinishStatus::Ok, _) => Ok(()),
            (FinishStatus::TooLong, _) => Err(ErrorKind::TooLong),
            (FinishStatus::Exhausted, _) => Err(ErrorKind::Exhausted),
            (FinishStatus::Cancelled, ending) => Err(ending.unwrap_or(ErrorKind::Cancelled)),
        };
        if !mutated("rendezvous/exposure-kept") {
            self.revoke_all(peer_id, remote.as_slice());
        }
        self.finish(id, status, len);
        self.no_longer_busy(peer_id);
        self.repost(peer_id, slot, Repost::Message);
        Ok(())
    }

    /// Handles a Cancel: the sender of a rendezvous wants its message back.
    fn on_cancel(&mut self, peer_id: PeerId, slot: usize, named: u64) -> Result<(), Violation> {
        self.spent_message(peer_id)?;
        self.repost(peer_id, slot, Repost::Message);
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        let waiting = |parked: &Parked| matches!(parked.content, Content::Announced { op, .. } if op == named);
        if let Some(parked) = peer.parked.find(waiting).and_then(|place| peer.parked.remove(place)) {
            peer.unparked(&parked);
            peer.grant.unparked(parked.cost);
            if mutated("rendezvous/cancel-not-answered") {
                return Ok(());
            }
            return self.answer(peer_id, Notice::Cancelled { op: named });
        }
        let moving = |op: &Op| {
            op.peer == Some(peer_id)
                && matches!(&op.state, State::Moving(transfer) if transfer.announced_as == Some(named))
        };
        let moving = self.ops.iter().find(|(_, op)| moving(op)).map(|(key, _)| OpId(key));
        // If there is none, our Finish is already on its way.
        if let Some(id) = moving {
            self.end_early(id, ErrorKind::Cancelled);
        }
        Ok(())
    }

    /// Queues an answer to the peer. A peer that keeps the protocol has no more open questions than
    /// its credits allow.
    pub(super) fn answer(&mut self, peer_id: PeerId, notice: Notice) -> Result<(), Violation> {
        let limit = self.config.credits.bytes / credit::OVERHEAD + u32::from(self.config.credits.messages);
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        if peer.answers >= limit as usize {
            return Err("more requests for answers than it takes answers");
        }
        peer.answers += 1;
        self.notify(peer_id, notice);
        Ok(())
    }

    fn on_credit(&mut self, peer_id: PeerId, slot: usize) -> Result<(), Violation> {
        self.peers.get_mut(peer_id.0).expect("the caller has it").grant.control_arrived()?;
        self.repost(peer_id, slot, Repost::Control);
        Ok(())
    }

    pub(super) fn spent_message(&mut self, peer: PeerId) -> Result<(), Violation> {
        self.peers.get_mut(peer.0).expect("the caller has it").grant.arrived(0)
    }

    /// Posts a slot again. The credit goes back with the next header.
    pub(super) fn repost(&mut self, peer_id: PeerId, slot: usize, repost: Repost) {
        let Some(peer) = self.peers.get_mut(peer_id.0) else { return };
        if let Err(error) = post_slot(&mut self.transport, peer, slot, repost) {
            self.not_posted(peer_id, slot, repost, error);
        }
    }

    #[cold]
    fn not_posted(&mut self, peer_id: PeerId, slot: usize, repost: Repost, error: PostError) {
        match error {
            PostError::QueueFull => {
                let Some(peer) = self.peers.get_mut(peer_id.0) else { return };
                peer.unposted.push((slot, repost));
                self.block(peer_id);
            }
            // The event that ends the connection is on its way.
            PostError::NotConnected => {}
            PostError::Invalid(why) => {
                self.cut(peer_id, Error::new(ErrorKind::Io, format!("the transport refuses a receive: {why}")))
            }
        }
    }

    /// Posts the slots for which the adapter had no room.
    pub(super) fn repost_rest(&mut self, peer_id: PeerId) {
        let Some(peer) = self.peers.get_mut(peer_id.0) else { return };
        if !peer.unposted.is_empty() {
            for (slot, repost) in std::mem::take(&mut peer.unposted) {
                self.repost(peer_id, slot, repost);
            }
        }
    }

    /// Handles an unexpected message that the program dropped.
    pub(super) fn on_release(&mut self, release: Release) {
        let Some(peer) = self.peers.get_mut(release.peer.0) else { return };
        peer.used = self.now;
        peer.grant.unparked(release.cost);
        if mutated_each(10, "unexpected/credit-returned-twice") {
            peer.grant.unparked(release.cost);
        }
        match release.slot {
            Some(ReleasedSlot::Receive(slot)) => {
                peer.held -= 1;
                self.repost(release.peer, slot as usize, Repost::Message);
            }
            Some(ReleasedSlot::Fast(slot)) => peer.grant.slot_freed(slot),
            None => {}
        }
        self.mark_dirty(release.peer);
    }

    /// Drops the messages of a lost peer that the program has not taken.
    pub(super) fn drop_unexpected_of(&mut self, peer: PeerId) {
        self.unexpected.retain(|message| message.peer != peer || mutated("lost/messages-kept"));
    }
}

/// Posts a slot. The credit goes back with the next header.
#[inline]
fn post_slot<T: Transport>(transport: &mut T, peer: &mut Peer, slot: usize, repost: Repost) -> Result<(), PostError> {
    let work = Work::Slot(u32::try_from(slot).expect("few slots")).to_id();
    peer.slot_use = SlotUse::Used;
    transport.post_alike(peer.conn, work, peer.slots.segment(slot))?;
    match repost {
        Repost::First => {}
        Repost::Message => peer.grant.reposted(),
        Repost::Control => peer.grant.control_reposted(),
    }
    Ok(())
}

impl Peer {
    /// Adds the credits that the peer returned.
    #[inline]
    fn take_credits(&mut self, returned: Returned) -> Result<(), Violation> {
        if returned == Returned::default() {
            return Ok(());
        }
        self.credit.as_mut().expect("a peer that is up has credit").refill(returned)
    }

    /// Returns true if one more slot may hold a message for the program (invariant 3 of
    /// `proto::credit`).
    fn may_hold(&self) -> bool {
        self.held < (self.slots.count() - usize::from(CONTROL_CREDITS)) / 2
    }
}

/// Copies a payload to the pieces of a receive's list.
#[inline]
fn deliver(list: &MemList, payload: &[u8]) -> Result<(), ErrorKind> {
    if payload.len() > list.len() + usize::from(mutated("receive/bound-off-by-one")) {
        return Err(ErrorKind::TooLong);
    }
    match list.pieces() {
        [piece] => piece.copy_from(payload),
        _ => {
            list.copy_from(0, payload);
        }
    }
    Ok(())
}
