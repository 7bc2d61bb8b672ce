//! The stores of the servers: datafiles ([`DataStore`]) and metadata ([`MetaStore`]).
//!
//! **Why a trait for data.** The I/O server runs unchanged over a directory of files
//! ([`FileStore`]) and, in the simulator, over memory with the costs of a disk ([`MemStore`] with a
//! [`Medium`]). Metadata needs no trait: the embedded database runs over a file or over memory.
//!
//! **Invariants** of every [`DataStore`]
//! 1. A datafile that was never written is empty. A datafile that was removed is `Stale`
//!    ([`TombstoneSet`]).
//! 2. Reads are never short: bytes never written, and those beyond the end, are zero.
//! 3. Everything written before a successful `sync` survives a crash.
//! 4. An error of `read` or `write` names the ranges that were not done. The others were.

mod file;
mod identity;
mod mem;
mod meta;
mod sys;
mod tombstone_file;

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::rc::Rc;

use async_trait::async_trait;
use bmi_core::MemList;
use fs_proto::{DatafileHandle, ErrorCode, FsError, IodStat, Region};

pub use file::FileStore;
pub(crate) use identity::Claim;
pub use mem::{Free, Medium, MemStore};
pub(crate) use meta::fault;
pub use meta::{MetaStore, SharedBackend};

/// Size and modification time of a datafile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Its length in bytes.
    pub size: u64,
    /// Time of the last write or change of length, in nanoseconds since 1970. 0 if there was none,
    /// or if the store has no clock.
    pub mtime_ns: u64,
}

/// The store of an I/O server. Futures must be run to their end, so that no operation on `from` or
/// `into` outlives them.
#[async_trait(?Send)]
pub trait DataStore {
    /// Returns the number of transfers that can run at the same time without waiting for each
    /// other: 1 for one disk arm.
    fn places(&self) -> usize {
        1
    }

    /// Writes `regions`, in order, from `from`. They have the same total length.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Stale`, `TooLarge`, each with the ranges that were not written.
    async fn write(&self, datafile: DatafileHandle, regions: &[Region], from: &MemList) -> Result<(), FsError>;

    /// Reads `regions`, in order, into `into`. They have the same total length.
    ///
    /// # Errors
    /// `Io`, `Stale`, with the ranges that were not read.
    async fn read(&self, datafile: DatafileHandle, regions: &[Region], into: &MemList) -> Result<(), FsError>;

    /// Sets the length of the datafile to `size` bytes: cuts it off or extends it with zeros.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Stale`, `TooLarge`.
    async fn truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError>;

    /// Removes the datafile, durably. It is not an error if it does not exist.
    ///
    /// # Errors
    /// `Io`.
    async fn remove(&self, datafile: DatafileHandle) -> Result<(), FsError>;

    /// Makes all earlier writes to the datafile durable.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Stale`.
    async fn sync(&self, datafile: DatafileHandle) -> Result<(), FsError>;

    /// Returns the datafile's length in bytes and the time of its last change.
    ///
    /// # Errors
    /// `Io`, `Stale`.
    async fn held(&self, datafile: DatafileHandle) -> Result<Held, FsError>;

    /// Returns the datafile's length in bytes.
    ///
    /// # Errors
    /// `Io`, `Stale`.
    async fn size(&self, datafile: DatafileHandle) -> Result<u64, FsError> {
        Ok(self.held(datafile).await?.size)
    }

    /// Returns the size and use of the store.
    ///
    /// # Errors
    /// `Io`.
    async fn stat(&self) -> Result<IodStat, FsError>;
}

/// A store that is shared by the transports of one server.
#[async_trait(?Send)]
impl<S: DataStore + ?Sized> DataStore for Rc<S> {
    fn places(&self) -> usize {
        (**self).places()
    }

    async fn write(&self, datafile: DatafileHandle, regions: &[Region], from: &MemList) -> Result<(), FsError> {
        (**self).write(datafile, regions, from).await
    }

    async fn read(&self, datafile: DatafileHandle, regions: &[Region], into: &MemList) -> Result<(), FsError> {
        (**self).read(datafile, regions, into).await
    }

    async fn truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        (**self).truncate(datafile, size).await
    }

    async fn remove(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        (**self).remove(datafile).await
    }

    async fn sync(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        (**self).sync(datafile).await
    }

    async fn held(&self, datafile: DatafileHandle) -> Result<Held, FsError> {
        (**self).held(datafile).await
    }

    async fn stat(&self) -> Result<IodStat, FsError> {
        (**self).stat().await
    }
}

/// The recently removed datafiles. Handles are never assigned twice. So a client that still writes
/// to a removed datafile has an old layout. It must not create the datafile again, because nothing
/// would ever remove it.
///
/// The set is bounded to the last [`TombstoneSet::KEPT`] removals. A store of files also keeps
/// those of earlier starts. If a client writes to a file that was removed earlier than these, it
/// leaves a datafile behind that only a check of the whole cluster would find.
#[derive(Debug, Default)]
pub struct TombstoneSet {
    order: VecDeque<DatafileHandle>,
    removed: BTreeSet<DatafileHandle>,
}

impl TombstoneSet {
    /// Number of removals kept. Each one costs some 24 bytes.
    pub const KEPT: usize = 1 << 16;

    /// Records a removal.
    pub fn bury(&mut self, datafile: DatafileHandle) {
        if self.removed.insert(datafile) {
            self.order.push_back(datafile);
        }
        if self.order.len() > Self::KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.removed.remove(&oldest);
        }
    }

    /// Rejects a datafile that was removed.
    ///
    /// # Errors
    /// `Stale`.
    pub fn check(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        if self.removed.contains(&datafile) {
            return Err(FsError::new(ErrorCode::Stale, format!("{datafile} was removed")));
        }
        Ok(())
    }
}

/// Creates a directory and its missing parents, durably. Data that is synced in it later must not
/// be lost because the directory's name never reached the disk.
pub(crate) fn durable_dir(dir: &Path) -> io::Result<()> {
    durable_dir_by(dir, |above| File::open(above)?.sync_all())
}

/// Implements [`durable_dir`]. `sync` makes the names in a directory durable.
fn durable_dir_by(dir: &Path, sync: impl FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    let dir = std::path::absolute(dir)?;
    let missing = dir.ancestors().take_while(|dir| !dir.exists()).count();
    fs::create_dir_all(&dir)?;
    // Always sync at least the parent. The directory may have been created by a process that was
    // killed before it synced.
    dir.ancestors().skip(1).take(missing.max(1)).try_for_each(sync)
}

/// Bytes of a sector, which a disk writes atomically.
pub const SECTOR: usize = 512;

/// Decides what a power failure leaves of unsynced data. The simulator draws it at random.
pub trait Fates {
    /// Returns true if the last change of something that cannot be torn, a name or a length, has
    /// reached the disk.
    fn keeps(&mut self) -> bool;

    /// Replaces `now`, the bytes of a sector, by what is left of them. `old` is what the disk had;
    /// after its end the disk had zeros.
    fn sector(&mut self, old: &[u8], now: &mut [u8]);
}

/// All unsynced data is lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllLost;

impl Fates for AllLost {
    fn keeps(&mut self) -> bool {
        false
    }

    fn sector(&mut self, old: &[u8], now: &mut [u8]) {
        for (at, byte) in now.iter_mut().enumerate() {
            *byte = old.get(at).copied().unwrap_or(0);
        }
    }
}

/// Returns the part of `regions` after their first `done` bytes.
fn remainder(regions: &[Region], done: u64) -> Vec<Region> {
    let mut skip = done;
    let mut left = Vec::new();
    for region in regions {
        let start = skip.min(region.len);
        skip -= start;
        if start < region.len {
            left.push(region.part(start, region.len));
        }
    }
    left
}

#[cfg(test)]
mod tests;
