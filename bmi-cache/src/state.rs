//! The state of a cache, and the steps that change it. No step waits.
//!
//! **Invariants**
//! 1. A unit is in `units`, in `index`, in the policies and in the pool, or in none of them.
//! 2. `dirty` and `flushing` of a unit are parts of `valid`. The arena's record of a unit covers
//!    both, before a write is acknowledged and until the disk has the bytes.
//! 3. A unit gives its place up only if it is clean, nobody uses it, and no transfer of the disk is
//!    in progress for it.
//! 4. While a unit is filled, only bytes are read that nobody has and nobody is about to write.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::ops::{Bound, Range};
use std::task::Waker;

use bmi_core::{MemList, MemSlice, Memory, mutated, mutated_each};
use slab::Slab;

use crate::advice::Advice;
use crate::ahead::{Ahead, Streams};
use crate::arena::{Arena, BLOCK, FRAME, Place, Ranges, Record, Recovered};
use crate::background::Work;
use crate::extent::{Extent, Spans};
use crate::policy::{Policies, Policy};
use crate::pool::Pool;
use crate::query::{Busiest, Counters, Coverage, FileCounters, FileStatistics, Statistics};
use crate::range_locks::RangeLocks;
use crate::ready::Readiness;
use crate::settings::{Hints, Settings, is_unit};

/// Most ranges of dirty bytes that the arena records of a unit.
const MOST_RANGES: usize = 3;

/// Most bytes that are written to the disk at once.
const BATCH: u64 = 1 << 20;

/// Most requests to read ahead that wait.
const MOST_AHEAD: usize = 64;

/// A unit that is in the cache.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) file: u64,
    /// Its offset in the file.
    pub(crate) at: u64,
    pub(crate) place: Place,
    /// The bytes that are those of the file.
    pub(crate) valid: Spans,
    /// The bytes that the disk does not have.
    pub(crate) dirty: Spans,
    /// The bytes that are being written to the disk.
    pub(crate) flushing: Spans,
    /// The number of the oldest write in `dirty`, and in `flushing`.
    pub(crate) oldest: u64,
    pub(crate) flushing_oldest: u64,
    /// The tick at which it became dirty.
    tick: u64,
    /// Operations that use it.
    pins: u32,
    /// Bytes are being read from the disk.
    pub(crate) filling: bool,
    /// A transfer of the disk was dropped before its end.
    pub(crate) broken: bool,
    /// It was read ahead and not used yet.
    ahead: bool,
}

impl Unit {
    pub(crate) fn size(&self) -> u32 {
        u32::from(self.place.frames) * FRAME as u32
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.dirty.is_empty() && self.flushing.is_empty()
    }

    /// Adds what it has of some of its bytes to `coverage`.
    fn cover(&self, range: Range<u32>, is_ready: bool, coverage: &mut Coverage) {
        let cached = self.valid.bytes_in(&range);
        coverage.cached += cached;
        coverage.ready += if is_ready { cached } else { 0 };
        coverage.dirty += match (self.dirty.is_empty(), self.flushing.is_empty()) {
            (false, false) => {
                let mut both = self.dirty.clone();
                both.union(&self.flushing);
                both.bytes_in(&range)
            }
            (_, true) => self.dirty.bytes_in(&range),
            (true, false) => self.flushing.bytes_in(&range),
        };
    }

    fn is_free(&self) -> bool {
        self.pins == 0 && !self.filling && !self.broken && self.is_clean()
    }
}

/// A file of which something is in the cache or in progress.
#[derive(Debug)]
pub(crate) struct FileState<E> {
    /// Bytes of each of its units.
    pub(crate) unit: u32,
    pub(crate) locks: RangeLocks,
    pub(crate) hints: Hints,
    pub(crate) streams: Streams,
    pub(crate) counters: FileCounters,
    /// Why its last write to the disk failed, and when it is tried again, in ticks.
    pub(crate) failed: Option<(E, u64)>,
    /// From this offset on nothing is written to the disk ([`crate::Hold`]).
    pub(crate) held: Option<u64>,
    /// The user has said that the file exists.
    pub(crate) known: bool,
    /// The units that are not clean, by their offsets.
    unclean: BTreeMap<u64, usize>,
    units: usize,
    /// Bytes that are in the cache, and those of them that the disk does not have.
    cached: u64,
    dirty: u64,
    waiters: Vec<Waker>,
}

impl<E> FileState<E> {
    fn statistics(&self, file: u64) -> FileStatistics {
        FileStatistics {
            file,
            unit: self.unit,
            hints: self.hints,
            cached: self.cached,
            dirty: self.dirty,
            counters: self.counters,
            failed: self.failed.is_some(),
        }
    }
}

/// The state of a cache.
pub(crate) struct State<E> {
    pub(crate) arena: Arena,
    pub(crate) settings: Settings,
    pool: Pool,
    pub(crate) units: Slab<Unit>,
    pub(crate) index: BTreeMap<(u64, u64), usize>,
    /// The units by their first frames.
    frames: BTreeMap<u32, usize>,
    pub(crate) files: BTreeMap<u64, FileState<E>>,
    advice: Advice,
    policies: Policies,
    pub(crate) readiness: Readiness,
    /// The dirty units that are not being written, by the number of the oldest write.
    dirty: BTreeSet<(u64, usize)>,
    pub(crate) dirty_bytes: u64,
    cached_bytes: u64,
    /// Number of writes.
    pub(crate) writes: u64,
    pub(crate) tick: u64,
    /// The operations that wait for memory, in order.
    queue: VecDeque<u64>,
    next_ticket: u64,
    memory_waiters: Vec<Waker>,
    pub(crate) ahead: VecDeque<Ahead>,
    pub(crate) counters: Counters,
    /// Those that are woken when the state is unlocked.
    pub(crate) wake: Vec<Waker>,
    /// The background work, while it has nothing to do.
    background: Option<Waker>,
}

/// What an operation that needs memory must do first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Short {
    /// Write dirty units to the disk.
    Flush,
    /// Wait until memory is given back.
    Wait,
}

/// Dirty units of a file that are written to the disk together.
pub(crate) struct Batch {
    pub(crate) file: u64,
    pub(crate) units: Vec<usize>,
    pub(crate) extents: Vec<Extent>,
    pub(crate) list: MemList,
}

/// Which dirty units are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// The oldest ones.
    Oldest,
    /// Those that were dirty at a tick.
    Since(u64),
    /// Those of a file whose oldest write is at most this one.
    Of(u64, u64),
}

/// Returns a number for a unit that stays the same when it comes back (splitmix64).
fn key(file: u64, at: u64) -> u64 {
    let mut key = file.rotate_left(32) ^ at;
    key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}

impl<E: Clone> State<E> {
    pub(crate) fn new(arena: Arena, recovered: Vec<Recovered>, settings: Settings) -> State<E> {
        let bytes = u64::from(arena.max_blocks()) * BLOCK as u64;
        let mut state = State {
            policies: Policies::new(settings.policy, bytes),
            readiness: Readiness::new(&arena, settings.ready),
            arena,
            settings,
            pool: Pool::default(),
            units: Slab::new(),
            index: BTreeMap::new(),
            frames: BTreeMap::new(),
            files: BTreeMap::new(),
            advice: Advice::default(),
            dirty: BTreeSet::new(),
            dirty_bytes: 0,
            cached_bytes: 0,
            writes: 0,
            tick: 0,
            queue: VecDeque::new(),
            next_ticket: 0,
            memory_waiters: Vec::new(),
            ahead: VecDeque::new(),
            counters: Counters::default(),
            wake: Vec::new(),
            background: None,
        };
        state.pool.extend_to(state.arena.blocks());
        recovered.into_iter().for_each(|recovered| state.take_over(recovered));
        state
    }

    /// Takes a dirty unit over from an earlier user of the arena.
    fn take_over(&mut self, Recovered { place, record }: Recovered) {
        if !self.pool.take_at(place) {
            tracing::error!(?place, ?record, "two dirty units at one place of the arena; one is lost");
            return;
        }
        if mutated_each(2, "cache/take-over-drops-a-record") {
            self.pool.give(place);
            return self.arena.record(place, None);
        }
        let size = u32::from(place.frames) * FRAME as u32;
        self.file(record.file).unit = size;
        let id = self.insert(record.file, record.at, place, Policy::Default);
        let dirty = record.dirty.iter().fold(Spans::default(), |mut spans, range| {
            spans.insert(range);
            spans
        });
        self.writes += 1;
        let valid = if mutated("cache/taken-over-unit-is-valid") { Spans::of(0..size) } else { dirty.clone() };
        self.change_valid(id, |own| *own = valid);
        self.add_dirty(id, &dirty);
        self.counters.taken_over += dirty.bytes();
    }

    // ---- files ----------------------------------------------------------------------------------

    /// Returns the state of a file, which is made if it does not exist.
    pub(crate) fn file(&mut self, file: u64) -> &mut FileState<E> {
        let (advice, unit) = (&self.advice, self.settings.unit);
        self.files.entry(file).or_insert_with(|| {
            let hints = advice.of(file);
            FileState {
                unit: hints.unit.unwrap_or(unit),
                locks: RangeLocks::default(),
                hints,
                streams: Streams::default(),
                counters: FileCounters::default(),
                failed: None,
                held: None,
                known: false,
                unclean: BTreeMap::new(),
                units: 0,
                cached: 0,
                dirty: 0,
                waiters: Vec::new(),
            }
        })
    }

    /// Returns the bytes of each unit of a file.
    pub(crate) fn unit_of(&self, file: u64) -> u32 {
        let own = self.files.get(&file).map(|file| file.unit);
        own.or_else(|| self.advice.of(file).unit).unwrap_or(self.settings.unit)
    }

    /// Forgets a file of which nothing is left.
    pub(crate) fn settle(&mut self, file: u64) {
        if self.files.get(&file).is_some_and(|state| state.units == 0 && state.locks.is_empty()) {
            self.changed(file);
            self.files.remove(&file);
        }
    }

    /// Sets the hints of a file. Returns false if they make no sense.
    pub(crate) fn advise(&mut self, file: u64, hints: Hints) -> bool {
        let sensible = hints.unit.is_none_or(is_unit);
        let hints = Hints { unit: hints.unit.filter(|unit| is_unit(*unit)), ..hints };
        self.advice.give(file, hints);
        if let Some(state) = self.files.get_mut(&file) {
            state.hints = hints;
            if state.units == 0 || mutated("cache/unit-changes-while-it-is-in-use") {
                state.unit = hints.unit.unwrap_or(self.settings.unit);
            }
        }
        if !sensible {
            self.counters.ignored_hints += 1;
        }
        sensible
    }

    /// Something has changed for those that wait for a file.
    pub(crate) fn changed(&mut self, file: u64) {
        if let Some(state) = self.files.get_mut(&file) {
            self.wake.append(&mut state.waiters);
        }
    }

    /// Wakes `waker` at the next change of a file.
    pub(crate) fn wait_for_file(&mut self, file: u64, waker: &Waker) {
        self.file(file).waiters.push(waker.clone());
    }

    /// Wakes `waker` when memory may be free.
    pub(crate) fn wait_for_memory(&mut self, waker: &Waker) {
        self.memory_waiters.push(waker.clone());
    }

    /// Something has changed for those that wait for memory, or for dirty bytes to be written.
    pub(crate) fn memory_changed(&mut self) {
        self.wake.append(&mut self.memory_waiters);
    }

    /// Returns the end of the last dirty byte of a file.
    pub(crate) fn dirty_end(&self, file: u64) -> u64 {
        if mutated("cache/size-without-dirty-bytes") {
            return 0;
        }
        let last = self.files.get(&file).and_then(|file| file.unclean.last_key_value());
        last.map_or(0, |(at, id)| {
            let end = |spans: &Spans| spans.ranges().last().map_or(0, |range| range.end);
            let unit = &self.units[*id];
            at + u64::from(end(&unit.dirty).max(end(&unit.flushing)))
        })
    }

    /// Returns the files that have dirty bytes.
    pub(crate) fn dirty_files(&self) -> Vec<u64> {
        let dirty = self.files.iter().filter(|(_, state)| !state.unclean.is_empty());
        dirty.map(|(file, _)| *file).collect()
    }

    // ---- memory ---------------------------------------------------------------------------------

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
        let unit = self.file(file).unit;
        let places = extents.iter().flat_map(|extent| extent.parts(unit).map(|(at, _)| at));
        let mut places: Vec<u64> = places.collect();
        places.dedup();
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
                self.unpin(&pinned);
                Err(why)
            }
        }
    }

    /// Ends the use of units. Those without any valid byte are given back.
    pub(crate) fn unpin(&mut self, units: &[usize]) {
        for id in units {
            let unit = &mut self.units[*id];
            unit.pins -= 1;
            let (file, is_empty) = (unit.file, unit.is_free() && unit.valid.is_empty());
            let transient = self.files.get(&file).is_some_and(|file| file.hints.policy == Policy::None);
            if is_empty || transient && unit.is_free() {
                self.drop_unit(*id, false);
            }
        }
        self.memory_changed();
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
    fn evict(&mut self, frames: u8) -> Result<(), Short> {
        let units = &self.units;
        let (dirty, used) = (mutated("cache/dirty-unit-evicted"), mutated("cache/unit-in-use-evicted"));
        let is_free = |unit: &Unit| {
            let is_still = unit.flushing.is_empty() && !unit.filling && !unit.broken;
            unit.is_free() || is_still && (dirty && unit.pins == 0 || used && unit.dirty.is_empty())
        };
        let Some(id) = self.policies.victim(&mut |id| is_free(&units[id])) else {
            return Err(if self.is_flushable(Which::Oldest) { Short::Flush } else { Short::Wait });
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

    fn insert(&mut self, file: u64, at: u64, place: Place, policy: Policy) -> usize {
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
    fn drop_unit(&mut self, id: usize, evicted: bool) {
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

    // ---- bytes ----------------------------------------------------------------------------------

    /// Changes which bytes of a unit are valid, and counts them.
    fn change_valid(&mut self, id: usize, change: impl FnOnce(&mut Spans)) {
        let unit = &mut self.units[id];
        let (file, before) = (unit.file, unit.valid.bytes());
        change(&mut unit.valid);
        let after = unit.valid.bytes();
        self.cached_bytes = self.cached_bytes + after - before;
        let file = self.file(file);
        file.cached = file.cached + after - before;
    }

    /// The dirty bytes of a unit of a file were `before`, and are `after`.
    fn count_dirty(&mut self, file: u64, before: u64, after: u64) {
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

    fn add_dirty(&mut self, id: usize, spans: &Spans) -> bool {
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
    fn record(&mut self, id: usize) -> bool {
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

    // ---- writing to the disk --------------------------------------------------------------------

    /// Returns true if a unit may be written to the disk now.
    fn may_flush(&self, unit: &Unit) -> bool {
        let held = self.files[&unit.file].held.is_some_and(|held| held < unit.at + u64::from(unit.size()));
        !unit.dirty.is_empty() && unit.flushing.is_empty() && !held
    }

    /// Returns the dirty unit with which a flush begins.
    fn first_to_flush(&self, which: Which) -> Option<usize> {
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
                units.filter(|(_, unit)| unit.oldest <= write).find(|(_, unit)| self.may_flush(unit))
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

    fn batch(&mut self, file: u64, units: Vec<usize>) -> Batch {
        let (mut extents, mut pieces) = (Vec::<Extent>::new(), Vec::new());
        for id in &units {
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
    fn forget(&mut self, id: usize, range: &Range<u32>) {
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
        units.any(|unit| unit.filling || !unit.flushing.is_empty())
    }

    // ---- reading ahead, and the background work -------------------------------------------------

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
    fn due(&self, ticks: u64) -> Option<Which> {
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

    // ---- queries --------------------------------------------------------------------------------

    /// Returns the units of `parts` whose dirty bytes would be in too many places if these parts
    /// were written, and all their bytes.
    pub(crate) fn scattered(&self, parts: &[(usize, Range<u32>)]) -> Vec<(usize, Range<u32>)> {
        let mut found: Vec<(usize, Range<u32>)> = Vec::new();
        for (id, _) in parts {
            if found.iter().any(|(other, _)| other == id) {
                continue;
            }
            let unit = &self.units[*id];
            let (mut dirty, mut valid) = (unit.dirty.clone(), unit.valid.clone());
            dirty.union(&unit.flushing);
            for (_, range) in parts.iter().filter(|(other, _)| other == id) {
                dirty.insert(range.clone());
                valid.insert(range.clone());
            }
            if !dirty.reduce(MOST_RANGES, &valid) {
                // What is about to be written is not read: this operation has locked it.
                let gaps = valid.gaps(unit.size());
                found.extend(gaps.ranges().first().map(|range| (*id, range.clone())));
            }
        }
        found
    }

    /// Returns how much of a range is in the cache. Looks at `most` units at most; if there are
    /// more, also returns the offset of the first one that is left.
    pub(crate) fn coverage(&self, file: u64, extent: Extent, most: usize) -> (Coverage, Option<u64>) {
        let mut coverage = Coverage::default();
        let Some(unit) = self.files.get(&file).map(|file| u64::from(file.unit)) else { return (coverage, None) };
        let first = extent.offset / unit * unit;
        let mut units = self.index.range((file, first)..(file, extent.end().max(first)));
        for ((_, at), id) in units.by_ref().take(most) {
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
            assert_eq!(self.dirty.contains(&(unit.oldest, id)), !unit.dirty.is_empty());
            assert_eq!(self.files[&unit.file].unclean.get(&unit.at), (!unit.is_clean()).then_some(&id));
            dirty += unit.dirty.bytes() + unit.flushing.bytes();
        }
        for (file, state) in &self.files {
            let (whole, left) = self.coverage(*file, Extent::new(0, u64::MAX), usize::MAX);
            assert_eq!((state.cached, left), (whole.cached, None));
            // A byte that became dirty again while it is written counts twice.
            assert!(whole.dirty <= state.dirty && state.dirty <= 2 * whole.dirty);
        }
        assert_eq!(self.files.values().map(|file| file.dirty).sum::<u64>(), dirty);
        assert_eq!(self.units.iter().map(|(_, unit)| unit.valid.bytes()).sum::<u64>(), self.cached_bytes);
        assert!(self.index.len() == self.units.len() && self.frames.len() == self.units.len());
        assert_eq!(self.dirty_bytes, dirty);
        let unclean = self.files.values().map(|file| file.unclean.len()).sum::<usize>();
        assert_eq!(unclean, self.units.iter().filter(|(_, unit)| !unit.is_clean()).count());
        let used: u64 = self.units.iter().map(|(_, unit)| u64::from(unit.size())).sum();
        assert_eq!(self.pool.free_bytes() + used, u64::from(self.arena.blocks()) * BLOCK as u64);
        assert!(self.files.values().map(|file| file.units).sum::<usize>() == self.units.len());
    }
}
