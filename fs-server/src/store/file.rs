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
//! **Threads.** Opening, metadata lookups and small transfers take microseconds and run on the
//! server's own thread. Transfers of `offload` bytes or more, truncation, removal and syncing run
//! on the worker threads of the tokio runtime, if there is one, so that disk and network overlap.
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
//! **Truncation in two steps.** `prepare_truncate` marks a datafile (`marks.rs`). The mark ends
//! when the truncation is durable, or cancelled.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bmi_core::{MemList, MemSlice};
use fs_proto::{DatafileHandle, ErrorCode, FsError, IodStat, Region};
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, statat, unlinkat};

use super::catalogue::Catalogue;
use super::durability::{self, Disk, Trouble};
use super::failure::Failure;
use super::identity::{read_label, trouble, write_label};
use super::marks::{Mark, Marks};
use super::open_file::OpenFile;
use super::open_files::{Closing, Named, OPEN_FILES, OpenFiles};
use super::steps::{self, step};
use super::transfer::{jobs, read_all, write_all};
use super::{DataStore, Held, Label, absent, cut_off, durable_dir, remainder};

/// Most transfers on worker threads at the same time. The page cache and a flash disk can handle
/// several at once. Beyond a few, there are no more cores and channels.
const PLACES: usize = 8;

/// Files that are closed when no descriptor is free. Requests that follow need some too.
const SPARE: usize = 16;

/// Most files that are synced together.
const SYNCED_TOGETHER: usize = 128;

/// A store of datafiles in the files of a directory.
pub struct FileStore {
    path: PathBuf,
    disk: Arc<Disk>,
    offload: u64,
    open: RefCell<OpenFiles>,
    label: Cell<Option<Label>>,
    /// A number for the physical disk.
    disk_number: u64,
}

/// Converts an error of the system to an error for a datafile.
fn fault(what: &str, datafile: DatafileHandle, error: &io::Error) -> FsError {
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

/// Runs `work` on a worker thread of the tokio runtime, or on this thread if there is none.
pub(super) async fn offload<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R, FsError> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => runtime
            .spawn_blocking(work)
            .await
            .map_err(|error| FsError::new(ErrorCode::Io, format!("a storage worker failed: {error}"))),
        Err(_) => Ok(work()),
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
        let label = Cell::new(label.transpose().map_err(invalid)?);
        let device = dir.metadata().map_err(|error| trouble(&path, &error))?.dev();
        let disk_number = disk_number(&bmi::host_id().unwrap_or_default(), device);
        let disk = Arc::new(Disk { dir, catalogue, marks, failure: Failure::default() });
        let open = RefCell::new(OpenFiles::new(OPEN_FILES));
        Ok(FileStore { path, disk, offload, open, label, disk_number })
    }

    /// Sets the number of datafiles that are kept open, at least one. There may be more for a
    /// while, if all are in use. 256 without this.
    #[must_use]
    pub fn keeping_open(mut self, files: usize) -> FileStore {
        self.open = RefCell::new(OpenFiles::new(files.max(1)));
        self
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
    async fn file(&self, datafile: DatafileHandle, create: bool) -> Result<Option<Arc<OpenFile>>, FsError> {
        self.check(datafile)?;
        self.marked_file(datafile, create).await
    }

    /// Sets the length of a datafile, whether it is marked or not.
    async fn set_length(&self, datafile: DatafileHandle, size: u64) -> Result<Arc<OpenFile>, FsError> {
        let file = self.marked_file(datafile, true).await?.expect(MADE);
        let cut = file.clone();
        let result = offload(move || cut.set_len(size));
        result.await?.map_err(|error| fault("truncating", datafile, &error))?;
        Ok(file)
    }

    /// As [`FileStore::file`], whether the datafile is marked or not.
    async fn marked_file(&self, datafile: DatafileHandle, create: bool) -> Result<Option<Arc<OpenFile>>, FsError> {
        loop {
            if let Some(file) = self.open.borrow_mut().find(datafile) {
                return Ok(Some(file));
            }
            let unwritten = self.open.borrow_mut().make_room();
            if !unwritten.is_empty() {
                self.write_out(unwritten).await?;
                continue;
            }
            match self.open_file(datafile, create) {
                Err(error) if no_descriptor(&error).is_some() && self.close_unused().await? => {}
                Err(error) => return Err(fault("opening", datafile, &error)),
                Ok(None) if !create && self.disk.catalogue.is_new(datafile) => return Ok(None),
                Ok(None) => return Err(absent(datafile)),
                Ok(Some(file)) => return self.keep(datafile, file).map(Some),
            }
        }
    }

    async fn write_out(&self, files: Vec<Named>) -> Result<(), FsError> {
        let disk = self.disk.clone();
        offload(move || disk.write_out(&files)).await
    }

    /// Closes some files that nobody uses. Returns false if there are none.
    async fn close_unused(&self) -> Result<bool, FsError> {
        loop {
            let closing = self.open.borrow_mut().close(SPARE);
            match closing {
                Closing::Closed => return Ok(true),
                Closing::Unwritten(files) if files.is_empty() => return Ok(false),
                Closing::Unwritten(files) => self.write_out(files).await?,
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
            let (disk, work) = (self.disk.clone(), work.clone());
            match offload(move || work(&disk)).await? {
                Err(error) if no_descriptor(&error).is_some() && self.close_unused().await? => {}
                result => return Ok(result),
            }
        }
    }

    /// Opens the file of a datafile. Makes it if `create` is true and the datafile was never
    /// written. Returns `None` if there is none.
    fn open_file(&self, datafile: DatafileHandle, create: bool) -> io::Result<Option<File>> {
        match open_at(&self.disk.dir, &name(datafile), OFlags::RDWR) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !create {
                    return Ok(None);
                }
                let make = || open_at(&self.disk.dir, &name(datafile), OFlags::RDWR | OFlags::CREATE);
                self.disk.catalogue.make_file(datafile, make)
            }
            result => result.map(Some),
        }
    }

    /// Keeps an open file, unless the datafile was cut off.
    fn keep(&self, datafile: DatafileHandle, file: File) -> Result<Arc<OpenFile>, FsError> {
        let file = OpenFile::new(file);
        if file.synced() > 0 {
            let size = file.file.metadata().map_err(|error| fault("looking at", datafile, &error))?.len();
            if size < file.synced() {
                return Err(cut_off(datafile, size, file.synced()));
            }
        }
        let file = Arc::new(file);
        self.open.borrow_mut().keep(datafile, &file);
        if let Ok(runtime) = tokio::runtime::Handle::try_current()
            && let Some(write) = self.write_ahead()
        {
            // Nobody waits for it. Whoever closes one of the files looks whether it was written.
            drop(runtime.spawn_blocking(write));
        }
        Ok(file)
    }

    /// Returns the work of writing files ahead of need, if it is time for that.
    pub(super) fn write_ahead(&self) -> Option<impl FnOnce() + Send + 'static> {
        let ahead = self.open.borrow_mut().ahead()?;
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

    /// Changes the marks of a datafile.
    async fn mark(
        &self,
        datafile: DatafileHandle,
        change: impl FnOnce(&Marks) -> io::Result<()> + Send + 'static,
    ) -> Result<(), FsError> {
        let disk = self.disk.clone();
        let result = offload(move || disk.mark(change)).await?;
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

fn is_prepared(mark: Mark) -> bool {
    matches!(mark, Mark::Truncating(_))
}

#[async_trait(?Send)]
impl DataStore for FileStore {
    fn label(&self) -> Option<Label> {
        self.label.get()
    }

    async fn relabel(&self, label: &Label) -> Result<(), FsError> {
        let new = *label;
        let written = self.work(move |disk| write_label(&disk.dir, &new)).await?;
        written.map_err(|error| trouble(&self.path, &error))?;
        self.label.set(Some(*label));
        Ok(())
    }

    fn places(&self) -> usize {
        PLACES
    }

    async fn create(&self, first: DatafileHandle, count: u32) -> Result<(), FsError> {
        self.disk.failure.check()?;
        let disk = self.disk.clone();
        let result = offload(move || disk.create(first, count));
        result.await?.map_err(|error| fault("creating datafiles from", first, &error))
    }

    async fn discard(&self, first: DatafileHandle, count: u32) -> Result<(), FsError> {
        self.disk.failure.check()?;
        let disk = self.disk.clone();
        let result = offload(move || -> io::Result<Vec<DatafileHandle>> {
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
        removed.iter().for_each(|datafile| self.open.borrow_mut().forget(*datafile));
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
        let file = file.expect(MADE);
        let jobs = jobs(regions, from);
        let write = move || {
            let result = write_all(&file.file, &jobs);
            // Only now: a sync that began before may not cover it.
            file.changed();
            result
        };
        let result = if from.len() as u64 >= self.offload { offload(write).await? } else { write() };
        result.map_err(|(done, error)| fault("writing", datafile, &error).with_ranges(remainder(regions, done)))
    }

    async fn read(&self, datafile: DatafileHandle, regions: &[Region], into: &MemList) -> Result<(), FsError> {
        let file = self.file(datafile, false).await.map_err(|error| error.with_ranges(regions.iter().copied()))?;
        let Some(file) = file else {
            into.pieces().iter().for_each(MemSlice::zero);
            return Ok(());
        };
        let jobs = jobs(regions, into);
        let result = if into.len() as u64 >= self.offload {
            offload(move || read_all(&file.file, &jobs)).await?
        } else {
            read_all(&file.file, &jobs)
        };
        result.map_err(|(done, error)| fault("reading", datafile, &error).with_ranges(remainder(regions, done)))
    }

    async fn prepare_truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        self.check_sound(datafile)?;
        self.marked_file(datafile, false).await?;
        self.mark(datafile, move |marks| marks.set(datafile, Mark::Truncating(size))).await
    }

    async fn truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        self.check(datafile)?;
        self.set_length(datafile, size).await.map(drop)
    }

    async fn commit_truncate(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        self.disk.failure.check()?;
        let Some(Mark::Truncating(size)) = self.disk.marks.find(datafile) else { return Ok(()) };
        let clear = move |marks: &Marks| marks.clear([datafile], is_prepared);
        let file = match self.set_length(datafile, size).await {
            Err(lost) if lost.code == ErrorCode::Lost => {
                self.mark(datafile, clear).await?;
                return Err(lost);
            }
            file => file?,
        };
        // With its attributes, which have the length that was synced before.
        let failed = self.sync_files(vec![(datafile, file)], true).await?;
        if let Some((_, trouble)) = failed.first() {
            return Err(sync_fault(datafile, trouble));
        }
        self.mark(datafile, clear).await
    }

    async fn cancel_truncates(&self, except: &[DatafileHandle]) -> Result<(), FsError> {
        self.disk.failure.check()?;
        let mut cancelled = self.disk.marks.list(is_prepared);
        cancelled.retain(|datafile| !except.contains(datafile));
        let Some(first) = cancelled.first().copied() else { return Ok(()) };
        self.mark(first, move |marks| marks.clear(cancelled, is_prepared)).await
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
        let metadata = file.file.metadata().map_err(|error| fault("looking at", datafile, &error))?;
        let ns = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        // Times before 1970 count as never.
        Ok(Held { size: metadata.len(), mtime_ns: u64::try_from(ns).unwrap_or(0) })
    }

    async fn failure(&self) -> FsError {
        self.disk.failure.wait().await
    }

    async fn stat(&self) -> Result<IodStat, FsError> {
        let disk = self.disk.clone();
        let space = offload(move || rustix::fs::fstatvfs(&disk.dir)).await?;
        let space = space.map_err(|error| trouble(&self.path, &error.into()))?;
        Ok(IodStat {
            capacity: space.f_blocks.saturating_mul(space.f_frsize),
            free: space.f_bavail.saturating_mul(space.f_frsize),
            datafiles: self.disk.catalogue.datafiles(),
            disk: self.disk_number,
        })
    }
}
