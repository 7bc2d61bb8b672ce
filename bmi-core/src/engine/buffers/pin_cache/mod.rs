//! The pin-down cache: registrations of the program's memory, kept after use.
//!
//! **Why.** Registering pins pages and costs more than moving them ([PVFS-IB §5]: 120 µs for a
//! region and 4 µs for a page). Programs use their buffers again. So a registration is kept when
//! the operation that needed it has ended, and the next operation finds it.
//!
//! **Layout**
//!
//! ```text
//!   index: MemoryId -> entry          kept:    newest <-> … <-> oldest     bounded, least recently used goes first
//!   entry: CachedRegion, length       passing: too long, or bounds of zero: removed as soon as it is idle
//!                                     leaving: evicted or without memory; released together
//! ```
//!
//! **Invariants**
//! 1. *Never stale.* An entry is found by the id of a [`Memory`], and ids are never reused. A
//!    lookup requires a handle, so the registered bytes still exist. When the last handle is
//!    dropped, no id refers to the entry any more. The drop leaves a note, and the next poll
//!    removes the entry.
//! 2. *Keeps nothing alive.* An entry has the registration, not the memory. The bytes are freed
//!    when the program, and the outstanding operations, drop them. Until the next batch the adapter
//!    keeps its hold on the pages, but nothing can refer to them.
//! 3. *Does not prevent exclusive access.* For the same reason, [`Memory::get_mut`] does not see an
//!    entry. This is sound: getting a [`MemoryRegion`] out of an entry requires a handle. While the
//!    reference from `get_mut` lives, the only handle is the borrowed one.
//! 4. *Bounded.* Entries and bytes, `leaving` included, stay within the bounds. Entries in use are
//!    an exception: they cannot be given up, and go when they are idle. Each call passes over at
//!    most [`SCAN`] of them.
//! 5. Reusing a registration is O(1) and allocates nothing.
//!
//! **Deregistration** is delayed and batched. When a bound is reached, a sixteenth of it is
//! released at once, so that the next registrations find room. An entry that has lost its memory
//! waits until [`Limits::linger`] after the first entry of its batch. The transport deregisters a
//! batch in one go (C13).
//!
//! **When the adapter refuses** a registration, the cache releases first the entries in `leaving`
//! and a batch of idle entries, then all idle entries. It tries again after each step.
//!
//! **Source.** [PVFS-IB §3.3.3, §4.1.2] (`check_if_registered`); Tezuka et al., pin-down cache.
//! Those caches use addresses as keys, so they have to watch `munmap`. This one uses the identity
//! of owned memory. For foreign addresses see [`crate::mem::Foreign`].
//!
//! **Tests.** A model below runs any sequence of uses, drops and failures.
//! `bmi-sim/tests/it/endpoints/pin_cache.rs` tests the cache through real transfers.
#![expect(clippy::disallowed_types, reason = "a map whose hasher is the same in every run")]

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use slab::Slab;

use crate::error::{Error, ErrorKind};
use crate::mem::{CachedRegion, Memory, MemoryId, MemoryRegion};
use crate::sync::Returns;
use crate::time::Time;
use crate::timeline::{self, Recorder, What};
use crate::transport::Transport;
use crate::wire::matching::WordHasher;

/// Number of entries in use that one call passes over in search of idle ones.
const SCAN: usize = 64;

/// The fraction of a bound that is released when it is reached. One sixteenth is little to lose,
/// and enough to share the cost of a batch.
const BATCH_PART: usize = 16;

/// Bounds of a cache.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Limits {
    /// Largest number of registrations.
    pub(in crate::engine) entries: usize,
    /// Largest number of registered bytes.
    pub(in crate::engine) bytes: u64,
    /// How long a registration without memory may be kept, so that it is released together with
    /// others.
    pub(in crate::engine) linger: Duration,
}

/// Counters of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct PinCounts {
    pub(in crate::engine) hits: u64,
    pub(in crate::engine) misses: u64,
    pub(in crate::engine) evictions: u64,
    pub(in crate::engine) failures: u64,
    pub(in crate::engine) batches: u64,
}

const NONE: usize = usize::MAX;

struct Entry {
    id: MemoryId,
    len: u64,
    region: CachedRegion,
    kept: bool,
    /// Neighbours in its list.
    newer: usize,
    older: usize,
}

/// A list of entries, linked by index, newest first.
#[derive(Clone, Copy)]
struct Chain {
    newest: usize,
    oldest: usize,
    len: usize,
}

impl Chain {
    const EMPTY: Chain = Chain { newest: NONE, oldest: NONE, len: 0 };

    fn push(&mut self, entries: &mut Slab<Entry>, at: usize) {
        (entries[at].newer, entries[at].older) = (NONE, self.newest);
        match self.newest {
            NONE => self.oldest = at,
            newest => entries[newest].newer = at,
        }
        self.newest = at;
        self.len += 1;
    }

    fn unlink(&mut self, entries: &mut Slab<Entry>, at: usize) {
        let (newer, older) = (entries[at].newer, entries[at].older);
        match newer {
            NONE => self.newest = older,
            newer => entries[newer].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => entries[older].newer = newer,
        }
        self.len -= 1;
    }

    fn touch(&mut self, entries: &mut Slab<Entry>, at: usize) {
        if self.newest != at {
            self.unlink(entries, at);
            self.push(entries, at);
        }
    }
}

fn record(recorder: &Recorder, begun: Time, memory: &Memory, hit: bool) {
    let bytes = memory.len() as u64;
    recorder.span(begun, || timeline::Entry { bytes, ..timeline::Entry::of(What::Register { hit }) });
}

/// The cache of one endpoint.
pub(in crate::engine) struct PinCache {
    limits: Limits,
    entries: Slab<Entry>,
    index: HashMap<MemoryId, usize, BuildHasherDefault<WordHasher>>,
    kept: Chain,
    kept_bytes: u64,
    passing: Chain,
    leaving: Vec<CachedRegion>,
    leaving_bytes: u64,
    /// When `leaving` is released. `None` until the next poll, which knows the time.
    due: Option<Time>,
    /// Memories whose last handle was dropped.
    gone: Arc<Returns<MemoryId>>,
    notes: Vec<MemoryId>,
    counts: PinCounts,
    pub(in crate::engine) recorder: Recorder,
}

impl PinCache {
    pub(in crate::engine) fn new(limits: Limits) -> PinCache {
        PinCache {
            limits,
            entries: Slab::new(),
            index: HashMap::default(),
            kept: Chain::EMPTY,
            kept_bytes: 0,
            passing: Chain::EMPTY,
            leaving: Vec::new(),
            leaving_bytes: 0,
            due: None,
            gone: Arc::default(),
            notes: Vec::new(),
            counts: PinCounts::default(),
            recorder: Recorder::default(),
        }
    }

    // ---- getters --------------------------------------------------------------------------------

    pub(in crate::engine) fn counts(&self) -> PinCounts {
        self.counts
    }

    /// Returns the number of registrations and their bytes, including those that wait for their
    /// release.
    pub(in crate::engine) fn held(&self) -> (usize, u64) {
        let passing: u64 = self.entries.iter().filter(|(_, entry)| !entry.kept).map(|(_, entry)| entry.len).sum();
        (self.entries.len() + self.leaving.len(), self.kept_bytes + self.leaving_bytes + passing)
    }

    /// Returns the number of registrations that an operation, an exposure or the program holds.
    pub(in crate::engine) fn in_use(&self) -> usize {
        self.entries.iter().filter(|(_, entry)| entry.region.is_in_use()).count()
    }

    /// Returns true if `memory` is registered. Counts no hit.
    pub(in crate::engine) fn is_registered(&self, memory: &Memory) -> bool {
        self.index.get(&memory.id()).is_some_and(|at| self.is_good(*at))
    }

    /// Returns true if an entry may be used again. A passing entry ends with its use.
    fn is_good(&self, at: usize) -> bool {
        let entry = &self.entries[at];
        entry.kept || entry.region.is_in_use()
    }

    // ---- looking up -----------------------------------------------------------------------------

    /// Returns the registration of `memory`, if there is one: the `check_if_registered` of the
    /// paper. It counts as a hit, and never registers.
    pub(in crate::engine) fn check_if_registered(&mut self, memory: &Memory) -> Option<MemoryRegion> {
        let at = *self.index.get(&memory.id())?;
        if !self.is_good(at) {
            self.take_out(at);
            return None;
        }
        self.counts.hits += 1;
        if self.entries[at].kept {
            self.kept.touch(&mut self.entries, at);
        }
        Some(self.entries[at].region.with(memory))
    }

    /// Returns the registration of `memory`, and creates it if there is none.
    ///
    /// # Errors
    /// Those of [`Transport::register`], after all idle entries have been released.
    pub(in crate::engine) fn register(
        &mut self,
        transport: &mut dyn Transport,
        memory: &Memory,
    ) -> Result<MemoryRegion, Error> {
        self.register_by(memory, |memory| transport.register(memory))
    }

    /// As [`PinCache::register_by`], and records the result.
    #[cold]
    #[inline(never)]
    fn register_recorded(
        &mut self,
        memory: &Memory,
        adapter: impl FnMut(&Memory) -> Result<MemoryRegion, Error>,
    ) -> Result<MemoryRegion, Error> {
        let recorder = std::mem::take(&mut self.recorder);
        let (begun, before) = (recorder.now(), self.counts.misses);
        let region = self.register_by(memory, adapter);
        if region.is_ok() {
            record(&recorder, begun, memory, self.counts.misses == before);
        }
        self.recorder = recorder;
        region
    }

    /// Records that the registration of `memory` was found.
    #[cold]
    #[inline(never)]
    pub(in crate::engine) fn record_hit(&self, memory: &Memory) {
        record(&self.recorder, self.recorder.now(), memory, true);
    }

    /// Registers memory of the endpoint itself, which is not kept in the cache. Idle entries are
    /// released if it needs room.
    ///
    /// # Errors
    /// Those of `adapter`, which is tried again after `Exhausted`.
    pub(in crate::engine) fn register_own<R>(&mut self, adapter: impl FnMut() -> Result<R, Error>) -> Result<R, Error> {
        self.try_hard(adapter)
    }

    fn register_by(
        &mut self,
        memory: &Memory,
        mut adapter: impl FnMut(&Memory) -> Result<MemoryRegion, Error>,
    ) -> Result<MemoryRegion, Error> {
        if self.recorder.is_on() {
            return self.register_recorded(memory, adapter);
        }
        if let Some(region) = self.check_if_registered(memory) {
            return Ok(region);
        }
        self.counts.misses += 1;
        let len = memory.len() as u64;
        let kept = self.limits.entries > 0 && len <= self.limits.bytes;
        if kept {
            self.make_room(len);
        }
        let region = self.try_hard(|| adapter(memory))?;
        let cached = region.to_cached();
        let at = self.entries.insert(Entry { id: memory.id(), len, region: cached, kept, newer: NONE, older: NONE });
        self.index.insert(memory.id(), at);
        if kept {
            self.kept.push(&mut self.entries, at);
            self.kept_bytes += len;
        } else {
            self.passing.push(&mut self.entries, at);
        }
        memory.watch(&self.gone);
        Ok(region)
    }

    /// Registers. If the adapter has no room, releases entries and tries again.
    fn try_hard<R>(&mut self, mut adapter: impl FnMut() -> Result<R, Error>) -> Result<R, Error> {
        let mut refused = match adapter() {
            Ok(region) => return Ok(region),
            Err(error) => error,
        };
        self.counts.failures += 1;
        for batch in [self.kept.len.div_ceil(BATCH_PART).max(1), usize::MAX] {
            if refused.kind() != ErrorKind::Exhausted {
                break;
            }
            self.take_notes();
            self.take_passed(usize::MAX);
            self.evict(batch, usize::MAX, |_| true);
            if self.leaving.is_empty() {
                break;
            }
            self.let_go();
            match adapter() {
                Ok(region) => return Ok(region),
                Err(error) => refused = error,
            }
            self.counts.failures += 1;
        }
        Err(refused)
    }

    // ---- letting go -----------------------------------------------------------------------------

    /// Makes room for one more registration of `len` bytes within the bounds, as far as idle
    /// entries allow.
    fn make_room(&mut self, len: u64) {
        let Limits { entries, bytes, .. } = self.limits;
        let fits = |cache: &PinCache, entries: usize, bytes: u64| {
            cache.kept.len + cache.leaving.len() < entries && cache.kept_bytes + cache.leaving_bytes + len <= bytes
        };
        if fits(self, entries, bytes) {
            return;
        }
        self.take_notes();
        self.let_go();
        if fits(self, entries, bytes) {
            return;
        }
        let low_entries = entries - entries / BATCH_PART;
        let low_bytes = (bytes - bytes / BATCH_PART as u64).max(len);
        self.evict(usize::MAX, SCAN, |cache| cache.kept.len >= low_entries || cache.kept_bytes + len > low_bytes);
        self.let_go();
    }

    /// Evicts idle entries, least recently used first, while `more` returns true. Evicts at most
    /// `count`, and passes over at most `scan` entries in use.
    fn evict(&mut self, mut count: usize, scan: usize, more: impl Fn(&PinCache) -> bool) {
        let mut scan = scan.min(self.kept.len);
        while count > 0 && self.kept.len > 0 && more(self) {
            let at = self.kept.oldest;
            if self.entries[at].region.is_in_use() {
                if scan == 0 {
                    break;
                }
                scan -= 1;
                // An entry in use counts as recently used.
                self.kept.touch(&mut self.entries, at);
            } else {
                self.counts.evictions += 1;
                self.take_out(at);
                count -= 1;
            }
        }
    }

    /// Moves an entry to `leaving`.
    fn take_out(&mut self, at: usize) {
        let kept = self.entries[at].kept;
        let chain = if kept { &mut self.kept } else { &mut self.passing };
        chain.unlink(&mut self.entries, at);
        let entry = self.entries.remove(at);
        self.index.remove(&entry.id);
        if kept {
            self.kept_bytes -= entry.len;
        }
        self.leaving_bytes += entry.len;
        self.leaving.push(entry.region);
    }

    /// Removes passing entries that are no longer in use. Looks at up to `scan` of them.
    fn take_passed(&mut self, scan: usize) {
        for _ in 0..self.passing.len.min(scan) {
            let at = self.passing.oldest;
            if self.entries[at].region.is_in_use() {
                self.passing.touch(&mut self.entries, at);
            } else {
                self.take_out(at);
            }
        }
    }

    /// Removes the entries of memories whose last handle was dropped.
    fn take_notes(&mut self) {
        let mut notes = std::mem::take(&mut self.notes);
        self.gone.drain(&mut notes);
        for id in notes.drain(..) {
            // Entries that were evicted meanwhile are not in the index.
            if let Some(at) = self.index.get(&id) {
                self.take_out(*at);
            }
        }
        self.notes = notes;
    }

    fn let_go(&mut self) {
        if !self.leaving.is_empty() {
            self.counts.batches += 1;
            self.leaving.clear();
            self.leaving_bytes = 0;
        }
        self.due = None;
    }

    /// Reads the notes of dropped memory, enforces the bounds, and releases a batch when it is due.
    /// Returns true if anything was released.
    #[inline]
    pub(in crate::engine) fn poll(&mut self, now: Time) -> bool {
        let within = self.kept.len <= self.limits.entries && self.kept_bytes <= self.limits.bytes;
        let idle = within && self.passing.len == 0 && self.leaving.is_empty() && self.gone.is_empty();
        !idle && self.tidy(now)
    }

    fn tidy(&mut self, now: Time) -> bool {
        if !self.gone.is_empty() {
            self.take_notes();
        }
        // Entries that were in use when room was needed.
        let Limits { entries, bytes, .. } = self.limits;
        if self.kept.len > entries || self.kept_bytes > bytes {
            self.evict(usize::MAX, SCAN, |cache| cache.kept.len > entries || cache.kept_bytes > bytes);
        }
        self.take_passed(SCAN);
        if self.leaving.is_empty() {
            return false;
        }
        let due = *self.due.get_or_insert(now + self.limits.linger);
        let over = self.kept.len + self.leaving.len() > entries || self.kept_bytes + self.leaving_bytes > bytes;
        let ripe = due <= now || over;
        if ripe {
            self.let_go();
        }
        ripe
    }

    /// Returns when [`PinCache::poll`] has work to do even if nothing else happens.
    pub(in crate::engine) fn next_deadline(&self) -> Option<Time> {
        self.due
    }

    /// Returns true if it is safe to sleep. `waker` is then woken when memory is dropped whose
    /// pages the adapter holds.
    pub(in crate::engine) fn arm(&self, waker: &Waker) -> bool {
        // If registering pins nothing, the release can wait for the next poll, whenever that is.
        self.limits.linger.is_zero() || self.gone.wake_at_next(waker)
    }
}

#[cfg(test)]
mod tests;
