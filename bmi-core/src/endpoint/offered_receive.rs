//! The direct path: a message of middle size is written straight into a receive that was posted
//! before it.
//!
//! **Why.** A rendezvous costs two more trips than the data: the announcement and the read. Where
//! the receive is there first, the receiver can say so, off the critical path, and the sender needs
//! one trip: an RDMA write and a short message behind it.
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
//!   ends            <──Withdrawn(op)────────────  behind a Written, if it was used
//! ```
//!
//! **Which message matches which receive** must come out the same on both sides: the k-th of a tag
//! with the k-th of that tag.
//! 1. A receive is offered only if no earlier receive of its tag waits that was not. So the offers
//!    that the sender keeps for a tag are the peer's oldest receives of it, in order.
//! 2. Every expected message that the sender sends takes the oldest offer of its tag with it, used
//!    or not.
//! 3. Messages on the wire when the receiver made its offer match before it. The offer says how
//!    many expected messages the receiver had seen. The sender sets an offer off against the oldest
//!    message of that tag that was not seen and has not been set off; if there is one, the offer is
//!    void. The messages not seen are at most the message credits that are out; so a list that is
//!    full is cleared of the others, and is bounded.
//!
//! **When it is not worth it.** Where the sender is ahead of the receiver, offers and messages
//! cross and every offer is a message for nothing. So after [`WASTED`] offers in a row that no
//! message used, the peer is told of one receive in [`TRIAL`] only, until one is used again.
//!
//! **Limits.** One piece at the receiver, one work request at the sender, at most a transfer unit:
//! so write and Written leave together and nothing of the same tag can come between. Longer
//! messages lose little by a rendezvous.
//!
//! **Source.** Client-based RDMA write with the grant sent ahead ([PVFS-IB §3.2.3, §4.1.2]: the
//! first control message is avoided by buffers that the peer knows). Theirs are fixed buffers with
//! a copy behind; here it is the receive itself.

use super::op::{Offer, State};
use super::peer::{Notice, Peer, ReadyReceive, Repost, Unseen};
use super::receive::Violation;
use super::send::{Attempt, Message};
use super::work::Work;
use super::{Endpoint, timing};
use crate::mem::{Access, MemList, RemoteSlice};
use crate::mutated;
use crate::op::{OpId, OpKind, PeerId, Tag};
use crate::proto::credit;
use crate::proto::header::{HEADER_LEN, Header, Kind};
use crate::transport::{Payload, ServiceClass, Transport, WorkOptions};

/// Room to spare, at least, in the list of messages that the peer may not have seen, whenever it
/// was cleared of the others: which should be seldom.
const KEPT_UNSEEN: usize = 256;
/// Offers in a row that nobody used, after which the next are not made: as many as a program that
/// posts its receives in pairs may waste while it starts.
const WASTED: u8 = 8;
/// Then one receive in so many is offered, to see whether times have changed.
const TRIAL: u8 = 64;

/// What became of the offers to a peer.
#[derive(Debug, Default)]
pub(super) struct Offers {
    /// In a row, not used.
    wasted: u8,
    /// Receives since, not offered.
    skipped: u8,
}

impl Offers {
    /// Whether the next receive is to be offered.
    fn are_worth_it(&mut self) -> bool {
        if self.wasted < WASTED {
            return true;
        }
        self.skipped = (self.skipped + 1) % TRIAL;
        self.skipped == 0
    }
}

impl<T: Transport> Endpoint<T> {
    // ---- the receiver ---------------------------------------------------------------------------

    /// Whether a receive is of a size and shape that is offered.
    #[inline]
    pub(super) fn may_be_offered(&self, peer: &Peer, list: &MemList) -> bool {
        let (eager, unit) = (self.eager_limit(peer), self.config.limits.transfer_unit);
        peer.is_up() && list.pieces().len() == 1 && (eager + 1..=unit).contains(&list.len())
    }

    /// Offers a receive that was just posted behind `behind` and [may be](Self::may_be_offered), if
    /// rule 1 allows.
    pub(super) fn offer(&mut self, peer_id: PeerId, id: OpId, behind: Option<OpId>) {
        let behind_offer = behind.and_then(|op| self.ops.get(op.0)).is_none_or(|op| op.offer != Offer::None);
        let op = self.ops.get_mut(id.0).expect("the caller has it");
        let worth = self.peers.get_mut(peer_id.0).is_some_and(|peer| peer.offers.are_worth_it());
        if worth && (behind_offer || mutated("offered-receive/offered-out-of-order")) {
            op.offer = Offer::Intended;
            self.notify(peer_id, Notice::Ready { op: id });
        }
    }

    /// Sends an offer at the head of the notices; says whether it is off the list.
    pub(super) fn send_ready(&mut self, peer_id: PeerId, id: OpId) -> bool {
        let waiting =
            self.ops.get(id.0).filter(|op| matches!(op.state, State::Matching(_)) && op.offer == Offer::Intended);
        let Some((tag, list)) = waiting.and_then(|op| Some((op.tag, op.list.clone()?))) else {
            self.drop_notice(peer_id);
            return true;
        };
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        let (seen, cost) = (peer.seen, credit::cost(RemoteSlice::WIRE_LEN));
        let Some(credit) = peer.credit.as_mut() else { return false };
        // A notice waits for a message credit, never for bytes: the program may be what those wait
        // for.
        let affordable = credit.may_offer(cost);
        if affordable && !credit.spend(cost) {
            return false;
        }
        let offered = if affordable { self.expose_list(peer_id, &list, Access::WRITE).ok() } else { None };
        let Some(offered) = offered else {
            // Then it is a receive like any other, and so are those behind it.
            if affordable {
                self.unspend(peer_id, cost);
            }
            self.withhold(peer_id, tag);
            self.drop_notice(peer_id);
            return true;
        };
        let memory = offered.as_slice()[0];
        let message = Message { kind: Kind::Ready, tag, len: seen, op: timing::name_of(id) };
        let options = WorkOptions { signalled: false, class: ServiceClass::Control };
        if let Err(error) = self.transmit(peer_id, message, &memory.to_wire(), Payload::EMPTY, Work::Silent, options) {
            self.revoke_all(peer_id, &[memory]);
            self.unspend(peer_id, cost);
            self.refused(peer_id, error);
            return false;
        }
        self.ops.get_mut(id.0).expect("looked up above").offer = Offer::Made(memory);
        self.drop_notice(peer_id);
        true
    }

    /// Takes back the intention to offer, for all receives of a tag that have not been offered yet.
    fn withhold(&mut self, peer: PeerId, tag: Tag) {
        let notices = self.peers.get(peer.0).map(|peer| peer.notices.clone()).unwrap_or_default();
        for notice in notices {
            if let Notice::Ready { op } = notice
                && let Some(op) = self.ops.get_mut(op.0).filter(|op| op.tag == tag)
            {
                op.offer = Offer::None;
            }
        }
    }

    pub(super) fn drop_notice(&mut self, peer: PeerId) {
        if let Some(peer) = self.peers.get_mut(peer.0) {
            peer.notices.pop_front();
        }
    }

    /// The sender has written a message into a receive that was offered, or that wanted it.
    pub(super) fn on_written(&mut self, peer_id: PeerId, slot: usize, header: &Header) -> Result<(), Violation> {
        self.spent_message(peer_id)?;
        let id = timing::op_of(header.op);
        let op = self
            .ops
            .get(id.0)
            .filter(|op| op.peer == Some(peer_id))
            .ok_or("a message written into no receive of ours")?;
        if matches!(op.state, State::AwaitingWrite { .. }) {
            self.repost(peer_id, slot, Repost::Message);
            return self.on_rendezvous_written(peer_id, id, header.len);
        }
        let (State::Matching(place), Offer::Made(memory)) = (&op.state, op.offer) else {
            return Err("a message written into a receive that was not offered");
        };
        if header.len > memory.len {
            return Err("a message written beyond its receive");
        }
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        let found = peer.posted.remove(*place);
        debug_assert!(found.is_some(), "a receive that waits is on the list");
        peer.seen += 1;
        self.ops.get_mut(id.0).expect("looked up above").offer = Offer::Used(memory);
        self.repost(peer_id, slot, Repost::Message);
        self.received(id, Ok(()), header.len);
        Ok(())
    }

    /// A receive that was offered has ended: by a message that used the offer, or by one that did
    /// not.
    pub(super) fn offer_ended(&mut self, peer_id: PeerId, memory: RemoteSlice, used: bool) {
        if let Some(peer) = self.peers.get_mut(peer_id.0) {
            peer.offers.wasted = if used { 0 } else { peer.offers.wasted.saturating_add(1) };
        }
        self.revoke_all(peer_id, &[memory]);
    }

    /// The sender has forgotten an offer; if the receive is still without a message, it ends.
    pub(super) fn on_withdrawn(&mut self, peer_id: PeerId, slot: usize, name: u64) -> Result<(), Violation> {
        self.spent_message(peer_id)?;
        self.repost(peer_id, slot, Repost::Message);
        let id = timing::op_of(name);
        let Some(op) = self.ops.get(id.0).filter(|op| op.peer == Some(peer_id) && op.kind == OpKind::Recv) else {
            return Ok(());
        };
        if matches!(op.state, State::AwaitingWrite { .. }) {
            self.on_rendezvous_withdrawn(peer_id, id);
            return Ok(());
        }
        let (State::Matching(place), Some(ending)) = (&op.state, op.ending) else { return Ok(()) };
        let found = self.peers.get_mut(peer_id.0).expect("the caller has it").posted.remove(*place);
        debug_assert!(found.is_some(), "a receive that waits is on the list");
        self.finish(id, Err(ending), 0);
        Ok(())
    }

    // ---- the sender -----------------------------------------------------------------------------

    /// The peer offers a receive.
    pub(super) fn on_ready(
        &mut self,
        peer_id: PeerId,
        slot: usize,
        header: &Header,
        len: usize,
    ) -> Result<(), Violation> {
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        let cost = credit::cost(len);
        peer.grant.arrived(cost)?;
        if header.len > peer.sent {
            return Err("an offer after messages that were not sent");
        }
        // SAFETY: the completion just gave the slot back; it is posted again only below.
        let wire = &unsafe { peer.slots.bytes(slot, HEADER_LEN + len) }[HEADER_LEN..];
        let memory = RemoteSlice::from_wire(wire.try_into().expect("the header's check"));
        let seen = peer.unseen.iter().take_while(|message| message.number < header.len).count();
        peer.unseen.drain(..seen);
        let crossed = |message: &&mut Unseen| message.tag == header.tag && !message.matched;
        match peer.unseen.iter_mut().find(crossed).filter(|_| !mutated("offered-receive/crossing-message-overlooked")) {
            Some(message) => {
                message.matched = true;
                peer.grant.unparked(cost);
            }
            None => {
                peer.ready.push(header.tag, ReadyReceive { op: header.op, memory });
            }
        }
        self.repost(peer_id, slot, Repost::Message);
        Ok(())
    }

    /// The peer wants an offer back.
    pub(super) fn on_withdraw(&mut self, peer_id: PeerId, slot: usize, name: u64) -> Result<(), Violation> {
        self.spent_message(peer_id)?;
        self.repost(peer_id, slot, Repost::Message);
        if self.stop_rendezvous_write(peer_id, name) {
            return Ok(());
        }
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        if let Some(place) = peer.ready.find(|ready| ready.op == name)
            && !mutated("offered-receive/withdrawn-offer-kept")
        {
            peer.ready.remove(place);
            peer.grant.unparked(credit::cost(RemoteSlice::WIRE_LEN));
        }
        self.answer(peer_id, Notice::Withdrawn { op: name })
    }

    /// Whether a message can be written into the receive that it will match.
    pub(super) fn may_write(&self, peer: PeerId, tag: Tag, list: &MemList) -> bool {
        let Some(peer) = self.peers.get(peer.0) else { return false };
        let capabilities = self.transport.capabilities();
        peer.ready.first(tag).is_some_and(|ready| list.len() as u64 <= ready.memory.len)
            && list.pieces().len() <= capabilities.max_segments
            && list.len() as u64 <= capabilities.max_work_len
    }

    /// Writes a message into the receive that it matches.
    pub(super) fn send_into_offer(
        &mut self,
        peer_id: PeerId,
        id: OpId,
        tag: Tag,
        list: &MemList,
        class: ServiceClass,
    ) -> Attempt {
        let mut segments = std::mem::take(&mut self.segments);
        for piece in list.pieces() {
            match self.registry.register(&mut self.transport, piece.memory()) {
                Ok(region) => segments.push(region.into_segment(piece.offset(), piece.len())),
                Err(error) => {
                    segments.clear();
                    if let Some(copy) = self.stand_in_for(id, list) {
                        segments.push(copy);
                        break;
                    }
                    self.segments = segments;
                    return self.without_fallback_buffer(peer_id, list.len(), &error);
                }
            }
        }
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        let ReadyReceive { op, memory } = *peer.ready.first(tag).expect("`may_write` saw it");
        let len = list.len() as u64;
        let target = memory.slice(0, len).unwrap_or(RemoteSlice { len, ..memory });
        let options = WorkOptions { signalled: true, class };
        let posted = self.transport.post_write(peer.conn, Work::Op(id).to_id(), &[], &segments, target.into(), options);
        segments.clear();
        self.segments = segments;
        if let Err(error) = posted {
            self.forget_stand_in(id);
            return self.refused(peer_id, error);
        }
        self.work += 1;
        self.count_stand_in(id);
        self.counters.offered += 1;
        self.counters.bytes_sent += len;
        self.sent_expected(peer_id, tag);
        // Ahead of all messages, and of notices whose order does not matter to it: nothing may come
        // between.
        if let Some(peer) = self.peers.get_mut(peer_id.0) {
            peer.notices.push_front(Notice::Written { op, len });
        }
        Attempt::Posted
    }

    pub(super) fn sent_expected(&mut self, peer: PeerId, tag: Tag) {
        if let Some(peer) = self.peers.get_mut(peer.0) {
            peer.sent_expected(tag);
        }
    }
}

impl Peer {
    /// Book-keeping for every expected message that goes out: it takes the oldest offer of its tag
    /// with it.
    #[inline]
    pub(super) fn sent_expected(&mut self, tag: Tag) {
        let number = self.sent;
        self.sent += 1;
        let matched = !self.ready.is_empty() && self.ready.pop(tag).is_some();
        if matched {
            self.grant.unparked(credit::cost(RemoteSlice::WIRE_LEN));
        }
        if self.unseen.len() == self.unseen.capacity() {
            self.forget_seen();
        }
        self.unseen.push(Unseen { number, tag, matched });
    }

    /// Forgets messages that the peer has seen for certain, before the list would grow.
    #[cold]
    fn forget_seen(&mut self) {
        let out = self.credit.as_ref().map_or(0, credit::Credit::messages_out);
        // The Written of a message that was just written has not spent its credit yet; it is the
        // only one, for nothing is sent before it.
        let seen = self.unseen.len().saturating_sub(out);
        self.unseen.drain(..seen);
        // As much again as is left, so that this is seldom also where credits are many.
        self.unseen.reserve(KEPT_UNSEEN.max(self.unseen.len()));
    }
}
