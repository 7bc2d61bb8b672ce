//! The handshake on the side channel, and the connection of the queue pairs in the middle of it.

use std::io;

use bmi_backend::{Outcome, check_private, request_gone};
use bmi_core::transport::{ConnId, Event};
use bmi_core::{Error, ErrorKind, PeerIdentity, Time};

use super::connection::{Connection, Next, Phase};
use crate::IbTransport;
use crate::error::{BAD_ACCESS, Bye, Fault, Violation, from_bye, no_route};
use crate::greeting::{Message, Port};
use crate::queue_pair::QueuePair;
use crate::verbs::Path;

impl IbTransport {
    /// Returns this side of a connection, as the peer needs it.
    pub(super) fn own_port(&mut self, slot: u32) -> Port {
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

    pub(super) fn give_queues(&mut self, id: ConnId) -> Result<(), Error> {
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
            connection.say_bye(&fault);
            return self.report_end(conn.slot, fault);
        }
        let said = match next {
            Next::Ready(private) => {
                let said = connection.say(Message::Ready, &[]);
                let identity = connection.identity();
                self.pending.push(Event::Established { conn, identity, private });
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
                let from = Box::new(connection.peer.clone());
                self.deadlines.refresh();
                if let Err(error) = self.give_queues(id) {
                    self.deadlines.warn_closed(&from, &error, self.now);
                    if let Some(mut connection) = self.discard(slot) {
                        let _ = connection.say(Message::Bye(Bye::Exhausted, false), &[]);
                    }
                    return Ok(());
                }
                let identity = self.slots.at_mut(slot).map_or(PeerIdentity::Nobody, Connection::identity);
                self.pending.push(Event::ConnectRequest { conn: id, from, identity, private });
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
            (Message::Bye(Bye::Secure, _), Phase::Greeting { .. }) => {
                return Err(Fault::Denied("it requires TLS, and this side has no certificate".into()));
            }
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
        let (conn, identity) = (connection.id, connection.identity());
        self.pending.push(Event::Established { conn, identity, private: Box::default() });
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
}
