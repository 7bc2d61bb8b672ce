//! Copies between the pieces that a cursor finds and their bytes in one piece.
//!
//! **Why.** Most types are regular: a batch of pieces is a few rows of equal ones at one distance.
//! A row is found and copied in one loop, which takes a nanosecond for a short piece. A call for
//! each takes five.

use bmi::memory::Strided;
use bmi::{MemSlice, Memory};

use crate::region::Region;

/// Copies the first bytes of `from` to pieces of a range, of which `memory` has the bytes from
/// `base` on. Returns their number.
///
/// # Panics
/// If `from` is shorter, a piece is not within the memory, or that is read-only.
pub fn scatter(memory: &Memory, from: &MemSlice, pieces: &[Region], base: u64) -> usize {
    rows(pieces).fold(0, |done, row| done + memory.scatter(&from.slice(done, from.len() - done), row.places(base)))
}

/// Copies pieces of a range, of which `memory` has the bytes from `base` on, to the first bytes of
/// `into`. Returns their number.
///
/// # Panics
/// If `into` is shorter or read-only, or a piece is not within the memory.
pub fn gather(memory: &Memory, into: &MemSlice, pieces: &[Region], base: u64) -> usize {
    rows(pieces).fold(0, |done, row| done + memory.gather(&into.slice(done, into.len() - done), row.places(base)))
}

/// Pieces of equal length at one distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) first: Region,
    pub(crate) every: u64,
    pub(crate) count: u64,
}

impl Row {
    fn places(self, base: u64) -> Strided {
        let at = self.first.offset.checked_sub(base).expect("a piece before the memory");
        let [at, len, every] = [at, self.first.len, self.every].map(|bytes| usize::try_from(bytes).expect("in memory"));
        Strided { at, len, every, count: self.count as usize }
    }
}

/// Returns pieces as rows, in order.
pub(crate) fn rows(mut pieces: &[Region]) -> impl Iterator<Item = Row> + '_ {
    std::iter::from_fn(move || {
        let (first, others) = pieces.split_first()?;
        let every = others.first().and_then(|second| second.offset.checked_sub(first.offset)).unwrap_or(0);
        let mut before = first.offset;
        let more = others.iter().take_while(|piece| {
            let is_next = piece.len == first.len && piece.offset.wrapping_sub(before) == every;
            before = piece.offset;
            is_next
        });
        let count = 1 + more.count();
        pieces = &pieces[count..];
        Some(Row { first: *first, every, count: count as u64 })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::coverage::Coverage;

    /// Rows of pieces, of which any may begin before the one before.
    fn pieces() -> impl Strategy<Value = Vec<Region>> {
        let row = (0..300u64, prop_oneof![Just(4), Just(8), 0..20u64], 0..40u64, 1..30u64);
        proptest::collection::vec(row, 0..6).prop_map(|rows| {
            let row = |(at, len, every, count)| (0..count).map(move |index| Region::new(at + index * every, len));
            rows.into_iter().flat_map(row).collect()
        })
    }

    proptest! {
        #[test]
        fn rows_are_the_pieces(pieces in pieces()) {
            let row = |row: Row| (0..row.count).map(move |at| Region::new(row.first.offset + at * row.every, row.first.len));
            prop_assert_eq!(rows(&pieces).flat_map(row).collect::<Vec<_>>(), pieces);
        }

        #[test]
        fn pieces_are_copied_and_noted_as_one_by_one(pieces in pieces(), base in 0..7u64) {
            let pieces: Vec<Region> = pieces.into_iter().map(|piece| Region::new(piece.offset + base, piece.len)).collect();
            let total = pieces.iter().map(|piece| piece.len as usize).sum::<usize>();
            let source: Vec<u8> = (0..total + 9).map(|at| (at * 7 + at / 256) as u8).collect();
            let (range, other) = (Memory::from(vec![0; 2000]), Memory::from(source.clone()));
            let (mut expected, mut coverage, mut at) = (vec![0; 2000], Coverage::new(2000), 5);
            prop_assert_eq!(scatter(&range, &other.slice(5, total), &pieces, base), total);
            for piece in &pieces {
                let (offset, len) = ((piece.offset - base) as usize, piece.len as usize);
                expected[offset..offset + len].copy_from_slice(&source[at..at + len]);
                coverage.mark(piece.offset - base, piece.len);
                at += len;
            }
            prop_assert_eq!(range.to_vec(), &expected[..]);
            let back = Memory::from(vec![0; total + 9]);
            prop_assert_eq!(gather(&range, &back.slice(3, total), &pieces, base), total);
            let walked: Vec<u8> = pieces.iter().flat_map(|piece| {
                let (offset, len) = ((piece.offset - base) as usize, piece.len as usize);
                expected[offset..offset + len].to_vec()
            }).collect();
            prop_assert_eq!(&back.to_vec()[3..3 + total], &walked[..]);
            let mut together = Coverage::new(2000);
            together.mark_all(&pieces, base);
            prop_assert!(together.runs().eq(coverage.runs()));
        }
    }
}
