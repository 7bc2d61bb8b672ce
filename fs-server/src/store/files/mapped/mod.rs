//! Lends the bytes of files where the system has them in memory: the service *Mmap*.
//!
//! **Why.** A read that goes through a buffer of the server copies every byte once. A file that is
//! mapped needs no copy: the adapter reads from the page cache of the system. The price is that
//! memory is mapped and registered on use, and that the pages belong to the system, which may take
//! them away ([Unifier-PVFS §3.1]).
//!
//! **Windows.** A file is mapped in windows of 1 MiB. A window is one [`Memory`], so it is
//! registered at once, and stays registered as long as the endpoint's pin-down cache has room. The
//! store keeps the windows that were used last. So a file that is read again is neither mapped nor
//! registered again.
//!
//! **What is lent.** Reads only: a write through a mapping could fail after it was acknowledged. It
//! is lent only for a transfer after which the server can still report an error, and only in pieces
//! of a page or more on average. Everything else is read into a buffer.
//!
//! **Waiting.** Pages that are not in memory are read by a worker during a turn at the disk
//! (`MADV_POPULATE_READ`). If that fails, or the kernel does not know it (before Linux 5.14), the
//! bytes are read into a buffer, which names the ranges that cannot be read.
//!
//! **A page that goes away** between that moment and the transfer was cut off, or the disk fails as
//! the system reads it again. The kernel then refuses to send from it, which ends the connection,
//! or the server itself gets the signal `SIGBUS`. A handler puts a page of zeros in place, and
//! marks the window as broken (`sys`). The server asks when the transfer has ended, and reports the
//! failure ([`Lent::check`]).
//!
//! **Truncation** by a client is no such case: it waits until the loans of the datafile have ended,
//! and meanwhile nothing of it is lent (`loans`). A loan ends with its transfer, which the
//! request's deadline bounds. It never waits for anything that a truncation holds.
//!
//! **Invariants**
//! 1. A window ends with the last page of the file at the time of its making, and is used only
//!    while the file has that length, in pages. Bytes behind the last page are lent from a memory
//!    of zeros.
//! 2. A broken window is not lent again.
//! 3. Neither the lock of the table nor an event loop is held during a system call that may wait
//!    for a disk.
//!
//! **Limits.** Not over verbs ([`Service::check_over`](super::Service::check_over)): the kernel
//! that runs Soft-RoCE in our tests refuses to register pages that are mapped for reading only. A
//! window keeps the space of a removed file until the transfers from it have ended.
//!
//! **Tests.** `tests.rs`.

mod loans;
mod sys;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use bmi::{Error, MemList, Memory};
use fs_proto::{DatafileHandle, ErrorCode, FsError, Region};

pub(super) use self::loans::lend;
use self::loans::{FileLoan, Loans};
pub(super) use self::sys::Window;
use crate::lock::lock;
use crate::store::Lent;

/// Bytes of a window.
pub(super) const WINDOW: u64 = 1 << 20;
/// Most windows that are kept. There may be more while they are in use.
const KEPT: usize = 512;
/// Most pieces that are lent together.
const MOST_PIECES: u64 = 256;

/// A window's place: a datafile, and its number in it.
type Place = (DatafileHandle, u64);

/// The mapped files of a store.
pub(super) struct Mapped {
    table: Mutex<Table>,
    /// Which datafiles are lent.
    pub(super) loans: Arc<Loans>,
    /// Zeros, for what is behind the end of files.
    zeros: Memory,
    pub(super) page: u64,
}

#[derive(Default)]
pub(super) struct Table {
    windows: BTreeMap<Place, (Arc<Window>, u64)>,
    /// Number of uses.
    uses: u64,
}

impl Table {
    /// Returns a window that can be used for a file with pages up to `end`.
    fn find(&mut self, place: Place, end: u64) -> Option<Arc<Window>> {
        self.uses += 1;
        let uses = self.uses;
        let (window, used) = self.windows.get_mut(&place)?;
        if window.is_broken() || window.len() != len_of(place.1, end) {
            return None;
        }
        *used = uses;
        Some(window.clone())
    }

    /// Keeps a window. Returns those that are kept no longer.
    pub(super) fn keep(&mut self, place: Place, window: &Arc<Window>) -> Vec<Arc<Window>> {
        let mut gone = Vec::new();
        if self.windows.len() >= KEPT
            && let Some((oldest, _)) = self.windows.iter().min_by_key(|(_, (_, used))| *used)
        {
            let oldest = *oldest;
            gone.extend(self.windows.remove(&oldest).map(|(window, _)| window));
        }
        gone.extend(self.windows.insert(place, (window.clone(), self.uses)).map(|(window, _)| window));
        gone
    }
}

/// Returns the bytes of a window of a file whose pages end at `end`.
pub(super) fn len_of(number: u64, end: u64) -> usize {
    end.saturating_sub(number * WINDOW).min(WINDOW) as usize
}

/// A piece of a file that is lent.
pub(super) struct Piece {
    pub(super) window: Arc<Window>,
    /// Its place in the window.
    pub(super) at: usize,
    pub(super) len: usize,
}

/// Windows that are lent, and what they are lent for.
pub(super) struct InUse {
    pub(super) datafile: DatafileHandle,
    pub(super) regions: Vec<Region>,
    pub(super) windows: Vec<Arc<Window>>,
    pub(super) _loan: FileLoan,
}

impl Lent for InUse {
    fn check(&self) -> Result<(), FsError> {
        if !self.windows.iter().any(|window| window.is_broken()) {
            return Ok(());
        }
        let text = format!(
            "reading {}: its pages went away while they were sent; the disk fails, or the file was cut off",
            self.datafile
        );
        Err(FsError::new(ErrorCode::Io, text).with_ranges(self.regions.iter().copied()))
    }
}

impl Mapped {
    /// # Errors
    /// `Exhausted`, or `Unsupported` where the handler of the signal cannot be installed.
    pub(super) fn new() -> Result<Mapped, Error> {
        sys::guard()?;
        let zeros = Memory::sparse(WINDOW as usize)?;
        Ok(Mapped { table: Mutex::default(), loans: Arc::default(), zeros, page: rustix::param::page_size() as u64 })
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// Waits until nothing of a datafile is lent, and lends nothing of it as long as the returned
    /// value lives.
    pub(super) async fn cut(&self, datafile: DatafileHandle) -> impl Sized + use<> {
        loans::cut(&self.loans, datafile).await
    }

    /// Returns true if a truncation waits for a loan.
    pub(super) fn any_waits(&self) -> bool {
        self.loans.any_waits()
    }

    /// Forgets the windows of a datafile that was cut off or removed.
    pub(super) fn forget(&self, datafile: DatafileHandle) {
        let mut table = self.table();
        let places: Vec<Place> =
            table.windows.range((datafile, 0)..=(datafile, u64::MAX)).map(|(place, _)| *place).collect();
        let gone: Vec<_> = places.iter().filter_map(|place| table.windows.remove(place)).collect();
        drop(table);
        drop(gone);
    }

    /// Returns true if it is worth it to lend these regions.
    pub(super) fn is_worth_it(&self, regions: &[Region]) -> bool {
        let bytes = regions.iter().fold(0u64, |sum, region| sum.saturating_add(region.len));
        // Each region adds a piece, and each window that is entered another one.
        let pieces = 2 * regions.len() as u64 + bytes / WINDOW;
        pieces <= MOST_PIECES && bytes >= regions.len() as u64 * self.page
    }

    /// Returns the windows of the regions of a file whose pages end at `end`: those that are kept,
    /// and the numbers of the others.
    pub(super) fn windows(
        &self,
        datafile: DatafileHandle,
        end: u64,
        regions: &[Region],
    ) -> (BTreeMap<u64, Arc<Window>>, Vec<u64>) {
        let (mut found, mut missing) = (BTreeMap::new(), Vec::new());
        let mut table = self.table();
        for region in regions {
            let last = region.offset.saturating_add(region.len).min(end);
            for number in region.offset / WINDOW..last.div_ceil(WINDOW) {
                if found.contains_key(&number) || missing.contains(&number) {
                    continue;
                }
                match table.find((datafile, number), end) {
                    Some(window) => drop(found.insert(number, window)),
                    None => missing.push(number),
                }
            }
        }
        (found, missing)
    }

    /// Returns the memory of regions of a file whose pages end at `end`, and its pieces.
    pub(super) fn list(
        &self,
        regions: &[Region],
        windows: &BTreeMap<u64, Arc<Window>>,
        end: u64,
    ) -> (MemList, Vec<Piece>) {
        let (mut slices, mut pieces) = (Vec::new(), Vec::new());
        for region in regions {
            let (mut at, stop) = (region.offset, region.offset + region.len);
            while at < stop {
                let begin = at % WINDOW;
                match windows.get(&(at / WINDOW)).filter(|_| at < end) {
                    Some(window) => {
                        let len = (stop.min(end) - at).min(WINDOW - begin) as usize;
                        slices.push(window.memory().slice(begin as usize, len));
                        pieces.push(Piece { window: window.clone(), at: begin as usize, len });
                        at += len as u64;
                    }
                    None => {
                        let len = (stop - at).min(WINDOW);
                        slices.push(self.zeros.slice(0, len as usize));
                        at += len;
                    }
                }
            }
        }
        (slices.into_iter().collect(), pieces)
    }
}
