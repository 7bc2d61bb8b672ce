//! Datafiles in memory, with a disk's size and, if wanted, its prices: for the simulator and for tests.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use async_trait::async_trait;
use bmi_core::MemList;
use fs_proto::{DatafileHandle, ErrorCode, FsError, IodStat, Region};

use super::file::zero;
use super::{DataStore, Tombstones, remainder};

/// What a store's disk does besides keeping bytes: take time, and fail.
#[async_trait(?Send)]
pub trait Medium {
    /// Reads `bytes` from the disk.
    ///
    /// # Errors
    /// Whatever the disk's failure is to look like; `Io` usually.
    async fn read(&self, bytes: u64) -> Result<(), FsError>;

    /// Writes `bytes` to the disk, or to its cache.
    ///
    /// # Errors
    /// As for `read`.
    async fn write(&self, bytes: u64) -> Result<(), FsError>;

    /// Makes durable what was written.
    ///
    /// # Errors
    /// As for `read`.
    async fn sync(&self) -> Result<(), FsError>;
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

/// Bytes that are set aside at a time; what was never written costs nothing.
const CHUNK: u64 = 64 << 10;

#[derive(Default)]
struct Datafile {
    size: u64,
    chunks: BTreeMap<u64, Box<[u8]>>,
}

/// Datafiles in memory. A clone is the same store: it outlives the server that uses it, as a disk does.
#[derive(Clone)]
pub struct MemStore(Rc<Inner>);

struct Inner {
    medium: Box<dyn Medium>,
    capacity: u64,
    used: Cell<u64>,
    datafiles: RefCell<BTreeMap<DatafileHandle, Datafile>>,
    removed: RefCell<Tombstones>,
}

impl MemStore {
    /// A store of `capacity` bytes, counted in chunks of 64 KiB, that takes no time.
    pub fn new(capacity: u64) -> MemStore {
        MemStore::on(Free, capacity)
    }

    /// A store of `capacity` bytes on `medium`.
    pub fn on(medium: impl Medium + 'static, capacity: u64) -> MemStore {
        MemStore(Rc::new(Inner {
            medium: Box::new(medium),
            capacity,
            used: Cell::new(0),
            datafiles: RefCell::default(),
            removed: RefCell::default(),
        }))
    }

    /// Cuts a region into parts of chunks: chunk, offset in it, length.
    fn parts(region: Region) -> impl Iterator<Item = (u64, usize, usize)> {
        let (mut at, end) = (region.offset, region.offset + region.len);
        std::iter::from_fn(move || {
            let (chunk, within) = (at / CHUNK, at % CHUNK);
            let len = (CHUNK - within).min(end - at);
            at += len;
            (len > 0).then_some((chunk, within as usize, len as usize))
        })
    }

    /// Writes as much as fits; returns how many bytes that was.
    fn put(&self, datafile: DatafileHandle, regions: &[Region], from: &MemList) -> u64 {
        let mut datafiles = self.0.datafiles.borrow_mut();
        let file = datafiles.entry(datafile).or_default();
        let mut done = 0;
        for region in regions {
            for (chunk, within, len) in Self::parts(*region) {
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
        let file = datafiles.entry(datafile).or_default();
        let kept = size.div_ceil(CHUNK);
        let cut = file.chunks.split_off(&kept);
        self.0.used.set(self.0.used.get() - cut.len() as u64 * CHUNK);
        if size < file.size
            && let Some(last) = file.chunks.get_mut(&(size / CHUNK))
        {
            last[(size % CHUNK) as usize..].fill(0);
        }
        file.size = size;
        Ok(())
    }

    async fn remove(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        self.0.removed.borrow_mut().bury(datafile);
        if let Some(file) = self.0.datafiles.borrow_mut().remove(&datafile) {
            self.0.used.set(self.0.used.get() - file.chunks.len() as u64 * CHUNK);
        }
        self.0.medium.sync().await
    }

    async fn sync(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        self.check(datafile)?;
        self.0.medium.sync().await
    }

    async fn size(&self, datafile: DatafileHandle) -> Result<u64, FsError> {
        self.check(datafile)?;
        Ok(self.0.datafiles.borrow().get(&datafile).map_or(0, |file| file.size))
    }

    async fn stat(&self) -> Result<IodStat, FsError> {
        Ok(IodStat {
            capacity: self.0.capacity,
            free: self.0.capacity - self.0.used.get(),
            datafiles: self.0.datafiles.borrow().len() as u64,
        })
    }
}
