//! How further streams join a connection ([`crate::streams`] draws it).

use std::hash::BuildHasher;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use bmi_backend::{Fault, net};
use bmi_core::transport::ConnId;
use bmi_core::{PeerIdentity, Time, mutated};
use bmi_tls::{Channel, Security};
use mio::{Interest, Token};

use super::sockets::{self, Newcomer};
use super::{Connection, Phase};
use crate::TcpTransport;
use crate::frame::{BAD_PREAMBLE, Greeting, PREAMBLE, Preamble};
use crate::line::{Arrived, Line, Next, Shaken};
use crate::streams::{self, MAX_STREAMS, Stage, Stream, Streams};

/// Length of a token in bytes.
pub(crate) const TOKEN: usize = 20;

/// Names a connection of a group of transports: the member, slot and generation, and a keyed hash
/// of them. It is good as long as the connection lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JoinToken(pub(super) [u8; TOKEN]);

impl JoinToken {
    pub(super) fn new(secret: &impl BuildHasher, member: usize, conn: ConnId) -> JoinToken {
        let name = [member as u32, conn.slot, conn.generation];
        let mut token = [0; TOKEN];
        for (at, word) in token.chunks_exact_mut(4).zip(name) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        token[12..].copy_from_slice(&secret.hash_one(name).to_le_bytes());
        JoinToken(token)
    }

    /// Returns the member and the connection that the token names, if this group has made it.
    fn open(self, secret: &impl BuildHasher) -> Option<(usize, ConnId)> {
        let word = |at: usize| u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes"));
        let (member, conn) = (word(0) as usize, ConnId { slot: word(4), generation: word(8) });
        (JoinToken::new(secret, member, conn) == self).then_some((member, conn))
    }
}

/// Sends a greeting on a further stream.
fn greet(line: &mut Line, greeting: Greeting, private: &[u8]) -> io::Result<()> {
    line.say(&[&Preamble::encode(greeting, 0, private.len())[..], private].concat())
}

impl TcpTransport {
    fn stream_token(conn: ConnId, number: usize) -> Token {
        Token((conn.slot as usize * MAX_STREAMS + number) << crate::TOKEN_BITS | crate::TOKEN_STREAM)
    }

    /// Makes an established connection one of `1 + further` streams, with their places empty.
    pub(super) fn spread(connection: &mut Connection, further: u8) {
        let (Some(first), Some(queues)) = (&connection.line, &mut connection.queues) else { return };
        streams::limit_unsent(first.socket.as_fd());
        queues.spread_over_streams();
        connection.streams = Some(Box::new(Streams::new(further)));
    }

    /// Dials the further streams of a connection that the peer has accepted.
    pub(super) fn dial_streams(&mut self, conn: ConnId, token: JoinToken) {
        let deadline = self.now + self.config.limits.handshake_timeout;
        let Some(connection) = self.slots.find_mut(conn) else { return };
        let (Some(first), Some(streams)) = (&connection.line, &mut connection.streams) else { return };
        let dial = |to: SocketAddr, number: usize| {
            let mut socket = sockets::dial(to, &self.config)?;
            let both = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut socket, TcpTransport::stream_token(conn, number), both)?;
            Ok::<_, io::Error>(Stream::new(Line::new(socket), Stage::Dialing))
        };
        for number in 0..streams.len() {
            match first.socket.peer_addr().and_then(|to| dial(to, number)) {
                Ok(stream) => streams.put(number, Some(stream)),
                Err(error) => tracing::debug!(%error, "a further stream cannot be dialed"),
            }
        }
        (streams.deadline, connection.token) = (Some(deadline), Some(token));
        self.deadlines.add(Some(deadline));
    }

    /// Handles a socket that has brought a token. It is closed if the token is no good.
    pub(super) fn take_join(&mut self, slot: u32, token: JoinToken) {
        let Some(mut line) = self.remove(slot).and_then(|newcomer| newcomer.line) else { return };
        match token.open(&self.tokens) {
            Some((member, conn)) if member == self.shard.index() => self.join(conn, line),
            Some((member, conn)) => {
                let Ok(from) = line.socket.peer_addr() else { return };
                // The other member's epoll is another one.
                if self.poll.registry().deregister(&mut line.socket).is_ok() {
                    let newcomer = Newcomer { line, from, arrived: self.now, join: Some((member, conn)) };
                    self.shard.pass(member, newcomer);
                }
            }
            None => tracing::debug!("closed a socket that would join a connection and has no token of it"),
        }
    }

    /// Looks at the first bytes of a line that this member has accepted for the group. Returns
    /// true if this member goes on with it: it is a further stream, or at its end. Others are
    /// assigned to a member now, with their bytes unread.
    pub(super) fn sort(&mut self, slot: u32) -> bool {
        let Some(connection) = self.slots.at_mut(slot) else { return false };
        let (Phase::HalfOpen { unsorted, .. }, Some(line)) = (&mut connection.phase, &mut connection.line) else {
            return true;
        };
        let Some(arrived) = *unsorted else { return true };
        let mut bytes = [0; PREAMBLE];
        let seen = line.peek(&mut bytes);
        match seen.map(|n| (n, Preamble::decode(&bytes[..n]))) {
            // A record that ends within the preamble is of nobody who would join.
            Ok((1.., Ok(None))) if line.has_channel() => {
                *unsorted = None;
                return true;
            }
            Ok((1.., Ok(None))) => return false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Ok((1.., Ok(Some(preamble)))) if preamble.greeting != Greeting::Join => {}
            _ => {
                *unsorted = None;
                return true;
            }
        }
        let Some(mut line) = self.remove(slot).and_then(|newcomer| newcomer.line) else { return false };
        let Ok(from) = line.socket.peer_addr() else { return false };
        if self.poll.registry().deregister(&mut line.socket).is_ok()
            && let Some((newcomer, place)) = self.shard.assign(Newcomer { line, from, arrived, join: None })
        {
            self.handle_newcomer(newcomer, Some(place));
        }
        false
    }

    /// Gives a line to the connection whose token it has brought, if that has a place for it and
    /// the same peer.
    pub(super) fn join(&mut self, conn: ConnId, mut line: Line) {
        let established = |connection: &&mut Connection| matches!(connection.phase, Phase::Established);
        let Some(connection) = self.slots.find_mut(conn).filter(established) else { return };
        if !connection.is_of(&mut line) {
            return tracing::debug!("closed a socket that has the token of another peer's connection");
        }
        let Some(streams) = connection.streams.as_deref_mut() else { return };
        let Some(number) = streams.vacant() else { return };
        let both = Interest::READABLE | Interest::WRITABLE;
        let (token, registry) = (TcpTransport::stream_token(conn, number), self.poll.registry());
        let watched = registry.reregister(&mut line.socket, token, both);
        let watched = watched.or_else(|_| registry.register(&mut line.socket, token, both));
        match watched.and_then(|()| greet(&mut line, Greeting::Accept, &[])) {
            Ok(()) => streams.put(number, Some(Stream::new(line, Stage::Greeting))),
            Err(error) => tracing::debug!(%error, "a further stream could not join"),
        }
        self.ready.add(conn.slot);
    }

    /// Handles an event of a further stream.
    pub(crate) fn handle_stream_readiness(&mut self, index: usize, flags: libc::c_int) {
        let (slot, number) = ((index / MAX_STREAMS) as u32, index % MAX_STREAMS);
        let Some(connection) = self.slots.at_mut(slot) else { return };
        let Some(stream) = connection.streams.as_mut().and_then(|streams| streams.at_mut(number)) else { return };
        let (room, readable) = stream.note(flags);
        if room {
            self.dirty.add(slot);
        }
        if readable || stream.stage == Stage::Dialing {
            self.ready.add(slot);
        }
    }

    /// Lets the streams go on that have not joined. Those that fail are dropped.
    pub(crate) fn continue_joins(&mut self, slot: u32) {
        let Some(connection) = self.slots.at_mut(slot) else { return };
        let first = connection.line.as_mut().map_or(PeerIdentity::Nobody, Line::identity);
        let (Some(streams), token) = (&mut connection.streams, connection.token) else { return };
        let (security, host) = (self.config.security.as_ref(), connection.peer.host());
        let mut waiting = false;
        for number in 0..streams.len() {
            let Some(stream) = streams.at_mut(number).filter(|stream| stream.stage != Stage::Joined) else { continue };
            let advanced = secure(stream, security, host).and_then(|()| advance(stream, token));
            match advanced {
                Ok(()) if stream.stage == Stage::Joined && stream.line.identity() != first => {
                    tracing::debug!("closed a further stream to another peer");
                    streams.put(number, None);
                }
                Ok(()) if stream.stage == Stage::Joined => {
                    streams::limit_unsent(stream.line.socket.as_fd());
                    self.dirty.add(slot);
                }
                Ok(()) => waiting = true,
                Err(error) => {
                    tracing::debug!(%error, "a further stream did not join");
                    streams.put(number, None);
                }
            }
        }
        if !waiting && streams.deadline.take().is_some() {
            self.deadlines.refresh();
        }
    }
}

/// Prepares a stream that is dialed for its handshake.
fn secure(stream: &mut Stream, security: Option<&Security>, host: &str) -> Result<(), Fault> {
    if stream.stage != Stage::Dialing {
        return Ok(());
    }
    let Some(outcome) = net::dialed(&stream.line.socket) else { return Ok(()) };
    outcome.and_then(|()| sockets::lift_limit_of_dialing(&stream.line.socket)).map_err(Fault::Unreachable)?;
    if let Some(security) = security {
        stream.line.secure(Channel::client(security, host)?);
        stream.line.push().map_err(Fault::Socket)?;
    }
    stream.stage = Stage::Shaking;
    Ok(())
}

/// Brings a stream as far as it comes without waiting.
fn advance(stream: &mut Stream, token: Option<JoinToken>) -> Result<(), Fault> {
    while let (Stage::Shaking, Some(token)) = (stream.stage, token) {
        match stream.line.shake(&[])? {
            Shaken::Waits => {
                stream.readable = false;
                return Ok(());
            }
            Shaken::Again => {}
            Shaken::Done => {
                greet(&mut stream.line, Greeting::Join, &token.0).map_err(Fault::Socket)?;
                stream.stage = Stage::Greeting;
            }
        }
    }
    while stream.readable && stream.stage == Stage::Greeting {
        match stream.inbound.fill(stream.line.source())? {
            Arrived { next: Next::Empty, .. } => stream.readable = false,
            Arrived { bytes: 0, .. } => return Err(BAD_PREAMBLE.into()), // there is no room for so much
            _ => {}
        }
        match stream.inbound.take_greeting()? {
            None => {}
            Some(greeted) if greeted.greeting == Greeting::Accept && greeted.further == 0 => {
                if token.is_some() {
                    greet(&mut stream.line, Greeting::Accept, &[]).map_err(Fault::Socket)?;
                }
                stream.stage = Stage::Joined;
            }
            Some(_) => return Err(BAD_PREAMBLE.into()),
        }
    }
    Ok(())
}

impl Connection {
    /// Returns true if the peer of this connection is at the other end of the line too.
    fn is_of(&mut self, line: &mut Line) -> bool {
        let own = self.line.as_mut().map_or(PeerIdentity::Nobody, Line::identity);
        own == line.identity() || mutated("tcp/a-stream-of-another-peer-joins")
    }
}

/// Returns the deadline of streams that are being dialed.
pub(super) fn deadline(connection: &Connection) -> Option<Time> {
    connection.streams.as_ref().and_then(|streams| streams.deadline)
}
