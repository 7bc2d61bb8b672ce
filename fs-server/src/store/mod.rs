//! The stores of the servers: datafiles ([`DataStore`]) and metadata ([`MetaStore`]).
//!
//! **Why a trait for data.** The I/O server runs unchanged over a directory of files
//! ([`FileStore`]), over a cache in front of it ([`UnifiedStore`]), and in the simulator over the
//! same [`FileStore`] at the prices of a disk. Metadata needs no trait: the embedded database runs
//! over a file.
//!
//! **Why a trait for the disk** (`disk`). A real store on a disk that loses, tears and refuses
//! what a real one may: so power failures and faults are tried on the store that people use.
//!
//! **Invariants** of every [`DataStore`]
//! 1. A datafile exists from its creation, which is durable, until its removal. Nothing else makes
//!    one: an operation on a datafile that does not exist fails with `Lost`.
//! 2. Reads are never short: bytes never written, and those beyond the end, are zero. A datafile
//!    that is shorter than it was when it was last synced is not read at all: `Lost`.
//! 3. Everything written before a successful `sync` survives a crash.
//! 4. A datafile for which `prepare_truncate` was acknowledged obeys only `commit_truncate`,
//!    `cancel_truncates` and `remove`, also after a crash.
//! 5. An error of `read` or `write` names the ranges that were not done. The others were.
//!
//! **Rooms.** Each uses only those below it:
//!
//! ```text
//!   cache      a cache in front of the files: services, views
//!   files      the store of files, its records, its modes          meta   the manager's metadata
//!   transfer   how bytes get between memory and a file
//!   open       open files                                          label  whose directory it is
//!   sums       checksums of datafiles
//!   disk       what a store asks of a file system: a real one, and one in memory that fails
//!   sys        calls of the system and their errors
//! ```

mod cache;
mod disk;
mod files;
#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub(crate) mod fuzz;
mod label;
mod meta;
mod open;
mod sums;
mod sys;
mod transfer;

use std::any::Any;
use std::ops::Deref;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use bmi::memory::MemoryRegion;
use bmi::{Error, MemList, Memory, Time};
use bmi_cache::ReadyRegions;
use fs_proto::{
    Allocation, CacheCoverage, CacheHints, CacheStat, CachedFile, DatafileHandle, ErrorCode, FsError, IodStat, Region,
    ServiceKind, Sought, ViewRange, ViewRefusal,
};

pub(crate) use cache::{AnyStore, CachedFiles};
pub use cache::{CacheSettings, LEAST_CACHE, Service, SharedRange, UnifiedStore, ViewSettings};
pub(crate) use disk::DATABASE;
#[cfg(any(test, feature = "sim"))]
pub use disk::{Contents, DiskStep, MemDatabase, MemDisk};
pub use files::FileStore;
#[cfg(any(test, feature = "sim"))]
pub use files::{datafile_of, name_of};
#[cfg(test)]
pub(crate) use label::DirLock;
pub use label::Label;
pub(crate) use label::{Directory, Holder, IDENTITY, holder, others};
pub use meta::MetaStore;
pub(crate) use meta::fault;

/// Size and modification time of a datafile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Its length in bytes.
    pub size: u64,
    /// Time of the last write or change of length, in nanoseconds since 1970. 0 if there was none,
    /// or if the store has no clock.
    pub mtime_ns: u64,
}

/// What a store has compared with its checksums since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SumsStat {
    /// Number of bytes that were right.
    pub checked: u64,
    /// Number of times that a block was not.
    pub damaged: u64,
}

/// What a part of a datafile is like on the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// There are sums, and nothing was changed meanwhile.
    pub is_summed: bool,
    /// Number of bytes that were read.
    pub read: u64,
    /// Bytes that are not those that were stored, or cannot be read, with their range.
    pub damage: Option<FsError>,
    /// Where to go on; `None` if nothing follows.
    pub next: Option<u64>,
}

/// Which memory of its own a store lends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lends {
    /// None: the caller provides memory.
    #[default]
    Nothing,
    /// That of bytes that are read ([`DataStore::lend`]). They may change while they are sent
    /// ([`Lent::check`]), so it is for transfers after which an error can still be reported.
    Reads,
    /// That of its own cache, for bytes that are read or written ([`DataStore::lend`],
    /// [`DataStore::receive`]). They do not change while they are lent. Reads and writes of such a
    /// store are made in no turn at the disk: it takes turns itself.
    Cache,
}

/// Bytes in memory that a store lends, for instance from its cache, and the owner of that memory.
pub struct Loan {
    /// The bytes, in the order of the regions.
    pub list: MemList,
    /// Keeps the memory as it is until it is dropped.
    pub owner: Box<dyn Lent>,
}

/// The owner of bytes that are lent.
pub trait Lent: Any {
    /// Call it when the bytes were sent, before that is reported.
    ///
    /// # Errors
    /// `Io`, with ranges: what was sent is not what the datafile has.
    fn check(&self) -> Result<(), FsError> {
        Ok(())
    }
}

/// Bytes that nobody changes.
impl Lent for () {}

/// Memory of a store for bytes that are about to be written ([`DataStore::receive`]).
#[async_trait(?Send)]
pub trait Receipt {
    /// Returns the memory, in the order of the regions. Before it is filled it contains anything,
    /// also bytes of other datafiles: no peer may be able to read it.
    fn list(&self) -> &MemList;

    /// The memory was filled: the datafile has these bytes now, as after [`DataStore::write`].
    ///
    /// # Errors
    /// As [`DataStore::write`].
    async fn commit(self: Box<Self>) -> Result<(), FsError>;
}

/// A turn at the disk, for a store that finds out itself whether it needs the disk.
#[async_trait(?Send)]
pub trait DiskTurn {
    /// Waits for the turn, which ends when the result is dropped.
    ///
    /// # Errors
    /// The request should not go on.
    async fn take(&self) -> Result<Box<dyn Any>, FsError>;
}

/// The store of an I/O server.
///
/// **Why this shape.** The trait is made for a directory of files, for a simulated disk, and for a
/// cache with its own buffers in front of either.
/// - *Datafiles are created, not found.* [`DataStore::create`] is exclusive and durable, and makes
///   many at once, so that no write has to create anything.
/// - *Nothing blocks.* A method returns a future. Work that can wait for a disk, however short, is
///   done elsewhere, on a thread or by the kernel, while the future waits.
/// - *Buffers are borrowed.* `from` and `into` belong to the caller and may be in use by the store
///   until the future has ended, so futures must be run to their end. In the other direction, a
///   store that has the bytes in memory lends them ([`DataStore::lend`]), and the server sends them
///   from there.
/// - *A cache fits behind it.* All access to a datafile goes through the trait, and `sync` is the
///   only promise about the disk.
#[async_trait(?Send)]
pub trait DataStore {
    /// Returns the store's label; `None` if it has none yet.
    fn label(&self) -> Option<Label>;

    /// Replaces the store's label, durably.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Permission`. The label is then the old one or the new one.
    async fn relabel(&self, label: &Label) -> Result<(), FsError>;

    /// Returns the number of transfers that can run at the same time without waiting for each
    /// other: 1 for one disk arm.
    fn places(&self) -> usize {
        1
    }

    /// Creates `count` empty datafiles with consecutive handles from `first` on, durably. The range
    /// is disjoint from all earlier ones, or the same as the last one. Then the datafiles that
    /// exist are left as they are.
    ///
    /// # Errors
    /// `NoSpace`, `Io`. Some of them may then exist.
    async fn create(&self, first: DatafileHandle, count: u32) -> Result<(), FsError>;

    /// Removes, durably, those of a range of datafiles that exist and are empty.
    ///
    /// # Errors
    /// `Io`.
    async fn discard(&self, first: DatafileHandle, count: u32) -> Result<(), FsError>;

    /// Removes datafiles, durably. It is not an error if one does not exist.
    ///
    /// # Errors
    /// `Io`.
    async fn remove(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError>;

    /// Returns at most `max` datafiles that follow `after` in the store's own order, and whether
    /// there are more. Datafiles that exist during the whole listing are listed exactly once.
    ///
    /// # Errors
    /// `Io`.
    async fn list(&self, after: Option<DatafileHandle>, max: usize) -> Result<(Vec<DatafileHandle>, bool), FsError>;

    /// Writes `regions`, in order, from `from`. They have the same total length.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Lost`, `TooLarge`, each with the ranges that were not written.
    async fn write(&self, datafile: DatafileHandle, regions: &[Region], from: &MemList) -> Result<(), FsError>;

    /// Reads `regions`, in order, into `into`. They have the same total length.
    ///
    /// # Errors
    /// `Io`, `Lost`, with the ranges that were not read. `Lost` also if what the disk has does not
    /// match its checksum.
    async fn read(&self, datafile: DatafileHandle, regions: &[Region], into: &MemList) -> Result<(), FsError>;

    /// Returns why every operation on a datafile fails now, as far as that is known without asking
    /// the disk: it was marked, or the store has failed.
    fn refusal(&self, datafile: DatafileHandle) -> Option<FsError>;

    /// Returns which memory the store lends. [`DataStore::lend`] and [`DataStore::receive`] are
    /// called only for that.
    fn lends(&self) -> Lends {
        Lends::Nothing
    }

    /// Lends the bytes of `regions`, in memory that an adapter may read from. Takes a turn if it
    /// needs the disk. `None` means that the caller provides memory and calls [`DataStore::read`].
    ///
    /// # Errors
    /// As [`DataStore::read`].
    async fn lend(
        &self,
        datafile: DatafileHandle,
        regions: &[Region],
        turn: &dyn DiskTurn,
    ) -> Result<Option<Loan>, FsError> {
        let _ = (datafile, regions, turn);
        Ok(None)
    }

    /// Lends memory for the bytes of `regions`, which an adapter may write to, once nobody else
    /// uses these bytes. `None` means that the caller provides memory and calls
    /// [`DataStore::write`]. If the receipt is dropped, nothing was written, except that bytes that
    /// were not synced may be the old ones or those that arrived.
    ///
    /// # Errors
    /// As [`DataStore::write`].
    async fn receive(&self, datafile: DatafileHandle, regions: &[Region]) -> Result<Option<Box<dyn Receipt>>, FsError> {
        let _ = (datafile, regions);
        Ok(None)
    }

    /// Puts a range of a datafile where clients on this host can read it in place. Takes a turn if
    /// it needs the disk. Leases begin at `now`. Only called if the peer's transport can lend
    /// memory.
    ///
    /// # Errors
    /// As [`DataStore::read`]. The inner one tells why the range is not lent; it can be read.
    async fn share(
        &self,
        datafile: DatafileHandle,
        range: ViewRange,
        now: Time,
        turn: &dyn DiskTurn,
    ) -> Result<Result<SharedRange, ViewRefusal>, FsError> {
        let _ = (datafile, range, now, turn);
        Ok(Err(ViewRefusal::NoCache))
    }

    /// Registers the memory that the store lends most with an adapter. Cheap if nothing has
    /// changed since the last call with these `regions`.
    fn register(&self, regions: &mut ReadyRegions, register: &mut dyn FnMut(&Memory) -> Result<MemoryRegion, Error>) {
        let _ = (regions, register);
    }

    /// Returns true if a request waits for another one that uses the same bytes.
    fn any_waits(&self) -> bool {
        false
    }

    /// Returns how the store keeps and moves bytes, for users to see.
    fn service(&self) -> ServiceKind {
        ServiceKind::Normal
    }

    /// Tells how a datafile will be used, in place of what was told before. What makes no sense is
    /// ignored, and what is told may be overruled.
    fn advise(&self, datafile: DatafileHandle, hints: CacheHints) {
        let _ = (datafile, hints);
    }

    /// Returns the state of the store's own cache; `None` if it has none. Any peer may ask for it
    /// at any time, as with the two queries below, so it must not look at the datafiles one by one.
    fn cache_stat(&self) -> Option<CacheStat> {
        None
    }

    /// Returns what was compared with checksums; `None` if the store keeps none.
    fn sums_stat(&self) -> Option<SumsStat> {
        None
    }

    /// Compares what the disk has of a datafile, past any cache, with its checksums, from an offset
    /// on. Ends after `most` bytes, which may be exceeded by one transfer, or behind the first
    /// damage. A datafile without sums gets some, if nobody changes it.
    ///
    /// # Errors
    /// `Unsupported` if the store keeps no checksums. `Lost`, `Busy`.
    async fn scrub(&self, datafile: DatafileHandle, from: u64, most: u64) -> Result<Scrubbed, FsError> {
        let _ = (datafile, from, most);
        Err(no_sums())
    }

    /// Returns the busiest `most` of those datafiles that the store has something of in its own
    /// cache. Looks at the first `look` of these behind `after`, in the order of their handles. If
    /// there are more behind them, also returns the last one that it has looked at.
    fn busiest(
        &self,
        after: Option<DatafileHandle>,
        look: usize,
        most: usize,
    ) -> (Vec<CachedFile>, Option<DatafileHandle>) {
        let _ = (after, look, most);
        (Vec::new(), None)
    }

    /// Returns how much of a region of a datafile is in the store's own cache; `None` if it has
    /// none. If that would take long, also returns the offset from which on it has not looked.
    fn coverage(&self, datafile: DatafileHandle, region: Region) -> Option<(CacheCoverage, Option<u64>)> {
        let _ = (datafile, region);
        None
    }

    /// Does the background work of the store. `sleep` waits for some time. Never returns.
    async fn tend(&self, sleep: &dyn Fn(Duration) -> Pin<Box<dyn Future<Output = ()>>>) {
        let _ = sleep;
        std::future::pending().await
    }

    /// Records, durably, that the datafile is about to get the length `size`. From now on every
    /// operation on it fails with `Busy`, except this one, which replaces the size,
    /// [`DataStore::commit_truncate`], [`DataStore::cancel_truncates`] and [`DataStore::remove`].
    /// Whatever may be lacking for the change is found out or done now, as far as that is possible.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Lost`; `TooLarge` if no datafile here can have that length. The record may
    /// then exist or not, until [`DataStore::cancel_truncates`] succeeds.
    async fn prepare_truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError>;

    /// Sets the length of the datafile to `size` bytes: cuts it off or extends it with zeros. If
    /// this was prepared, it is durable, and the record of the preparation is gone.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Lost`, `TooLarge`. A preparation is then still recorded.
    async fn truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError>;

    /// Carries out the prepared change of a datafile's length, durably: it is cut off at `cut`, and
    /// then has `size` bytes, whatever size was prepared. Does nothing if none is prepared: it was
    /// carried out before.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `TooLarge`. The change then remains prepared, and operations fail with
    /// `Unfinished` in place of `Busy`. `Lost`: there is nothing left to change.
    async fn commit_truncate(&self, datafile: DatafileHandle, cut: u64, size: u64) -> Result<(), FsError>;

    /// Forgets, durably, every prepared change of length except those of some datafiles.
    ///
    /// # Errors
    /// `Io`. The changes then remain prepared.
    async fn cancel_truncates(&self, except: &[DatafileHandle]) -> Result<(), FsError>;

    /// Waits until the store has failed for good, and returns the reason. Operations fail from then
    /// on, and the server must stop. A store that does not fail never returns.
    async fn failure(&self) -> FsError {
        std::future::pending().await
    }

    /// Gives a range of a datafile space on the disk, or takes it away. The work is in proportion
    /// to the range.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Lost`, `TooLarge`; `Unsupported` if the disk cannot do it. Any part of it
    /// may be done.
    async fn allocate(&self, datafile: DatafileHandle, range: Region, how: Allocation) -> Result<(), FsError>;

    /// Returns the offset of the first byte of data, or of a hole, from `offset` on; for data
    /// `None` if there is none. Everything behind the end is a hole. Bytes that were never written
    /// may count as data.
    ///
    /// # Errors
    /// `Io`, `Lost`.
    async fn seek(&self, datafile: DatafileHandle, offset: u64, what: Sought) -> Result<Option<u64>, FsError>;

    /// Makes all earlier writes to these datafiles durable. The lengths are remembered: if a
    /// datafile is found shorter later, operations on it fail with `Lost`.
    ///
    /// If the disk fails to sync a datafile, nobody knows what it has of it. From then on all
    /// operations on the datafile fail with `Lost`, in later starts too, until it is removed. If
    /// this cannot be recorded, the store has failed ([`DataStore::failure`]).
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Lost`, `Busy`: that of the first one that failed. The others were synced.
    /// `Busy` and `NoSpace` come before the disk was asked to sync.
    async fn sync(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError>;

    /// Returns the datafile's length in bytes and the time of its last change.
    ///
    /// # Errors
    /// `Io`, `Lost`.
    async fn held(&self, datafile: DatafileHandle) -> Result<Held, FsError>;

    /// Returns the datafile's length in bytes.
    ///
    /// # Errors
    /// `Io`, `Lost`.
    async fn size(&self, datafile: DatafileHandle) -> Result<u64, FsError> {
        Ok(self.held(datafile).await?.size)
    }

    /// Returns the size and use of the store. Any peer may ask for it at any time, so it must not
    /// look at the datafiles one by one.
    ///
    /// # Errors
    /// `Io`.
    async fn stat(&self) -> Result<IodStat, FsError>;

    /// Returns what [`DataStore::stat`] returned last, or would have, without waiting. `None` if
    /// `stat` does not wait either.
    fn known_stat(&self) -> Option<IodStat> {
        None
    }
}

/// A handle of a store, for the event loops of a server and for a cache in front of the store. A
/// clone is another handle of the same store.
pub trait StoreHandle: Deref<Target: DataStore> + Clone + 'static {}

impl<H: Deref<Target: DataStore> + Clone + 'static> StoreHandle for H {}

/// Returns the error for a store that keeps no checksums.
fn no_sums() -> FsError {
    FsError::new(ErrorCode::Unsupported, "the server keeps no checksums (storage.checksums)")
}

/// Returns the error for a datafile that does not exist.
fn absent(datafile: DatafileHandle) -> FsError {
    FsError::new(ErrorCode::Lost, format!("{datafile} does not exist here: it was removed, or this store has lost it"))
}

/// Returns the error for a datafile that is shorter than it was when it was synced.
fn cut_off(datafile: DatafileHandle, size: u64, synced: u64) -> FsError {
    let text = format!("{datafile} has {size} bytes here, but had {synced} when it was synced: it was cut off");
    FsError::new(ErrorCode::Lost, text)
}

/// Bytes of a sector. One that is being written may be torn by a power failure.
pub const SECTOR: usize = 512;

/// Decides what a power failure leaves of unsynced data. The simulator draws it at random.
pub trait Fates {
    /// Returns true if the last change of something that cannot be torn, a name, a length or a
    /// note, has reached the disk.
    fn keeps(&mut self) -> bool;

    /// Returns which of the `count` contents that a sector has had since the last sync is the one
    /// that was written last: 0 is that of the disk.
    fn content(&mut self, count: usize) -> usize {
        count - 1
    }

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
pub(crate) fn remainder(regions: &[Region], done: u64) -> Vec<Region> {
    let mut skip = done;
    let mut left = Vec::new();
    for region in regions {
        bmi::hooks::step();
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
