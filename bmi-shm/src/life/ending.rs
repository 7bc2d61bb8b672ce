//! How connections end: what happens when a peer dies, breaks the rules, or is left.
//!
//! A peer's end is the end of its socket. The kernel reports it however the peer died. The records
//! that the peer had put into its ring before are still there, because the mapping outlives the
//! process.
//!
//! **Memory at the end.** If the peer claims an exposure at the moment when it ends, the memory is
//! *retired* (see [`crate::passed`]). A copy that has begun cannot be stopped from here, and it
//! must not reach memory that is used for something else by then.

use bmi_backend::software::slot_of;
use bmi_core::transport::{ConnId, Event};
use bmi_core::{Error, Time};

use super::connection::{Connection, Draining, Phase};
use super::packet::{Greeting, Packet, encode_hello, hello};
use crate::ShmTransport;
use crate::error::{Fault, Refusal, Violation};
use crate::os::socket;
use crate::os::sys::Life;
use crate::passed::{Holder, Retired};
use crate::records::Inbound;
use crate::work::Completions;

impl ShmTransport {
    /// Takes a connection out of the tables.
    pub(super) fn remove(&mut self, slot: u32) -> Option<Connection> {
        let connection = self.slots.remove(slot)?;
        self.vacated = true;
        self.schedule.remove(slot);
        if let Phase::HalfOpen { origin, .. } = connection.phase {
            self.half_open.remove(origin, connection.id);
        }
        self.deadlines.refresh();
        Some(connection)
    }

    /// Handles the end of the peer or of its side of the connection. Records that it has sent
    /// before are still received.
    pub(super) fn peer_ended(&mut self, slot: u32, id: ConnId, fault: Fault) {
        let Some(connection) = self.slots.find_mut(id) else { return };
        if !matches!(connection.phase, Phase::Established) {
            return self.end(slot, id, fault);
        }
        let ring = self.config.tuning.ring_len.max(1 << 20);
        // A record takes at least one line, and a poll takes hundreds of records.
        connection.draining.get_or_insert(Draining { fault, polls: (ring / 64) as u32 });
        connection.more = true;
        if connection.wake() {
            self.schedule.wake(slot);
        }
    }

    /// Ends a connection at once: flushes outstanding work, then reports the end.
    pub(crate) fn end(&mut self, slot: u32, id: ConnId, fault: Fault) {
        if self.slots.find_mut(id).is_none() {
            return;
        }
        let Some(mut connection) = self.remove(slot) else { return };
        let peer = connection.peer.clone();
        let half_open = matches!(connection.phase, Phase::HalfOpen { .. });
        if fault.warns(half_open) {
            self.deadlines.warn_closed(&peer, &fault, self.now);
        } else {
            tracing::debug!(%peer, %fault, "connection ended");
        }
        if half_open {
            // No upper layer knows of it. A peer of another version learns this side's version.
            if let (Fault::Violation(Violation::Version { .. }), Some(socket)) = (&fault, &connection.socket) {
                let hello = hello(&self.config, &self.cookie, Greeting::Reject, false);
                let _ = socket::send(socket, encode_hello(&hello, &[]).bytes(), None);
            }
            return;
        }
        Self::retire_claimed(&mut self.retired, &connection, self.now);
        self.settle(&mut connection);
        let culprit = if let Fault::Refused(refusal) = fault { Some(refusal) } else { None };
        let reason = match std::mem::replace(&mut connection.phase, Phase::Requested) {
            Phase::Closing { reason, .. } => reason,
            _ => fault.into_error(&peer),
        };
        self.report_end(&mut connection, culprit, reason);
    }

    /// Withdraws all exposures of a connection that ends, and retires the memory that the peer
    /// still reaches.
    fn retire_claimed(retired: &mut Retired, connection: &Connection, now: Time) {
        let (Some(own), Some(link)) = (&connection.own, &connection.link) else { return }; // nothing was advertised
        connection.exposures.iter().for_each(|(key, ..)| own.withdraw(slot_of(key)));
        let claims = link.peer.claims();
        let claimed = || connection.exposures.iter().filter(|(key, ..)| claims.contains(key));
        if claimed().next().is_none() {
            return;
        }
        let mut life = connection.socket.as_ref().map_or(Life::Number(0), Life::of_peer);
        if life.is_over() {
            return;
        }
        let holder = Holder::new(&link.peer, life, claimed().map(|(key, segment, _)| (key, segment)));
        retired.add(holder, now);
        tracing::warn!(peer = %connection.peer, held = ?retired.usage(), "the peer may still write to memory");
    }

    /// Retires the memory that peers still reach when the transport is dropped.
    pub(crate) fn retire_all(&mut self) {
        for slot in 0..self.slots.len() {
            if let Some(connection) = self.slots.at_mut(slot) {
                Self::retire_claimed(&mut self.retired, connection, self.now);
            }
        }
    }

    /// Completes the in-place messages that the peer copied before the end.
    fn settle(&mut self, connection: &mut Connection) {
        if let (Some(link), Some(queues)) = (&mut connection.link, &mut connection.queues)
            && queues.has_gone()
            && link.refresh_taken().is_ok()
        {
            queues.complete_gone(link.in_place_copied, &mut self.pending);
        }
    }

    /// Gives back the retired memory that no peer reaches any more.
    pub(crate) fn look_at_retired(&mut self) {
        if self.retired.look(self.now) {
            self.deadlines.refresh();
        }
    }

    pub(super) fn report_end(&mut self, connection: &mut Connection, culprit: Option<Refusal>, reason: Error) {
        let pending = &mut self.pending;
        if let Some(queues) = &mut connection.queues {
            queues.flush_all(culprit, |event| pending.report(event));
        }
        pending.report(Event::Disconnected { conn: connection.id, reason });
    }

    /// Ends an established connection in order: posted work goes into the ring as far as the
    /// deadline allows.
    pub(crate) fn disconnect(&mut self, conn: ConnId, deadline: Time) {
        let now = self.now;
        let Some(connection) = self.slots.find_mut(conn) else { return };
        match &mut connection.phase {
            Phase::HalfOpen { .. } => return,
            Phase::Established if deadline > now && connection.draining.is_none() => {
                let reason = Fault::Cancelled.into_error(&connection.peer);
                connection.phase = Phase::Closing { reason, deadline };
                connection.more = true;
                if connection.wake() {
                    self.schedule.wake(conn.slot);
                }
                connection.inbound = Inbound::default();
                if let Some(queues) = &mut connection.queues {
                    queues.flush_waiting(None, |event| self.pending.report(event));
                    queues.replies.clear();
                }
            }
            Phase::Closing { deadline: known, .. } if deadline > now => *known = deadline.min(*known),
            Phase::Closing { .. } => return self.end(conn.slot, conn, Fault::Cancelled),
            _ => {
                connection.phase = Phase::Closing { reason: Fault::Cancelled.into_error(&connection.peer), deadline };
                return self.end(conn.slot, conn, Fault::Cancelled);
            }
        }
        self.deadlines.add(Some(deadline));
    }

    /// Cuts off a peer that broke the rules, and tells it why.
    pub(crate) fn cut(&mut self, slot: u32, violation: Violation) {
        let Some(connection) = self.slots.at_mut(slot) else { return };
        let id = connection.id;
        self.offenders.note(connection.process.map_or(0, |process| process.pid), self.now);
        if let Some(link) = &mut connection.link {
            link.say_taken(); // the peer treats unacknowledged messages as refused
            connection.say(&Packet::Refusal(violation.refusal()));
        }
        self.end(slot, id, violation.into());
    }
}
