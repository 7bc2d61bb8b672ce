//! The bytes of a datafile that a request means: a list of ranges, or a part of a view.
//!
//! **Why.** Units of a request take their ranges one after the other. Those of a view are made only
//! then, so a request has no more memory for a thousand million pieces than for a thousand.

use std::cell::RefCell;

use bmi::hooks::steps;
use bmi::{MemList, MemSlice, Memory};
use bmi_cache::yield_now;
use fs_proto::{DatafileHandle, FsError, PartCursor, Region, Regions, ViewPart, gather};

use crate::store::{DataStore, StoreHandle, remainder};

/// Most ranges of a view that a unit has.
const PIECES: usize = 4096;
/// Ranges of a view that are read together with what lies between them: within so many bytes, if
/// there is one in each [`APART`] bytes. To read one alone costs as much as to copy so many.
const TOGETHER: u64 = 512 << 10;
const APART: u64 = 4096;
/// Most buffers for that which are kept.
const KEPT: usize = 4;

/// What a request means.
#[derive(Clone, Copy)]
pub(super) enum Places<'a> {
    Listed(&'a Regions),
    Seen(&'a ViewPart),
}

impl<'a> Places<'a> {
    /// Returns the number of bytes.
    pub(super) fn total(self) -> u64 {
        match self {
            Places::Listed(regions) => regions.total(),
            Places::Seen(part) => part.total(),
        }
    }

    /// Returns all of it, to be taken from its beginning on.
    pub(super) fn rest(self) -> Rest<'a> {
        match self {
            Places::Listed(regions) => Rest::Listed(Listed::of(regions)),
            Places::Seen(part) => Rest::Seen(Box::new(part.pieces())),
        }
    }

    /// Returns ranges that contain all bytes after the first `done`.
    pub(super) fn after(self, done: u64) -> Vec<Region> {
        match self {
            Places::Listed(regions) => remainder(regions, done),
            Places::Seen(part) if done < part.total() => vec![part.hull()],
            Places::Seen(_) => Vec::new(),
        }
    }

    /// Returns true if the ranges ascend, and may be many and short.
    pub(super) fn are_seen(self) -> bool {
        matches!(self, Places::Seen(_))
    }
}

/// What is left of a list of regions, which is taken from its beginning on.
pub(super) struct Listed<'a> {
    regions: &'a [Region],
    /// Bytes of the first one that were taken.
    taken: u64,
}

impl<'a> Listed<'a> {
    pub(super) fn of(regions: &'a [Region]) -> Listed<'a> {
        Listed { regions, taken: 0 }
    }

    /// Takes the regions of `len` bytes, cut at both ends as needed, or what is left if that is
    /// less.
    pub(super) fn take(&mut self, len: u64) -> Vec<Region> {
        let (mut parts, mut left) = (Vec::new(), len);
        while let Some((first, others)) = self.regions.split_first().filter(|_| left > 0) {
            steps(1);
            let part = first.part(self.taken, left);
            (left, self.taken) = (left - part.len, self.taken + part.len);
            parts.extend((!part.is_empty()).then_some(part));
            if self.taken == first.len {
                (self.regions, self.taken) = (others, 0);
            }
        }
        parts
    }
}

/// What is left of a request, which is taken from its beginning on.
pub(super) enum Rest<'a> {
    Listed(Listed<'a>),
    Seen(Box<PartCursor<'a>>),
}

impl Rest<'_> {
    /// Takes regions of `len` bytes, or of less: what is left, or as many as a unit may have. None
    /// only if nothing is left. Lets others run while it looks for long; `go_on` says whether there
    /// is still time.
    ///
    /// # Errors
    /// Those of `go_on`; `Invalid` if the view has fewer bytes here than the request says.
    pub(super) async fn take(
        &mut self,
        len: u64,
        go_on: impl Fn() -> Result<(), FsError>,
    ) -> Result<Vec<Region>, FsError> {
        let cursor = match self {
            Rest::Listed(listed) => return Ok(listed.take(len)),
            Rest::Seen(cursor) => cursor,
        };
        let len = len.min(cursor.remaining());
        let mut found = vec![Region::new(0, 0); PIECES.min(usize::try_from(len).unwrap_or(PIECES))];
        loop {
            let count = cursor.next_batch(&mut found, len)?;
            if count > 0 || len == 0 {
                found.truncate(count);
                return Ok(found);
            }
            yield_now().await;
            go_on()?;
        }
    }
}

/// Buffers for ranges that are read together.
#[derive(Default)]
pub(super) struct Scratch(RefCell<Vec<Memory>>);

impl Scratch {
    /// Reads ranges that ascend into `to`. Short ones that are near each other are read together.
    /// Tells `copied` how many bytes and pieces it has copied.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn read<S: StoreHandle>(
        &self,
        store: &S,
        datafile: DatafileHandle,
        mut ranges: &[Region],
        to: &MemSlice,
        copied: impl Fn(u64, u64),
    ) -> Result<(), FsError> {
        let mut at = 0;
        while let Some(first) = ranges.first() {
            let near = ranges.partition_point(|range| range.offset + range.len - first.offset <= TOGETHER);
            let (now, later) = ranges.split_at(near.max(1));
            ranges = later;
            let len: u64 = now.iter().map(|range| range.len).sum();
            let hull = now.iter().fold(*first, |hull, range| hull.hull(*range));
            let into = to.slice(at, len as usize);
            if now.len() == 1 || hull.len / now.len() as u64 > APART {
                store.read(datafile, now, &MemList::from(into)).await?;
            } else {
                let kept = self.0.borrow_mut().pop();
                let scratch = kept.map_or_else(|| Memory::zeroed(TOGETHER as usize), Ok)?;
                store.read(datafile, &[hull], &MemList::from(scratch.slice(0, hull.len as usize))).await?;
                steps(now.len());
                gather(&scratch, &into, now, hull.offset);
                copied(len, now.len() as u64);
                let mut all = self.0.borrow_mut();
                if all.len() < KEPT {
                    all.push(scratch);
                }
            }
            at += len as usize;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_taken_in_parts_and_cut_at_both_ends() {
        let regions = [Region::new(10, 5), Region::new(50, 0), Region::new(100, 10)];
        let mut rest = Listed::of(&regions);
        assert_eq!(rest.take(3), [Region::new(10, 3)]);
        assert_eq!(rest.take(0), []);
        assert_eq!(rest.take(4), [Region::new(13, 2), Region::new(100, 2)]);
        assert_eq!(rest.take(100), [Region::new(102, 8)]);
        assert_eq!(rest.take(100), []);
    }

    /// Replays a defect: for each unit of a transfer, the regions were looked at from the first one
    /// on.
    #[cfg(feature = "mutants")]
    #[test]
    fn each_region_is_looked_at_once() {
        use bmi::hooks::steps_taken;
        use fs_proto::limits::MAX_REGIONS;

        let regions: Vec<Region> = (0..MAX_REGIONS as u64).map(|index| Region::new(index * 10, 4)).collect();
        let (mut rest, before) = (Listed::of(&regions), steps_taken());
        let units = std::iter::from_fn(|| Some(rest.take(10)).filter(|unit| !unit.is_empty())).count();
        assert_eq!(units, (MAX_REGIONS * 4).div_ceil(10));
        assert!(steps_taken() - before <= (MAX_REGIONS + units) as u64);
    }
}
