//! A store whose cache is also the memory of the transport: *Unifier*.
//!
//! **Why.** Data that is read or written through a store of files is copied between the system's
//! page cache and the server's buffers, and is in memory twice. Here one copy serves the disk, the
//! cache and the adapter ([`bmi_cache`]). The store behind it uses direct I/O.
//!
//! **What is where.** Everything but bytes belongs to the store behind: which datafiles exist,
//! their marks, their lengths on the disk. The cache has bytes that were read or written. So an
//! operation first asks the store whether the datafile is refused, and a write to a datafile of
//! which nothing is cached asks whether it exists.
//!
//! **Durability.** As with the page cache: an acknowledged write survives the end of the process,
//! because the next one takes the cache over ([`bmi_cache::Frames`]). A sync writes the dirty bytes
//! of a datafile and syncs it. Bytes that cannot be written stay dirty; the next sync fails, and
//! until one succeeds, writes to that datafile are acknowledged only when they are on the disk.
//!
//! **Views** (`views.rs`) show bytes of the cache to clients on this host. Whoever changes bytes
//! first locks their range, and then withdraws what is lent of it.
//!
//! **Invariants**
//! 1. An operation holds range locks of one datafile at a time. Only [`DataStore::remove`] holds
//!    several: it takes them in the order of the handles, and nobody who holds one waits for
//!    another.
//! 2. Nobody waits for a turn at the disk while others wait for bytes that it has locked for
//!    writing, and nobody waits for a range lock during a turn.
//!
//! **Source.** [Unifier-PVFS §4.1, §4.4.2].

mod exchange;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use bmi::hooks::mutated;
use bmi::memory::MemoryRegion;
use bmi::{Error, MemList, Memory, Time};
use bmi_cache::{Cache, Extent, Frames, Reading, ReadyRegions, Settings, yield_now};
use fs_proto::{
    Allocation, CacheCoverage, CacheHints, CacheStat, CachedFile, DatafileHandle, ErrorCode, FsError, IodStat, Region,
    ServiceKind, Sought, VIEW_GRANULE, ViewRange, ViewRefusal,
};

use self::exchange::{Arriving, Behind, extents, fault};
use super::queries;
use super::views::{SharedRange, ViewSettings, Views};
use crate::lock::lock;
use crate::store::label::Label;
use crate::store::transfer::{Rest, copy, cut};
use crate::store::{DataStore, DiskTurn, Held, Lends, Loan, Receipt, Scrubbed, StoreHandle, SumsStat, remainder};

/// Most units of the cache that one question about a region looks at, in some 0.1 ms.
const LOOK: usize = 4096;

/// How often a range is prepared for a view that others change meanwhile.
const SHARE_ATTEMPTS: usize = 3;
/// Granules that are copied before others have a turn, in some 0.2 ms.
const SHARE_AT_ONCE: u64 = 16;

/// Takes no turn.
struct AtOnce;

#[async_trait(?Send)]
impl DiskTurn for AtOnce {
    async fn take(&self) -> Result<Box<dyn Any>, FsError> {
        Ok(Box::new(()))
    }
}

/// A store with a cache of its own in front of another store. `C` returns the time in nanoseconds
/// since 1970, 0 without a clock.
pub struct UnifiedStore<S: StoreHandle, C> {
    cache: Cache<Behind<S>>,
    clock: C,
    /// When datafiles with dirty bytes were last written.
    changed: Mutex<BTreeMap<DatafileHandle, u64>>,
    views: Views,
}

impl<S: StoreHandle, C: Fn() -> u64> UnifiedStore<S, C> {
    /// Puts a cache in front of `store`. What an earlier process has left in `frames` is in it.
    pub fn new(store: S, frames: Frames, settings: Settings, clock: C) -> UnifiedStore<S, C> {
        let cache = Cache::new(Behind(store), frames, settings);
        UnifiedStore { cache, clock, changed: Mutex::default(), views: Views::new(ViewSettings::for_bytes(0)) }
    }

    /// Lends views to clients on this host, within `settings`.
    #[must_use]
    pub fn with_views(mut self, settings: ViewSettings) -> UnifiedStore<S, C> {
        self.views = Views::new(settings);
        self
    }

    /// Returns the store behind the cache.
    pub fn behind(&self) -> &S::Target {
        &self.cache.disk().0
    }

    /// Forgets dirty bytes of datafiles that do not exist any more. Call it once, before the store
    /// is used: the bytes may be those of an earlier process.
    ///
    /// # Errors
    /// `Io` if the disk cannot tell.
    pub async fn reconcile(&self) -> Result<(), FsError> {
        for file in self.cache.dirty_files(..) {
            match self.behind().held(DatafileHandle(file)).await {
                Err(lost) if lost.code == ErrorCode::Lost => {
                    tracing::warn!(datafile = %DatafileHandle(file), %lost, "its cached bytes are dropped");
                    self.cache.hold_all(file).await.discard(0).await;
                }
                // It is marked, and exists.
                Ok(_) | Err(FsError { code: ErrorCode::Busy, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all dirty bytes to the disk. Does not sync.
    ///
    /// # Errors
    /// That of the first datafile that could not be written. The others were.
    pub async fn flush_all(&self) -> Result<(), FsError> {
        let mut result = Ok(());
        for file in self.cache.dirty_files(..) {
            result = result.and(self.cache.flush(file).await);
        }
        result
    }

    /// Returns the cache's state.
    pub fn statistics(&self) -> bmi_cache::Statistics {
        self.cache.statistics()
    }

    fn check(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        self.behind().refusal(datafile).map_or(Ok(()), Err)
    }

    /// Checks that a datafile may be written. Call it when its bytes are locked: a removal locks
    /// all of them.
    async fn check_write(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        self.check(datafile)?;
        if !self.cache.is_known(datafile.0) {
            self.behind().held(datafile).await?;
            self.cache.know(datafile.0);
        }
        Ok(())
    }

    fn note_change(&self, datafile: DatafileHandle) {
        let now = (self.clock)();
        lock(&self.changed).insert(datafile, now);
    }

    /// Cuts regions into parts that the cache takes at once.
    fn parts(&self, regions: &[Region]) -> Vec<Vec<Region>> {
        cut(regions, self.cache.most())
    }

    async fn read_part(
        &self,
        datafile: DatafileHandle,
        regions: &[Region],
        turn: &dyn DiskTurn,
    ) -> Result<Reading<Behind<S>>, FsError> {
        let reading = self.cache.read_in_turn(datafile.0, &extents(regions), async || turn.take().await).await;
        let reading = reading.map_err(|error| fault(error, regions))?;
        // It may have been marked meanwhile.
        self.check(datafile).map_err(|error| error.with_ranges(regions.iter().copied()))?;
        Ok(reading)
    }
}

#[async_trait(?Send)]
impl<S: StoreHandle, C: Fn() -> u64> DataStore for UnifiedStore<S, C> {
    fn label(&self) -> Option<Label> {
        self.behind().label()
    }

    async fn relabel(&self, label: &Label) -> Result<(), FsError> {
        self.behind().relabel(label).await
    }

    fn places(&self) -> usize {
        self.behind().places()
    }

    async fn create(&self, first: DatafileHandle, count: u32) -> Result<(), FsError> {
        self.behind().create(first, count).await
    }

    /// Leaves datafiles alone that are empty on the disk only.
    async fn discard(&self, first: DatafileHandle, count: u32) -> Result<(), FsError> {
        let end = first.0.saturating_add(count.into());
        let mut from = first.0;
        for file in self.cache.dirty_files(first.0..end).into_iter().chain([end]) {
            if from < file {
                self.behind().discard(DatafileHandle(from), (file - from) as u32).await?;
            }
            from = file + 1;
        }
        Ok(())
    }

    async fn remove(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError> {
        let mut sorted = datafiles.to_vec();
        sorted.sort();
        sorted.dedup();
        let mut holds = Vec::with_capacity(sorted.len());
        for datafile in &sorted {
            holds.push(self.cache.hold_all(datafile.0).await);
            self.views.forget(*datafile);
        }
        let result = self.behind().remove(datafiles).await;
        for (datafile, hold) in sorted.iter().zip(&holds) {
            let is_gone = match &result {
                Ok(()) => true,
                Err(_) => {
                    matches!(self.behind().held(*datafile).await, Err(FsError { code: ErrorCode::Lost, .. }))
                }
            };
            if is_gone {
                hold.discard(0).await;
                lock(&self.changed).remove(datafile);
            }
        }
        result
    }

    async fn list(&self, after: Option<DatafileHandle>, max: usize) -> Result<(Vec<DatafileHandle>, bool), FsError> {
        self.behind().list(after, max).await
    }

    async fn write(&self, datafile: DatafileHandle, regions: &[Region], from: &MemList) -> Result<(), FsError> {
        let (mut done, mut rest) = (0, Rest::of(from));
        let failed = |error: FsError, done| error.with_ranges(remainder(regions, done));
        for (step, part) in self.parts(regions).into_iter().enumerate() {
            // There may be as many parts as regions, and the cache may have all of them at once.
            if step > 0 {
                yield_now().await;
            }
            let len = part.iter().map(|region| region.len).sum::<u64>();
            let writing = self.cache.write(datafile.0, &extents(&part)).await;
            let writing = writing.map_err(|error| failed(fault(error, &part), done))?;
            self.views.withdraw(datafile, &part);
            self.check_write(datafile).await.map_err(|error| failed(error, done))?;
            if mutated("cache/every-part-the-first") {
                rest = Rest::of(from);
            }
            copy(&rest.take(len as usize).into_iter().collect(), writing.list());
            self.note_change(datafile);
            writing.commit().await.map_err(|error| failed(fault(error, &part), done))?;
            done += len;
        }
        Ok(())
    }

    async fn read(&self, datafile: DatafileHandle, regions: &[Region], into: &MemList) -> Result<(), FsError> {
        let (mut done, mut rest) = (0, Rest::of(into));
        let failed = |error: FsError, done| error.with_ranges(remainder(regions, done));
        self.check(datafile).map_err(|error| failed(error, 0))?;
        for (step, part) in self.parts(regions).into_iter().enumerate() {
            if step > 0 {
                yield_now().await;
            }
            let len = part.iter().map(|region| region.len).sum::<u64>();
            let reading = self.read_part(datafile, &part, &AtOnce).await.map_err(|error| failed(error, done))?;
            copy(reading.list(), &rest.take(len as usize).into_iter().collect());
            done += len;
        }
        Ok(())
    }

    fn refusal(&self, datafile: DatafileHandle) -> Option<FsError> {
        self.behind().refusal(datafile)
    }

    fn lends(&self) -> Lends {
        Lends::Cache
    }

    async fn lend(
        &self,
        datafile: DatafileHandle,
        regions: &[Region],
        turn: &dyn DiskTurn,
    ) -> Result<Option<Loan>, FsError> {
        self.check(datafile).map_err(|error| error.with_ranges(regions.iter().copied()))?;
        if self.parts(regions).len() > 1 {
            return Ok(None);
        }
        let reading = self.read_part(datafile, regions, turn).await?;
        Ok(Some(Loan { list: reading.list().clone(), owner: Box::new(reading) }))
    }

    async fn receive(&self, datafile: DatafileHandle, regions: &[Region]) -> Result<Option<Box<dyn Receipt>>, FsError> {
        let failed = |error: FsError| error.with_ranges(regions.iter().copied());
        self.check(datafile).map_err(failed)?;
        if self.parts(regions).len() > 1 {
            return Ok(None);
        }
        let writing = self.cache.write(datafile.0, &extents(regions)).await;
        let writing = writing.map_err(|error| fault(error, regions))?;
        self.views.withdraw(datafile, regions);
        self.check_write(datafile).await.map_err(failed)?;
        self.note_change(datafile);
        Ok(Some(Box::new(Arriving { writing, regions: regions.to_vec() })))
    }

    async fn share(
        &self,
        datafile: DatafileHandle,
        range: ViewRange,
        now: Time,
        turn: &dyn DiskTurn,
    ) -> Result<Result<SharedRange, ViewRefusal>, FsError> {
        self.check(datafile)?;
        // A writer may take granules back while others are filled.
        for _ in 0..SHARE_ATTEMPTS {
            let missing = match self.views.missing(datafile, &range) {
                Ok(missing) => missing,
                Err(refusal) => return Ok(Err(refusal)),
            };
            let granules = (self.cache.most() / VIEW_GRANULE).clamp(1, SHARE_AT_ONCE) as usize;
            for (step, part) in missing.chunks(granules).enumerate() {
                if step > 0 {
                    yield_now().await;
                }
                let reading = self.read_part(datafile, part, turn).await?;
                let size = self.size(datafile).await?;
                if let Err(refusal) = self.views.fill(datafile, &range, part, reading.list(), size, now) {
                    return Ok(Err(refusal));
                }
            }
            let size = self.size(datafile).await?;
            if let Some((pages, lease)) = self.views.lend(datafile, &range, now) {
                return Ok(Ok(SharedRange { pages, size, lease }));
            }
        }
        Ok(Err(ViewRefusal::Changing))
    }

    fn register(&self, regions: &mut ReadyRegions, register: &mut dyn FnMut(&Memory) -> Result<MemoryRegion, Error>) {
        self.cache.register(regions, register);
    }

    fn any_waits(&self) -> bool {
        self.cache.any_waits()
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::Unifier
    }

    fn advise(&self, datafile: DatafileHandle, hints: CacheHints) {
        let (hints, strange) = queries::known(hints);
        self.cache.ignored_hints(strange);
        self.cache.advise(datafile.0, hints);
    }

    fn cache_stat(&self) -> Option<CacheStat> {
        Some(queries::stat(&self.cache.statistics()))
    }

    async fn scrub(&self, datafile: DatafileHandle, from: u64, most: u64) -> Result<Scrubbed, FsError> {
        self.behind().scrub(datafile, from, most).await
    }

    fn sums_stat(&self) -> Option<SumsStat> {
        self.behind().sums_stat()
    }

    fn busiest(
        &self,
        after: Option<DatafileHandle>,
        look: usize,
        most: usize,
    ) -> (Vec<CachedFile>, Option<DatafileHandle>) {
        queries::files(self.cache.busiest(after.map(|file| file.0), look, most))
    }

    fn coverage(&self, datafile: DatafileHandle, region: Region) -> Option<(CacheCoverage, Option<u64>)> {
        let (coverage, next) = self.cache.coverage_part(datafile.0, Extent::new(region.offset, region.len), LOOK);
        Some((queries::coverage(coverage), next))
    }

    async fn tend(&self, sleep: &dyn Fn(Duration) -> Pin<Box<dyn Future<Output = ()>>>) {
        futures_util::future::join(self.cache.run(sleep), self.behind().tend(sleep)).await;
    }

    async fn prepare_truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        // From then on the disk takes nothing of it. What cannot be written now is written later.
        let _ = self.cache.flush(datafile.0).await;
        self.behind().prepare_truncate(datafile, size).await
    }

    async fn truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        self.check(datafile)?;
        let hold = self.cache.hold(datafile.0, size).await;
        self.views.withdraw(datafile, &[Region::new(size, u64::MAX - size)]);
        self.behind().truncate(datafile, size).await?;
        hold.discard(size).await;
        Ok(())
    }

    async fn allocate(&self, datafile: DatafileHandle, range: Region, how: Allocation) -> Result<(), FsError> {
        self.check(datafile)?;
        if matches!(how, Allocation::Reserve { .. }) {
            return self.behind().allocate(datafile, range, how).await;
        }
        // What is cached behind the range is forgotten, too, so it must be on the disk. The hold
        // writes what comes meanwhile, and does not tell why it cannot.
        self.cache.flush(datafile.0).await?;
        let hold = self.cache.hold(datafile.0, range.offset).await;
        if self.cache.dirty_end(datafile.0) > range.offset {
            return Err(FsError::new(ErrorCode::Io, format!("the disk does not take the bytes of {datafile}")));
        }
        self.views.withdraw(datafile, &[range]);
        let result = self.behind().allocate(datafile, range, how).await;
        // Afterwards, and in any case: a unit may be filled meanwhile, and a part may be done.
        if !mutated("cache/hole-not-forgotten") {
            hold.discard(range.offset).await;
        }
        result
    }

    /// What is dirty is written first: the disk knows only its own holes.
    async fn seek(&self, datafile: DatafileHandle, offset: u64, what: Sought) -> Result<Option<u64>, FsError> {
        self.check(datafile)?;
        self.cache.flush(datafile.0).await?;
        self.behind().seek(datafile, offset, what).await
    }

    async fn commit_truncate(&self, datafile: DatafileHandle, cut: u64, size: u64) -> Result<(), FsError> {
        let is_prepared = || {
            let refusal = self.behind().refusal(datafile);
            refusal.is_some_and(|error| matches!(error.code, ErrorCode::Busy | ErrorCode::Unfinished))
        };
        if !is_prepared() {
            // It was carried out before. To hold the datafile would write all of it to the disk.
            return self.behind().commit_truncate(datafile, cut, size).await;
        }
        let hold = self.cache.hold(datafile.0, 0).await;
        // The change may be carried out, and the datafile written, while this waits.
        if !is_prepared() && !mutated("cache/repeated-commit-discards") {
            return self.behind().commit_truncate(datafile, cut, size).await;
        }
        self.views.withdraw(datafile, &[Region::new(0, u64::MAX)]);
        // First: if the process ended behind the next step, the next process would take these bytes
        // over. The change is decided, so nobody will miss them.
        hold.discard(if mutated("cache/commit-discards-what-is-kept") { 0 } else { cut }).await;
        let result = self.behind().commit_truncate(datafile, cut, size).await;
        if matches!(&result, Err(lost) if lost.code == ErrorCode::Lost) {
            hold.discard(0).await;
        }
        result
    }

    async fn cancel_truncates(&self, except: &[DatafileHandle]) -> Result<(), FsError> {
        self.behind().cancel_truncates(except).await
    }

    async fn failure(&self) -> FsError {
        self.behind().failure().await
    }

    async fn sync(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError> {
        let (mut flushed, mut result) = (Vec::with_capacity(datafiles.len()), Ok(()));
        for datafile in datafiles {
            let written = match self.check(*datafile) {
                Ok(()) if mutated("cache/synced-without-dirty-bytes") => Ok(()),
                Ok(()) => self.cache.flush(datafile.0).await,
                refused => refused,
            };
            match written {
                Ok(()) => flushed.push(*datafile),
                Err(_) if mutated("cache/failed-flush-not-told") => {}
                Err(error) => result = result.and(Err(error)),
            }
        }
        let synced = self.behind().sync(&flushed).await;
        result.and(synced)
    }

    async fn held(&self, datafile: DatafileHandle) -> Result<Held, FsError> {
        self.check(datafile)?;
        // First the cache: what reaches the disk in between counts there.
        let dirty = self.cache.dirty_end(datafile.0);
        let held = self.behind().held(datafile).await?;
        let mut changed = lock(&self.changed);
        let mtime_ns = held.mtime_ns.max(changed.get(&datafile).copied().unwrap_or(0));
        if dirty == 0 {
            changed.remove(&datafile);
        }
        Ok(Held { size: held.size.max(dirty), mtime_ns })
    }

    async fn size(&self, datafile: DatafileHandle) -> Result<u64, FsError> {
        self.check(datafile)?;
        let dirty = self.cache.dirty_end(datafile.0);
        Ok(self.behind().size(datafile).await?.max(dirty))
    }

    async fn stat(&self) -> Result<IodStat, FsError> {
        self.behind().stat().await
    }

    fn known_stat(&self) -> Option<IodStat> {
        self.behind().known_stat()
    }
}
