//! How further streams join a connection ([`crate::streams`] draws it).

use std::hash::BuildHasher;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use bmi_backend::net;
use bmi_core::Time;
use bmi_core::transport::ConnId;
use mio::net::TcpStream;
use mio::{Interest, Token};

use super::sockets::{self, Newcomer};
use super::{Connection, Phase};
use crate::TcpTransport;
use crate::frame::{Greeting, PREAMBLE, Preamble};
use crate::streams::{self, MAX_STREAMS, Stage, Stream, Streams};
use crate::vectored_io::{self, Piece};

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

/// Sends a greeting on a further stream. A new socket has room for it.
fn greet(socket: &TcpStream, greeting: Greeting, private: &[u8]) -> io::Result<()> {
    let preamble = Preamble::encode(greeting, 0, private.len());
    // SAFETY: the bytes are borrowed for the call.
    let sent = unsafe { vectored_io::send(socket.as_fd(), &[Piece::of(&preamble), Piece::of(private)]) }?;
    if sent == PREAMBLE + private.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

impl TcpTransport {
    fn stream_token(conn: ConnId, number: usize) -> Token {
        Token((conn.slot as usize * MAX_STREAMS + number) << crate::TOKEN_BITS | crate::TOKEN_STREAM)
    }

    /// Makes an established connection one of `1 + further` streams, with their places empty.
    pub(super) fn spread(connection: &mut Connection, further: u8) {
        let (Some(first), Some(queues)) = (&connection.stream, &mut connection.queues) else { return };
        streams::limit_unsent(first.as_fd());
        queues.spread_over_streams();
        connection.streams = Some(Box::new(Streams::new(further)));
    }

    /// Dials the further streams of a connection that the peer has accepted.
    pub(super) fn dial_streams(&mut self, conn: ConnId, token: JoinToken) {
        let deadline = self.now + self.config.limits.handshake_timeout;
        let Some(connection) = self.slots.find_mut(conn) else { return };
        let (Some(first), Some(streams)) = (&connection.stream, &mut connection.streams) else { return };
        let dial = |to: SocketAddr, number: usize| {
            let mut socket = sockets::dial(to, &self.config)?;
            let both = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut socket, TcpTransport::stream_token(conn, number), both)?;
            Ok::<_, io::Error>(Stream::new(socket, Stage::Dialing))
        };
        for number in 0..streams.len() {
            match first.peer_addr().and_then(|to| dial(to, number)) {
                Ok(stream) => streams.put(number, Some(stream)),
                Err(error) => tracing::debug!(%error, "a further stream cannot be dialed"),
            }
        }
        (streams.deadline, connection.token) = (Some(deadline), Some(token));
        self.deadlines.add(Some(deadline));
    }

    /// Handles a socket that has brought a token. It is closed if the token is no good.
    pub(super) fn take_join(&mut self, slot: u32, token: JoinToken) {
        let Some(socket) = self.remove(slot).and_then(|newcomer| newcomer.stream) else { return };
        match token.open(&self.tokens) {
            Some((member, conn)) if member == self.shard.index() => self.join(conn, socket),
            Some((member, conn)) => {
                let Ok(from) = socket.peer_addr() else { return };
                // The other member's epoll is another one.
                let mut stream = socket;
                if self.poll.registry().deregister(&mut stream).is_ok() {
                    let newcomer = Newcomer { stream, from, arrived: self.now, join: Some((member, conn)) };
                    self.shard.pass(member, newcomer);
                }
            }
            None => tracing::debug!("closed a socket that would join a connection and has no token of it"),
        }
    }

    /// Looks at the first bytes of a socket that this member has accepted for the group. Returns
    /// true if this member goes on with it: it is a further stream, or at its end. Others are
    /// assigned to a member now, with their bytes unread.
    pub(super) fn sort(&mut self, slot: u32) -> bool {
        let Some(connection) = self.slots.at_mut(slot) else { return false };
        let (Phase::HalfOpen { unsorted, .. }, Some(socket)) = (&mut connection.phase, &connection.stream) else {
            return true;
        };
        let Some(arrived) = *unsorted else { return true };
        let mut bytes = [0; PREAMBLE];
        let seen = socket.peek(&mut bytes);
        match seen.map(|n| (n, Preamble::decode(&bytes[..n]))) {
            Ok((1.., Ok(None))) => return false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Ok((1.., Ok(Some(preamble)))) if preamble.greeting != Greeting::Join => {}
            _ => {
                *unsorted = None;
                return true;
            }
        }
        let Some(mut stream) = self.remove(slot).and_then(|newcomer| newcomer.stream) else { return false };
        let Ok(from) = stream.peer_addr() else { return false };
        if self.poll.registry().deregister(&mut stream).is_ok()
            && let Some((newcomer, place)) = self.shard.assign(Newcomer { stream, from, arrived, join: None })
        {
            self.handle_newcomer(newcomer, Some(place));
        }
        false
    }

    /// Gives a socket to the connection whose token it has brought, if that has a place for it.
    pub(super) fn join(&mut self, conn: ConnId, mut socket: TcpStream) {
        let established = |connection: &&mut Connection| matches!(connection.phase, Phase::Established);
        let connection = self.slots.find_mut(conn).filter(established);
        let Some(streams) = connection.and_then(|connection| connection.streams.as_deref_mut()) else { return };
        let Some(number) = streams.vacant() else { return };
        let both = Interest::READABLE | Interest::WRITABLE;
        let (token, registry) = (TcpTransport::stream_token(conn, number), self.poll.registry());
        let watched = registry.reregister(&mut socket, token, both);
        let watched = watched.or_else(|_| registry.register(&mut socket, token, both));
        match watched.and_then(|()| greet(&socket, Greeting::Accept, &[])) {
            Ok(()) => streams.put(number, Some(Stream::new(socket, Stage::Greeting))),
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
        let (Some(streams), token) = (&mut connection.streams, connection.token) else { return };
        let mut waiting = false;
        for number in 0..streams.len() {
            let Some(stream) = streams.at_mut(number).filter(|stream| stream.stage != Stage::Joined) else { continue };
            match advance(stream, token) {
                Ok(()) if stream.stage == Stage::Joined => {
                    streams::limit_unsent(stream.socket.as_fd());
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

/// Brings a stream as far as it comes without waiting.
fn advance(stream: &mut Stream, token: Option<JoinToken>) -> io::Result<()> {
    if let (Stage::Dialing, Some(token)) = (stream.stage, token) {
        let Some(outcome) = net::dialed(&stream.socket) else { return Ok(()) };
        outcome?;
        sockets::lift_limit_of_dialing(&stream.socket)?;
        greet(&stream.socket, Greeting::Join, &token.0)?;
        stream.stage = Stage::Greeting;
    }
    while stream.readable && stream.stage == Stage::Greeting {
        match stream.inbound.fill(stream.socket.as_fd()) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        match stream.inbound.take_greeting() {
            Ok(None) => {}
            Ok(Some(greeted)) if greeted.greeting == Greeting::Accept && greeted.further == 0 => {
                if token.is_some() {
                    greet(&stream.socket, Greeting::Accept, &[])?;
                }
                stream.stage = Stage::Joined;
            }
            Ok(Some(_)) => return Err(io::ErrorKind::InvalidData.into()),
            Err(violation) => return Err(io::Error::new(io::ErrorKind::InvalidData, violation)),
        }
    }
    Ok(())
}

/// Returns the deadline of streams that are being dialed.
pub(super) fn deadline(connection: &Connection) -> Option<Time> {
    connection.streams.as_ref().and_then(|streams| streams.deadline)
}
