//! The memory of units: who waits for it, which units are pinned, made and evicted.

use bmi_core::mutated;

use super::{MOST_ASKED, MOST_VALID, Short, State, Unit, Which, key};
use crate::memory::{BLOCK, FRAME, Place, Pool};
use crate::policy::{Policy, Search};
use crate::ranges::{Extent, Spans, steps};

impl<E: Clone> State<E> {
    /// Takes a place in the queue of those that wait for memory.
    pub(crate) fn queue_up(&mut self) -> u64 {
        self.next_ticket += 1;
        self.queue.push_back(self.next_ticket);
        self.next_ticket
    }

    /// Gives a place in the queue up.
    pub(crate) fn leave_queue(&mut self, ticket: u64) {
        self.queue.retain(|other| *other != ticket);
        self.memory_changed();
    }

    /// Pins the units of `extents`, and makes those that do not exist. Either all of them are
    /// pinned, or none.
    pub(crate) fn pin(&mut self, file: u64, extents: &[Extent], ticket: Option<u64>) -> Result<Vec<usize>, Short> {
        self.asked = 0;
        let unit = self.file(file).unit;
        let places = extents.iter().flat_map(|extent| extent.parts(unit).map(|(at, _)| at));
        let mut places: Vec<u64> = places.collect();
        places.dedup();
        steps(places.len());
        let missing = places.iter().filter(|at| !self.index.contains_key(&(file, **at))).count();
        let is_next = self.queue.front().is_none_or(|front| Some(*front) == ticket);
        if missing > 0 && !is_next {
            return Err(Short::Wait);
        }
        let mut pinned = Vec::with_capacity(places.len());
        let mut short = None;
        // Those that exist first, so that none of them gives its place to another one.
        for at in &places {
            if let Some(id) = self.index.get(&(file, *at)) {
                self.units[*id].pins += 1;
                pinned.push(*id);
            }
        }
        for at in &places {
            if self.index.contains_key(&(file, *at)) {
                continue;
            }
            match self.make(file, *at) {
                Ok(id) => {
                    self.units[id].pins += 1;
                    pinned.push(id);
                }
                Err(why) => {
                    short = Some(why);
                    break;
                }
            }
        }
        match short {
            None => {
                pinned.sort_by_key(|id| self.units[*id].at);
                Ok(pinned)
            }
            Some(why) => {
                // For others nothing has changed.
                self.release(&pinned);
                Err(why)
            }
        }
    }

    /// Ends the use of units.
    pub(crate) fn unpin(&mut self, units: &[usize]) {
        self.release(units);
        self.memory_changed();
    }

    /// Takes pins off units. Those without any valid byte are given back.
    fn release(&mut self, units: &[usize]) {
        for id in units {
            steps(1);
            let unit = &mut self.units[*id];
            unit.pins -= 1;
            if unit.pins == 0 && unit.valid.ranges().len() > MOST_VALID {
                self.forget_scattered(*id);
            }
            let unit = &self.units[*id];
            let (file, is_empty) = (unit.file, unit.is_free() && unit.valid.is_empty());
            let transient = self.files.get(&file).is_some_and(|file| file.hints.policy == Policy::None);
            if is_empty || transient && unit.is_free() {
                self.drop_unit(*id, false);
            }
        }
    }

    /// Makes a unit without valid bytes.
    pub(crate) fn make(&mut self, file: u64, at: u64) -> Result<usize, Short> {
        let frames = (self.file(file).unit / FRAME as u32) as u8;
        let policy = self.file(file).hints.policy;
        loop {
            if let Some(place) = self.pool.take(frames) {
                return Ok(self.insert(file, at, place, policy));
            }
            match self.arena.grow() {
                Ok(true) => {
                    self.pool.extend_to(self.arena.blocks());
                    self.readiness.grown();
                }
                Ok(false) => self.evict(frames)?,
                Err(error) => {
                    self.counters.refused_growth += 1;
                    if self.counters.refused_growth == 1 {
                        tracing::warn!(%error, "the cache cannot have more memory");
                    }
                    self.evict(frames)?;
                }
            }
        }
    }

    /// Evicts the next unit, and those beside it if they have another size than is needed.
    pub(super) fn evict(&mut self, frames: u8) -> Result<(), Short> {
        let units = &self.units;
        let (dirty, used) = (mutated("cache/dirty-unit-evicted"), mutated("cache/unit-in-use-evicted"));
        let is_free = |unit: &Unit| {
            steps(1);
            let is_still = unit.flushing.is_empty() && !unit.filling && !unit.broken;
            unit.is_free() || is_still && (dirty && unit.pins == 0 || used && unit.dirty.is_empty())
        };
        let most = if mutated("cache/victims-searched-without-a-break") { usize::MAX } else { MOST_ASKED };
        let left = most.saturating_sub(self.asked);
        if left == 0 {
            return Err(Short::Again);
        }
        if !self.policies.is_searching() {
            self.searched = self.changes;
        }
        let mut asked = 0;
        let found = self.policies.search(left, &mut |id| {
            asked += 1;
            is_free(&units[id])
        });
        self.asked += asked;
        let id = match found {
            Search::Found(id) => id,
            Search::Goes => return Err(Short::Again),
            Search::None if self.is_flushable(Which::Oldest) => return Err(Short::Flush),
            // One that was in use when it was asked for may be free by now.
            Search::None if self.searched != self.changes => return Err(Short::Again),
            Search::None => return Err(Short::Wait),
        };
        if dirty {
            self.forget(id, &(0..self.units[id].size()));
        }
        let place = self.units[id].place;
        self.drop_unit(id, true);
        if place.frames != frames {
            let first = Pool::block_of(place) * (BLOCK / FRAME) as u32;
            let block = first..first + (BLOCK / FRAME) as u32;
            let beside: Vec<usize> = self.frames.range(block).map(|(_, id)| *id).collect();
            let free: Vec<usize> = beside.into_iter().filter(|id| self.units[*id].is_free()).collect();
            free.into_iter().for_each(|id| self.drop_unit(id, true));
        }
        Ok(())
    }

    pub(super) fn insert(&mut self, file: u64, at: u64, place: Place, policy: Policy) -> usize {
        let spans = Spans::default;
        let id = self.units.insert(Unit {
            file,
            at,
            place,
            valid: spans(),
            dirty: spans(),
            flushing: spans(),
            oldest: 0,
            flushing_oldest: 0,
            tick: 0,
            pins: 0,
            filling: false,
            broken: false,
            ahead: false,
        });
        self.index.insert((file, at), id);
        self.frames.insert(place.frame, id);
        self.policies.insert(id, key(file, at), u32::from(place.frames) * FRAME as u32, policy);
        self.file(file).units += 1;
        id
    }

    /// Forgets a clean unit that nobody uses.
    pub(super) fn drop_unit(&mut self, id: usize, evicted: bool) {
        if evicted {
            self.policies.evicted(id);
            self.counters.evicted += 1;
        } else {
            self.policies.remove(id);
        }
        self.change_valid(id, |valid| *valid = Spans::default());
        let unit = self.units.remove(id);
        if unit.ahead {
            self.counters.ahead_unused += u64::from(unit.size());
        }
        self.index.remove(&(unit.file, unit.at));
        self.frames.remove(&unit.place.frame);
        self.pool.give(unit.place);
        self.file(unit.file).units -= 1;
        self.settle(unit.file);
    }
}
