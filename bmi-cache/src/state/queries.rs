//! What is asked of a state. Nothing changes it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::{Bound, Range};

use bmi_core::{Memory, mutated};

use super::{MOST_RANGES, State};
use crate::interface::{Busiest, Coverage, FileStatistics, Statistics};
use crate::memory::BLOCK;
use crate::ranges::{Extent, Spans, by_unit, steps};

impl<E: Clone> State<E> {
    /// Returns the units of `parts` whose dirty bytes would be in too many places if these parts
    /// were written, each with a range that the cache does not have yet.
    pub(crate) fn scattered(&self, parts: &[(usize, Range<u32>)]) -> Vec<(usize, Range<u32>)> {
        let mut found = Vec::new();
        for (id, spans) in by_unit(parts) {
            if mutated("cache/unit-computed-for-each-of-its-parts") {
                for _ in spans.ranges() {
                    let _ = self.scattered_gap(id, &spans);
                }
            }
            found.extend(self.scattered_gap(id, &spans).map(|range| (id, range)));
        }
        found
    }

    /// Returns a range of a unit that the cache does not have, if the dirty bytes of the unit would
    /// be in too many places with `spans`.
    fn scattered_gap(&self, id: usize, spans: &Spans) -> Option<Range<u32>> {
        let unit = &self.units[id];
        let (mut dirty, mut valid) = (unit.dirty.clone(), unit.valid.clone());
        dirty.union(&unit.flushing);
        dirty.union(spans);
        valid.union(spans);
        if dirty.reduce(MOST_RANGES, &valid) {
            return None;
        }
        // What is about to be written is not read: this operation has locked it.
        valid.gaps(unit.size()).ranges().first().cloned()
    }

    /// Returns how much of a range is in the cache. Looks at `most` units at most; if there are
    /// more, also returns the offset of the first one that is left.
    pub(crate) fn coverage(&self, file: u64, extent: Extent, most: usize) -> (Coverage, Option<u64>) {
        let mut coverage = Coverage::default();
        let Some(unit) = self.files.get(&file).map(|file| u64::from(file.unit)) else { return (coverage, None) };
        let first = extent.offset / unit * unit;
        let mut units = self.index.range((file, first)..(file, extent.end().max(first)));
        for ((_, at), id) in units.by_ref().take(most) {
            steps(1);
            let from = extent.offset.saturating_sub(*at).min(unit) as u32;
            let to = (extent.end() - at).min(unit) as u32;
            let own = &self.units[*id];
            own.cover(from..to, self.readiness.is_ready(self.arena.chunk_of(own.place)), &mut coverage);
        }
        (coverage, units.next().map(|((_, at), _)| *at))
    }

    /// Returns the chunks that are Ready and exist.
    pub(crate) fn ready_chunks(&self) -> Vec<(usize, Memory)> {
        let chunks = self.arena.blocks() as usize * BLOCK / self.arena.chunk_bytes();
        steps(chunks);
        let ready = (0..chunks).filter(|chunk| self.readiness.is_ready(*chunk));
        ready.map(|chunk| (chunk, self.arena.chunk(chunk).clone())).collect()
    }

    pub(crate) fn file_statistics(&self, file: u64) -> Option<FileStatistics> {
        self.files.get(&file).map(|state| state.statistics(file))
    }

    /// Returns the busiest `most` of the `look` files behind `after`.
    pub(crate) fn busiest(&self, after: Option<u64>, look: usize, most: usize) -> Busiest {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut behind = self.files.range((from, Bound::Unbounded));
        let (mut found, mut last) = (BinaryHeap::new(), None);
        for (file, state) in behind.by_ref().take(look) {
            steps(1);
            last = Some(*file);
            if state.cached > 0 {
                found.push(Reverse((state.counters.moved(), Reverse(*file))));
            }
            if found.len() > most {
                found.pop();
            }
        }
        let files = found.into_sorted_vec().into_iter();
        let files = files.filter_map(|Reverse((_, Reverse(file)))| self.file_statistics(file)).collect();
        Busiest { files, next: last.filter(|_| behind.next().is_some()) }
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let chunk = self.arena.chunk_bytes() as u64;
        let resident = u64::from(self.arena.blocks()) * BLOCK as u64;
        steps((resident / chunk) as usize);
        let ready = (0..(resident / chunk) as usize).filter(|chunk| self.readiness.is_ready(*chunk)).count();
        Statistics {
            most: u64::from(self.arena.max_blocks()) * BLOCK as u64,
            resident,
            cached: self.cached_bytes,
            dirty: self.dirty_bytes,
            ready: ready as u64 * chunk,
            counters: self.counters,
        }
    }

    /// Checks the invariants.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let mut dirty = 0;
        for (id, unit) in &self.units {
            assert_eq!(self.index.get(&(unit.file, unit.at)), Some(&id));
            assert_eq!(self.frames.get(&unit.place.frame), Some(&id));
            for range in unit.dirty.ranges().iter().chain(unit.flushing.ranges()) {
                assert!(unit.valid.contains(range), "{unit:?}");
            }
            let file = &self.files[&unit.file];
            assert_eq!(file.waiting.contains(&(unit.oldest, id)), unit.waiting().is_some());
            assert_eq!(file.ready.get(&unit.at), unit.waiting().map(|_| &id));
            assert_eq!(file.moving.contains(&(unit.flushing_oldest, id)), unit.moving().is_some());
            assert_eq!(file.filling.contains(&unit.at), unit.filling);
            assert_eq!(self.files[&unit.file].unclean.get(&unit.at), (!unit.is_clean()).then_some(&id));
            dirty += unit.dirty.bytes() + unit.flushing.bytes();
        }
        for (file, state) in &self.files {
            let (whole, left) = self.coverage(*file, Extent::new(0, u64::MAX), usize::MAX);
            assert_eq!((state.cached, left), (whole.cached, None));
            let oldest = state.waiting.first().filter(|_| !state.held).map(|(oldest, _)| *oldest);
            assert_eq!(state.listed, oldest.map(|oldest| (state.failed.is_some(), oldest)));
            // A byte that became dirty again while it is written counts twice.
            assert!(whole.dirty <= state.dirty && state.dirty <= 2 * whole.dirty);
        }
        assert_eq!(self.files.values().map(|file| file.dirty).sum::<u64>(), dirty);
        assert_eq!(self.units.iter().map(|(_, unit)| unit.valid.bytes()).sum::<u64>(), self.cached_bytes);
        assert!(self.index.len() == self.units.len() && self.frames.len() == self.units.len());
        assert_eq!(self.dirty_bytes, dirty);
        let unclean = self.files.values().map(|file| file.unclean.len()).sum::<usize>();
        let listed = self.files.values().filter(|file| file.listed.is_some()).count();
        assert_eq!(self.flushable.iter().map(|files| files.len()).sum::<usize>(), listed);
        assert_eq!(unclean, self.units.iter().filter(|(_, unit)| !unit.is_clean()).count());
        let used: u64 = self.units.iter().map(|(_, unit)| u64::from(unit.size())).sum();
        assert_eq!(self.pool.free_bytes() + used, u64::from(self.arena.blocks()) * BLOCK as u64);
        assert!(self.files.values().map(|file| file.units).sum::<usize>() == self.units.len());
    }
}
