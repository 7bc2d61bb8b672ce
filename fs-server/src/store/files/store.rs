//! The store of files itself ([`FileStore`]): opening it, its open files, and the threads for its
//! work.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bmi::hooks::mutated;
use fs_proto::{DatafileHandle, ErrorCode, FsError};

use super::catalogue::Catalogue;
use super::durability::{Found, StoreCore};
use super::failure::Failure;
use super::mapped::Mapped;
use super::marks::{Mark, Marks};
use super::names::{handles_in, subdir};
use super::space::Space;
use crate::lock::lock;
use crate::store::disk::steps;
use crate::store::disk::{DiskDir, SystemDir};
use crate::store::label::{CacheNote, DirLock, Label, cache_note, durable_dir, read_label};
use crate::store::open::{Begun, Closing, OPEN_FILES, OpenFile, OpenFiles, Openings};
use crate::store::sys::{fault, no_descriptor, trouble};
use crate::store::transfer::{self, AtOnce, DirectIo, Job};
use crate::store::{absent, cut_off};
use crate::workers::{Workers, on_a_loop};

/// Files that are closed when no descriptor is free. Requests that follow need some too.
const SPARE: usize = 16;

/// Threads for what is short. Several, because some operations may wait while others do not.
const SHORT: usize = 16;

/// Threads for what takes long. Many syncs at the same time cost the disk little more than one.
const LONG: usize = 64;
/// How far the threads of long transfers make way: they have a ninth of a loop's share of a
/// processor that both want.
const BULK_NICE: i32 = 10;

/// A store of datafiles in the files of a directory.
pub struct FileStore {
    pub(super) path: PathBuf,
    pub(in crate::store) core: Arc<StoreCore>,
    pub(in crate::store) at_once: AtOnce,
    pub(in crate::store) offload: u64,
    /// Direct I/O, if the store is told to use it.
    pub(in crate::store) direct: Option<DirectIo>,
    /// Lends the pages of files, if it exists.
    pub(super) mapped: Option<Mapped>,
    /// Most descriptors of datafiles that are kept.
    kept: usize,
    open: Mutex<OpenFiles>,
    pub(super) openings: Openings,
    pub(super) label: Mutex<Option<Label>>,
    /// A number for the physical disk.
    pub(super) disk_number: u64,
}

/// Why a transfer was not made.
pub(in crate::store) enum Unmoved {
    Disk(io::Error),
    Worker(FsError),
}

impl Unmoved {
    pub(super) fn into_error(self, what: &str, datafile: DatafileHandle) -> FsError {
        match self {
            Unmoved::Disk(error) => fault(what, datafile, &error),
            Unmoved::Worker(error) => error,
        }
    }
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
        let dir = durable_dir(&path).and_then(|()| SystemDir::open(&path)).map_err(|error| trouble(&path, &error))?;
        FileStore::on(Arc::new(dir), path, offload)
    }

    /// Opens the store in a directory of a disk, which errors call `path`.
    ///
    /// # Errors
    /// As [`FileStore::open`].
    pub(crate) fn on(dir: Arc<dyn DiskDir>, path: PathBuf, offload: u64) -> Result<FileStore, FsError> {
        let prepare = || {
            (0..=0xff).try_for_each(|number| dir.make_dir(&subdir(number)))?;
            let catalogue = Catalogue::open(&*dir)?;
            let marks = Marks::open(&*dir)?;
            for number in 0..=0xffu8 {
                catalogue.count_files(handles_in(&*dir.dir(&subdir(number))?, number)?);
            }
            // The names may be those of a process that was killed before it synced them.
            if !mutated("store/root-not-synced") {
                steps::sync_dir(&*dir)?;
            }
            Ok::<_, io::Error>((catalogue, marks, read_label(&*dir)?))
        };
        let (catalogue, marks, label) = prepare().map_err(|error| trouble(&path, &error))?;
        let invalid = |why| FsError::new(ErrorCode::Invalid, format!("data directory {}: {why}", path.display()));
        let label = Mutex::new(label.transpose().map_err(invalid)?);
        let device = dir.number().map_err(|error| trouble(&path, &error))?;
        let disk_number = disk_number(&bmi::backend::host_id().unwrap_or_default(), device);
        let at_once = AtOnce::on(&*dir).map_err(|error| trouble(&path, &error))?;
        let room = dir.room().map_err(|error| trouble(&path, &error))?;
        let (short, long) = (Arc::new(Workers::new("disk-short", SHORT)), Workers::new("disk-long", LONG));
        let bulk = Workers::nice("disk-bulk", LONG, BULK_NICE);
        let (space, failure) = (Space::new(room), Failure::default());
        let core = StoreCore { dir, short, long, bulk, space, lock: None, catalogue, marks, failure, sums: None };
        let (core, open, openings) = (Arc::new(core), Mutex::new(OpenFiles::new(OPEN_FILES)), Openings::default());
        let (direct, mapped, kept) = (None, None, OPEN_FILES);
        Ok(FileStore { path, core, at_once, offload, direct, mapped, kept, open, openings, label, disk_number })
    }

    /// Opens the store on a disk in memory, as a program that is started anew.
    #[cfg(test)]
    pub(crate) fn in_memory(disk: &crate::store::MemDisk) -> FileStore {
        FileStore::on(Arc::new(disk.reopen()), PathBuf::from("disk"), u64::MAX).expect("the disk works")
    }

    /// Keeps this lock as long as anything uses the disk. Call it before the store is used.
    #[must_use]
    pub(crate) fn locked_by(mut self, lock: Option<Arc<DirLock>>) -> FileStore {
        if let Some(core) = Arc::get_mut(&mut self.core) {
            core.lock = lock;
        }
        self
    }

    /// Blocks this thread until no work is in flight, but for `patience` at most. Returns false if
    /// the disk has not answered by then. Call it when the event loop has ended.
    pub(crate) fn wait_until_idle(&self, patience: Duration) -> bool {
        self.direct.as_ref().is_none_or(|direct| direct.wait_until_idle(patience))
            && self.core.bulk.wait_until_idle(patience)
            && self.core.long.wait_until_idle(patience)
            && self.core.short.wait_until_idle(patience)
    }

    /// Sets the number of datafiles that are kept open, at least one. There may be more for a
    /// while, if all are in use. 256 without this. With direct I/O ([`FileStore::direct_io`]), half
    /// as many are kept, because each has two descriptors.
    #[must_use]
    pub fn keeping_open(mut self, files: usize) -> FileStore {
        self.kept = files;
        self.with_table()
    }

    /// Makes the table of open files anew.
    pub(in crate::store) fn with_table(mut self) -> FileStore {
        let descriptors = if self.moves_directly() { 2 } else { 1 };
        self.open = Mutex::new(OpenFiles::new((self.kept / descriptors).max(1)));
        self
    }

    /// Locks the table of open files. No file may be closed meanwhile.
    pub(super) fn open_files(&self) -> MutexGuard<'_, OpenFiles> {
        lock(&self.open)
    }

    /// Fails if operations on a datafile must fail.
    pub(super) fn check(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        self.core.failure.check()?;
        match self.core.marks.find(datafile) {
            Some(mark) if mark.is_prepared() && mutated("store/prepared-datafile-served") => Ok(()),
            Some(mark) => Err(mark.refusal(datafile)),
            None => Ok(()),
        }
    }

    /// As [`FileStore::check`], but the datafile may be about to be truncated.
    pub(super) fn check_sound(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        self.core.failure.check()?;
        match self.core.marks.find(datafile) {
            Some(mark @ Mark::FailedSync) => Err(mark.refusal(datafile)),
            _ => Ok(()),
        }
    }

    /// Returns the open file. A datafile that was never written has none: it is made if `create` is
    /// true, and `None` is returned otherwise.
    pub(in crate::store) async fn file(
        &self,
        datafile: DatafileHandle,
        create: bool,
    ) -> Result<Option<Arc<OpenFile>>, FsError> {
        self.check(datafile)?;
        let file = self.marked_file(datafile, create).await?;
        // It may have been marked while it was opened.
        self.check(datafile)?;
        Ok(file)
    }

    /// As [`FileStore::file`], whether the datafile is marked or not.
    pub(super) async fn marked_file(
        &self,
        datafile: DatafileHandle,
        create: bool,
    ) -> Result<Option<Arc<OpenFile>>, FsError> {
        loop {
            if let Some(file) = self.found(datafile) {
                return Ok(Some(file));
            }
            if !create && self.core.catalogue.has_no_file(datafile) {
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
            let opened = self.short(move |core| core.open_file(datafile, create)).await?;
            match opened {
                Err(error) if no_descriptor(&error).is_some() && self.close_unused().await? => {}
                Err(error) => return Err(fault("opening", datafile, &error)),
                _ if begun.was_removed() => {}
                Ok(Found::CutOff(size, synced)) => return Err(cut_off(datafile, size, synced)),
                Ok(Found::Nothing)
                    if !create
                        && (self.core.catalogue.is_new(datafile) || mutated("store/absent-datafile-is-empty")) =>
                {
                    return Ok(None);
                }
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
    pub(in crate::store) async fn short<R: Send + 'static>(
        &self,
        work: impl FnOnce(&StoreCore) -> R + Send + 'static,
    ) -> Result<R, FsError> {
        if self.at_once.in_memory() {
            return Ok(work(&self.core));
        }
        let core = self.core.clone();
        self.core.short.run(move || work(&core)).await
    }

    /// Runs long work on a worker thread. Work that is in progress keeps the lock on the directory,
    /// and so does short work.
    pub(in crate::store) async fn long<R: Send + 'static>(
        &self,
        work: impl FnOnce(&StoreCore) -> R + Send + 'static,
    ) -> Result<R, FsError> {
        let core = self.core.clone();
        self.core.long.run(move || work(&core)).await
    }

    /// Runs a long transfer on a worker thread, as [`FileStore::long`].
    pub(super) async fn bulk<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, FsError> {
        let core = self.core.clone();
        self.core.bulk.run(move || (core, work()).1).await
    }

    /// Makes a transfer: `at_once` as far as that needs no wait, and `whole` on a worker thread.
    pub(super) async fn transfer(
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
            return self.bulk(move || whole(&file, &jobs)).await.map_err(waits)?.map_err(failed);
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
            Closing::Unwritten(files) => self.long(move |core| core.write_out(&files)).await,
        }
    }

    /// Closes some files that nobody uses. Returns false if there are none.
    pub(in crate::store) async fn close_unused(&self) -> Result<bool, FsError> {
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
    pub(super) async fn work<R: Send + 'static>(
        &self,
        work: impl Fn(&StoreCore) -> io::Result<R> + Send + Sync + 'static,
    ) -> Result<io::Result<R>, FsError> {
        let work = Arc::new(work);
        loop {
            let work = work.clone();
            match self.long(move |core| work(core)).await? {
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
            self.core.long.start(write);
        }
        Some(file)
    }

    /// Returns the work of writing files ahead of need, if it is time for that.
    pub(in crate::store) fn write_ahead(&self) -> Option<impl FnOnce() + Send + 'static> {
        let ahead = self.open_files().ahead()?;
        let core = self.core.clone();
        Some(move || core.write_out(&ahead.files))
    }
}

/// Returns a number for a disk: the same for all stores on it, and different for those on other
/// disks and hosts (FNV-1a).
fn disk_number(host: &str, device: u64) -> u64 {
    let bytes = host.bytes().chain(device.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

impl FileStore {
    /// Returns the note of the cache that this store uses.
    pub(in crate::store) fn cache_note(&self) -> Result<Option<CacheNote>, FsError> {
        cache_note::read(&*self.core.dir).map_err(|error| trouble(&self.path, &error))
    }

    /// Notes durably which cache this store uses from now on.
    pub(in crate::store) async fn note_cache(&self, note: Option<CacheNote>) -> Result<(), FsError> {
        let written = self.work(move |core| cache_note::write(&*core.dir, note.as_ref())).await?;
        written.map_err(|error| trouble(&self.path, &error))
    }
}

impl Drop for FileStore {
    /// Closes the files, on a worker thread if the disk does not answer.
    fn drop(&mut self) {
        let open = std::mem::replace(&mut *self.open_files(), OpenFiles::new(1));
        if !self.wait_until_idle(Duration::ZERO) {
            self.core.long.leave(move || drop(open));
        }
    }
}
