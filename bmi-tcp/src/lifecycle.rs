//! Creation and phases of connections: listening, dialing, the handshake, the end.
//!
//! **Protocol** of a connection's phases; `!` marks the end.
//!
//! ```text
//!   connect() -> Dialing --socket connected--> Greeting --accept--> Established --disconnect()--> Ending --> !
//!                   |                              '--reject--> !        |  '--violation----------> Ending --> !
//!                   '--refused, deadline--> !                            '--peer closed, socket failed--> !
//!
//!   listener  -> HalfOpen --preamble--> Requested --accept()--> Established
//!                   |                       '--reject(), peer gone--> !
//!                   '--garbage, other version, handshake_timeout, newcomer--> !   (never reported)
//! ```
//!
//! **Invariants**
//! 1. A half-open socket owns a buffer for one preamble and nothing more. There are at most
//!    `max_half_open` such sockets.
//! 2. A newcomer always gets a place among the half-open sockets. If they are all taken, another
//!    one goes ([`bmi_backend::HalfOpen`]), but only after its bytes were read: a preamble that has
//!    arrived is not lost.
//! 3. The deadline of a half-open socket counts from its arrival, at whatever member of the group
//!    ([`bmi_backend::Shard`]). Bytes do not move it.
//! 4. Queues exist from `connect` on, or from the moment when a complete valid preamble has
//!    arrived.
//!
//! **Tests.** `tests/it/connection.rs`, `tests/it/hostile.rs`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use bmi_backend::net::{self, Answer};
use bmi_backend::software::{Exposures, Refusal};
use bmi_backend::{Fault, Place, Round, Violation, check_private, check_scheme, listen_failed, request_gone};
use bmi_core::transport::{ConnId, Event, MAX_PRIVATE_DATA};
use bmi_core::{Addr, Error, ErrorKind, Scheme, Time, mutated};
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Token};
use socket2::{SockRef, Socket, TcpKeepalive};

use crate::TcpTransport;
use crate::config::{LINGER, TcpConfig};
use crate::frame::{BAD_PREAMBLE, Frame, Greeting, PREAMBLE, Preamble};
use crate::queue_pair::QueuePair;
use crate::receive::Inbound;
use crate::silence::Silence;
use crate::vectored_io::{self, Piece};

/// The phase of a connection (see the module).
pub(crate) enum Phase {
    Dialing { candidates: Vec<SocketAddr>, private: Box<[u8]>, deadline: Time },
    Greeting { deadline: Time },
    HalfOpen { deadline: Time, origin: IpAddr },
    Requested,
    Established,
    Ending(Ending),
}

/// The state of a connection that is being ended.
pub(crate) struct Ending {
    pub(crate) reason: Error,
    pub(crate) deadline: Time,
    /// If true, waiting requests are still sent, and this side waits for the peer to end the
    /// stream. If false, only the last frame is sent.
    pub(crate) graceful: bool,
    /// CLOSE or ERROR, until it is on the wire.
    pub(crate) last: Option<Frame>,
    /// All bytes are handed over, and the peer knows that no more will come.
    pub(crate) shut: bool,
}

/// An accepted socket that no transport has a connection for yet.
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
    pub(crate) stream: Option<TcpStream>,
    pub(crate) queues: Option<Box<QueuePair>>,
    pub(crate) inbound: Inbound,
    pub(crate) exposures: Exposures,
    /// The kernel takes no more bytes until it reports room.
    pub(crate) blocked: bool,
    /// The socket reported its end.
    pub(crate) hangup: bool,
    /// The connection is in the transport's list of sockets that are read without asking epoll.
    pub(crate) in_hot: bool,
    /// Number of consecutive reads that found nothing.
    pub(crate) misses: u32,
    /// The peer's host may owe an answer: bytes were sent since a check found none outstanding.
    pub(crate) unsettled: bool,
    silence: Silence,
    _place: Place,
}

impl Connection {
    fn new(id: ConnId, peer: Addr, phase: Phase, place: Place) -> Connection {
        Connection {
            id,
            peer,
            phase,
            stream: None,
            queues: None,
            inbound: Inbound::new(PREAMBLE + MAX_PRIVATE_DATA),
            exposures: Exposures::default(),
            blocked: false,
            hangup: false,
            in_hot: false,
            misses: 0,
            unsettled: false,
            silence: Silence::default(),
            _place: place,
        }
    }

    /// Gives back the pages of empty buffers. Returns true if nothing is arriving. All that arrives
    /// is placed by polls, and a poll reports what it has completed.
    pub(crate) fn release_idle(&mut self) -> bool {
        self.queues.iter_mut().for_each(|queues| queues.wire.release());
        self.inbound.release()
    }

    /// Returns the deadline of the current phase, if it has one.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Dialing { deadline, .. } | Phase::Greeting { deadline } | Phase::HalfOpen { deadline, .. } => {
                Some(*deadline)
            }
            Phase::Ending(ending) => Some(ending.deadline),
            Phase::Requested | Phase::Established => None,
        }
    }
}

/// The socket of an ended connection, kept so that the peer gets the last bytes.
pub(crate) struct Lingering {
    stream: TcpStream,
    pub(crate) deadline: Time,
}

impl Lingering {
    /// Reads and discards. Returns true if the socket is finished.
    pub(crate) fn drain(&mut self) -> bool {
        let mut drop_box = [0u8; 16 << 10];
        for _ in 0..64 {
            let pieces = [Piece::new(drop_box.as_mut_ptr(), drop_box.len())];
            // SAFETY: the array is local to this function.
            match unsafe { vectored_io::receive(self.stream.as_fd(), &pieces) } {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
        true // it goes on sending to a dead connection: no more patience
    }
}

fn tune(socket: &Socket, config: &TcpConfig) -> io::Result<()> {
    if let Some(bytes) = config.tuning.send_buffer {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = config.tuning.recv_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    Ok(())
}

fn tune_stream(socket: BorrowedFd<'_>, config: &TcpConfig) -> io::Result<()> {
    let socket = SockRef::from(&socket);
    socket.set_tcp_nodelay(true)?;
    if let Some(period) = config.watch_period() {
        let interval = period.max(Duration::from_secs(1));
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(interval).with_interval(interval).with_retries(3))?;
        vectored_io::limit_retransmission_interval(socket.as_fd(), period)?;
    }
    Ok(())
}

/// While a socket is being connected, the system gives up an address after `peer_timeout`, so that
/// the next one has its turn.
fn limit_dialing(socket: &Socket, config: &TcpConfig) -> io::Result<()> {
    let limited = !config.peer_timeout.is_zero();
    if limited { socket.set_tcp_user_timeout(Some(config.peer_timeout)) } else { Ok(()) }
}

/// Lifts the limit of [`limit_dialing`]. It would end the connection to a program that does not
/// read for a while ([`crate::silence`]).
fn lift_limit_of_dialing(stream: &TcpStream) -> io::Result<()> {
    if mutated("tcp/a-peer-that-does-not-read-is-dead") {
        return Ok(());
    }
    SockRef::from(stream).set_tcp_user_timeout(None)
}

fn dial(to: SocketAddr, config: &TcpConfig) -> io::Result<TcpStream> {
    let stream = net::dial(to, |socket| {
        tune(socket, config)?;
        limit_dialing(socket, config)?;
        tune_stream(socket.as_fd(), config)
    })?;
    Ok(TcpStream::from_std(stream))
}

/// Sends the bytes that fit at once, and ends the stream. For sockets that have nothing else to
/// send.
fn say_last(stream: &TcpStream, bytes: &[u8]) {
    // SAFETY: the bytes are borrowed for the call.
    let sent = unsafe { vectored_io::send(stream.as_fd(), &[Piece::of(bytes)]) };
    let shut = stream.shutdown(std::net::Shutdown::Write);
    if let Err(error) = sent.and(shut) {
        tracing::debug!(%error, "the peer could not be told why its connection ends");
    }
}

impl TcpTransport {
    pub(crate) fn listen(&mut self, addr: &Addr) -> Result<Addr, Error> {
        check_scheme(addr, Scheme::Tcp, "TCP")?;
        let (socket, taken) = net::listen(addr, |socket| tune(socket, &self.config))?;
        let mut socket = TcpListener::from_std(socket);
        let token = Token(self.listeners.next_index() << super::TOKEN_BITS | super::TOKEN_LISTENER);
        let watched = self.poll.registry().register(&mut socket, token, Interest::READABLE);
        watched.map_err(|error| listen_failed(addr, error))?;
        self.listeners.add(socket);
        Ok(taken)
    }

    pub(crate) fn connect(&mut self, addr: &Addr, private: &[u8], deadline: Time) -> Result<ConnId, Error> {
        check_scheme(addr, Scheme::Tcp, "TCP")?;
        check_private(private)?;
        let phase = Phase::Dialing { candidates: Vec::new(), private: private.into(), deadline };
        let id = self.insert(addr.clone(), phase, self.shard.place())?;
        if let Some(connection) = self.slots.find_mut(id) {
            connection.queues = Some(Box::new(QueuePair::new(id, &self.config)));
        }
        match net::literal(addr) {
            Some(candidates) => self.try_candidates(id, candidates, Fault::NoAddress),
            None => {
                if let Err(error) = self.resolver.ask(id, addr) {
                    self.slots.remove(id.slot);
                    return Err(error.during("connect").with_peer(addr));
                }
            }
        }
        Ok(id)
    }

    /// Takes a slot for a new connection.
    fn insert(&mut self, peer: Addr, phase: Phase, place: Place) -> Result<ConnId, Error> {
        let id = self.slots.insert(|id| Connection::new(id, peer, phase, place))?;
        let deadline = self.slots.find_mut(id).and_then(|connection| connection.deadline());
        self.deadlines.add(deadline);
        Ok(id)
    }

    /// Handles the end of a lookup.
    pub(crate) fn handle_answer(&mut self, answer: Answer) {
        match answer.result {
            Ok(candidates) => self.try_candidates(answer.conn, candidates, Fault::NoAddress),
            Err(error) => self.end(answer.conn.slot, answer.conn, Fault::Unresolved(error)),
        }
    }

    /// Dials the first of `candidates` that can be dialed. `fault` is the reason reported if there
    /// is none.
    fn try_candidates(&mut self, id: ConnId, mut candidates: Vec<SocketAddr>, fault: Fault) {
        let dialed = net::dial_first(&mut candidates, |to| {
            let mut stream = dial(to, &self.config)?;
            let token = Token((id.slot as usize) << super::TOKEN_BITS | super::TOKEN_CONNECTION);
            self.poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
            Ok(stream)
        });
        let Some(connection) = self.slots.find_mut(id) else { return };
        match dialed {
            Ok(stream) => {
                connection.stream = Some(stream);
                if let Phase::Dialing { candidates: rest, .. } = &mut connection.phase {
                    *rest = candidates;
                }
            }
            Err(error) => self.end(id.slot, id, error.map_or(fault, Fault::Unreachable)),
        }
    }

    /// Handles an event of a dialing connection's socket: connected, or failed.
    pub(crate) fn handle_dialed(&mut self, slot: u32) {
        let Some(connection) = self.slots.at_mut(slot) else { return };
        let id = connection.id;
        let (Phase::Dialing { candidates, private, deadline }, Some(stream)) =
            (&mut connection.phase, &connection.stream)
        else {
            return;
        };
        let Some(outcome) = net::dialed(stream) else { return };
        if let Err(error) = outcome.and_then(|()| lift_limit_of_dialing(stream)) {
            let candidates = std::mem::take(candidates);
            connection.stream = None;
            return self.try_candidates(id, candidates, Fault::Unreachable(error));
        }
        let (private, deadline) = (std::mem::take(private), *deadline);
        connection.phase = Phase::Greeting { deadline };
        connection.greet(Greeting::Connect, &private);
        self.dirty.add(slot);
        // The event for "connected" may also have meant "readable", and is not repeated.
        self.ready.add(slot);
    }

    /// Takes the sockets that other members of the group have accepted for this transport, and
    /// accepts the connections that wait at the listeners.
    pub(crate) fn accept_sockets(&mut self) -> bool {
        let mut round = Round::new(&self.shard);
        while let Some((newcomer, place)) = round.next(&self.shard, &mut self.listeners, self.now, |listener| {
            let (stream, from) = listener.accept()?;
            Ok(Some(Newcomer { stream, from, arrived: self.now }))
        }) {
            self.handle_newcomer(newcomer, place);
        }
        self.deadlines.add(self.listeners.deadline());
        round.any()
    }

    fn handle_newcomer(&mut self, newcomer: Newcomer, place: Place) {
        let Newcomer { mut stream, from, arrived } = newcomer;
        let (peer, origin) = (Addr::tcp(from.ip().to_string(), from.port()), net::origin(from.ip()));
        let deadline = arrived + self.config.limits.handshake_timeout;
        while let Some(id) = self.half_open.first_to_go(self.slots.is_full()) {
            self.end(id.slot, id, Fault::MadeRoom);
        }
        let id = match self.insert(peer.clone(), Phase::HalfOpen { deadline, origin }, place) {
            Ok(id) => id,
            Err(error) => return self.deadlines.warn_closed(&peer, &error, self.now),
        };
        let token = Token((id.slot as usize) << super::TOKEN_BITS | super::TOKEN_CONNECTION);
        let ready = tune_stream(stream.as_fd(), &self.config)
            .and_then(|()| self.poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE));
        if let Err(error) = ready {
            self.slots.remove(id.slot);
            return self.deadlines.warn_closed(&peer, &error, self.now);
        }
        self.half_open.add(origin, id);
        if let Some(connection) = self.slots.find_mut(id) {
            connection.stream = Some(stream);
        }
        self.ready.add(id.slot);
    }

    /// Handles bytes that arrive before the end of the handshake.
    pub(crate) fn receive_greeting(&mut self, slot: u32, events: &mut Vec<Event>) -> bool {
        let Some(connection) = self.slots.at_mut(slot) else { return false };
        let id = connection.id;
        let (Some(stream), inbound) = (&connection.stream, &mut connection.inbound) else { return false };
        let filled = inbound.fill(stream.as_fd());
        let early = matches!(connection.phase, Phase::Requested);
        let greeted = match filled {
            Ok(0) if inbound.buffered().len() < PREAMBLE + MAX_PRIVATE_DATA => Err(Fault::Eof),
            Ok(n) if early && n > 0 => Err(Violation::Other("it sent bytes before it was accepted").into()),
            Ok(_) => inbound.take_greeting().map_err(Fault::from),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(Fault::Socket(error)),
        };
        match (greeted, &connection.phase) {
            // More bytes are needed. The socket has not reported yet that it is empty, so there may
            // be some.
            (Ok(None), _) => {
                self.ready.add(slot);
            }
            (Ok(Some((Greeting::Connect, private))), Phase::HalfOpen { origin, .. })
                if inbound.buffered().is_empty() =>
            {
                self.half_open.remove(*origin, id);
                connection.phase = Phase::Requested;
                connection.queues = Some(Box::new(QueuePair::new(id, &self.config)));
                let from = connection.peer.clone();
                self.deadlines.refresh();
                events.push(Event::ConnectRequest { conn: id, from, private });
                self.ready.add(slot);
            }
            (Ok(Some((Greeting::Accept, private))), Phase::Greeting { .. }) => {
                connection.inbound.grow(self.config.tuning.read_ahead.max(4 << 10));
                connection.phase = Phase::Established;
                self.deadlines.refresh();
                events.push(Event::Established { conn: id, private });
                self.ready.add(slot);
            }
            (Ok(Some((Greeting::Reject, private))), Phase::Greeting { .. }) => {
                if let Some(mut connection) = self.remove(slot) {
                    if let Some(queues) = &mut connection.queues {
                        queues.flush_all(None, |event| events.push(event));
                    }
                    events.push(Event::Rejected { conn: id, private });
                }
            }
            (Ok(Some(_)), _) => self.end(slot, id, BAD_PREAMBLE.into()),
            (Err(fault), _) => self.end(slot, id, fault),
        }
        true
    }

    pub(crate) fn accept(&mut self, conn: ConnId, private: &[u8]) -> Result<(), Error> {
        check_private(private)?;
        let read_ahead = self.config.tuning.read_ahead.max(4 << 10);
        let requested = |connection: &&mut Connection| matches!(connection.phase, Phase::Requested);
        let Some(connection) = self.slots.find_mut(conn).filter(requested) else {
            return Err(request_gone());
        };
        connection.inbound.grow(read_ahead);
        connection.phase = Phase::Established;
        connection.greet(Greeting::Accept, private);
        self.dirty.add(conn.slot);
        self.ready.add(conn.slot);
        self.pending.push(Event::Established { conn, private: Box::default() });
        Ok(())
    }

    pub(crate) fn reject(&mut self, conn: ConnId, private: &[u8]) {
        let requested = |connection: &&mut Connection| matches!(connection.phase, Phase::Requested);
        if check_private(private).is_err() || self.slots.find_mut(conn).filter(requested).is_none() {
            return;
        }
        let Some(mut connection) = self.remove(conn.slot) else { return };
        if let Some(queues) = &mut connection.queues {
            queues.flush_all(None, |event| self.pending.push(event));
        }
        if let Some(stream) = connection.stream.take() {
            let mut bytes = Preamble::encode(Greeting::Reject, private.len()).to_vec();
            bytes.extend_from_slice(private);
            say_last(&stream, &bytes);
            self.linger(stream);
        }
    }

    /// Keeps a socket that was shut until the peer has seen its end. The number is limited to that
    /// of half-open sockets. Otherwise a peer that makes this side shut sockets faster than they go
    /// away could use up its descriptors.
    fn linger(&mut self, mut stream: TcpStream) {
        if self.lingering.len() >= self.config.limits.max_half_open {
            return;
        }
        let entry = self.lingering.vacant_entry();
        let token = Token(entry.key() << super::TOKEN_BITS | super::TOKEN_LINGERING);
        let registered = self.poll.registry().reregister(&mut stream, token, Interest::READABLE);
        let deadline = self.now + LINGER;
        if registered.is_ok() {
            entry.insert(Lingering { stream, deadline });
            self.deadlines.add(Some(deadline));
        }
    }

    // ---- the end --------------------------------------------------------------------------------

    /// Removes a connection from the tables.
    fn remove(&mut self, slot: u32) -> Option<Connection> {
        let connection = self.slots.remove(slot)?;
        self.blocked -= usize::from(connection.blocked);
        self.hot.retain(|hot| *hot != slot);
        if let Phase::HalfOpen { origin, .. } = connection.phase {
            self.half_open.remove(origin, connection.id);
        }
        self.deadlines.refresh();
        Some(connection)
    }

    /// Ends a connection at once. Flushes outstanding work, then reports the end.
    pub(crate) fn end(&mut self, slot: u32, id: ConnId, fault: Fault) {
        if self.slots.find_mut(id).is_none() {
            return;
        }
        let Some(mut connection) = self.remove(slot) else { return };
        let peer = &connection.peer;
        let half_open = matches!(connection.phase, Phase::HalfOpen { .. });
        if fault.warns(half_open) {
            self.deadlines.warn_closed(peer, &fault, self.now);
        } else {
            tracing::debug!(%peer, %fault, "connection ended");
        }
        let culprit = if let Fault::Refused(refusal) = fault { Some(refusal) } else { None };
        if half_open {
            // The layer above does not know of this connection. A peer of another version learns
            // this version.
            if let (Fault::Violation(Violation::Version { .. }), Some(stream)) = (&fault, connection.stream.take()) {
                say_last(&stream, &Preamble::encode(Greeting::Reject, 0));
                self.linger(stream);
            }
            return;
        }
        let ending = std::mem::replace(&mut connection.phase, Phase::Requested);
        let (reason, shut) = match ending {
            Phase::Ending(ending) => (ending.reason, ending.shut && !ending.graceful),
            _ => (fault.into_error(peer), false),
        };
        self.report_end(&mut connection, culprit, reason);
        if let (true, Some(stream)) = (shut, connection.stream.take()) {
            self.linger(stream);
        }
    }

    fn report_end(&mut self, connection: &mut Connection, culprit: Option<Refusal>, reason: Error) {
        let pending = &mut self.pending;
        if let Some(queues) = &mut connection.queues {
            queues.flush_all(culprit, |event| pending.push(event));
        }
        pending.push(Event::Disconnected { conn: connection.id, reason });
    }

    /// Closes an established connection in order: sends the posted work, then CLOSE, then waits for
    /// the peer's end.
    pub(crate) fn disconnect(&mut self, conn: ConnId, deadline: Time) {
        let now = self.now;
        let Some(connection) = self.slots.find_mut(conn) else { return };
        let reason = Fault::Cancelled;
        match &mut connection.phase {
            Phase::HalfOpen { .. } => return,
            Phase::Established if deadline > now => {
                let reason = reason.into_error(&connection.peer);
                let last = Some(Frame::Close);
                connection.phase = Phase::Ending(Ending { reason, deadline, graceful: true, last, shut: false });
                if let Some(queues) = &mut connection.queues {
                    queues.flush_waiting(None, |event| self.pending.push(event));
                    queues.abandon_replies();
                }
                connection.inbound.abandon();
                self.dirty.add(conn.slot);
                self.ready.add(conn.slot);
            }
            Phase::Ending(ending) if deadline > now => ending.deadline = ending.deadline.min(deadline),
            _ => return self.end(conn.slot, conn, reason),
        }
        self.deadlines.add(Some(deadline));
    }

    /// Cuts the connection to a peer that broke the protocol, and tells it the reason.
    pub(crate) fn cut(&mut self, slot: u32, violation: Violation) {
        let deadline = self.now + LINGER;
        let Some(connection) = self.slots.at_mut(slot) else { return };
        let id = connection.id;
        if !matches!(connection.phase, Phase::Established) {
            return self.end(slot, id, violation.into());
        }
        let peer = &connection.peer;
        self.deadlines.warn_closed(peer, &violation, self.now);
        let reason = Fault::<Refusal>::from(violation).into_error(peer);
        let last = Some(Frame::Error(violation.refusal()));
        connection.phase = Phase::Ending(Ending { reason, deadline, graceful: false, last, shut: false });
        self.deadlines.add(Some(deadline));
        self.dirty.add(slot);
        self.ready.add(slot);
    }

    /// Ends all connections and sockets that have reached their deadline.
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
            self.end(slot, id, Fault::ConnectTimeout);
        }
        self.end_silent(now);
        self.lingering.retain(|_, lingering| lingering.deadline > now);
        self.listeners.expire(now);
        self.deadlines.expire(now);
    }

    /// Makes a deadline for a look at connections that wait for an answer, unless there is one.
    #[cold]
    pub(crate) fn watch(&mut self) {
        if self.watch_at.is_none() {
            self.watch_at = self.config.watch_period().map(|period| self.now + period);
            self.deadlines.add(self.watch_at);
        }
    }

    /// Ends the connections to hosts that have answered nothing for too long. The kernel is asked
    /// only about those that may wait for an answer. If there are none, nothing is due until one
    /// sends again.
    fn end_silent(&mut self, now: Time) {
        if self.watch_at.is_none_or(|at| at > now) {
            return;
        }
        self.watch_at = None;
        for slot in 0..self.slots.len() {
            let Some(connection) = self.slots.at_mut(slot) else { continue };
            if !std::mem::take(&mut connection.unsettled) || !matches!(connection.phase, Phase::Established) {
                continue;
            }
            let Some(sample) = connection.stream.as_ref().map(|stream| vectored_io::answers(stream.as_fd())) else {
                continue;
            };
            let id = connection.id;
            match sample {
                Ok(sample) if connection.silence.lasts(sample, now, self.config.peer_timeout) => {
                    self.end(slot, id, Fault::other(ErrorKind::PeerLost, "the peer's host answers nothing"));
                }
                Ok(sample) => {
                    connection.unsettled = sample.waiting;
                    if sample.waiting {
                        self.watch();
                    }
                }
                Err(error) => self.end(slot, id, Fault::Socket(error)),
            }
        }
    }
}

impl Connection {
    /// Stages a preamble.
    fn greet(&mut self, greeting: Greeting, private: &[u8]) {
        if let Some(queues) = &mut self.queues {
            queues.wire.stage(&Preamble::encode(greeting, private.len()));
            queues.wire.stage(private);
            queues.wire.commit_staged(PREAMBLE + private.len());
        }
    }
}

/// The kind of a preamble and its private data.
type Greeted = (Greeting, Box<[u8]>);

impl Inbound {
    /// Takes a complete preamble and its private data from the buffer, once they have arrived.
    fn take_greeting(&mut self) -> Result<Option<Greeted>, Violation> {
        let Some(Preamble { greeting, private_len, .. }) = Preamble::decode(self.buffered())? else { return Ok(None) };
        let len = PREAMBLE + private_len;
        let Some(private) = self.buffered().get(PREAMBLE..len).map(Box::from) else { return Ok(None) };
        self.consume(len);
        Ok(Some((greeting, private)))
    }
}
