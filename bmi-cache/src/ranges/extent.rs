//! Ranges of bytes: of a file, and within a unit of the cache.

use std::ops::Range;

use super::steps::{search_steps, steps};

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

/// Returns each unit of `parts` once, with all its bytes of them. Each part is a unit and some of
/// its bytes. Those of a unit come one after the other and ascend, as sorted extents are cut.
pub(crate) fn by_unit(parts: &[(usize, Range<u32>)]) -> impl Iterator<Item = (usize, Spans)> {
    let units = parts.chunk_by(|(one, _), (other, _)| one == other);
    units.map(|own| (own[0].0, Spans::ascending(own.iter().map(|(_, range)| range.clone()))))
}

/// Returns true if two sorted lists of extents have a byte in common.
pub(crate) fn overlap(one: &[Extent], other: &[Extent]) -> bool {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    while let (Some(a), Some(b)) = (one.peek(), other.peek()) {
        steps(1);
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
///
/// A unit may have as many ranges as a list has pieces. So what is done once for each piece looks
/// only at the ranges around it, and what looks at all ranges is done once for each unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spans(Vec<Range<u32>>);

impl Spans {
    pub(crate) fn of(range: Range<u32>) -> Spans {
        Spans::ascending([range])
    }

    /// Returns the bytes of ranges that come in the order of their first bytes.
    pub(crate) fn ascending(ranges: impl IntoIterator<Item = Range<u32>>) -> Spans {
        let mut spans: Vec<Range<u32>> = Vec::new();
        for range in ranges.into_iter().filter(|range| !range.is_empty()) {
            steps(1);
            match spans.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => spans.push(range),
            }
        }
        Spans(spans)
    }

    pub(crate) fn ranges(&self) -> &[Range<u32>] {
        &self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> u64 {
        steps(self.0.len());
        self.0.iter().map(|range| u64::from(range.end - range.start)).sum()
    }

    /// Returns the number of bytes that are in `range`.
    pub(crate) fn bytes_in(&self, range: &Range<u32>) -> u64 {
        self.within(range).map(|part| u64::from(part.end - part.start)).sum()
    }

    /// Returns the parts of the ranges that are in `range`.
    pub(crate) fn within(&self, range: &Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let (from, to) = (range.start, range.end);
        let behind = self.0[self.first_behind(from)..].iter();
        let parts = behind.inspect(|_| steps(1)).take_while(move |own| own.start < to);
        parts.map(move |own| own.start.max(from)..own.end.min(to))
    }

    /// Returns the place of the first range that has bytes behind `at`, or at it.
    fn first_behind(&self, at: u32) -> usize {
        search_steps(self.0.len());
        self.0.partition_point(|own| own.end <= at)
    }

    pub(crate) fn contains(&self, range: &Range<u32>) -> bool {
        let own = || self.0.get(self.first_behind(range.start));
        range.is_empty() || own().is_some_and(|own| own.start <= range.start && range.end <= own.end)
    }

    pub(crate) fn remove(&mut self, range: &Range<u32>) {
        self.subtract(&Spans::of(range.clone()));
    }

    pub(crate) fn union(&mut self, other: &Spans) {
        match (self.is_empty(), other.is_empty()) {
            (_, true) => {}
            (true, false) => self.clone_from(other),
            (false, false) => *self = Spans::ascending(merged(&self.0, &other.0)),
        }
    }

    /// Takes the bytes of another set out of this one.
    pub(crate) fn subtract(&mut self, other: &Spans) {
        if other.is_empty() || self.is_empty() {
            return;
        }
        let (mut left, mut others) = (Vec::with_capacity(self.0.len()), other.0.iter().peekable());
        for own in &self.0 {
            let mut from = own.start;
            while let Some(next) = others.next_if(|next| next.end <= own.end) {
                steps(1);
                left.push(from..next.start);
                from = from.max(next.end);
            }
            steps(1);
            // The next one may reach into the range that follows, too.
            left.push(from..others.peek().map_or(own.end, |next| next.start.min(own.end)));
        }
        left.retain(|range| !range.is_empty());
        self.0 = left;
    }

    /// Returns the bytes of `0..len` that are not in the set.
    pub(crate) fn gaps(&self, len: u32) -> Spans {
        let mut gaps = Spans::of(0..len);
        gaps.subtract(self);
        gaps
    }

    /// Reduces the number of ranges to `most`, by closing gaps whose bytes are all in `within`, the
    /// smallest first. Returns false if that is not enough.
    pub(crate) fn reduce(&mut self, most: usize, within: &Spans) -> bool {
        let Some(excess) = self.0.len().checked_sub(most).filter(|excess| *excess > 0) else { return true };
        // To close one gap changes nothing about the others.
        let gap = |at: usize| self.0[at - 1].end..self.0[at].start;
        let mut closable: Vec<usize> = (1..self.0.len()).filter(|at| within.contains(&gap(*at))).collect();
        closable.sort_by_key(|at| gap(*at).len());
        steps(closable.len() * (closable.len().checked_ilog2().unwrap_or(0) as usize + 1));
        let is_enough = closable.len() >= excess;
        closable.truncate(excess);
        let mut closed: Vec<Range<u32>> = closable.into_iter().map(gap).collect();
        closed.sort_unstable_by_key(|gap| gap.start);
        self.union(&Spans(closed));
        is_enough
    }
}

/// Returns the ranges of two ascending lists in the order of their first bytes.
fn merged<'a>(one: &'a [Range<u32>], other: &'a [Range<u32>]) -> impl Iterator<Item = Range<u32>> + 'a {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    std::iter::from_fn(move || {
        let is_first = match (one.peek(), other.peek()) {
            (Some(a), Some(b)) => a.start <= b.start,
            (a, _) => a.is_some(),
        };
        if is_first { one.next() } else { other.next() }.cloned()
    })
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

    fn set(ranges: &[Range<u32>]) -> Spans {
        ranges.iter().fold(Spans::default(), |mut spans, range| {
            spans.union(&Spans::of(range.clone()));
            spans
        })
    }

    /// What [`Spans::reduce`] does, in the plainest way: closes the smallest gap again and again.
    fn reduced_one_by_one(mut spans: Spans, most: usize, within: &Spans) -> (Spans, bool) {
        while spans.0.len() > most {
            let gap = |at: usize| spans.0[at - 1].end..spans.0[at].start;
            let closable = (1..spans.0.len()).filter(|at| within.contains(&gap(*at)));
            let Some(at) = closable.min_by_key(|at| gap(*at).len()) else { return (spans, false) };
            spans.0[at - 1].end = spans.0[at].end;
            spans.0.remove(at);
        }
        (spans, true)
    }

    proptest! {
        #[test]
        fn sets_are_added_and_taken_out_as_wholes(
            one in prop::collection::vec(range(), 0..10), other in prop::collection::vec(range(), 0..10),
        ) {
            let (one, other) = (set(&one), set(&other));
            let (mut both, mut left) = (one.clone(), one.clone());
            both.union(&other);
            left.subtract(&other);
            check(&both);
            check(&left);
            let (own, others) = (bytes(&one), bytes(&other));
            let (both, left) = (bytes(&both), bytes(&left));
            for at in 0..64 {
                prop_assert_eq!((both[at], left[at]), (own[at] || others[at], own[at] && !others[at]));
            }
        }

        #[test]
        fn spans_are_a_set_of_bytes(steps in prop::collection::vec((any::<bool>(), range()), 0..20), probe in range()) {
            let (mut spans, mut model) = (Spans::default(), vec![false; 64]);
            for (insert, range) in steps {
                if insert { spans.union(&Spans::of(range.clone())) } else { spans.remove(&range) }
                model[range.start as usize..range.end as usize].fill(insert);
                check(&spans);
                prop_assert_eq!(&bytes(&spans), &model);
            }
            let all = model[probe.start as usize..probe.end as usize].iter().all(|has| *has);
            prop_assert_eq!(spans.contains(&probe), all);
            let within: Vec<u32> = spans.within(&probe).flatten().collect();
            let expected: Vec<u32> = probe.clone().filter(|at| model[*at as usize]).collect();
            prop_assert_eq!(spans.bytes_in(&probe), expected.len() as u64);
            prop_assert_eq!(within, expected);
            let gaps = spans.gaps(64);
            check(&gaps);
            prop_assert!(bytes(&gaps).iter().zip(&model).all(|(gap, has)| gap != has));
            prop_assert_eq!(spans.bytes(), model.iter().filter(|has| **has).count() as u64);
        }

        #[test]
        fn fewer_ranges_cover_the_same_and_only_what_they_may(
            parts in prop::collection::vec(range(), 0..10), more in prop::collection::vec(range(), 0..10), most in 1usize..4,
        ) {
            let spans = set(&parts);
            let mut within = spans.clone();
            within.union(&set(&more));
            let mut fewer = spans.clone();
            let reduced = fewer.reduce(most, &within);
            prop_assert_eq!((fewer.clone(), reduced), reduced_one_by_one(spans.clone(), most, &within));
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
