//! The disk of a simulated I/O server: what it costs to use it ([`Medium`]), and the store on it
//! ([`SimStore`]), which is the real one on a disk in memory ([`MemDisk`]).

use std::cell::Cell;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bmi::{MemList, Memory};
use bmi_sim::faults::{DiskUser, Loss};
use bmi_sim::{DiskFault, Node, SimDisk};
use fs_proto::limits::MAX_DATAFILES;
use fs_proto::{Allocation, DatafileHandle, FsError, IodStat, Region, ServiceKind, Sought};
use futures_util::FutureExt;

use crate::store::{Contents, DataStore, DiskTurn, Fates, FileStore, Held, Label, Lends, Loan, MemDisk, Scrubbed};

/// How long the requests to a disk take. A medium without methods of its own takes no time.
///
/// A medium that has memory of its own in front of the disk, such as the system's page cache,
/// implements the methods with regions. For the others these are requests of so many bytes.
#[async_trait(?Send)]
pub trait Medium {
    /// Reads `bytes` from the disk.
    async fn read(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Writes `bytes` to the disk, or to its cache.
    async fn write(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Makes all earlier writes durable.
    async fn sync(&self) {}

    /// Reads regions of a datafile into somebody's memory.
    async fn read_regions(&self, datafile: DatafileHandle, regions: &[Region]) {
        let _ = datafile;
        self.read(total(regions)).await;
    }

    /// Writes regions of a datafile from somebody's memory.
    async fn write_regions(&self, datafile: DatafileHandle, regions: &[Region]) {
        let _ = datafile;
        self.write(total(regions)).await;
    }

    /// Reads what it lacks of the regions into its own memory, and copies nothing.
    async fn fetch(&self, datafile: DatafileHandle, regions: &[Region]) {
        self.read_regions(datafile, regions).await;
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

/// A medium that takes no time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Free;

impl Medium for Free {}

pub(super) fn total(regions: &[Region]) -> u64 {
    regions.iter().map(|region| region.len).sum()
}

/// It takes the time that it has in the profile. Whether it fails is up to the [`MemDisk`], which
/// is told so too.
#[async_trait(?Send)]
impl Medium for SimDisk {
    async fn read(&self, bytes: u64) {
        let _ = SimDisk::read(self, bytes).await;
    }

    async fn write(&self, bytes: u64) {
        let _ = SimDisk::write(self, bytes).await;
    }

    async fn sync(&self) {
        let _ = SimDisk::sync(self).await;
    }
}

/// A node's disk, with the node's clock. Without the disk it takes no time.
pub(super) struct Timed(pub(super) Option<SimDisk>, pub(super) Node);

#[async_trait(?Send)]
impl Medium for Timed {
    async fn read(&self, bytes: u64) {
        if let Some(disk) = &self.0 {
            Medium::read(disk, bytes).await;
        }
    }

    async fn write(&self, bytes: u64) {
        if let Some(disk) = &self.0 {
            Medium::write(disk, bytes).await;
        }
    }

    async fn sync(&self) {
        if let Some(disk) = &self.0 {
            Medium::sync(disk).await;
        }
    }

    fn wall_ns(&self) -> u64 {
        self.1.wall_ns()
    }
}

/// A node's power failure, for what is on its disk.
struct Drawn<'a>(&'a mut Loss);

impl Fates for Drawn<'_> {
    fn keeps(&mut self) -> bool {
        self.0.keeps()
    }

    fn sector(&mut self, old: &[u8], now: &mut [u8]) {
        self.0.apply(old, now);
    }
}

impl DiskUser for MemDisk {
    fn power_fails(&self, loss: &mut Loss) {
        MemDisk::power_fails(self, &mut Drawn(loss));
    }

    fn cuts_off(&self, writes: Option<u32>) {
        self.cut_off(writes);
    }

    fn is_cut_off(&self) -> bool {
        MemDisk::is_cut_off(self)
    }

    fn behaves(&self, fault: DiskFault) {
        self.refuse(match fault {
            DiskFault::None => None,
            DiskFault::Full => Some((std::io::ErrorKind::StorageFull, false)),
            DiskFault::Broken => Some((std::io::ErrorKind::Other, true)),
        });
    }
}

/// Returns what the disk of a store has that has `count` empty datafiles with consecutive handles.
///
/// # Panics
/// If the disk in memory fails.
pub fn datafiles(first: DatafileHandle, count: u64) -> Contents {
    let disk = MemDisk::default();
    let store = SimStore::open(&disk, Rc::new(Free)).expect("an empty disk");
    for begin in (first.0..first.0 + count).step_by(MAX_DATAFILES) {
        let count = (first.0 + count - begin).min(MAX_DATAFILES as u64) as u32;
        let created = store.create(DatafileHandle(begin), count).now_or_never();
        created.expect("it takes no time").expect("the disk works");
    }
    disk.exchange(Contents::default())
}

/// The store of a server's process on a [`MemDisk`], at the prices of a [`Medium`]. Each request
/// first takes its time, and then is done at once: a power failure in between finds nothing of it.
/// Opening the store takes no time.
pub struct SimStore {
    files: FileStore,
    disk: MemDisk,
    medium: Rc<dyn Medium>,
    /// It is a model of a server that maps its files.
    maps: bool,
    /// Number of syncs so far.
    syncs: Cell<u64>,
}

impl SimStore {
    /// Opens the store that the disk has. An empty disk becomes an empty store.
    ///
    /// # Errors
    /// As [`FileStore::open`].
    pub fn open(disk: &MemDisk, medium: Rc<dyn Medium>) -> Result<SimStore, FsError> {
        let disk = disk.reopen();
        let files = FileStore::on(Arc::new(disk.clone()), PathBuf::from("disk"), u64::MAX)?;
        Ok(SimStore { files, disk, medium, maps: false, syncs: Cell::new(0) })
    }

    /// Makes the store a model of a server that maps its files: *Mmap* of [Unifier-PVFS §3.1]. It
    /// lends the bytes of each read ([`DataStore::lend`]) in memory that no adapter has seen
    /// before, so each read registers it and ends that registration. Writes are copied. Unlike
    /// pages that are mapped, what is lent does not change when the datafile is written.
    #[must_use]
    pub fn mapping(mut self, maps: bool) -> SimStore {
        self.maps = maps;
        self
    }

    /// Keeps checksums if `on` is set, as [`FileStore::checksums`].
    ///
    /// # Errors
    /// As there.
    pub fn checksums(self, on: bool) -> Result<SimStore, FsError> {
        Ok(SimStore { files: self.files.checksums(on)?, ..self })
    }

    fn stat_of(&self, stat: IodStat) -> IodStat {
        IodStat { disk: self.disk.store_number(), ..stat }
    }
}

#[async_trait(?Send)]
impl DataStore for SimStore {
    fn label(&self) -> Option<Label> {
        self.files.label()
    }

    async fn relabel(&self, label: &Label) -> Result<(), FsError> {
        self.medium.sync().await;
        self.files.relabel(label).await
    }

    async fn create(&self, first: DatafileHandle, count: u32) -> Result<(), FsError> {
        self.medium.sync().await;
        self.files.create(first, count).await
    }

    async fn discard(&self, first: DatafileHandle, count: u32) -> Result<(), FsError> {
        self.medium.sync().await;
        self.files.discard(first, count).await
    }

    async fn remove(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError> {
        datafiles.iter().for_each(|datafile| self.medium.forget(*datafile, 0));
        self.medium.sync().await;
        self.files.remove(datafiles).await
    }

    async fn list(&self, after: Option<DatafileHandle>, max: usize) -> Result<(Vec<DatafileHandle>, bool), FsError> {
        self.files.list(after, max).await
    }

    async fn write(&self, datafile: DatafileHandle, regions: &[Region], from: &MemList) -> Result<(), FsError> {
        self.medium.write_regions(datafile, regions).await;
        self.disk.set_clock(self.medium.wall_ns());
        self.files.write(datafile, regions, from).await
    }

    async fn read(&self, datafile: DatafileHandle, regions: &[Region], into: &MemList) -> Result<(), FsError> {
        self.medium.read_regions(datafile, regions).await;
        self.files.read(datafile, regions, into).await
    }

    fn refusal(&self, datafile: DatafileHandle) -> Option<FsError> {
        self.files.refusal(datafile)
    }

    /// What it lends does not change, so it lends for replies too, as the paper's server does.
    fn lends(&self) -> Lends {
        if self.maps { Lends::Cache } else { Lends::Nothing }
    }

    async fn lend(
        &self,
        datafile: DatafileHandle,
        regions: &[Region],
        turn: &dyn DiskTurn,
    ) -> Result<Option<Loan>, FsError> {
        if !self.maps {
            return Ok(None);
        }
        let all = |error: FsError| error.with_ranges(regions.iter().copied());
        self.refusal(datafile).map_or(Ok(()), Err).map_err(all)?;
        let in_memory = self.medium.holds(datafile, regions);
        let turn = if in_memory { None } else { Some(turn.take().await.map_err(all)?) };
        self.medium.fetch(datafile, regions).await;
        drop(turn);
        // Each range is mapped by itself.
        let pages = regions.iter().map(|region| Ok(Memory::zeroed(region.len as usize)?.all()));
        let list: MemList = pages.collect::<Result<_, bmi::Error>>().map_err(FsError::from).map_err(all)?;
        self.files.read(datafile, regions, &list).await?;
        Ok(Some(Loan { list, owner: Box::new(()) }))
    }

    fn service(&self) -> ServiceKind {
        if self.maps { ServiceKind::Mmap } else { ServiceKind::Normal }
    }

    async fn prepare_truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        self.medium.sync().await;
        self.files.prepare_truncate(datafile, size).await
    }

    async fn truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        self.medium.forget(datafile, size);
        self.disk.set_clock(self.medium.wall_ns());
        self.files.truncate(datafile, size).await
    }

    async fn allocate(&self, datafile: DatafileHandle, range: Region, how: Allocation) -> Result<(), FsError> {
        self.medium.sync().await;
        self.disk.set_clock(self.medium.wall_ns());
        self.files.allocate(datafile, range, how).await
    }

    async fn seek(&self, datafile: DatafileHandle, offset: u64, what: Sought) -> Result<Option<u64>, FsError> {
        self.files.seek(datafile, offset, what).await
    }

    async fn commit_truncate(&self, datafile: DatafileHandle, cut: u64, size: u64) -> Result<(), FsError> {
        self.medium.forget(datafile, cut.min(size));
        self.medium.sync().await;
        self.disk.set_clock(self.medium.wall_ns());
        self.files.commit_truncate(datafile, cut, size).await
    }

    async fn cancel_truncates(&self, except: &[DatafileHandle]) -> Result<(), FsError> {
        let before = self.disk.changes();
        let result = self.files.cancel_truncates(except).await;
        if self.disk.changes() != before {
            self.medium.sync().await;
        }
        result
    }

    async fn failure(&self) -> FsError {
        self.files.failure().await
    }

    async fn sync(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError> {
        // The disk has it at the begin of the time or at the end of it, in turns: what is written
        // meanwhile may be covered or not.
        let at_once = self.syncs.replace(self.syncs.get() + 1).is_multiple_of(2);
        let done = if at_once { Some(self.files.sync(datafiles).await) } else { None };
        self.medium.sync().await;
        match done {
            Some(done) => done,
            None => self.files.sync(datafiles).await,
        }
    }

    async fn held(&self, datafile: DatafileHandle) -> Result<Held, FsError> {
        self.files.held(datafile).await
    }

    async fn stat(&self) -> Result<IodStat, FsError> {
        Ok(self.stat_of(self.files.stat().await?))
    }

    async fn scrub(&self, datafile: DatafileHandle, from: u64, most: u64) -> Result<Scrubbed, FsError> {
        let scrubbed = self.files.scrub(datafile, from, most).await?;
        self.medium.read(scrubbed.read).await;
        Ok(scrubbed)
    }

    async fn tend(&self, sleep: &dyn Fn(Duration) -> Pin<Box<dyn Future<Output = ()>>>) {
        self.files.tend(sleep).await;
    }

    fn known_stat(&self) -> Option<IodStat> {
        self.files.known_stat().map(|stat| self.stat_of(stat))
    }
}
