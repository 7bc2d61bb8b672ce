//! A disk in memory that fails in the ways of a disk ([`MemDisk`]).
//!
//! **Model.** A program sees every change at once. The disk has what was synced, and each sector,
//! each length and each change of names that was not synced may be on it or not ([`Fates`]). A sync
//! that fails drops what it should have written, as a system does: the bytes can still be read, and
//! later syncs succeed without writing them. A database that is opened reads them from the disk
//! again ([`MemDisk::database`]), as the manager's does (`meta/residue.rs`).
//!
//! **Differences from a real disk.** Nothing takes time. The files in the root directory, which are
//! the store's own records, take none of the capacity, and neither do names; a removed file takes
//! none at once. Of the lengths and notes that a file has had since the last sync only the last
//! ones may survive. What a failed sync has dropped of a datafile can be read until the power
//! fails.

mod backend;
mod bytes;
mod faults;
mod names;

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

use bmi::MemSlice;
use fs_proto::{Allocation, Region, Sought};

pub use self::backend::MemDatabase;
use self::bytes::Keep;
pub use self::faults::DiskStep;
use self::faults::Faults;
use self::names::{Entry, Inode, Names};
use super::{DiskDir, DiskFile, Room};
use crate::lock::lock;
use crate::store::{AllLost, Fates, Held};

/// A disk in memory, of which a directory of a store or a database of a manager is made. A clone
/// refers to the same disk, so it outlives a server that is stopped.
///
/// When the power fails ([`MemDisk::power_fails`]), or the disk is taken out
/// ([`MemDisk::exchange`]), older handles fail from then on: what a program does while it is
/// dropped does not reach the disk any more. [`MemDisk::reopen`] returns a handle that works.
#[derive(Clone)]
pub struct MemDisk {
    state: Arc<Mutex<State>>,
    /// Number of power failures when this handle was made.
    power: u64,
    /// The directory.
    dir: String,
}

struct State {
    capacity: u64,
    /// The space that the files in directories take.
    used: u64,
    number: u64,
    names: Names,
    power: u64,
    faults: Faults,
    keep: Keep,
    now_ns: u64,
}

/// What a disk has when it is copied or moved.
#[derive(Debug, Default)]
pub struct Contents(Names);

impl Clone for Contents {
    fn clone(&self) -> Contents {
        Contents(self.0.copy())
    }
}

impl Default for MemDisk {
    fn default() -> MemDisk {
        MemDisk::new(u64::MAX)
    }
}

impl fmt::Debug for MemDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemDisk").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// The error of a file system for a name that does not exist.
fn absent() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOENT)
}

impl MemDisk {
    /// Creates an empty disk of so many bytes, counted in chunks of 64 KiB.
    pub fn new(capacity: u64) -> MemDisk {
        let (names, faults) = (Names::default(), Faults::default());
        let state = State { capacity, used: 0, number: 0, names, power: 0, faults, keep: Keep::Synced, now_ns: 0 };
        MemDisk { state: Arc::new(Mutex::new(state)), power: 0, dir: String::new() }
    }

    /// Sets the number of the disk, of which the store makes its own ([`fs_proto::IodStat::disk`]).
    #[must_use]
    pub fn numbered(self, number: u64) -> MemDisk {
        lock(&self.state).number = number;
        self
    }

    /// Lets a power failure leave any content that an unsynced sector has had since the last sync,
    /// as a disk that writes in any order.
    #[must_use]
    pub fn reordering(self) -> MemDisk {
        lock(&self.state).keep = Keep::Each;
        self
    }

    /// Makes every change durable at once.
    #[must_use]
    pub fn write_through(self) -> MemDisk {
        lock(&self.state).keep = Keep::Nothing;
        self
    }

    /// Sets the time of the changes that follow, in nanoseconds since 1970.
    pub fn set_clock(&self, now_ns: u64) {
        lock(&self.state).now_ns = now_ns;
    }

    /// Returns the number of the disk.
    pub(crate) fn store_number(&self) -> u64 {
        lock(&self.state).number
    }

    /// Fails the power. `fates` decides what is left of what was not synced.
    pub fn power_fails(&self, fates: &mut dyn Fates) {
        let state = &mut *lock(&self.state);
        state.power += 1;
        state.faults.end_cut();
        match state.keep {
            Keep::Nothing => state.names.sync_all(),
            Keep::Synced | Keep::Each => state.names.power_fails(fates),
        }
        state.used = state.names.space();
    }

    /// Returns a handle that works, for a program that is started anew.
    #[must_use]
    pub fn reopen(&self) -> MemDisk {
        MemDisk { state: self.state.clone(), power: lock(&self.state).power, dir: String::new() }
    }

    /// Fails the power and loses everything that was not synced. Returns a handle to the rest.
    #[must_use]
    pub fn crash(&self) -> MemDisk {
        self.power_fails(&mut AllLost);
        self.reopen()
    }

    /// Returns a copy of the contents, as a copy of the disk has them: with what is not synced.
    pub fn copy(&self) -> Contents {
        Contents(lock(&self.state).names.copy())
    }

    /// Replaces the contents, as if another disk were put in. Returns the old ones. An empty disk
    /// is `Contents::default()`. Older handles then fail.
    pub fn exchange(&self, contents: Contents) -> Contents {
        let state = &mut *lock(&self.state);
        state.power += 1;
        let old = std::mem::replace(&mut state.names, contents.0);
        state.used = state.names.space();
        Contents(old)
    }

    /// Loses a file, as a damaged disk does. Returns what was lost.
    pub fn lose(&self, name: &str) -> Contents {
        let mut lost = Names::default();
        let state = &mut *lock(&self.state);
        if let Some(entry) = state.names.find(name).cloned() {
            lost.tamper(vec![(name.to_owned(), Some(entry))]);
            state.names.tamper(vec![(name.to_owned(), None)]);
        }
        Contents(lost)
    }

    /// Puts back the file that was lost.
    pub fn put_back(&self, name: &str, lost: &Contents) {
        let entry = lost.0.find(name).cloned();
        lock(&self.state).names.tamper(vec![(name.to_owned(), entry)]);
    }

    /// Gives a file another length, as a damaged disk does.
    pub fn damage(&self, name: &str, len: u64) {
        if let Some(inode) = lock(&self.state).names.file(name) {
            let mut bytes = lock(inode);
            bytes.len = len;
            bytes.sync(false);
        }
    }

    /// Puts a file on the disk, as somebody does who is at the disk itself.
    pub fn put(&self, name: &str, from: &[u8]) {
        let inode = Inode::default();
        lock(&inode).write(0, from, u64::MAX, Keep::Nothing);
        lock(&inode).sync(true);
        lock(&self.state).names.tamper(vec![(name.to_owned(), Some(Entry::File(inode)))]);
    }

    /// Calls `look` with the name, the bytes and the note of each file, in order.
    #[cfg(test)]
    pub(crate) fn visit(&self, mut look: impl FnMut(&str, &[u8], u64)) {
        for (name, inode) in lock(&self.state).names.all() {
            let bytes = lock(inode);
            let mut all = vec![0; bytes.len as usize];
            bytes.read(0, &mut all);
            look(name, &all, bytes.note);
        }
    }

    fn path(&self, name: &str) -> String {
        if self.dir.is_empty() { name.to_owned() } else { format!("{}/{name}", self.dir) }
    }

    /// Takes a step on the disk, unless the power has failed or the disk refuses.
    fn step<R>(&self, step: DiskStep, name: &str, take: impl FnOnce(&mut State) -> io::Result<R>) -> io::Result<R> {
        let state = &mut *lock(&self.state);
        state.check(self.power)?;
        state.faults.step(step, name)?;
        take(state)
    }

    /// As [`MemDisk::step`], for a change of names.
    fn change<R>(&self, name: &str, take: impl FnOnce(&mut Names, String) -> io::Result<R>) -> io::Result<R> {
        let name = self.path(name);
        self.step(DiskStep::Names, &name, |state| take(&mut state.names, name.clone()))
    }
}

impl State {
    fn check(&self, power: u64) -> io::Result<()> {
        if self.power == power { Ok(()) } else { Err(io::Error::other("the power has failed")) }
    }
}

impl DiskDir for MemDisk {
    fn open(&self, name: &str, make: bool) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.path(name);
        let found = self.step(DiskStep::Look, &path, |state| Ok(state.names.file(&path).cloned()))?;
        let has_dir = |state: &State| match names::dir_of(&path) {
            "" => true,
            dir => matches!(state.names.find(dir), Some(Entry::Dir)),
        };
        if !has_dir(&lock(&self.state)) {
            return Err(absent());
        }
        let inode = match found {
            Some(inode) => inode,
            None if make => self.change(name, |names, name| {
                let inode = Inode::default();
                names.change(vec![(name, Some(Entry::File(inode.clone())))]);
                Ok(inode)
            })?,
            None => return Err(absent()),
        };
        Ok(Arc::new(MemFile { disk: self.clone(), name: path, inode }))
    }

    fn dir(&self, name: &str) -> io::Result<Arc<dyn DiskDir>> {
        let dir = self.path(name);
        self.step(DiskStep::Look, &dir, |state| state.names.find(&dir).map(drop).ok_or_else(absent))?;
        Ok(Arc::new(MemDisk { dir, ..self.clone() }))
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        let path = self.path(name);
        if self.step(DiskStep::Look, &path, |state| Ok(state.names.find(&path).is_some()))? {
            return Ok(());
        }
        self.change(name, |names, name| {
            names.change(vec![(name, Some(Entry::Dir))]);
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.path(name);
        self.step(DiskStep::Names, &path, |state| {
            let space = lock(state.names.file(&path).ok_or_else(absent)?).space();
            if path.contains('/') {
                state.used = state.used.saturating_sub(space);
            }
            state.names.change(vec![(path.clone(), None)]);
            Ok(())
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let from = self.path(from);
        self.change(to, |names, to| {
            let entry = names.find(&from).cloned().ok_or_else(absent)?;
            names.change(vec![(from, None), (to, Some(entry))]);
            Ok(())
        })
    }

    fn exchange(&self, one: &str, other: &str) -> io::Result<()> {
        let other = self.path(other);
        self.change(one, |names, one| {
            let find = |name: &str| names.find(name).cloned().ok_or_else(absent);
            let (first, second) = (find(&one)?, find(&other)?);
            names.change(vec![(one, Some(second)), (other, Some(first))]);
            Ok(())
        })
    }

    fn len_of(&self, name: &str) -> io::Result<u64> {
        let path = self.path(name);
        self.step(DiskStep::Look, &path, |state| Ok(lock(state.names.file(&path).ok_or_else(absent)?).len))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let all = |state: &mut State| Ok(state.names.within(&self.dir).map(str::to_owned).collect());
        self.step(DiskStep::Look, &self.dir, all)
    }

    fn sync(&self) -> io::Result<()> {
        self.step(DiskStep::Sync, &self.dir, |state| {
            state.names.sync(&self.dir);
            state.faults.synced()
        })
    }

    fn room(&self) -> io::Result<Room> {
        self.step(DiskStep::Look, "", |state| {
            Ok(Room { capacity: state.capacity, free: state.capacity.saturating_sub(state.used) })
        })
    }

    fn number(&self) -> io::Result<u64> {
        Ok(lock(&self.state).number)
    }
}

/// An open file.
#[derive(Clone)]
struct MemFile {
    disk: MemDisk,
    /// The name by which it was opened.
    name: String,
    inode: Inode,
}

impl fmt::Debug for MemFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemFile").field("name", &self.name).finish_non_exhaustive()
    }
}

impl MemFile {
    /// What the system knows of an open file, it knows also if the disk fails.
    fn look<R>(&self, look: impl FnOnce(&bytes::Bytes) -> R) -> io::Result<R> {
        lock(&self.disk.state).check(self.disk.power)?;
        Ok(look(&lock(&self.inode)))
    }

    /// Changes the bytes, and counts the space that they take.
    fn change<R>(&self, state: &mut State, change: impl FnOnce(&mut bytes::Bytes, &State) -> R) -> R {
        let mut bytes = lock(&self.inode);
        let before = bytes.space();
        let result = change(&mut bytes, state);
        bytes.mtime_ns = state.now_ns;
        let after = bytes.space();
        drop(bytes);
        if self.name.contains('/') && state.names.file(&self.name).is_some_and(|inode| Arc::ptr_eq(inode, &self.inode))
        {
            state.used = state.used.saturating_sub(before) + after;
        }
        result
    }

    /// Writes bytes. Returns how many. If the disk fails, half of them may be written.
    fn write(&self, offset: u64, from: &[u8]) -> io::Result<usize> {
        let state = &mut *lock(&self.disk.state);
        state.check(self.disk.power)?;
        fits(offset.saturating_add(from.len() as u64))?;
        let (failed, len) = match state.faults.step(DiskStep::Write, &self.name) {
            Ok(()) => (None, from.len()),
            Err(failed) if failed.by_half => (Some(failed), from.len() / 2),
            Err(failed) => return Err(failed.into()),
        };
        let done = self.change(state, |bytes, state| {
            let is_record = !self.name.contains('/');
            let room = if is_record { u64::MAX } else { state.capacity.saturating_sub(state.used) / bytes::CHUNK };
            bytes.write(offset, &from[..len], room, state.keep)
        });
        match failed {
            Some(failed) => Err(failed.into()),
            None if done == 0 && len > 0 => Err(io::ErrorKind::StorageFull.into()),
            None => Ok(done),
        }
    }
}

/// Fails if no file can have that length.
fn fits(len: u64) -> io::Result<()> {
    if len > i64::MAX as u64 { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(()) }
}

impl DiskFile for MemFile {
    fn read_at(&self, offset: u64, into: &MemSlice) -> io::Result<usize> {
        let mut bytes = vec![0; into.len()];
        let len = self.read_record(offset, &mut bytes)?;
        into.slice(0, len).copy_from(&bytes[..len]);
        Ok(len)
    }

    fn write_at(&self, offset: u64, from: &MemSlice) -> io::Result<usize> {
        self.write(offset, &from.to_vec())
    }

    fn read_record(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.disk.step(DiskStep::Read, &self.name, |_| Ok(lock(&self.inode).read(offset, into)))
    }

    fn write_record(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        if self.write(offset, from)? == from.len() { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        fits(len)?;
        let state = &mut *lock(&self.disk.state);
        state.check(self.disk.power)?;
        state.faults.step(DiskStep::Length, &self.name)?;
        self.change(state, |bytes, state| bytes.set_len(len, state.keep));
        Ok(())
    }

    fn allocate(&self, range: Region, how: Allocation) -> io::Result<()> {
        let end = range.offset.saturating_add(range.len);
        fits(end)?;
        let state = &mut *lock(&self.disk.state);
        state.check(self.disk.power)?;
        state.faults.step(DiskStep::Write, &self.name)?;
        let is_done = self.change(state, |bytes, state| {
            let room = state.capacity.saturating_sub(state.used) / bytes::CHUNK;
            bytes.allocate(range.offset..end, how, room, state.keep)
        });
        if is_done { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    fn seek(&self, offset: u64, what: Sought) -> io::Result<Option<u64>> {
        self.disk.step(DiskStep::Look, &self.name, |_| Ok(lock(&self.inode).seek(offset, what)))
    }

    fn len(&self) -> io::Result<u64> {
        self.look(|bytes| bytes.len)
    }

    fn held(&self) -> io::Result<Held> {
        self.look(|bytes| Held { size: bytes.len, mtime_ns: bytes.mtime_ns })
    }

    fn start_writeback(&self) {}

    /// The disk may have it afterwards, as before.
    fn write_out(&self) -> io::Result<()> {
        self.look(|_| ())
    }

    fn sync(&self, whole: bool) -> io::Result<()> {
        let state = &mut *lock(&self.disk.state);
        state.check(self.disk.power)?;
        match state.faults.step(DiskStep::Sync, &self.name) {
            Ok(()) => lock(&self.inode).sync(whole),
            Err(failed) => {
                lock(&self.inode).drop_unsynced();
                return Err(failed.into());
            }
        }
        state.faults.synced()
    }

    fn note(&self) -> u64 {
        self.look(|bytes| bytes.note).unwrap_or(0)
    }

    fn set_note(&self, number: u64) -> io::Result<()> {
        let state = &mut *lock(&self.disk.state);
        state.check(self.disk.power)?;
        let result = state.faults.step(DiskStep::Write, &self.name);
        // One that fails may be noted all the same.
        if result.as_ref().map_or_else(|failed| failed.by_half, |()| true) {
            lock(&self.inode).set_note(number, state.keep);
        }
        Ok(result?)
    }
}
