//! Listening, and side channels that are accepted before anything is heard from them.

use std::net::SocketAddr;

use bmi_backend::{Place, Round, check_scheme, listen_failed, net};
use bmi_core::transport::ConnId;
use bmi_core::{Addr, Error, Scheme, Time};
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Token};

use super::connection::{Connection, Phase, tune};
use crate::error::Fault;
use crate::side_channel::SideChannel;
use crate::{IbTransport, TOKEN_BITS, TOKEN_CONNECTION, TOKEN_LISTENER};

/// An accepted side channel that no transport has a connection for yet.
pub(crate) struct Newcomer {
    stream: TcpStream,
    from: SocketAddr,
    arrived: Time,
}

impl IbTransport {
    pub(super) fn check_addr(&self, addr: &Addr) -> Result<(), Error> {
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
        let token = Token((id.slot as usize) << TOKEN_BITS | TOKEN_CONNECTION);
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

    /// Takes a slot for a new connection.
    pub(super) fn insert(&mut self, peer: Addr, phase: Phase, place: Place) -> Result<ConnId, Error> {
        let first_packet = self.next_first_packet();
        let make = |id| Connection { id, peer, phase, side: None, queues: None, first_packet, _place: place };
        let id = self.slots.insert(make)?;
        self.unsettled = true;
        let deadline = self.slots.find_mut(id).and_then(|connection| connection.deadline());
        self.deadlines.add(deadline);
        Ok(id)
    }
}
