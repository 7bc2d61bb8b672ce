//! Ranges of bytes: of a file, and within a unit of the cache.

use std::ops::Range;

/// A range of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// Its first byte.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

impl Extent {
    /// Creates an extent.
    pub fn new(offset: u64, len: u64) -> Extent {
        Extent { offset, len }
    }

    /// Returns the offset behind the last byte, at most the largest one.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    pub(crate) fn overlaps(&self, other: &Extent) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }

    /// Cuts the extent at multiples of `unit`. Each part is the offset of the unit, and the range
    /// of bytes within it.
    pub(crate) fn parts(self, unit: u32) -> impl Iterator<Item = (u64, Range<u32>)> {
        let (unit, end) = (u64::from(unit), self.end());
        let mut at = self.offset;
        std::iter::from_fn(move || {
            let base = at / unit * unit;
            let part = (at - base) as u32..(end.min(base.saturating_add(unit)) - base) as u32;
            at = base + u64::from(part.end);
            (!part.is_empty()).then_some((base, part))
        })
    }
}

/// Sorts extents, drops empty ones and joins those that touch or overlap.
pub(crate) fn joined(extents: &[Extent]) -> Vec<Extent> {
    let mut sorted: Vec<Extent> = extents.iter().copied().filter(|extent| extent.len > 0).collect();
    sorted.sort_unstable();
    sorted.dedup_by(|next, last| {
        let joins = next.offset <= last.end();
        if joins {
            last.len = last.len.max(next.end() - last.offset);
        }
        joins
    });
    sorted
}

/// Returns true if two sorted lists of extents have a byte in common.
pub(crate) fn overlap(one: &[Extent], other: &[Extent]) -> bool {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    while let (Some(a), Some(b)) = (one.peek(), other.peek()) {
        if a.overlaps(b) {
            return true;
        }
        if a.end() <= b.offset {
            one.next()
        } else {
            other.next()
        };
    }
    false
}

/// A set of bytes within a unit: disjoint, ascending, non-empty ranges that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spans(Vec<Range<u32>>);

impl Spans {
    pub(crate) fn of(range: Range<u32>) -> Spans {
        let mut spans = Spans::default();
        spans.insert(range);
        spans
    }

    pub(crate) fn ranges(&self) -> &[Range<u32>] {
        &self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|range| u64::from(range.end - range.start)).sum()
    }

    /// Returns the number of bytes that are in `range`.
    pub(crate) fn bytes_in(&self, range: &Range<u32>) -> u64 {
        let len = |own: &Range<u32>| own.end.min(range.end).saturating_sub(own.start.max(range.start));
        self.0.iter().map(|own| u64::from(len(own))).sum()
    }

    pub(crate) fn contains(&self, range: &Range<u32>) -> bool {
        range.is_empty() || self.0.iter().any(|own| own.start <= range.start && range.end <= own.end)
    }

    pub(crate) fn insert(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|own| own.end < range.start);
        let last = self.0.partition_point(|own| own.start <= range.end);
        let start = self.0.get(first).filter(|_| first < last).map_or(range.start, |own| own.start.min(range.start));
        let end = if first < last { self.0[last - 1].end.max(range.end) } else { range.end };
        self.0.splice(first..last, std::iter::once(start..end));
    }

    pub(crate) fn remove(&mut self, range: &Range<u32>) {
        if range.is_empty() {
            return;
        }
        let parts = |own: &Range<u32>| {
            let (before, after) = (own.start..own.end.min(range.start), own.start.max(range.end)..own.end);
            [before, after].into_iter().filter(|part| !part.is_empty())
        };
        self.0 = self.0.iter().flat_map(parts).collect();
    }

    pub(crate) fn union(&mut self, other: &Spans) {
        other.0.iter().for_each(|range| self.insert(range.clone()));
    }

    /// Returns the bytes of `0..len` that are not in the set.
    pub(crate) fn gaps(&self, len: u32) -> Spans {
        let mut gaps = Spans::of(0..len);
        self.0.iter().for_each(|range| gaps.remove(range));
        gaps
    }

    /// Reduces the number of ranges to `most`, by closing gaps whose bytes are all in `within`.
    /// Returns false if that is not enough.
    pub(crate) fn reduce(&mut self, most: usize, within: &Spans) -> bool {
        while self.0.len() > most {
            let closable = |pair: &[Range<u32>]| within.contains(&(pair[0].end..pair[1].start));
            let gap = |pair: &[Range<u32>]| pair[1].start - pair[0].end;
            let smallest = (1..self.0.len())
                .filter(|at| closable(&self.0[*at - 1..=*at]))
                .min_by_key(|at| gap(&self.0[*at - 1..=*at]));
            let Some(at) = smallest else { return false };
            self.0[at - 1].end = self.0[at].end;
            self.0.remove(at);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(spans: &Spans) -> Vec<bool> {
        let mut bytes = vec![false; 64];
        spans.0.iter().for_each(|range| bytes[range.start as usize..range.end as usize].fill(true));
        bytes
    }

    fn check(spans: &Spans) {
        assert!(spans.0.iter().all(|range| !range.is_empty()), "{spans:?}");
        assert!(spans.0.windows(2).all(|pair| pair[0].end < pair[1].start), "{spans:?}");
    }

    fn range() -> impl Strategy<Value = Range<u32>> {
        (0u32..=64, 0u32..=64).prop_map(|(a, b)| a.min(b)..a.max(b))
    }

    proptest! {
        #[test]
        fn spans_are_a_set_of_bytes(steps in prop::collection::vec((any::<bool>(), range()), 0..20), probe in range()) {
            let (mut spans, mut model) = (Spans::default(), vec![false; 64]);
            for (insert, range) in steps {
                if insert { spans.insert(range.clone()) } else { spans.remove(&range) }
                model[range.start as usize..range.end as usize].fill(insert);
                check(&spans);
                prop_assert_eq!(&bytes(&spans), &model);
            }
            let all = model[probe.start as usize..probe.end as usize].iter().all(|has| *has);
            prop_assert_eq!(spans.contains(&probe), all);
            let gaps = spans.gaps(64);
            check(&gaps);
            prop_assert!(bytes(&gaps).iter().zip(&model).all(|(gap, has)| gap != has));
            prop_assert_eq!(spans.bytes(), model.iter().filter(|has| **has).count() as u64);
        }

        #[test]
        fn fewer_ranges_cover_the_same_and_only_what_they_may(
            parts in prop::collection::vec(range(), 0..10), more in prop::collection::vec(range(), 0..10), most in 1usize..4,
        ) {
            let mut spans = Spans::default();
            parts.iter().for_each(|range| spans.insert(range.clone()));
            let mut within = spans.clone();
            more.iter().for_each(|range| within.insert(range.clone()));
            let mut fewer = spans.clone();
            let reduced = fewer.reduce(most, &within);
            check(&fewer);
            prop_assert_eq!(reduced, fewer.0.len() <= most);
            for (at, has) in bytes(&fewer).into_iter().enumerate() {
                prop_assert!(!has || bytes(&within)[at]);
                prop_assert!(has || !bytes(&spans)[at]);
            }
            prop_assert!(reduced || within.0.len() > most);
        }

        #[test]
        fn extents_are_cut_at_units(offset in 0u64..1000, len in 0u64..1000) {
            let mut at = offset;
            for (base, part) in Extent::new(offset, len).parts(64) {
                prop_assert!(base % 64 == 0 && part.end <= 64 && base + u64::from(part.start) == at);
                at = base + u64::from(part.end);
            }
            prop_assert_eq!(at, offset + len);
        }

        #[test]
        fn lists_overlap_if_two_extents_do(
            one in prop::collection::vec((0u64..200, 0u64..20), 0..8), other in prop::collection::vec((0u64..200, 0u64..20), 0..8),
        ) {
            let list = |list: &[(u64, u64)]| joined(&list.iter().map(|(at, len)| Extent::new(*at, *len)).collect::<Vec<_>>());
            let (one, other) = (list(&one), list(&other));
            let any = one.iter().any(|a| other.iter().any(|b| a.overlaps(b)));
            prop_assert_eq!(overlap(&one, &other), any);
            prop_assert!(one.windows(2).all(|pair| pair[0].end() < pair[1].offset));
        }
    }
}
