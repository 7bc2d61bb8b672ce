//! Divides a transfer into parts: bytes that are moved by direct I/O, and the others.
//!
//! **Layout.** A piece of memory for consecutive bytes of a file is cut at the units of the file:
//!
//! ```text
//!   file     ┊unit┊unit┊unit┊unit┊unit┊
//!   piece       ├──────────────────┤
//!               head│ direct   │tail        head and tail: buffered
//! ```
//!
//! A piece whose bytes have another position within a unit in memory than in the file is buffered
//! as a whole. The last block of a file that is not full is always a tail.
//!
//! **Invariants**
//! 1. The parts are the bytes of the jobs, each once, in the same order.
//! 2. Offset, length and address of each piece of a direct part are aligned.
//! 3. A part is consecutive in the file, and has at most [`MOST_PIECES`] pieces of memory, so that
//!    one call can move it.
//!
//! **Tests.** The invariants, with any pieces and alignments.

use std::collections::VecDeque;

use bmi::MemSlice;

use super::jobs::Job;
use crate::store::open::{Alignment, Way};
use crate::store::sys::MOST_PIECES;

/// Consecutive bytes of a file, and their memory, that take the same way.
#[derive(Debug)]
pub(super) struct Part {
    pub(crate) way: Way,
    pub(crate) offset: u64,
    /// The sum of the lengths of the pieces.
    pub(crate) len: u64,
    pub(crate) pieces: VecDeque<MemSlice>,
}

impl Part {
    /// Takes the first `len` bytes away, which were moved.
    pub(crate) fn advance(&mut self, len: u64) {
        self.len -= len;
        self.offset = self.offset.saturating_add(len);
        let mut skip = len as usize;
        while let Some(first) = self.pieces.front_mut() {
            if skip < first.len() {
                *first = first.slice(skip, first.len() - skip);
                return;
            }
            skip -= first.len();
            self.pieces.pop_front();
        }
    }
}

/// Returns true if a transfer may have a direct part whatever the alignment is, which is a page at
/// least.
pub(in crate::store) fn may_be_direct(jobs: &[Job]) -> bool {
    let page = rustix::param::page_size();
    jobs.iter().flat_map(|(_, pieces)| pieces).any(|piece| piece.len() >= page)
}

/// Divides a transfer. Everything is buffered without an alignment.
pub(super) fn divide(jobs: Vec<Job>, alignment: Option<Alignment>) -> VecDeque<Part> {
    let mut parts = VecDeque::new();
    for (region, pieces) in jobs {
        let mut offset = region.offset;
        for piece in pieces {
            let mut start = 0;
            for (way, len) in cut(offset, piece.as_ptr().addr(), piece.len(), alignment) {
                if len > 0 {
                    append(&mut parts, way, offset, piece.slice(start, len));
                    start += len;
                    // Such offsets are refused when they are used.
                    offset = offset.saturating_add(len as u64);
                }
            }
        }
    }
    parts
}

/// Returns the lengths of the head, of what is between, and of the tail of a piece.
fn cut(offset: u64, address: usize, len: usize, alignment: Option<Alignment>) -> [(Way, usize); 3] {
    let whole = [(Way::Buffered, len), (Way::Direct, 0), (Way::Buffered, 0)];
    let Some(Alignment { unit, memory }) = alignment else { return whole };
    let (Some(from), Some(end)) = (offset.checked_next_multiple_of(unit), offset.checked_add(len as u64)) else {
        return whole;
    };
    let to = end - end % unit;
    let head = (from - offset) as usize;
    if from >= to || !(address + head).is_multiple_of(memory) {
        return whole;
    }
    [(Way::Buffered, head), (Way::Direct, (to - from) as usize), (Way::Buffered, (end - to) as usize)]
}

/// Appends bytes to the last part if they follow it and take the same way.
fn append(parts: &mut VecDeque<Part>, way: Way, offset: u64, piece: MemSlice) {
    let len = piece.len() as u64;
    if let Some(last) = parts.back_mut()
        && last.way == way
        && last.offset.checked_add(last.len) == Some(offset)
        && last.pieces.len() < MOST_PIECES
    {
        last.len += len;
        last.pieces.push_back(piece);
        return;
    }
    parts.push_back(Part { way, offset, len, pieces: VecDeque::from([piece]) });
}

#[cfg(test)]
mod tests {
    use bmi::{MemList, Memory};
    use fs_proto::Region;
    use proptest::prelude::*;

    use super::*;
    use crate::store::transfer::jobs::jobs;

    const ALIGNMENT: Alignment = Alignment { unit: 4096, memory: 512 };

    /// Divides one region that is made of some pieces of a page-aligned memory.
    fn divided(offset: u64, pieces: &[(usize, usize)]) -> Vec<(Way, u64, u64, usize)> {
        let memory = Memory::zeroed(1 << 20).unwrap();
        let list: MemList = pieces.iter().map(|(at, len)| memory.slice(*at, *len)).collect();
        let parts = divide(jobs(&[Region::new(offset, list.len() as u64)], &list), Some(ALIGNMENT));
        parts.into_iter().map(|part| (part.way, part.offset, part.len, part.pieces.len())).collect()
    }

    #[test]
    fn a_head_and_a_tail_are_buffered() {
        use Way::{Buffered, Direct};
        assert_eq!(divided(0, &[(0, 8192)]), [(Direct, 0, 8192, 1)]);
        assert_eq!(divided(8192, &[(512, 4096)]), [(Direct, 8192, 4096, 1)]);
        assert_eq!(
            divided(4000, &[(4000, 5000)]),
            [(Buffered, 4000, 96, 1), (Direct, 4096, 4096, 1), (Buffered, 8192, 808, 1)]
        );
        assert_eq!(divided(4096, &[(0, 4095)]), [(Buffered, 4096, 4095, 1)]);
        assert_eq!(divided(1, &[(1, 8190)]), [(Buffered, 1, 8190, 1)], "no whole unit");
        assert_eq!(divided(0, &[(100, 8192)]), [(Buffered, 0, 8192, 1)], "another position in memory");
    }

    #[test]
    fn pieces_that_follow_each_other_are_joined() {
        use Way::{Buffered, Direct};
        assert_eq!(
            divided(0, &[(65536, 4096), (0, 8192), (4096, 100)]),
            [(Direct, 0, 12288, 2), (Buffered, 12288, 100, 1)]
        );
        let many = vec![(0, 4096); 1500];
        assert_eq!(divided(0, &many), [(Direct, 0, 1024 * 4096, 1024), (Direct, 1024 * 4096, 476 * 4096, 476)]);
    }

    #[test]
    fn offsets_that_no_file_has_overflow_nothing() {
        for offset in [u64::MAX, u64::MAX - 4096, 1 << 63] {
            let parts = divided(offset, &[(0, 4096), (0, 4096)]);
            assert_eq!(parts.iter().map(|(_, _, len, _)| len).sum::<u64>(), 8192, "{parts:?}");
        }
    }

    proptest! {
        #[test]
        fn the_parts_are_the_bytes_in_order(
            regions in prop::collection::vec((0..40_000u64, prop::collection::vec((0..60_000usize, 1..20_000usize), 1..4)), 1..5),
            grain in prop::sample::select(vec![1u64, 512, 4096]),
            unit in prop::sample::select(vec![4096u64, 16384]),
        ) {
            let memory = Memory::zeroed(80_000).unwrap();
            let alignment = Alignment { unit, memory: 512 };
            let (mut all, mut slices) = (Vec::new(), Vec::new());
            for (offset, pieces) in regions {
                let down = |number: usize| number / grain as usize * grain as usize;
                let some: Vec<_> = pieces.iter().map(|(at, len)| memory.slice(down(*at), down(*len))).collect();
                let len = some.iter().map(|piece| piece.len() as u64).sum();
                all.push(Region::new(offset / grain * grain, len));
                slices.extend(some);
            }
            let list: MemList = slices.into_iter().collect();
            let jobs = jobs(&all, &list);
            let bytes = |offset: u64, piece: &MemSlice| {
                (0..piece.len()).map(|at| (offset + at as u64, piece.as_ptr().addr() + at)).collect::<Vec<_>>()
            };
            let mut expected = Vec::new();
            for (region, pieces) in &jobs {
                let mut offset = region.offset;
                for piece in pieces {
                    expected.extend(bytes(offset, piece));
                    offset += piece.len() as u64;
                }
            }
            let mut found = Vec::new();
            for part in divide(jobs, Some(alignment)) {
                let mut offset = part.offset;
                for piece in &part.pieces {
                    if part.way == Way::Direct {
                        prop_assert!(offset.is_multiple_of(unit) && (piece.len() as u64).is_multiple_of(unit));
                        prop_assert!(piece.as_ptr().addr().is_multiple_of(512));
                    }
                    found.extend(bytes(offset, piece));
                    offset += piece.len() as u64;
                }
                prop_assert_eq!(offset - part.offset, part.len);
            }
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn what_was_moved_is_taken_away(lens in prop::collection::vec(1..5000usize, 1..6), moved in prop::collection::vec(1..3000u64, 1..8)) {
            let memory = Memory::zeroed(5000).unwrap();
            let pieces: VecDeque<MemSlice> = lens.iter().map(|len| memory.slice(0, *len)).collect();
            let all = lens.iter().sum::<usize>() as u64;
            let mut part = Part { way: Way::Buffered, offset: 7, len: all, pieces };
            let mut done = 0;
            for len in moved {
                let len = len.min(part.len);
                part.advance(len);
                done += len;
                prop_assert_eq!((part.offset, part.len), (7 + done, all - done));
                prop_assert_eq!(part.pieces.iter().map(MemSlice::len).sum::<usize>() as u64, part.len);
                prop_assert!(part.pieces.iter().all(|piece| !piece.is_empty()));
                let last = part.pieces.back().map(|piece| piece.offset() + piece.len());
                prop_assert_eq!(last, (part.len > 0).then_some(lens[lens.len() - 1]));
            }
        }
    }
}
