//! Long transfers in parts, on a connection of several streams: which are arriving, and the next
//! part to leave.
//!
//! **Why so.** The streams of a connection are not ordered among each other, but C3 is an order.
//! So the first stream keeps it, alone. It announces each long write with a BULK frame, at the
//! write's place in the order. The bytes follow as PARTs on whichever stream has room. A PART that
//! comes before its announcement waits. A frame of the first stream that must not overtake the
//! bytes of a write before it waits for them. Answers to reads are not ordered, so their PARTs
//! never wait.
//!
//! **Invariants**
//! 1. A write is opened, and its access checked, when its announcement is handled: all sends and
//!    writes before it are in place then, except open writes. Two open writes never overlap.
//! 2. *Nothing waits for ever.* The sender allots the parts of its writes in order, and no request
//!    is put on the first stream before all parts of the writes before it are allotted. So the
//!    oldest part that has not arrived has only older parts before it on its stream, and on the
//!    first stream only frames that wait for older writes.
//! 3. A read or a write is done when each of its parts is in place. No part is taken twice, and
//!    none behind the last. So no byte of it arrives after its memory was given back.
//! 4. A request or a reply has left when the first stream has sent its position `end`, and no
//!    further stream has a part of it (`pending`).

use std::collections::VecDeque;

use bmi_backend::Violation;
use bmi_core::Segment;
use bmi_core::transport::{Event, WorkStatus};

use super::{Cursor, QueuePair};
use crate::frame::{Frame, LONG_HEADER, PIECE, Whole, piece};
use crate::vectored_io::Piece;
use crate::wire::Wire;

/// Writes of at least this many bytes are spread. A shorter one is over before another stream
/// would have helped.
pub(super) const SPREAD_FROM: u64 = 64 << 10;
/// Most writes that are open at a time.
const MAX_OPEN: usize = 64;
/// Bytes that wait at the first stream, from which on a further stream adds nothing to them.
const MAX_AHEAD: u64 = 2 * PIECE;

/// The parts of a transfer that have not arrived.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    unclaimed: u64,
    unplaced: u64,
}

impl Parts {
    pub(super) fn of(len: u64) -> Parts {
        let count = len.div_ceil(PIECE).max(1);
        Parts { unclaimed: count, unplaced: count }
    }

    /// Notes that a part of a transfer of `len` bytes begins to arrive.
    fn claim(&mut self, len: u64, offset: u64, here: u32) -> Result<(), Violation> {
        let regular = offset < len.max(1) && offset.is_multiple_of(PIECE) && here == piece(len - offset);
        if !regular || self.unclaimed == 0 {
            return Err(Violation::Order);
        }
        self.unclaimed -= 1;
        Ok(())
    }
}

/// A write of the peer that was announced.
struct OpenWrite {
    segment: Segment,
    key: u64,
    parts: Parts,
}

/// A part that is arriving.
pub(crate) struct Part {
    pub(crate) whole: Whole,
    pub(crate) target: PartTarget,
}

pub(crate) enum PartTarget {
    Read(Cursor),
    Write { segment: Segment, placed: usize },
}

/// What a connection of several streams has besides its queues.
#[derive(Default)]
pub(crate) struct Spread {
    /// Number of the next long write to be posted.
    pub(super) next_write: u32,
    /// Requests had the last turn on a further stream.
    replies_next: bool,
    /// Number of the oldest open write.
    oldest: u32,
    /// Writes of the peer, from the oldest that is not done.
    open: VecDeque<OpenWrite>,
}

impl QueuePair {
    /// Makes the connection one of several streams. Nothing was posted yet but receives.
    pub(crate) fn spread_over_streams(&mut self) {
        self.spread = Some(Box::default());
    }

    #[inline]
    pub(crate) fn is_spread(&self) -> bool {
        self.spread.is_some()
    }

    // ---- incoming -------------------------------------------------------------------------------

    /// Returns true if a frame of the first stream has to wait for bytes of further ones.
    pub(crate) fn must_wait(&self, frame: &Frame) -> bool {
        let Some(spread) = self.spread.as_deref().filter(|spread| !spread.open.is_empty()) else { return false };
        match frame {
            Frame::Send { .. } | Frame::Write { .. } | Frame::Close => true,
            Frame::Bulk { .. } => spread.open.len() >= MAX_OPEN,
            _ => false,
        }
    }

    /// Opens a write whose access was checked. Returns false if it has to wait for another one of
    /// the same bytes.
    pub(crate) fn open_write(&mut self, segment: Segment, key: u64) -> Result<bool, Violation> {
        let spread = self.spread.as_deref_mut().ok_or(Violation::Order)?;
        let range = |segment: &Segment| (segment.as_ptr() as usize, segment.as_ptr() as usize + segment.len());
        let (start, end) = range(&segment);
        let overlaps = |write: &OpenWrite| {
            let (from, to) = range(&write.segment);
            write.parts.unplaced > 0 && from < end && start < to
        };
        if spread.open.iter().any(overlaps) {
            return Ok(false);
        }
        let parts = Parts::of(segment.len() as u64);
        spread.open.push_back(OpenWrite { segment, key, parts });
        Ok(true)
    }

    /// Returns true if a long write of the peer through this exposure is open.
    pub(crate) fn has_open_write(&self, key: u64) -> bool {
        let is_open = |write: &OpenWrite| write.key == key && write.parts.unplaced > 0;
        self.spread.as_ref().is_some_and(|spread| spread.open.iter().any(is_open))
    }

    /// Returns true if nothing of a long write is missing.
    pub(crate) fn has_no_open_write(&self) -> bool {
        self.spread.as_ref().is_none_or(|spread| spread.open.is_empty())
    }

    /// Begins a part. Returns `None` if it has to wait for its announcement.
    pub(crate) fn begin_part(&mut self, here: u32, offset: u64, whole: Whole) -> Result<Option<Part>, Violation> {
        let spread = self.spread.as_deref_mut().ok_or(Violation::Order)?;
        let target = match whole {
            Whole::Reply(id) => {
                let index = self.reads.front().map_or(0, |oldest| id.wrapping_sub(oldest.id)) as usize;
                let read = self.reads.get_mut(index).filter(|_| index < self.issued).ok_or(Violation::Order)?;
                read.parts.claim(read.len, offset, here)?;
                let mut cursor = read.first;
                self.read_segments.walk(&mut cursor, offset as usize, |_, _, _| {});
                PartTarget::Read(cursor)
            }
            Whole::Write(number) => {
                let index = number.wrapping_sub(spread.oldest);
                let Some(write) = spread.open.get_mut(index as usize) else {
                    // An older one is done.
                    return if index <= u32::MAX / 2 { Ok(None) } else { Err(Violation::Order) };
                };
                write.parts.claim(write.segment.len() as u64, offset, here)?;
                PartTarget::Write { segment: write.segment.slice(offset as usize, here as usize), placed: 0 }
            }
        };
        Ok(Some(Part { whole, target }))
    }

    /// Notes that all bytes of a part are in place, and completes the reads that are done, in
    /// order.
    pub(crate) fn part_placed(&mut self, whole: Whole, events: &mut Vec<Event>) {
        match whole {
            Whole::Reply(id) => {
                let index = self.reads.front().map_or(0, |oldest| id.wrapping_sub(oldest.id)) as usize;
                self.reads[index].parts.unplaced -= 1;
                while self.reads.front().is_some_and(|read| read.parts.unplaced == 0) {
                    events.extend(self.complete_read(WorkStatus::Ok));
                }
            }
            Whole::Write(number) => {
                let Some(spread) = self.spread.as_deref_mut() else { return };
                spread.open[number.wrapping_sub(spread.oldest) as usize].parts.unplaced -= 1;
                while spread.open.front().is_some_and(|write| write.parts.unplaced == 0) {
                    spread.open.pop_front();
                    spread.oldest = spread.oldest.wrapping_add(1);
                }
            }
        }
    }

    // ---- outgoing -------------------------------------------------------------------------------

    /// Puts the next part on the wire of a further stream, which is empty. Replies and requests
    /// take turns. With `requests_only`, replies stay.
    pub(crate) fn commit_part(&mut self, wire: &mut Wire, requests_only: bool) -> Option<Whole> {
        let spread = self.spread.as_deref_mut()?;
        spread.replies_next = !spread.replies_next && !requests_only;
        if spread.replies_next
            && let Some(whole) = self.commit_reply(Some(&mut *wire))
        {
            return Some(whole);
        }
        // Short requests before the next long write go to the first stream.
        while self.requests.get(self.next_request).is_some_and(|request| request.bulk.is_none())
            && self.wire.backlog() < MAX_AHEAD
        {
            self.commit_request();
        }
        let part = self.commit_part_of_request(Some(&mut *wire));
        if part.is_none() && !requests_only { self.commit_reply(Some(wire)) } else { part }
    }

    /// Commits the next part of a long write, to a further stream or to the first one. Announces
    /// the write before its first part. Returns `None` if the next request is no such write.
    pub(super) fn commit_part_of_request(&mut self, further: Option<&mut Wire>) -> Option<Whole> {
        let request = self.requests.get_mut(self.next_request)?;
        let whole = Whole::Write(request.bulk?);
        if request.left == request.len {
            self.wire.commit_staged(LONG_HEADER);
            request.staged -= LONG_HEADER as u32;
        }
        let (here, offset) = (piece(request.left), request.len - request.left);
        request.left -= u64::from(here);
        request.pending += u32::from(further.is_some());
        let wire = further.unwrap_or(&mut self.wire);
        wire.commit_header(&Frame::Part { here, offset, whole });
        self.request_segments.walk(&mut request.cursor, here as usize, |segment, offset, len| {
            wire.commit_memory(Piece::new(segment.as_ptr().wrapping_add(offset), len));
        });
        if request.left == 0 {
            if request.staged > 0 {
                self.wire.commit_staged(std::mem::take(&mut request.staged) as usize);
            }
            request.end = self.wire.committed();
            self.next_request += 1;
        }
        Some(whole)
    }

    /// Notes that a further stream has sent a part.
    pub(crate) fn part_sent(&mut self, whole: Whole) {
        let pending = match whole {
            Whole::Reply(id) => self.replies.iter_mut().find(|reply| reply.id == id).map(|reply| &mut reply.pending),
            Whole::Write(number) => {
                let request = self.requests.iter_mut().find(|request| request.bulk == Some(number));
                request.map(|request| &mut request.pending)
            }
        };
        if let Some(pending) = pending {
            *pending -= 1;
        }
    }
}
