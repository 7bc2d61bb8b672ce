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
//! receive of that tag.
//! 1. A receive is offered only if every earlier receive of its tag that still waits was offered.
//!    So the offers that the sender keeps for a tag are the peer's oldest receives of it, in order.
//! 2. Every expected message that the sender sends removes the oldest offer of its tag, whether it
//!    uses the offer or not.
//! 3. Messages that were on the wire when the receiver made its offer match before the offer.
//!    - The offer says how many expected messages the receiver had seen.
//!    - The sender sets the offer off against the oldest message of that tag that the receiver had
//!      not seen and that was not set off before. If there is such a message, the offer is void.
//!    - There are at most as many unseen messages as message credits that have not come back. So a
//!      list of them that is full is cleared of the others, and is bounded.
//!
//! **When offers do not pay.** If the sender is ahead of the receiver, offers and messages cross,
//! and every offer is a wasted message. So after [`WASTED`] offers in a row that no message used,
//! only one receive in [`TRIAL`] is offered, until an offer is used again.
//!
//! **Limits.** The receiver's list has one piece, the sender needs one work request, and the
//! message is at most a transfer unit. So write and Written leave together, and no message of the
//! same tag can come between. Longer messages lose little by a rendezvous.
//!
//! **Source.** Client-based RDMA write with the grant sent ahead ([PVFS-IB §3.2.3, §4.1.2]: the
//! first control message is avoided by buffers that the peer knows). The paper uses fixed buffers
//! and copies the data afterwards. Here the buffer is the receive itself.

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

/// Least spare room in the list of messages that the peer may not have seen, after it was cleared
/// of the others. This keeps clearing rare.
const KEPT_UNSEEN: usize = 256;
/// Number of unused offers in a row after which no more are made. A program that posts its receives
/// in pairs may waste this many while it starts.
const WASTED: u8 = 8;
/// After that, one receive in this many is offered, to find out whether offers are used again.
const TRIAL: u8 = 64;

/// Statistics of the offers to a peer.
#[derive(Debug, Default)]
pub(super) struct Offers {
    /// Unused offers in a row.
    wasted: u8,
    /// Receives since then that were not offered.
    skipped: u8,
}

impl Offers {
    /// Returns true if the next receive should be offered.
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

    /// Returns true if a receive has a size and shape that can be offered.
    #[inline]
    pub(super) fn may_be_offered(&self, peer: &Peer, list: &MemList) -> bool {
        let (eager, unit) = (self.eager_limit(peer), self.config.limits.transfer_unit);
        peer.is_up() && list.pieces().len() == 1 && (eager + 1..=unit).contains(&list.len())
    }

    /// Offers a receive that [may be offered](Self::may_be_offered) and was just posted behind
    /// `behind`, if rule 1 allows it.
    pub(super) fn offer(&mut self, peer_id: PeerId, id: OpId, behind: Option<OpId>) {
        let behind_offer = behind.and_then(|op| self.ops.get(op.0)).is_none_or(|op| op.offer != Offer::None);
        let op = self.ops.get_mut(id.0).expect("the caller has it");
        let worth = self.peers.get_mut(peer_id.0).is_some_and(|peer| peer.offers.are_worth_it());
        if worth && (behind_offer || mutated("offered-receive/offered-out-of-order")) {
            op.offer = Offer::Intended;
            self.notify(peer_id, Notice::Ready { op: id });
        }
    }

    /// Sends an offer at the head of the notices. Returns true if the notice is off the list.
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
        // A notice waits for a message credit, but never for bytes, because these may wait for the
        // program.
        let affordable = credit.may_offer(cost);
        if affordable && !credit.spend(cost) {
            return false;
        }
        let offered = if affordable { self.expose_list(peer_id, &list, Access::WRITE).ok() } else { None };
        let Some(offered) = offered else {
            // Then this receive is not offered, and neither are those behind it.
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

    /// Cancels all intended offers of a tag, which were not sent yet.
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

    /// Handles a Written: the sender has written a message into a receive that was offered, or that
    /// awaits a write.
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

    /// Handles the end of an offered receive, by a message that used the offer or in another way.
    pub(super) fn offer_ended(&mut self, peer_id: PeerId, memory: RemoteSlice, used: bool) {
        if let Some(peer) = self.peers.get_mut(peer_id.0) {
            peer.offers.wasted = if used { 0 } else { peer.offers.wasted.saturating_add(1) };
        }
        self.revoke_all(peer_id, &[memory]);
    }

    /// Handles a Withdrawn: the sender has forgotten an offer. The receive ends if it still has no
    /// message.
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

    /// Handles a Ready: the peer offers a receive.
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
        // SAFETY: the completion just gave the slot back, and it is posted again only below.
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

    /// Handles a Withdraw: the peer wants an offer back.
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
        let ReadyReceive { op, memory } = *peer.ready.first(tag).expect("the decision saw it");
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
        // This goes ahead of all messages, so that nothing comes between write and Written. It also
        // goes ahead of other notices, whose order does not matter.
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
    /// Records an expected message that is sent. It removes the oldest offer of its tag.
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

    /// Removes messages that the peer has certainly seen, before the list would grow.
    #[cold]
    fn forget_seen(&mut self) {
        let out = self.credit.as_ref().map_or(0, credit::Credit::messages_out);
        // The Written of a message that was just written has not spent its credit yet. There is
        // only one such message, because nothing is sent before its Written.
        let seen = self.unseen.len().saturating_sub(out);
        self.unseen.drain(..seen);
        // Reserves as much as is left, so that this is rare even with many credits.
        self.unseen.reserve(KEPT_UNSEEN.max(self.unseen.len()));
    }
}
