//! Where servers keep things: datafiles ([`DataStore`]) and metadata ([`MetaStore`]).
//!
//! **Why a trait for data.** The I/O server runs unchanged over a directory of files
//! ([`FileStore`]) and, in the simulator, over memory with a disk's prices ([`MemStore`] with a
//! [`Medium`]). Metadata needs none: the embedded store itself runs over a file or over memory.
//!
//! **Invariants** of every [`DataStore`]
//! 1. A datafile that nobody wrote is an empty one; one that was removed is `Stale`
//!    ([`TombstoneSet`]).
//! 2. Reads are never short: bytes never written, and those beyond the end, are zero.
//! 3. What was written before a `sync` that succeeded survives a crash.
//! 4. An error of `read` or `write` names the ranges that were not done; the others were.

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

/// What there is of a datafile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Its length in bytes.
    pub size: u64,
    /// When it was last written to or its length changed, in nanoseconds since 1970; 0 if never, or
    /// if the store has no clock.
    pub mtime_ns: u64,
}

/// The store of an I/O server. Futures must be run to their end, so that no operation on `from` or
/// `into` outlives them.
#[async_trait(?Send)]
pub trait DataStore {
    /// Transfers that it works at, at a time, without one of them waiting for another: 1 for one
    /// disk arm.
    fn places(&self) -> usize {
        1
    }

    /// Writes `regions`, which together are as long as `from`, in the order of its bytes.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Stale`, `TooLarge`, each with the ranges that were not written.
    async fn write(&self, datafile: DatafileHandle, regions: &[Region], from: &MemList) -> Result<(), FsError>;

    /// Reads `regions`, which together are as long as `into`.
    ///
    /// # Errors
    /// `Io`, `Stale`, with the ranges that were not read.
    async fn read(&self, datafile: DatafileHandle, regions: &[Region], into: &MemList) -> Result<(), FsError>;

    /// Cuts the datafile off at `size` bytes, or extends it with zeros.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Stale`, `TooLarge`.
    async fn truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError>;

    /// Removes the datafile, durably; one that is not there is no error.
    ///
    /// # Errors
    /// `Io`.
    async fn remove(&self, datafile: DatafileHandle) -> Result<(), FsError>;

    /// Makes durable what was written to the datafile so far.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Stale`.
    async fn sync(&self, datafile: DatafileHandle) -> Result<(), FsError>;

    /// The datafile's length in bytes, and when it was last changed.
    ///
    /// # Errors
    /// `Io`, `Stale`.
    async fn held(&self, datafile: DatafileHandle) -> Result<Held, FsError>;

    /// The datafile's length in bytes.
    ///
    /// # Errors
    /// `Io`, `Stale`.
    async fn size(&self, datafile: DatafileHandle) -> Result<u64, FsError> {
        Ok(self.held(datafile).await?.size)
    }

    /// What the store holds.
    ///
    /// # Errors
    /// `Io`.
    async fn stat(&self) -> Result<IodStat, FsError>;
}

/// A store that the transports of one server share.
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

/// Datafiles that were removed not long ago. Handles are never given out twice, so whoever still
/// writes to one holds an old layout, and must not bring the datafile back to life, where nobody
/// would ever remove it again.
///
/// Bounded: the last [`TombstoneSet::KEPT`] removals; over files also those of earlier starts. A
/// client that writes to a file removed longer ago leaves a datafile behind that only a check of
/// the whole cluster would find.
#[derive(Debug, Default)]
pub struct TombstoneSet {
    order: VecDeque<DatafileHandle>,
    removed: BTreeSet<DatafileHandle>,
}

impl TombstoneSet {
    /// How many are kept; one costs some 24 bytes.
    pub const KEPT: usize = 1 << 16;

    /// Notes a removal.
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

    /// Refuses a datafile that was removed.
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

/// Makes a directory, and those above it, as far as they are not there, durably: what is synced in
/// it later must not be lost with a name that never reached the disk.
pub(crate) fn durable_dir(dir: &Path) -> io::Result<()> {
    durable_dir_by(dir, |above| File::open(above)?.sync_all())
}

/// `sync` makes durable what names are in a directory.
fn durable_dir_by(dir: &Path, sync: impl FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    let dir = std::path::absolute(dir)?;
    let missing = dir.ancestors().take_while(|dir| !dir.exists()).count();
    fs::create_dir_all(&dir)?;
    // The nearest one in any case: whoever made the directory may have been killed before it came
    // to this.
    dir.ancestors().skip(1).take(missing.max(1)).try_for_each(sync)
}

/// Bytes of a sector: what a disk writes at once.
pub const SECTOR: usize = 512;

/// What becomes, when the power fails, of what was not synced. The simulator draws it.
pub trait Fates {
    /// Whether something that cannot be torn, a name or a length, is there as it was changed last.
    fn keeps(&mut self) -> bool;

    /// Makes of the bytes of a sector, `now`, what is left of them; `old` is what the disk had, and
    /// zeros behind that.
    fn sector(&mut self, old: &[u8], now: &mut [u8]);
}

/// Everything that was not synced is lost.
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

/// What is left of `regions` behind their first `done` bytes.
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
