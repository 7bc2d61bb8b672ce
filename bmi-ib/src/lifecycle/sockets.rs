//! The sockets of side channels: listening, accepting and dialing. A name may have several
//! addresses, which are dialed one after another.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use bmi_backend::net::{self, Answer};
use bmi_backend::{Place, Round, check_private, check_scheme, listen_failed};
use bmi_core::transport::ConnId;
use bmi_core::{Addr, Error, ErrorKind, Scheme, Time};
use bmi_tls::Channel;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Token};
use socket2::{SockRef, TcpKeepalive};

use super::connection::{Connection, Phase};
use crate::error::Fault;
use crate::greeting::Message;
use crate::side_channel::SideChannel;
use crate::{IbTransport, TOKEN_BITS, TOKEN_CONNECTION, TOKEN_LISTENER};

/// Interval of TCP keepalive. If the peer's machine is gone while the queue pair is idle, this side
/// notices after about four of these.
const KEEPALIVE: std::time::Duration = std::time::Duration::from_secs(3);

/// An accepted side channel that no transport has a connection for yet.
pub(crate) struct Newcomer {
    stream: TcpStream,
    from: SocketAddr,
    arrived: Time,
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

    pub(crate) fn listen(&mut self, addr: &Addr) -> Result<Addr, Error> {
        self.check_addr(addr)?;
        let (socket, taken) = net::listen(addr, |_| Ok(()))?;
        let mut socket = TcpListener::from_std(socket);
        let token = Token(self.listeners.next_index() << TOKEN_BITS | TOKEN_LISTENER);
        let watched = self.poll.registry().register(&mut socket, token, Interest::READABLE);
        watched.map_err(|error| listen_failed(addr, error))?;
        self.listeners.add(socket);
        Ok(taken)
    }

    /// Takes the side channels that other members of the group have accepted for this transport,
    /// and accepts those that wait at the listeners.
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
        let (peer, origin) = (Addr::ib(None, from.ip().to_string(), from.port()), net::origin(from.ip()));
        let deadline = arrived + self.config.limits.handshake_timeout;
        while let Some(id) = self.half_open.first_to_go(self.slots.is_full()) {
            self.end(id.slot, id, Fault::MadeRoom);
        }
        let id = match self.insert(peer.clone(), Phase::HalfOpen { deadline, origin }, place) {
            Ok(id) => id,
            Err(error) => return self.deadlines.warn_closed(&peer, &error, self.now),
        };
        if let Err(error) = tune(&stream).and_then(|()| self.watch(id.slot, &mut stream)) {
            self.slots.remove(id.slot);
            return self.deadlines.warn_closed(&peer, &error, self.now);
        }
        let mut side = SideChannel::new(stream);
        if let Some(security) = &self.config.security {
            match Channel::server(security) {
                Ok(channel) => side.secure(channel),
                Err(breach) => {
                    self.slots.remove(id.slot);
                    return self.deadlines.warn_closed(&peer, &breach, self.now);
                }
            }
        }
        self.half_open.add(origin, id);
        if let Some(connection) = self.slots.find_mut(id) {
            connection.side = Some(side);
        }
        self.ready.add(id.slot);
    }

    /// Has epoll report on the side channel of the connection in a slot.
    fn watch(&self, slot: u32, stream: &mut TcpStream) -> io::Result<()> {
        let token = Token((slot as usize) << TOKEN_BITS | TOKEN_CONNECTION);
        self.poll.registry().register(stream, token, Interest::READABLE | Interest::WRITABLE)
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
            self.watch(id.slot, &mut stream)?;
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
        let (Phase::Dialing { candidates, private, deadline }, Some(side)) =
            (&mut connection.phase, &mut connection.side)
        else {
            return;
        };
        let Some(outcome) = net::dialed(&side.stream) else { return };
        if let Err(error) = outcome {
            let candidates = std::mem::take(candidates);
            connection.side = None;
            return self.try_candidates(id, candidates, Fault::Unreachable(error));
        }
        if let Some(security) = &self.config.security {
            match Channel::client(security, connection.peer.host()) {
                Ok(channel) => side.secure(channel),
                Err(breach) => return self.end(slot, id, breach.into()),
            }
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
}
