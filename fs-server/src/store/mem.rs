//! Stores datafiles in memory, with a disk's capacity and optionally its costs, for the simulator
//! and for tests.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use async_trait::async_trait;
use bmi::hooks::mutated;
use bmi::{MemList, Memory};
use fs_proto::{DatafileHandle, ErrorCode, FsError, IodStat, Region, ServiceKind};

use super::files::{Failure, Mark};
use super::transfer::Rest;
use super::{DataStore, DiskTurn, Fates, Held, Label, Lends, Loan, SECTOR, absent, cut_off, remainder};

/// The behaviour of a store's disk apart from holding bytes: taking time, and failing. A medium
/// without methods of its own takes no time and never fails.
///
/// A medium that has memory of its own in front of the disk, such as the system's page cache,
/// implements the methods with regions. For the others these are requests of so many bytes.
#[async_trait(?Send)]
pub trait Medium {
    /// Reads `bytes` from the disk.
    ///
    /// # Errors
    /// The error that a failure of the disk should produce, usually `Io`.
    async fn read(&self, bytes: u64) -> Result<(), FsError> {
        let _ = bytes;
        Ok(())
    }

    /// Writes `bytes` to the disk, or to its cache.
    ///
    /// # Errors
    /// As for `read`.
    async fn write(&self, bytes: u64) -> Result<(), FsError> {
        let _ = bytes;
        Ok(())
    }

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// As for `read`.
    async fn sync(&self) -> Result<(), FsError> {
        Ok(())
    }

    /// Reads regions of a datafile into somebody's memory.
    ///
    /// # Errors
    /// As for `read`.
    async fn read_regions(&self, datafile: DatafileHandle, regions: &[Region]) -> Result<(), FsError> {
        let _ = datafile;
        self.read(total(regions)).await
    }

    /// Writes regions of a datafile from somebody's memory.
    ///
    /// # Errors
    /// As for `read`.
    async fn write_regions(&self, datafile: DatafileHandle, regions: &[Region]) -> Result<(), FsError> {
        let _ = datafile;
        self.write(total(regions)).await
    }

    /// Reads what it lacks of the regions into its own memory, and copies nothing.
    ///
    /// # Errors
    /// As for `read`.
    async fn fetch(&self, datafile: DatafileHandle, regions: &[Region]) -> Result<(), FsError> {
        self.read_regions(datafile, regions).await
    }

    /// Returns true if it has all of the regions in its own memory.
    fn holds(&self, datafile: DatafileHandle, regions: &[Region]) -> bool {
        let _ = (datafile, regions);
        false
    }

    /// The datafile has no bytes from `size` on any more.
    fn forget(&self, datafile: DatafileHandle, size: u64) {
        let _ = (datafile, size);
    }

    /// Returns the time, in nanoseconds since 1970; 0 without a clock.
    fn wall_ns(&self) -> u64 {
        0
    }
}

/// A medium that takes no time and never fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct Free;

impl Medium for Free {}

fn total(regions: &[Region]) -> u64 {
    regions.iter().map(|region| region.len).sum()
}

/// Size of one allocation, in bytes. Bytes that were never written cost no memory.
const CHUNK: u64 = 64 << 10;

#[derive(Clone, Default)]
struct Datafile {
    size: u64,
    /// The length when it was last synced, or what is left of it since.
    synced: u64,
    mtime_ns: u64,
    chunks: BTreeMap<u64, Box<[u8]>>,
    /// The state of the disk before the changes since each sync began, by the number of the sync.
    /// Empty if everything is durable.
    before: BTreeMap<u64, Before>,
}

/// The contents of the disk where they differ from the current contents of a datafile.
#[derive(Clone)]
struct Before {
    size: u64,
    sectors: BTreeMap<u64, Box<[u8]>>,
}

/// Bytes of a sector.
const SECTOR64: u64 = SECTOR as u64;

impl Datafile {
    fn sector(&self, sector: u64) -> Box<[u8]> {
        let at = sector * SECTOR64;
        let (chunk, within) = (at / CHUNK, (at % CHUNK) as usize);
        let bytes = self.chunks.get(&chunk).map_or(&[0; SECTOR][..], |bytes| &bytes[within..within + SECTOR]);
        bytes.into()
    }

    /// Saves the state that is about to be changed: the length, and these bytes.
    fn keep(&mut self, sync: u64, bytes: std::ops::Range<u64>) {
        let (size, sectors) = (self.size, bytes.start / SECTOR64..bytes.end.div_ceil(SECTOR64));
        let known = self.before.entry(sync).or_insert_with(|| Before { size, sectors: BTreeMap::new() });
        let fresh: Vec<u64> = sectors.filter(|sector| !known.sectors.contains_key(sector)).collect();
        for sector in fresh {
            let old = self.sector(sector);
            self.before.entry(sync).and_modify(|before| {
                before.sectors.insert(sector, old);
            });
        }
    }

    /// Returns what is left after a power failure.
    fn after(mut self, fates: &mut dyn Fates) -> Datafile {
        let mut layers = std::mem::take(&mut self.before).into_values();
        let Some(mut disk) = layers.next() else { return self };
        for layer in layers {
            // The oldest copy is what the disk has.
            layer.sectors.into_iter().for_each(|(sector, old)| {
                disk.sectors.entry(sector).or_insert(old);
            });
        }
        if self.size != disk.size && !fates.keeps() {
            self.size = disk.size;
        }
        for (sector, old) in disk.sectors {
            let mut now = self.sector(sector);
            fates.sector(&old, &mut now);
            let at = sector * SECTOR64;
            let chunk = self.chunks.entry(at / CHUNK).or_insert_with(|| vec![0; CHUNK as usize].into());
            chunk[(at % CHUNK) as usize..][..SECTOR].copy_from_slice(&now);
        }
        // Bytes beyond the end are zeros, whatever the sectors contain.
        self.chunks.split_off(&self.size.div_ceil(CHUNK));
        if let Some(last) = self.chunks.get_mut(&(self.size / CHUNK)) {
            last[(self.size % CHUNK) as usize..].fill(0);
        }
        self
    }
}

/// The contents of a store: what a disk has when it is copied or moved.
#[derive(Clone, Default)]
pub struct Contents {
    label: Option<Label>,
    datafiles: BTreeMap<DatafileHandle, Datafile>,
    /// Datafiles that were removed, but not yet from the disk.
    buried: BTreeMap<DatafileHandle, Datafile>,
    /// Durable from the beginning.
    marks: BTreeMap<DatafileHandle, Mark>,
}

impl Contents {
    /// Adds `count` empty datafiles with consecutive handles.
    #[must_use]
    pub fn with_datafiles(mut self, first: DatafileHandle, count: u64) -> Contents {
        self.datafiles.extend((first.0..first.0 + count).map(|raw| (DatafileHandle(raw), Datafile::default())));
        self
    }

    /// Returns the label.
    pub fn label(&self) -> Option<Label> {
        self.label
    }

    fn used(&self) -> u64 {
        self.datafiles.values().map(|file| file.chunks.len() as u64).sum::<u64>() * CHUNK
    }
}

/// A store of datafiles in memory. A clone is the same store: it outlives the server that uses it,
/// as a disk does.
#[derive(Clone)]
pub struct MemStore(Rc<Inner>);

/// Returns why something cannot be done to a datafile.
type Fault = Box<dyn Fn(DatafileHandle) -> Option<FsError>>;

struct Inner {
    medium: Box<dyn Medium>,
    capacity: u64,
    used: Cell<u64>,
    contents: RefCell<Contents>,
    /// True if unsynced data can be lost.
    volatile: bool,
    /// True if bytes that are read are lent, as from files that are mapped.
    mapped: Cell<bool>,
    /// Number of syncs that began.
    syncs: Cell<u64>,
    /// The number of the disk.
    disk: Cell<u64>,
    /// Number of syncs of datafiles that fail although the medium works.
    failing: Cell<u32>,
    /// Why a prepared change of a datafile's length cannot be carried out.
    commit_fault: RefCell<Fault>,
    /// Why a datafile cannot be removed.
    removal_fault: RefCell<Fault>,
    /// Replaced when a server starts anew.
    failure: RefCell<Rc<Failure>>,
}

impl MemStore {
    /// Creates a store of `capacity` bytes, counted in chunks of 64 KiB, that takes no time.
    pub fn new(capacity: u64) -> MemStore {
        MemStore::on(Free, capacity)
    }

    /// Creates a store of `capacity` bytes on `medium`.
    pub fn on(medium: impl Medium + 'static, capacity: u64) -> MemStore {
        MemStore::made(Box::new(medium), capacity, false)
    }

    /// Creates a store whose disk has a cache: unsynced data is lost when the power fails
    /// ([`MemStore::power_fails`]). The store keeps the old contents of everything unsynced.
    pub fn cached(medium: impl Medium + 'static, capacity: u64) -> MemStore {
        MemStore::made(Box::new(medium), capacity, true)
    }

    fn made(medium: Box<dyn Medium>, capacity: u64, volatile: bool) -> MemStore {
        MemStore(Rc::new(Inner {
            medium,
            capacity,
            used: Cell::new(0),
            contents: RefCell::default(),
            volatile,
            mapped: Cell::new(false),
            syncs: Cell::new(0),
            disk: Cell::new(0),
            failing: Cell::new(0),
            commit_fault: RefCell::new(Box::new(|_| None)),
            removal_fault: RefCell::new(Box::new(|_| None)),
            failure: RefCell::default(),
        }))
    }

    /// Makes the store a model of a server that maps its files: *Mmap* of [Unifier-PVFS §3.1]. It
    /// lends the bytes of each read ([`DataStore::lend`]) in memory that no adapter has seen
    /// before, so each read registers it and ends that registration. Writes are copied. Unlike
    /// pages that are mapped, what is lent does not change when the datafile is written.
    #[must_use]
    pub fn mapped(self) -> MemStore {
        self.0.mapped.set(true);
        self
    }

    /// Makes the next `count` syncs of datafiles fail, as a bad place of a disk does. The rest of
    /// the disk works.
    pub fn fail_syncs(&self, count: u32) {
        self.0.failing.set(count);
    }

    /// From now on a prepared change of a datafile's length cannot be carried out if `fault`
    /// returns an error for the datafile.
    pub fn fail_commits(&self, fault: impl Fn(DatafileHandle) -> Option<FsError> + 'static) {
        *self.0.commit_fault.borrow_mut() = Box::new(fault);
    }

    /// From now on a datafile cannot be removed if `fault` returns an error for it.
    pub fn fail_removals(&self, fault: impl Fn(DatafileHandle) -> Option<FsError> + 'static) {
        *self.0.removal_fault.borrow_mut() = Box::new(fault);
    }

    /// Forgets that the store has failed. A server that starts anew calls this.
    pub fn open_again(&self) {
        self.0.failure.replace(Rc::default());
    }

    /// Fails the power. `fates` decides what is left of the unsynced data.
    pub fn power_fails(&self, fates: &mut dyn Fates) {
        let mut contents = self.0.contents.borrow_mut();
        let before = std::mem::take(&mut contents.datafiles);
        contents.datafiles = before.into_iter().map(|(name, file)| (name, file.after(fates))).collect();
        if mutated("store/prepared-truncate-lost-in-a-power-failure") {
            contents.marks.clear();
        }
        for (name, file) in std::mem::take(&mut contents.buried) {
            if !fates.keeps() {
                contents.datafiles.insert(name, file.after(fates));
            }
        }
        self.0.used.set(contents.used());
    }

    /// Sets the number of the disk ([`IodStat::disk`]).
    #[must_use]
    pub fn on_disk(self, number: u64) -> MemStore {
        self.0.disk.set(number);
        self
    }

    /// Returns a copy of the contents, as a copy of the disk has them.
    pub fn copy(&self) -> Contents {
        self.0.contents.borrow().clone()
    }

    /// Replaces the contents, as if another disk were put in. Returns the old ones. An empty disk
    /// is `Contents::default()`.
    pub fn exchange(&self, contents: Contents) -> Contents {
        self.0.used.set(contents.used());
        self.0.contents.replace(contents)
    }

    /// Loses a datafile, as a damaged disk does. Returns what was lost.
    pub fn lose(&self, datafile: DatafileHandle) -> Contents {
        let lost = self.0.contents.borrow_mut().datafiles.remove_entry(&datafile);
        Contents { datafiles: lost.into_iter().collect(), ..Contents::default() }
    }

    /// Puts back the datafiles that were lost.
    pub fn put_back(&self, lost: Contents) {
        self.0.contents.borrow_mut().datafiles.extend(lost.datafiles);
    }

    /// Cuts a datafile off, as a damaged disk does.
    pub fn damage(&self, datafile: DatafileHandle, size: u64) {
        if let Some(file) = self.0.contents.borrow_mut().datafiles.get_mut(&datafile) {
            file.size = size;
        }
    }

    /// Cuts a region at chunk boundaries. Each part is a chunk, the offset in it, and a length.
    fn parts(region: Region) -> impl Iterator<Item = (u64, usize, usize)> {
        let (mut at, end) = (region.offset, region.offset + region.len);
        std::iter::from_fn(move || {
            let (chunk, within) = (at / CHUNK, at % CHUNK);
            let len = (CHUNK - within).min(end - at);
            at += len;
            (len > 0).then_some((chunk, within as usize, len as usize))
        })
    }

    /// Writes as much as fits. Returns the number of bytes written.
    fn put(&self, datafile: DatafileHandle, regions: &[Region], from: &MemList) -> u64 {
        let mut contents = self.0.contents.borrow_mut();
        let Some(file) = contents.datafiles.get_mut(&datafile) else { return 0 };
        file.mtime_ns = self.0.medium.wall_ns();
        let (mut done, mut rest) = (0, Rest::of(from));
        for region in regions {
            for (chunk, within, len) in Self::parts(*region) {
                if self.0.volatile {
                    let at = chunk * CHUNK + within as u64;
                    file.keep(self.0.syncs.get(), at..at + len as u64);
                }
                if !file.chunks.contains_key(&chunk) {
                    if self.0.used.get() + CHUNK > self.0.capacity {
                        return done;
                    }
                    self.0.used.set(self.0.used.get() + CHUNK);
                }
                let bytes = file.chunks.entry(chunk).or_insert_with(|| vec![0; CHUNK as usize].into());
                let mut at = within;
                for piece in rest.take(len) {
                    piece.copy_to(&mut bytes[at..at + piece.len()]);
                    at += piece.len();
                }
                done += len as u64;
                file.size = file.size.max(chunk * CHUNK + (within + len) as u64);
            }
        }
        done
    }

    fn fetch(&self, datafile: DatafileHandle, regions: &[Region], into: &MemList) {
        let contents = self.0.contents.borrow();
        let file = contents.datafiles.get(&datafile);
        let mut rest = Rest::of(into);
        for (chunk, within, len) in regions.iter().flat_map(|region| Self::parts(*region)) {
            let bytes = file.and_then(|file| file.chunks.get(&chunk));
            let mut at = within;
            for piece in rest.take(len) {
                match bytes {
                    Some(bytes) => piece.copy_from(&bytes[at..at + piece.len()]),
                    None => piece.zero(),
                }
                at += piece.len();
            }
        }
    }

    fn mark(&self, datafile: DatafileHandle) -> Option<Mark> {
        self.0.contents.borrow().marks.get(&datafile).copied()
    }

    /// Returns why operations on a marked datafile must fail.
    fn refused_by_mark(&self, datafile: DatafileHandle) -> Option<FsError> {
        let mark = self.mark(datafile).filter(|_| !mutated("store/prepared-datafile-served"));
        mark.map(|mark| mark.refusal(datafile))
    }

    /// Checks that a datafile exists and was not cut off, and that operations on it need not fail.
    fn check(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        self.refused_by_mark(datafile).map_or(Ok(()), Err)?;
        self.check_marked(datafile)
    }

    /// As [`MemStore::check`], whether the datafile is marked or not.
    fn check_marked(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        self.0.failure.borrow().check()?;
        if mutated("store/absent-datafile-is-empty") {
            self.0.contents.borrow_mut().datafiles.entry(datafile).or_default();
        }
        let contents = self.0.contents.borrow();
        let file = contents.datafiles.get(&datafile).ok_or_else(|| absent(datafile))?;
        if file.size < file.synced && !mutated("store/datafile-cut-off-not-noticed") {
            return Err(cut_off(datafile, file.size, file.synced));
        }
        Ok(())
    }

    /// Sets the length of a datafile.
    fn resize(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        let mut contents = self.0.contents.borrow_mut();
        let Some(file) = contents.datafiles.get_mut(&datafile) else { return Err(absent(datafile)) };
        if self.0.volatile {
            file.keep(self.0.syncs.get(), size..file.size.max(size));
        }
        let kept = size.div_ceil(CHUNK);
        let cut = file.chunks.split_off(&kept);
        self.0.used.set(self.0.used.get() - cut.len() as u64 * CHUNK);
        if size < file.size
            && let Some(last) = file.chunks.get_mut(&(size / CHUNK))
        {
            last[(size % CHUNK) as usize..].fill(0);
        }
        if size < file.size {
            self.0.medium.forget(datafile, size);
        }
        (file.size, file.mtime_ns) = (size, self.0.medium.wall_ns());
        file.synced = file.synced.min(size);
        Ok(())
    }

    /// Marks datafiles whose sync failed. A disk that syncs nothing at all takes no marks either:
    /// then the store has failed.
    async fn mark_failed(&self, datafiles: &[DatafileHandle], error: &FsError, medium_works: bool) {
        let failure = self.0.failure.borrow().clone();
        if medium_works && self.0.medium.sync().await.is_ok() {
            let marks = datafiles.iter().map(|datafile| (*datafile, Mark::FailedSync));
            self.0.contents.borrow_mut().marks.extend(marks);
        } else {
            failure.note(FsError::new(ErrorCode::Io, format!("a mark could not be made durable: {error}")));
        }
    }

    /// Makes datafiles durable.
    async fn flush(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError> {
        if datafiles.is_empty() {
            return Ok(());
        }
        // Data that is written during the sync is not covered.
        let sync = self.0.syncs.get();
        self.0.syncs.set(sync + 1);
        let size = |datafile| self.0.contents.borrow().datafiles.get(&datafile).map_or(0, |file| file.size);
        let sizes: Vec<u64> = datafiles.iter().map(|datafile| size(*datafile)).collect();
        let synced = self.0.medium.sync().await;
        let failing = self.0.failing.get();
        if synced.is_err() || failing > 0 {
            self.0.failing.set(failing.saturating_sub(1));
            let error = synced.err().unwrap_or_else(|| FsError::new(ErrorCode::Io, "a bad place of the disk"));
            self.mark_failed(datafiles, &error, failing > 0).await;
            return Err(error);
        }
        let mut contents = self.0.contents.borrow_mut();
        for (datafile, size) in datafiles.iter().zip(sizes) {
            if let Some(file) = contents.datafiles.get_mut(datafile) {
                file.before = file.before.split_off(&(sync + 1));
                file.synced = size.min(file.size);
            }
        }
        Ok(())
    }
}

#[async_trait(?Send)]
impl DataStore for MemStore {
    fn label(&self) -> Option<Label> {
        self.0.contents.borrow().label
    }

    async fn relabel(&self, label: &Label) -> Result<(), FsError> {
        self.0.medium.sync().await?;
        self.0.contents.borrow_mut().label = Some(*label);
        Ok(())
    }

    async fn create(&self, first: DatafileHandle, count: u32) -> Result<(), FsError> {
        self.0.medium.sync().await?;
        let mut contents = self.0.contents.borrow_mut();
        for raw in first.0..first.0 + u64::from(count) {
            contents.datafiles.entry(DatafileHandle(raw)).or_default();
        }
        Ok(())
    }

    async fn discard(&self, first: DatafileHandle, count: u32) -> Result<(), FsError> {
        let range = first..DatafileHandle(first.0 + u64::from(count));
        let empty: Vec<DatafileHandle> = {
            let contents = self.0.contents.borrow();
            // Those whose removal failed to reach the disk are removed once more.
            let files = contents.datafiles.range(range.clone()).chain(contents.buried.range(range));
            let is_unused = |datafile, file: &Datafile| file.size == 0 && !contents.marks.contains_key(datafile);
            files.filter(|(datafile, file)| is_unused(*datafile, file)).map(|(datafile, _)| *datafile).collect()
        };
        self.remove(&empty).await
    }

    async fn list(&self, after: Option<DatafileHandle>, max: usize) -> Result<(Vec<DatafileHandle>, bool), FsError> {
        let first = after.map_or(0, |after| after.0 + 1);
        let contents = self.0.contents.borrow();
        let mut handles = contents.datafiles.range(DatafileHandle(first)..).map(|(datafile, _)| *datafile);
        let page: Vec<_> = handles.by_ref().take(max).collect();
        Ok((page, handles.next().is_some()))
    }

    async fn write(&self, datafile: DatafileHandle, regions: &[Region], from: &MemList) -> Result<(), FsError> {
        let all = |error: FsError| error.with_ranges(regions.iter().copied());
        self.0.medium.write_regions(datafile, regions).await.map_err(all)?;
        self.check(datafile).map_err(all)?;
        let done = self.put(datafile, regions, from);
        if done == from.len() as u64 {
            return Ok(());
        }
        let text = format!("the store holds {} bytes", self.0.capacity);
        Err(FsError::new(ErrorCode::NoSpace, text).with_ranges(remainder(regions, done)))
    }

    async fn read(&self, datafile: DatafileHandle, regions: &[Region], into: &MemList) -> Result<(), FsError> {
        let all = |error: FsError| error.with_ranges(regions.iter().copied());
        self.0.medium.read_regions(datafile, regions).await.map_err(all)?;
        self.check(datafile).map_err(all)?;
        self.fetch(datafile, regions, into);
        Ok(())
    }

    /// What it lends does not change, so it lends for replies too, as the paper's server does.
    fn lends(&self) -> Lends {
        if self.0.mapped.get() { Lends::Cache } else { Lends::Nothing }
    }

    async fn lend(
        &self,
        datafile: DatafileHandle,
        regions: &[Region],
        turn: &dyn DiskTurn,
    ) -> Result<Option<Loan>, FsError> {
        if !self.0.mapped.get() {
            return Ok(None);
        }
        let all = |error: FsError| error.with_ranges(regions.iter().copied());
        self.check(datafile).map_err(all)?;
        let in_memory = self.0.medium.holds(datafile, regions);
        let turn = if in_memory { None } else { Some(turn.take().await.map_err(all)?) };
        self.0.medium.fetch(datafile, regions).await.map_err(all)?;
        drop(turn);
        self.check(datafile).map_err(all)?;
        // Each range is mapped by itself.
        let pages = regions.iter().map(|region| Ok(Memory::zeroed(region.len as usize)?.all()));
        let list: MemList = pages.collect::<Result<_, bmi::Error>>().map_err(FsError::from).map_err(all)?;
        self.fetch(datafile, regions, &list);
        Ok(Some(Loan { list, owner: Box::new(()) }))
    }

    fn service(&self) -> ServiceKind {
        if self.0.mapped.get() { ServiceKind::Mmap } else { ServiceKind::Normal }
    }

    fn refusal(&self, datafile: DatafileHandle) -> Option<FsError> {
        let failed = self.0.failure.borrow().check().err();
        failed.or_else(|| self.refused_by_mark(datafile))
    }

    async fn prepare_truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        if let Some(mark @ Mark::FailedSync) = self.mark(datafile) {
            return Err(mark.refusal(datafile));
        }
        self.check_marked(datafile)?;
        self.0.contents.borrow_mut().marks.insert(datafile, Mark::Truncating(size));
        self.0.medium.sync().await
    }

    async fn truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        if let Some(mark) = self.mark(datafile) {
            return Err(mark.refusal(datafile));
        }
        self.check_marked(datafile)?;
        self.resize(datafile, size)
    }

    async fn commit_truncate(&self, datafile: DatafileHandle, cut: u64, size: u64) -> Result<(), FsError> {
        if !self.mark(datafile).is_some_and(Mark::is_prepared) {
            return Ok(());
        }
        let fault = (self.0.commit_fault.borrow())(datafile);
        let result = match self.check_marked(datafile).and(fault.map_or(Ok(()), Err)) {
            Ok(()) => {
                if self.0.contents.borrow().datafiles.get(&datafile).is_some_and(|file| file.size > cut) {
                    self.resize(datafile, cut)?;
                }
                self.resize(datafile, size)?;
                if mutated("store/truncate-not-synced") {
                    self.0.contents.borrow_mut().marks.remove(&datafile);
                    return Ok(());
                }
                self.flush(&[datafile]).await
            }
            failed => failed,
        };
        let ends = result.as_ref().map_or_else(|error| error.code == ErrorCode::Lost, |()| true)
            && !mutated("store/truncated-datafile-stays-prepared");
        let mut contents = self.0.contents.borrow_mut();
        if ends {
            contents.marks.remove(&datafile);
        } else if let Some(mark) = contents.marks.get_mut(&datafile) {
            *mark = mark.failed();
        }
        drop(contents);
        result
    }

    async fn cancel_truncates(&self, except: &[DatafileHandle]) -> Result<(), FsError> {
        let except: BTreeSet<DatafileHandle> = except.iter().copied().collect();
        let cancelled = |datafile: &DatafileHandle, mark: &Mark| mark.is_prepared() && !except.contains(datafile);
        if self.0.contents.borrow().marks.iter().any(|(datafile, mark)| cancelled(datafile, mark)) {
            self.0.medium.sync().await?;
            self.0.contents.borrow_mut().marks.retain(|datafile, mark| !cancelled(datafile, mark));
        }
        Ok(())
    }

    async fn remove(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError> {
        for datafile in datafiles {
            (self.0.removal_fault.borrow())(*datafile).map_or(Ok(()), Err)?;
            self.0.medium.forget(*datafile, 0);
            let mut contents = self.0.contents.borrow_mut();
            if let Some(file) = contents.datafiles.remove(datafile) {
                self.0.used.set(self.0.used.get() - file.chunks.len() as u64 * CHUNK);
                if self.0.volatile {
                    contents.buried.insert(*datafile, file);
                }
            }
        }
        self.0.medium.sync().await?;
        let mut contents = self.0.contents.borrow_mut();
        for datafile in datafiles {
            contents.buried.remove(datafile);
            contents.marks.remove(datafile);
        }
        Ok(())
    }

    async fn sync(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError> {
        let (mut found, mut result) = (Vec::new(), Ok(()));
        for datafile in datafiles {
            match self.check(*datafile) {
                Ok(()) => found.push(*datafile),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result.and(self.flush(&found).await)
    }

    async fn held(&self, datafile: DatafileHandle) -> Result<Held, FsError> {
        self.check(datafile)?;
        let held = |file: &Datafile| Held { size: file.size, mtime_ns: file.mtime_ns };
        Ok(self.0.contents.borrow().datafiles.get(&datafile).map(held).unwrap_or_default())
    }

    async fn failure(&self) -> FsError {
        let failure = self.0.failure.borrow().clone();
        failure.wait().await
    }

    async fn stat(&self) -> Result<IodStat, FsError> {
        Ok(IodStat {
            capacity: self.0.capacity,
            free: self.0.capacity - self.0.used.get(),
            datafiles: self.0.contents.borrow().datafiles.len() as u64,
            disk: self.0.disk.get(),
        })
    }
}
