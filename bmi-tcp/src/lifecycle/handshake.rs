//! The handshake: the preamble of either side, with the private data of a request and of its
//! answer.

use bmi_backend::{Fault, Violation, check_private, request_gone};
use bmi_core::transport::{ConnId, Event};
use bmi_core::{Error, PeerIdentity};

use super::join::{JoinToken, TOKEN};
use super::{Connection, LONGEST_GREETING, Phase};
use crate::TcpTransport;
use crate::frame::{BAD_PREAMBLE, Greeting, PREAMBLE, Preamble};
use crate::line::{Arrived, Line, Next, Shaken};
use crate::queue_pair::QueuePair;
use crate::receive::Inbound;

impl TcpTransport {
    /// Handles bytes that arrive before the end of the handshake.
    pub(crate) fn receive_greeting(&mut self, slot: u32, events: &mut Vec<Event>) -> bool {
        let Some(connection) = self.slots.at_mut(slot) else { return false };
        let id = connection.id;
        let unsorted = matches!(connection.phase, Phase::HalfOpen { unsorted: Some(_), .. });
        if !self.shake(slot) || unsorted && !self.sort(slot) {
            return true;
        }
        let Some(connection) = self.slots.at_mut(slot) else { return false };
        let (Some(line), inbound) = (&mut connection.line, &mut connection.inbound) else { return false };
        let filled = inbound.fill(line.source());
        let early = matches!(connection.phase, Phase::Requested);
        let greeted = match filled {
            Ok(Arrived { bytes: 0, next: Next::Empty, .. }) => return false,
            Ok(Arrived { bytes: 0, .. }) if inbound.buffered().len() >= LONGEST_GREETING => inbound.take_greeting(),
            Ok(Arrived { bytes: 1.., .. }) if early => {
                Err(Violation::Other("it sent bytes before it was accepted").into())
            }
            Ok(_) => inbound.take_greeting(),
            Err(fault) => Err(fault),
        };
        let identity = line.identity();
        match (greeted, &connection.phase) {
            // More bytes are needed. The socket has not reported yet that it is empty, so there may
            // be some.
            (Ok(None), _) => {
                self.ready.add(slot);
            }
            (
                Ok(Some(Greeted { greeting: Greeting::Connect, private, further, .. })),
                Phase::HalfOpen { origin, .. },
            ) if inbound.buffered().is_empty() => {
                self.half_open.remove(*origin, id);
                connection.phase = Phase::Requested;
                connection.further = further;
                connection.queues = Some(Box::new(QueuePair::new(id, &self.config)));
                let from = Box::new(connection.peer.clone());
                self.deadlines.refresh();
                events.push(Event::ConnectRequest { conn: id, from, identity, private });
                self.ready.add(slot);
            }
            (Ok(Some(Greeted { greeting: Greeting::Join, private, .. })), Phase::HalfOpen { .. })
                if inbound.buffered().is_empty() && private.len() == TOKEN =>
            {
                let mut token = [0; TOKEN];
                token.copy_from_slice(&private);
                self.take_join(slot, JoinToken(token));
            }
            (Ok(Some(Greeted { greeting: Greeting::Accept, private, further, token })), Phase::Greeting { .. })
                if further < self.config.streams =>
            {
                connection.inbound.grow(self.config.tuning.read_ahead.max(4 << 10));
                connection.phase = Phase::Established;
                self.deadlines.refresh();
                events.push(Event::Established { conn: id, identity, private });
                self.ready.add(slot);
                if let Some(token) = token {
                    TcpTransport::spread(connection, further);
                    self.dial_streams(id, token);
                }
            }
            (Ok(Some(Greeted { greeting: Greeting::Reject, private, .. })), Phase::Greeting { .. }) => {
                if let Some(mut connection) = self.remove(slot) {
                    if let Some(queues) = &mut connection.queues {
                        queues.flush_all(None, |event| events.push(event));
                    }
                    events.push(Event::Rejected { conn: id, private });
                }
            }
            (Ok(Some(Greeted { greeting: Greeting::Secure, .. })), Phase::Greeting { .. }) => {
                self.end(slot, id, Fault::Denied("it requires TLS, and this side has no certificate".into()));
            }
            (Ok(Some(_)), _) => self.end(slot, id, BAD_PREAMBLE.into()),
            (Err(fault), _) => self.end(slot, id, fault),
        }
        true
    }

    /// Goes on with the handshake of TLS, if one is under way. Returns true if a greeting can be
    /// read.
    fn shake(&mut self, slot: u32) -> bool {
        let Some(connection) = self.slots.at_mut(slot) else { return false };
        let (id, Some(line)) = (connection.id, &mut connection.line) else { return false };
        if !line.is_shaking_hands() {
            return true;
        }
        let Some(steps) = self.steps.checked_sub(1) else {
            self.ready.add(slot);
            return false;
        };
        let half_open = matches!(connection.phase, Phase::HalfOpen { .. });
        let notice = if half_open { &Preamble::encode(Greeting::Secure, 0, 0)[..] } else { &[] };
        match line.shake(notice) {
            Ok(shaken) => {
                if shaken != Shaken::Waits {
                    self.steps = steps;
                }
                if line.has_unsent() || shaken == Shaken::Done {
                    self.dirty.add(slot);
                }
                if shaken == Shaken::Again {
                    self.ready.add(slot);
                }
                shaken == Shaken::Done
            }
            Err(fault) => {
                self.end(slot, id, fault);
                false
            }
        }
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
        let further = connection.further.min(self.config.streams - 1);
        let token = JoinToken::new(&self.tokens, self.shard.index(), conn);
        if further > 0 {
            TcpTransport::spread(connection, further);
            connection.greet(Greeting::Accept, further, &[private, &token.0].concat(), private.len());
        } else {
            connection.greet(Greeting::Accept, 0, private, private.len());
        }
        self.dirty.add(conn.slot);
        self.ready.add(conn.slot);
        let identity = connection.line.as_mut().map_or(PeerIdentity::Nobody, Line::identity);
        self.pending.push(Event::Established { conn, identity, private: Box::default() });
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
        if let Some(line) = connection.line.take() {
            let mut bytes = Preamble::encode(Greeting::Reject, 0, private.len()).to_vec();
            bytes.extend_from_slice(private);
            self.say_last(line, &bytes);
        }
    }
}

impl Connection {
    /// Stages a preamble, and what follows it: `private_len` bytes of private data, then the token
    /// in an `Accept` of further streams.
    pub(super) fn greet(&mut self, greeting: Greeting, further: u8, rest: &[u8], private_len: usize) {
        if let Some(queues) = &mut self.queues {
            queues.wire.stage(&Preamble::encode(greeting, further, private_len));
            queues.wire.stage(rest);
            queues.wire.commit_staged(PREAMBLE + rest.len());
        }
    }
}

/// A preamble and what follows it.
pub(super) struct Greeted {
    pub(super) greeting: Greeting,
    pub(super) further: u8,
    pub(super) private: Box<[u8]>,
    /// In an `Accept` of further streams.
    pub(super) token: Option<JoinToken>,
}

impl Inbound {
    /// Takes a complete greeting from the buffer, once it has arrived.
    pub(super) fn take_greeting(&mut self) -> Result<Option<Greeted>, Fault> {
        let preamble = match Preamble::decode(self.buffered()) {
            Ok(Some(preamble)) => preamble,
            Ok(None) => return Ok(None),
            Err(Violation::Magic) => return Err(bmi_tls::unknown_magic(self.buffered())),
            Err(violation) => return Err(violation.into()),
        };
        let Preamble { greeting, further, private_len, .. } = preamble;
        let rest = &self.buffered()[PREAMBLE..];
        let Some((private, rest)) = rest.split_at_checked(private_len) else { return Ok(None) };
        let private = Box::from(private);
        let mut len = PREAMBLE + private_len;
        let mut token = None;
        if greeting == Greeting::Accept && further > 0 {
            let Some(bytes) = rest.first_chunk() else { return Ok(None) };
            token = Some(JoinToken(*bytes));
            len += TOKEN;
        }
        self.consume(len);
        Ok(Some(Greeted { greeting, further, private, token }))
    }
}
