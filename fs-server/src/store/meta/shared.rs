//! A database's disk in memory, which can fail in the ways of a disk.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

use crate::store::{AllLost, Fates, SECTOR};

/// The bytes of a database, in memory. A clone refers to the same bytes, so they outlive a server
/// that is stopped, as a disk does.
///
/// A power failure ([`SharedBackend::power_fails`]) keeps everything synced, and any part of the
/// rest. Older handles then fail: data that a database writes while it is dropped does not reach
/// the disk any more. [`SharedBackend::reopen`] returns a handle that works.
///
/// A sync that fails drops what it should have written, as a system does: the bytes can still be
/// read, and later syncs succeed without writing them. [`SharedBackend::reopen`] reads them from
/// the disk again, as a program that is started anew.
#[derive(Clone, Debug, Default)]
pub struct SharedBackend {
    bytes: Arc<Mutex<Bytes>>,
    /// Number of power failures when this handle was made.
    power: u64,
}

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Look,
    Write,
    Sync,
}

/// Bytes of a page, as a system keeps them.
const PAGE: usize = 4096;

#[derive(Debug, Default)]
struct Bytes {
    now: Vec<u8>,
    synced: Vec<u8>,
    /// The pages of `now` that may differ from `synced`, and that the next sync writes.
    dirty: BTreeSet<usize>,
    /// The pages that a failed sync did not write, and that no sync will write.
    dropped: BTreeSet<usize>,
    power: u64,
    /// The error for writes, if any. If the flag is set, it is returned for all other operations
    /// too.
    fault: Option<(io::ErrorKind, bool)>,
    /// Number of writes and syncs until the power fails during one of them; 0 if it has failed.
    fuse: Option<u32>,
    /// Number of changes so far: writes, changes of the length, and syncs.
    changes: u64,
    /// Syncs fail.
    sync_fails: bool,
    /// The number of syncs until one that fails although it writes everything; 0 if none does.
    doubted: u32,
    /// The change that fails, by its number, and its error.
    failure: Option<(u64, io::ErrorKind)>,
}

impl Bytes {
    fn touch(&mut self, from: usize, to: usize) {
        self.dirty.extend(from / PAGE..to.div_ceil(PAGE));
    }

    /// Counts a change. Returns its error if it is the one that fails.
    fn change(&mut self) -> io::Result<()> {
        self.changes += 1;
        match self.failure {
            Some((number, kind)) if number == self.changes => Err(kind.into()),
            _ => Ok(()),
        }
    }

    /// Reads from the disk again what a failed sync dropped.
    fn forget(&mut self) {
        for page in std::mem::take(&mut self.dropped).difference(&self.dirty) {
            let end = (page * PAGE + PAGE).min(self.now.len());
            for at in page * PAGE..end {
                self.now[at] = self.synced.get(at).copied().unwrap_or(0);
            }
        }
    }

    /// Forgets that the dirty pages must be written.
    fn drop_dirty(&mut self) {
        let dirty = std::mem::take(&mut self.dirty);
        self.dropped.extend(dirty);
    }

    /// Writes the dirty pages to the disk.
    fn flush(&mut self) {
        self.synced.resize(self.now.len(), 0);
        for page in std::mem::take(&mut self.dirty) {
            let end = (page * PAGE + PAGE).min(self.now.len());
            if let Some(from) = self.now.get(page * PAGE..end) {
                self.synced[page * PAGE..end].copy_from_slice(from);
            }
            self.dropped.remove(&page);
        }
    }
}

impl SharedBackend {
    fn bytes(&self) -> MutexGuard<'_, Bytes> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with the bytes, unless the power has failed or the disk refuses.
    fn with<R>(&self, kind: Kind, f: impl FnOnce(&mut Bytes) -> io::Result<R>) -> io::Result<R> {
        let bytes = &mut self.bytes();
        if bytes.power != self.power {
            return Err(io::Error::other("the power has failed"));
        }
        if let Some(left) = &mut bytes.fuse {
            *left = left.saturating_sub(u32::from(kind != Kind::Look));
            if *left == 0 {
                return Err(io::Error::other("the power has failed"));
            }
        }
        match bytes.fault {
            Some((error, all)) if all || kind == Kind::Write => {
                if kind == Kind::Sync {
                    bytes.drop_dirty();
                }
                Err(error.into())
            }
            _ => f(bytes),
        }
    }

    /// Fails the power. `fates` decides what is left of each sector that was not synced.
    pub fn power_fails(&self, fates: &mut dyn Fates) {
        let mut guard = self.bytes();
        let bytes = &mut *guard;
        bytes.power += 1;
        bytes.fuse = None;
        if bytes.now.len() != bytes.synced.len() && !fates.keeps() {
            // The bytes that were cut off are back, with their old contents.
            let kept = bytes.now.len().min(bytes.synced.len());
            bytes.now.truncate(kept);
            bytes.now.extend_from_slice(&bytes.synced[kept..]);
        }
        let mut pages = std::mem::take(&mut bytes.dirty);
        pages.append(&mut bytes.dropped);
        for page in pages {
            let end = (page * PAGE + PAGE).min(bytes.now.len());
            for from in (page * PAGE..end).step_by(SECTOR) {
                let to = (from + SECTOR).min(end);
                let old = bytes.synced.get(from..to.min(bytes.synced.len())).unwrap_or(&[]);
                let now = &mut bytes.now[from..to];
                if now != old {
                    fates.sector(old, now);
                }
            }
        }
        bytes.synced.clone_from(&bytes.now);
    }

    /// Returns a handle to the current bytes, for a program that is started anew: bytes that a
    /// failed sync did not write are as the disk has them.
    #[must_use]
    pub fn reopen(&self) -> SharedBackend {
        let mut bytes = self.bytes();
        bytes.forget();
        SharedBackend { bytes: self.bytes.clone(), power: bytes.power }
    }

    /// Makes the change with this number fail with an error, `None` none. A write is then half
    /// done, a change of the length not at all, and a sync drops the data.
    pub fn fail_at(&self, failure: Option<(u64, io::ErrorKind)>) {
        self.bytes().failure = failure;
    }

    /// Makes all syncs fail, and only these.
    pub fn fail_syncs(&self, fail: bool) {
        self.bytes().sync_fails = fail;
    }

    /// Makes the sync with this number, counted from now, write everything and fail all the same. 0
    /// makes none fail.
    pub fn doubt_sync(&self, nth: u32) {
        self.bytes().doubted = nth;
    }

    /// Returns the number of changes so far: writes, changes of the length, and syncs.
    pub fn changes(&self) -> u64 {
        self.bytes().changes
    }

    /// Schedules a power failure at the `writes`th write or sync from now. That operation and all
    /// later ones change nothing. `None` cancels it. [`SharedBackend::power_fails`] then decides
    /// what is left.
    pub fn cut_off(&self, writes: Option<u32>) {
        self.bytes().fuse = writes;
    }

    /// Returns true if the scheduled power failure has happened.
    pub fn is_cut_off(&self) -> bool {
        self.bytes().fuse == Some(0)
    }

    /// Makes the disk fail writes and changes of the length with this error and, if the flag is
    /// set, all other operations too. `None` makes it work again.
    pub fn refuse(&self, fault: Option<(io::ErrorKind, bool)>) {
        self.bytes().fault = fault;
    }

    /// Returns a copy of the bytes, as a copy of the disk has them.
    pub fn contents(&self) -> Vec<u8> {
        self.bytes().now.clone()
    }

    /// Replaces the bytes, as if another disk were put in. Returns the old ones. Older handles then
    /// fail.
    pub fn replace(&self, contents: Vec<u8>) -> Vec<u8> {
        let mut bytes = self.bytes();
        bytes.power += 1;
        (bytes.dirty, bytes.dropped) = (BTreeSet::new(), BTreeSet::new());
        bytes.synced.clone_from(&contents);
        std::mem::replace(&mut bytes.now, contents)
    }

    /// Fails the power and loses all unsynced data. Returns a handle to the rest.
    #[must_use]
    pub fn crash(&self) -> SharedBackend {
        self.power_fails(&mut AllLost);
        self.reopen()
    }
}

impl StorageBackend for SharedBackend {
    fn len(&self) -> io::Result<u64> {
        self.with(Kind::Look, |bytes| Ok(bytes.now.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(Kind::Look, |bytes| {
            let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
            let end = start.checked_add(out.len()).filter(|end| *end <= bytes.now.len());
            out.copy_from_slice(&bytes.now[start..end.ok_or(io::ErrorKind::UnexpectedEof)?]);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(Kind::Write, |bytes| {
            let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
            bytes.change()?;
            let old = bytes.now.len();
            bytes.now.resize(len, 0);
            bytes.touch(old.min(len), len);
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(Kind::Sync, |bytes| {
            let is_doubted = bytes.doubted == 1;
            let result =
                bytes.change().and(if bytes.sync_fails { Err(io::Error::other("the disk failed")) } else { Ok(()) });
            match result {
                Ok(()) => bytes.flush(),
                Err(_) => bytes.drop_dirty(),
            }
            bytes.doubted = bytes.doubted.saturating_sub(1);
            if is_doubted { Err(io::Error::other("the disk does not say what it has")) } else { result }
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(Kind::Write, |bytes| {
            let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
            let end = start.checked_add(data.len()).filter(|end| *end <= bytes.now.len());
            end.ok_or(io::ErrorKind::UnexpectedEof)?;
            let result = bytes.change();
            let len = if result.is_ok() { data.len() } else { data.len() / 2 };
            bytes.now[start..start + len].copy_from_slice(&data[..len]);
            bytes.touch(start, start + len);
            result
        })
    }
}
