//! The bytes of units: which are valid, which are being read from the disk, which are dirty.

use std::ops::Range;

use bmi_core::{MemList, MemSlice, mutated, mutated_each};

use super::{MOST_RANGES, State};
use crate::arena::{Ranges, Record};
use crate::extent::{Extent, Spans};
use crate::policy::Policy;

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

    /// The dirty bytes of a unit of a file were `before`, and are `after`.
    pub(super) fn count_dirty(&mut self, file: u64, before: u64, after: u64) {
        self.dirty_bytes = self.dirty_bytes + after - before;
        let file = self.file(file);
        file.dirty = file.dirty + after - before;
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
        for (id, needed) in parts {
            let unit = &self.units[*id];
            if unit.valid.contains(needed) || todo.iter().any(|(other, _)| other == id) {
                continue;
            }
            if unit.filling {
                others = true;
                continue;
            }
            let mut gaps = unit.valid.gaps(unit.size());
            let (at, end) = (unit.at, unit.at + u64::from(unit.size()));
            for extent in self.files[&file].locks.changing() {
                let (from, to) = (extent.offset.max(at), extent.end().min(end));
                if from < to {
                    gaps.remove(&((from - at) as u32..(to - at) as u32));
                }
            }
            todo.extend(gaps.ranges().iter().map(|range| (*id, range.clone())));
        }
        todo.iter().for_each(|(id, _)| self.units[*id].filling = true);
        (todo, others)
    }

    /// Ends a fill that has succeeded or not.
    pub(crate) fn end_fill(&mut self, file: u64, todo: &[(usize, Range<u32>)], filled: bool) {
        for (id, range) in todo {
            self.units[*id].filling = false;
            if filled {
                self.change_valid(*id, |valid| valid.insert(range.clone()));
            }
        }
        self.changed(file);
        self.memory_changed();
    }

    /// Bytes were written into a unit. Returns false if its dirty bytes are in too many places to
    /// be recorded; then they must be written to the disk before the write is acknowledged.
    pub(crate) fn written(&mut self, id: usize, range: Range<u32>) -> bool {
        let size = self.units[id].size();
        let valid = if mutated("cache/unit-written-in-part-is-valid") { 0..size } else { range.clone() };
        self.change_valid(id, |own| own.insert(valid));
        if mutated_each(4, "cache/dirty-bit-lost") {
            return true;
        }
        self.add_dirty(id, &Spans::of(range))
    }

    pub(super) fn add_dirty(&mut self, id: usize, spans: &Spans) -> bool {
        let (tick, write) = (self.tick, self.writes);
        let unit = &mut self.units[id];
        let before = unit.dirty.bytes();
        if unit.dirty.is_empty() {
            (unit.oldest, unit.tick) = (write, tick);
            self.dirty.insert((write, id));
            self.wake.extend(self.background.take());
        }
        unit.dirty.union(spans);
        unit.dirty.reduce(MOST_RANGES, &unit.valid);
        let (file, at, after) = (unit.file, unit.at, unit.dirty.bytes());
        self.count_dirty(file, before, after);
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

    /// A write was given up: its bytes may be old or new. Those that the disk has are read again.
    pub(crate) fn spoilt(&mut self, id: usize, range: &Range<u32>) {
        let unit = &self.units[id];
        let mut lost = Spans::of(range.clone());
        unit.dirty.ranges().iter().chain(unit.flushing.ranges()).for_each(|dirty| lost.remove(dirty));
        self.change_valid(id, |valid| lost.ranges().iter().for_each(|range| valid.remove(range)));
    }
}
