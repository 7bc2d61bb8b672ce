//! Writing dirty bytes to the disk, and forgetting bytes.

use std::ops::Range;

use bmi_core::mutated;

use super::{BATCH, Batch, MOST_RANGES, State, Unit, Which};
use crate::extent::{Extent, Spans};
use crate::steps::steps;

impl<E: Clone> State<E> {
    /// Returns true if a unit may be written to the disk now.
    pub(super) fn may_flush(&self, unit: &Unit) -> bool {
        steps(1);
        let held = self.files[&unit.file].held.is_some_and(|held| held < unit.at + u64::from(unit.size()));
        !unit.dirty.is_empty() && unit.flushing.is_empty() && !held
    }

    /// Returns the dirty unit with which a flush begins.
    pub(super) fn first_to_flush(&self, which: Which) -> Option<usize> {
        let failed = |unit: &Unit| self.files[&unit.file].failed.as_ref();
        let mut oldest =
            self.dirty.iter().map(|(_, id)| (*id, &self.units[*id])).filter(|(_, unit)| self.may_flush(unit));
        let found = match which {
            Which::Oldest => {
                let first = oldest.next()?;
                // Those of files whose disk works come first.
                std::iter::once(first).chain(oldest).find(|(_, unit)| failed(unit).is_none()).or(Some(first))
            }
            Which::Since(tick) => oldest
                .take_while(|(_, unit)| unit.tick <= tick)
                .find(|(_, unit)| failed(unit).is_none_or(|(_, again)| *again <= self.tick)),
            Which::Of(file, write) => {
                let units = self.files.get(&file)?.unclean.values().map(|id| (*id, &self.units[*id]));
                units
                    .inspect(|_| steps(1))
                    .filter(|(_, unit)| unit.oldest <= write)
                    .find(|(_, unit)| self.may_flush(unit))
            }
        };
        found.map(|(id, _)| id)
    }

    /// Returns true if there are dirty units of this kind that nobody writes.
    pub(crate) fn is_flushable(&self, which: Which) -> bool {
        self.first_to_flush(which).is_some()
    }

    /// Returns true if there are dirty units that may be written, of a file whose last write to the
    /// disk has not failed.
    pub(crate) fn any_flushable(&self) -> bool {
        let works = |id: usize| self.files[&self.units[id].file].failed.is_none();
        self.first_to_flush(Which::Oldest).is_some_and(works)
    }

    /// Returns true if `more` bytes would make too many dirty.
    pub(crate) fn is_too_dirty(&self, more: u64) -> bool {
        self.dirty_bytes > 0 && self.dirty_bytes + more > self.settings.dirty
    }

    /// Begins to write dirty units, and those that follow them in the file. `None` if there are
    /// none of this kind that nobody else writes.
    pub(crate) fn begin_flush(&mut self, which: Which) -> Option<Batch> {
        let first = &self.units[self.first_to_flush(which)?];
        let (file, at) = (first.file, first.at);
        let (mut units, mut bytes) = (Vec::new(), 0);
        for (_, id) in self.files[&file].unclean.range(at..) {
            if self.may_flush(&self.units[*id]) && bytes < BATCH {
                units.push(*id);
                bytes += self.units[*id].dirty.bytes();
            }
            if bytes >= BATCH {
                break;
            }
        }
        Some(self.batch(file, units))
    }

    pub(super) fn batch(&mut self, file: u64, units: Vec<usize>) -> Batch {
        let (mut extents, mut pieces) = (Vec::<Extent>::new(), Vec::new());
        for id in &units {
            steps(1);
            let unit = &mut self.units[*id];
            self.dirty.remove(&(unit.oldest, *id));
            unit.flushing = std::mem::take(&mut unit.dirty);
            unit.flushing_oldest = unit.oldest;
            let unit = &self.units[*id];
            let most = if mutated("cache/first-range-flushed-only") { 1 } else { usize::MAX };
            for range in unit.flushing.ranges().iter().take(most) {
                let at = if mutated("cache/flushed-to-the-first-unit") { 0 } else { unit.at };
                let (offset, len) = (at + u64::from(range.start), u64::from(range.end - range.start));
                match extents.last_mut() {
                    Some(last) if last.end() == offset => last.len += len,
                    _ => extents.push(Extent::new(offset, len)),
                }
                pieces.push(self.slice(*id, range));
            }
        }
        Batch { file, units, extents, list: pieces.into_iter().collect() }
    }

    /// Ends the writing of a batch. `None`: its end is not known, so the bytes are dirty again.
    pub(crate) fn end_flush(&mut self, batch: &Batch, result: Option<&Result<(), E>>) {
        let flushed = match result {
            Some(Err(_)) => mutated("cache/failed-write-to-the-disk-is-clean"),
            result => result.is_some(),
        };
        for id in &batch.units {
            steps(1);
            let unit = &mut self.units[*id];
            let spans = std::mem::take(&mut unit.flushing);
            let counted = spans.bytes() + unit.dirty.bytes();
            if flushed && !unit.dirty.is_empty() && mutated("cache/written-during-a-flush-is-clean") {
                self.dirty.remove(&(unit.oldest, *id));
                unit.dirty = Spans::default();
            }
            if flushed {
                self.counters.flushed += spans.bytes();
            } else {
                if !unit.dirty.is_empty() {
                    self.dirty.remove(&(unit.oldest, *id));
                }
                unit.oldest = unit.flushing_oldest;
                unit.dirty.union(&spans);
                unit.dirty.reduce(MOST_RANGES, &unit.valid);
                self.dirty.insert((unit.oldest, *id));
            }
            let (left, place) = (unit.dirty.bytes(), unit.place);
            self.count_dirty(batch.file, counted, left);
            self.record(*id);
            if mutated("cache/record-erased-before-the-disk-has-the-bytes") {
                self.arena.record(place, None);
            }
        }
        let again = self.tick + crate::background::RETRY_TICKS;
        let state = self.file(batch.file);
        match result {
            Some(Ok(())) => state.failed = None,
            Some(Err(error)) => {
                state.failed = Some((error.clone(), again));
                self.counters.failed_flushes += 1;
            }
            None => {}
        }
        self.changed(batch.file);
        self.memory_changed();
        self.wake.extend(self.background.take());
    }

    /// Returns true if writes of a file, up to a number, are not on the disk yet.
    pub(crate) fn is_unflushed(&self, file: u64, write: u64) -> bool {
        let Some(state) = self.files.get(&file) else { return false };
        state.unclean.values().map(|id| &self.units[*id]).any(|unit| {
            steps(1);
            let flushing = !unit.flushing.is_empty() && unit.flushing_oldest <= write;
            !unit.dirty.is_empty() && unit.oldest <= write
                || flushing && !mutated("cache/flush-in-progress-not-awaited")
        })
    }

    /// Forgets everything of a file from `from` on. Nobody else uses it, and none of it is being
    /// read or written.
    pub(crate) fn discard(&mut self, file: u64, from: u64) {
        let Some(unit) = self.files.get(&file).map(|file| u64::from(file.unit)) else { return };
        let ids: Vec<usize> =
            self.index.range((file, from / unit * unit)..=(file, u64::MAX)).map(|(_, id)| *id).collect();
        for id in ids {
            steps(1);
            let unit = &self.units[id];
            let cut = from.saturating_sub(unit.at) as u32..unit.size();
            if from == 0 || !mutated("cache/truncate-leaves-cached-bytes") {
                self.forget(id, &cut);
            }
            if self.units[id].is_free() && self.units[id].valid.is_empty() {
                self.drop_unit(id, false);
            }
        }
        if from == 0
            && let Some(state) = self.files.get_mut(&file)
        {
            state.known = false;
        }
        self.memory_changed();
    }

    /// Forgets some bytes of a unit, dirty ones too. They are not being read or written.
    pub(super) fn forget(&mut self, id: usize, range: &Range<u32>) {
        let unit = &mut self.units[id];
        let (file, before) = (unit.file, unit.dirty.bytes());
        if !unit.dirty.is_empty() {
            unit.dirty.remove(range);
            if unit.dirty.is_empty() {
                self.dirty.remove(&(unit.oldest, id));
            }
        }
        let left = unit.dirty.bytes();
        self.change_valid(id, |valid| valid.remove(range));
        self.count_dirty(file, before, left);
        self.record(id);
    }

    /// Returns true if a unit of a file from `from` on is being read or written by the disk.
    pub(crate) fn is_moving(&self, file: u64, from: u64) -> bool {
        let Some(unit) = self.files.get(&file).map(|file| u64::from(file.unit)) else { return false };
        let mut units = self.index.range((file, from / unit * unit)..=(file, u64::MAX)).map(|(_, id)| &self.units[*id]);
        units.any(|unit| {
            steps(1);
            unit.filling || !unit.flushing.is_empty()
        })
    }
}
