//! Moves work from the queues to the ring, and to and from the peer's memory.
//!
//! **Turns.** Requests, reads and replies take turns record by record, so none of them holds up
//! another. Direct copies to and from the peer's memory are made in units of [`UNIT`], at most
//! [`BUDGET`] bytes in one turn. So one connection does not hold up the others, and a poll does not
//! hold up its caller. A long transfer bypasses the caches.

use bmi_core::Access;
use bmi_core::transport::WorkKind;

use super::layout::{
    CLOSE, FIRST, IN_PLACE, MORE, READ, REPLY, SEND, UNIT, WRITE, begin, encode_immediate, encode_words, left_prefix,
    put_immediate, write_left, write_piece,
};
use super::link::{Link, Way, copy_part};
use crate::config::MAX_READS;
use crate::error::Fault;
use crate::work::{Completions, QueuePair};

/// Pieces that one system call takes (`IOV_MAX` of Linux).
const MAX_PIECES: usize = 1024;

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
