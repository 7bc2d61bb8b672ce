//! The receiving half of a connection: from the socket to frames, and from frames to the targets of
//! their payload.
//!
//! **Why.** There are two conflicting needs. Many small frames should come in with one system call,
//! and bulk data should land in its target without a copy. So each call reads first into the target
//! of the current payload, as far as it is known, and then into a read-ahead buffer:
//!
//! ```text
//!   one call:  | rest of the payload -> target memory … | next frames -> read-ahead (16 bytes … 64 KiB) |
//! ```
//!
//! The read-ahead is short during bulk transfers, because its contents must be copied. It is long
//! while small frames arrive.
//!
//! **Invariants**
//! 1. Access is checked once for each message, for its whole length, when its header arrives and
//!    before a byte is placed (C7).
//! 2. A message in progress holds its target. A receive and a read are held by their queue. A write
//!    is held by a segment of its own. So the memory outlives the placement of every byte.
//! 3. While payload of a frame is outstanding after parsing (`here > 0`), the buffer is empty.
//! 4. A frame that has to wait for another stream ([`crate::streams`]) stays in the buffer, and
//!    nothing is read meanwhile (`held`). What it waits for has the stream looked at again.
//!
//! **Tests.** `tests/it/transfer.rs`, `tests/it/hostile.rs` (frames cut at every byte), the
//! conformance suite.

mod payload;

use bmi_backend::software::{BadRequest, Exposures};
use bmi_backend::{Fault, Violation};
use bmi_core::Access;
use bmi_core::mem::Pages;
use bmi_core::transport::{Event, InlineMessage, InlineReceiver, WorkKind, WorkStatus};

use self::payload::{Message, Owner, Target};
use crate::frame::{BAD_HEADER, Frame, HEADER, piece, whole_message};
use crate::line::{Arrived, Next, Source};
use crate::queue_pair::{Cursor, QueuePair};
use crate::vectored_io::Piece;
use crate::wire::pages;

/// A payload of at least this many bytes counts as bulk.
const BULK: u32 = 32 << 10;
/// Read-ahead during bulk transfers: the next header, and small messages after it.
const BULK_READ_AHEAD: usize = 4 << 10;
/// Bytes that one connection may receive before the others have their turn.
pub(crate) const BYTE_BUDGET: usize = 1 << 20;
/// Frames that one connection may receive before the others have their turn.
const FRAME_BUDGET: usize = 512;

/// The state that receiving uses and changes.
pub(crate) struct Context<'a> {
    pub(crate) source: Source<'a>,
    /// The socket is a further stream, which carries only parts.
    pub(crate) further: bool,
    /// Bytes after which the others have their turn.
    pub(crate) budget: usize,
    /// The socket has reported its end. Read until the end.
    pub(crate) hangup: bool,
    pub(crate) queues: &'a mut QueuePair,
    pub(crate) exposures: &'a Exposures,
    pub(crate) pieces: &'a mut Vec<Piece>,
    pub(crate) events: &'a mut Vec<Event>,
    /// Length of `events` at which to stop.
    pub(crate) limit: usize,
    /// None for a further stream, which carries no messages.
    pub(crate) shows: Option<Shows<'a>>,
}

/// Who is shown messages that are in the buffer as a whole (C16).
pub(crate) struct Shows<'a> {
    pub(crate) receiver: &'a mut dyn InlineReceiver,
    /// The length of the events while none of this poll is among them. Only then messages are
    /// shown.
    pub(crate) before: usize,
}

/// The result of [`Inbound::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Number of bytes that have arrived.
    pub(crate) bytes: usize,
    /// More may be available at once, because a budget was used up.
    pub(crate) more: bool,
}

/// The receiving half of a connection.
pub(crate) struct Inbound {
    buf: Pages,
    start: usize,
    end: usize,
    read_ahead: usize,
    /// Payload bytes of the current frame that have not arrived.
    here: usize,
    owner: Owner,
    /// The next frame waits for another stream.
    held: bool,
    reply_cursor: Cursor,
    message: Option<Message>,
    /// Number of bytes that have arrived in frames.
    received: u64,
}

impl Inbound {
    /// Returns a receiving half with a buffer of `capacity` bytes.
    pub(crate) fn new(capacity: usize) -> Inbound {
        Inbound {
            buf: pages(capacity),
            start: 0,
            end: 0,
            read_ahead: capacity,
            here: 0,
            owner: Owner::Message,
            held: false,
            reply_cursor: Cursor::default(),
            message: None,
            received: 0,
        }
    }

    /// Returns the number of bytes that have arrived in frames.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Returns the bytes that have arrived and are not consumed.
    pub(crate) fn buffered(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    /// Returns true if a write of the peer through this exposure is in progress.
    pub(crate) fn writes_with(&self, key: u64) -> bool {
        matches!(&self.message, Some(Message { target: Target::Write { key: open, .. }, .. }) if *open == key)
    }

    /// Returns true if the next frame waits for another stream.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Returns true if a message is arriving in the oldest receive.
    pub(crate) fn fills_receive(&self) -> bool {
        matches!(&self.message, Some(Message { target: Target::Recv { .. }, .. }))
    }

    /// Gives back the pages of the buffer if nothing is arriving. Returns whether that is so.
    pub(crate) fn release(&mut self) -> bool {
        let idle = self.message.is_none() && self.here == 0 && self.start == self.end;
        if idle {
            self.buf.discard();
        }
        idle
    }

    /// Consumes buffered bytes.
    pub(crate) fn consume(&mut self, len: usize) {
        self.start += len;
        debug_assert!(self.start <= self.end);
    }

    /// Moves to a buffer of `capacity` bytes, which must exceed the number of buffered bytes.
    pub(crate) fn grow(&mut self, capacity: usize) {
        let mut buf = pages(capacity);
        let len = self.end - self.start;
        buf[..len].copy_from_slice(&self.buf[self.start..self.end]);
        (self.buf, self.start, self.end, self.read_ahead) = (buf, 0, len, capacity);
    }

    /// Reads once into the buffer, without parsing.
    pub(crate) fn fill(&mut self, mut source: Source<'_>) -> Result<Arrived, Fault> {
        self.buf.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let rest = &mut self.buf[self.end..];
        // SAFETY: `rest` is borrowed exclusively for the call.
        let arrived = unsafe { source.receive(&[Piece::new(rest.as_mut_ptr(), rest.len())], rest.len()) }?;
        self.end += arrived.bytes;
        Ok(arrived)
    }

    /// Abandons the work in progress: no further byte is placed. After this only
    /// [`Inbound::discard`] may be called.
    pub(crate) fn abandon(&mut self) {
        (self.message, self.here, self.owner, self.held) = (None, 0, Owner::Message, false);
    }

    /// Drops the buffered bytes and the work in progress, then reads and discards within the
    /// budget, without opening anything. Returns whether the stream has ended, and whether there
    /// may be more bytes.
    pub(crate) fn discard(&mut self, source: Source<'_>) -> Result<(bool, bool), Fault> {
        self.abandon();
        let mut budget = BYTE_BUDGET;
        while budget > 0 {
            (self.start, self.end) = (0, 0);
            match self.fill(Source { socket: source.socket, channel: None }) {
                Ok(Arrived { next: Next::Empty, .. }) => return Ok((false, false)),
                Ok(Arrived { work, .. }) => budget = budget.saturating_sub(work),
                Err(Fault::Eof) => return Ok((true, false)),
                Err(fault) => return Err(fault),
            }
        }
        Ok((false, true))
    }

    /// Receives and handles frames until the socket is empty or a budget is used up.
    pub(crate) fn receive(&mut self, context: &mut Context<'_>) -> Result<Received, Fault> {
        let (mut bytes, mut frames) = (0, FRAME_BUDGET);
        loop {
            if self.parse(context, &mut frames)? {
                return Ok(Received { bytes, more: !self.held });
            }
            if bytes >= context.budget {
                return Ok(Received { bytes, more: true });
            }
            let (direct, asked) = self.aim(context);
            // SAFETY: `aim` listed the targets of the current payload and the free part of
            // `self.buf`. The queues or `self.message` hold the targets. No reference to the free
            // part exists during the call.
            let arrived = unsafe { context.source.receive(context.pieces, asked) }?;
            let Arrived { bytes: n, work, next } = arrived;
            if n == 0 && next == Next::Empty {
                return Ok(Received { bytes, more: false });
            }
            self.received += n as u64;
            bytes += work;
            let placed = n.min(direct);
            if placed > 0 {
                self.skip(context, placed);
                self.placed(context, placed);
            }
            self.end += n - placed;
            if n == asked && direct == 0 {
                self.read_ahead = self.buf.len(); // small frames come faster than they are read
            }
            if next != Next::More && !context.hangup {
                // The socket is empty. Later bytes cause a new event.
                let stopped = self.parse(context, &mut frames)?;
                return Ok(Received { bytes, more: stopped && !self.held });
            }
        }
    }

    /// Handles the buffered bytes. Returns true if it stopped at a limit or is held, not for lack
    /// of bytes.
    fn parse(&mut self, context: &mut Context<'_>, frames: &mut usize) -> Result<bool, Fault> {
        self.held = false;
        loop {
            let buffered = self.end - self.start;
            if self.here > 0 {
                let len = self.here.min(buffered);
                if len == 0 {
                    return Ok(false);
                }
                self.copy(context, len);
                self.placed(context, len);
                continue;
            }
            if buffered < HEADER {
                return Ok(false);
            }
            if *frames == 0 || context.events.len() >= context.limit {
                return Ok(true);
            }
            if self.show(context) {
                *frames -= 1;
                continue;
            }
            let Some((frame, len)) = Frame::decode(&self.buf[self.start..self.end])? else { return Ok(false) };
            if !self.begin(context, frame)? {
                self.held = true;
                return Ok(true);
            }
            self.start += len;
            *frames -= 1;
        }
    }

    /// Shows the next message, if it is in the buffer as a whole. Returns true if it was taken.
    #[inline]
    fn show(&mut self, context: &mut Context<'_>) -> bool {
        let Some(shows) = context.shows.as_mut().filter(|shows| context.events.len() == shows.before) else {
            return false;
        };
        let Some(len) = whole_message(&self.buf[self.start..self.end]).filter(|_| self.message.is_none()) else {
            return false;
        };
        let queues = &*context.queues;
        if queues.must_wait(&Frame::Send { len: len as u64 }) {
            return false;
        }
        let fits = queues.next_recv().is_some_and(|recv| recv.room >= len as u64);
        let message = InlineMessage::of(&mut self.buf[self.start + HEADER..][..len]);
        let taken = fits && shows.receiver.take(queues.conn(), message);
        if taken {
            self.start += HEADER + len;
        }
        taken
    }

    /// Checks a header, and makes the target of its payload the current one. Returns false if the
    /// frame has to wait for another stream.
    fn begin(&mut self, context: &mut Context<'_>, frame: Frame) -> Result<bool, Fault> {
        if context.queues.is_spread() {
            if context.further && !matches!(frame, Frame::Part { .. }) {
                return Err(Violation::Order.into());
            }
            if context.queues.must_wait(&frame) {
                return Ok(false);
            }
        }
        match frame {
            Frame::Part { here, offset, whole } => {
                let Some(part) = context.queues.begin_part(here, offset, whole)? else { return Ok(false) };
                self.owner = Owner::Part(part);
                self.expect(here);
                if here == 0 {
                    self.placed(context, 0);
                }
            }
            Frame::Bulk { len, key, addr } => {
                self.expect_no_message()?;
                let segment = context.exposures.check(key, addr, len, Access::WRITE);
                return Ok(context.queues.open_write(segment.ok_or(BadRequest::Access(WorkKind::Write, 0))?, key)?);
            }
            Frame::Send { len } => {
                let target = Target::Recv { cursor: context.queues.recv_segments.front(), len };
                self.expect_no_message()?;
                let recv = context.queues.next_recv().ok_or(BadRequest::NotReady(WorkKind::Send))?;
                if len > recv.room {
                    context.events.extend(context.queues.complete_recv(WorkStatus::TooLong, 0, None));
                    return Err(BadRequest::TooLong.into());
                }
                self.open(context, len, target);
            }
            Frame::Write { len, key, addr, immediate } => {
                self.expect_no_message()?;
                let segment = context
                    .exposures
                    .check(key, addr, len, Access::WRITE)
                    .ok_or(BadRequest::Access(WorkKind::Write, 0))?;
                if immediate.is_some() && context.queues.next_recv().is_none() {
                    return Err(BadRequest::NotReady(WorkKind::Write).into());
                }
                self.open(context, len, Target::Write { segment, placed: 0, key, immediate });
            }
            Frame::Data { here } => {
                let message = self.message.as_ref().ok_or(Violation::Order)?;
                if here != piece(message.left) {
                    return Err(BAD_HEADER.into());
                }
                self.expect(here);
            }
            Frame::Read { len, key, addr, id } => {
                let segment = context
                    .exposures
                    .check(key, addr, len, Access::READ)
                    .ok_or(BadRequest::Access(WorkKind::Read, id))?;
                context.queues.add_reply(id, key, segment)?;
            }
            Frame::Reply { .. } if context.queues.is_spread() => return Err(Violation::Order.into()),
            Frame::Reply { here, id } => {
                let cursor = context.queues.read_segments.front();
                let read = context.queues.reply_to(id).ok_or(Violation::Order)?;
                if here != piece(read.left) {
                    return Err(BAD_HEADER.into());
                }
                if read.left == read.len {
                    self.reply_cursor = cursor;
                }
                if read.len == 0 {
                    context.events.extend(context.queues.complete_read(WorkStatus::Ok));
                } else {
                    self.owner = Owner::Reply;
                    self.expect(here);
                }
            }
            Frame::Close => return Err(Fault::Closed),
            Frame::Error(refusal) => return Err(Fault::Refused(refusal)),
        }
        Ok(true)
    }

    fn expect_no_message(&self) -> Result<(), Violation> {
        if self.message.is_some() { Err(Violation::Order) } else { Ok(()) }
    }

    fn open(&mut self, context: &mut Context<'_>, len: u64, target: Target) {
        self.message = Some(Message { left: len, target });
        self.expect(piece(len));
        if len == 0 {
            self.finish_message(context);
        }
    }

    /// Notes that `here` bytes of payload follow.
    fn expect(&mut self, here: u32) {
        self.here = here as usize;
        if here >= BULK {
            self.read_ahead = BULK_READ_AHEAD.min(self.buf.len());
        }
    }
}
