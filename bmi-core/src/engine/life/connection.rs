//! Connections: hello, agreement, orderly disconnect, and all other ways in which a peer is lost.
//!
//! **Protocol.** Receives are posted before the hello is sent or answered, so that the first
//! message finds one. The hello is the private data of connect and accept. A refusal is the private
//! data of reject (see [`crate::wire::hello`]).

use crate::addr::Addr;
use crate::engine::Engine;
use crate::engine::adapter::AdapterSide;
use crate::engine::books::{End, Link, Notice, Op, Operations, Peer, PeerEvent, State};
use crate::engine::buffers::ReceiveSlots;
use crate::engine::bulk::{pacing, transfer};
use crate::engine::ending::finish;
use crate::error::{Error, ErrorKind};
use crate::identity::{Newcomer, PeerIdentity};
use crate::mutated;
use crate::op::{OpId, OpKind, Options, PeerId};
use crate::transport::{ConnId, Transport};
use crate::wire::hello::{Hello, decode_refusal, encode_refusal};

impl Engine {
    pub(in crate::engine) fn start_connect(&mut self, addr: &Addr, options: Options) -> Result<(PeerId, OpId), Error> {
        self.check_open()?;
        let Self { adapter, ops, .. } = self;
        let deadline = options.deadline.unwrap_or(adapter.now + adapter.config.timeouts.connect);
        let hello = Hello::of(&adapter.config);
        let slots = make_slots(adapter)?;
        let conn = adapter.transport.connect(addr, &hello.encode(), deadline)?;
        let options = Options { deadline: Some(deadline), ..options };
        let id = ops.post(OpKind::Connect, None, 0, None, options, State::Waiting);
        let peer = self.insert_peer(conn, addr.clone(), Link::Connecting(id), slots);
        if let Some(op) = self.ops.get_mut(id) {
            op.peer = Some(peer);
        }
        Ok((peer, id))
    }

    pub(in crate::engine) fn start_disconnect(&mut self, id: PeerId, options: Options) -> Result<OpId, Error> {
        let Self { adapter, ops, peers, .. } = self;
        let peer = peers.open_mut(id).map_err(|error| error.during("disconnect"))?;
        let deadline = options.deadline.unwrap_or(adapter.now + adapter.config.timeouts.fence_grace);
        let options = Options { deadline: Some(deadline), ..options };
        let op = ops.post(OpKind::Disconnect, Some(id), 0, None, options, State::Waiting);
        if matches!(peer.link, Link::Up) {
            peer.link.enter(Link::Closing(op));
            peers.mark_dirty(id);
        } else {
            // The connection is not up yet, so there is nothing to drain.
            adapter.transport.disconnect(peer.conn, adapter.now);
        }
        Ok(op)
    }

    /// Handles the connection request of a peer.
    pub(in crate::engine) fn on_request(&mut self, conn: ConnId, from: Addr, identity: PeerIdentity, private: &[u8]) {
        // First, so that who is not let in learns nothing else.
        let admitted = admit(&self.adapter, &Newcomer::new(&identity, &from, false));
        let hello = admitted.and_then(|()| Hello::decode_for(private, self.adapter.config.protocol));
        let accepted = hello.and_then(|hello| self.accept(conn, &from, identity, &hello));
        if let Err(error) = accepted {
            let AdapterSide { transport, log, now, .. } = &mut self.adapter;
            if log.admits("connection refused", from.host(), *now) {
                tracing::warn!(%from, %error, "connection refused");
            }
            transport.reject(conn, &encode_refusal(&error));
        }
    }

    fn accept(&mut self, conn: ConnId, from: &Addr, identity: PeerIdentity, hello: &Hello) -> Result<(), Error> {
        self.check_open()?;
        self.make_room_for_peer()?;
        let slots = make_slots(&mut self.adapter)?;
        let id = self.insert_peer(conn, from.clone(), Link::Accepting, slots);
        let Self { adapter, peers, .. } = self;
        if let Some(peer) = peers.get_mut(id) {
            peer.agree(hello, &adapter.config);
            peer.identity = identity;
        }
        let accepted = adapter.transport.accept(conn, &Hello::of(&adapter.config).encode());
        if accepted.is_err() {
            peers.remove(id);
        }
        accepted
    }

    pub(in crate::engine) fn on_established(&mut self, conn: ConnId, identity: PeerIdentity, private: &[u8]) {
        let Some(id) = self.peers.of_conn(conn) else { return };
        let Self { adapter, ops, peers, .. } = self;
        let Some(peer) = peers.get_mut(id) else { return };
        if peer.outgoing {
            if let Err(error) = admit(adapter, &Newcomer::new(&identity, &peer.addr, true)) {
                return adapter.cut(peer, error);
            }
            peer.identity = identity;
            match Hello::decode_for(private, adapter.config.protocol) {
                Ok(hello) => peer.agree(&hello, &adapter.config),
                Err(error) => return adapter.cut(peer, error),
            }
        }
        if peer.cut_reason.is_some() {
            return;
        }
        let before = peer.link.enter(Link::Up);
        if peer.takes_slots
            && adapter.config.tuning.fast_slots > 0
            && adapter.transport.capabilities().write_with_immediate
        {
            peer.notify(Notice::FastSlots);
        }
        let (addr, identity, outgoing) = (peer.addr.clone(), peer.identity.clone(), peer.outgoing);
        tracing::debug!(peer = %addr, %identity, outgoing, "connected");
        if let Link::Connecting(op) = before {
            finish(adapter, ops, Some(peer), End { op, status: Ok(()), len: 0 });
        }
        peers.push_event(PeerEvent::Connected { peer: id, addr, identity, outgoing });
        self.begin_bulk_that_waited(id);
        self.peers.mark_dirty(id);
    }

    /// Starts the pulls and pushes that waited for the connection. They start before any message.
    fn begin_bulk_that_waited(&mut self, id: PeerId) {
        let Self { ops, peers, .. } = self;
        let is_bulk = |id: &OpId| ops.get(*id).is_some_and(|op| matches!(op.kind, OpKind::Pull | OpKind::Push));
        let Some(peer) = peers.get_mut(id) else { return };
        let (bulk, messages): (Vec<OpId>, Vec<OpId>) = peer.queue.drain(..).partition(is_bulk);
        peer.queue.extend(messages);
        for op in bulk {
            self.handle(id, |adapter, ops, peer| Ok(transfer::begin_queued(adapter, ops, peer, op)));
        }
    }

    pub(in crate::engine) fn on_rejected(&mut self, conn: ConnId, private: &[u8]) {
        if let Some(peer) = self.peers.of_conn(conn) {
            self.lose(peer, decode_refusal(private));
        }
    }

    pub(in crate::engine) fn on_disconnected(&mut self, conn: ConnId, reason: Error) {
        if let Some(peer) = self.peers.of_conn(conn) {
            self.lose(peer, reason);
        }
    }

    /// Ends everything on a connection that is gone.
    fn lose(&mut self, id: PeerId, reason: Error) {
        let Self { adapter, ops, peers, inbox, sweeps, .. } = self;
        let Some(peer) = peers.remove(id) else { return };
        let reason = peer.cut_reason.clone().unwrap_or(reason);
        tracing::debug!(peer = %peer.addr, %reason, "connection gone");
        peers.remember_lost(&peer, &reason);
        end_all_of(adapter, ops, &peer, &reason);
        inbox.drop_all_of(id);
        sweeps.note_lost_peer(adapter);
        peers.push_event(PeerEvent::Lost { peer: id, reason: reason.with_peer(&peer.addr) });
    }

    /// Inserts a peer's record and posts its receives.
    fn insert_peer(&mut self, conn: ConnId, addr: Addr, link: Link, slots: ReceiveSlots) -> PeerId {
        let Self { adapter, peers, .. } = self;
        let (config, now) = (&adapter.config, adapter.now);
        let id = peers.insert(conn, |id| Peer::new(id, conn, addr, link, slots, config, now));
        if let Some(peer) = peers.get_mut(id) {
            adapter.post_all_slots(peer);
        }
        id
    }
}

/// Asks the program whether it lets a peer in.
fn admit(adapter: &AdapterSide, newcomer: &Newcomer<'_>) -> Result<(), Error> {
    let admitted = adapter.config.peer_policy.decide(newcomer);
    let admitted = admitted.or_else(|why| if mutated("identity/refused-and-let-in") { Ok(()) } else { Err(why) });
    admitted.map_err(|why| Error::new(ErrorKind::Denied, why))
}

fn make_slots(adapter: &mut AdapterSide) -> Result<ReceiveSlots, Error> {
    let AdapterSide { transport, registry, config, .. } = adapter;
    let hello = Hello::of(config);
    let count = usize::from(hello.messages) + usize::from(hello.control);
    registry.register_own(|| ReceiveSlots::new(transport, count, config.credits.eager_limit))
}

/// Ends all operations of a peer whose connection is gone. No adapter accesses their memory any
/// more.
fn end_all_of(adapter: &mut AdapterSide, ops: &mut Operations, peer: &Peer, reason: &Error) {
    let unended = |op: &Op| op.peer == Some(peer.id) && !op.is_done();
    let ids: Vec<OpId> = ops.iter().filter(|(_, op)| unended(op)).map(|(id, _)| id).collect();
    pacing::settle(adapter, peer);
    for id in ids.into_iter().skip(usize::from(mutated("lost/operation-left"))) {
        let Some(op) = ops.get_mut(id) else { continue };
        if let Some((buffer, _)) = op.transfer_mut().and_then(|transfer| transfer.open.staged.take()) {
            adapter.packing.free(buffer);
        }
        let status = end_with_peer(op, peer, reason);
        finish(adapter, ops, None, End { op: id, status, len: 0 });
    }
}

/// Returns the status of an operation whose peer is lost.
fn end_with_peer(op: &Op, peer: &Peer, reason: &Error) -> Result<(), ErrorKind> {
    match (op.kind, op.ending) {
        (OpKind::Disconnect, _) => Ok(()),
        (_, Some(kind)) => Err(kind),
        (OpKind::Connect, None) => Err(reason.kind()),
        (OpKind::Recv | OpKind::Discard, None) if matches!(peer.link, Link::Closing(_)) => Err(ErrorKind::Cancelled),
        (_, None) if matches!(reason.kind(), ErrorKind::Refused | ErrorKind::Denied) => Err(reason.kind()),
        _ => Err(ErrorKind::PeerLost),
    }
}
