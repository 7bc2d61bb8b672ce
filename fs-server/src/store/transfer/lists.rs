//! Lists of many pieces: regions that are cut into parts for a cache, and memory that is used from
//! its beginning to its end.
//!
//! **Why.** A request may have 16,384 regions, and is served on an event loop. To look at all
//! pieces for each piece stops that loop. So everything here takes steps in proportion to the
//! number of pieces, or to that times its logarithm. The tests count them, as those of `bmi-cache`
//! do.

use std::collections::BTreeMap;

use bmi::{MemList, MemSlice};
use bmi_cache::BLOCK;
use fs_proto::Region;

/// Counts `rounds` rounds of an inner loop.
fn steps(rounds: usize) {
    bmi::hooks::steps(rounds);
    #[cfg(test)]
    tests::TAKEN.set(tests::TAKEN.get() + rounds as u64);
}

/// Regions that a cache takes at once.
#[derive(Default)]
struct Part {
    regions: Vec<Region>,
    /// Where each of them ends, by where it begins.
    ends: BTreeMap<u64, u64>,
    /// Bytes of the blocks that they touch. A block counts for each region that touches it.
    bytes: u64,
}

impl Part {
    /// Returns true if a region has a byte in common with one of these.
    fn overlaps(&self, region: &Region) -> bool {
        steps(self.ends.len().checked_ilog2().unwrap_or(0) as usize + 1);
        // They do not overlap each other, so the last one that begins before the end of the region
        // is also the last one to end.
        let last = self.ends.range(..region.offset + region.len).next_back();
        last.is_some_and(|(_, end)| region.offset < *end)
    }

    fn push(&mut self, region: Region, touched: u64) {
        self.ends.insert(region.offset, region.offset + region.len);
        self.regions.push(region);
        self.bytes += touched;
    }
}

/// Cuts regions into parts that a cache takes at once, whatever the size of its units: each touches
/// blocks of at most `most` bytes. Overlapping regions come one by one, in order.
pub(in crate::store) fn cut(regions: &[Region], most: u64) -> Vec<Vec<Region>> {
    let (mut parts, mut part) = (Vec::new(), Part::default());
    for region in regions {
        let mut left = *region;
        while left.len > 0 {
            let unit = BLOCK as u64;
            let first = left.offset / unit * unit;
            let taken = Region::new(left.offset, left.len.min(first.saturating_add(most) - left.offset));
            left = Region::new(left.offset + taken.len, left.len - taken.len);
            let touched = (taken.offset + taken.len).div_ceil(unit) * unit - first;
            if part.bytes + touched > most || part.overlaps(&taken) {
                parts.push(std::mem::take(&mut part).regions);
            }
            part.push(taken, touched);
        }
    }
    parts.push(part.regions);
    parts
}

/// What is left of a list of memory, which is taken from its beginning on.
pub(in crate::store) struct Rest<'a> {
    pieces: std::slice::Iter<'a, MemSlice>,
    /// What is left of a piece of which some was taken.
    left: Option<MemSlice>,
}

impl<'a> Rest<'a> {
    pub(in crate::store) fn of(list: &'a MemList) -> Rest<'a> {
        Rest { pieces: list.pieces().iter(), left: None }
    }

    /// Takes bytes that are in one piece, `most` at most. `None` if nothing is left.
    fn take_one(&mut self, most: usize) -> Option<MemSlice> {
        let next = || self.pieces.by_ref().inspect(|_| steps(1)).find(|piece| !piece.is_empty()).cloned();
        let piece = self.left.take().or_else(next)?;
        let len = piece.len().min(most);
        self.left = (len < piece.len()).then(|| piece.slice(len, piece.len() - len));
        Some(piece.slice(0, len))
    }

    /// Takes `len` bytes, or what is left if that is less.
    pub(in crate::store) fn take(&mut self, len: usize) -> Vec<MemSlice> {
        let mut left = len;
        let next = || {
            let piece = if left > 0 { self.take_one(left) } else { None }?;
            left -= piece.len();
            Some(piece)
        };
        std::iter::from_fn(next).collect()
    }
}

/// Copies all bytes of a list to another one of the same length.
pub(in crate::store) fn copy(from: &MemList, to: &MemList) {
    let (mut from, mut to) = (Rest::of(from), Rest::of(to));
    while let Some(into) = to.take_one(usize::MAX) {
        let mut done = 0;
        while done < into.len() {
            steps(1);
            let Some(piece) = from.take_one(into.len() - done) else { return };
            done += into.slice(done, piece.len()).copy_from_slice_of(&piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bmi::Memory;
    use fs_proto::limits::MAX_REGIONS;
    use proptest::prelude::*;

    use super::*;

    thread_local! {
        pub(super) static TAKEN: Cell<u64> = const { Cell::new(0) };
    }

    /// The most steps for each piece. A search takes 15 of them in so many pieces.
    const STEPS: u64 = 20;

    /// Returns the result of `f`, which may take so many steps for each of [`MAX_REGIONS`] pieces.
    fn within<R>(what: &str, f: impl FnOnce() -> R) -> R {
        TAKEN.set(0);
        let result = f();
        let steps = TAKEN.get() / MAX_REGIONS as u64;
        println!("{what}: {steps} steps for each piece");
        assert!(steps <= STEPS, "{what}: {steps} steps for each piece");
        result
    }

    fn overlap(one: &Region, other: &Region) -> bool {
        one.offset < other.offset + other.len && other.offset < one.offset + one.len
    }

    /// One byte of each `distance`.
    fn pieces(memory: &Memory, distance: usize) -> MemList {
        (0..MAX_REGIONS).map(|piece| memory.slice(piece * distance, 1)).collect()
    }

    /// Replays a defect: each region was compared with all others of its part.
    #[test]
    fn a_strided_list_is_cut_without_comparing_all_pieces_with_all() {
        let ascending: Vec<Region> = (0..MAX_REGIONS as u64).map(|piece| Region::new(piece * 4, 1)).collect();
        let descending: Vec<Region> = ascending.iter().rev().copied().collect();
        for regions in [ascending, descending] {
            let parts = within("all in one part", || cut(&regions, u64::MAX));
            assert!(parts == [regions.clone()]);
            let parts = within("16 parts", || cut(&regions, (MAX_REGIONS * BLOCK / 16) as u64));
            assert_eq!((parts.len(), parts.concat() == regions), (16, true));
        }
        let same = vec![Region::new(5, 8); MAX_REGIONS];
        assert_eq!(within("overlapping", || cut(&same, u64::MAX)).len(), MAX_REGIONS);
    }

    /// Replays a defect: for each piece of one list, the other one was searched from its beginning.
    #[test]
    fn strided_memory_is_copied_without_looking_at_all_pieces_for_each() {
        let (from, to) = (Memory::from(vec![7; MAX_REGIONS * 4]), Memory::from(vec![0; MAX_REGIONS * 2]));
        within("copy", || copy(&pieces(&from, 4), &pieces(&to, 2)));
        assert!(to.to_vec().chunks(2).all(|two| two == [7, 0]));
        let list = pieces(&from, 4);
        let taken = within("take", || {
            let mut rest = Rest::of(&list);
            (0..MAX_REGIONS).map(|_| rest.take(1).len()).sum::<usize>()
        });
        assert_eq!(taken, MAX_REGIONS);
    }

    proptest! {
        #[test]
        fn parts_are_as_large_as_they_may_be(
            list in prop::collection::vec((0u64..1 << 20, 0u64..200_000), 0..30), blocks in 2u64..20,
        ) {
            let regions: Vec<Region> = list.into_iter().map(|(at, len)| Region::new(at, len)).collect();
            let (most, unit) = (blocks * BLOCK as u64, BLOCK as u64);
            let touched = |region: &Region| (region.offset + region.len).div_ceil(unit) * unit - region.offset / unit * unit;
            let fits = |part: &[Region]| {
                let overlaps = (1..part.len()).any(|at| part[..at].iter().any(|other| overlap(other, &part[at])));
                !overlaps && part.iter().map(touched).sum::<u64>() <= most
            };
            let parts = cut(&regions, most);
            prop_assert!(parts.iter().all(|part| fits(part)));
            for two in parts.windows(2) {
                prop_assert!(!fits(&[&two[0][..], &two[1][..1]].concat()), "{two:?}");
            }
            let bytes = |regions: &[Region]| -> Vec<u64> {
                let ends = regions.iter().filter(|region| region.len > 0).map(|region| (region.offset, region.len));
                // Joined again where they were cut.
                let mut joined: Vec<(u64, u64)> = Vec::new();
                for (offset, len) in ends {
                    match joined.last_mut() {
                        Some((at, known)) if *at + *known == offset => *known += len,
                        _ => joined.push((offset, len)),
                    }
                }
                joined.into_iter().flat_map(|(offset, len)| [offset, len]).collect()
            };
            prop_assert_eq!(bytes(&parts.concat()), bytes(&regions));
        }

        #[test]
        fn bytes_are_copied_in_order_however_the_lists_are_cut(
            from in prop::collection::vec(0usize..20, 0..20), to in prop::collection::vec(0usize..20, 0..20),
        ) {
            let list = |lens: &[usize], byte: &dyn Fn(usize) -> u8| -> MemList {
                let len = lens.iter().sum::<usize>();
                let memory = Memory::from((0..len + 1).map(byte).collect::<Vec<u8>>());
                let at = |index: usize| lens[..index].iter().sum();
                lens.iter().enumerate().map(|(index, len)| memory.slice(at(index), *len)).collect()
            };
            let (from, to) = (list(&from, &|at| at as u8 | 1), list(&to, &|_| 0));
            copy(&from, &to);
            let expected = from.to_vec().into_iter().chain(std::iter::repeat(0)).take(to.len());
            prop_assert_eq!(to.to_vec(), expected.collect::<Vec<u8>>());
            let (mut rest, mut at) = (Rest::of(&from), 0);
            for len in [0, 3, 1, 17, 500] {
                let (taken, expected) = (rest.take(len), from.range(at, len));
                prop_assert!(taken.iter().all(|piece| !piece.is_empty()));
                let bytes = |list: Vec<MemSlice>| list.iter().flat_map(MemSlice::to_vec).collect::<Vec<u8>>();
                prop_assert_eq!(bytes(taken), bytes(expected.collect()));
                at += len;
            }
        }
    }
}
