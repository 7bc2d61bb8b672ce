//! Where the bytes of a stream leave and arrive: a socket, behind a channel of TLS if the transport
//! has a certificate.
//!
//! **Why here.** What is above ([`crate::wire`], [`crate::receive`]) deals in pieces of memory and
//! numbers of bytes, as the system calls do. A channel takes and gives the same, so nothing above
//! knows of it. It is present from the first byte on, or never: nothing falls back.
//!
//! **Invariants**
//! 1. Bytes that [`Line::send`] has taken are copied or at the kernel: their memory is free.
//! 2. After [`Next::Short`] and [`Next::Empty`] the socket has nothing left, and neither has the
//!    channel. Later bytes cause a new event. So a caller that stops earlier has to come back.
//! 3. Work is counted in bytes of the socket: records of one byte use up a budget sooner.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use bmi_backend::Fault;
use bmi_core::PeerIdentity;
use bmi_core::mem::copy::{copy_in, copy_out};
use bmi_tls::{Breach, Channel, Session};
use mio::net::TcpStream;

use crate::vectored_io::{self, Piece};

/// A socket, and its channel.
pub(crate) struct Line {
    pub(crate) socket: TcpStream,
    channel: Option<Box<Channel>>,
}

/// What [`Line::send`] has taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) bytes: usize,
    /// The kernel takes no more until it reports room.
    pub(crate) full: bool,
}

/// What has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    /// Number of bytes in the pieces.
    pub(crate) bytes: usize,
    /// Number of bytes that the socket has brought for them.
    pub(crate) work: usize,
    pub(crate) next: Next,
}

/// Whether there is more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// There may be.
    More,
    /// The socket gave less than was asked for. It may have reported its end.
    Short,
    /// The socket has nothing.
    Empty,
}

/// How far a handshake has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shaken {
    /// There is a channel, or no need for one.
    Done,
    /// There may be more bytes.
    Again,
    /// The peer has to send something.
    Waits,
}

/// Whether a call has nothing to give or to take for now.
fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

impl Line {
    pub(crate) fn new(socket: TcpStream) -> Line {
        Line { socket, channel: None }
    }

    /// Puts a channel between this side and the socket, which no byte has passed.
    pub(crate) fn secure(&mut self, channel: Channel) {
        self.channel = Some(Box::new(channel));
    }

    #[inline]
    pub(crate) fn source(&mut self) -> Source<'_> {
        Source { socket: self.socket.as_fd(), channel: self.channel.as_deref_mut() }
    }

    /// Returns who the peer is. Nobody proves anything without a channel.
    pub(crate) fn identity(&mut self) -> PeerIdentity {
        let session = self.channel.as_mut().and_then(|channel| channel.session());
        session.map_or(PeerIdentity::Nobody, |session| session.identity().clone())
    }

    /// Returns true while a handshake is under way: nothing can be sent.
    #[inline]
    pub(crate) fn is_shaking_hands(&self) -> bool {
        self.channel.as_ref().is_some_and(|channel| channel.is_shaking_hands())
    }

    pub(crate) fn has_channel(&self) -> bool {
        self.channel.is_some()
    }

    /// Returns true if the channel has bytes that the kernel has not taken.
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        self.channel.as_ref().is_some_and(|channel| !channel.unsent().is_empty())
    }

    /// Reads once for a handshake, if one is under way, goes on with it, and sends what it has to
    /// say. `notice` is for a peer that speaks in the clear.
    pub(crate) fn shake(&mut self, notice: &[u8]) -> Result<Shaken, Fault> {
        let Some(channel) = self.channel.as_mut().filter(|channel| channel.is_shaking_hands()) else {
            return Ok(Shaken::Done);
        };
        let space = channel.space();
        let piece = Piece::new(space.as_mut_ptr(), space.len());
        // SAFETY: `space` is borrowed exclusively for the call.
        let advanced = match unsafe { vectored_io::receive(self.socket.as_fd(), &[piece]) } {
            Ok(0) => return Err(Fault::Eof),
            Ok(n) => channel.advance(n),
            Err(error) if would_block(&error) => return Ok(Shaken::Waits),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Shaken::Again),
            Err(error) => return Err(Fault::Socket(error)),
        };
        // If it fails, reading says why.
        let _ = self.push();
        match advanced {
            Ok(done) => Ok(if done { Shaken::Done } else { Shaken::Again }),
            Err(breach) => {
                if breach == Breach::Clear && !notice.is_empty() {
                    // SAFETY: the bytes are borrowed for the call.
                    let _ = unsafe { vectored_io::send(self.socket.as_fd(), &[Piece::of(notice)]) };
                }
                Err(breach.into())
            }
        }
    }

    /// Copies the next bytes, and leaves them where they are. Returns their number.
    pub(crate) fn peek(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let Some(session) = self.channel.as_mut().and_then(|channel| channel.session()) else {
            return self.socket.peek(bytes);
        };
        loop {
            let payload = session.payload().map_err(io::Error::other)?;
            if !payload.is_empty() {
                let len = payload.len().min(bytes.len());
                bytes[..len].copy_from_slice(&payload[..len]);
                return Ok(len);
            }
            let space = session.space();
            let piece = Piece::new(space.as_mut_ptr(), space.len());
            // SAFETY: `space` is borrowed exclusively for the call.
            match unsafe { vectored_io::receive(self.socket.as_fd(), &[piece]) }? {
                0 => return Ok(0),
                n => session.filled(n),
            }
        }
    }

    // ---- sending --------------------------------------------------------------------------------

    /// Sends what the channel has for the kernel. Returns true if it has taken all.
    pub(crate) fn push(&mut self) -> io::Result<bool> {
        let Some(channel) = &mut self.channel else { return Ok(true) };
        push(&self.socket, channel, false)
    }

    /// Sends the pieces, which have `asked` bytes: as many as are taken.
    ///
    /// # Safety
    /// As `vectored_io::send`.
    #[inline]
    pub(crate) unsafe fn send(&mut self, pieces: &[Piece], asked: usize) -> io::Result<Taken> {
        if let Some(channel) = &mut self.channel {
            // SAFETY: the caller vouches for the pieces.
            return unsafe { seal(&self.socket, channel, pieces, asked) };
        }
        // SAFETY: the caller vouches for the pieces.
        match unsafe { vectored_io::send(self.socket.as_fd(), pieces) } {
            Ok(n) => Ok(Taken { bytes: n, full: n < asked }),
            Err(error) if would_block(&error) => Ok(Taken { bytes: 0, full: true }),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Taken { bytes: 0, full: false }),
            Err(error) => Err(error),
        }
    }

    /// Sends private bytes, which a new socket has room for.
    pub(crate) fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        // SAFETY: the bytes are borrowed for the call.
        let taken = unsafe { self.send(&[Piece::of(bytes)], bytes.len()) }?;
        if taken.bytes == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Ends the channel, once. Returns true if the kernel has all that there is.
    pub(crate) fn close(&mut self) -> io::Result<bool> {
        if let Some(session) = self.channel.as_mut().and_then(|channel| channel.session()) {
            session.close();
        }
        self.push()
    }

    /// Gives back the pages of empty buffers. Returns true if nothing is arriving.
    pub(crate) fn release(&mut self) -> bool {
        self.channel.as_mut().is_none_or(|channel| channel.release())
    }
}

/// Sends what the channel has. If `more` will follow at once, the kernel may keep the end of it, so
/// that no segment is short for the sake of a buffer's length.
fn push(socket: &TcpStream, channel: &mut Channel, more: bool) -> io::Result<bool> {
    while !channel.unsent().is_empty() {
        match vectored_io::send_bytes(socket.as_fd(), channel.unsent(), more) {
            Ok(n) => channel.sent(n).map_err(io::Error::other)?,
            Err(error) if would_block(&error) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Bytes that are sealed before the first ones are sent: the peer opens them while this side seals
/// the next. Each further batch is twice as long, because a system call has a price.
const FIRST_BATCH: usize = 32 << 10;

/// Seals the pieces, record by record, and sends them.
///
/// # Safety
/// As `vectored_io::send`.
#[inline(never)]
unsafe fn seal(socket: &TcpStream, channel: &mut Channel, pieces: &[Piece], asked: usize) -> io::Result<Taken> {
    let mut left = Pieces::new(pieces);
    let mut bytes = 0;
    let mut batch = FIRST_BATCH;
    loop {
        match push(socket, channel, bytes < asked && batch > 2 * FIRST_BATCH) {
            Ok(true) => {}
            Ok(false) => return Ok(Taken { bytes, full: true }),
            // What was sealed is not to be sealed again. The error comes again.
            Err(_) if bytes > 0 => return Ok(Taken { bytes, full: false }),
            Err(error) => return Err(error),
        }
        if bytes == asked {
            return Ok(Taken { bytes, full: false });
        }
        let Some(session) = channel.session() else { return Ok(Taken { bytes, full: false }) };
        let end = asked.min(bytes + batch);
        batch *= 2;
        while bytes < end && session.room() > 0 {
            let len = session.room().min(end - bytes);
            let fill = |to: &mut [u8]| {
                let mut at = 0;
                left.each(len, |piece| {
                    // SAFETY: the caller vouches for the piece. `to` is borrowed exclusively.
                    unsafe { copy_out(&mut to[at..at + piece.len()], piece.ptr()) };
                    at += piece.len();
                });
            };
            session.seal(len, fill).map_err(io::Error::other)?;
            bytes += len;
        }
    }
}

/// A place in a list of pieces.
struct Pieces<'a> {
    pieces: &'a [Piece],
    /// Bytes of the first one that are done.
    done: usize,
}

impl<'a> Pieces<'a> {
    fn new(pieces: &'a [Piece]) -> Pieces<'a> {
        Pieces { pieces, done: 0 }
    }

    /// Calls `each` with the next `len` bytes, or with all that there are.
    fn each(&mut self, mut len: usize, mut each: impl FnMut(Piece)) {
        while let (1.., [first, rest @ ..]) = (len, self.pieces) {
            let piece = first.skip(self.done).first(len);
            each(piece);
            len -= piece.len();
            self.done += piece.len();
            if self.done == first.len() {
                (self.pieces, self.done) = (rest, 0);
            }
        }
    }
}

/// Where bytes arrive.
pub(crate) struct Source<'a> {
    pub(crate) socket: BorrowedFd<'a>,
    pub(crate) channel: Option<&'a mut Channel>,
}

impl Source<'_> {
    /// Fills the pieces, which have room for `asked` bytes, in order, with as many as there are.
    /// `Eof` at the end of the stream.
    ///
    /// # Safety
    /// As `vectored_io::receive`.
    #[inline]
    pub(crate) unsafe fn receive(&mut self, pieces: &[Piece], asked: usize) -> Result<Arrived, Fault> {
        if let Some(channel) = &mut self.channel {
            let Some(session) = channel.session() else { return Err(Fault::Eof) };
            // SAFETY: the caller vouches for the pieces.
            return unsafe { open(self.socket, session, pieces, asked) };
        }
        loop {
            // SAFETY: the caller vouches for the pieces.
            return match unsafe { vectored_io::receive(self.socket, pieces) } {
                Ok(0) if asked > 0 => Err(Fault::Eof),
                Ok(n) => Ok(Arrived { bytes: n, work: n, next: if n < asked { Next::Short } else { Next::More } }),
                Err(error) if would_block(&error) => Ok(Arrived { bytes: 0, work: 0, next: Next::Empty }),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(Fault::Socket(error)),
            };
        }
    }
}

/// Most bytes that one call takes from a socket beyond those that there is room for.
const WORK: usize = 256 << 10;

/// Opens records, and copies their payload to the pieces.
///
/// # Safety
/// As `vectored_io::receive`.
#[inline(never)]
unsafe fn open(
    socket: BorrowedFd<'_>,
    session: &mut Session,
    pieces: &[Piece],
    asked: usize,
) -> Result<Arrived, Fault> {
    let mut left = Pieces::new(pieces);
    let mut arrived = Arrived { bytes: 0, work: 0, next: Next::More };
    let mut drained = Next::More;
    loop {
        if arrived.bytes == asked || arrived.work >= asked + WORK {
            return Ok(arrived);
        }
        let payload = match session.payload() {
            Ok(payload) => payload,
            // It comes again.
            Err(_) if arrived.bytes > 0 => return Ok(arrived),
            Err(breach) => return Err(breach.into()),
        };
        if !payload.is_empty() {
            let len = payload.len().min(asked - arrived.bytes);
            let mut from = payload;
            left.each(len, |piece| {
                let (now, rest) = from.split_at(piece.len());
                // SAFETY: the caller vouches for the piece.
                unsafe { copy_in(piece.ptr(), now) };
                from = rest;
            });
            session.consume(len);
            arrived.bytes += len;
            continue;
        }
        if drained != Next::More {
            return Ok(Arrived { next: drained, ..arrived });
        }
        let space = session.space();
        let (piece, room) = (Piece::new(space.as_mut_ptr(), space.len()), space.len());
        // SAFETY: `space` is borrowed exclusively for the call.
        match unsafe { vectored_io::receive(socket, &[piece]) } {
            // The end comes again.
            Ok(0) if arrived.bytes > 0 => return Ok(arrived),
            Ok(0) => return Err(Fault::Eof),
            Ok(n) => {
                session.filled(n);
                arrived.work += n;
                drained = if n < room { Next::Short } else { Next::More };
            }
            Err(error) if would_block(&error) => drained = Next::Empty,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Fault::Socket(error)),
        }
    }
}
