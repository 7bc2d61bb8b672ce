//! The bytes of units: which are valid, which are being read from the disk, which are dirty.

use std::ops::Range;

use bmi_core::{MemList, MemSlice, mutated, mutated_each};

use super::{MOST_RANGES, MOST_VALID, State, Unit};
use crate::memory::{Ranges, Record};
use crate::policy::Policy;
use crate::ranges::{Extent, Spans, by_unit, steps};

impl<E: Clone> State<E> {
    /// Changes which bytes of a unit are valid, and counts them.
    pub(super) fn change_valid(&mut self, id: usize, change: impl FnOnce(&mut Spans)) {
        let unit = &mut self.units[id];
        let (file, before) = (unit.file, unit.valid.bytes());
        change(&mut unit.valid);
        let after = unit.valid.bytes();
        self.cached_bytes = self.cached_bytes + after - before;
        let file = self.file(file);
        file.cached = file.cached + after - before;
    }

    /// Changes which bytes of a unit are dirty, or on the way to the disk. Counts them, and lists
    /// the unit by its oldest write.
    pub(super) fn change_dirty(&mut self, id: usize, change: impl FnOnce(&mut Unit)) {
        let unit = &mut self.units[id];
        let (bytes, waiting, moving) = (unit.unclean_bytes(), unit.waiting(), unit.moving());
        change(unit);
        let (now, file, at) = (unit.unclean_bytes(), unit.file, unit.at);
        let lists = (unit.waiting(), unit.moving());
        self.dirty_bytes = self.dirty_bytes + now - bytes;
        let own = self.file(file);
        own.dirty = own.dirty + now - bytes;
        for (list, before, after) in [(&mut own.waiting, waiting, lists.0), (&mut own.moving, moving, lists.1)] {
            if let Some(oldest) = before {
                list.remove(&(oldest, id));
            }
            list.extend(after.map(|oldest| (oldest, id)));
        }
        if lists.0.is_some() {
            own.ready.insert(at, id)
        } else {
            own.ready.remove(&at)
        };
        self.list_file(file);
    }

    /// Returns the memory of some bytes of a unit.
    pub(crate) fn slice(&self, id: usize, range: &Range<u32>) -> MemSlice {
        self.arena.slice(self.units[id].place, range.start, range.end - range.start)
    }

    /// Returns the memory of extents, in order. Their units are pinned.
    pub(crate) fn list(&self, file: u64, extents: &[Extent]) -> MemList {
        let unit = self.files[&file].unit;
        let parts = extents.iter().flat_map(|extent| extent.parts(unit));
        parts.map(|(at, range)| self.slice(self.index[&(file, at)], &range)).collect()
    }

    /// Units were read or written.
    pub(crate) fn used(&mut self, file: u64, units: &[usize], read: bool) {
        let policy = self.file(file).hints.policy;
        for id in units {
            steps(1);
            self.policies.touch(*id, policy);
            let unit = &mut self.units[*id];
            if std::mem::take(&mut unit.ahead) {
                self.counters.ahead_used += u64::from(unit.size());
            }
            let chunk = self.arena.chunk_of(unit.place);
            self.readiness.used(chunk);
        }
        if read && policy == Policy::Stream {
            // A reader that has reached the end of a unit does not come back to it.
            units.iter().for_each(|id| self.policies.used_up(*id));
        }
    }

    /// Begins to fill the units of `parts` that lack bytes. Returns what is to be read, and whether
    /// somebody else fills one of them. Each of `parts` is a unit and the bytes that are needed.
    pub(crate) fn begin_fill(&mut self, file: u64, parts: &[(usize, Range<u32>)]) -> (Vec<(usize, Range<u32>)>, bool) {
        let (mut todo, mut others) = (Vec::new(), false);
        for (id, needed) in by_unit(parts) {
            let unit = &self.units[id];
            if needed.ranges().iter().all(|range| unit.valid.contains(range)) {
                continue;
            }
            if unit.filling {
                others = true;
                continue;
            }
            let mut gaps = unit.valid.gaps(unit.size());
            gaps.subtract(&self.changing(file, unit));
            todo.extend(gaps.ranges().iter().map(|range| (id, range.clone())));
        }
        for (id, _) in by_unit(&todo) {
            self.set_filling(id, true);
        }
        (todo, others)
    }

    fn set_filling(&mut self, id: usize, filling: bool) {
        let unit = &mut self.units[id];
        unit.filling = filling;
        let (file, at) = (unit.file, unit.at);
        let list = &mut self.file(file).filling;
        if filling {
            list.insert(at)
        } else {
            list.remove(&at)
        };
    }

    /// Returns the bytes of a unit that somebody is about to write.
    fn changing(&self, file: u64, unit: &Unit) -> Spans {
        let (at, end) = (unit.at, unit.at + u64::from(unit.size()));
        let own = |extent: &Extent| (extent.offset.max(at) - at) as u32..(extent.end().min(end) - at) as u32;
        let extents = self.files[&file].locks.changing(Extent::new(at, end - at));
        let mut ranges: Vec<Range<u32>> = extents.map(own).collect();
        // Each lock has its own in order.
        ranges.sort_by_key(|range| range.start);
        Spans::ascending(ranges)
    }

    /// Ends a fill that has succeeded or not.
    pub(crate) fn end_fill(&mut self, file: u64, todo: &[(usize, Range<u32>)], filled: bool) {
        for (id, spans) in by_unit(todo) {
            self.set_filling(id, false);
            if filled {
                self.change_valid(id, |valid| valid.union(&spans));
            }
        }
        self.changed(file);
        self.memory_changed();
    }

    /// Bytes were written into a unit. Returns false if its dirty bytes are in too many places to
    /// be recorded; then they must be written to the disk before the write is acknowledged.
    pub(crate) fn written(&mut self, id: usize, spans: &Spans) -> bool {
        let size = self.units[id].size();
        let whole = mutated("cache/unit-written-in-part-is-valid").then(|| Spans::of(0..size));
        self.change_valid(id, |own| own.union(whole.as_ref().unwrap_or(spans)));
        if mutated_each(4, "cache/dirty-bit-lost") {
            return true;
        }
        self.add_dirty(id, spans)
    }

    pub(super) fn add_dirty(&mut self, id: usize, spans: &Spans) -> bool {
        let (tick, write) = (self.tick, self.writes);
        if self.units[id].dirty.is_empty() {
            self.wake.extend(self.background.take());
        }
        self.change_dirty(id, |unit| {
            if unit.dirty.is_empty() {
                (unit.oldest, unit.tick) = (write, tick);
            }
            unit.dirty.union(spans);
            unit.dirty.reduce(MOST_RANGES, &unit.valid);
        });
        let (file, at) = (self.units[id].file, self.units[id].at);
        self.file(file).unclean.insert(at, id);
        self.record(id)
    }

    /// Writes the arena's record of a unit. Returns false if it has no room for all dirty bytes.
    pub(super) fn record(&mut self, id: usize) -> bool {
        let unit = &self.units[id];
        if unit.is_clean()
            && let Some(state) = self.files.get_mut(&unit.file)
        {
            state.unclean.remove(&unit.at);
        }
        let mut all = unit.dirty.clone();
        all.union(&unit.flushing);
        let fits = all.reduce(MOST_RANGES, &unit.valid);
        if all.is_empty() {
            self.arena.record(unit.place, None);
        } else if fits {
            let with = |dirty: Ranges, range: &Range<u32>| dirty.with(range.clone()).expect("there are at most three");
            let most = if mutated("cache/record-of-the-first-range-only") { 1 } else { MOST_RANGES };
            let dirty = all.ranges().iter().take(most).fold(Ranges::NONE, with);
            self.arena.record(unit.place, Some(&Record { file: unit.file, at: unit.at, dirty }));
        }
        fits
    }

    /// Forgets the shortest ranges of a unit that nobody uses, and of which the disk has all bytes.
    /// There are many if writes of many pieces were given up.
    pub(super) fn forget_scattered(&mut self, id: usize) {
        let unit = &self.units[id];
        let is_clean = |range: &&Range<u32>| {
            [&unit.dirty, &unit.flushing].iter().all(|spans| spans.within(range).next().is_none())
        };
        let mut clean: Vec<Range<u32>> = unit.valid.ranges().iter().filter(is_clean).cloned().collect();
        clean.sort_by_key(ExactSizeIterator::len);
        clean.truncate(unit.valid.ranges().len().saturating_sub(MOST_VALID));
        clean.sort_by_key(|range| range.start);
        let scattered = Spans::ascending(clean);
        if !mutated("cache/scattered-bytes-kept") {
            self.change_valid(id, |valid| valid.subtract(&scattered));
        }
    }

    /// A write was given up: its bytes may be old or new. Those that the disk has are read again.
    pub(crate) fn spoilt(&mut self, id: usize, mut spans: Spans) {
        let unit = &self.units[id];
        spans.subtract(&unit.dirty);
        spans.subtract(&unit.flushing);
        self.change_valid(id, |valid| valid.subtract(&spans));
    }
}
