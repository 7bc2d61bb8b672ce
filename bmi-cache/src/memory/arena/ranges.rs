//! The ranges of bytes of a unit that are dirty: few, in order, in a value that is cheap to copy.
//!
//! **Why at most three.** The header of a unit has room for three. A write usually makes one range
//! longer. Where a fourth would be needed, the cache reads the bytes between two ranges from the
//! disk, after which the two are one, or it writes a range back.
//!
//! **Invariants**
//! 1. Ranges are not empty, end at [`BLOCK`] at most, ascend, and do not touch: there is a byte
//!    between any two. So equal sets of bytes are equal values.
//! 2. Values are made by [`Ranges::with`] and [`Ranges::without`] only.
//!
//! **Tests** compare both with sets of bytes.

use std::fmt;
use std::ops::Range;

use super::BLOCK;

/// The most ranges of a value.
pub(super) const MAX_RANGES: usize = 3;

/// At most three ranges of bytes within a unit. They ascend, are not empty and do not touch.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Ranges {
    /// First and last byte of each. Those at `count` and above are zeros.
    parts: [(u16, u16); MAX_RANGES],
    count: u8,
}

impl Ranges {
    /// No bytes.
    pub const NONE: Ranges = Ranges { parts: [(0, 0); MAX_RANGES], count: 0 };

    /// Returns the value with the bytes of `range` added. Returns `None` if that needs more than
    /// three ranges.
    ///
    /// # Panics
    /// If the range ends above [`BLOCK`].
    #[must_use]
    pub fn with(self, range: Range<u32>) -> Option<Ranges> {
        assert!(range.end as usize <= BLOCK, "bytes {range:?} are beyond any unit");
        if range.is_empty() {
            return Some(self);
        }
        let touching = self.iter().filter(|part| part.start <= range.end && range.start <= part.end);
        let joined = touching.fold(range.clone(), |all, part| all.start.min(part.start)..all.end.max(part.end));
        let before = self.iter().filter(|part| part.end < range.start);
        let after = self.iter().filter(|part| part.start > range.end);
        Ranges::collect(before.chain([joined]).chain(after))
    }

    /// Returns the value without the bytes of `range`. Returns `None` if that needs more than three
    /// ranges.
    #[must_use]
    pub fn without(self, range: Range<u32>) -> Option<Ranges> {
        if range.is_empty() {
            return Some(self);
        }
        let left =
            self.iter().flat_map(|part| [part.start..part.end.min(range.start), part.start.max(range.end)..part.end]);
        Ranges::collect(left)
    }

    /// Returns the ranges in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u32>> + use<> {
        let (parts, count) = (self.parts, usize::from(self.count));
        parts.into_iter().take(count).map(|(first, last)| u32::from(first)..u32::from(last) + 1)
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns how many bytes there are.
    pub fn bytes(&self) -> u32 {
        self.iter().map(|part| part.end - part.start).sum()
    }

    /// Returns the range from the first byte to the last one. It is `0..0` if there are none.
    pub fn span(&self) -> Range<u32> {
        let end = self.iter().last().map_or(0, |part| part.end);
        self.iter().next().map_or(0, |part| part.start)..end
    }

    /// Takes ranges that ascend and do not touch, and drops empty ones. Returns `None` if there are
    /// too many.
    fn collect(ranges: impl Iterator<Item = Range<u32>>) -> Option<Ranges> {
        let mut all = Ranges::NONE;
        for range in ranges.filter(|range| !range.is_empty()) {
            // Neither number is above 65,535: the range is not empty and ends at `BLOCK` at most.
            *all.parts.get_mut(usize::from(all.count))? = (range.start as u16, (range.end - 1) as u16);
            all.count += 1;
        }
        Some(all)
    }
}

impl fmt::Debug for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what is meant")]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn ranges(list: &[Range<u32>]) -> Ranges {
        list.iter().fold(Ranges::NONE, |all, range| all.with(range.clone()).unwrap())
    }

    /// Checks invariant 1, and returns the bytes.
    fn bytes_of(all: Ranges) -> BTreeSet<u32> {
        let list: Vec<Range<u32>> = all.iter().collect();
        assert!(list.iter().all(|range| !range.is_empty() && range.end as usize <= BLOCK), "{list:?}");
        assert!(list.windows(2).all(|two| two[0].end < two[1].start), "{list:?}");
        list.into_iter().flatten().collect()
    }

    fn pieces(bytes: &BTreeSet<u32>) -> usize {
        bytes.iter().filter(|byte| !bytes.contains(&(**byte + 1))).count()
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let all = ranges(&[10..20, 30..40, 0..5]);
        assert_eq!(format!("{all:?}"), "[0..5, 10..20, 30..40]");
        assert_eq!((all.bytes(), all.span(), all.is_empty()), (25, 0..40, false));
        assert_eq!(all.with(50..60), None);
        assert_eq!(all.with(20..30), Some(ranges(&[0..5, 10..40])));
        assert_eq!(all.with(7..100), Some(ranges(&[0..5, 7..100])));
        assert_eq!(all.with(99..99), Some(all));
        assert_eq!(all.without(12..14), None);
        assert_eq!(all.without(20..30), Some(all));
        assert_eq!(all.without(4..39), Some(ranges(&[0..4, 39..40])));
        assert_eq!(all.without(0..40), Some(Ranges::NONE));
        assert_eq!((Ranges::NONE.span(), Ranges::NONE.bytes()), (0..0, 0));
    }

    #[test]
    fn the_last_byte_of_a_block_is_in_reach() {
        let all = ranges(&[0..1, 65_535..65_536]);
        assert_eq!((all.bytes(), all.span()), (2, 0..65_536));
        assert_eq!(ranges(&[0..65_536]).bytes(), 65_536);
        assert!(std::panic::catch_unwind(|| Ranges::NONE.with(65_535..65_537)).is_err());
    }

    proptest! {
        #[test]
        fn ranges_are_sets_of_bytes(steps in prop::collection::vec((any::<bool>(), 0..40u32, 0..12u32), 1..40)) {
            let (mut all, mut model) = (Ranges::NONE, BTreeSet::new());
            for (add, start, len) in steps {
                let range = start..start + len;
                let mut next = model.clone();
                let changed = if add {
                    next.extend(range.clone());
                    all.with(range)
                } else {
                    next.retain(|byte| !range.contains(byte));
                    all.without(range)
                };
                prop_assert_eq!(changed.is_some(), pieces(&next) <= MAX_RANGES);
                if let Some(changed) = changed {
                    (all, model) = (changed, next);
                }
                prop_assert_eq!(&bytes_of(all), &model);
                prop_assert_eq!(all.bytes() as usize, model.len());
            }
        }
    }
}
