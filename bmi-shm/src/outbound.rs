//! Moves work from the queues to the ring, and to and from the peer's memory.
//!
//! **Protocol** of the records. A record's body is everything behind its first word.
//!
//! ```text
//!   SEND     message                             a message that fits into one record
//!   FIRST    length (8), its first bytes         a longer message; MORE records follow until it is complete
//!   WRITE    key, address, length, immediate (8 each), bytes   a write that the owner carries out; MORE records follow
//!   MORE     bytes                               of the message or write under way
//!   WRITTEN  immediate (8)                       a write with immediate data that its sender has carried out
//!   READ     key, address, length, id (8 each)   a read that the owner answers
//!   REPLY    id (8), bytes                       a piece of the reply; replies come in the order of the reads
//!   CLOSE    nothing                             nothing follows
//!   IN_PLACE length, head length + 2^32 * pieces,   a message that stays in the sender's memory, except its head.
//!            number of pages (8 each);              The receiver copies it from there, once, and counts it
//!            offset, length of each (8 each); head  in its area (`taken`). The sender waits for that.
//! ```
//!
//! **In-place messages** (IN_PLACE) are those of [`LEFT_LEN`] bytes and more whose pages the peer
//! has mapped. They cost one copy instead of two, and the sender copies nothing. Later messages
//! follow at once. Only completions wait, because they come in order. The acknowledgement of an
//! in-place copy is sent in the receiver's next poll, after the reply if there is one. The sender
//! has read that word, so a store to it waits for its cache line, and later stores would wait
//! behind it.
//!
//! **Immediate transfers.** A short write or read on mapped memory is done while it is posted if
//! nothing is queued before it ([`write_now`], [`read_now`]). For posted work the limit is
//! [`POST_BUDGET`] bytes, and the next poll reports the completion. For
//! [`bmi_core::Transport::write_now`] and `read_now` the limit is [`NOW`] bytes, and there is no
//! completion. A claim covers such a transfer like any other.
//!
//! `immediate` is 2^32 plus the 32 bits, or 0 for none. Records of replies may come between those
//! of a message in parts.
//!
//! **Turns.** Requests, reads and replies take turns record by record, so none of them holds up
//! another. Direct copies to and from the peer's memory are made in units of [`UNIT`], at most
//! [`BUDGET`] bytes in one turn. So one connection does not hold up the others, and a poll does not
//! hold up its caller. A long transfer bypasses the caches.

use bmi_core::transport::{WorkKind, WriteTarget};
use bmi_core::{Access, MemSlice, RemoteSlice, Segment};

use crate::completions::Completions;
use crate::config::{MAX_HEAD, MAX_READS, MAX_SEGMENTS, MAX_WORK_LEN};
use crate::error::{Fault, Violation};
use crate::link::{Link, Way, copy, copy_part};
use crate::queue_pair::{Pen, QueuePair, Shortcut};

pub(crate) const SEND: u8 = 1;
pub(crate) const FIRST: u8 = 2;
pub(crate) const WRITE: u8 = 3;
pub(crate) const MORE: u8 = 4;
pub(crate) const WRITTEN: u8 = 5;
pub(crate) const READ: u8 = 6;
pub(crate) const REPLY: u8 = 7;
pub(crate) const CLOSE: u8 = 8;
pub(crate) const IN_PLACE: u8 = 9;

/// From this length on, in bytes, a message may be sent in place.
pub(crate) const LEFT_LEN: u64 = 4 << 10;
/// Words of an IN_PLACE record before its pieces. Each piece takes two more, and the head follows.
pub(crate) const IN_PLACE_WORDS: usize = 3;

/// Bytes copied under one claim. A revocation waits for at most that much, some 20 µs.
pub(crate) const UNIT: u64 = 256 << 10;
/// Bytes copied directly in one turn of a connection.
pub(crate) const BUDGET: u64 = 1 << 20;
/// Bytes copied directly while posting.
pub(crate) const POST_BUDGET: u64 = 64 << 10;
/// Bytes of a transfer that completes in the call that asks for it: as many as under one claim.
/// Posted work waits for its completion anyway, and there may be a queue of it, so its limit is
/// smaller.
const NOW: u64 = UNIT;
/// Pieces that one system call takes (`IOV_MAX` of Linux).
const MAX_PIECES: usize = 1024;

/// Encodes immediate data.
fn encode_immediate(immediate: Option<u32>) -> u64 {
    immediate.map_or(0, |bits| 1 << 32 | u64::from(bits))
}

/// Returns a pen over a new record's body, or `None` if there is no room.
fn begin(link: &mut Link, len: usize) -> Result<Option<(crate::ring::Reservation, Pen)>, Violation> {
    let Some(reservation) = link.reserve(len)? else { return Ok(None) };
    // SAFETY: the body of a reserved record lies in this side's ring, which the link keeps mapped.
    // It is not read before it is published, and the peer cannot write it.
    let pen = unsafe { Pen::new(link.writer.space().ptr(reservation.at), len) };
    Ok(Some((reservation, pen)))
}

/// Sends a short message that is copied while it is posted. Nothing may be queued before it.
/// Returns whether there was room.
#[inline]
pub(crate) fn send_now(link: &mut Link, head: &[u8], slices: &[MemSlice]) -> bool {
    let len = slices.iter().fold(head.len(), |len, slice| len + slice.len());
    if head.len() > MAX_HEAD || len > link.short {
        return false; // the general path reports the error
    }
    let Some(reservation) = link.writer.reserve(len) else { return false };
    // SAFETY: as in `begin`.
    let mut pen = unsafe { Pen::new(link.writer.space().ptr(reservation.at), len) };
    pen.write(head);
    for slice in slices {
        // SAFETY: a slice lies in its memory, which it holds.
        unsafe { pen.write_shared(slice.as_ptr(), slice.len()) };
    }
    link.writer.publish(reservation, SEND);
    true
}

/// Returns how many bytes of an IN_PLACE record come before its head.
#[inline]
fn left_prefix(pieces: usize) -> usize {
    (IN_PLACE_WORDS + 2 * pieces) * 8
}

/// Writes the first words of an IN_PLACE record.
#[inline]
fn write_left(pen: &mut Pen, len: u64, head: usize, pieces: usize, number: u32) {
    for word in [len, head as u64 | (pieces as u64) << 32, u64::from(number)] {
        pen.write(&word.to_le_bytes());
    }
}

/// Writes a piece of an IN_PLACE record, in the memory that begins at `base`.
#[inline]
fn write_piece(pen: &mut Pen, at: *mut u8, len: usize, base: usize) {
    // The piece is within the memory, so the offset is never negative.
    pen.write(&((at as usize - base) as u64).to_le_bytes());
    pen.write(&(len as u64).to_le_bytes());
}

/// Announces an in-place message of `len` bytes while it is posted. It stays in the memory that the
/// peer has mapped under this number. Nothing may be queued before it. Returns whether there was
/// room.
pub(crate) fn leave_now(link: &mut Link, head: &[u8], segments: &[Segment], number: u32, len: u64) -> bool {
    let Some(base) = segments.first().map(|segment| segment.region().memory().as_ptr() as usize) else { return false };
    if head.len() > MAX_HEAD || len > MAX_WORK_LEN {
        return false; // the general path reports the error
    }
    let body = left_prefix(segments.len()) + head.len();
    let Some(reservation) = link.writer.reserve(body) else { return false };
    // SAFETY: as in `begin`.
    let mut pen = unsafe { Pen::new(link.writer.space().ptr(reservation.at), body) };
    write_left(&mut pen, len, head.len(), segments.len(), number);
    segments.iter().for_each(|segment| write_piece(&mut pen, segment.as_ptr(), segment.len(), base));
    pen.write(head);
    link.writer.publish(reservation, IN_PLACE);
    link.in_place += 1;
    true
}

/// Sends a message at once if it fits into one record and the ring has room.
pub(crate) struct Ring<'a>(pub(crate) &'a mut Link);

impl Shortcut for Ring<'_> {
    #[inline]
    fn send(&mut self, len: usize, fill: impl FnOnce(&mut Pen)) -> bool {
        if len > self.0.chunk {
            return false;
        }
        // A violation shows again when the queue is served, and ends the connection there.
        let Ok(Some((reservation, mut pen))) = begin(self.0, len) else { return false };
        fill(&mut pen);
        self.0.writer.publish(reservation, SEND);
        true
    }
}

/// A piece of this side's memory, which the piece holds.
pub(crate) trait Piece {
    /// Returns the address and the number of its bytes.
    fn place(&self) -> (*mut u8, usize);
}

impl Piece for Segment {
    #[inline]
    fn place(&self) -> (*mut u8, usize) {
        (self.as_ptr(), self.len())
    }
}

impl Piece for MemSlice {
    #[inline]
    fn place(&self) -> (*mut u8, usize) {
        (self.as_ptr(), self.len())
    }
}

/// Does a short write of `len` bytes, those of `head` and of all `pieces`, while it is posted. Does
/// it only if nothing is queued before it and the target is mapped. Returns whether it did.
#[inline]
pub(crate) fn write_now(
    link: &mut Link,
    queues: &QueuePair,
    head: &[u8],
    pieces: &[impl Piece],
    target: &WriteTarget,
    len: u64,
) -> bool {
    if queues.has_requests() || link.ring_writes_until > link.writer.consumed() {
        return false;
    }
    let record = match target.immediate.map(|_| link.reserve(8)) {
        None => None,
        Some(Ok(Some(record))) => Some(record),
        Some(_) => return false, // queue the write until there is room; a violation shows again there
    };
    let Some(to) = link.mapped(&target.remote, len, Access::WRITE) else { return false };
    // SAFETY: `mapped` has checked the target's bounds within a mapping that the link keeps.
    let mut pen = unsafe { Pen::new(to, len as usize) };
    pen.write(head);
    for piece in pieces {
        let (from, len) = piece.place();
        // SAFETY: a piece lies in memory that it holds.
        unsafe { pen.write_shared(from, len) };
    }
    link.done();
    if let Some(record) = record {
        put_immediate(link, record, target.immediate);
    }
    true
}

/// Does a short read while it is posted, like [`write_now`]. `len` is the length of all `pieces`
/// together.
#[inline]
pub(crate) fn read_now(
    link: &mut Link,
    queues: &QueuePair,
    pieces: &[impl Piece],
    remote: &RemoteSlice,
    len: u64,
) -> bool {
    if !queues.reads.is_empty() {
        return false;
    }
    let Some(mut from) = link.mapped(remote, len, Access::READ) else { return false };
    for piece in pieces {
        let (to, len) = piece.place();
        // SAFETY: `mapped` has checked the source's bounds within a mapping that the link keeps,
        // and `len` is the sum of all pieces. A piece lies in memory that it holds.
        unsafe { copy(to, from, len) };
        from = from.wrapping_add(len);
    }
    link.done();
    true
}

/// As [`len_now`], for pieces that are written to. Returns `None` also if one of them is read-only.
#[inline]
pub(crate) fn len_now_into(pieces: &[MemSlice], remote: &RemoteSlice) -> Option<u64> {
    if pieces.len() > MAX_SEGMENTS {
        return None;
    }
    let mut len = 0;
    for piece in pieces {
        if piece.memory().is_read_only() {
            return None;
        }
        len += piece.len() as u64;
    }
    (len <= remote.len.min(NOW)).then_some(len)
}

/// Returns the length of all `pieces` together. Returns `None` if there are more pieces than a work
/// request may have, or more bytes than `remote` or an immediate transfer may have.
#[inline]
pub(crate) fn len_now(pieces: &[MemSlice], remote: &RemoteSlice) -> Option<u64> {
    if pieces.len() > MAX_SEGMENTS {
        return None;
    }
    let len = pieces.iter().map(|piece| piece.len() as u64).sum();
    (len <= remote.len.min(NOW)).then_some(len)
}

/// Tells the peer that a write with immediate data is done.
fn put_immediate(link: &mut Link, record: crate::ring::Reservation, immediate: Option<u32>) {
    // SAFETY: as in `begin`; the record has eight bytes.
    let mut pen = unsafe { Pen::new(link.writer.space().ptr(record.at), record.len) };
    pen.write(&encode_immediate(immediate).to_le_bytes());
    link.writer.publish(record, WRITTEN);
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    /// Set if bytes moved or requests ended.
    pub(crate) moved: bool,
    /// Set if there is more to do at once and only the budget is spent.
    pub(crate) more: bool,
}

/// Serves the queues of one connection.
pub(crate) struct Outbound<'a> {
    pub(crate) link: &'a mut Link,
    pub(crate) queues: &'a mut QueuePair,
    pub(crate) pieces: &'a mut Vec<libc::iovec>,
    pub(crate) budget: u64,
}

/// The result of one step.
enum Step {
    /// Something moved.
    Moved,
    /// There is nothing to do, or no room.
    Stuck,
    /// The budget is spent.
    Spent,
}

impl Outbound<'_> {
    /// Sends as much work as possible. With `requests_only`, reads and replies stay, because the
    /// connection is being closed.
    pub(crate) fn turn(&mut self, requests_only: bool, done: &mut impl Completions) -> Result<Turn, Fault> {
        let mut turn = Turn::default();
        loop {
            let mut moved = false;
            let steps = [
                self.request_step(done)?,
                if requests_only { Step::Stuck } else { self.read_step(done)? },
                if requests_only { Step::Stuck } else { self.reply_step()? },
            ];
            for step in steps {
                match step {
                    Step::Moved => moved = true,
                    Step::Stuck => {}
                    Step::Spent => turn.more = true,
                }
            }
            turn.moved |= moved;
            if !moved {
                return Ok(turn);
            }
        }
    }

    // ---- requests -------------------------------------------------------------------------------

    fn request_step(&mut self, done: &mut impl Completions) -> Result<Step, Fault> {
        let Some(request) = self.queues.request() else { return Ok(Step::Stuck) };
        let step = match request.kind {
            WorkKind::Send if request.pages.is_some() => return self.leave_step(done),
            WorkKind::Write if !request.in_ring => return self.write_step(done),
            _ if request.in_ring => self.more_step()?,
            _ => self.send_step()?,
        };
        // A message of no bytes has none remaining before it has gone, so only a step that moved
        // ends a request.
        if let Step::Moved = step {
            self.end_request(done);
        }
        Ok(step)
    }

    /// Ends the oldest request if all of it has gone.
    fn end_request(&mut self, done: &mut impl Completions) {
        if self.queues.request().is_some_and(|request| request.remaining == 0) {
            self.complete_request(0, done);
        }
    }

    /// Marks the oldest request as gone, as in-place message number `in_place`, or 0 if it is not
    /// in place. It ends when all before it have ended.
    fn complete_request(&mut self, in_place: u64, done: &mut impl Completions) {
        self.queues.finish_request(in_place);
        self.queues.complete_gone(self.link.in_place_copied, done);
    }

    /// Announces the oldest request, an in-place message.
    fn leave_step(&mut self, done: &mut impl Completions) -> Result<Step, Fault> {
        let Some((pages, head, pieces)) = self.queues.left_parts() else { return Ok(Step::Stuck) };
        let len = self.queues.request().map_or(0, |request| request.remaining);
        let Some((reservation, mut pen)) = begin(self.link, left_prefix(pieces) + head)? else {
            return Ok(Step::Stuck);
        };
        write_left(&mut pen, len, head, pieces, pages.number);
        self.queues.each_left_piece(|at, len| write_piece(&mut pen, at, len, pages.base));
        // SAFETY: these are the staged bytes of the request.
        self.queues.gather(head, |from, len| unsafe { pen.write_shared(from, len) });
        self.link.writer.publish(reservation, IN_PLACE);
        self.queues.advance(len as usize);
        self.link.in_place += 1;
        self.complete_request(self.link.in_place, done);
        Ok(Step::Moved)
    }

    /// Puts a record into the ring, with `prefix` and as many of the next bytes of the oldest
    /// request as fit.
    fn record(&mut self, kind: u8, prefix: &[u8]) -> Result<Step, Fault> {
        let Some(request) = self.queues.request() else { return Ok(Step::Stuck) };
        let here = request.remaining.min((self.link.chunk - prefix.len()) as u64) as usize;
        let Some((reservation, mut pen)) = begin(self.link, prefix.len() + here)? else { return Ok(Step::Stuck) };
        pen.write(prefix);
        // SAFETY: the pieces belong to the staging buffer and to segments that the queue holds.
        self.queues.gather(here, |from, len| unsafe { pen.write_shared(from, len) });
        self.link.writer.publish(reservation, kind);
        self.queues.advance(here);
        Ok(Step::Moved)
    }

    fn send_step(&mut self) -> Result<Step, Fault> {
        let Some(request) = self.queues.request() else { return Ok(Step::Stuck) };
        if request.len <= self.link.chunk as u64 {
            return self.record(SEND, &[]);
        }
        let len = request.len.to_le_bytes();
        let step = self.record(FIRST, &len)?;
        if let (Step::Moved, Some(request)) = (&step, self.queues.request()) {
            request.in_ring = true;
        }
        Ok(step)
    }

    fn more_step(&mut self) -> Result<Step, Fault> {
        let step = self.record(MORE, &[])?;
        if self.queues.request().is_some_and(|request| request.kind == WorkKind::Write) {
            self.link.ring_writes_until = self.link.writer.position();
        }
        Ok(step)
    }

    fn write_step(&mut self, done: &mut impl Completions) -> Result<Step, Fault> {
        let mut moved = false;
        // Must not overtake a write that the peer has yet to carry out.
        if self.link.ring_writes_until > self.link.writer.consumed() {
            self.link.refresh()?;
        }
        while self.link.ring_writes_until <= self.link.writer.consumed() {
            let Some(request) = self.queues.request() else { return Ok(Step::Stuck) };
            let Some(target) = request.target else { return Ok(Step::Stuck) };
            let (len, at, unit) = (request.len, request.len - request.remaining, request.remaining.min(UNIT));
            if unit > self.budget {
                return Ok(if moved { Step::Moved } else { Step::Spent });
            }
            if unit == 0 && len > 0 {
                return self.written_step(target.immediate, done); // the bytes are there already
            }
            let Some(way) = self.link.direct(&target.remote, at, unit, Access::WRITE) else { break };
            let copied = self.write_by(&way, unit as usize, len);
            self.link.done();
            self.budget -= unit;
            self.queues.advance(copied);
            moved |= copied > 0;
            if self.queues.request().is_some_and(|request| request.remaining == 0) {
                return self.written_step(target.immediate, done);
            }
        }
        let step = self.ring_write_step(done)?;
        Ok(if moved { Step::Moved } else { step })
    }

    /// Ends the oldest write, whose bytes are all in place. Tells the peer if the write has
    /// immediate data.
    fn written_step(&mut self, immediate: Option<u32>, done: &mut impl Completions) -> Result<Step, Fault> {
        if immediate.is_some() {
            let Some(record) = self.link.reserve(8)? else { return Ok(Step::Stuck) };
            put_immediate(self.link, record, immediate);
        }
        self.complete_request(0, done);
        Ok(Step::Moved)
    }

    /// Lets the peer do the rest of the oldest write.
    fn ring_write_step(&mut self, done: &mut impl Completions) -> Result<Step, Fault> {
        let Some(request) = self.queues.request() else { return Ok(Step::Stuck) };
        let Some(target) = request.target else { return Ok(Step::Stuck) };
        let at = request.len - request.remaining;
        let words = [
            target.remote.key.0,
            target.remote.addr.wrapping_add(at),
            request.remaining,
            encode_immediate(target.immediate),
        ];
        let step = self.record(WRITE, &encode_words(words))?;
        if let Step::Moved = step {
            self.link.ring_writes_until = self.link.writer.position();
            if let Some(request) = self.queues.request() {
                request.in_ring = true;
            }
            self.end_request(done);
        }
        Ok(step)
    }

    /// Copies the next `len` bytes of the oldest request, which has `all` bytes. Returns how many
    /// were copied.
    fn write_by(&mut self, way: &Way, len: usize, all: u64) -> usize {
        match way {
            Way::Mapped(to) => {
                let mut to = *to;
                self.queues.gather(len, |from, len| {
                    // SAFETY: `direct` has checked the target's bounds within a mapping that the
                    // link keeps. The source belongs to the staging buffer or to segments that the
                    // queue holds.
                    unsafe { copy_part(to, from, len, all) };
                    to = to.wrapping_add(len);
                });
                len
            }
            Way::Kernel(address) => {
                self.pieces.clear();
                let pieces = &mut *self.pieces;
                self.queues.gather(len, |from, len| pieces.push(libc::iovec { iov_base: from.cast(), iov_len: len }));
                self.kernel(true, *address, len)
            }
        }
    }

    /// Makes the kernel copy between `pieces` and the peer. If the kernel refuses, it is not asked
    /// again.
    fn kernel(&mut self, write: bool, address: u64, len: usize) -> usize {
        if len == 0 {
            return 0;
        }
        let Some(process) = &self.link.process else { return 0 };
        let some = &self.pieces[..self.pieces.len().min(MAX_PIECES)];
        let len = some.iter().map(|piece| piece.iov_len).sum::<usize>().min(len);
        // SAFETY: the pieces belong to the staging buffer and to segments that the queues hold, and
        // there are no references to them.
        let copied = unsafe { process.copy(write, some, address, len) };
        self.pieces.clear();
        match copied {
            Ok(copied) if copied > 0 => copied,
            _ => {
                self.link.process = None;
                0
            }
        }
    }

    // ---- reads ----------------------------------------------------------------------------------

    fn read_step(&mut self, done: &mut impl Completions) -> Result<Step, Fault> {
        let mut moved = false;
        while self.queues.issued == 0 {
            let Some(read) = self.queues.reads.front() else {
                return Ok(if moved { Step::Moved } else { Step::Stuck });
            };
            let (remote, len, at) = (read.remote, read.len, read.len - read.remaining);
            let unit = read.remaining.min(UNIT);
            if unit > self.budget {
                return Ok(if moved { Step::Moved } else { Step::Spent });
            }
            let Some(way) = self.link.direct(&remote, at, unit, Access::READ) else { break };
            let copied = self.read_by(&way, unit as usize, len);
            self.link.done();
            self.budget -= unit;
            self.queues.advance_read(copied);
            if copied == 0 && unit > 0 {
                continue; // the kernel has refused and will not be asked again
            }
            moved = true;
            if self.queues.reads.front().is_some_and(|read| read.remaining == 0) {
                self.queues.complete_read(done);
            }
        }
        let step = self.ask_step()?;
        Ok(if moved { Step::Moved } else { step })
    }

    /// Copies the next `len` bytes of the oldest read, which has `all` bytes. Returns how many were
    /// copied.
    fn read_by(&mut self, way: &Way, len: usize, all: u64) -> usize {
        match way {
            Way::Mapped(from) => {
                let mut from = *from;
                self.queues.scatter(len, |to, len| {
                    // SAFETY: `direct` has checked the source's bounds within a mapping that the
                    // link keeps. The queue holds the segments.
                    unsafe { copy_part(to, from, len, all) };
                    from = from.wrapping_add(len);
                });
                len
            }
            Way::Kernel(address) => {
                self.pieces.clear();
                let pieces = &mut *self.pieces;
                self.queues.scatter(len, |to, len| pieces.push(libc::iovec { iov_base: to.cast(), iov_len: len }));
                self.kernel(false, *address, len)
            }
        }
    }

    /// Asks the peer for the first read that it was not asked for yet.
    fn ask_step(&mut self) -> Result<Step, Fault> {
        if self.queues.issued >= MAX_READS {
            return Ok(Step::Stuck);
        }
        let Some(read) = self.queues.reads.get(self.queues.issued) else { return Ok(Step::Stuck) };
        let addr = read.remote.addr.wrapping_add(read.len - read.remaining);
        let words = [read.remote.key.0, addr, read.remaining, u64::from(read.id)];
        let Some((reservation, mut pen)) = begin(self.link, 32)? else { return Ok(Step::Stuck) };
        pen.write(&encode_words(words));
        self.link.writer.publish(reservation, READ);
        self.queues.issued += 1;
        Ok(Step::Moved)
    }

    // ---- replies --------------------------------------------------------------------------------

    fn reply_step(&mut self) -> Result<Step, Fault> {
        let Some(reply) = self.queues.replies.front_mut() else { return Ok(Step::Stuck) };
        let here = (reply.segment.len() - reply.sent).min(self.link.chunk - 8);
        let Some((reservation, mut pen)) = begin(self.link, 8 + here)? else { return Ok(Step::Stuck) };
        pen.write(&u64::from(reply.id).to_le_bytes());
        pen.write_segment(&reply.segment, reply.sent, here);
        self.link.writer.publish(reservation, REPLY);
        reply.sent += here;
        if reply.sent == reply.segment.len() {
            self.queues.replies.pop_front();
        }
        Ok(Step::Moved)
    }

    /// Sends the CLOSE record. Returns false if there is no room yet.
    pub(crate) fn close(&mut self) -> Result<bool, Fault> {
        let Some((reservation, _)) = begin(self.link, 0)? else { return Ok(false) };
        self.link.writer.publish(reservation, CLOSE);
        Ok(true)
    }
}

fn encode_words(words: [u64; 4]) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
