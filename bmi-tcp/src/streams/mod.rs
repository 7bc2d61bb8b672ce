//! Several TCP connections, the *streams*, for one connection of the transport.
//!
//! **Why.** One flow does not fill every path. A policer, a hash over links, or one lost packet on
//! a long path bounds what it carries. Off by default (`TcpConfig::streams`): where one flow fills
//! the path, more of them only cost system calls.
//!
//! **Protocol.** The first stream is the connection as it is without others. It carries everything,
//! in order, also its share of long transfers. The *further* streams carry nothing but parts of
//! long writes and of answers to reads (`queue_pair/spread.rs` has the rules of order).
//!
//! ```text
//!   connecting side                                     listening side
//!   CONNECT, asks for f further streams ══ first ═════>
//!                   <═══════════════════════ first ════ ACCEPT, the smaller of both numbers; a token
//!   JOIN, token ══════ a further one ═════════════════>  HalfOpen, then one of the connection's
//!                   <═════════════════ a further one ══ ACCEPT
//!   ACCEPT, PART … ════ a further one ════════════════>  PART …
//! ```
//!
//! A side sends parts on a stream after it has received ACCEPT there. A stream that fails before
//! that is dropped, and the connection goes on with the others. The loss of one that has joined
//! ends the connection: nobody knows which of its bytes have arrived.
//!
//! **Invariants**
//! 1. *No stranger joins.* A token is a keyed hash of the connection's name. A socket that brings
//!    another one is closed. Until it has brought one, it is a half-open socket like any other.
//! 2. *A part is on the wire of one stream until it is sent*, so the memory that the wire refers to
//!    is held (`queue_pair/spread.rs`, 4).
//! 3. The work per stream and poll is bounded. A stream that may have bytes is `readable`, and its
//!    connection is in the transport's list.
//!
//! **Fairness.** A stream gets the next part when its last one has left. The kernel takes at most
//! [`UNSENT`] bytes more than it can send, so a slow stream does not collect parts that another one
//! could carry.
//!
//! **Tests.** `tests/it/streams`; the conformance suite over `streams`.

use std::io;
use std::os::fd::BorrowedFd;

use bmi_backend::Fault;
use bmi_backend::software::Exposures;
use bmi_core::Time;
use bmi_core::transport::Event;
use socket2::SockRef;

use crate::config::TcpConfig;
use crate::frame::{LONG_HEADER, Whole};
use crate::line::{Line, Taken};
use crate::queue_pair::QueuePair;
use crate::receive::{BYTE_BUDGET, Context, Inbound, Received};
use crate::silence::Silence;
use crate::vectored_io::Piece;
use crate::wire::Wire;

/// Most streams of a connection.
pub(crate) const MAX_STREAMS: usize = TcpConfig::MAX_STREAMS as usize;
/// Bytes that the kernel keeps for a stream beyond those that it can send: it must not run dry
/// before the next poll.
const UNSENT: u32 = 256 << 10;

/// How far a further stream has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Dialing,
    /// There is no channel yet.
    Shaking,
    /// The peer has not sent ACCEPT.
    Greeting,
    Joined,
}

/// A further stream.
pub(crate) struct Stream {
    pub(crate) line: Line,
    pub(crate) stage: Stage,
    pub(crate) inbound: Inbound,
    wire: Wire,
    /// The part that is on the wire.
    part: Option<Whole>,
    /// The kernel takes no more bytes until it reports room.
    blocked: bool,
    /// The socket may have bytes.
    pub(crate) readable: bool,
    /// The socket has reported its end.
    hangup: bool,
    pub(crate) silence: Silence,
}

impl Stream {
    pub(crate) fn new(line: Line, stage: Stage) -> Stream {
        Stream {
            line,
            stage,
            // Reads no byte ahead but headers.
            inbound: Inbound::new(LONG_HEADER),
            wire: Wire::new(0),
            part: None,
            blocked: false,
            readable: true,
            hangup: false,
            silence: Silence::default(),
        }
    }

    /// Sends what the channel has to answer to what has arrived. What does not fit leaves with the
    /// next part, and so does an error.
    fn answers(&mut self) {
        if self.line.has_unsent() {
            let _ = self.line.push();
        }
    }

    /// Notes an event of the socket. Returns whether there is room again, and whether there may be
    /// something to read.
    pub(crate) fn note(&mut self, flags: libc::c_int) -> (bool, bool) {
        let ended = flags & (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) != 0;
        self.hangup |= ended;
        self.readable |= ended || flags & libc::EPOLLIN != 0;
        let room = flags & libc::EPOLLOUT != 0 && self.blocked;
        self.blocked &= !room;
        (room, self.readable)
    }

    /// Sends the part on the wire, or the next one. Returns whether bytes were sent.
    fn send(&mut self, queues: &mut QueuePair, pieces: &mut Vec<Piece>, requests_only: bool) -> io::Result<bool> {
        if self.line.has_unsent() && !self.line.push()? {
            self.blocked = true;
            return Ok(false);
        }
        if self.wire.backlog() == 0 {
            self.part = queues.commit_part(&mut self.wire, requests_only);
        }
        let Some(part) = self.part else { return Ok(false) };
        self.wire.gather(pieces);
        let asked: usize = pieces.iter().map(Piece::len).sum();
        // SAFETY: the wire's own bytes are not touched during the call. The queues hold the memory
        // that the wire refers to until `part_sent`.
        match unsafe { self.line.send(pieces, asked) } {
            Ok(Taken { bytes, full }) => {
                self.wire.advance(bytes);
                self.blocked = full;
                if self.wire.backlog() == 0 {
                    self.part = None;
                    queues.part_sent(part);
                }
                Ok(bytes > 0 || !full)
            }
            Err(error) => {
                (self.readable, self.hangup) = (true, true);
                Err(error)
            }
        }
    }
}

/// What a pass over the streams receives with.
pub(crate) struct Receiver<'a> {
    pub(crate) queues: &'a mut QueuePair,
    pub(crate) exposures: &'a Exposures,
    pub(crate) pieces: &'a mut Vec<Piece>,
    pub(crate) events: &'a mut Vec<Event>,
    pub(crate) limit: usize,
}

/// The further streams of a connection.
pub(crate) struct Streams {
    /// By their number. `None` is a place to join, or a stream that was given up.
    places: Vec<Option<Stream>>,
    /// When streams are given up that have not joined, if any are being dialed.
    pub(crate) deadline: Option<Time>,
}

impl Streams {
    /// Returns as many empty places as were agreed.
    pub(crate) fn new(count: u8) -> Streams {
        Streams { places: (0..count).map(|_| None).collect(), deadline: None }
    }

    pub(crate) fn vacant(&self) -> Option<usize> {
        self.places.iter().position(Option::is_none)
    }

    pub(crate) fn put(&mut self, number: usize, stream: Option<Stream>) {
        self.places[number] = stream;
    }

    pub(crate) fn at_mut(&mut self, number: usize) -> Option<&mut Stream> {
        self.places.get_mut(number)?.as_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.places.iter_mut().flatten()
    }

    fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.places.iter().flatten()
    }

    fn joined(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.iter_mut().filter(|stream| stream.stage == Stage::Joined)
    }

    /// Returns the number of bytes that have moved on them.
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.iter().map(|stream| stream.wire.sent() + stream.inbound.received()).sum()
    }

    /// Gives back the pages of empty buffers. Returns true if nothing is arriving.
    pub(crate) fn release(&mut self) -> bool {
        self.iter_mut().all(|stream| stream.line.release() && stream.inbound.release())
    }

    /// Returns true if all that was committed is sent.
    pub(crate) fn have_sent(&self) -> bool {
        self.iter().all(|stream| stream.wire.backlog() == 0 && !stream.line.has_unsent())
    }

    /// Returns true if a stream waits for what the first one brings.
    pub(crate) fn any_held(&self) -> bool {
        self.iter().any(|stream| stream.inbound.is_held())
    }

    /// Drops the work that is arriving.
    pub(crate) fn abandon(&mut self) {
        self.iter_mut().for_each(|stream| stream.inbound.abandon());
    }

    /// Gives up the streams that have not joined.
    pub(crate) fn give_up(&mut self) {
        self.deadline = None;
        let joined = |stream: &Stream| stream.stage == Stage::Joined;
        self.places.iter_mut().for_each(|place| drop(place.take_if(|stream| !joined(stream))));
    }

    /// Sends at most one part on each stream. Returns whether bytes were sent.
    pub(crate) fn send(
        &mut self,
        queues: &mut QueuePair,
        pieces: &mut Vec<Piece>,
        requests_only: bool,
    ) -> io::Result<bool> {
        let mut moved = false;
        for stream in self.joined().filter(|stream| !stream.blocked) {
            moved |= stream.send(queues, pieces, requests_only)?;
        }
        Ok(moved)
    }

    /// Receives from each stream that may have bytes, or was held, within its share of the budget.
    pub(crate) fn receive(&mut self, receiver: &mut Receiver<'_>) -> Result<Received, Fault> {
        let mut all = Received { bytes: 0, more: false };
        let budget = BYTE_BUDGET / self.len().max(1);
        for stream in self.joined().filter(|stream| stream.readable || stream.inbound.is_held()) {
            let mut context = Context {
                source: stream.line.source(),
                further: true,
                budget,
                hangup: stream.hangup,
                queues: receiver.queues,
                exposures: receiver.exposures,
                pieces: receiver.pieces,
                events: receiver.events,
                limit: receiver.limit,
                shows: None,
            };
            let received = stream.inbound.receive(&mut context)?;
            stream.readable = received.more;
            stream.answers();
            all = Received { bytes: all.bytes + received.bytes, more: all.more || received.more };
        }
        Ok(all)
    }

    /// Reads and discards: the connection is being ended. Returns whether there may be more.
    pub(crate) fn discard(&mut self) -> bool {
        for stream in self.iter_mut().filter(|stream| stream.readable) {
            // The end of the connection shows at the first stream.
            stream.readable = stream.inbound.discard(stream.line.source()).is_ok_and(|(_, more)| more);
        }
        self.iter().any(|stream| stream.readable)
    }
}

/// Prepares the socket of a connection with several streams.
pub(crate) fn limit_unsent(socket: BorrowedFd<'_>) {
    if let Err(error) = SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT) {
        tracing::debug!(%error, "the kernel keeps as many unsent bytes as it likes");
    }
}
