//! How connections end: at once, or by draining the queue pair; in order; by a deadline.

use bmi_core::transport::{ConnId, Event};
use bmi_core::{ErrorKind, Time};

use super::connection::{Connection, Phase};
use crate::IbTransport;
use crate::config::DRAIN;
use crate::error::{Fault, Violation, adapter_failed};

impl IbTransport {
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
                // No upper layer knows of it. A peer of another version learns this side's version,
                // and one that does TLS that this side does not.
                if let Fault::Violation(Violation::Version { .. }) | Fault::Denied(_) = fault
                    && let Some(side) = &mut connection.side
                {
                    side.refuse();
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
                    connection.say_bye(&fault);
                }
                self.report_end(slot, fault);
            }
        }
    }

    /// Ends every connection.
    pub(crate) fn end_all(&mut self, fault: impl Fn() -> Fault) {
        for slot in 0..self.slots.len() {
            if let Some(id) = self.slots.at_mut(slot).map(|connection| connection.id) {
                self.end(slot, id, fault());
            }
        }
    }

    fn end_routing(&mut self, slot: u32, fault: Fault) {
        let Some(connection) = self.slots.at_mut(slot) else { return };
        connection.say_bye(&fault);
        connection.side = None;
        if let Phase::Routing { ended, .. } = &mut connection.phase {
            *ended = Some(fault);
        }
        self.deadlines.refresh();
    }

    pub(super) fn report_end(&mut self, slot: u32, fault: Fault) {
        let Some(connection) = self.discard(slot) else { return };
        let (conn, peer) = (connection.id, connection.peer.clone());
        tracing::debug!(%peer, %fault, "connection ended");
        self.flush(connection);
        self.pending.push(Event::Disconnected { conn, reason: fault.into_error(&peer) });
    }

    /// Takes a connection out of the tables.
    pub(super) fn discard(&mut self, slot: u32) -> Option<Connection> {
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
    pub(super) fn flush(&mut self, connection: Connection) {
        if let Some(queues) = connection.queues {
            queues.end(&mut self.pending);
        }
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
            connection.say_bye(&fault);
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
}
