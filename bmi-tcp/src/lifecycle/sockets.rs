//! Sockets: listening, dialing, and those that were accepted.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use bmi_backend::net::{self, Answer};
use bmi_backend::{Fault, Place, Round, check_private, check_scheme, listen_failed};
use bmi_core::transport::ConnId;
use bmi_core::{Addr, Error, Scheme, Time, mutated};
use bmi_tls::Channel;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Token};
use socket2::{SockRef, Socket, TcpKeepalive};

use super::{Connection, Phase};
use crate::TcpTransport;
use crate::config::TcpConfig;
use crate::frame::Greeting;
use crate::line::Line;
use crate::queue_pair::QueuePair;
use crate::vectored_io;

/// An accepted socket that no transport has a connection for yet.
pub(crate) struct Newcomer {
    pub(super) line: Line,
    pub(super) from: SocketAddr,
    pub(super) arrived: Time,
    /// The member and the connection that it joins, if another member has read its token.
    pub(super) join: Option<(usize, ConnId)>,
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
pub(super) fn lift_limit_of_dialing(stream: &TcpStream) -> io::Result<()> {
    if mutated("tcp/a-peer-that-does-not-read-is-dead") {
        return Ok(());
    }
    SockRef::from(stream).set_tcp_user_timeout(None)
}

pub(super) fn dial(to: SocketAddr, config: &TcpConfig) -> io::Result<TcpStream> {
    let stream = net::dial(to, |socket| {
        tune(socket, config)?;
        limit_dialing(socket, config)?;
        tune_stream(socket.as_fd(), config)
    })?;
    Ok(TcpStream::from_std(stream))
}

impl TcpTransport {
    pub(crate) fn listen(&mut self, addr: &Addr) -> Result<Addr, Error> {
        check_scheme(addr, Scheme::Tcp, "TCP")?;
        let (socket, taken) = net::listen(addr, |socket| tune(socket, &self.config))?;
        let mut socket = TcpListener::from_std(socket);
        let token = Token(self.listeners.next_index() << crate::TOKEN_BITS | crate::TOKEN_LISTENER);
        let watched = self.poll.registry().register(&mut socket, token, Interest::READABLE);
        watched.map_err(|error| listen_failed(addr, error))?;
        self.listeners.add(socket);
        Ok(taken)
    }

    pub(crate) fn connect(&mut self, addr: &Addr, private: &[u8], deadline: Time) -> Result<ConnId, Error> {
        check_scheme(addr, Scheme::Tcp, "TCP")?;
        check_private(private)?;
        let phase = Phase::Dialing { candidates: Vec::new(), private: private.into(), deadline };
        let id = self.insert(addr.clone(), phase, Some(self.shard.place()))?;
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
    fn insert(&mut self, peer: Addr, phase: Phase, place: Option<Place>) -> Result<ConnId, Error> {
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
            let token = Token((id.slot as usize) << crate::TOKEN_BITS | crate::TOKEN_CONNECTION);
            self.poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
            Ok(stream)
        });
        let Some(connection) = self.slots.find_mut(id) else { return };
        match dialed {
            Ok(stream) => {
                connection.line = Some(Line::new(stream));
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
        let (Phase::Dialing { candidates, private, deadline }, Some(line)) =
            (&mut connection.phase, &mut connection.line)
        else {
            return;
        };
        let Some(outcome) = net::dialed(&line.socket) else { return };
        if let Err(error) = outcome.and_then(|()| lift_limit_of_dialing(&line.socket)) {
            let candidates = std::mem::take(candidates);
            connection.line = None;
            return self.try_candidates(id, candidates, Fault::Unreachable(error));
        }
        if let Some(security) = &self.config.security {
            match Channel::client(security, connection.peer.host()) {
                Ok(channel) => line.secure(channel),
                Err(breach) => return self.end(slot, id, breach.into()),
            }
        }
        let (private, deadline) = (std::mem::take(private), *deadline);
        connection.phase = Phase::Greeting { deadline };
        connection.greet(Greeting::Connect, self.config.streams - 1, &private, private.len());
        self.dirty.add(slot);
        // The event for "connected" may also have meant "readable", and is not repeated.
        self.ready.add(slot);
    }

    /// Takes the sockets that other members of the group have accepted for this transport, and
    /// accepts the connections that wait at the listeners.
    pub(crate) fn accept_sockets(&mut self) -> bool {
        let mut round = Round::new(&self.shard);
        // A further stream goes to the member that has its connection, so it is not assigned.
        let sorts = self.config.streams > 1 && self.shard.has_others();
        let mut unsorted = Vec::new();
        while let Some((newcomer, place)) = round.next(&self.shard, &mut self.listeners, self.now, |listener| {
            let (stream, from) = listener.accept()?;
            let newcomer = Newcomer { line: Line::new(stream), from, arrived: self.now, join: None };
            if !sorts {
                return Ok(Some(newcomer));
            }
            unsorted.push(newcomer);
            Ok(None)
        }) {
            self.handle_newcomer(newcomer, Some(place));
        }
        unsorted.into_iter().for_each(|newcomer| self.handle_newcomer(newcomer, None));
        self.deadlines.add(self.listeners.deadline());
        round.any()
    }

    pub(super) fn handle_newcomer(&mut self, newcomer: Newcomer, place: Option<Place>) {
        let Newcomer { mut line, from, arrived, join } = newcomer;
        if let Some((member, conn)) = join {
            // A member that is dropped leaves its queue to others.
            return if member == self.shard.index() {
                self.join(conn, line)
            };
        }
        let (peer, origin) = (Addr::tcp(from.ip().to_string(), from.port()), net::origin(from.ip()));
        let unsorted = place.is_none().then_some(arrived);
        let deadline = arrived + self.config.limits.handshake_timeout;
        while let Some(id) = self.half_open.first_to_go(self.slots.is_full()) {
            self.end(id.slot, id, Fault::MadeRoom);
        }
        let id = match self.insert(peer.clone(), Phase::HalfOpen { deadline, origin, unsorted }, place) {
            Ok(id) => id,
            Err(error) => return self.deadlines.warn_closed(&peer, &error, self.now),
        };
        let token = Token((id.slot as usize) << crate::TOKEN_BITS | crate::TOKEN_CONNECTION);
        let both = Interest::READABLE | Interest::WRITABLE;
        let ready = tune_stream(line.socket.as_fd(), &self.config)
            .and_then(|()| self.poll.registry().register(&mut line.socket, token, both));
        if let Some(security) = self.config.security.as_ref().filter(|_| !line.has_channel()) {
            match Channel::server(security) {
                Ok(channel) => line.secure(channel),
                Err(breach) => {
                    self.slots.remove(id.slot);
                    return self.deadlines.warn_closed(&peer, &breach, self.now);
                }
            }
        }
        if let Err(error) = ready {
            self.slots.remove(id.slot);
            return self.deadlines.warn_closed(&peer, &error, self.now);
        }
        self.half_open.add(origin, id);
        if let Some(connection) = self.slots.find_mut(id) {
            connection.line = Some(line);
        }
        self.ready.add(id.slot);
    }
}
