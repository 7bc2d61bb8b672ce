//! Outgoing messages: eager, unexpected and announced ones, and the small ones of the protocol
//! itself.
//!
//! **Protocol.** An eager message goes to the adapter in one of three ways, cheapest first. It is
//! copied while posting (inline). It is gathered in place, if registration is free or was already
//! done (`check_if_registered`). Or it is copied to a send slot. The first and the last complete
//! the operation at once. A longer message is announced: its pieces are exposed to the peer, which
//! reads them when it has a receive ([PVFS-IB §3.2.3, §4.1.1]).

use super::op::{Op, State};
use super::peer::{Link, Notice, Peer};
use super::send_path::{Decision, Outgoing, SendPath, decide, eager_path};
use super::work::Work;
use super::{Endpoint, pieces_in_head, timing};
use crate::error::{Error, ErrorKind};
use crate::mem::{MemList, Memory, RemoteSlice};
use crate::op::{Completion, OpId, OpKind, Options, PeerId, Posted, Tag};
use crate::proto::credit;
use crate::proto::header::{FinishStatus, HEADER_LEN, Header, Kind};
use crate::proto::one_or_many::OneOrMany;
use crate::transport::{HostWork, Payload, PostError, ServiceClass, Transport, WorkOptions};

/// The result of an attempt to send.
pub(super) enum Attempt {
    /// The message was sent, and its memory is free again.
    Sent,
    /// The adapter has the message until it reports its completion.
    Posted,
    /// The message was announced to the peer.
    Announced(OneOrMany<RemoteSlice>),
    /// There was no credit, no slot, or a full queue. Nothing has changed.
    Blocked,
    /// The message cannot be sent.
    Failed(ErrorKind),
}

/// The header of a message, without the credits that it will return.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) tag: Tag,
    pub(super) len: u64,
    pub(super) op: u64,
}

impl<T: Transport> Endpoint<T> {
    #[inline]
    pub(super) fn start_send(
        &mut self,
        peer: PeerId,
        kind: Kind,
        tag: Tag,
        list: MemList,
        options: Options,
    ) -> Result<Posted, Error> {
        let decision = cfg!(debug_assertions)
            .then(|| self.peers.get(peer.0).map(|record| self.decide(record, kind, tag, &list, options)))
            .flatten();
        if self.send_inline(peer, kind, tag, &list, options) {
            debug_assert_eq!(decision, Some(Decision::Send(SendPath::Inline)), "the short way differs");
            return Ok(Posted::Done(sent_immediately(peer, kind_of(kind), tag, &list, options)));
        }
        self.start_long_send(peer, kind, tag, list, options)
    }

    /// Posts a send of any kind.
    fn start_long_send(
        &mut self,
        peer: PeerId,
        kind: Kind,
        tag: Tag,
        list: MemList,
        options: Options,
    ) -> Result<Posted, Error> {
        let op_kind = kind_of(kind);
        self.check_send(peer, op_kind, &list).map_err(|error| error.during(op_kind.as_str()))?;
        let record = self.peers.get(peer.0).expect("checked");
        // A small message to an idle connection needs no record.
        let idle = record.queue.is_empty() && record.notices.is_empty() && record.is_up();
        if idle
            && let Decision::Send(path) = self.decide(record, kind, tag, &list, options)
            && let Attempt::Sent = self.send_by(path, peer, kind, tag, &list, options.class, None)
        {
            return Ok(Posted::Done(sent_immediately(peer, op_kind, tag, &list, options)));
        }
        let id = self.insert_op(op_kind, Some(peer), tag, Some(list), options, State::Queued);
        let record = self.peers.get_mut(peer.0).expect("checked");
        record.queue.push_back(id);
        self.pump(peer);
        if self.ops.get(id.0).is_some_and(|op| matches!(op.state, State::Queued)) {
            self.counters.credit_waits += 1;
        }
        Ok(self.posted(id))
    }

    /// The short way of a short message: one look at the peer, one post, no record. It does by
    /// itself what [`decide`] and `send_eager` do for `SendPath::Inline`. If anything is in the
    /// way, it returns false and has changed nothing. Then the long way finds the reason.
    #[inline]
    fn send_inline(&mut self, id: PeerId, kind: Kind, tag: Tag, list: &MemList, options: Options) -> bool {
        let Some(peer) = self.peers.get_mut(id.0) else { return false };
        let len = list.len();
        let short = len <= peer.limits.eager && HEADER_LEN + len <= self.max_inline;
        let idle = matches!(peer.link, Link::Up) && peer.queue.is_empty() && peer.notices.is_empty();
        if !short || !idle || options.slot || list.pieces().len() > self.config.limits.max_pieces {
            return false;
        }
        let cost = credit::cost(len);
        let Some(credit) = peer.credit.as_mut().filter(|credit| credit.can_spend(cost)) else { return false };
        credit.spend(cost);
        let returned = peer.grant.take();
        let header = Header { kind, returned, tag, len: len as u64, op: 0 }.encode();
        let (payload, options) =
            (Payload::Inline(list.pieces()), WorkOptions { signalled: false, class: options.class });
        if self.transport.post_send(peer.conn, Work::Silent.to_id(), &header, payload, options).is_err() {
            peer.grant.put_back(returned);
            credit.unspend(cost);
            return false;
        }
        (self.transmitted, peer.used) = (self.transmitted + 1, self.now);
        self.counters.bytes_sent += len as u64;
        if kind == Kind::Eager {
            self.counters.eager += 1;
            peer.sent_expected(tag);
        } else {
            self.counters.unexpected += 1;
        }
        true
    }

    fn check_send(&self, peer: PeerId, kind: OpKind, list: &MemList) -> Result<(), Error> {
        self.check_list(peer, list)?;
        let record = self.peers.get(peer.0).expect("checked");
        let limit = match (kind, record.is_up()) {
            (OpKind::SendUnexpected, true) => self.eager_limit(record).max(record.limits.fast) as u64,
            (OpKind::SendUnexpected, false) => self.config.credits.eager_limit as u64,
            (_, true) => record.limits.message,
            (_, false) => self.config.limits.max_message,
        };
        if list.len() as u64 > limit {
            let text = format!("{} bytes; at most {limit} are allowed", list.len());
            return Err(Error::new(ErrorKind::TooLong, text).with_peer(&record.addr));
        }
        Ok(())
    }

    /// Sends what is queued for a peer, as far as credits and the adapter allow.
    pub(super) fn pump(&mut self, peer_id: PeerId) {
        loop {
            let Some(peer) = self.peers.get(peer_id.0).filter(|peer| peer.is_up()) else { return };
            if let Some(notice) = peer.notices.front().copied() {
                if !self.send_notice(peer_id, notice) {
                    return;
                }
                continue;
            }
            let Some(id) = peer.queue.front().copied() else { break };
            match self.send_queued(peer_id, id) {
                Attempt::Blocked => return,
                Attempt::Sent => self.finish_send(id, Ok(())),
                Attempt::Failed(kind) => self.finish_send(id, Err(kind)),
                Attempt::Posted => self.op_is(id, State::Posted),
                Attempt::Announced(remote) => self.op_is(id, State::Announced(remote)),
            }
            if let Some(peer) = self.peers.get_mut(peer_id.0) {
                peer.queue.pop_front();
            }
        }
        self.close_if_drained(peer_id);
    }

    fn op_is(&mut self, id: OpId, state: State) {
        let op = self.ops.get_mut(id.0).expect("queued operations are there");
        op.state = state;
        if let Some(peer) = op.peer.and_then(|peer| self.peers.get_mut(peer.0)) {
            peer.busy += 1;
        }
    }

    fn finish_send(&mut self, id: OpId, status: Result<(), ErrorKind>) {
        let len = self.ops.get(id.0).map_or(0, Op::len);
        self.finish(id, status, len as u64);
    }

    /// Sends the message of an operation at the head of its queue.
    fn send_queued(&mut self, peer_id: PeerId, id: OpId) -> Attempt {
        let (Some(op), Some(peer)) = (self.ops.get(id.0), self.peers.get(peer_id.0)) else { return Attempt::Sent };
        let list = op.list.clone().expect("a queued send has its list");
        let (tag, options) = (op.tag, op.options);
        let kind = if op.kind == OpKind::SendUnexpected { Kind::Unexpected } else { Kind::Eager };
        match self.decide(peer, kind, tag, &list, options) {
            Decision::Send(path) => self.send_by(path, peer_id, kind, tag, &list, options.class, Some(id)),
            Decision::Wait(_) => Attempt::Blocked,
            Decision::TooLong => Attempt::Failed(ErrorKind::TooLong),
        }
    }

    /// Decides how a message leaves.
    fn decide(&self, peer: &Peer, kind: Kind, tag: Tag, list: &MemList, options: Options) -> Decision {
        let unexpected = kind == Kind::Unexpected;
        decide(&Outgoing { endpoint: self, peer, unexpected, tag, list, options })
    }

    /// Returns how an eager message leaves.
    pub(super) fn eager_path(&self, peer: PeerId, list: &MemList) -> SendPath {
        let peer = self.peers.get(peer.0).expect("the caller has it");
        eager_path(&Outgoing { endpoint: self, peer, unexpected: false, tag: 0, list, options: Options::default() })
    }

    /// Carries out a decision. Without an operation, only what completes at once is sent.
    #[expect(clippy::too_many_arguments, reason = "the parts of one message and its way")]
    fn send_by(
        &mut self,
        path: SendPath,
        peer: PeerId,
        kind: Kind,
        tag: Tag,
        list: &MemList,
        class: ServiceClass,
        id: Option<OpId>,
    ) -> Attempt {
        match (path, id) {
            (SendPath::Inline | SendPath::Copied, _) | (SendPath::Gathered, Some(_)) => {
                self.send_eager(path, peer, kind, tag, list, class, id)
            }
            (SendPath::Slot, _) => match (self.send_fast(peer, kind, tag, list, class, id), id) {
                // No staging buffer can be had.
                (Attempt::Failed(_), Some(id)) if kind == Kind::Eager => self.announce(peer, id, tag, list),
                (attempt, _) => attempt,
            },
            (SendPath::Offered, Some(id)) => self.send_into_offer(peer, id, tag, list, class),
            (SendPath::Announced, Some(id)) => self.announce(peer, id, tag, list),
            (SendPath::Gathered | SendPath::Offered | SendPath::Announced, None) => Attempt::Blocked,
        }
    }

    /// Sends a message with its payload, in the way that [`eager_path`] has chosen.
    #[expect(clippy::too_many_arguments, reason = "the parts of one message and its way")]
    pub(super) fn send_eager(
        &mut self,
        path: SendPath,
        peer: PeerId,
        kind: Kind,
        tag: Tag,
        list: &MemList,
        class: ServiceClass,
        id: Option<OpId>,
    ) -> Attempt {
        let record = self.peers.get_mut(peer.0).expect("the caller has it");
        let cost = credit::cost(list.len());
        if !record.credit.as_mut().is_some_and(|credit| credit.spend(cost)) {
            return Attempt::Blocked;
        }
        let message = Message { kind, tag, len: list.len() as u64, op: 0 };
        let unsignalled = WorkOptions { signalled: false, class };
        let attempt = match (path, id) {
            (SendPath::Inline, _) => self
                .transmit(peer, message, &[], Payload::Inline(list.pieces()), Work::Silent, unsignalled)
                .map(|()| Attempt::Sent),
            (SendPath::Gathered, Some(id)) => self.send_gathered(peer, message, list, id, class),
            _ => self.send_bounced(peer, message, list, class),
        };
        self.sent_eager(peer, message, cost, attempt)
    }

    /// Counts a message that was sent, or gives its credits back.
    fn sent_eager(
        &mut self,
        peer: PeerId,
        message: Message,
        cost: u32,
        attempt: Result<Attempt, PostError>,
    ) -> Attempt {
        let Message { kind, tag, len, .. } = message;
        match attempt {
            Ok(attempt @ (Attempt::Sent | Attempt::Posted)) => {
                let counter =
                    if kind == Kind::Unexpected { &mut self.counters.unexpected } else { &mut self.counters.eager };
                *counter += 1;
                self.counters.bytes_sent += len;
                if kind == Kind::Eager {
                    self.sent_expected(peer, tag);
                }
                attempt
            }
            Ok(attempt) => {
                self.unspend(peer, cost);
                attempt
            }
            Err(error) => {
                self.unspend(peer, cost);
                self.refused(peer, error)
            }
        }
    }

    fn send_gathered(
        &mut self,
        peer: PeerId,
        message: Message,
        list: &MemList,
        id: OpId,
        class: ServiceClass,
    ) -> Result<Attempt, PostError> {
        self.segments.clear();
        for piece in list.pieces() {
            match self.registry.register(&mut self.transport, piece.memory()) {
                Ok(region) => self.segments.push(region.into_segment(piece.offset(), piece.len())),
                Err(_) => {
                    self.segments.clear();
                    return self.send_bounced(peer, message, list, class);
                }
            }
        }
        let segments = std::mem::take(&mut self.segments);
        let options = WorkOptions { signalled: true, class };
        let posted = self.transmit(peer, message, &[], Payload::Gather(&segments), Work::Op(id), options);
        self.segments = segments;
        self.segments.clear();
        posted.map(|()| {
            self.work += 1;
            Attempt::Posted
        })
    }

    fn send_bounced(
        &mut self,
        peer: PeerId,
        message: Message,
        list: &MemList,
        class: ServiceClass,
    ) -> Result<Attempt, PostError> {
        let Some((slot, segment)) = self.bounce.fill(list) else { return Err(PostError::QueueFull) };
        self.transport.charge(HostWork::copy(list.len(), list));
        let options = WorkOptions { signalled: true, class };
        let posted = self.transmit(peer, message, &[], Payload::Gather(&[segment]), Work::Bounce(slot), options);
        if posted.is_err() {
            self.bounce.free(slot);
        }
        posted.map(|()| Attempt::Sent)
    }

    /// Announces a message that the peer will read.
    fn announce(&mut self, peer_id: PeerId, id: OpId, tag: Tag, list: &MemList) -> Attempt {
        let Some(list) = self.describable(peer_id, id, list) else { return Attempt::Failed(ErrorKind::Exhausted) };
        let cost = credit::cost(list.pieces().len() * RemoteSlice::WIRE_LEN);
        let record = self.peers.get_mut(peer_id.0).expect("the caller has it");
        if !record.credit.as_mut().is_some_and(|credit| credit.spend(cost)) {
            return Attempt::Blocked;
        }
        let remote = match self.expose_send(peer_id, id, &list) {
            Ok(remote) => remote,
            Err(error) => {
                self.unspend(peer_id, cost);
                return Attempt::Failed(error.kind());
            }
        };
        let message = Message { kind: Kind::Announce, tag, len: list.len() as u64, op: timing::name_of(id) };
        match self.transmit_pieces(peer_id, message, remote.as_slice()) {
            Ok(()) => {
                self.counters.rendezvous += 1;
                self.count_stand_in(id);
                self.sent_expected(peer_id, tag);
                self.counters.bytes_sent += list.len() as u64;
                Attempt::Announced(remote)
            }
            Err(error) => {
                self.revoke_all(peer_id, remote.as_slice());
                self.forget_stand_in(id);
                self.unspend(peer_id, cost);
                self.refused(peer_id, error)
            }
        }
    }

    /// Returns true if an announcement has room for the pieces of a list.
    pub(super) fn is_describable(&self, peer: &Peer, list: &MemList) -> bool {
        let room = self.eager_limit(peer) / RemoteSlice::WIRE_LEN;
        list.pieces().len() <= room.min(peer.limits.pieces)
    }

    /// Returns the list. If it has more pieces than an announcement has room for, a copy in one
    /// piece takes its place.
    fn describable(&mut self, peer: PeerId, id: OpId, list: &MemList) -> Option<MemList> {
        if self.is_describable(self.peers.get(peer.0)?, list) {
            return Some(list.clone());
        }
        let packed = Memory::zeroed(list.len()).ok()?;
        let mut at = 0;
        for piece in list.pieces() {
            at += packed.slice(at, piece.len()).copy_from_slice_of(piece);
        }
        self.transport.charge(HostWork::copy(list.len(), list));
        self.counters.packed += 1;
        let packed = MemList::from(packed);
        self.ops.get_mut(id.0)?.list = Some(packed.clone());
        Some(packed)
    }

    /// Sends an announcement or a ClearToWrite. A few pieces fit into the head of the work request,
    /// many go into a send slot.
    pub(super) fn transmit_pieces(
        &mut self,
        peer: PeerId,
        message: Message,
        pieces: &[RemoteSlice],
    ) -> Result<(), PostError> {
        let unsignalled = WorkOptions { signalled: false, class: ServiceClass::Message };
        if pieces.len() <= pieces_in_head(self.transport.capabilities()).min(8) {
            let mut table = [0; 8 * RemoteSlice::WIRE_LEN];
            for (wire, piece) in table.chunks_exact_mut(RemoteSlice::WIRE_LEN).zip(pieces) {
                wire.copy_from_slice(&piece.to_wire());
            }
            let table = &table[..pieces.len() * RemoteSlice::WIRE_LEN];
            return self.transmit(peer, message, table, Payload::EMPTY, Work::Silent, unsignalled);
        }
        let table: Vec<u8> = pieces.iter().flat_map(RemoteSlice::to_wire).collect();
        let Some((slot, segment)) = self.bounce.fill(&MemList::from(table)) else { return Err(PostError::QueueFull) };
        let posted =
            self.transmit(peer, message, &[], Payload::Gather(&[segment]), Work::Bounce(slot), WorkOptions::SIGNALLED);
        if posted.is_err() {
            self.bounce.free(slot);
        }
        posted
    }

    /// Sends the notice at the head of the queue. Returns true if it was sent.
    fn send_notice(&mut self, peer_id: PeerId, notice: Notice) -> bool {
        let message = match notice {
            Notice::Ready { op } => return self.send_ready(peer_id, op),
            Notice::FastSlots => return self.send_slots(peer_id),
            Notice::ClearToWrite { op } => return self.send_clear_to_write(peer_id, op),
            Notice::Answer { name, area } => return self.send_answer(peer_id, name, area),
            Notice::Written { op, len } => Message { kind: Kind::Written, tag: 0, len, op },
            Notice::Withdraw { op } => Message { kind: Kind::Withdraw, tag: 0, len: 0, op },
            Notice::Withdrawn { op } => Message { kind: Kind::Withdrawn, tag: 0, len: 0, op },
            Notice::Finish { op, status, len } => Message { kind: Kind::Finish, tag: status as u64, len, op },
            Notice::Cancelled { op } => Message { kind: Kind::Finish, tag: FinishStatus::Cancelled as u64, len: 0, op },
            Notice::Cancel { op } => Message { kind: Kind::Cancel, tag: 0, len: 0, op },
        };
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        if !peer.credit.as_mut().is_some_and(|credit| credit.spend_message()) {
            return false;
        }
        if let Err(error) = self.transmit_control(peer_id, message) {
            self.unspend(peer_id, 0);
            self.refused(peer_id, error);
            return false;
        }
        if let Some(peer) = self.peers.get_mut(peer_id.0) {
            peer.notices.pop_front();
            peer.answers -= usize::from(matches!(notice, Notice::Cancelled { .. } | Notice::Withdrawn { .. }));
        }
        true
    }

    /// Returns credits in a message of their own, if they must go back.
    pub(super) fn return_credits(&mut self, peer_id: PeerId) {
        let Some(peer) = self.peers.get_mut(peer_id.0).filter(|peer| peer.is_up()) else { return };
        let returns_control = peer.grant.returns_control();
        if !peer.grant.is_pressing()
            || !peer.credit.as_mut().is_some_and(|credit| credit.spend_control(returns_control))
        {
            return;
        }
        match self.transmit_control(peer_id, Message { kind: Kind::Credit, tag: 0, len: 0, op: 0 }) {
            Ok(()) => self.counters.credit_messages += 1,
            Err(error) => {
                if let Some(credit) = self.peers.get_mut(peer_id.0).and_then(|peer| peer.credit.as_mut()) {
                    credit.unspend_control();
                }
                self.refused(peer_id, error);
            }
        }
    }

    pub(super) fn transmit_control(&mut self, peer: PeerId, message: Message) -> Result<(), PostError> {
        let options = WorkOptions { signalled: false, class: ServiceClass::Control };
        self.transmit(peer, message, &[], Payload::EMPTY, Work::Silent, options)
    }

    /// Posts a message. Its header returns the credits that wait to go back.
    pub(super) fn transmit(
        &mut self,
        peer: PeerId,
        message: Message,
        more_head: &[u8],
        payload: Payload<'_>,
        work: Work,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let peer = self.peers.get_mut(peer.0).ok_or(PostError::NotConnected)?;
        let returned = peer.grant.take();
        let Message { kind, tag, len, op } = message;
        let header = Header { kind, returned, tag, len, op }.encode();
        let posted = if more_head.is_empty() {
            self.transport.post_send(peer.conn, work.to_id(), &header, payload, options)
        } else {
            let mut head = [0; HEADER_LEN + 8 * RemoteSlice::WIRE_LEN];
            head[..HEADER_LEN].copy_from_slice(&header);
            head[HEADER_LEN..][..more_head.len()].copy_from_slice(more_head);
            self.transport.post_send(peer.conn, work.to_id(), &head[..HEADER_LEN + more_head.len()], payload, options)
        };
        match posted {
            Ok(()) => (self.transmitted, peer.used) = (self.transmitted + 1, self.now),
            Err(_) => peer.grant.put_back(returned),
        }
        posted
    }

    /// Handles a post that the transport refused.
    pub(super) fn refused(&mut self, peer: PeerId, error: PostError) -> Attempt {
        match error {
            PostError::QueueFull => self.block(peer),
            // The event that ends the connection is on its way.
            PostError::NotConnected => {}
            PostError::Invalid(why) => {
                tracing::error!(peer = ?peer, why, "the transport calls a message invalid");
                debug_assert!(false, "the transport calls a message invalid: {why}");
                return Attempt::Failed(ErrorKind::Unsupported);
            }
        }
        Attempt::Blocked
    }

    /// Marks a peer whose queue is full. It is tried again when the adapter has made progress.
    pub(super) fn block(&mut self, peer: PeerId) {
        if !self.blocked.contains(&peer) {
            self.blocked.push(peer);
        }
    }

    pub(super) fn unspend(&mut self, peer: PeerId, cost: u32) {
        if let Some(credit) = self.peers.get_mut(peer.0).and_then(|peer| peer.credit.as_mut()) {
            credit.unspend(cost);
        }
    }

    /// Ends an eager send that the adapter has completed.
    pub(super) fn eager_done(&mut self, id: OpId, peer_id: PeerId) {
        self.finish_send(id, Ok(()));
        self.no_longer_busy(peer_id);
    }

    /// Counts down the operations that `Closing` waits for.
    pub(super) fn no_longer_busy(&mut self, peer_id: PeerId) {
        if let Some(peer) = self.peers.get_mut(peer_id.0) {
            peer.busy -= 1;
            peer.steps += 1;
            if matches!(peer.link, Link::Closing(_)) {
                self.mark_dirty(peer_id);
            }
        }
    }
}

/// Returns the kind of a message's operation.
fn kind_of(kind: Kind) -> OpKind {
    if kind == Kind::Unexpected { OpKind::SendUnexpected } else { OpKind::Send }
}

/// Returns the completion of a message that needed no record.
#[inline]
fn sent_immediately(peer: PeerId, kind: OpKind, tag: Tag, list: &MemList, options: Options) -> Completion {
    let len = list.len() as u64;
    Completion { op: OpId::NONE, kind, peer: Some(peer), tag, len, status: Ok(()), user: options.user }
}

/// Returns true if everything that was posted to the peer is sent.
pub(super) fn is_drained(peer: &Peer) -> bool {
    peer.queue.is_empty() && peer.notices.is_empty() && peer.busy == 0
}
