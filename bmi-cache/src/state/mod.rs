//! The state of a cache, and the steps that change it. No step waits.
//!
//! **Invariants**
//! 1. A unit is in `units`, in `index`, in the policies and in the pool, or in none of them.
//! 2. `dirty` and `flushing` of a unit are parts of `valid`. The arena's record of a unit covers
//!    both, before a write is acknowledged and until the disk has the bytes.
//! 3. A unit gives its place up only if it is clean, nobody uses it, and no transfer of the disk is
//!    in progress for it.
//! 4. While a unit is filled, only bytes are read that nobody has and nobody is about to write.
//!
//! | module | steps |
//! |---|---|
//! | here | files |
//! | `memory` | units are pinned, made and evicted |
//! | `bytes` | bytes become valid and dirty |
//! | `flush` | dirty bytes go to the disk |
//! | `background` | the background work that is due |
//! | `ahead` | what to read ahead |
//! | `advice` | the hints of files, also of those of which nothing is cached |
//! | `queries` | what is asked |

mod advice;
mod ahead;
mod background;
mod bytes;
mod flush;
mod memory;
mod queries;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Range, RangeBounds};
use std::task::Waker;

use bmi_core::{MemList, mutated, mutated_each};
use slab::Slab;

use self::advice::Advice;
pub(crate) use self::ahead::Ahead;
use self::ahead::Streams;
pub(crate) use self::background::Work;
use crate::interface::{Counters, Coverage, FileCounters, FileStatistics, Hints, Settings, is_unit};
use crate::memory::{Arena, BLOCK, FRAME, Place, Pool, Readiness, Recovered};
use crate::policy::{Policies, Policy};
use crate::ranges::{Extent, RangeLocks, Spans, steps};

/// Most ranges of dirty bytes that the arena records of a unit.
const MOST_RANGES: usize = 3;

/// Most ranges of valid bytes that a unit keeps when nobody uses it: as many as it has frames at
/// most. They are looked at whenever the unit is used, and are memory beside the arena's.
const MOST_VALID: usize = BLOCK / FRAME;

/// Most units that are asked for without a break, to find some that can be evicted.
const MOST_ASKED: usize = 1 << 14;

/// Most bytes that are written to the disk at once.
const BATCH: u64 = 1 << 20;

/// Most units that are written to the disk at once, or forgotten: as many as a batch has of the
/// smallest. A unit may have one dirty byte.
const AT_ONCE: usize = BATCH as usize / FRAME;

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
        // A byte that became dirty again while it is written counts once.
        let only_dirty = |part: Range<u32>| u64::from(part.end - part.start) - self.flushing.bytes_in(&part);
        coverage.dirty += self.flushing.bytes_in(&range) + self.dirty.within(&range).map(only_dirty).sum::<u64>();
    }

    /// Returns the number of bytes that are dirty or on the way to the disk. A byte may be both.
    fn unclean_bytes(&self) -> u64 {
        self.dirty.bytes() + self.flushing.bytes()
    }

    /// Returns the number of its oldest write, if it is dirty and nobody writes it to the disk.
    fn waiting(&self) -> Option<u64> {
        (!self.dirty.is_empty() && self.flushing.is_empty()).then_some(self.oldest)
    }

    /// Returns the number of its oldest write that is on the way to the disk.
    fn moving(&self) -> Option<u64> {
        (!self.flushing.is_empty()).then_some(self.flushing_oldest)
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
    /// Nothing of it is written to the disk ([`crate::Hold`]).
    pub(crate) held: bool,
    /// The user has said that the file exists.
    pub(crate) known: bool,
    /// The units that are not clean, by their offsets.
    unclean: BTreeMap<u64, usize>,
    /// Those of them that nobody writes to the disk, by their offsets.
    ready: BTreeMap<u64, usize>,
    /// The same, and those that are being written, by the numbers of their oldest writes.
    waiting: BTreeSet<(u64, usize)>,
    moving: BTreeSet<(u64, usize)>,
    /// How the state lists it: whether its last write to the disk has failed, and the number of its
    /// oldest write that waits. `None` if nothing of it may be written now.
    listed: Option<(bool, u64)>,
    /// The offsets of the units that are being filled.
    filling: BTreeSet<u64>,
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
    /// The files of which something may be written to the disk now, by the number of the oldest
    /// write that waits: those whose disk works, and those whose last write to it has failed.
    flushable: [BTreeSet<(u64, u64)>; 2],
    pub(crate) dirty_bytes: u64,
    cached_bytes: u64,
    /// Number of writes.
    pub(crate) writes: u64,
    pub(crate) tick: u64,
    /// The operations that wait for memory, in order.
    queue: VecDeque<u64>,
    next_ticket: u64,
    /// Units that were asked for since the last break.
    asked: usize,
    /// How often something has changed for those that wait for memory, and how often when the
    /// current search for a unit to evict began.
    changes: u64,
    searched: u64,
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
    /// Let others run, and try again.
    Again,
}

/// Dirty units of a file that are written to the disk together.
pub(crate) struct Batch {
    pub(crate) file: u64,
    pub(crate) units: Vec<usize>,
    pub(crate) extents: Vec<Extent>,
    pub(crate) list: MemList,
}

impl Batch {
    /// Returns the offset behind its last byte.
    pub(crate) fn end(&self) -> u64 {
        self.extents.last().map_or(0, Extent::end)
    }
}

/// Which dirty units are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// The oldest ones.
    Oldest,
    /// Those that were dirty at a tick.
    Since(u64),
    /// Those of a file whose oldest write is at most this one, beginning at an offset.
    Of(u64, u64, u64),
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
            flushable: Default::default(),
            dirty_bytes: 0,
            cached_bytes: 0,
            writes: 0,
            tick: 0,
            queue: VecDeque::new(),
            next_ticket: 0,
            asked: 0,
            changes: 0,
            searched: 0,
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
        let dirty = Spans::ascending(record.dirty.iter());
        self.writes += 1;
        let valid = if mutated("cache/taken-over-unit-is-valid") { Spans::of(0..size) } else { dirty.clone() };
        self.change_valid(id, |own| *own = valid);
        self.add_dirty(id, &dirty);
        self.counters.taken_over += dirty.bytes();
    }

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
                held: false,
                known: false,
                unclean: BTreeMap::new(),
                ready: BTreeMap::new(),
                waiting: BTreeSet::new(),
                moving: BTreeSet::new(),
                listed: None,
                filling: BTreeSet::new(),
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
        self.changes += 1;
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

    /// Returns those of some files that have dirty bytes.
    pub(crate) fn dirty_files(&self, files: impl RangeBounds<u64>) -> Vec<u64> {
        let dirty = self.files.range(files).inspect(|_| steps(1)).filter(|(_, state)| !state.unclean.is_empty());
        dirty.map(|(file, _)| *file).collect()
    }
}
