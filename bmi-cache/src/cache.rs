//! The operations of a cache.

use std::future::poll_fn;
use std::ops::{Range, RangeBounds};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use bmi_core::{MemList, Memory, MemoryRegion, mutated};

use crate::ahead::Ahead;
use crate::arena::{Arena, BLOCK, Frames};
use crate::disk::{CacheError, Disk};
use crate::extent::{Extent, by_unit, joined};
use crate::query::{Busiest, Coverage, FileStatistics, Statistics};
use crate::range_locks::Progress;
use crate::ready::ReadyRegions;
use crate::settings::{Hints, Settings};
use crate::state::{Batch, Short, State, Which};
use crate::steps::steps;

/// The part of the cache that one operation may use. At least two blocks are: the bytes of a short
/// operation may be in two of them.
const SHARE: u32 = 8;

/// Lets other tasks run once.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// A cache of the files of a disk. A clone is another handle to the same cache, also for another
/// event loop.
pub struct Cache<D: Disk>(pub(crate) Arc<Inner<D>>);

impl<D: Disk> Clone for Cache<D> {
    fn clone(&self) -> Cache<D> {
        Cache(self.0.clone())
    }
}

pub(crate) struct Inner<D: Disk> {
    pub(crate) disk: D,
    state: Mutex<State<D::Error>>,
    most: u64,
}

/// A range lock, and what ends it.
struct Locked<D: Disk> {
    inner: Arc<Inner<D>>,
    file: u64,
    id: u64,
}

impl<D: Disk> Drop for Locked<D> {
    fn drop(&mut self) {
        self.inner.with(|state| {
            if state.file(self.file).locks.end(self.id) {
                state.changed(self.file);
            }
            state.settle(self.file);
        });
    }
}

/// Units that an operation uses.
struct Pinned<D: Disk> {
    inner: Arc<Inner<D>>,
    units: Vec<usize>,
}

impl<D: Disk> Drop for Pinned<D> {
    fn drop(&mut self) {
        self.inner.with(|state| state.unpin(&self.units));
    }
}

/// A place in the queue for memory.
struct Queued<'a, D: Disk> {
    inner: &'a Inner<D>,
    ticket: u64,
}

impl<D: Disk> Drop for Queued<'_, D> {
    fn drop(&mut self) {
        self.inner.with(|state| state.leave_queue(self.ticket));
    }
}

/// Units that are being filled.
struct Filling<'a, D: Disk> {
    inner: &'a Inner<D>,
    file: u64,
    todo: Vec<(usize, Range<u32>)>,
    ended: bool,
}

impl<D: Disk> Filling<'_, D> {
    fn end(mut self, filled: bool) {
        self.ended = true;
        self.inner.with(|state| state.end_fill(self.file, &self.todo, filled));
    }
}

impl<D: Disk> Drop for Filling<'_, D> {
    fn drop(&mut self) {
        if !self.ended {
            self.inner.with(|state| {
                self.todo.iter().for_each(|(id, _)| state.units[*id].broken = true);
                state.end_fill(self.file, &self.todo, false);
            });
        }
    }
}

/// A batch that is being written to the disk.
pub(crate) struct Flushing<'a, D: Disk> {
    inner: &'a Inner<D>,
    batch: Option<Batch>,
}

impl<D: Disk> Flushing<'_, D> {
    /// Writes the batch.
    pub(crate) async fn write(mut self) -> Result<(), D::Error> {
        let Some(batch) = &self.batch else { return Ok(()) };
        let result = self.inner.disk.write(batch.file, &batch.extents, &batch.list).await;
        if let Some(batch) = self.batch.take() {
            self.inner.with(|state| state.end_flush(&batch, Some(&result)));
        }
        result
    }
}

impl<D: Disk> Drop for Flushing<'_, D> {
    fn drop(&mut self) {
        // Its end is not known: it is written again.
        if let Some(batch) = self.batch.take() {
            self.inner.with(|state| state.end_flush(&batch, None));
        }
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

impl<D: Disk> Inner<D> {
    /// Calls `f` with the state. Wakes whoever waited for a change that it made.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut State<D::Error>) -> R) -> R {
        let (result, wake) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let result = f(&mut state);
            (result, std::mem::take(&mut state.wake))
        };
        wake.into_iter().for_each(std::task::Waker::wake);
        result
    }

    /// Waits until `f` returns something. It is asked again when the file changes.
    async fn until<R>(&self, file: u64, mut f: impl FnMut(&mut State<D::Error>) -> Option<R>) -> R {
        poll_fn(|context| {
            self.with(|state| match f(state) {
                Some(result) => Poll::Ready(result),
                None => {
                    state.wait_for_file(file, context.waker());
                    Poll::Pending
                }
            })
        })
        .await
    }

    async fn lock_ranges(self: &Arc<Self>, file: u64, extents: Vec<Extent>, exclusive: bool) -> Locked<D> {
        let id = self.with(|state| state.file(file).locks.make(extents, exclusive));
        let locked = Locked { inner: self.clone(), file, id };
        poll_fn(|context| {
            self.with(|state| match state.file(file).locks.advance(id) {
                Progress::Granted => Poll::Ready(()),
                Progress::Waits => {
                    state.wait_for_file(file, context.waker());
                    Poll::Pending
                }
                Progress::Goes => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
            })
        })
        .await;
        locked
    }

    /// Gets all units of `extents`, which are sorted and joined. Waits for memory if it must, in
    /// turn.
    async fn pin(self: &Arc<Self>, file: u64, extents: &[Extent]) -> Result<Pinned<D>, D::Error> {
        let mut queued: Option<Queued<'_, D>> = None;
        loop {
            let ticket = queued.as_ref().map(|queued| queued.ticket);
            let pinned = poll_fn(|context| {
                self.with(|state| match state.pin(file, extents, ticket) {
                    Err(Short::Wait) if ticket.is_some() => {
                        state.wait_for_memory(context.waker());
                        Poll::Pending
                    }
                    Err(Short::Again) if ticket.is_some() => {
                        context.waker().wake_by_ref();
                        Poll::Pending
                    }
                    pinned => Poll::Ready(pinned),
                })
            });
            match pinned.await {
                Ok(units) => return Ok(Pinned { inner: self.clone(), units }),
                Err(_) if queued.is_none() => {
                    queued = Some(Queued { inner: self, ticket: self.with(State::queue_up) });
                }
                Err(_) => drop(self.flush_oldest().await?),
            }
        }
    }

    /// Reads from the disk what `parts` lack. Each is a unit and the bytes that are needed. Calls
    /// `turn` before each transfer, and keeps its result until the end of the transfer.
    async fn fill<G>(
        &self,
        file: u64,
        parts: &[(usize, Range<u32>)],
        turn: impl AsyncFn() -> Result<G, D::Error>,
    ) -> Result<(), CacheError<D::Error>> {
        loop {
            let (todo, others) = self.with(|state| state.begin_fill(file, parts));
            if todo.is_empty() && !others {
                return Ok(());
            }
            if !todo.is_empty() {
                self.fill_from_disk(file, todo, &turn).await?;
                continue;
            }
            // The next round meets what is filled from now on.
            let mut rest = parts;
            let ended = self.until(file, |state| {
                while let [(id, _), others @ ..] = rest {
                    steps(1);
                    let unit = &state.units[*id];
                    if unit.broken || unit.filling {
                        return unit.broken.then_some(false);
                    }
                    rest = others;
                }
                Some(true)
            });
            if !ended.await {
                return Err(CacheError::Abandoned);
            }
        }
    }

    async fn fill_from_disk<G>(
        &self,
        file: u64,
        todo: Vec<(usize, Range<u32>)>,
        turn: &impl AsyncFn() -> Result<G, D::Error>,
    ) -> Result<(), CacheError<D::Error>> {
        let filling = Filling { inner: self, file, todo, ended: false };
        let (extents, list, broken) = self.with(|state| {
            let (mut extents, mut pieces) = (Vec::<Extent>::new(), Vec::new());
            for (id, range) in &filling.todo {
                let (offset, len) = (state.units[*id].at + u64::from(range.start), u64::from(range.end - range.start));
                match extents.last_mut() {
                    Some(last) if last.end() == offset => last.len += len,
                    _ => extents.push(Extent::new(offset, len)),
                }
                pieces.push(state.slice(*id, range));
            }
            let broken = filling.todo.iter().any(|(id, _)| state.units[*id].broken);
            (extents, pieces.into_iter().collect::<MemList>(), broken)
        });
        if broken {
            filling.end(false);
            return Err(CacheError::Abandoned);
        }
        let turn = match turn().await {
            Ok(turn) => turn,
            Err(error) => {
                filling.end(false);
                return Err(CacheError::Disk { error, extents });
            }
        };
        let result = self.disk.read(file, &extents, &list).await;
        drop(turn);
        filling.end(result.is_ok() || mutated("cache/failed-read-is-valid"));
        self.with(|state| state.counters.filled += list.len() as u64);
        result.map_err(|error| CacheError::Disk { error, extents })
    }

    /// Takes charge of units that [`State::begin_flush`] has chosen. If the result is dropped, they
    /// are dirty again.
    pub(crate) fn flushing(&self, batch: Batch) -> Flushing<'_, D> {
        Flushing { inner: self, batch: Some(batch) }
    }

    /// Writes the oldest dirty units to the disk. Returns false if there are none that nobody
    /// writes. A file that cannot be written is no reason to fail as long as another one can.
    async fn flush_oldest(&self) -> Result<bool, D::Error> {
        while let Some(batch) = self.with(|state| state.begin_flush(Which::Oldest)) {
            match self.flushing(batch).write().await {
                Err(error) if !self.with(|state| state.any_flushable()) => return Err(error),
                Err(_) => {}
                Ok(()) => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Writes the dirty bytes of a file to the disk, as far as they were written by the write
    /// `write` or before.
    async fn flush(&self, file: u64, write: u64) -> Result<(), D::Error> {
        let mut from = 0;
        loop {
            let which = Which::Of(file, write, from);
            if from > 0 && self.with(|state| state.is_flushable(which)) {
                // The disk may have written the batch before at once.
                yield_now().await;
            }
            if let Some(batch) = self.with(|state| state.begin_flush(which)) {
                // What is written again behind it does not keep it from going on.
                from = batch.end();
                self.flushing(batch).write().await?;
                continue;
            }
            let done = self.until(file, |state| {
                if !state.is_unflushed(file, write) {
                    return Some(true);
                }
                state.is_flushable(Which::Of(file, write, 0)).then_some(false)
            });
            if done.await {
                return Ok(());
            }
        }
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

impl<D: Disk> Inner<D> {
    /// Waits until dirty bytes may be written to the disk, or `more` of them are not too many.
    async fn until_flushable(&self, more: u64) {
        poll_fn(|context| {
            self.with(|state| {
                if !state.is_too_dirty(more) || state.is_flushable(Which::Oldest) {
                    return Poll::Ready(());
                }
                state.wait_for_memory(context.waker());
                Poll::Pending
            })
        })
        .await;
    }

    /// Reads something ahead, up to the end of the file, if there is memory for it that nobody
    /// misses.
    pub(crate) async fn read_ahead(self: &Arc<Self>, Ahead { file, mut extents }: Ahead) {
        // What is written behind the end and not on the disk yet is in the cache.
        let Ok(end) = self.disk.end(file).await else { return };
        extents.iter_mut().for_each(|extent| extent.len = extent.len.min(end.saturating_sub(extent.offset)));
        let units = self.with(|state| state.pin_ahead(file, &extents));
        if units.is_empty() {
            return;
        }
        let pinned = Pinned { inner: self.clone(), units };
        let whole = |id: &usize| self.with(|state| (*id, 0..state.units[*id].size()));
        let parts: Vec<_> = pinned.units.iter().map(whole).collect();
        let (todo, _) = self.with(|state| state.begin_fill(file, &parts));
        if !todo.is_empty() {
            // Whoever needs the bytes reads them again, and learns of the error.
            let _ = self.fill_from_disk(file, todo, &async || Ok(())).await;
        }
    }
}
