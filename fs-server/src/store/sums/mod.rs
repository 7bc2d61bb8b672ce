//! Checksums of datafiles at rest: what the disk returns is compared with what was stored.
//!
//! **What is protected.** Each block of 4 KiB of a datafile that is *settled*: for some seconds
//! nothing was changed, and its sums were made from what was written, synced, and stored. From then
//! on each read is checked, until the next change. Then nothing of the datafile is checked before
//! it is settled again. A block that was not changed keeps its sum. So what the disk has done to it
//! meanwhile is noticed afterwards.
//!
//! **Why not with each write.** Bytes and sum would have to reach the disk together, through a
//! journal of all data or by writing elsewhere. So a sum that is there always holds, and none is
//! there while bytes may be on their way. A write of a datafile that was never settled costs
//! nothing more, and neither does a sync.
//!
//! **Invariants**
//! 1. A header that says *settled* is written when the bytes and the sums are durable. It need not
//!    be durable itself.
//! 2. Before a settled datafile is changed in any way, its header says *unsettled*, durably. The
//!    header is overwritten in its place, so a full disk does not prevent it.
//! 3. So after a power failure, or the end of the process at any time, sums that count are those of
//!    what is on the disk. All others are made anew, when the datafile is opened again.
//! 4. A store that is opened without sums ends the era (`record.rs`), durably, before it is used.
//!    Sums of an earlier era do not count.
//! 5. A datafile has one [`FileSums`], as long as it is open or known to be unsettled. To forget an
//!    unsettled one is safe: what was changed is then not known, and all of its sums are made anew.
//!
//! **Why not one record of all unsettled datafiles,** like the marks: it would be synced by all
//! changes in turn, it could be full, and it would have to be synced when datafiles settle. The
//! price is that the datafiles that a killed server has left unsettled are settled when they are
//! opened, by a client or a scrub, and not at the start.
//!
//! **Memory.** Pages of sums that were used last are kept, 32 MiB of them.
//!
//! **What is not noticed.** Bytes that were changed before they were summed, also in a block of
//! which a part was written over. A write that a disk has dropped is noticed if the system reads
//! the block from the disk, and so are bytes at the wrong place.
//!
//! **Tests.** `store/tests/sums.rs`; power failures at each change (`crash_images.rs`), and any
//! sequence of changes (`every_store.rs`), with sums.

mod check;
mod record;
mod scrub;
mod state;
mod steps;

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fs_proto::DatafileHandle;

pub(in crate::store) use self::check::Check;
pub(in crate::store) use self::record::BLOCK;
use self::record::{Header, Page, SumsFile, begin_era};
pub(in crate::store) use self::scrub::Part;
use self::state::Settled;
pub(in crate::store) use self::state::{Attempt, Change, FileSums, What};
pub(in crate::store) use self::steps::Settling;
use super::SumsStat;
use super::disk::DiskDir;
use super::sys::no_descriptor;
use crate::lock::lock;

/// Pages that are kept in memory, of 4 KiB.
const KEPT: usize = 8192;
/// Most datafiles that are remembered to be unsettled while nobody uses them.
const MOST_UNSETTLED: usize = 65_536;

/// A page's place: a datafile, the page, and the number of the sums.
type Place = (DatafileHandle, u64, u64);

/// The sums of a store.
#[derive(Debug)]
pub(in crate::store) struct Sums {
    dir: Arc<dyn DiskDir>,
    era: u64,
    files: Mutex<BTreeMap<DatafileHandle, Arc<FileSums>>>,
    /// The last number of sums ([`Settled::number`]).
    numbers: AtomicU64,
    pages: Mutex<Pages>,
    /// As in [`SumsStat`].
    checked: AtomicU64,
    damaged: AtomicU64,
    /// Somebody settles datafiles.
    pub(in crate::store) is_tended: AtomicBool,
}

/// Pages in memory.
#[derive(Default)]
struct Pages {
    kept: BTreeMap<Place, Arc<Page>>,
    /// The place at which the last one was dropped. The next one is behind it.
    hand: Option<Place>,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").field("kept", &self.kept.len()).finish_non_exhaustive()
    }
}

impl Sums {
    /// Opens the sums of a directory, or ends them if `keeps` is false.
    pub(in crate::store) fn open(dir: Arc<dyn DiskDir>, keeps: bool) -> io::Result<Option<Arc<Sums>>> {
        let era = begin_era(&*dir, keeps)?;
        let sums = || Sums {
            dir,
            era,
            files: Mutex::default(),
            numbers: AtomicU64::new(0),
            pages: Mutex::default(),
            checked: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            is_tended: AtomicBool::new(false),
        };
        Ok(keeps.then(|| Arc::new(sums())))
    }

    /// Returns what is known of the sums of a datafile that is opened. A datafile is opened once at
    /// a time.
    ///
    /// # Errors
    /// No descriptor is free.
    pub(in crate::store) fn attach(&self, datafile: DatafileHandle) -> io::Result<Arc<FileSums>> {
        if let Some(found) = lock(&self.files).get(&datafile) {
            return Ok(found.clone());
        }
        let header = SumsFile::open(&*self.dir, datafile, false).and_then(|file| match file {
            Some(file) => Ok(file.header()?.filter(|header| header.era == self.era)),
            None => Ok(None),
        });
        let file = match header {
            Ok(header) => {
                let settled = header.and_then(|header| header.settled).map(|len| self.settled(len));
                // One that a killed server has left.
                FileSums::new(datafile, Ok(settled), header.is_some())
            }
            Err(error) if no_descriptor(&error).is_some() => return Err(error),
            Err(error) => {
                tracing::warn!(%datafile, %error, "its checksums cannot be read, so nothing is checked");
                FileSums::new(datafile, Err(()), false)
            }
        };
        let file = Arc::new(file);
        lock(&self.files).insert(datafile, file.clone());
        Ok(file)
    }

    /// Returns sums with a number of their own.
    fn settled(&self, len: u64) -> Settled {
        Settled { number: self.numbers.fetch_add(1, Ordering::Relaxed) + 1, len }
    }

    /// Begins a check of bytes that are about to be read, if the sums of the datafile hold.
    pub(in crate::store) fn check(self: &Arc<Self>, file: &Arc<FileSums>) -> Option<Check> {
        let settled = file.settled()?;
        Some(Check { sums: self.clone(), file: file.clone(), settled })
    }

    /// Lets the header of a datafile say that its sums do not hold, durably.
    pub(in crate::store) fn unsettle(&self, file: &FileSums) -> io::Result<()> {
        let _noting = lock(&file.noting);
        if let Some(sums) = SumsFile::open(&*self.dir, file.datafile, false)? {
            sums.set_header(Header { settled: None, era: self.era })?;
            sums.sync()?;
        }
        file.unsettle();
        Ok(())
    }

    /// Removes the sums of a datafile that is about to be removed.
    pub(in crate::store) fn remove(&self, datafile: DatafileHandle) -> io::Result<()> {
        let Some(file) = lock(&self.files).get(&datafile).cloned() else {
            return SumsFile::remove(&*self.dir, datafile);
        };
        let _noting = lock(&file.noting);
        SumsFile::remove(&*self.dir, datafile)?;
        file.forget();
        Ok(())
    }

    /// Returns at most `most` datafiles that should be settled now: all that are unsettled if `now`
    /// is set, else those that were not changed for some looks. Forgets those that nobody uses and
    /// that have nothing to be done.
    pub(in crate::store) fn due(&self, now: bool, most: usize) -> Vec<Arc<FileSums>> {
        let files = &mut *lock(&self.files);
        let (mut due, mut kept) = (Vec::new(), 0);
        files.retain(|_, file| {
            let is_used = Arc::strong_count(file) > 1;
            let is_due = file.is_due(now);
            if is_due && due.len() < most {
                due.push(file.clone());
            }
            kept += usize::from(!is_used);
            is_used || is_due || (file.is_wanted() && kept <= MOST_UNSETTLED)
        });
        due
    }

    /// Returns a page of the sums that a check needs; `None` if it is not known.
    fn page(&self, check: &Check, number: u64, waits: bool) -> io::Result<Option<Arc<Page>>> {
        let (datafile, settled) = (check.file.datafile, check.settled);
        if number * record::CHUNK >= settled.len {
            return Ok(Some(Arc::new(Page::zeros())));
        }
        let place = (datafile, number, settled.number);
        if let Some(page) = lock(&self.pages).kept.get(&place) {
            return Ok(Some(page.clone()));
        }
        if !waits {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let page = match SumsFile::open(&*self.dir, datafile, false) {
            Ok(Some(file)) => file.page(number).unwrap_or_default(),
            _ => None,
        };
        let Some(page) = page else {
            tracing::warn!(%datafile, page = number, "a page of its checksums cannot be read, so nothing is checked");
            return Ok(None);
        };
        let (page, pages) = (Arc::new(page), &mut *lock(&self.pages));
        while pages.kept.len() >= KEPT {
            let behind = pages.hand.map_or(Bound::Unbounded, Bound::Excluded);
            pages.hand = pages.kept.range((behind, Bound::Unbounded)).next().map(|(place, _)| *place);
            pages.hand.and_then(|place| pages.kept.remove(&place));
        }
        pages.kept.insert(place, page.clone());
        Ok(Some(page))
    }

    /// Returns what was compared so far.
    pub(in crate::store) fn stat(&self) -> SumsStat {
        SumsStat { checked: self.checked.load(Ordering::Relaxed), damaged: self.damaged.load(Ordering::Relaxed) }
    }
}
