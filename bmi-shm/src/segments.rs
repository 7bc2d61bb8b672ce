//! The segments of posted requests, one behind the other.
//!
//! **Why.** A posted segment holds its region until it is done. Regions are counted, and counting up and down, twice each, costs more than the copy
//! of a small message. But neighbours mostly lie in one region, the receive slots of an endpoint above all; so what is held is a *run*: the region once, and
//! for how many segments in a row.
//!
//! **Invariants**
//! 1. Each piece lies in the region of its run, which is held until the last piece of the run is taken out.
//! 2. What is popped was pushed first.

use std::collections::VecDeque;

use bmi_core::{MemoryRegion, Segment};

/// Segments of consecutive requests.
#[derive(Default)]
pub(crate) struct SegmentQueue {
    pieces: VecDeque<Piece>,
    runs: VecDeque<Run>,
    /// Pieces taken out since the beginning of time.
    popped: u64,
}

struct Piece {
    at: *mut u8,
    len: usize,
}

struct Run {
    region: MemoryRegion,
    pieces: u64,
}

// SAFETY: the pointers lead into the memory of regions that the queue holds (invariant 1) and that may be used on any thread.
unsafe impl Send for SegmentQueue {}

/// A place in a [`SegmentQueue`]: which piece since the beginning of time, and a byte in it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    piece: u64,
    offset: usize,
}

impl SegmentQueue {
    /// Where the segments that are pushed next will stand.
    pub(crate) fn end(&self) -> Cursor {
        Cursor { piece: self.popped + self.pieces.len() as u64, offset: 0 }
    }

    /// Where the oldest segments stand.
    pub(crate) fn front(&self) -> Cursor {
        Cursor { piece: self.popped, offset: 0 }
    }

    #[inline]
    pub(crate) fn push(&mut self, segments: &[Segment]) {
        for segment in segments {
            match self.runs.back_mut() {
                Some(run) if run.region.is_same(segment.region()) => run.pieces += 1,
                _ => self.runs.push_back(Run { region: segment.region().clone(), pieces: 1 }),
            }
            self.pieces.push_back(Piece { at: segment.as_ptr(), len: segment.len() });
        }
    }

    /// Takes the oldest `count` segments out and hands over the regions that are held no longer.
    #[inline]
    pub(crate) fn pop(&mut self, count: u32, mut to: impl FnMut(MemoryRegion)) {
        for _ in 0..count {
            let (Some(_), Some(run)) = (self.pieces.pop_front(), self.runs.front_mut()) else { return };
            self.popped += 1;
            run.pieces -= 1;
            if run.pieces == 0
                && let Some(run) = self.runs.pop_front()
            {
                to(run.region);
            }
        }
    }

    /// Calls `each` with `count` whole pieces from `cursor` on.
    pub(crate) fn each(&self, cursor: Cursor, count: usize, mut each: impl FnMut(*mut u8, usize)) {
        let first = (cursor.piece - self.popped) as usize;
        self.pieces.range(first..first + count).for_each(|piece| each(piece.at, piece.len));
    }

    /// Calls `each` with the pieces of the next `len` bytes from `cursor` on, and moves it behind them. What `each` gets lies in memory that the queue holds.
    #[inline]
    pub(crate) fn walk(&self, cursor: &mut Cursor, mut len: usize, mut each: impl FnMut(*mut u8, usize)) {
        while len > 0 {
            let piece = &self.pieces[(cursor.piece - self.popped) as usize];
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
}

#[cfg(test)]
mod tests {
    use bmi_core::{Memory, Transport};

    use super::*;
    use crate::{ShmConfig, ShmTransport};

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
