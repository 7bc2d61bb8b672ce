//! Stores datafiles as files under a directory.
//!
//! **Layout**
//!
//! ```text
//!   <dir>/identity.toml            the label (`identity.rs`)
//!   <dir>/catalogue                datafiles that were created and never written (`catalogue.rs`)
//!   <dir>/marks                    datafiles on which most operations must fail (`marks.rs`)
//!   <dir>/e1/000001000000e100      subdirectory: the handle's second byte; file: the handle, in hexadecimal
//!   <dir>/e2/…
//! ```
//!
//! **Existence.** A datafile exists if it has a file, or if the catalogue says that it was created
//! and never written (`catalogue.rs`). The first write makes the file, and the first sync takes the
//! datafile off the catalogue. The length that a datafile had when it was synced is an extended
//! attribute of its file (`user.pvfs.synced`). On a file system without such attributes nothing is
//! remembered.
//!
//! **The directory is opened once,** and every name is relative to it. If another file system is
//! mounted over the path of a running server, the server keeps to its own.
//!
//! **Threads.** No call that can wait for the disk runs on the server's event loop, however short
//! it is. The loop reads what is in the system's memory, and writes if the file system can without
//! a wait (`at_once.rs`). It looks at lengths that the system knows. Everything else is done by
//! worker threads ([`Workers`]):
//!
//! | threads | what they do |
//! |---|---|
//! | `SHORT` | opening and closing (`openings.rs`), transfers below `offload` bytes, room and attributes |
//! | `LONG` | transfers of `offload` bytes or more, creation, removal, truncation, syncing, listing |
//!
//! So what is short does not wait for what takes long. If the disk does not answer, the threads are
//! soon used up, and requests wait. They are as many as the server admits. What is answered from
//! memory goes on: reads from the page cache, lengths, and what the file system said last about its
//! room (`space.rs`). Without a tokio runtime there is no event loop, and nothing is handed over.
//!
//! **In the page cache.** A store can lend the pages of its files instead of copying them
//! (`mapped.rs`).
//!
//! **Past the page cache.** A store behind a cache can move bytes between memory and disk directly,
//! never on the event loop (`direct.rs`).
//!
//! **Several event loops** share a store. What they have in common beside the disk is locked for a
//! step: the table of open files, the openings, the label. No two of these locks are held at the
//! same time, and none across a system call. A worker of the store may hold the locks of an open
//! file while it waits for the disk; the loops never take these.
//!
//! **Order.** A request that waits for a worker may be overtaken by others, also of the same
//! datafile. Requests in progress at the same time have no order, over any transport.
//!
//! **Stop.** A server that stops gives its workers some time. Then it ends without them. The lock
//! on the directory stays until the last of them has ended, so no other server can begin while an
//! old write may still reach the disk.
//!
//! **Open files** are kept for later requests (`open_files.rs`), so that small requests need no
//! `open`. If no descriptor is free, files that nobody uses are closed, and the step that needs one
//! is taken again.
//!
//! **Number of datafiles.** It is known without looking (`catalogue.rs`). The files are counted
//! when the store is opened. The file system knows how much space is free.
//!
//! **Durability.** `sync` is `fdatasync` of the files (`durability.rs`). The first one of a
//! datafile also syncs the subdirectory, so that the name survives, and the catalogue. `remove`
//! syncs the subdirectories, and the catalogue.
//!
//! **Truncation in two steps.** `prepare_truncate` makes sure that there is a file, tries on an
//! empty one whether the file system takes the length, and marks the datafile (`marks.rs`). The
//! datafile keeps its length, so nothing has to be put back. The mark ends when the truncation is
//! durable, or cancelled.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bmi::{MemList, MemSlice};
use fs_proto::{DatafileHandle, ErrorCode, FsError, IodStat, Region, ServiceKind};
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, statat, unlinkat};

use super::at_once::AtOnce;
use super::cache_note::{self, CacheNote};
use super::catalogue::Catalogue;
use super::direct::Direct;
use super::direct::course::Direction;
use super::durability::{self, Disk, Found, Trouble};
use super::failure::Failure;
use super::identity::{read_label, trouble, write_label};
use super::lock::DirLock;
use super::mapped::Mapped;
use super::marks::{Mark, Marks};
use super::open_file::OpenFile;
use super::open_files::{Closing, Named, OPEN_FILES, OpenFiles};
use super::openings::{Begun, Openings};
use super::space::{Room, Space};
use super::steps::{self, step};
use super::transfer::{self, Job, jobs, read_all, write_all};
use super::{DataStore, DiskTurn, Held, Label, Lends, Loan, absent, cut_off, durable_dir, remainder};
use crate::workers::{Workers, on_a_loop};

/// Most transfers on worker threads at the same time. The page cache and a flash disk can handle
/// several at once. Beyond a few, there are no more cores and channels.
const PLACES: usize = 8;

/// Files that are closed when no descriptor is free. Requests that follow need some too.
const SPARE: usize = 16;

/// Most files that are synced together.
const SYNCED_TOGETHER: usize = 128;

/// Threads for what is short. Several, because some operations may wait while others do not.
const SHORT: usize = 16;

/// Threads for what takes long. Many syncs at the same time cost the disk little more than one.
const LONG: usize = 64;

/// A store of datafiles in the files of a directory.
pub struct FileStore {
    path: PathBuf,
    pub(super) disk: Arc<Disk>,
    pub(super) at_once: AtOnce,
    pub(super) offload: u64,
    /// Moves bytes past the page cache, if it exists.
    pub(super) direct: Option<Direct>,
    /// Lends the pages of files, if it exists.
    pub(super) mapped: Option<Mapped>,
    /// Most descriptors of datafiles that are kept.
    kept: usize,
    open: Mutex<OpenFiles>,
    openings: Openings,
    label: Mutex<Option<Label>>,
    /// A number for the physical disk.
    disk_number: u64,
}

/// Converts an error of the system to an error for a datafile.
pub(super) fn fault(what: &str, datafile: DatafileHandle, error: &io::Error) -> FsError {
    if let Some(missing) = no_descriptor(error) {
        return FsError::new(ErrorCode::Busy, format!("{what} {datafile}: {missing}"));
    }
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::NoSpace,
        io::ErrorKind::FileTooLarge => ErrorCode::TooLarge,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorCode::Permission,
        _ => ErrorCode::Io,
    };
    FsError::new(code, format!("{what} {datafile}: {error}"))
}

/// Returns what is missing, and the remedy, if no descriptor was free. The operation was not begun.
pub(super) fn no_descriptor(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EMFILE => {
            Some("no file descriptor is free: this process may open no more files; raise its limit (`ulimit -n`)")
        }
        libc::ENFILE => {
            Some("no file descriptor is free: this machine may open no more files; raise its limit (`fs.file-max`)")
        }
        _ => None,
    }
}

/// Converts the reason why a datafile is not durable to an error.
fn sync_fault(datafile: DatafileHandle, trouble: &Trouble) -> FsError {
    match trouble {
        Trouble::Before(error) => fault("syncing", datafile, error),
        Trouble::Failed(error) => {
            let text = format!(
                "syncing {datafile}: {error}; the disk may not have what was written: remove the file and store it again"
            );
            FsError::new(ErrorCode::Io, text)
        }
    }
}

/// Why a transfer was not made.
pub(super) enum Unmoved {
    Disk(io::Error),
    Worker(FsError),
}

impl Unmoved {
    fn into_error(self, what: &str, datafile: DatafileHandle) -> FsError {
        match self {
            Unmoved::Disk(error) => fault(what, datafile, &error),
            Unmoved::Worker(error) => error,
        }
    }
}

/// Returns the number of the subdirectory of a datafile.
pub(super) fn subdir_of(datafile: DatafileHandle) -> u8 {
    (datafile.0 >> 8) as u8
}

pub(super) fn subdir(number: u8) -> String {
    format!("{number:02x}")
}

/// Returns the name of a datafile's file, relative to the store's directory.
pub(crate) fn name(datafile: DatafileHandle) -> String {
    format!("{:02x}/{:016x}", subdir_of(datafile), datafile.0)
}

pub(super) fn open_at(dir: &File, name: &str, flags: OFlags) -> io::Result<File> {
    step(|| Ok(File::from(openat(dir, name, flags | OFlags::CLOEXEC, Mode::from(0o644))?)))
}

/// The name under which a file is made to try a length. It is removed at once.
const TRIAL: &str = "trial";

/// Fails if no file of this file system can have that length.
fn try_length(disk: &Disk, size: u64) -> io::Result<()> {
    let file = open_at(&disk.dir, TRIAL, OFlags::RDWR | OFlags::CREATE)?;
    match unlinkat(&disk.dir, TRIAL, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    step(|| file.set_len(size))
}

/// Returns the handles from `first` on.
fn range(first: DatafileHandle, count: u32) -> impl Iterator<Item = DatafileHandle> {
    (first.0..first.0.saturating_add(count.into())).map(DatafileHandle)
}

/// Removes the file of a datafile that is not on the catalogue. It is not an error if it does not
/// exist.
fn unlink(disk: &Disk, datafile: DatafileHandle) -> io::Result<()> {
    match step(|| Ok(unlinkat(&disk.dir, name(datafile), AtFlags::empty())?)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(()) => {
            disk.catalogue.file_removed();
            Ok(())
        }
        result => result,
    }
}

/// Returns the handles of the files in a subdirectory, in order.
fn handles_in(subdir: impl AsFd, number: u8) -> io::Result<Vec<DatafileHandle>> {
    let mut handles = Vec::new();
    for entry in rustix::fs::Dir::read_from(subdir)? {
        let entry = entry?;
        let parsed = entry.file_name().to_str().ok().and_then(|name| u64::from_str_radix(name, 16).ok());
        handles.extend(parsed.map(DatafileHandle).filter(|handle| subdir_of(*handle) == number));
    }
    handles.sort();
    Ok(handles)
}

impl FileStore {
    /// Opens the store in `path`, and creates the directory if it does not exist. Transfers of
    /// `offload` bytes or more go to worker threads.
    ///
    /// # Errors
    /// `Permission`, `NoSpace` or `Io`, naming the directory; `Invalid` for a label that cannot be
    /// read.
    pub fn open(path: impl Into<PathBuf>, offload: u64) -> Result<FileStore, FsError> {
        let path = path.into();
        let prepare = || {
            durable_dir(&path)?;
            let dir = File::open(&path)?;
            for number in 0..=0xffu8 {
                match mkdirat(&dir, subdir(number), Mode::from(0o755)) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            let catalogue = Catalogue::open(&path)?;
            let marks = Marks::open(&path)?;
            for number in 0..=0xffu8 {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                catalogue.count_files(handles_in(openat(&dir, subdir(number), flags, Mode::empty())?, number)?);
            }
            // The names may be those of a process that was killed before it synced them.
            steps::sync_all(&dir)?;
            Ok::<_, io::Error>((dir, catalogue, marks, read_label(&path)?))
        };
        let (dir, catalogue, marks, label) = prepare().map_err(|error| trouble(&path, &error))?;
        let invalid = |why| FsError::new(ErrorCode::Invalid, format!("data directory {}: {why}", path.display()));
        let label = Mutex::new(label.transpose().map_err(invalid)?);
        let device = dir.metadata().map_err(|error| trouble(&path, &error))?.dev();
        let disk_number = disk_number(&bmi::backend::host_id().unwrap_or_default(), device);
        let at_once = AtOnce::on(&dir).map_err(|error| trouble(&path, &error))?;
        let room = Room::of(&dir).map_err(|error| trouble(&path, &error))?;
        let (short, long) = (Arc::new(Workers::new("disk-short", SHORT)), Workers::new("disk-long", LONG));
        let (space, failure) = (Space::new(room), Failure::default());
        let disk = Arc::new(Disk { dir, short, long, space, lock: None, catalogue, marks, failure });
        let (open, openings) = (Mutex::new(OpenFiles::new(OPEN_FILES)), Openings::default());
        let (direct, mapped, kept) = (None, None, OPEN_FILES);
        Ok(FileStore { path, disk, at_once, offload, direct, mapped, kept, open, openings, label, disk_number })
    }

    /// Keeps this lock as long as anything uses the disk. Call it before the store is used.
    #[must_use]
    pub(crate) fn locked_by(mut self, lock: Option<Arc<DirLock>>) -> FileStore {
        if let Some(disk) = Arc::get_mut(&mut self.disk) {
            disk.lock = lock;
        }
        self
    }

    /// Blocks this thread until no work is under way, but for `patience` at most. Returns false if
    /// the disk has not answered by then. Call it when the event loop has ended.
    pub(crate) fn wait_until_idle(&self, patience: Duration) -> bool {
        self.direct.as_ref().is_none_or(|direct| direct.wait_until_idle(patience))
            && self.disk.long.wait_until_idle(patience)
            && self.disk.short.wait_until_idle(patience)
    }

    /// Sets the number of datafiles that are kept open, at least one. There may be more for a
    /// while, if all are in use. 256 without this. If bytes are moved past the page cache
    /// ([`FileStore::direct`]), half as many are kept, because each has two descriptors.
    #[must_use]
    pub fn keeping_open(mut self, files: usize) -> FileStore {
        self.kept = files;
        self.with_table()
    }

    /// Makes the table of open files anew.
    pub(super) fn with_table(mut self) -> FileStore {
        let descriptors = if self.moves_directly() { 2 } else { 1 };
        self.open = Mutex::new(OpenFiles::new((self.kept / descriptors).max(1)));
        self
    }

    /// Locks the table of open files. No file may be closed meanwhile.
    fn open_files(&self) -> MutexGuard<'_, OpenFiles> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if operations on a datafile must fail.
    fn check(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        self.disk.failure.check()?;
        self.disk.marks.find(datafile).map_or(Ok(()), |mark| Err(mark.refusal(datafile)))
    }

    /// As [`FileStore::check`], but the datafile may be about to be truncated.
    fn check_sound(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        self.disk.failure.check()?;
        match self.disk.marks.find(datafile) {
            Some(mark @ Mark::FailedSync) => Err(mark.refusal(datafile)),
            _ => Ok(()),
        }
    }

    /// Returns the open file. A datafile that was never written has none: it is made if `create` is
    /// true, and `None` is returned otherwise.
    pub(super) async fn file(&self, datafile: DatafileHandle, create: bool) -> Result<Option<Arc<OpenFile>>, FsError> {
        self.check(datafile)?;
        let file = self.marked_file(datafile, create).await?;
        // It may have been marked while it was opened.
        self.check(datafile)?;
        Ok(file)
    }

    /// Sets the length of a datafile, whether it is marked or not. Returns its file. It has none if
    /// it is empty and was never written.
    async fn set_length(&self, datafile: DatafileHandle, size: u64) -> Result<Option<Arc<OpenFile>>, FsError> {
        let Some(file) = self.marked_file(datafile, size > 0).await? else { return Ok(None) };
        let _cut = match &self.mapped {
            Some(mapped) => Some(mapped.cut(datafile).await),
            None => None,
        };
        let cut = file.clone();
        let result = self.long(move |_| cut.set_len(size));
        self.mapped.iter().for_each(|mapped| mapped.forget(datafile));
        result.await?.map_err(|error| fault("truncating", datafile, &error))?;
        Ok(Some(file))
    }

    /// Changes the length of a marked datafile, durably, and takes the mark off.
    async fn carry_out(&self, datafile: DatafileHandle, cut: u64, size: u64) -> Result<(), FsError> {
        let clear = move |marks: &Marks| marks.clear([datafile], Mark::is_prepared);
        let set = async {
            // Without a file there is nothing to cut off.
            if cut < size
                && let Some(file) = self.marked_file(datafile, false).await?
                && file.len().map_err(|error| fault("looking at", datafile, &error))? > cut
            {
                self.set_length(datafile, cut).await?;
            }
            self.set_length(datafile, size).await
        };
        let file = match set.await {
            Err(lost) if lost.code == ErrorCode::Lost => {
                self.mark(datafile, clear).await?;
                return Err(lost);
            }
            file => file?,
        };
        if let Some(file) = file {
            // With its attributes, which have the length that was synced before.
            self.make_durable(datafile, file, true).await?;
        }
        self.mark(datafile, clear).await
    }

    /// As [`FileStore::file`], whether the datafile is marked or not.
    async fn marked_file(&self, datafile: DatafileHandle, create: bool) -> Result<Option<Arc<OpenFile>>, FsError> {
        loop {
            if let Some(file) = self.found(datafile) {
                return Ok(Some(file));
            }
            if !create && self.disk.catalogue.has_no_file(datafile) {
                return Ok(None);
            }
            let needed = self.openings.count() + 1;
            let room = self.open_files().make_room(needed);
            if let Some(closing) = room {
                self.close(closing).await?;
                continue;
            }
            let Some(begun) = self.openings.begin(datafile) else {
                self.openings.wait(datafile).await;
                continue;
            };
            if let Some(file) = self.found(datafile) {
                // Another event loop has opened it before this one began.
                return Ok(Some(file));
            }
            let opened = self.short(move |disk| disk.open_file(datafile, create)).await?;
            match opened {
                Err(error) if no_descriptor(&error).is_some() && self.close_unused().await? => {}
                Err(error) => return Err(fault("opening", datafile, &error)),
                _ if begun.was_removed() => {}
                Ok(Found::CutOff(size, synced)) => return Err(cut_off(datafile, size, synced)),
                Ok(Found::Nothing) if !create && self.disk.catalogue.is_new(datafile) => return Ok(None),
                Ok(Found::Nothing) => return Err(absent(datafile)),
                Ok(Found::File(file)) => {
                    if let Some(file) = self.keep(datafile, file, &begun) {
                        return Ok(Some(file));
                    }
                }
            }
        }
    }

    /// Returns the open file of a datafile, if it has one.
    fn found(&self, datafile: DatafileHandle) -> Option<Arc<OpenFile>> {
        self.open_files().find(datafile)
    }

    /// Runs short work, on a worker thread if there is a disk to wait for.
    pub(super) async fn short<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Disk) -> R + Send + 'static,
    ) -> Result<R, FsError> {
        if self.at_once.in_memory() {
            return Ok(work(&self.disk));
        }
        let disk = self.disk.clone();
        self.disk.short.run(move || work(&disk)).await
    }

    /// Runs long work on a worker thread. Work that is under way keeps the lock on the directory,
    /// and so does short work.
    pub(super) async fn long<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Disk) -> R + Send + 'static,
    ) -> Result<R, FsError> {
        let disk = self.disk.clone();
        self.disk.long.run(move || work(&disk)).await
    }

    /// Makes a transfer: `at_once` as far as that needs no wait, and `whole` on a worker thread.
    async fn transfer(
        &self,
        file: Arc<OpenFile>,
        jobs: Vec<Job>,
        at_once: impl FnOnce(&AtOnce, &OpenFile, &[Job]) -> Result<u64, (u64, io::Error)>,
        whole: impl FnOnce(&OpenFile, &[Job]) -> Result<(), (u64, io::Error)> + Send + 'static,
    ) -> Result<(), (u64, Unmoved)> {
        let len = transfer::len(&jobs);
        let waits = |error| (0, Unmoved::Worker(error));
        let failed = |(done, error)| (done, Unmoved::Disk(error));
        if len >= self.offload {
            return self.long(move |_| whole(&file, &jobs)).await.map_err(waits)?.map_err(failed);
        }
        if self.at_once.in_memory() || !on_a_loop() {
            return whole(&file, &jobs).map_err(failed);
        }
        let moved = at_once(&self.at_once, &file, &jobs).map_err(failed)?;
        if moved == len {
            return Ok(());
        }
        let left = transfer::rest(jobs, moved);
        let result = self.short(move |_| whole(&file, &left)).await.map_err(waits)?;
        result.map_err(|(more, error)| failed((moved + more, error)))
    }

    /// Closes files, or writes them so that they can be closed.
    async fn close(&self, closing: Closing) -> Result<(), FsError> {
        match closing {
            Closing::Closed(files) => self.short(move |_| drop(files)).await,
            Closing::Unwritten(files) => self.long(move |disk| disk.write_out(&files)).await,
        }
    }

    /// Closes some files that nobody uses. Returns false if there are none.
    pub(super) async fn close_unused(&self) -> Result<bool, FsError> {
        loop {
            let closing = self.open_files().close(SPARE);
            let ends = match &closing {
                Closing::Unwritten(files) if files.is_empty() => return Ok(false),
                Closing::Unwritten(_) => false,
                Closing::Closed(_) => true,
            };
            self.close(closing).await?;
            if ends {
                return Ok(true);
            }
        }
    }

    /// Runs `work` on a worker thread. If no descriptor is free, closes unused files and runs it
    /// again, from its beginning.
    async fn work<R: Send + 'static>(
        &self,
        work: impl Fn(&Disk) -> io::Result<R> + Send + Sync + 'static,
    ) -> Result<io::Result<R>, FsError> {
        let work = Arc::new(work);
        loop {
            let work = work.clone();
            match self.long(move |disk| work(disk)).await? {
                Err(error) if no_descriptor(&error).is_some() && self.close_unused().await? => {}
                result => return Ok(result),
            }
        }
    }

    /// Keeps an open file. Returns `None` if its datafile was removed meanwhile.
    fn keep(&self, datafile: DatafileHandle, file: OpenFile, begun: &Begun<'_>) -> Option<Arc<OpenFile>> {
        let file = Arc::new(file);
        let replaced = self.open_files().keep(datafile, &file);
        debug_assert!(replaced.is_none(), "a datafile is opened once at a time");
        // Look only now. Whoever removes the datafile notes that first, and then takes its file out
        // of the table: either it finds this one, or this finds the note.
        if begun.was_removed() {
            let kept = self.open_files().forget(datafile);
            drop(kept);
            return None;
        }
        if on_a_loop()
            && let Some(write) = self.write_ahead()
        {
            // Nobody waits for it. Whoever closes one of the files looks whether it was written.
            self.disk.long.start(write);
        }
        Some(file)
    }

    fn stat_of(&self, Room { capacity, free }: Room) -> IodStat {
        IodStat { capacity, free, datafiles: self.disk.catalogue.datafiles(), disk: self.disk_number }
    }

    /// Returns the work of writing files ahead of need, if it is time for that.
    pub(super) fn write_ahead(&self) -> Option<impl FnOnce() + Send + 'static> {
        let ahead = self.open_files().ahead()?;
        let disk = self.disk.clone();
        Some(move || disk.write_out(&ahead.files))
    }

    /// Syncs some datafiles whose files can be open at the same time.
    async fn sync_some(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError> {
        let (mut files, mut result) = (Vec::new(), Ok(()));
        for datafile in datafiles {
            match self.file(*datafile, false).await {
                Ok(file) => files.extend(file.map(|file| (*datafile, file))),
                Err(error) => result = result.and(Err(error)),
            }
        }
        for (datafile, trouble) in self.sync_files(files, false).await? {
            result = result.and(Err(sync_fault(datafile, &trouble)));
        }
        result
    }

    /// Syncs files, with their attributes if `whole` is set. Returns those that are not durable.
    async fn sync_files(&self, files: Vec<Named>, whole: bool) -> Result<Vec<(DatafileHandle, Trouble)>, FsError> {
        let mut failed = Vec::new();
        let mut left = files;
        loop {
            let found = durability::sync(&self.disk, left.clone(), whole).await?;
            let (again, done): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, trouble)| match trouble {
                Trouble::Before(error) => no_descriptor(error).is_some(),
                Trouble::Failed(_) => false,
            });
            failed.extend(done);
            if again.is_empty() || !self.close_unused().await? {
                failed.extend(again);
                return Ok(failed);
            }
            left.retain(|(datafile, _)| again.iter().any(|(other, _)| other == datafile));
        }
    }

    /// Syncs one file, with its attributes if `whole` is set.
    async fn make_durable(&self, datafile: DatafileHandle, file: Arc<OpenFile>, whole: bool) -> Result<(), FsError> {
        let failed = self.sync_files(vec![(datafile, file)], whole).await?;
        failed.first().map_or(Ok(()), |(_, trouble)| Err(sync_fault(datafile, trouble)))
    }

    /// Changes the marks of a datafile.
    async fn mark(
        &self,
        datafile: DatafileHandle,
        change: impl FnOnce(&Marks) -> io::Result<()> + Send + 'static,
    ) -> Result<(), FsError> {
        let result = self.long(move |disk| disk.mark(change)).await?;
        result.map_err(|error| fault("marking", datafile, &error))
    }
}

/// The caller asked for a file to be created.
const MADE: &str = "a file that is to be created is there or an error";

/// Returns the datafiles of a subdirectory, in order: those with a file and those without.
fn datafiles_in(disk: &Disk, number: u8) -> io::Result<Vec<DatafileHandle>> {
    let directory = open_at(&disk.dir, &subdir(number), OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut handles = handles_in(directory, number)?;
    handles.extend(disk.catalogue.list(|datafile| subdir_of(datafile) == number));
    handles.sort();
    handles.dedup();
    Ok(handles)
}

/// Returns a number for a disk: the same for all stores on it, and different for those on other
/// disks and hosts (FNV-1a).
fn disk_number(host: &str, device: u64) -> u64 {
    let bytes = host.bytes().chain(device.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

impl FileStore {
    /// Returns the note of the cache that this store uses.
    pub(super) fn cache_note(&self) -> Result<Option<CacheNote>, FsError> {
        cache_note::read(&self.path).map_err(|error| trouble(&self.path, &error))
    }

    /// Notes durably which cache this store uses from now on.
    pub(super) async fn note_cache(&self, note: Option<CacheNote>) -> Result<(), FsError> {
        let written = self.work(move |disk| cache_note::write(&disk.dir, note.as_ref())).await?;
        written.map_err(|error| trouble(&self.path, &error))
    }
}

#[async_trait(?Send)]
impl DataStore for FileStore {
    fn label(&self) -> Option<Label> {
        *self.label.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn relabel(&self, label: &Label) -> Result<(), FsError> {
        let new = *label;
        let written = self.work(move |disk| write_label(&disk.dir, &new)).await?;
        written.map_err(|error| trouble(&self.path, &error))?;
        *self.label.lock().unwrap_or_else(PoisonError::into_inner) = Some(*label);
        Ok(())
    }

    fn places(&self) -> usize {
        PLACES
    }

    async fn create(&self, first: DatafileHandle, count: u32) -> Result<(), FsError> {
        self.disk.failure.check()?;
        let result = self.long(move |disk| disk.create(first, count)).await?;
        result.map_err(|error| fault("creating datafiles from", first, &error))
    }

    async fn discard(&self, first: DatafileHandle, count: u32) -> Result<(), FsError> {
        self.disk.failure.check()?;
        let result = self.long(move |disk| -> io::Result<Vec<DatafileHandle>> {
            let mut empty = Vec::new();
            // One that is marked was in use.
            for datafile in range(first, count).filter(|datafile| disk.marks.find(*datafile).is_none()) {
                match statat(&disk.dir, name(datafile), AtFlags::empty()) {
                    Ok(stat) if stat.st_size > 0 => {}
                    Ok(_) | Err(rustix::io::Errno::NOENT) => empty.push(datafile),
                    Err(error) => return Err(error.into()),
                }
            }
            disk.take_off(empty.iter().copied())?;
            Ok(empty)
        });
        let empty = result.await?.map_err(|error| fault("discarding datafiles from", first, &error))?;
        self.remove(&empty).await
    }

    async fn remove(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError> {
        let Some(first) = datafiles.first().copied() else { return Ok(()) };
        self.disk.failure.check()?;
        let (gone, removed) = (datafiles.to_vec(), Arc::new(AtomicUsize::new(0)));
        let so_far = removed.clone();
        let result = self.work(move |disk| {
            // First, so that no late write makes the file again.
            disk.take_off(gone.iter().copied())?;
            for (datafile, count) in gone.iter().zip(1..) {
                unlink(disk, *datafile)?;
                so_far.store(count, Ordering::Relaxed);
            }
            // Those that were removed before a crash are made durable too.
            disk.sync_subdirs(gone.iter().copied())?;
            // Last, so that a marked datafile is never found without its mark.
            disk.mark(|marks| marks.clear(gone.iter().copied(), |_| true))
        });
        let result = result.await?;
        // One that could not be removed may have unsynced data.
        let removed = &datafiles[..removed.load(Ordering::Relaxed)];
        let forget = |datafile: &DatafileHandle| {
            self.openings.removed(*datafile);
            self.mapped.iter().for_each(|mapped| mapped.forget(*datafile));
            self.open_files().forget(*datafile)
        };
        // The space of a removed file is given back when it is closed.
        let closed: Vec<Arc<OpenFile>> = removed.iter().filter_map(forget).collect();
        if !closed.is_empty() {
            self.long(move |_| drop(closed)).await?;
        }
        result.map_err(|error| fault("removing datafiles from", first, &error))
    }

    async fn list(&self, after: Option<DatafileHandle>, max: usize) -> Result<(Vec<DatafileHandle>, bool), FsError> {
        let listed = self.work(move |disk| {
            let mut found = Vec::new();
            for number in after.map_or(0, subdir_of)..=0xff {
                let handles = datafiles_in(disk, number)?;
                let is_next =
                    |handle: &DatafileHandle| after.is_none_or(|after| (subdir_of(after), after) < (number, *handle));
                for handle in handles.into_iter().filter(is_next) {
                    if found.len() == max {
                        return Ok((found, true));
                    }
                    found.push(handle);
                }
            }
            Ok((found, false))
        });
        listed.await?.map_err(|error| trouble(&self.path, &error))
    }

    async fn write(&self, datafile: DatafileHandle, regions: &[Region], from: &MemList) -> Result<(), FsError> {
        let file = self.file(datafile, true).await.map_err(|error| error.with_ranges(regions.iter().copied()))?;
        let (file, jobs) = (file.expect(MADE), jobs(regions, from));
        // Only then: a sync that began before may not cover it.
        let at_once = |at_once: &AtOnce, file: &OpenFile, jobs: &[Job]| {
            let result = at_once.write(file.file(), jobs);
            if !matches!(result, Ok(0)) {
                file.changed();
            }
            result
        };
        let whole = |file: &OpenFile, jobs: &[Job]| {
            let result = write_all(file.file(), jobs);
            file.changed();
            result
        };
        let result = match self.moves_directly() {
            true => self.move_directly(Direction::Write, datafile, file, jobs).await,
            false => self.transfer(file, jobs, at_once, whole).await,
        };
        result.map_err(|(done, unmoved)| unmoved.into_error("writing", datafile).with_ranges(remainder(regions, done)))
    }

    async fn read(&self, datafile: DatafileHandle, regions: &[Region], into: &MemList) -> Result<(), FsError> {
        let file = self.file(datafile, false).await.map_err(|error| error.with_ranges(regions.iter().copied()))?;
        let Some(file) = file else {
            into.pieces().iter().for_each(MemSlice::zero);
            return Ok(());
        };
        let jobs = jobs(regions, into);
        let at_once = |at_once: &AtOnce, file: &OpenFile, jobs: &[Job]| at_once.read(file.file(), jobs);
        let whole = |file: &OpenFile, jobs: &[Job]| read_all(file.file(), jobs);
        let result = match self.moves_directly() {
            true => self.move_directly(Direction::Read, datafile, file, jobs).await,
            false => self.transfer(file, jobs, at_once, whole).await,
        };
        result.map_err(|(done, unmoved)| unmoved.into_error("reading", datafile).with_ranges(remainder(regions, done)))
    }

    fn refusal(&self, datafile: DatafileHandle) -> Option<FsError> {
        self.check(datafile).err()
    }

    fn lends(&self) -> Lends {
        if self.mapped.is_some() { Lends::Reads } else { Lends::Nothing }
    }

    async fn lend(
        &self,
        datafile: DatafileHandle,
        regions: &[Region],
        turn: &dyn DiskTurn,
    ) -> Result<Option<Loan>, FsError> {
        let Some(mapped) = &self.mapped else { return Ok(None) };
        let lent = self.lend_mapped(mapped, datafile, regions, turn).await;
        lent.map_err(|error| error.with_ranges(regions.iter().copied()))
    }

    fn any_waits(&self) -> bool {
        self.mapped.as_ref().is_some_and(Mapped::any_waits)
    }

    fn service(&self) -> ServiceKind {
        if self.mapped.is_some() { ServiceKind::Mmap } else { ServiceKind::Normal }
    }

    async fn prepare_truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        self.check_sound(datafile)?;
        // One that is empty, and was never written, needs none.
        if let Some(file) = self.marked_file(datafile, size > 0).await? {
            let len = file.len().map_err(|error| fault("looking at", datafile, &error))?;
            if size > 0 && self.disk.catalogue.is_new(datafile) {
                // It must be there after a power failure, too.
                self.make_durable(datafile, file, false).await?;
            }
            if size > len {
                let tried = self.long(move |disk| try_length(disk, size)).await?;
                tried.map_err(|error| fault("trying the length of", datafile, &error))?;
            }
        }
        self.mark(datafile, move |marks| marks.set(datafile, Mark::Truncating(size))).await?;
        // A sync of it may have failed meanwhile.
        self.check_sound(datafile)
    }

    async fn truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        self.check(datafile)?;
        self.set_length(datafile, size).await.map(drop)
    }

    async fn commit_truncate(&self, datafile: DatafileHandle, cut: u64, size: u64) -> Result<(), FsError> {
        self.disk.failure.check()?;
        if !self.disk.marks.find(datafile).is_some_and(Mark::is_prepared) {
            return Ok(());
        }
        let result = self.carry_out(datafile, cut, size).await;
        if result.is_err() {
            self.disk.marks.note_failure(datafile);
        }
        result
    }

    async fn cancel_truncates(&self, except: &[DatafileHandle]) -> Result<(), FsError> {
        self.disk.failure.check()?;
        let except: BTreeSet<DatafileHandle> = except.iter().copied().collect();
        let mut cancelled = self.disk.marks.list(Mark::is_prepared);
        cancelled.retain(|datafile| !except.contains(datafile));
        let Some(first) = cancelled.first().copied() else { return Ok(()) };
        self.mark(first, move |marks| marks.clear(cancelled, Mark::is_prepared)).await
    }

    async fn sync(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError> {
        let mut result = Ok(());
        for some in datafiles.chunks(SYNCED_TOGETHER) {
            result = result.and(self.sync_some(some).await);
        }
        result
    }

    async fn held(&self, datafile: DatafileHandle) -> Result<Held, FsError> {
        let Some(file) = self.file(datafile, false).await? else { return Ok(Held::default()) };
        let look = move || file.file().metadata();
        // The time of the last change is not always known here, if others keep it.
        let metadata = if self.at_once.knows_attributes() { look() } else { self.short(move |_| look()).await? };
        let metadata = metadata.map_err(|error| fault("looking at", datafile, &error))?;
        let ns = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        // Times before 1970 count as never.
        Ok(Held { size: metadata.len(), mtime_ns: u64::try_from(ns).unwrap_or(0) })
    }

    async fn size(&self, datafile: DatafileHandle) -> Result<u64, FsError> {
        let Some(file) = self.file(datafile, false).await? else { return Ok(0) };
        file.len().map_err(|error| fault("looking at", datafile, &error))
    }

    async fn failure(&self) -> FsError {
        self.disk.failure.wait().await
    }

    async fn stat(&self) -> Result<IodStat, FsError> {
        let disk = self.disk.clone();
        let ask = || self.disk.short.start(move || disk.space.ask(&disk.dir));
        let space = self.disk.space.ask_anew(ask).await;
        space.map(|room| self.stat_of(room)).map_err(|error| trouble(&self.path, &error))
    }

    fn known_stat(&self) -> Option<IodStat> {
        Some(self.stat_of(self.disk.space.known()))
    }
}

impl Drop for FileStore {
    /// Closes the files, on a worker thread if the disk does not answer.
    fn drop(&mut self) {
        let open = std::mem::replace(&mut *self.open_files(), OpenFiles::new(1));
        if !self.wait_until_idle(Duration::ZERO) {
            self.disk.long.leave(move || drop(open));
        }
    }
}
