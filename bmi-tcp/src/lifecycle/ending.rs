//! The ends of connections: in order, by a violation, by a deadline, or because a host is silent.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use bmi_backend::software::Refusal;
use bmi_backend::{Fault, Violation};
use bmi_core::transport::{ConnId, Event};
use bmi_core::{Error, ErrorKind, Time};
use mio::net::TcpStream;
use mio::{Interest, Token};

use super::{Connection, Ending, Phase};
use crate::TcpTransport;
use crate::config::LINGER;
use crate::frame::{Frame, Greeting, Preamble};
use crate::line::Line;
use crate::vectored_io::{self, Piece};

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

impl TcpTransport {
    /// Sends the bytes that fit at once, and ends the stream. For lines that have nothing else to
    /// send.
    pub(super) fn say_last(&mut self, mut line: Line, bytes: &[u8]) {
        let said = if bytes.is_empty() { Ok(()) } else { line.say(bytes) };
        let closed = line.close();
        let shut = line.socket.shutdown(std::net::Shutdown::Write);
        if let Err(error) = said.and(closed).and(shut) {
            tracing::debug!(%error, "the peer could not be told why its connection ends");
        }
        self.linger(line.socket);
    }

    /// Keeps a socket that was shut until the peer has seen its end. The number is limited to that
    /// of half-open sockets. Otherwise a peer that makes this side shut sockets faster than they go
    /// away could use up its descriptors.
    pub(super) fn linger(&mut self, mut stream: TcpStream) {
        if self.lingering.len() >= self.config.limits.max_half_open {
            return;
        }
        let entry = self.lingering.vacant_entry();
        let token = Token(entry.key() << crate::TOKEN_BITS | crate::TOKEN_LINGERING);
        let registered = self.poll.registry().reregister(&mut stream, token, Interest::READABLE);
        let deadline = self.now + LINGER;
        if registered.is_ok() {
            entry.insert(Lingering { stream, deadline });
            self.deadlines.add(Some(deadline));
        }
    }

    /// Removes a connection from the tables.
    pub(super) fn remove(&mut self, slot: u32) -> Option<Connection> {
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
            // this version, and one of another kind that it is not served. TLS has its own words.
            let Some(line) = connection.line.take() else { return };
            match fault {
                Fault::Denied(_) if line.has_channel() => self.say_last(line, &[]),
                Fault::Denied(_) | Fault::Violation(Violation::Version { .. }) => {
                    self.say_last(line, &Preamble::encode(Greeting::Reject, 0, 0));
                }
                _ => {}
            }
            return;
        }
        let ending = std::mem::replace(&mut connection.phase, Phase::Requested);
        let (reason, shut) = match ending {
            Phase::Ending(ending) => (ending.reason, ending.shut && !ending.graceful),
            _ => (fault.into_error(peer), false),
        };
        self.report_end(&mut connection, culprit, reason);
        if let (true, Some(line)) = (shut, connection.line.take()) {
            self.linger(line.socket);
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
                connection.streams.iter_mut().for_each(|streams| streams.abandon());
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
            if let (Phase::Established, Some(streams)) = (&connection.phase, &mut connection.streams) {
                streams.give_up();
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
            let id = connection.id;
            match connection.is_silent(now, self.config.peer_timeout) {
                Ok(true) => self.end(slot, id, Fault::other(ErrorKind::PeerLost, "the peer's host answers nothing")),
                Ok(false) if connection.unsettled => self.watch(),
                Ok(false) => {}
                Err(error) => self.end(slot, id, Fault::Socket(error)),
            }
        }
    }
}

impl Connection {
    /// Asks the system about each socket. Returns true if the host counts as dead, and notes
    /// whether it still owes an answer.
    fn is_silent(&mut self, now: Time, timeout: Duration) -> io::Result<bool> {
        let first = self.line.as_ref().map(|line| (&line.socket, &mut self.silence));
        let further = self.streams.iter_mut().flat_map(|streams| streams.iter_mut());
        let mut silent = false;
        for (socket, silence) in
            first.into_iter().chain(further.map(|stream| (&stream.line.socket, &mut stream.silence)))
        {
            let sample = vectored_io::answers(socket.as_fd())?;
            silent |= silence.lasts(sample, now, timeout);
            self.unsettled |= sample.waiting;
        }
        Ok(silent)
    }
}
