//! The open files of a store, at most as many as a process may have.
//!
//! **Why.** The system reports an error of its writeback to the descriptors that are open at that
//! time, or to the next one if the file is still known. If a descriptor with unsynced data were
//! simply closed, an error after that could be lost, and a later sync would succeed. So its data is
//! written before it is closed. The wait for that reports the error, and takes much less time than
//! a sync: nothing is flushed, and no journal is committed.
//!
//! **Invariants**
//! 1. There is one [`OpenFile`] for a datafile, as long as anybody uses it.
//! 2. A file that was changed since its last sync is closed only after its data was written without
//!    an error, or after its datafile is gone.
//! 3. An error of the writeback is reported once for each descriptor. Whoever gets it sets `failed`
//!    before anybody else can ask. From then on no sync of the file succeeds.
//!
//! **Source.** fsync(2), sync_file_range(2); errseq in the kernel's documentation.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fs_proto::DatafileHandle;
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};

use super::{steps, sys};

/// Most files kept open, unless the store is given another number. It is well below the usual limit
/// of 1024 descriptors per process.
pub(super) const OPEN_FILES: usize = 256;

/// Number of files that are written before one of them is closed. The disk then has all of them to
/// write at once.
const BATCH: usize = 64;

/// The attribute of a file that holds the length that was synced: eight bytes, little-endian.
const SYNCED: &str = "user.pvfs.synced";

/// An open datafile.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) file: File,
    /// The length that was synced, as far as it is known.
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
}

/// Returns the length that was synced, or 0 if it is not known.
fn synced_length(file: &File) -> u64 {
    let mut bytes = [0; 8];
    match fgetxattr(file, SYNCED, &mut bytes) {
        Ok(8) => u64::from_le_bytes(bytes),
        _ => 0,
    }
}

impl OpenFile {
    pub(super) fn new(file: File) -> OpenFile {
        let synced = AtomicU64::new(synced_length(&file));
        let (changes, written) = (AtomicU64::new(0), AtomicU64::new(0));
        let (length, syncing, failed) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        OpenFile { file, synced, length, changes, written, syncing, failed }
    }

    /// Returns the length that was synced, or 0 if it is not known.
    pub(super) fn synced(&self) -> u64 {
        self.synced.load(Ordering::Relaxed)
    }

    /// Notes that the file was changed.
    pub(super) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns true if the file must be written before it is closed.
    fn is_unwritten(&self) -> bool {
        !self.failed.load(Ordering::Acquire)
            && self.changes.load(Ordering::Acquire) != self.written.load(Ordering::Acquire)
    }

    /// Remembers the length that was synced.
    fn remember(&self, len: u64) {
        if self.synced.swap(len, Ordering::Relaxed) != len {
            // A file system without attributes remembers nothing.
            let _ = fsetxattr(&self.file, SYNCED, &len.to_le_bytes(), XattrFlags::empty());
        }
    }

    /// Remembers the length that the file had when it was synced. Call it only when the sync is
    /// done, so that a crash does not leave a datafile that looks cut off.
    pub(super) fn remember_synced(&self, len: u64) -> io::Result<()> {
        let _guard = self.length.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have cut the datafile off meanwhile.
        self.remember(len.min(self.file.metadata()?.len()));
        Ok(())
    }

    /// Sets the length.
    pub(super) fn set_len(&self, size: u64) -> io::Result<()> {
        let _guard = self.length.lock().unwrap_or_else(PoisonError::into_inner);
        // First, so that a crash in between does not leave a datafile that looks cut off.
        if self.synced() > size {
            self.remember(size);
        }
        let result = steps::step(|| self.file.set_len(size));
        self.changed();
        result
    }

    /// Makes the file durable. Any error means that nobody knows what the disk has.
    pub(super) fn sync(&self, whole: bool) -> io::Result<()> {
        self.settle(|file| if whole { steps::sync_all(file) } else { steps::sync_data(file) })
    }

    /// Writes the data to the disk, but does not make it durable. Any error means that nobody knows
    /// what the disk has.
    pub(super) fn write_out(&self) -> io::Result<()> {
        self.settle(|file| steps::step(|| sys::write_out(file)))
    }

    fn settle(&self, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        let _guard = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.failed.load(Ordering::Acquire) {
            return Err(io::Error::other("its last sync failed"));
        }
        let changes = self.changes.load(Ordering::Acquire);
        let result = write(&self.file);
        match &result {
            Ok(()) => drop(self.written.fetch_max(changes, Ordering::AcqRel)),
            Err(_) => self.failed.store(true, Ordering::Release),
        }
        result
    }
}

/// A datafile with its open file.
pub(super) type Named = (DatafileHandle, Arc<OpenFile>);

/// The most recently used files, with the tick of their last use.
pub(super) struct OpenFiles {
    /// Most files kept open.
    most: usize,
    files: BTreeMap<DatafileHandle, (Arc<OpenFile>, u64)>,
    tick: u64,
}

/// What came of closing files.
#[derive(Default)]
pub(super) struct Closing {
    /// Number of files that were closed.
    pub(super) closed: usize,
    /// Files that can be closed once they are written.
    pub(super) unwritten: Vec<Named>,
}

impl OpenFiles {
    /// Creates an empty table that keeps at most `most` files open.
    pub(super) fn new(most: usize) -> OpenFiles {
        OpenFiles { most, files: BTreeMap::new(), tick: 0 }
    }

    pub(super) fn find(&mut self, datafile: DatafileHandle) -> Option<Arc<OpenFile>> {
        self.tick += 1;
        let (file, used) = self.files.get_mut(&datafile)?;
        *used = self.tick;
        Some(file.clone())
    }

    pub(super) fn keep(&mut self, datafile: DatafileHandle, file: &Arc<OpenFile>) {
        self.files.insert(datafile, (file.clone(), self.tick));
    }

    /// Closes the file of a datafile that is gone.
    pub(super) fn forget(&mut self, datafile: DatafileHandle) {
        self.files.remove(&datafile);
    }

    /// Makes room for one more file. Returns the files that must be written before there is room.
    /// If all are in use, there are more than the table keeps for a while.
    pub(super) fn make_room(&mut self) -> Vec<Named> {
        match (self.files.len() + 1).saturating_sub(self.most) {
            0 => Vec::new(),
            excess => {
                let Closing { closed, unwritten } = self.close(excess);
                if closed == excess { Vec::new() } else { unwritten }
            }
        }
    }

    /// Closes the oldest of the files that nobody uses and that need not be written, at most
    /// `count`. If there are fewer, also returns the oldest that must be written.
    pub(super) fn close(&mut self, count: usize) -> Closing {
        // Only this table can give a file that nobody else has to somebody.
        let unused = self.files.iter_mut().filter_map(|(datafile, (file, used))| {
            let unwritten = Arc::get_mut(file)?.is_unwritten();
            Some((*used, *datafile, unwritten))
        });
        let mut unused: Vec<_> = unused.collect();
        unused.sort_unstable();
        let closable = unused.iter().take_while(|(.., unwritten)| !unwritten).take(count);
        let closed: Vec<DatafileHandle> = closable.map(|(_, datafile, _)| *datafile).collect();
        closed.iter().for_each(|datafile| self.forget(*datafile));
        if closed.len() == count {
            return Closing { closed: count, unwritten: Vec::new() };
        }
        let oldest = unused.iter().filter(|(.., unwritten)| *unwritten).take(BATCH);
        let unwritten = oldest.filter_map(|(_, datafile, _)| Some((*datafile, self.files.get(datafile)?.0.clone())));
        Closing { closed: closed.len(), unwritten: unwritten.collect() }
    }
}
