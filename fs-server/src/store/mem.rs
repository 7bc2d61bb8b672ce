//! Stores datafiles in memory, with a disk's capacity and optionally its costs, for the simulator
//! and for tests.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use async_trait::async_trait;
use bmi_core::MemList;
use fs_proto::{DatafileHandle, ErrorCode, FsError, IodStat, Region};

use super::file::zero;
use super::{DataStore, Fates, Held, SECTOR, TombstoneSet, remainder};

/// The behaviour of a store's disk apart from holding bytes: taking time, and failing.
#[async_trait(?Send)]
pub trait Medium {
    /// Reads `bytes` from the disk.
    ///
    /// # Errors
    /// The error that a failure of the disk should produce, usually `Io`.
    async fn read(&self, bytes: u64) -> Result<(), FsError>;

    /// Writes `bytes` to the disk, or to its cache.
    ///
    /// # Errors
    /// As for `read`.
    async fn write(&self, bytes: u64) -> Result<(), FsError>;

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// As for `read`.
    async fn sync(&self) -> Result<(), FsError>;

    /// Returns the time, in nanoseconds since 1970; 0 without a clock.
    fn wall_ns(&self) -> u64 {
        0
    }
}

/// A medium that takes no time and never fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct Free;

#[async_trait(?Send)]
impl Medium for Free {
    async fn read(&self, _bytes: u64) -> Result<(), FsError> {
        Ok(())
    }

    async fn write(&self, _bytes: u64) -> Result<(), FsError> {
        Ok(())
    }

    async fn sync(&self) -> Result<(), FsError> {
        Ok(())
    }
}

/// Size of one allocation, in bytes. Bytes that were never written cost no memory.
const CHUNK: u64 = 64 << 10;

#[derive(Default)]
struct Datafile {
    size: u64,
    mtime_ns: u64,
    chunks: BTreeMap<u64, Box<[u8]>>,
    /// The state of the disk before the changes since each sync began, by the number of the sync.
    /// Empty if everything is durable.
    before: BTreeMap<u64, Before>,
}

/// The contents of the disk where they differ from the current contents of a datafile.
struct Before {
    exists: bool,
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
    fn keep(&mut self, sync: u64, exists: bool, bytes: std::ops::Range<u64>) {
        let (size, sectors) = (self.size, bytes.start / SECTOR64..bytes.end.div_ceil(SECTOR64));
        let known = self.before.entry(sync).or_insert_with(|| Before { exists, size, sectors: BTreeMap::new() });
        let fresh: Vec<u64> = sectors.filter(|sector| !known.sectors.contains_key(sector)).collect();
        for sector in fresh {
            let old = self.sector(sector);
            self.before.entry(sync).and_modify(|before| {
                before.sectors.insert(sector, old);
            });
        }
    }

    /// Returns what is left after a power failure, or `None` if nothing is left.
    fn after(mut self, fates: &mut dyn Fates) -> Option<Datafile> {
        let mut layers = std::mem::take(&mut self.before).into_values();
        let Some(mut disk) = layers.next() else { return Some(self) };
        for layer in layers {
            // The oldest copy is what the disk has.
            layer.sectors.into_iter().for_each(|(sector, old)| {
                disk.sectors.entry(sector).or_insert(old);
            });
        }
        if !disk.exists && !fates.keeps() {
            return None;
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
        Some(self)
    }
}

/// A store of datafiles in memory. A clone is the same store: it outlives the server that uses it,
/// as a disk does.
#[derive(Clone)]
pub struct MemStore(Rc<Inner>);

struct Inner {
    medium: Box<dyn Medium>,
    capacity: u64,
    used: Cell<u64>,
    datafiles: RefCell<BTreeMap<DatafileHandle, Datafile>>,
    /// Datafiles that were removed, but not yet from the disk.
    buried: RefCell<BTreeMap<DatafileHandle, Datafile>>,
    removed: RefCell<TombstoneSet>,
    /// True if unsynced data can be lost.
    volatile: bool,
    /// Number of syncs that began.
    syncs: Cell<u64>,
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
            datafiles: RefCell::default(),
            buried: RefCell::default(),
            removed: RefCell::default(),
            volatile,
            syncs: Cell::new(0),
        }))
    }

    /// Fails the power. `fates` decides what is left of the unsynced data. The server's other state
    /// is lost too.
    pub fn power_fails(&self, fates: &mut dyn Fates) {
        *self.0.removed.borrow_mut() = TombstoneSet::default();
        let mut datafiles = self.0.datafiles.borrow_mut();
        let before = std::mem::take(&mut *datafiles);
        *datafiles = before.into_iter().filter_map(|(name, file)| Some((name, file.after(fates)?))).collect();
        for (name, file) in std::mem::take(&mut *self.0.buried.borrow_mut()) {
            if !fates.keeps() {
                datafiles.extend(file.after(fates).map(|file| (name, file)));
            }
        }
        let chunks: usize = datafiles.values().map(|file| file.chunks.len()).sum();
        self.0.used.set(chunks as u64 * CHUNK);
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
        let mut datafiles = self.0.datafiles.borrow_mut();
        let exists = datafiles.contains_key(&datafile);
        let file = datafiles.entry(datafile).or_default();
        file.mtime_ns = self.0.medium.wall_ns();
        let mut done = 0;
        for region in regions {
            for (chunk, within, len) in Self::parts(*region) {
                if self.0.volatile {
                    let at = chunk * CHUNK + within as u64;
                    file.keep(self.0.syncs.get(), exists, at..at + len as u64);
                }
                if !file.chunks.contains_key(&chunk) {
                    if self.0.used.get() + CHUNK > self.0.capacity {
                        return done;
                    }
                    self.0.used.set(self.0.used.get() + CHUNK);
                }
                let bytes = file.chunks.entry(chunk).or_insert_with(|| vec![0; CHUNK as usize].into());
                from.copy_to(done as usize, &mut bytes[within..within + len]);
                done += len as u64;
                file.size = file.size.max(chunk * CHUNK + (within + len) as u64);
            }
        }
        done
    }

    fn fetch(&self, datafile: DatafileHandle, regions: &[Region], into: &MemList) {
        let datafiles = self.0.datafiles.borrow();
        let file = datafiles.get(&datafile);
        let mut done = 0;
        for region in regions {
            for (chunk, within, len) in Self::parts(*region) {
                match file.and_then(|file| file.chunks.get(&chunk)) {
                    Some(bytes) => {
                        into.copy_from(done, &bytes[within..within + len]);
                    }
                    None => into.range(done, len).for_each(|piece| zero(&piece)),
                }
                done += len;
            }
        }
    }

    fn check(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        self.0.removed.borrow().check(datafile)
    }
}

#[async_trait(?Send)]
impl DataStore for MemStore {
    async fn write(&self, datafile: DatafileHandle, regions: &[Region], from: &MemList) -> Result<(), FsError> {
        let all = |error: FsError| error.with_ranges(regions.iter().copied());
        self.0.medium.write(from.len() as u64).await.map_err(all)?;
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
        self.0.medium.read(into.len() as u64).await.map_err(all)?;
        self.check(datafile).map_err(all)?;
        self.fetch(datafile, regions, into);
        Ok(())
    }

    async fn truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        self.check(datafile)?;
        let mut datafiles = self.0.datafiles.borrow_mut();
        let exists = datafiles.contains_key(&datafile);
        let file = datafiles.entry(datafile).or_default();
        if self.0.volatile {
            file.keep(self.0.syncs.get(), exists, size..file.size.max(size));
        }
        let kept = size.div_ceil(CHUNK);
        let cut = file.chunks.split_off(&kept);
        self.0.used.set(self.0.used.get() - cut.len() as u64 * CHUNK);
        if size < file.size
            && let Some(last) = file.chunks.get_mut(&(size / CHUNK))
        {
            last[(size % CHUNK) as usize..].fill(0);
        }
        (file.size, file.mtime_ns) = (size, self.0.medium.wall_ns());
        Ok(())
    }

    async fn remove(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        self.0.removed.borrow_mut().bury(datafile);
        if let Some(file) = self.0.datafiles.borrow_mut().remove(&datafile) {
            self.0.used.set(self.0.used.get() - file.chunks.len() as u64 * CHUNK);
            if self.0.volatile {
                self.0.buried.borrow_mut().insert(datafile, file);
            }
        }
        self.0.medium.sync().await?;
        self.0.buried.borrow_mut().remove(&datafile);
        Ok(())
    }

    async fn sync(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        self.check(datafile)?;
        // Data that is written during the sync is not covered.
        let sync = self.0.syncs.get();
        self.0.syncs.set(sync + 1);
        self.0.medium.sync().await?;
        if let Some(file) = self.0.datafiles.borrow_mut().get_mut(&datafile) {
            file.before = file.before.split_off(&(sync + 1));
        }
        Ok(())
    }

    async fn held(&self, datafile: DatafileHandle) -> Result<Held, FsError> {
        self.check(datafile)?;
        let held = |file: &Datafile| Held { size: file.size, mtime_ns: file.mtime_ns };
        Ok(self.0.datafiles.borrow().get(&datafile).map(held).unwrap_or_default())
    }

    async fn stat(&self) -> Result<IodStat, FsError> {
        Ok(IodStat {
            capacity: self.0.capacity,
            free: self.0.capacity - self.0.used.get(),
            datafiles: self.0.datafiles.borrow().len() as u64,
        })
    }
}
