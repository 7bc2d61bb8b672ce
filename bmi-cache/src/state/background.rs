//! Reading ahead, and the background work.

use std::task::Waker;

use super::ahead::Ahead;
use super::{Batch, MOST_AHEAD, State, Which};
use crate::ranges::Extent;

/// Ticks until a failed write to the disk is tried again.
pub(super) const RETRY_TICKS: u64 = 2;

/// A piece of background work that has begun.
pub(crate) enum Work {
    Flush(Batch),
    Ahead(Ahead),
}

impl<E: Clone> State<E> {
    /// Counts a read, and notes what to read ahead because of it.
    pub(crate) fn count_read(&mut self, file: u64, extents: &[Extent], hit: u64) {
        let asked: u64 = extents.iter().map(|extent| extent.len).sum();
        self.counters.asked += asked;
        self.counters.hit += hit;
        let most = self.settings.read_ahead;
        let state = self.file(file);
        state.counters.asked += asked;
        state.counters.hit += hit;
        // A list is one read, from its first byte to its last.
        let (Some(first), Some(last)) = (extents.first(), extents.last()) else { return };
        let whole = Extent::new(first.offset, last.end() - first.offset);
        let ahead = state.streams.note(whole, state.hints.pattern, most);
        if !ahead.is_empty() && most > 0 && self.ahead.len() < MOST_AHEAD {
            self.ahead.push_back(Ahead { file, extents: ahead });
            self.wake.extend(self.background.take());
        }
    }

    /// Counts a write.
    pub(crate) fn count_written(&mut self, file: u64, bytes: u64) {
        self.counters.written += bytes;
        self.file(file).counters.written += bytes;
    }

    /// Pins units that are to be read ahead, as many as there is memory for, and only if others
    /// already have an interest in the file.
    pub(crate) fn pin_ahead(&mut self, file: u64, extents: &[Extent]) -> Vec<usize> {
        let Some(unit) = self.files.get(&file).map(|file| file.unit) else { return Vec::new() };
        let mut pinned = Vec::new();
        for (at, _) in extents.iter().flat_map(|extent| extent.parts(unit)) {
            if self.index.contains_key(&(file, at)) || !self.queue.is_empty() {
                continue;
            }
            let Ok(id) = self.make(file, at) else { break };
            self.units[id].pins += 1;
            self.units[id].ahead = true;
            pinned.push(id);
        }
        pinned
    }

    /// Begins a piece of the background work. Bytes are due that were dirty `ticks` ticks ago.
    pub(crate) fn begin_work(&mut self, ticks: u64) -> Option<Work> {
        if let Some(ahead) = self.ahead.pop_front() {
            return Some(Work::Ahead(ahead));
        }
        let due = self.due(ticks)?;
        self.begin_flush(due).map(Work::Flush)
    }

    /// Returns which dirty bytes are to be written now: the oldest while more than half of those
    /// that may be are dirty.
    pub(super) fn due(&self, ticks: u64) -> Option<Which> {
        if self.dirty_bytes > self.settings.dirty / 2 && self.any_flushable() {
            return Some(Which::Oldest);
        }
        self.tick.checked_sub(ticks).map(Which::Since)
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty_bytes > 0
    }

    /// Some time has passed.
    pub(crate) fn tick(&mut self) {
        self.tick += 1;
        self.readiness.tick();
    }

    /// The background work has nothing to do now: `waker` is woken when it has. Returns false if it
    /// has.
    pub(crate) fn rest(&mut self, waker: &Waker, is_full: bool, has_timer: bool, ticks: u64) -> bool {
        let due = self.due(ticks).is_some_and(|which| self.is_flushable(which));
        let has_work = !is_full && (!self.ahead.is_empty() || due) || self.is_dirty() && !has_timer;
        if !has_work {
            self.background = Some(waker.clone());
        }
        !has_work
    }
}
