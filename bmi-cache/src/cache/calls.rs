//! The operations of a cache.

use std::ops::{Range, RangeBounds};
use std::sync::{Arc, Mutex};

use bmi_core::{MemList, Memory, MemoryRegion, mutated};

use super::inner::{Inner, Locked, Pinned, yield_now};
use crate::interface::{Busiest, CacheError, Coverage, Disk, FileStatistics, Hints, Settings, Statistics};
use crate::memory::{Arena, BLOCK, Frames, ReadyRegions};
use crate::ranges::{Extent, by_unit, joined, steps};
use crate::state::State;

/// The part of the cache that one operation may use. At least two blocks are: the bytes of a short
/// operation may be in two of them.
const SHARE: u32 = 8;

/// A cache of the files of a disk. A clone is another handle to the same cache, also for another
/// event loop.
pub struct Cache<D: Disk>(pub(crate) Arc<Inner<D>>);

impl<D: Disk> Clone for Cache<D> {
    fn clone(&self) -> Cache<D> {
        Cache(self.0.clone())
    }
}

/// Bytes of a file that are lent for reading. They do not change, and keep their place, until this
/// is dropped.
pub struct Reading<D: Disk> {
    list: MemList,
    // First the units, then the lock.
    _pinned: Pinned<D>,
    _locked: Locked<D>,
}

impl<D: Disk> Reading<D> {
    /// Returns the bytes, in the order of the extents.
    pub fn list(&self) -> &MemList {
        &self.list
    }
}

/// The memory of bytes of a file that are about to be written. Nobody else reads or writes them
/// meanwhile. If this is dropped without [`Writing::commit`], nothing was written, except that
/// bytes which the disk did not have yet may be those of the file or those that arrived.
pub struct Writing<D: Disk> {
    list: MemList,
    extents: Vec<Extent>,
    parts: Vec<(usize, Range<u32>)>,
    pinned: Pinned<D>,
    locked: Locked<D>,
}

impl<D: Disk> Writing<D> {
    /// Returns the memory, in the order of the extents. Before it is filled it contains anything,
    /// also bytes of other files: a peer must not be able to read it.
    pub fn list(&self) -> &MemList {
        &self.list
    }

    /// The memory was filled: from now on it is what the file contains. When this returns, the
    /// bytes survive the end of the process, or are on the disk ([`Settings::write_through`]).
    ///
    /// # Errors
    /// `Disk`, if the bytes must be on the disk and are not. They stay in the cache, dirty.
    pub async fn commit(mut self) -> Result<(), CacheError<D::Error>> {
        let parts = std::mem::take(&mut self.parts);
        let (inner, file) = (self.locked.inner.clone(), self.locked.file);
        let (write, through) = inner.with(|state| {
            state.writes += 1;
            let (mut fits, mut bytes) = (true, 0);
            for (id, spans) in by_unit(&parts) {
                bytes += spans.bytes();
                fits &= state.written(id, &spans);
            }
            state.count_written(file, bytes);
            state.used(file, &self.pinned.units, false);
            let own = state.file(file);
            let through = own.hints.write_through || own.failed.is_some();
            (state.writes, through || !fits || state.settings.write_through)
        });
        if !through {
            return Ok(());
        }
        let extents = std::mem::take(&mut self.extents);
        inner.flush(file, write).await.map_err(|error| CacheError::Disk { error, extents })
    }
}

impl<D: Disk> Drop for Writing<D> {
    fn drop(&mut self) {
        let parts = std::mem::take(&mut self.parts);
        if !parts.is_empty() {
            self.locked.inner.with(|state| by_unit(&parts).for_each(|(id, spans)| state.spoilt(id, spans)));
        }
    }
}

/// A file that nobody else uses from some offset on ([`Cache::hold`]).
pub struct Hold<D: Disk> {
    locked: Locked<D>,
    from: u64,
}

impl<D: Disk> Hold<D> {
    /// Forgets all bytes from `from` on, dirty ones too: the file has been cut off there, or
    /// removed. `from` is not before the offset that is held. There may be any number of units, so
    /// this lets others run in between.
    pub async fn discard(&self, from: u64) {
        debug_assert!(from >= self.from, "others may use these bytes");
        let mut next = Some(from);
        while let Some(at) = next {
            if at > from {
                yield_now().await;
            }
            next = self.locked.inner.with(|state| state.discard(self.locked.file, from, at));
        }
    }
}

impl<D: Disk> Drop for Hold<D> {
    fn drop(&mut self) {
        self.locked.inner.with(|state| {
            state.hold(self.locked.file, false);
            state.changed(self.locked.file);
            state.memory_changed();
        });
    }
}

impl<D: Disk> Cache<D> {
    /// Creates a cache in `frames`. Takes over the dirty bytes that an earlier cache has left there
    /// ([`Cache::dirty_files`] tells of which files).
    pub fn new(disk: D, frames: Frames, settings: Settings) -> Cache<D> {
        let (arena, recovered) = Arena::adopt(frames);
        let blocks = (arena.max_blocks() / SHARE).max(2);
        let most = u64::from(blocks) * BLOCK as u64;
        let state = Mutex::new(State::new(arena, recovered, settings));
        Cache(Arc::new(Inner { disk, state, most }))
    }

    /// Returns the disk.
    pub fn disk(&self) -> &D {
        &self.0.disk
    }

    /// Returns the most bytes of units that one operation may touch.
    pub fn most(&self) -> u64 {
        self.0.most
    }

    fn check(&self, file: u64, extents: &[Extent]) -> Result<(), CacheError<D::Error>> {
        let unit = u64::from(self.0.with(|state| state.unit_of(file)));
        let units = |extent: &Extent| (extent.end().div_ceil(unit) - extent.offset / unit) * unit;
        let bytes = extents.iter().map(units).sum();
        let most = self.0.most;
        if bytes > most { Err(CacheError::TooLong { bytes, most }) } else { Ok(()) }
    }

    /// Lends the bytes of `extents` for reading. Reads from the disk what is not in the cache.
    ///
    /// # Errors
    /// `Disk`, `TooLong`, `Abandoned`.
    pub async fn read(&self, file: u64, extents: &[Extent]) -> Result<Reading<D>, CacheError<D::Error>> {
        self.read_in_turn(file, extents, async || Ok(())).await
    }

    /// As [`Cache::read`]. If the disk is needed, waits for `turn` before each transfer, and keeps
    /// its result until the transfer has ended. While it waits, others who need the same bytes wait
    /// too, so `turn` must not wait for an operation of this cache.
    ///
    /// # Errors
    /// As [`Cache::read`]; an error of `turn` counts as the disk's.
    pub async fn read_in_turn<G>(
        &self,
        file: u64,
        extents: &[Extent],
        turn: impl AsyncFn() -> Result<G, D::Error>,
    ) -> Result<Reading<D>, CacheError<D::Error>> {
        let whole = joined(extents);
        self.check(file, &whole)?;
        let locked = self.0.lock_ranges(file, whole.clone(), false).await;
        let failed = |error| CacheError::Disk { error, extents: whole.clone() };
        let pinned = self.0.pin(file, &whole).await.map_err(failed)?;
        let parts = self.0.with(|state| {
            let unit = state.file(file).unit;
            let parts = whole.iter().flat_map(|extent| extent.parts(unit));
            let parts: Vec<(usize, Range<u32>)> = parts.map(|(at, range)| (state.index[&(file, at)], range)).collect();
            let has = |(id, range): &&(usize, Range<u32>)| state.units[*id].valid.contains(range);
            let hit = parts.iter().filter(has).map(|(_, range)| u64::from(range.end - range.start)).sum();
            state.count_read(file, &whole, hit);
            parts
        });
        self.0.fill(file, &parts, turn).await.map_err(|error| error.of(&whole))?;
        let list = self.0.with(|state| {
            state.used(file, &pinned.units, true);
            state.list(file, extents)
        });
        Ok(Reading { list, _pinned: pinned, _locked: locked })
    }

    /// Lends the bytes of `extents` if no disk is needed, and nothing must be waited for.
    pub fn read_cached(&self, file: u64, extents: &[Extent]) -> Option<Reading<D>> {
        use futures_util::FutureExt;

        let whole = joined(extents);
        let covered = self
            .0
            .with(|state| whole.iter().all(|extent| state.coverage(file, *extent, usize::MAX).0.cached == extent.len));
        if !covered {
            return None;
        }
        self.read(file, extents).now_or_never()?.ok()
    }

    /// Lends the memory of `extents` for writing, once nobody else uses these bytes.
    ///
    /// # Errors
    /// `Overlapping`, `TooLong`; `Disk` if older dirty bytes must be written first and cannot be,
    /// or parts of units must be read.
    pub async fn write(&self, file: u64, extents: &[Extent]) -> Result<Writing<D>, CacheError<D::Error>> {
        let whole = joined(extents);
        if whole.iter().map(|extent| extent.len).sum::<u64>() != extents.iter().map(|extent| extent.len).sum::<u64>() {
            return Err(CacheError::Overlapping);
        }
        self.check(file, &whole)?;
        let locked = self.0.lock_ranges(file, whole.clone(), true).await;
        let failed = |error| CacheError::Disk { error, extents: whole.clone() };
        let bytes = whole.iter().map(|extent| extent.len).sum();
        while self.0.with(|state| state.is_too_dirty(bytes)) {
            if !self.0.flush_oldest().await.map_err(failed)? {
                self.0.until_flushable(bytes).await;
            }
        }
        let pinned = self.0.pin(file, &whole).await.map_err(failed)?;
        let parts = self.0.with(|state| {
            let unit = state.file(file).unit;
            let parts = whole.iter().flat_map(|extent| extent.parts(unit));
            parts.map(|(at, range)| (state.index[&(file, at)], range)).collect::<Vec<_>>()
        });
        // Units whose dirty bytes would be in too many places are filled first.
        let scattered = self.0.with(|state| state.scattered(&parts));
        if !scattered.is_empty() {
            self.0.fill(file, &scattered, async || Ok(())).await.map_err(|error| error.of(&whole))?;
        }
        if !mutated("cache/write-during-a-fill") {
            // No fill that begins from now on has bytes that this operation has locked.
            let mut rest = &parts[..];
            let ended = self.0.until(file, |state| {
                while let [(id, _), others @ ..] = rest {
                    steps(1);
                    if state.units[*id].filling {
                        return None;
                    }
                    rest = others;
                }
                Some(())
            });
            ended.await;
        }
        let list = self.0.with(|state| state.list(file, extents));
        Ok(Writing { list, extents: extents.to_vec(), parts, pinned, locked })
    }

    /// Writes all dirty bytes of a file to the disk. The caller then syncs the file.
    ///
    /// # Errors
    /// That of the disk. The bytes stay dirty.
    pub async fn flush(&self, file: u64) -> Result<(), D::Error> {
        let write = self.0.with(|state| state.writes);
        self.0.flush(file, write).await
    }

    /// Returns those of some files that have dirty bytes.
    pub fn dirty_files(&self, files: impl RangeBounds<u64>) -> Vec<u64> {
        self.0.with(|state| state.dirty_files(files))
    }

    /// Returns true if [`Cache::know`] was called for a file of which something is still in the
    /// cache, and which was not discarded as a whole since.
    pub fn is_known(&self, file: u64) -> bool {
        self.0.with(|state| state.files.get(&file).is_some_and(|file| file.known))
    }

    /// Notes that a file exists. Call it while an operation on the file is in progress.
    pub fn know(&self, file: u64) {
        self.0.with(|state| {
            if let Some(file) = state.files.get_mut(&file) {
                file.known = true;
            }
        });
    }

    /// Returns the end of the last dirty byte of a file, 0 if none is. The file is at least that
    /// long, whatever the disk says.
    pub fn dirty_end(&self, file: u64) -> u64 {
        self.0.with(|state| state.dirty_end(file))
    }

    /// Waits until nobody uses the bytes of a file from `from` on, and keeps it so. Their dirty
    /// bytes are written to the disk first, as far as that succeeds.
    pub async fn hold(&self, file: u64, from: u64) -> Hold<D> {
        let locked = self.0.lock_ranges(file, vec![Extent::new(from, u64::MAX - from)], true).await;
        // What it cannot write stays dirty, unless the caller discards it.
        let _ = self.flush(file).await;
        let hold = Hold { locked, from };
        self.0
            .until(file, |state| {
                state.hold(file, true);
                (!state.is_moving(file, from)).then_some(())
            })
            .await;
        hold
    }

    /// As [`Cache::hold`] for the whole file, without writing anything: it is about to be removed.
    pub async fn hold_all(&self, file: u64) -> Hold<D> {
        let locked = self.0.lock_ranges(file, vec![Extent::new(0, u64::MAX)], true).await;
        let hold = Hold { locked, from: 0 };
        self.0
            .until(file, |state| {
                state.hold(file, true);
                (!state.is_moving(file, 0)).then_some(())
            })
            .await;
        hold
    }

    /// Tells how a file will be used, in place of what was told before. What makes no sense is
    /// ignored and counted; then returns false. A cache remembers the hints of the 16,384 files for
    /// which hints were given last.
    pub fn advise(&self, file: u64, hints: Hints) -> bool {
        self.0.with(|state| state.advise(file, hints))
    }

    /// Counts hints that made no sense to the caller.
    pub fn ignored_hints(&self, count: u64) {
        self.0.with(|state| state.counters.ignored_hints += count);
    }

    /// Returns how much of a range is in the cache.
    pub fn coverage(&self, file: u64, extent: Extent) -> Coverage {
        self.coverage_part(file, extent, usize::MAX).0
    }

    /// Returns how much of a range is in the cache. Looks at `most` units at most; if more are in
    /// the cache, also returns the offset to go on from.
    pub fn coverage_part(&self, file: u64, extent: Extent, most: usize) -> (Coverage, Option<u64>) {
        self.0.with(|state| state.coverage(file, extent, most))
    }

    /// Returns the busiest files of which something is in the cache, at most `most` of them. Looks
    /// at the first `look` files behind `after`, in the order of their numbers.
    pub fn busiest(&self, after: Option<u64>, look: usize, most: usize) -> Busiest {
        self.0.with(|state| state.busiest(after, look, most))
    }

    /// Returns the state of the cache.
    pub fn statistics(&self) -> Statistics {
        self.0.with(|state| state.statistics())
    }

    /// Returns true if an operation waits for another one that uses the same bytes.
    pub fn any_waits(&self) -> bool {
        self.0.with(|state| state.files.values().inspect(|_| steps(1)).any(|file| file.locks.any_waits()))
    }

    /// Returns the state of a file.
    pub fn file_statistics(&self, file: u64) -> Option<FileStatistics> {
        self.0.with(|state| state.file_statistics(file))
    }

    /// Registers the chunks that are Ready with an adapter, and forgets those that are Ready no
    /// longer. Cheap if nothing has changed. Call it on the thread of the adapter, before memory of
    /// the cache is used with it.
    pub fn register<E: std::fmt::Display>(
        &self,
        regions: &mut ReadyRegions,
        register: impl FnMut(&Memory) -> Result<MemoryRegion, E>,
    ) {
        let version = self.0.with(|state| state.readiness.version());
        regions.update(version, || self.0.with(|state| state.ready_chunks()), register);
    }
}
