//! Which bytes of a range have come: a bit for each.
//!
//! **Why.** What several clients write is put together in memory before the disk sees it. Bytes
//! that nobody wrote must not reach the disk.

use std::iter;

use crate::datatype::{Row, rows};
use crate::region::Region;

const BITS: u64 = u64::BITS as u64;

/// The bytes of a range that have come.
#[derive(Clone, Debug)]
pub struct Coverage {
    words: Vec<u64>,
    len: u64,
}

impl Coverage {
    /// Returns the coverage of a range of `len` bytes, of which none has come. Takes `len / 8`
    /// bytes of memory.
    pub fn new(len: u64) -> Coverage {
        Coverage { words: vec![0; len.div_ceil(BITS) as usize], len }
    }

    /// Returns the length of the range.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if no byte has come.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Notes that `len` bytes from `at` on have come.
    ///
    /// # Panics
    /// If they are not within the range.
    #[inline]
    pub fn mark(&mut self, at: u64, len: u64) {
        assert!(len <= self.len && at <= self.len - len, "{len} bytes at {at} of {}", self.len);
        if len == 0 {
            return;
        }
        let (first, bit) = ((at / BITS) as usize, at % BITS);
        if len < BITS - bit {
            self.words[first] |= ((1 << len) - 1) << bit;
            return;
        }
        self.words[first] |= u64::MAX << bit;
        let end = at + len;
        let last = (end / BITS) as usize;
        self.words[first + 1..last.max(first + 1)].fill(u64::MAX);
        if last > first && !end.is_multiple_of(BITS) {
            self.words[last] |= (1 << (end % BITS)) - 1;
        }
    }

    /// Notes that pieces of a file have come, of which the range begins at `base`.
    ///
    /// # Panics
    /// If one is not within the range.
    pub fn mark_all(&mut self, pieces: &[Region], base: u64) {
        for row in rows(pieces) {
            let at = row.first.offset.checked_sub(base).expect("a piece before the range");
            self.mark_row(at, row);
        }
    }

    /// Notes the pieces of a row, of which the first one is at `at`.
    fn mark_row(&mut self, mut at: u64, Row { first, every, mut count }: Row) {
        let (len, reach) = (first.len, every.saturating_mul(count - 1).saturating_add(first.len));
        assert!(reach <= self.len && at <= self.len - reach, "{count} times {len} bytes at {at} of {}", self.len);
        let is_even = (1..BITS).contains(&every) && BITS.is_multiple_of(every) && at % every + len <= every;
        while count > 0 {
            let words = count / (BITS / every.max(1)).max(1);
            if is_even && at % BITS < every && words > 0 {
                // Each word has the same bits.
                let bits =
                    (0..BITS / every).fold(0, |bits, piece| bits | ((1 << len) - 1) << (at % BITS + piece * every));
                let first = (at / BITS) as usize;
                let words = &mut self.words[first..first + words as usize];
                words.iter_mut().for_each(|word| *word |= bits);
                let done = words.len() as u64;
                (at, count) = (at + done * BITS, count - done * (BITS / every));
            } else {
                self.mark(at, len);
                (at, count) = (at + every, count - 1);
            }
        }
    }

    /// Returns the bytes that have come, as ranges that ascend and do not touch.
    pub fn runs(&self) -> impl Iterator<Item = Region> + '_ {
        self.runs_from(0)
    }

    /// Returns those from `at` on.
    pub fn runs_from(&self, mut at: u64) -> impl Iterator<Item = Region> + '_ {
        iter::from_fn(move || {
            let from = self.next(at, u64::MAX)?;
            at = self.next(from, 0).unwrap_or(self.len);
            Some(Region::new(from, at - from))
        })
    }

    /// Returns the first byte from `at` on whose bit is that of `kind`, which has only ones or only
    /// zeros.
    fn next(&self, at: u64, kind: u64) -> Option<u64> {
        let first = (at / BITS) as usize;
        for (index, word) in self.words.iter().enumerate().skip(first) {
            let below = if index == first { (1 << (at % BITS)) - 1 } else { 0 };
            let found = !(word ^ kind) & !below;
            if found != 0 {
                let at = index as u64 * BITS + u64::from(found.trailing_zeros());
                return (at < self.len).then_some(at);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_are_the_bytes_that_were_marked(
            len in 1..400u64, marks in proptest::collection::vec((0..400u64, 0..150u64), 0..8),
        ) {
            let (mut coverage, mut model) = (Coverage::new(len), vec![false; len as usize]);
            let marks: Vec<_> = marks.into_iter().map(|(at, more)| (at.min(len), more.min(len - at.min(len)))).collect();
            for (at, marked) in marks {
                coverage.mark(at, marked);
                model[at as usize..(at + marked) as usize].fill(true);
            }
            let runs: Vec<Region> = coverage.runs().collect();
            let mut came = vec![false; len as usize];
            runs.iter().for_each(|run| came[run.offset as usize..(run.offset + run.len) as usize].fill(true));
            prop_assert_eq!(&came, &model);
            prop_assert!(runs.windows(2).all(|two| two[0].offset + two[0].len < two[1].offset));
            prop_assert_eq!(coverage.is_empty(), runs.is_empty());
        }
    }

    #[test]
    #[should_panic(expected = "2 bytes at 9 of 10")]
    fn bytes_beyond_the_range_are_not_marked() {
        Coverage::new(10).mark(9, 2);
    }
}
