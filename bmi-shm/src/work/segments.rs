//! The segments of posted requests and receives, in order.
//!
//! **Why.** A posted segment holds its region until it is done. Regions are reference-counted. Two
//! increments and two decrements per segment would cost more than copying a small message. But
//! neighbouring segments are usually in one region, above all the receive slots of an endpoint. So
//! the queue holds a *run*: the region once, and the number of consecutive segments in it. Usually
//! there is one run, and it is stored beside the queue, not in a queue of its own.
//!
//! A receive usually has one segment, and its piece is stored in the receive itself.
//!
//! **Invariants**
//! 1. Each piece lies in the region of its run. The region is held until the last piece of the run
//!    is taken out.
//! 2. Pieces are popped in the order in which they were pushed.
//! 3. The piece of a receive with one segment is in the receive. All pieces of any other receive
//!    are in `pieces`.

use std::collections::VecDeque;

use bmi_core::transport::WorkId;
use bmi_core::{MemoryRegion, Segment};

/// The regions of consecutive segments.
#[derive(Default)]
struct Runs {
    /// The runs before the newest, oldest first. None of them is empty.
    older: VecDeque<Run>,
    /// The newest run; `None` only if nothing is held.
    newest: Option<Run>,
}

struct Run {
    region: MemoryRegion,
    pieces: u64,
}

impl Runs {
    #[inline]
    fn push(&mut self, region: &MemoryRegion) {
        match &mut self.newest {
            Some(run) if run.region.is_same(region) => run.pieces += 1,
            _ => self.begin(region),
        }
    }

    #[cold]
    fn begin(&mut self, region: &MemoryRegion) {
        self.older.extend(self.newest.replace(Run { region: region.clone(), pieces: 1 }));
    }

    /// Takes the oldest `count` pieces out, and passes the regions that are no longer held to `to`.
    #[inline]
    fn pop(&mut self, count: u32, to: impl FnMut(MemoryRegion)) {
        match &mut self.newest {
            Some(run) if self.older.is_empty() && run.pieces > u64::from(count) => run.pieces -= u64::from(count),
            _ => self.pop_runs(count, to),
        }
    }

    #[cold]
    fn pop_runs(&mut self, count: u32, mut to: impl FnMut(MemoryRegion)) {
        let mut left = u64::from(count);
        while left > 0 {
            let Some(run) = self.older.front_mut().or(self.newest.as_mut()) else { return };
            let here = left.min(run.pieces);
            (run.pieces, left) = (run.pieces - here, left - here);
            if run.pieces == 0
                && let Some(run) = self.older.pop_front().or_else(|| self.newest.take())
            {
                to(run.region);
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Piece {
    at: *mut u8,
    len: usize,
}

// SAFETY: the pointer leads into the memory of a region that is held as long as the piece is in its
// queue (invariant 1). The memory may be used on any thread.
unsafe impl Send for Piece {}

impl Piece {
    #[inline]
    fn of(segment: &Segment) -> Piece {
        Piece { at: segment.as_ptr(), len: segment.len() }
    }
}

/// The segments of consecutive requests.
#[derive(Default)]
pub(crate) struct SegmentQueue {
    pieces: VecDeque<Piece>,
    runs: Runs,
    /// The number of pieces taken out so far.
    popped: u64,
}

/// A place in a [`SegmentQueue`]: a piece, counted over the queue's lifetime, and a byte in it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    piece: u64,
    offset: usize,
}

impl SegmentQueue {
    /// Returns the place of the segments that are pushed next.
    pub(crate) fn end(&self) -> Cursor {
        Cursor { piece: self.popped + self.pieces.len() as u64, offset: 0 }
    }

    #[inline]
    pub(crate) fn push(&mut self, segments: &[Segment]) {
        for segment in segments {
            self.runs.push(segment.region());
            self.pieces.push_back(Piece::of(segment));
        }
    }

    /// Takes the oldest `count` segments out, and passes the regions that are no longer held to
    /// `to`.
    #[inline]
    pub(crate) fn pop(&mut self, count: u32, to: impl FnMut(MemoryRegion)) {
        let here = (count as usize).min(self.pieces.len());
        self.pieces.drain(..here);
        self.popped += here as u64;
        self.runs.pop(here as u32, to);
    }

    /// Calls `each` with `count` whole pieces from `cursor` on.
    pub(crate) fn each(&self, cursor: Cursor, count: usize, mut each: impl FnMut(*mut u8, usize)) {
        let first = (cursor.piece - self.popped) as usize;
        self.pieces.range(first..first + count).for_each(|piece| each(piece.at, piece.len));
    }

    /// Calls `each` with the pieces of the next `len` bytes from `cursor` on, and moves `cursor`
    /// behind them. The pieces lie in memory that the queue holds.
    #[inline]
    pub(crate) fn walk(&self, cursor: &mut Cursor, len: usize, each: impl FnMut(*mut u8, usize)) {
        let mut from = Cursor { piece: cursor.piece - self.popped, ..*cursor };
        walk(&mut from, len, |piece| self.pieces[piece as usize], each);
        *cursor = Cursor { piece: from.piece + self.popped, ..from };
    }
}

/// Calls `each` with the parts of the next `len` bytes from `cursor` on, and moves `cursor` behind
/// them.
#[inline]
fn walk(cursor: &mut Cursor, mut len: usize, piece: impl Fn(u64) -> Piece, mut each: impl FnMut(*mut u8, usize)) {
    while len > 0 {
        let piece = piece(cursor.piece);
        let step = len.min(piece.len - cursor.offset);
        if step > 0 {
            each(piece.at.wrapping_add(cursor.offset), step);
        }
        len -= step;
        cursor.offset += step;
        if cursor.offset == piece.len {
            *cursor = Cursor { piece: cursor.piece + 1, offset: 0 };
        }
    }
}

/// A posted receive.
#[derive(Clone, Copy)]
pub(crate) struct Recv {
    work: WorkId,
    /// Its piece if it has one segment. Otherwise a null address and the length of all its pieces
    /// together.
    all: Piece,
    segments: u32,
}

impl Recv {
    /// Returns the number of bytes that it has room for.
    #[inline]
    pub(crate) fn room(&self) -> u64 {
        self.all.len as u64
    }

    /// Returns the address of its bytes, if it has one segment.
    #[inline]
    pub(crate) fn ptr(&self) -> Option<*mut u8> {
        (self.segments == 1).then_some(self.all.at)
    }
}

/// Posted receives, each with its segments.
#[derive(Default)]
pub(crate) struct Receives {
    queue: VecDeque<Recv>,
    pieces: VecDeque<Piece>,
    runs: Runs,
}

impl Receives {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    #[inline]
    pub(crate) fn push(&mut self, work: WorkId, segments: &[Segment]) {
        let all = match segments {
            [segment] => {
                self.runs.push(segment.region());
                Piece::of(segment)
            }
            _ => self.push_pieces(segments),
        };
        self.queue.push_back(Recv { work, all, segments: segments.len() as u32 });
    }

    #[cold]
    fn push_pieces(&mut self, segments: &[Segment]) -> Piece {
        segments.iter().for_each(|segment| self.runs.push(segment.region()));
        self.pieces.extend(segments.iter().map(Piece::of));
        Piece { at: std::ptr::null_mut(), len: segments.iter().map(Segment::len).sum() }
    }

    /// Returns the receive that the next message takes.
    #[inline]
    pub(crate) fn front(&self) -> Option<&Recv> {
        self.queue.front()
    }

    /// Takes the front receive out and releases its regions. Returns its work id.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<WorkId> {
        let recv = self.queue.pop_front()?;
        if recv.segments != 1 {
            self.pieces.drain(..(recv.segments as usize).min(self.pieces.len()));
        }
        self.runs.pop(recv.segments, drop);
        Some(recv.work)
    }

    /// Calls `each` with the parts of the next `len` bytes of the front receive from `cursor` on,
    /// and moves `cursor` behind them. The cursor of a new receive is the default one. The parts
    /// lie in memory that the queue holds.
    #[inline]
    pub(crate) fn walk(&self, cursor: &mut Cursor, len: usize, each: impl FnMut(*mut u8, usize)) {
        let Some(recv) = self.queue.front() else { return };
        let single = recv.segments == 1;
        walk(cursor, len, |piece| if single { recv.all } else { self.pieces[piece as usize] }, each);
    }
}

#[cfg(test)]
mod tests {
    use bmi_core::{Memory, Transport};

    use super::*;
    use crate::{ShmConfig, ShmTransport};

    #[test]
    fn receives_hold_their_regions_and_say_their_places() {
        let mut transport = ShmTransport::new(ShmConfig::default()).unwrap();
        let memories = [100, 200].map(|len| Memory::zeroed(len).unwrap());
        let regions = memories.each_ref().map(|memory| transport.register(memory).unwrap());
        let mut receives = Receives::default();
        receives.push(WorkId(1), &[regions[0].segment(0, 10)]);
        receives.push(WorkId(2), &[]);
        receives.push(WorkId(3), &[regions[0].segment(10, 5), regions[1].segment(0, 0), regions[1].segment(7, 20)]);
        receives.push(WorkId(4), &[regions[1].segment(50, 8)]);
        let starts = memories.each_ref().map(Memory::as_ptr);
        drop(regions);
        let [mut first, mut second] = memories;
        let mut ends = Vec::new();
        while let Some(recv) = receives.front() {
            let (mut cursor, mut parts, room) = (Cursor::default(), Vec::new(), recv.room() as usize);
            for len in [room / 2, room - room / 2] {
                receives.walk(&mut cursor, len, |at, len| parts.push((at, len)));
            }
            assert_eq!(recv.ptr().is_some(), recv.segments == 1);
            let work = receives.pop().unwrap();
            ends.push((work.0, parts, first.get_mut().is_some(), second.get_mut().is_some()));
        }
        let at = |memory: usize, offset| starts[memory].wrapping_add(offset);
        let third = vec![(at(0, 10), 5), (at(1, 7), 7), (at(1, 14), 13)];
        assert_eq!(ends[0], (1, vec![(at(0, 0), 5), (at(0, 5), 5)], false, false));
        assert_eq!(ends[1], (2, vec![], false, false));
        assert_eq!(ends[2], (3, third, true, false), "the first memory is in no receive any more");
        assert_eq!(ends[3], (4, vec![(at(1, 50), 4), (at(1, 54), 4)], true, true));
        assert_eq!((ends.len(), receives.len()), (4, 0));
    }

    #[test]
    fn a_region_is_held_until_its_last_piece_is_taken_out() {
        let mut transport = ShmTransport::new(ShmConfig::default()).unwrap();
        let memories = [100, 200].map(|len| Memory::zeroed(len).unwrap());
        let regions = memories.each_ref().map(|memory| transport.register(memory).unwrap());
        let mut queue = SegmentQueue::default();
        queue.push(&[regions[0].segment(0, 10), regions[0].segment(50, 50)]);
        let mut cursor = queue.end();
        queue.push(&[regions[1].segment(100, 100), regions[0].segment(0, 1)]);
        let starts = memories.each_ref().map(Memory::as_ptr);
        drop(regions);
        let [mut first, mut second] = memories;
        let mut seen = Vec::new();
        queue.walk(&mut cursor, 60, |at, len| seen.push((at, len)));
        queue.walk(&mut cursor, 41, |at, len| seen.push((at, len)));
        assert_eq!(seen, [(starts[1].wrapping_add(100), 60), (starts[1].wrapping_add(160), 40), (starts[0], 1)]);
        queue.pop(1, |_| panic!("half a run"));
        assert!(first.get_mut().is_none() && second.get_mut().is_none());
        let mut held = Vec::new();
        queue.pop(2, |region| held.push(region));
        assert_eq!(held.len(), 2, "two runs have ended");
        held.clear();
        assert!(first.get_mut().is_none() && second.get_mut().is_some(), "the third run holds the first memory");
        queue.pop(1, drop);
        assert!(first.get_mut().is_some());
    }
}
