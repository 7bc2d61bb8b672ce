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
//! **Durability.** `sync` is `fdatasync` of the files (`durability.rs`). The first one of a datafile
//! also syncs the subdirectory, so that the name survives, and the catalogue. `remove` syncs the
//! subdirectories, and the catalogue.
//!
//! **Truncation in two steps.** `prepare_truncate` marks a datafile (`marks.rs`). The mark ends when
//! the truncation is durable, or cancelled.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bmi_core::MemList;
use fs_proto::{DatafileHandle, ErrorCode, FsError, IodStat, Region};
use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags, fgetxattr, fsetxattr, mkdirat, openat, statat, unlinkat};

use super::catalogue::Catalogue;
use super::identity::{read_label, trouble, write_label};
use super::marks::{Mark, Marks};
use super::transfer::{jobs, read_all, write_all, zero};
use super::{DataStore, Held, Label, absent, cut_off, durability, durable_dir, remainder};

/// Most transfers on worker threads at the same time. The page cache and a flash disk can handle
/// several at once. Beyond a few, there are no more cores and channels.
const PLACES: usize = 8;

/// Most files kept open. It is well below the usual limit of 1024 descriptors per process.
const OPEN_FILES: usize = 256;

/// The attribute of a file that holds the length that was synced: eight bytes, little-endian.
const SYNCED: &str = "user.pvfs.synced";

/// A store of datafiles in the files of a directory.
pub struct FileStore {
    path: PathBuf,
    dir: Arc<File>,
    catalogue: Arc<Catalogue>,
    marks: Arc<Marks>,
    offload: u64,
    open: RefCell<OpenFiles>,
    label: Cell<Option<Label>>,
    /// A number for the disk.
    disk: u64,
}

/// An open datafile.
pub(super) struct OpenFile {
    pub(super) file: File,
    /// The length that was synced, as far as it is known.
    synced: AtomicU64,
    /// Held while the length is changed, or compared and remembered.
    pub(super) length: Mutex<()>,
}

/// The most recently used files, with the tick of their last use.
#[derive(Default)]
struct OpenFiles {
    files: BTreeMap<DatafileHandle, (Arc<OpenFile>, u64)>,
    tick: u64,
}

impl OpenFiles {
    fn find(&mut self, datafile: DatafileHandle) -> Option<Arc<OpenFile>> {
        self.tick += 1;
        let (file, used) = self.files.get_mut(&datafile)?;
        *used = self.tick;
        Some(file.clone())
    }

    fn keep(&mut self, datafile: DatafileHandle, file: &Arc<OpenFile>) {
        if self.files.len() >= OPEN_FILES
            && let Some(oldest) = self.files.iter().min_by_key(|(_, (_, used))| *used).map(|(datafile, _)| *datafile)
        {
            self.files.remove(&oldest);
        }
        self.files.insert(datafile, (file.clone(), self.tick));
    }
}

/// Converts an error of the system to an error for a datafile.
fn fault(what: &str, datafile: DatafileHandle, error: &io::Error) -> FsError {
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::NoSpace,
        io::ErrorKind::FileTooLarge => ErrorCode::TooLarge,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorCode::Permission,
        _ => ErrorCode::Io,
    };
    FsError::new(code, format!("{what} {datafile}: {error}"))
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

fn subdir(number: u8) -> String {
    format!("{number:02x}")
}

/// Returns the name of a datafile's file, relative to the store's directory.
pub(crate) fn name(datafile: DatafileHandle) -> String {
    format!("{:02x}/{:016x}", subdir_of(datafile), datafile.0)
}

fn open_at(dir: &File, name: &str, flags: OFlags) -> io::Result<File> {
    Ok(File::from(openat(dir, name, flags | OFlags::CLOEXEC, Mode::from(0o644))?))
}

/// Makes the names in subdirectories durable.
pub(super) fn sync_subdirs(dir: &File, subdirs: impl IntoIterator<Item = u8>) -> io::Result<()> {
    let once: BTreeSet<u8> = subdirs.into_iter().collect();
    once.into_iter()
        .try_for_each(|number| open_at(dir, &subdir(number), OFlags::RDONLY | OFlags::DIRECTORY)?.sync_all())
}

/// Returns the handles from `first` on.
fn range(first: DatafileHandle, count: u32) -> impl Iterator<Item = DatafileHandle> {
    (first.0..first.0.saturating_add(count.into())).map(DatafileHandle)
}

/// Removes a file. It is not an error if it does not exist.
fn unlink(dir: &File, datafile: DatafileHandle) -> io::Result<()> {
    match unlinkat(dir, name(datafile), AtFlags::empty()) {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        result => Ok(result?),
    }
}

/// Returns the handles of the files in a subdirectory, in order.
fn handles_in(dir: &File, number: u8) -> io::Result<Vec<DatafileHandle>> {
    let subdir = open_at(dir, &subdir(number), OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut handles = Vec::new();
    for entry in rustix::fs::Dir::read_from(&subdir)? {
        let entry = entry?;
        let parsed = entry.file_name().to_str().ok().and_then(|name| u64::from_str_radix(name, 16).ok());
        handles.extend(parsed.map(DatafileHandle).filter(|handle| subdir_of(*handle) == number));
    }
    handles.sort();
    Ok(handles)
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
    /// Remembers the length that was synced.
    pub(super) fn remember(&self, len: u64) {
        if self.synced.swap(len, Ordering::Relaxed) != len {
            // A file system without attributes remembers nothing.
            let _ = fsetxattr(&self.file, SYNCED, &len.to_le_bytes(), XattrFlags::empty());
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
            // The names may be those of a process that was killed before it synced them.
            dir.sync_all()?;
            Ok::<_, io::Error>((dir, catalogue, marks, read_label(&path)?))
        };
        let (dir, catalogue, marks, label) = prepare().map_err(|error| trouble(&path, &error))?;
        let invalid = |why| FsError::new(ErrorCode::Invalid, format!("data directory {}: {why}", path.display()));
        let label = Cell::new(label.transpose().map_err(invalid)?);
        let device = dir.metadata().map_err(|error| trouble(&path, &error))?.dev();
        let disk = disk_number(&bmi::host_id().unwrap_or_default(), device);
        Ok(FileStore {
            path,
            dir: Arc::new(dir),
            catalogue: Arc::new(catalogue),
            marks: Arc::new(marks),
            offload,
            open: RefCell::default(),
            label,
            disk,
        })
    }

    /// Fails if operations on a datafile must fail.
    fn check(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        self.marks.find(datafile).map_or(Ok(()), |mark| Err(mark.refusal(datafile)))
    }

    /// Returns the open file. A datafile that was never written has none: it is made if `create` is
    /// true, and `None` is returned otherwise.
    fn file(&self, datafile: DatafileHandle, create: bool) -> Result<Option<Arc<OpenFile>>, FsError> {
        self.check(datafile)?;
        self.marked_file(datafile, create)
    }

    /// Sets the length of a datafile, whether it is marked or not.
    async fn set_length(&self, datafile: DatafileHandle, size: u64) -> Result<Arc<OpenFile>, FsError> {
        let file = self.marked_file(datafile, true)?.expect("a file that is to be created is there or an error");
        let cut = file.clone();
        let result = offload(move || {
            let _guard = cut.length.lock().unwrap_or_else(PoisonError::into_inner);
            // First, so that a crash in between does not leave a datafile that looks cut off.
            if cut.synced.load(Ordering::Relaxed) > size {
                cut.remember(size);
            }
            cut.file.set_len(size)
        });
        result.await?.map_err(|error| fault("truncating", datafile, &error))?;
        Ok(file)
    }

    /// As [`FileStore::file`], whether the datafile is marked or not.
    fn marked_file(&self, datafile: DatafileHandle, create: bool) -> Result<Option<Arc<OpenFile>>, FsError> {
        let mut open = self.open.borrow_mut();
        if let Some(file) = open.find(datafile) {
            return Ok(Some(file));
        }
        let failed = |error: io::Error| fault("opening", datafile, &error);
        let file = match open_at(&self.dir, &name(datafile), OFlags::RDWR) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !self.catalogue.is_new(datafile) {
                    return Err(absent(datafile));
                }
                if !create {
                    return Ok(None);
                }
                open_at(&self.dir, &name(datafile), OFlags::RDWR | OFlags::CREATE).map_err(failed)?
            }
            result => result.map_err(failed)?,
        };
        let synced = synced_length(&file);
        if synced > 0 {
            let size = file.metadata().map_err(|error| fault("looking at", datafile, &error))?.len();
            if size < synced {
                return Err(cut_off(datafile, size, synced));
            }
        }
        let file = Arc::new(OpenFile { file, synced: AtomicU64::new(synced), length: Mutex::new(()) });
        open.keep(datafile, &file);
        Ok(Some(file))
    }

    fn made(&self, datafile: DatafileHandle) -> Result<Arc<OpenFile>, FsError> {
        let file = self.file(datafile, true)?;
        Ok(file.expect("a file that is to be created is there or an error"))
    }

    /// Syncs some datafiles whose files can be open at the same time.
    async fn sync_some(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError> {
        let (mut files, mut result) = (Vec::new(), Ok(()));
        for datafile in datafiles {
            match self.file(*datafile, false) {
                Ok(file) => files.extend(file.map(|file| (*datafile, file))),
                Err(error) => result = result.and(Err(error)),
            }
        }
        for (datafile, error) in durability::sync(&self.dir, &self.catalogue, files).await? {
            result = result.and(Err(fault("syncing", datafile, &error)));
        }
        result
    }

    /// Waits for a change of the marks of a datafile.
    async fn mark(
        &self,
        datafile: DatafileHandle,
        change: impl FnOnce(&Marks) -> io::Result<()> + Send + 'static,
    ) -> Result<(), FsError> {
        let marks = self.marks.clone();
        let result = offload(move || change(&marks)).await?;
        result.map_err(|error| fault("marking", datafile, &error))
    }
}

/// Returns the datafiles of a subdirectory, in order: those with a file and those without.
fn datafiles_in(dir: &File, catalogue: &Catalogue, number: u8) -> io::Result<Vec<DatafileHandle>> {
    let mut handles = handles_in(dir, number)?;
    handles.extend(catalogue.list(|datafile| subdir_of(datafile) == number));
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
        let (dir, new) = (self.dir.clone(), *label);
        offload(move || write_label(&dir, &new)).await?.map_err(|error| trouble(&self.path, &error))?;
        self.label.set(Some(*label));
        Ok(())
    }

    fn places(&self) -> usize {
        PLACES
    }

    async fn create(&self, first: DatafileHandle, count: u32) -> Result<(), FsError> {
        let catalogue = self.catalogue.clone();
        let result = offload(move || catalogue.create(first, count));
        result.await?.map_err(|error| fault("creating datafiles from", first, &error))
    }

    async fn discard(&self, first: DatafileHandle, count: u32) -> Result<(), FsError> {
        let (dir, catalogue, marks) = (self.dir.clone(), self.catalogue.clone(), self.marks.clone());
        let result = offload(move || -> io::Result<Vec<DatafileHandle>> {
            let mut empty = Vec::new();
            // One that is marked was in use.
            for datafile in range(first, count).filter(|datafile| marks.find(*datafile).is_none()) {
                match statat(&dir, name(datafile), AtFlags::empty()) {
                    Ok(stat) if stat.st_size > 0 => {}
                    Ok(_) | Err(rustix::io::Errno::NOENT) => empty.push(datafile),
                    Err(error) => return Err(error.into()),
                }
            }
            catalogue.take_off(empty.iter().copied())?;
            Ok(empty)
        });
        let empty = result.await?.map_err(|error| fault("discarding datafiles from", first, &error))?;
        self.remove(&empty).await
    }

    async fn remove(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError> {
        let Some(first) = datafiles.first().copied() else { return Ok(()) };
        for datafile in datafiles {
            self.open.borrow_mut().files.remove(datafile);
        }
        let (dir, catalogue, marks) = (self.dir.clone(), self.catalogue.clone(), self.marks.clone());
        let gone = datafiles.to_vec();
        let result = offload(move || -> io::Result<()> {
            // First, so that no late write makes the file again.
            catalogue.take_off(gone.iter().copied())?;
            gone.iter().try_for_each(|datafile| unlink(&dir, *datafile))?;
            // Those that were removed before a crash are made durable too.
            sync_subdirs(&dir, gone.iter().map(|datafile| subdir_of(*datafile)))?;
            // Last, so that a marked datafile is never found without its mark.
            marks.clear(gone, |_| true)
        });
        let result = result.await?;
        // A request may have opened one meanwhile.
        for datafile in datafiles {
            self.open.borrow_mut().files.remove(datafile);
        }
        result.map_err(|error| fault("removing datafiles from", first, &error))
    }

    async fn list(&self, after: Option<DatafileHandle>, max: usize) -> Result<(Vec<DatafileHandle>, bool), FsError> {
        let (dir, catalogue) = (self.dir.clone(), self.catalogue.clone());
        let listed = offload(move || -> io::Result<(Vec<DatafileHandle>, bool)> {
            let mut found = Vec::new();
            for number in after.map_or(0, subdir_of)..=0xff {
                let handles = datafiles_in(&dir, &catalogue, number)?;
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
        let file = self.made(datafile).map_err(|error| error.with_ranges(regions.iter().copied()))?;
        let jobs = jobs(regions, from);
        let result = if from.len() as u64 >= self.offload {
            offload(move || write_all(&file.file, &jobs)).await?
        } else {
            write_all(&file.file, &jobs)
        };
        result.map_err(|(done, error)| fault("writing", datafile, &error).with_ranges(remainder(regions, done)))
    }

    async fn read(&self, datafile: DatafileHandle, regions: &[Region], into: &MemList) -> Result<(), FsError> {
        let file = self.file(datafile, false).map_err(|error| error.with_ranges(regions.iter().copied()))?;
        let Some(file) = file else {
            into.pieces().iter().for_each(zero);
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
        if let Some(mark @ Mark::FailedSync) = self.marks.find(datafile) {
            return Err(mark.refusal(datafile));
        }
        self.marked_file(datafile, false)?;
        self.mark(datafile, move |marks| marks.set(datafile, Mark::Truncating(size))).await
    }

    async fn truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        if let Some(mark) = self.marks.find(datafile) {
            return Err(mark.refusal(datafile));
        }
        self.set_length(datafile, size).await.map(drop)
    }

    async fn commit_truncate(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        let Some(Mark::Truncating(size)) = self.marks.find(datafile) else { return Ok(()) };
        let clear = move |marks: &Marks| marks.clear([datafile], is_prepared);
        let file = match self.set_length(datafile, size).await {
            Err(lost) if lost.code == ErrorCode::Lost => {
                self.mark(datafile, clear).await?;
                return Err(lost);
            }
            file => file?,
        };
        let failed = durability::sync(&self.dir, &self.catalogue, vec![(datafile, file)]).await?;
        if let Some((_, error)) = failed.first() {
            return Err(fault("syncing", datafile, error));
        }
        self.mark(datafile, clear).await
    }

    async fn cancel_truncates(&self, except: &[DatafileHandle]) -> Result<(), FsError> {
        let mut cancelled = self.marks.list(is_prepared);
        cancelled.retain(|datafile| !except.contains(datafile));
        let Some(first) = cancelled.first().copied() else { return Ok(()) };
        self.mark(first, move |marks| marks.clear(cancelled, is_prepared)).await
    }

    async fn sync(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError> {
        let mut result = Ok(());
        for some in datafiles.chunks(OPEN_FILES / 2) {
            result = result.and(self.sync_some(some).await);
        }
        result
    }

    async fn held(&self, datafile: DatafileHandle) -> Result<Held, FsError> {
        let Some(file) = self.file(datafile, false)? else { return Ok(Held::default()) };
        let metadata = file.file.metadata().map_err(|error| fault("looking at", datafile, &error))?;
        let ns = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        // Times before 1970 count as never.
        Ok(Held { size: metadata.len(), mtime_ns: u64::try_from(ns).unwrap_or(0) })
    }

    async fn stat(&self) -> Result<IodStat, FsError> {
        let (dir, catalogue, disk) = (self.dir.clone(), self.catalogue.clone(), self.disk);
        let stat = offload(move || -> io::Result<IodStat> {
            let stat = rustix::fs::fstatvfs(&dir)?;
            let mut datafiles = 0;
            for number in 0..=0xffu8 {
                // The file of one that is on the catalogue is counted there.
                let files = handles_in(&dir, number)?;
                datafiles += files.into_iter().filter(|datafile| !catalogue.is_new(*datafile)).count() as u64;
            }
            Ok(IodStat {
                capacity: stat.f_blocks.saturating_mul(stat.f_frsize),
                free: stat.f_bavail.saturating_mul(stat.f_frsize),
                datafiles: datafiles + catalogue.list(|_| true).len() as u64,
                disk,
            })
        });
        stat.await?.map_err(|error| trouble(&self.path, &error))
    }
}
