//! An open datafile: what was changed, what was written, and whether that failed.
//!
//! **Invariants**
//! 1. An error of the writeback is reported once for each descriptor. Whoever gets it sets `failed`
//!    before anybody else can ask. From then on no sync of the file succeeds.
//! 2. A change counts as written only if a sync or a write to the disk began after it, and
//!    succeeded.
//! 3. An event loop does not close a file, because that may wait for the disk: the last handle of a
//!    removed file gives its space back, and some file systems write or ask another machine.
//!
//! **Source.** fsync(2), sync_file_range(2); errseq in the kernel's documentation.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use bmi::hooks::mutated;
use fs_proto::{Allocation, Region};

use super::direct_file::{DirectFile, Way};
use crate::lock::lock;
use crate::store::disk::DiskFile;
use crate::store::disk::steps::{self, step};
use crate::store::sums::FileSums;
use crate::workers::Workers;

/// An open datafile.
#[derive(Debug)]
pub(in crate::store) struct OpenFile {
    file: Option<Arc<dyn DiskFile>>,
    /// For direct I/O, once that was asked for; `None` inside if it is not possible.
    direct: OnceLock<Option<DirectFile>>,
    /// Closes the file.
    closer: Weak<Workers>,
    /// The length that was synced, as far as it is known: the note of the file.
    synced: AtomicU64,
    /// Held while the length is changed, or compared and remembered.
    length: Mutex<()>,
    /// Number of changes so far.
    changes: AtomicU64,
    /// Number of changes that were written.
    written: AtomicU64,
    /// Held while data is synced or written.
    syncing: Mutex<()>,
    /// Its data could not be written.
    failed: AtomicBool,
    /// Its sums, if the store keeps any.
    sums: Option<Arc<FileSums>>,
}

impl OpenFile {
    /// Opens a file, which `closer` closes if the last handle is dropped on an event loop. May wait
    /// for the disk.
    pub(in crate::store) fn new(file: Arc<dyn DiskFile>, closer: Weak<Workers>) -> OpenFile {
        let synced = AtomicU64::new(file.note());
        let (changes, written) = (AtomicU64::new(0), AtomicU64::new(0));
        let (length, syncing, failed) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        let direct = OnceLock::new();
        OpenFile { file: Some(file), direct, closer, synced, length, changes, written, syncing, failed, sums: None }
    }

    pub(in crate::store) fn with_sums(mut self, sums: Option<Arc<FileSums>>) -> OpenFile {
        self.sums = sums;
        self
    }

    pub(in crate::store) fn sums(&self) -> Option<&Arc<FileSums>> {
        self.sums.as_ref()
    }

    pub(in crate::store) fn file(&self) -> &dyn DiskFile {
        self.file.as_deref().expect("it is taken out when this is dropped")
    }

    /// Returns the threads that close the file, as long as the store exists.
    pub(in crate::store) fn closer(&self) -> Option<Arc<Workers>> {
        self.closer.upgrade()
    }

    /// Returns the descriptor for direct I/O, if it is open.
    pub(in crate::store) fn direct(&self) -> Option<&DirectFile> {
        self.direct.get()?.as_ref()
    }

    /// Returns true if it is known whether direct I/O is possible.
    pub(in crate::store) fn knows_direct(&self) -> bool {
        self.direct.get().is_some()
    }

    /// Keeps the descriptor for direct I/O, or notes that there is none. Only the first answer
    /// counts.
    pub(in crate::store) fn set_direct(&self, direct: Option<DirectFile>) {
        let _ = self.direct.set(direct);
    }

    /// Returns the descriptor for bytes that take this way. Only for a file of a file system.
    pub(in crate::store) fn descriptor(&self, way: Way) -> &File {
        match (way, self.direct()) {
            (Way::Direct, Some(direct)) => &direct.file,
            _ => self.file().system().expect("a disk without descriptors is asked for no such transfer"),
        }
    }

    /// Returns the length that was synced, or 0 if it is not known.
    pub(in crate::store) fn synced(&self) -> u64 {
        self.synced.load(Ordering::Relaxed)
    }

    /// Notes that the file was changed.
    pub(in crate::store) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns true if the file must be written before it is closed.
    pub(in crate::store) fn is_unwritten(&self) -> bool {
        !self.failed.load(Ordering::Acquire)
            && self.changes.load(Ordering::Acquire) != self.written.load(Ordering::Acquire)
    }

    /// Remembers the length that was synced.
    fn remember(&self, len: u64) -> io::Result<()> {
        if self.synced() == len {
            return Ok(());
        }
        let note = || self.file().set_note(len);
        // Nothing fails if a larger one cannot be noted.
        let result = if self.synced() > len { step(note) } else { note() };
        // After an error nobody knows which of the two is noted: it is noted again in any case.
        self.synced.store(if result.is_ok() { len } else { u64::MAX }, Ordering::Relaxed);
        result
    }

    /// Remembers the length that the file had when it was synced. Call it only when the sync is
    /// done, so that a crash does not leave a datafile that looks cut off.
    pub(in crate::store) fn remember_synced(&self, len: u64) -> io::Result<()> {
        let _guard = lock(&self.length);
        // Another thread may have cut the datafile off meanwhile.
        let (len, before) = (len.min(self.file().held()?.size), self.synced());
        match self.remember(len) {
            // What was noted before is less than what is there now.
            Err(_) if len > before => Ok(()),
            result => result,
        }
    }

    /// Sets the length.
    pub(in crate::store) fn set_len(&self, size: u64) -> io::Result<()> {
        let _guard = lock(&self.length);
        // First, so that a crash in between does not leave a datafile that looks cut off.
        let late = mutated("store/length-cut-before-its-note");
        if self.synced() > size && !late {
            self.remember(size)?;
        }
        let result = step(|| self.file().set_len(size));
        if self.synced() > size && late {
            self.remember(size)?;
        }
        self.changed();
        result
    }

    /// Changes the space of a range.
    pub(in crate::store) fn allocate(&self, range: Region, how: Allocation) -> io::Result<()> {
        let result = step(|| self.file().allocate(range, how));
        self.changed();
        result
    }

    /// Makes the file durable. Any error means that nobody knows what the disk has.
    pub(in crate::store) fn sync(&self, whole: bool) -> io::Result<()> {
        self.write_by(&lock(&self.syncing), |file| steps::sync_file(file, whole))
    }

    /// Writes the data to the disk, but does not make it durable. Any error means that nobody knows
    /// what the disk has. Does nothing if the data was written meanwhile, or if that failed: then
    /// somebody else has the error.
    pub(in crate::store) fn write_out(&self) -> io::Result<()> {
        let guard = lock(&self.syncing);
        if !self.is_unwritten() {
            return Ok(());
        }
        self.write_by(&guard, |file| step(|| file.write_out()))
    }

    /// Returns the length, as the system knows it without asking anybody.
    pub(in crate::store) fn len(&self) -> io::Result<u64> {
        self.file().len()
    }

    fn write_by(
        &self,
        _locked: &MutexGuard<'_, ()>,
        write: impl FnOnce(&dyn DiskFile) -> io::Result<()>,
    ) -> io::Result<()> {
        if self.failed.load(Ordering::Acquire) {
            return Err(io::Error::other("its last sync failed"));
        }
        let changes = self.changes.load(Ordering::Acquire);
        let result = write(self.file());
        match &result {
            Ok(()) => drop(self.written.fetch_max(changes, Ordering::AcqRel)),
            Err(_) => self.failed.store(true, Ordering::Release),
        }
        result
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let file = (self.file.take(), self.direct.take());
        match self.closer.upgrade() {
            Some(workers) => workers.start(move || drop(file)),
            // The store is gone, and its event loop too.
            None => drop(file),
        }
    }
}
