//! Writing dirty bytes to the disk, and forgetting bytes.

use std::collections::BTreeSet;
use std::ops::Range;

use bmi_core::mutated;

use super::{AT_ONCE, BATCH, Batch, MOST_RANGES, State, Which};
use crate::ranges::{Extent, Spans, steps};

impl<E: Clone> State<E> {
    /// Lists a file by the oldest of its writes that may go to the disk now.
    pub(super) fn list_file(&mut self, file: u64) {
        let Some(state) = self.files.get_mut(&file) else { return };
        let oldest = if state.held { None } else { state.waiting.first() };
        let listed = oldest.map(|(oldest, _)| (state.failed.is_some(), *oldest));
        let before = std::mem::replace(&mut state.listed, listed);
        if before == listed {
            return;
        }
        if let Some((failed, oldest)) = before {
            self.flushable[usize::from(failed)].remove(&(oldest, file));
        }
        if let Some((failed, oldest)) = listed {
            self.flushable[usize::from(failed)].insert((oldest, file));
        }
    }

    /// From now on nothing of a file is written to the disk, or it may be again.
    pub(crate) fn hold(&mut self, file: u64, held: bool) {
        self.file(file).held = held;
        self.list_file(file);
    }

    /// Returns the dirty unit with which a flush begins.
    pub(super) fn first_to_flush(&self, which: Which) -> Option<usize> {
        let first = |file: u64| self.files.get(&file)?.waiting.first().map(|(_, id)| *id);
        let [works, failed] = &self.flushable;
        match which {
            // Those of files whose disk works come first.
            Which::Oldest => works.first().or(failed.first()).and_then(|(_, file)| first(*file)),
            Which::Since(tick) => {
                let is_due = |id: &usize| self.units[*id].tick <= tick;
                let is_again = |file: &u64| {
                    steps(1);
                    self.files[file].failed.as_ref().is_some_and(|(_, again)| *again <= self.tick)
                };
                let due = works.first().and_then(|(_, file)| first(*file)).filter(is_due);
                due.or_else(|| failed.iter().map(|(_, file)| *file).filter(is_again).filter_map(first).find(is_due))
            }
            Which::Of(file, write, from) => {
                let state = self.files.get(&file).filter(|state| !state.held)?;
                state.waiting.first().filter(|(oldest, _)| *oldest <= write)?;
                // In the order of their offsets, as the disk likes it.
                state.ready.range(from..).chain(&state.ready).next().map(|(_, id)| *id)
            }
        }
    }

    /// Returns true if there are dirty units of this kind that nobody writes.
    pub(crate) fn is_flushable(&self, which: Which) -> bool {
        self.first_to_flush(which).is_some()
    }

    /// Returns true if there are dirty units that may be written, of a file whose last write to the
    /// disk has not failed.
    pub(crate) fn any_flushable(&self) -> bool {
        !self.flushable[0].is_empty()
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
        let most = if mutated("cache/batch-of-any-number-of-units") { usize::MAX } else { AT_ONCE };
        for (_, id) in self.files[&file].ready.range(at..).take(most) {
            steps(1);
            units.push(*id);
            bytes += self.units[*id].dirty.bytes();
            if bytes >= BATCH {
                break;
            }
        }
        Some(self.batch(file, units))
    }

    pub(super) fn batch(&mut self, file: u64, units: Vec<usize>) -> Batch {
        let (mut extents, mut pieces) = (Vec::<Extent>::new(), Vec::new());
        for id in &units {
            self.change_dirty(*id, |unit| {
                unit.flushing = std::mem::take(&mut unit.dirty);
                unit.flushing_oldest = unit.oldest;
            });
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
            let mut written = 0;
            self.change_dirty(*id, |unit| {
                let spans = std::mem::take(&mut unit.flushing);
                if flushed {
                    written = spans.bytes();
                    if !unit.dirty.is_empty() && mutated("cache/written-during-a-flush-is-clean") {
                        unit.dirty = Spans::default();
                    }
                } else {
                    unit.oldest = unit.flushing_oldest;
                    unit.dirty.union(&spans);
                    unit.dirty.reduce(MOST_RANGES, &unit.valid);
                }
            });
            self.counters.flushed += written;
            let place = self.units[*id].place;
            self.record(*id);
            if mutated("cache/record-erased-before-the-disk-has-the-bytes") {
                self.arena.record(place, None);
            }
        }
        let again = self.tick + super::background::RETRY_TICKS;
        let state = self.file(batch.file);
        match result {
            Some(Ok(())) => state.failed = None,
            Some(Err(error)) => {
                state.failed = Some((error.clone(), again));
                self.counters.failed_flushes += 1;
            }
            None => {}
        }
        self.list_file(batch.file);
        self.changed(batch.file);
        self.memory_changed();
        self.wake.extend(self.background.take());
    }

    /// Returns true if writes of a file, up to a number, are not on the disk yet.
    pub(crate) fn is_unflushed(&self, file: u64, write: u64) -> bool {
        let Some(state) = self.files.get(&file) else { return false };
        let has = |list: &BTreeSet<(u64, usize)>| list.first().is_some_and(|(oldest, _)| *oldest <= write);
        // What was written again meanwhile has a higher number than what is on its way.
        has(&state.waiting) || has(&state.moving) && !mutated("cache/flush-in-progress-not-awaited")
    }

    /// Forgets everything of a file from `from` on, of some units from `at` on. Returns the offset
    /// of the next one, if there are more. Nobody else uses it, and none of it is being read or
    /// written.
    pub(crate) fn discard(&mut self, file: u64, from: u64, at: u64) -> Option<u64> {
        let unit = self.files.get(&file).map(|file| u64::from(file.unit))?;
        let most = if mutated("cache/all-units-discarded-at-once") { usize::MAX } else { AT_ONCE };
        let mut units = self.index.range((file, at / unit * unit)..=(file, u64::MAX));
        let ids: Vec<usize> = units.by_ref().take(most).map(|(_, id)| *id).collect();
        let next = units.next().map(|((_, at), _)| *at);
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
        next
    }

    /// Forgets some bytes of a unit, dirty ones too. They are not being read or written.
    pub(super) fn forget(&mut self, id: usize, range: &Range<u32>) {
        self.change_dirty(id, |unit| unit.dirty.remove(range));
        self.change_valid(id, |valid| valid.remove(range));
        self.record(id);
    }

    /// Returns true if something of a file is being written to the disk, or a unit from `from` on
    /// is being read.
    pub(crate) fn is_moving(&self, file: u64, from: u64) -> bool {
        let Some(state) = self.files.get(&file) else { return false };
        let from = from / u64::from(state.unit) * u64::from(state.unit);
        !state.moving.is_empty() || state.filling.range(from..).next().is_some()
    }
}
