//! The segments of the requests in a queue.

use std::collections::VecDeque;

use bmi_core::Segment;

/// The segments of consecutive requests.
#[derive(Default)]
pub(crate) struct SegmentQueue {
    segments: VecDeque<Segment>,
    popped: u64,
}

/// A position in a [`SegmentQueue`]: the number of a segment, counted from the first ever pushed,
/// and a byte in it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    segment: u64,
    offset: usize,
}

impl SegmentQueue {
    /// Returns the position of the next segment to be pushed.
    pub(super) fn end(&self) -> Cursor {
        Cursor { segment: self.popped + self.segments.len() as u64, offset: 0 }
    }

    /// Returns the position of the oldest segment.
    pub(crate) fn front(&self) -> Cursor {
        Cursor { segment: self.popped, offset: 0 }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub(super) fn push(&mut self, segments: &[Segment]) {
        match segments {
            [one] => self.segments.push_back(one.clone()),
            many => self.segments.extend(many.iter().cloned()),
        }
    }

    /// Puts segments before all others, or behind the first `behind` of them. No cursor may be at a
    /// later one.
    pub(super) fn insert(&mut self, behind: usize, segments: &[Segment]) {
        for (at, segment) in segments.iter().enumerate() {
            match behind + at {
                0 => self.segments.push_front(segment.clone()),
                at => self.segments.insert(at, segment.clone()),
            }
        }
    }

    pub(super) fn pop(&mut self, count: u32) {
        self.popped += u64::from(count);
        match count {
            0 => {}
            1 => drop(self.segments.pop_front()),
            many => drop(self.segments.drain(..many as usize)),
        }
    }

    /// Calls `each` with the pieces (segment, offset in it, length) of the next `len` bytes from
    /// `cursor` on, and advances the cursor past them.
    pub(crate) fn walk(&self, cursor: &mut Cursor, mut len: usize, mut each: impl FnMut(&Segment, usize, usize)) {
        while len > 0 {
            let segment = &self.segments[(cursor.segment - self.popped) as usize];
            let step = len.min(segment.len() - cursor.offset);
            if step > 0 {
                each(segment, cursor.offset, step);
            }
            len -= step;
            cursor.offset += step;
            if cursor.offset == segment.len() {
                *cursor = Cursor { segment: cursor.segment + 1, offset: 0 };
            }
        }
    }
}
