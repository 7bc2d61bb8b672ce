//! Stops all writing to a database once it is not known what its disk has.
//!
//! **Why.** After a failed sync the system keeps in memory what it could not write, but counts it
//! as written. The next sync succeeds without writing it. A database that went on would take the
//! failed transaction for durable, and acknowledge changes that build on it.
//!
//! **Invariants**
//! 1. After a sync has failed, or a write or a change of the length for another reason than a full
//!    disk, nothing is written or synced. So the file keeps its note that it was not closed, and
//!    the next start checks it.
//! 2. A full disk fails a write, not a sync. If a sync fails because the disk is full, data that
//!    the system had accepted is lost: that is a failed sync.

use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use redb::{BackendError, StorageBackend};

/// Whether it is known what a disk has. A clone is another handle to the same answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Doubt(Arc<OnceLock<String>>);

impl Doubt {
    /// Returns what happened, if it is not known what the disk has.
    pub(in crate::store) fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    /// Notes a failure after which it is not known what the disk has.
    fn note<R>(&self, what: &str, result: io::Result<R>) -> io::Result<R> {
        if let Err(error) = &result {
            // Only the first one counts.
            let _ = self.0.set(format!("{what} failed ({error})"));
        }
        result
    }

    fn check(&self) -> io::Result<()> {
        self.reason().map_or(Ok(()), |why| Err(io::Error::other(format!("{why} before"))))
    }
}

/// A disk that is not written to any more after a failure that leaves a doubt.
#[derive(Debug)]
pub(super) struct Guarded<B> {
    disk: B,
    doubt: Doubt,
    failed: Arc<AtomicBool>,
}

impl<B> Guarded<B> {
    pub(super) fn new(disk: B, doubt: Doubt) -> Guarded<B> {
        Guarded { disk, doubt, failed: Arc::default() }
    }

    /// Returns a flag that is set when an operation has failed. The database refuses all operations
    /// from then on.
    pub(in crate::store) fn failed(&self) -> Arc<AtomicBool> {
        self.failed.clone()
    }

    fn noted<R>(&self, result: io::Result<R>) -> io::Result<R> {
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }
}

/// Returns true if an operation failed only because there was no room for it.
fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

type Locked<R> = Result<R, BackendError>;

impl<B: StorageBackend> StorageBackend for Guarded<B> {
    fn len(&self) -> io::Result<u64> {
        self.noted(self.disk.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.noted(self.disk.read(offset, out))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.noted(self.doubt.check())?;
        match self.noted(self.disk.set_len(len)) {
            Err(error) if is_full(&error) => Err(error),
            result => self.doubt.note("a change of the length of its file", result),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.noted(self.doubt.check())?;
        self.doubt.note("a sync of its file", self.noted(self.disk.sync_data()))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.noted(self.doubt.check())?;
        match self.noted(self.disk.write(offset, data)) {
            Err(error) if is_full(&error) => Err(error),
            result => self.doubt.note("a write to its file", result),
        }
    }

    fn close(&self) -> io::Result<()> {
        self.disk.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Locked<bool> {
        self.disk.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Locked<bool> {
        self.disk.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Locked<()> {
        self.disk.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Locked<()> {
        self.disk.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Locked<()> {
        self.disk.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Locked<bool> {
        self.disk.query_lock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind::{Other, StorageFull};

    use super::*;
    use crate::store::{MemDatabase, MemDisk};

    /// Returns the changes that still succeed after one has failed.
    fn after(kind: io::ErrorKind, fail: impl FnOnce(&Guarded<MemDatabase>) -> io::Result<()>) -> (u64, bool) {
        let disk = MemDisk::default();
        let doubt = Doubt::default();
        let guarded = Guarded::new(disk.database(), doubt.clone());
        guarded.set_len(100).unwrap();
        disk.fail_at(Some((2, 1, kind)));
        assert_eq!(fail(&guarded).unwrap_err().kind(), kind);
        let results = [guarded.write(0, &[1; 10]), guarded.set_len(200), guarded.sync_data()];
        (results.iter().filter(|result| result.is_ok()).count() as u64, doubt.reason().is_some())
    }

    #[test]
    fn a_full_disk_is_no_reason_to_stop_and_a_failed_sync_is() {
        assert_eq!(after(StorageFull, |disk| disk.write(0, &[1; 10])), (3, false));
        assert_eq!(after(StorageFull, |disk| disk.set_len(1000)), (3, false));
        assert_eq!(after(StorageFull, StorageBackend::sync_data), (0, true));
        assert_eq!(after(Other, |disk| disk.write(0, &[1; 10])), (0, true));
        assert_eq!(after(Other, |disk| disk.set_len(1000)), (0, true));
        assert_eq!(after(Other, StorageBackend::sync_data), (0, true));
    }
}
