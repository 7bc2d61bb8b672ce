//! Connections: hello, agreement, orderly disconnect, and all other ways in which a peer is lost.
//!
//! **Protocol.** Receives are posted before the hello is sent or answered, so that the first
//! message finds one. The hello is the private data of connect and accept. A refusal is the private
//! data of reject (see `proto::hello`).

use std::collections::VecDeque;
use std::sync::Arc;

use super::calls::Calls;
use super::op::State;
use super::pacing::Moving;
use super::peer::{Link, Notice, Peer, Repost};
use super::send::is_drained;
use super::work::Work;
use super::{Endpoint, KEPT_EVENTS, PeerEvent, PeerLimits};
use crate::addr::Addr;
use crate::error::Error;
use crate::mutated;
use crate::op::{OpId, OpKind, Options, PeerId};
use crate::proto::credit::{Credit, CreditAccount};
use crate::proto::hello::{FAST_SLOTS, Hello, PROBES, WRITE_RENDEZVOUS, decode_refusal, encode_refusal};
use crate::proto::matching::Matching;
use crate::proto::receive_slots::ReceiveSlots;
use crate::time::Time;
use crate::transport::{ConnId, Transport};

/// Number of lost peers whose address and reason are remembered for errors.
const KEPT_LOST: usize = 256;

impl<T: Transport> Endpoint<T> {
    pub(super) fn start_connect(&mut self, addr: &Addr, options: Options) -> Result<(PeerId, OpId), Error> {
        let options =
            Options { deadline: Some(options.deadline.unwrap_or(self.now + self.config.timeouts.connect)), ..options };
        let hello = Hello::of(&self.config);
        let slots = self.make_slots()?;
        let conn = self.transport.connect(addr, &hello.encode(), options.deadline.expect("set above"))?;
        let peer = self.insert_peer(conn, addr.clone(), true, Link::Accepting, slots);
        let op = self.insert_op(OpKind::Connect, Some(peer), 0, None, options, State::Waiting);
        self.peers.get_mut(peer.0).expect("just made").link = Link::Connecting(op);
        Ok((peer, op))
    }

    pub(super) fn start_disconnect(&mut self, peer: PeerId, options: Options) -> Result<OpId, Error> {
        let open = self.peers.get(peer.0).is_some_and(Peer::is_open);
        if !open {
            return Err(self.lost_error(peer).during("disconnect"));
        }
        let deadline = options.deadline.unwrap_or(self.now + self.config.timeouts.fence_grace);
        let options = Options { deadline: Some(deadline), ..options };
        let id = self.insert_op(OpKind::Disconnect, Some(peer), 0, None, options, State::Waiting);
        let record = self.peers.get_mut(peer.0).expect("checked");
        match std::mem::replace(&mut record.link, Link::Closing(id)) {
            Link::Up => self.mark_dirty(peer),
            // The connection is not up yet, so there is nothing to drain.
            before => {
                record.link = before;
                self.transport.disconnect(record.conn, self.now);
            }
        }
        Ok(id)
    }

    /// Ends a closing connection once everything has been sent.
    pub(super) fn close_if_drained(&mut self, peer: PeerId) {
        let Some(record) = self.peers.get(peer.0) else { return };
        if let Link::Closing(op) = record.link
            && (is_drained(record) || mutated("disconnect/before-all-is-sent"))
        {
            let deadline = self.ops.get(op.0).and_then(|op| op.options.deadline).unwrap_or(self.now);
            self.transport.disconnect(record.conn, deadline);
        }
    }

    /// Ends a connection at once, without sending what is queued. Its operations end with
    /// `PeerLost`, and [`PeerEvent::Lost`] has the reason. The call is ignored for a peer that is
    /// gone.
    pub fn cut(&mut self, peer: PeerId, reason: Error) {
        let Some(record) = self.peers.get_mut(peer.0) else { return };
        if record.cut_reason.is_none() {
            if self.log.admits("connection cut", record.addr.host(), self.now) {
                tracing::warn!(peer = %record.addr, %reason, "connection cut");
            }
            record.cut_reason = Some(reason);
        }
        if record.is_up() {
            record.link = Link::Cut;
        }
        self.transport.disconnect(record.conn, Time::ZERO);
    }

    /// Handles the connection request of a peer.
    pub(super) fn on_request(&mut self, conn: ConnId, from: Addr, private: &[u8]) {
        let accepted = Hello::decode(private).and_then(|hello| self.accept(conn, &from, &hello));
        if let Err(error) = accepted {
            if self.log.admits("connection refused", from.host(), self.now) {
                tracing::warn!(%from, %error, "connection refused");
            }
            self.transport.reject(conn, &encode_refusal(&error));
        }
    }

    fn accept(&mut self, conn: ConnId, from: &Addr, hello: &Hello) -> Result<(), Error> {
        self.make_room_for_peer()?;
        let slots = self.make_slots()?;
        let peer = self.insert_peer(conn, from.clone(), false, Link::Accepting, slots);
        self.agree(peer, hello);
        let accepted = self.transport.accept(conn, &Hello::of(&self.config).encode());
        if accepted.is_err() {
            self.remove_peer(peer);
        }
        accepted
    }

    /// Records what a peer's hello allows.
    fn agree(&mut self, peer: PeerId, hello: &Hello) {
        let record = self.peers.get_mut(peer.0).expect("the caller has it");
        record.credit = Some(Credit::granted_by(hello));
        record.takes_slots = hello.has(FAST_SLOTS);
        record.understands_write_rendezvous = hello.has(WRITE_RENDEZVOUS);
        record.areas.understood = hello.has(PROBES);
        record.limits = PeerLimits {
            eager: match mutated("hello/own-limit-only") {
                true => self.config.credits.eager_limit,
                false => self.config.credits.eager_limit.min(hello.eager as usize),
            },
            fast: 0,
            message: self.config.limits.max_message.min(hello.message),
            pieces: self.config.limits.max_pieces.min(hello.pieces as usize),
        };
    }

    pub(super) fn on_established(&mut self, conn: ConnId, private: &[u8]) {
        let Some(peer) = self.peer_of(conn) else { return };
        let record = self.peers.get_mut(peer.0).expect("peers of connections are there");
        let (addr, outgoing) = (record.addr.clone(), record.outgoing);
        if outgoing {
            match Hello::decode(private) {
                Ok(hello) => self.agree(peer, &hello),
                Err(error) => return self.cut(peer, error),
            }
        }
        let record = self.peers.get_mut(peer.0).expect("peers of connections are there");
        if record.cut_reason.is_some() {
            return;
        }
        let before = std::mem::replace(&mut record.link, Link::Up);
        if record.takes_slots
            && self.config.credits.fast_slots > 0
            && self.transport.capabilities().write_with_immediate
        {
            record.notices.push_back(Notice::FastSlots);
        }
        tracing::debug!(peer = %addr, outgoing, "connected");
        self.push_event(PeerEvent::Connected { peer, addr, outgoing });
        if let Link::Connecting(op) = before {
            self.finish(op, Ok(()), 0);
        }
        self.start_bulk_that_waited(peer);
        self.mark_dirty(peer);
    }

    /// Starts the pulls and pushes that waited for the connection. They start before any message.
    fn start_bulk_that_waited(&mut self, peer: PeerId) {
        let record = self.peers.get_mut(peer.0).expect("the caller has it");
        let is_bulk = |id: &OpId| self.ops.get(id.0).is_some_and(|op| matches!(op.kind, OpKind::Pull | OpKind::Push));
        let (bulk, messages): (VecDeque<OpId>, _) = record.queue.drain(..).partition(is_bulk);
        record.queue = messages;
        for id in bulk {
            self.start_queued_bulk(id);
        }
    }

    pub(super) fn on_rejected(&mut self, conn: ConnId, private: &[u8]) {
        if let Some(peer) = self.peer_of(conn) {
            self.lose(peer, decode_refusal(private));
        }
    }

    pub(super) fn on_disconnected(&mut self, conn: ConnId, reason: Error) {
        if let Some(peer) = self.peer_of(conn) {
            self.lose(peer, reason);
        }
    }

    /// Ends everything on a connection that is gone.
    fn lose(&mut self, peer: PeerId, reason: Error) {
        let Some(record) = self.remove_peer(peer) else { return };
        let reason = record.cut_reason.clone().unwrap_or(reason);
        tracing::debug!(peer = %record.addr, %reason, "connection gone");
        if self.lost.len() == KEPT_LOST {
            self.lost.pop_front();
        }
        self.lost.push_back((peer, record.addr.clone(), reason.clone()));
        self.end_all_of(peer, &record, &reason);
        self.drop_unexpected_of(peer);
        self.note_lost_memory();
        self.push_event(PeerEvent::Lost { peer, reason: reason.with_peer(&record.addr) });
    }

    fn push_event(&mut self, event: PeerEvent) {
        if self.peer_events.len() == KEPT_EVENTS {
            self.peer_events.pop_front();
        }
        self.peer_events.push_back(event);
    }

    fn make_slots(&mut self) -> Result<ReceiveSlots, Error> {
        let hello = Hello::of(&self.config);
        let count = usize::from(hello.messages) + usize::from(hello.control);
        self.registry.register_own(|| ReceiveSlots::new(&mut self.transport, count, self.config.credits.eager_limit))
    }

    /// Inserts a peer's record and posts its receives.
    fn insert_peer(&mut self, conn: ConnId, addr: Addr, outgoing: bool, link: Link, slots: ReceiveSlots) -> PeerId {
        let grant = CreditAccount::of(&Hello::of(&self.config));
        let limits = PeerLimits {
            eager: self.config.credits.eager_limit,
            fast: 0,
            message: self.config.limits.max_message,
            pieces: self.config.limits.max_pieces,
        };
        let mut unposted = Vec::new();
        for slot in 0..slots.count() {
            let work = Work::Slot(u32::try_from(slot).expect("few slots")).to_id();
            if let Err(error) = self.transport.post_alike(conn, work, slots.segment(slot)) {
                tracing::debug!(?error, slot, "a receive waits");
                unposted.push((slot, Repost::First));
            }
        }
        let peer = PeerId(self.peers.insert(Peer {
            conn,
            addr,
            outgoing,
            link,
            limits,
            credit: None,
            grant,
            slots,
            unposted,
            held: 0,
            slot_use: Default::default(),
            takes_slots: false,
            understands_write_rendezvous: false,
            areas: Default::default(),
            fast: None,
            their_fast: None,
            notices: VecDeque::new(),
            answers: 0,
            queue: VecDeque::new(),
            offers: Default::default(),
            ready: Matching::new(),
            unseen: Vec::new(),
            sent: 0,
            seen: 0,
            posted: Matching::new(),
            parked: Matching::new(),
            parked_bytes: 0,
            warned_of_parked: false,
            calls: Calls::default(),
            busy: 0,
            exposures: 0,
            moving: Moving::default(),
            steps: 0,
            dirty: false,
            cut_reason: None,
            used: self.now,
            kept: Arc::default(),
            leaving: false,
        }));
        let at = conn.slot as usize;
        if self.by_conn.len() <= at {
            self.by_conn.resize(at + 1, None);
        }
        self.by_conn[at] = Some((conn, peer));
        self.block(peer);
        peer
    }

    fn remove_peer(&mut self, peer: PeerId) -> Option<Peer> {
        let record = self.peers.remove(peer.0)?;
        self.idle.leaving -= usize::from(record.leaving);
        let entry = &mut self.by_conn[record.conn.slot as usize];
        if entry.is_some_and(|(conn, _)| conn == record.conn) {
            *entry = None;
        }
        Some(record)
    }

    /// Returns the peer at the other end of a connection.
    pub(super) fn peer_of(&self, conn: ConnId) -> Option<PeerId> {
        let (known, peer) = (*self.by_conn.get(conn.slot as usize)?)?;
        (known == conn).then_some(peer)
    }
}
