//! Connecting: the look-up of a name, and one address after the other until the side channel is
//! there.

use std::net::SocketAddr;

use bmi_backend::check_private;
use bmi_backend::net::{self, Answer};
use bmi_core::transport::ConnId;
use bmi_core::{Addr, Error, ErrorKind, Time};
use mio::net::TcpStream;
use mio::{Interest, Token};

use super::connection::{Phase, tune};
use crate::error::Fault;
use crate::greeting::Message;
use crate::side_channel::SideChannel;
use crate::{IbTransport, TOKEN_BITS, TOKEN_CONNECTION};

impl IbTransport {
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
            let token = Token((id.slot as usize) << TOKEN_BITS | TOKEN_CONNECTION);
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
}
