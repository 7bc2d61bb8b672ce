//! How connections are made and how they end: listening, dialing, the handshake on the side
//! channel, draining.
//!
//! **Protocol** of a connection's phases; `!` marks the end.
//!
//! ```text
//!   connect() -> Dialing --socket connected: CONNECT--> Greeting --ACCEPT--> Routing --connected: READY--> Established
//!                   '--refused, deadline--> !              '--REJECT, deadline--> !  '--no route, an end--> !
//!
//!   listener -> HalfOpen --CONNECT--> Requested --accept()--> Routing --connected: ACCEPT--> Accepted
//!                  '--garbage, time--> !   '--reject(), peer gone--> !   '--no route, an end--> !
//!   Accepted --READY or first message--> Established
//!       '--time--> Draining
//!
//!   Established --disconnect()--> Closing --all is sent--> Draining --flushed--> !
//!        '--a failure, BYE, the peer's end, disconnect() without time-----^
//! ```
//!
//! The accepting side's queue pair is ready to send before the connecting side's queue pair can
//! receive, so the accepting side waits for READY. While a connection is in the phase Routing, a
//! helper thread connects its queue pair ([`Helpers`](bmi_backend::Helpers)). Nothing may destroy
//! the queue pair meanwhile. So if the connection ends, the end is reported when the thread is
//! done, which takes about a second if no host has the address that the peer named. While a
//! connection drains, its queue pair is in the error state, and every request comes back flushed.
//! If the adapter reports that the queue pair failed but not why, draining also waits for the
//! peer's reason, which comes over the side channel.
//!
//! **Invariants**
//! 1. A half-open side channel owns a buffer for one message and nothing more. There are at most
//!    `max_half_open` of them. If there is no place for one more, [`bmi_backend::HalfOpen`] says
//!    which one must go.
//! 2. A queue pair exists from `connect` on, or from the arrival of the complete, valid greeting
//!    on. It is destroyed before the end is reported.
//! 3. Every phase except Requested and Established has a deadline. The phase Routing has none once
//!    the connection has ended: the thread's call is over in time.
//!
//! **Tests**: the conformance suite, `tests/it/faults.rs`, `tests/it/side_channel.rs`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use bmi_backend::net::{self, Answer};
use bmi_backend::{Outcome, Place, Round, check_private, check_scheme, listen_failed, request_gone};
use bmi_core::transport::{ConnId, Event};
use bmi_core::{Addr, Error, ErrorKind, Scheme, Time};
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Token};
use socket2::{SockRef, TcpKeepalive};

use crate::IbTransport;
use crate::config::DRAIN;
use crate::error::{BAD_ACCESS, Bye, Fault, Violation, adapter_failed, from_bye, no_route, to_bye};
use crate::greeting::{Message, Port};
use crate::queue_pair::QueuePair;
use crate::side_channel::SideChannel;
use crate::verbs::Path;

/// Interval of TCP keepalive. If the peer's machine is gone while the queue pair is idle, this side
/// notices after about four of these.
const KEEPALIVE: std::time::Duration = std::time::Duration::from_secs(3);

/// The phase of a connection (see the module).
pub(crate) enum Phase {
    Dialing { candidates: Vec<SocketAddr>, private: Box<[u8]>, deadline: Time },
    Greeting { deadline: Time },
    HalfOpen { deadline: Time, origin: IpAddr },
    Requested { peer: Port },
    Routing { next: Next, deadline: Time, ended: Option<Fault> },
    Accepted { deadline: Time },
    Established,
    Closing { deadline: Time },
    Draining { fault: Fault, deadline: Time },
}

/// What follows when the queue pair is connected. It has the private data.
pub(crate) enum Next {
    /// The connecting side says READY and reports that the connection is established.
    Ready(Box<[u8]>),
    /// The accepting side says ACCEPT.
    Accept(Box<[u8]>),
}

/// An accepted side channel that no transport has a connection for yet.
pub(crate) struct Newcomer {
    stream: TcpStream,
    from: SocketAddr,
    arrived: Time,
}

/// A connection.
pub(crate) struct Connection {
    pub(crate) id: ConnId,
    pub(crate) peer: Addr,
    pub(crate) phase: Phase,
    pub(crate) side: Option<Box<SideChannel>>,
    pub(crate) queues: Option<Box<QueuePair>>,
    first_packet: u32,
    _place: Place,
}

impl Connection {
    /// Returns the connection's time limit, if it has one.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Dialing { deadline, .. }
            | Phase::Greeting { deadline }
            | Phase::HalfOpen { deadline, .. }
            | Phase::Accepted { deadline }
            | Phase::Closing { deadline }
            | Phase::Routing { deadline, ended: None, .. }
            | Phase::Draining { deadline, .. } => Some(*deadline),
            Phase::Routing { .. } | Phase::Requested { .. } | Phase::Established => None,
        }
    }

    pub(crate) fn say(&mut self, message: Message, private: &[u8]) -> Result<(), Fault> {
        self.side.as_mut().map_or(Ok(()), |side| side.send(message, private))
    }
}

fn tune(socket: &impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(3))
}

impl IbTransport {
    fn check_addr(&self, addr: &Addr) -> Result<(), Error> {
        check_scheme(addr, Scheme::Ib, "InfiniBand")?;
        self.adapter.check_device(addr)
    }

    // ---- listening ------------------------------------------------------------------------------

    pub(crate) fn listen(&mut self, addr: &Addr) -> Result<Addr, Error> {
        self.check_addr(addr)?;
        let (socket, taken) = net::listen(addr, |_| Ok(()))?;
        let mut socket = TcpListener::from_std(socket);
        let token = Token(self.listeners.next_index() << super::TOKEN_BITS | super::TOKEN_LISTENER);
        let watched = self.poll.registry().register(&mut socket, token, Interest::READABLE);
        watched.map_err(|error| listen_failed(addr, error))?;
        self.listeners.add(socket);
        Ok(taken)
    }

    /// Takes the side channels that other members of the group have accepted for this transport,
    /// and accepts those that wait at the listeners.
    pub(crate) fn accept_sockets(&mut self) -> bool {
        let (mut round, mut any) = (Round::default(), false);
        for _ in 0..self.shard.waiting() {
            let Some((newcomer, place)) = self.shard.next() else { break };
            any = true;
            self.handle_newcomer(newcomer, place);
        }
        while let Some((stream, from)) = self.listeners.accept(&mut round, self.now, TcpListener::accept) {
            any = true;
            if let Some((newcomer, place)) = self.shard.assign(Newcomer { stream, from, arrived: self.now }) {
                self.handle_newcomer(newcomer, place);
            }
        }
        self.deadlines.add(self.listeners.deadline());
        any
    }

    fn handle_newcomer(&mut self, newcomer: Newcomer, place: Place) {
        let Newcomer { mut stream, from, arrived } = newcomer;
        let (peer, origin) = (Addr::ib(None, from.ip().to_string(), from.port()), net::origin(from.ip()));
        let deadline = arrived + self.config.limits.handshake_timeout;
        while let Some(id) = self.half_open.first_to_go(self.slots.is_full()) {
            self.end(id.slot, id, Fault::MadeRoom);
        }
        let id = match self.insert(peer.clone(), Phase::HalfOpen { deadline, origin }, place) {
            Ok(id) => id,
            Err(error) => return self.deadlines.warn_closed(&peer, &error, self.now),
        };
        let token = Token((id.slot as usize) << super::TOKEN_BITS | super::TOKEN_CONNECTION);
        let interest = Interest::READABLE | Interest::WRITABLE;
        let ready = tune(&stream).and_then(|()| self.poll.registry().register(&mut stream, token, interest));
        if let Err(error) = ready {
            self.slots.remove(id.slot);
            return self.deadlines.warn_closed(&peer, &error, self.now);
        }
        self.half_open.add(origin, id);
        if let Some(connection) = self.slots.find_mut(id) {
            connection.side = Some(SideChannel::new(stream));
        }
        self.ready.add(id.slot);
    }

    // ---- dialing --------------------------------------------------------------------------------

    pub(crate) fn connect(&mut self, addr: &Addr, private: &[u8], deadline: Time) -> Result<ConnId, Error> {
        self.check_addr(addr)?;
        check_private(private)?;
        if self.gone {
            return Err(Error::new(ErrorKind::Io, format!("the adapter {} is gone", self.adapter.context.name())));
        }
        let phase = Phase::Dialing { candidates: Vec::new(), private: private.into(), deadline };
        let id = self.insert(addr.clone(), phase, self.shard.place())?;
        if let Err(error) = self.give_queues(id) {
            self.slots.remove(id.slot);
            return Err(error.during("connect").with_peer(addr));
        }
        match net::literal(addr) {
            Some(candidates) => self.try_candidates(id, candidates, Fault::NoAddress),
            None => {
                if let Err(error) = self.resolver.ask(id, addr) {
                    self.discard(id.slot);
                    return Err(error.during("connect").with_peer(addr));
                }
            }
        }
        Ok(id)
    }

    /// Takes a slot for a new connection.
    fn insert(&mut self, peer: Addr, phase: Phase, place: Place) -> Result<ConnId, Error> {
        let first_packet = self.next_first_packet();
        let make = |id| Connection { id, peer, phase, side: None, queues: None, first_packet, _place: place };
        let id = self.slots.insert(make)?;
        self.unsettled = true;
        let deadline = self.slots.find_mut(id).and_then(|connection| connection.deadline());
        self.deadlines.add(deadline);
        Ok(id)
    }

    fn give_queues(&mut self, id: ConnId) -> Result<(), Error> {
        let (verbs, domain) = self.adapter.make_queue_pair()?;
        let queue = verbs.queue().clone();
        match QueuePair::new(id, verbs, domain, &self.config) {
            Ok(queues) => {
                if let Some(connection) = self.slots.find_mut(id) {
                    connection.queues = Some(Box::new(queues));
                }
                Ok(())
            }
            Err(error) => {
                self.adapter.give_completions(&queue);
                Err(error)
            }
        }
    }

    /// Handles the answer to a name look-up.
    pub(crate) fn handle_answer(&mut self, answer: Answer) {
        match answer.result {
            Ok(candidates) => self.try_candidates(answer.conn, candidates, Fault::NoAddress),
            Err(error) => self.end(answer.conn.slot, answer.conn, Fault::Unresolved(error)),
        }
    }

    /// Dials the first of `candidates` that can be dialed. If there is none, ends the connection
    /// with `fault`, or with the failure of the last one tried.
    fn try_candidates(&mut self, id: ConnId, mut candidates: Vec<SocketAddr>, fault: Fault) {
        let dialed = net::dial_first(&mut candidates, |to| {
            let mut stream = TcpStream::from_std(net::dial(to, tune)?);
            let token = Token((id.slot as usize) << super::TOKEN_BITS | super::TOKEN_CONNECTION);
            self.poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
            Ok(stream)
        });
        let Some(connection) = self.slots.find_mut(id) else { return };
        match dialed {
            Ok(stream) => {
                connection.side = Some(SideChannel::new(stream));
                if let Phase::Dialing { candidates: rest, .. } = &mut connection.phase {
                    *rest = candidates;
                }
            }
            Err(error) => self.end(id.slot, id, error.map_or(fault, Fault::Unreachable)),
        }
    }

    /// Handles an event of a dialing connection's socket: it is connected, or it failed.
    pub(crate) fn handle_dialed(&mut self, slot: u32) {
        let Some(connection) = self.slots.at_mut(slot) else { return };
        let id = connection.id;
        let (Phase::Dialing { candidates, private, deadline }, Some(side)) = (&mut connection.phase, &connection.side)
        else {
            return;
        };
        let Some(outcome) = net::dialed(&side.stream) else { return };
        if let Err(error) = outcome {
            let candidates = std::mem::take(candidates);
            connection.side = None;
            return self.try_candidates(id, candidates, Fault::Unreachable(error));
        }
        let (private, deadline) = (std::mem::take(private), *deadline);
        connection.phase = Phase::Greeting { deadline };
        let own = self.own_port(slot);
        let Some(connection) = self.slots.at_mut(slot) else { return };
        if let Err(fault) = connection.say(Message::Connect(own), &private) {
            return self.end(slot, id, fault);
        }
        self.ready.add(slot);
    }

    // ---- the handshake --------------------------------------------------------------------------

    /// Returns this side of a connection, as the peer needs it.
    fn own_port(&mut self, slot: u32) -> Port {
        let (state, limits) = (self.adapter.state, self.adapter.limits);
        let Some(connection) = self.slots.at_mut(slot) else { return Port::default() };
        let local = connection.side.as_ref().and_then(|side| side.local_ip());
        Port {
            queue_pair: connection.queues.as_ref().map_or(0, |queues| queues.verbs.number()),
            first_packet: connection.first_packet,
            lid: state.lid,
            mtu: state.mtu,
            ethernet: state.ethernet,
            reads_answered: limits.reads_answered,
            reads_begun: limits.reads_begun,
            gid: self.adapter.gid(local).map_or([0; 16], |gid| gid.raw),
        }
    }

    /// Begins to connect the queue pair to the peer's.
    fn connect_queues(&mut self, slot: u32, peer: &Port, next: Next, deadline: Time) -> Result<(), Fault> {
        let (state, limits, port) = (self.adapter.state, self.adapter.limits, self.adapter.port);
        let route = |text: &str| no_route(io::Error::other(text.to_owned()));
        if state.ethernet != peer.ethernet {
            return Err(route("one is on InfiniBand, the other on Ethernet"));
        }
        let Some(connection) = self.slots.at_mut(slot) else { return Ok(()) };
        let local = connection.side.as_ref().and_then(|side| side.local_ip());
        let own = self.adapter.gid(local);
        let global = match own {
            Some(own) if state.ethernet || state.needs_grh => Some((peer.gid, own.index)),
            None if state.ethernet => return Err(route("this side's port has no RoCE v2 address")),
            _ => None,
        };
        let Some(queues) = &mut connection.queues else { return Ok(()) };
        let reads_begun = limits.reads_begun.min(peer.reads_answered).min(self.config.tuning.max_outstanding_reads);
        queues.max_reads = reads_begun.max(1).into();
        let path = Path {
            port,
            mtu: state.mtu.min(peer.mtu),
            peer: peer.queue_pair,
            peer_psn: peer.first_packet,
            psn: connection.first_packet,
            lid: peer.lid,
            global,
            service_level: self.config.service_level,
            traffic_class: self.config.traffic_class,
            reads_answered: limits.reads_answered.min(peer.reads_begun).max(1),
            reads_begun: reads_begun.max(1),
            timeout: self.config.ack_timeout,
            retries: self.config.retries,
            not_ready_retries: self.config.not_ready_retries,
        };
        let verbs = queues.verbs.clone();
        self.helpers.run(connection.id, move || verbs.connect(&path)).map_err(no_route)?;
        connection.phase = Phase::Routing { next, deadline, ended: None };
        self.deadlines.add(Some(deadline));
        Ok(())
    }

    /// Continues when a helper thread has connected a queue pair, or could not.
    pub(crate) fn handle_route(&mut self, Outcome { conn, result }: Outcome<()>) {
        let Some(connection) = self.slots.find_mut(conn) else { return };
        if !matches!(connection.phase, Phase::Routing { .. }) {
            return;
        }
        let phase = std::mem::replace(&mut connection.phase, Phase::Established);
        let Phase::Routing { next, deadline, ended } = phase else { return };
        self.deadlines.refresh();
        if let Some(fault) = ended {
            return self.report_end(conn.slot, fault);
        }
        if let Err(error) = result {
            let fault = no_route(error);
            let (bye, own) = to_bye(&fault);
            let _ = connection.say(Message::Bye(bye, own), &[]);
            return self.report_end(conn.slot, fault);
        }
        let said = match next {
            Next::Ready(private) => {
                let said = connection.say(Message::Ready, &[]);
                self.pending.push(Event::Established { conn, private });
                said
            }
            Next::Accept(private) => {
                connection.phase = Phase::Accepted { deadline };
                let own = self.own_port(conn.slot);
                let Some(connection) = self.slots.find_mut(conn) else { return };
                connection.say(Message::Accept(own), &private)
            }
        };
        if let Err(fault) = said {
            self.end(conn.slot, conn, fault);
        }
        self.unsettled = true;
        self.ready.add(conn.slot);
    }

    /// Handles a message from the side channel.
    pub(crate) fn handle_message(&mut self, slot: u32, message: Message, private: Box<[u8]>) -> Result<(), Fault> {
        let Some(connection) = self.slots.at_mut(slot) else { return Ok(()) };
        let id = connection.id;
        match (message, &mut connection.phase) {
            (Message::Connect(peer), Phase::HalfOpen { origin, .. }) => {
                self.half_open.remove(*origin, id);
                connection.phase = Phase::Requested { peer };
                let from = connection.peer.clone();
                self.deadlines.refresh();
                if let Err(error) = self.give_queues(id) {
                    self.deadlines.warn_closed(&from, &error, self.now);
                    if let Some(mut connection) = self.discard(slot) {
                        let _ = connection.say(Message::Bye(Bye::Exhausted, false), &[]);
                    }
                    return Ok(());
                }
                self.pending.push(Event::ConnectRequest { conn: id, from, private });
            }
            (Message::Accept(peer), Phase::Greeting { deadline }) => {
                let deadline = *deadline;
                self.connect_queues(slot, &peer, Next::Ready(private), deadline)?;
            }
            (Message::Reject, Phase::Greeting { .. }) => {
                if let Some(connection) = self.discard(slot) {
                    self.flush(connection);
                    self.pending.push(Event::Rejected { conn: id, private });
                }
            }
            (Message::Ready, Phase::Accepted { .. }) => self.establish(slot),
            // The first message over the queue pair came first.
            (Message::Ready, Phase::Established) => {}
            (Message::Bye(bye, _), Phase::Greeting { .. }) => {
                let full = bye == Bye::Exhausted;
                return Err(if full {
                    Fault::other(ErrorKind::Refused, "the peer refused the connection: it has no room")
                } else {
                    Fault::Refused(bye)
                });
            }
            (Message::Bye(bye, own), Phase::Routing { .. }) => return Err(from_bye(bye, own)),
            (Message::Bye(bye, own), Phase::Draining { fault, .. }) => {
                if matches!(fault, Fault::Unexplained) {
                    *fault = from_bye(bye, own);
                }
            }
            (Message::Bye(bye, own), Phase::Established | Phase::Accepted { .. } | Phase::Closing { .. }) => {
                self.end(slot, id, from_bye(bye, own));
            }
            (Message::Check { key, addr, write }, Phase::Established | Phase::Closing { .. }) => {
                let may = connection.queues.as_ref().is_some_and(|q| q.exposures.allows_nothing_at(key, addr, write));
                if !may {
                    return Err(BAD_ACCESS.into());
                }
                connection.say(Message::Checked, &[])?;
            }
            (Message::Checked, Phase::Established | Phase::Closing { .. }) => {
                if !connection.queues.as_mut().is_some_and(|queues| queues.allow()) {
                    return Err(Violation::Order.into());
                }
                self.dirty.add(slot);
            }
            (_, Phase::Draining { .. }) => {}
            _ => return Err(Violation::Order.into()),
        }
        Ok(())
    }

    /// Marks a connection as established, because the connecting side is ready too.
    pub(crate) fn establish(&mut self, slot: u32) {
        let Some(connection) = self.slots.at_mut(slot) else { return };
        connection.phase = Phase::Established;
        self.pending.push(Event::Established { conn: connection.id, private: Box::default() });
        self.deadlines.refresh();
    }

    pub(crate) fn accept(&mut self, conn: ConnId, private: &[u8]) -> Result<(), Error> {
        check_private(private)?;
        let Some((peer, name)) = self.slots.find_mut(conn).and_then(|connection| match connection.phase {
            Phase::Requested { peer } => Some((peer, connection.peer.clone())),
            _ => None,
        }) else {
            return Err(request_gone());
        };
        let deadline = self.now + self.config.limits.handshake_timeout;
        if let Err(fault) = self.connect_queues(conn.slot, &peer, Next::Accept(private.into()), deadline) {
            // The event that follows reports the error.
            let error = fault.into_error(&name);
            self.end(conn.slot, conn, Fault::Other(error));
        }
        Ok(())
    }

    pub(crate) fn reject(&mut self, conn: ConnId, private: &[u8]) {
        let requested = |connection: &&mut Connection| matches!(connection.phase, Phase::Requested { .. });
        if check_private(private).is_err() || self.slots.find_mut(conn).filter(requested).is_none() {
            return;
        }
        let Some(mut connection) = self.discard(conn.slot) else { return };
        if let Err(fault) = connection.say(Message::Reject, private) {
            tracing::debug!(%fault, "the peer could not be told that it is rejected");
        }
        self.flush(connection);
    }

    // ---- the end --------------------------------------------------------------------------------

    /// Takes a connection out of the tables.
    fn discard(&mut self, slot: u32) -> Option<Connection> {
        let connection = self.slots.remove(slot)?;
        if let Phase::HalfOpen { origin, .. } = connection.phase {
            self.half_open.remove(origin, connection.id);
        }
        self.ending.retain(|ending| *ending != slot);
        self.deadlines.refresh();
        if let Some(queues) = &connection.queues {
            self.adapter.give_completions(queues.verbs.queue());
        }
        Some(connection)
    }

    /// Destroys a connection's queue pair and reports its outstanding work.
    fn flush(&mut self, connection: Connection) {
        if let Some(queues) = connection.queues {
            queues.end(&mut self.pending);
        }
    }

    /// Ends a connection. It ends at once if only receives can be outstanding, otherwise by
    /// draining.
    pub(crate) fn end(&mut self, slot: u32, id: ConnId, fault: Fault) {
        let Some(connection) = self.slots.find_mut(id) else { return };
        match connection.phase {
            Phase::Established | Phase::Accepted { .. } | Phase::Closing { .. } => self.drain(slot, fault),
            Phase::Draining { .. } | Phase::Routing { ended: Some(_), .. } => {}
            // A thread is at work on the queue pair, and reports when it is done.
            Phase::Routing { .. } => self.end_routing(slot, fault),
            Phase::HalfOpen { .. } => {
                // No upper layer knows of it. A peer of another version learns this side's version.
                if let Fault::Violation(Violation::Version { .. }) = fault {
                    let _ = connection.say(Message::Reject, &[]);
                }
                let Some(Connection { peer, .. }) = self.discard(slot) else { return };
                if fault.warns(true) {
                    self.deadlines.warn_closed(&peer, &fault, self.now);
                } else {
                    tracing::debug!(%peer, %fault, "connection ended");
                }
            }
            Phase::Dialing { .. } | Phase::Greeting { .. } | Phase::Requested { .. } => {
                if let Phase::Requested { .. } = connection.phase {
                    let (bye, own) = to_bye(&fault);
                    let _ = connection.say(Message::Bye(bye, own), &[]);
                }
                self.report_end(slot, fault);
            }
        }
    }

    fn end_routing(&mut self, slot: u32, fault: Fault) {
        let Some(connection) = self.slots.at_mut(slot) else { return };
        let (bye, own) = to_bye(&fault);
        let _ = connection.say(Message::Bye(bye, own), &[]);
        connection.side = None;
        if let Phase::Routing { ended, .. } = &mut connection.phase {
            *ended = Some(fault);
        }
        self.deadlines.refresh();
    }

    fn report_end(&mut self, slot: u32, fault: Fault) {
        let Some(connection) = self.discard(slot) else { return };
        let (conn, peer) = (connection.id, connection.peer.clone());
        tracing::debug!(%peer, %fault, "connection ended");
        self.flush(connection);
        self.pending.push(Event::Disconnected { conn, reason: fault.into_error(&peer) });
    }

    fn drain(&mut self, slot: u32, fault: Fault) {
        let deadline = self.now + DRAIN;
        let Some(connection) = self.slots.at_mut(slot) else { return };
        let peer = &connection.peer;
        if fault.warns(false) {
            self.deadlines.warn_closed(peer, &fault, self.now);
        }
        // A peer that has gone, or that gave the reason itself, need not be told.
        if !matches!(fault, Fault::Eof | Fault::Closed | Fault::Unexplained) {
            let (bye, own) = to_bye(&fault);
            let _ = connection.say(Message::Bye(bye, own), &[]);
        }
        connection.phase = Phase::Draining { fault, deadline };
        self.unsettled = true;
        let Some(connection) = self.slots.at_mut(slot) else { return };
        let failed = connection.queues.as_mut().map(|queues| queues.fail(&mut self.chain));
        if let Some(Err(error)) = failed {
            // Destroying it at the deadline has the same effect.
            tracing::debug!(%error, "the queue pair cannot be drained");
        }
        self.chain.clear();
        self.deadlines.add(Some(deadline));
        if !self.ending.contains(&slot) {
            self.ending.push(slot);
        }
    }

    /// Ends an established connection in order: sends the posted work, then tells the peer.
    pub(crate) fn disconnect(&mut self, conn: ConnId, deadline: Time) {
        let now = self.now;
        let Some(connection) = self.slots.find_mut(conn) else { return };
        match &mut connection.phase {
            Phase::HalfOpen { .. } | Phase::Draining { .. } => {}
            Phase::Established if deadline > now => {
                connection.phase = Phase::Closing { deadline };
                self.unsettled = true;
                self.deadlines.add(Some(deadline));
                self.ending.push(conn.slot);
                self.dirty.add(conn.slot);
            }
            Phase::Closing { deadline: earlier } if deadline > now => {
                *earlier = deadline.min(*earlier);
                self.deadlines.add(Some(deadline));
            }
            _ => self.end(conn.slot, conn, Fault::Cancelled),
        }
    }

    /// Continues with the connections that are ending.
    pub(crate) fn finish_ending(&mut self) -> bool {
        let mut any = false;
        let mut at = 0;
        while at < self.ending.len() {
            let slot = self.ending[at];
            at += 1;
            let now = self.now;
            let Some(connection) = self.slots.at_mut(slot) else { continue };
            let id = connection.id;
            let Some(queues) = &mut connection.queues else { continue };
            match &connection.phase {
                Phase::Closing { .. } if queues.all_sent() => {
                    any = true;
                    self.drain(slot, Fault::Cancelled);
                }
                Phase::Closing { .. } if !queues.has_waiting() => {
                    if let Err(error) = queues.mark(&mut self.chain) {
                        self.chain.clear();
                        self.end(slot, id, adapter_failed(error));
                    }
                }
                Phase::Draining { fault, deadline } => {
                    let known = !matches!(fault, Fault::Unexplained);
                    if (queues.is_drained() && known) || *deadline <= now {
                        any = true;
                        let phase = std::mem::replace(&mut connection.phase, Phase::Established);
                        if let Phase::Draining { fault, .. } = phase {
                            self.report_end(slot, fault);
                        }
                        at -= 1; // `report_end` has removed its entry from the list
                    }
                }
                _ => {}
            }
        }
        any
    }

    /// Ends the connections whose deadline has passed.
    pub(crate) fn expire(&mut self, now: Time) {
        if !self.deadlines.due(now) {
            return;
        }
        for slot in 0..self.slots.len() {
            let Some(connection) = self.slots.at_mut(slot) else { continue };
            if connection.deadline().is_none_or(|deadline| deadline > now) {
                continue;
            }
            let id = connection.id;
            match connection.phase {
                Phase::Draining { .. } => {} // `finish_ending` handles it
                Phase::Closing { .. } => self.end(slot, id, Fault::Cancelled),
                _ => self.end(slot, id, Fault::ConnectTimeout),
            }
        }
        self.listeners.expire(now);
        if self.port_down_until.is_some_and(|at| at <= now) {
            self.port_down_until = None;
            let (device, port) = (self.adapter.context.name().to_owned(), self.adapter.port);
            self.end_all(|| Fault::other(ErrorKind::PeerLost, format!("port {port} of {device} is down")));
        }
        self.deadlines.expire(now);
    }

    /// Ends every connection.
    pub(crate) fn end_all(&mut self, fault: impl Fn() -> Fault) {
        for slot in 0..self.slots.len() {
            if let Some(id) = self.slots.at_mut(slot).map(|connection| connection.id) {
                self.end(slot, id, fault());
            }
        }
    }
}
