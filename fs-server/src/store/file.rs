//! Stores datafiles as files under a directory.
//!
//! **Layout**
//!
//! ```text
//!   <dir>/00/000000000000e100      subdirectory: the handle's last byte; file: the handle, in hexadecimal
//!   <dir>/01/…
//!   <dir>/removed                  what was removed not long ago (`tombstone_file.rs`)
//! ```
//!
//! **Threads.** Opening, metadata lookups and small transfers take microseconds and run on the
//! server's own thread. Transfers of `offload` bytes or more, truncation, removal and syncing run
//! on the worker threads of the tokio runtime, if there is one, so that disk and network overlap.
//!
//! **Durability.** `sync` is `fdatasync` of the file and `fsync` of its directory, so that the name
//! also survives.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bmi_core::{MemList, MemSlice};
use fs_proto::{DatafileHandle, ErrorCode, FsError, IodStat, Region};

use super::tombstone_file::TombstoneFile;
use super::{DataStore, Held, TombstoneSet, durable_dir, remainder, sys};

/// Most transfers on worker threads at the same time. The page cache and a flash disk can handle
/// several at once. Beyond a few, there are no more cores and channels.
const PLACES: usize = 8;

/// Most files kept open. It is well below the usual limit of 1024 descriptors per process.
const OPEN_FILES: usize = 256;

/// A store of datafiles in the files of a directory.
pub struct FileStore {
    dir: PathBuf,
    offload: u64,
    open: RefCell<OpenFiles>,
    removed: RefCell<TombstoneSet>,
    tombstone_file: Arc<TombstoneFile>,
}

/// The most recently used files, with the tick of their last use.
#[derive(Default)]
struct OpenFiles {
    files: BTreeMap<DatafileHandle, (Arc<File>, u64)>,
    tick: u64,
}

impl OpenFiles {
    fn find(&mut self, datafile: DatafileHandle) -> Option<Arc<File>> {
        self.tick += 1;
        let (file, used) = self.files.get_mut(&datafile)?;
        *used = self.tick;
        Some(file.clone())
    }

    fn keep(&mut self, datafile: DatafileHandle, file: &Arc<File>) {
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
async fn offload<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R, FsError> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => runtime
            .spawn_blocking(work)
            .await
            .map_err(|error| FsError::new(ErrorCode::Io, format!("a storage worker failed: {error}"))),
        Err(_) => Ok(work()),
    }
}

impl FileStore {
    /// Opens the store in `dir`, and creates the directory if it does not exist. Transfers of
    /// `offload` bytes or more go to worker threads.
    ///
    /// # Errors
    /// `Permission`, `NoSpace` or `Io`, naming the directory.
    pub fn open(dir: impl Into<PathBuf>, offload: u64) -> Result<FileStore, FsError> {
        let dir = dir.into();
        let prepare = || -> io::Result<(TombstoneFile, TombstoneSet)> {
            durable_dir(&dir)?;
            for sub in 0..=0xffu8 {
                match fs::create_dir(dir.join(format!("{sub:02x}"))) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                    _ => {}
                }
            }
            let tombstone_file = TombstoneFile::open(&dir)?;
            File::open(&dir)?.sync_all()?;
            Ok(tombstone_file)
        };
        let (tombstone_file, removed) = prepare().map_err(|error| {
            let code = match error.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorCode::Permission,
                io::ErrorKind::StorageFull => ErrorCode::NoSpace,
                _ => ErrorCode::Io,
            };
            FsError::new(code, format!("data directory {}: {error}", dir.display()))
        })?;
        let (tombstone_file, removed) = (Arc::new(tombstone_file), RefCell::new(removed));
        Ok(FileStore { dir, offload, open: RefCell::default(), removed, tombstone_file })
    }

    fn subdir(&self, datafile: DatafileHandle) -> PathBuf {
        self.dir.join(format!("{:02x}", datafile.0 & 0xff))
    }

    fn path(&self, datafile: DatafileHandle) -> PathBuf {
        self.subdir(datafile).join(format!("{:016x}", datafile.0))
    }

    /// Returns the open file. Returns `None` if it does not exist and `create` is false.
    fn file(&self, datafile: DatafileHandle, create: bool) -> Result<Option<Arc<File>>, FsError> {
        self.removed.borrow().check(datafile)?;
        let mut open = self.open.borrow_mut();
        if let Some(file) = open.find(datafile) {
            return Ok(Some(file));
        }
        match OpenOptions::new().read(true).write(true).create(create).truncate(false).open(self.path(datafile)) {
            Ok(file) => {
                let file = Arc::new(file);
                open.keep(datafile, &file);
                Ok(Some(file))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && !create => Ok(None),
            Err(error) => Err(fault("opening", datafile, &error)),
        }
    }

    fn create(&self, datafile: DatafileHandle) -> Result<Arc<File>, FsError> {
        let file = self.file(datafile, true)?;
        Ok(file.expect("a file that is to be created is there or an error"))
    }
}

/// One region and the memory for its bytes.
type Job = (Region, Vec<MemSlice>);

/// Pairs each region with its part of the memory.
fn jobs(regions: &[Region], memory: &MemList) -> Vec<Job> {
    debug_assert_eq!(regions.iter().map(|region| region.len).sum::<u64>(), memory.len() as u64);
    let mut at = 0;
    let job = |region: &Region| {
        let pieces = memory.range(at, region.len as usize).collect();
        at += region.len as usize;
        (*region, pieces)
    };
    regions.iter().map(job).collect()
}

/// Moves all bytes of all jobs. On failure, also returns how many were moved.
fn transfer(
    jobs: &[Job],
    mut step: impl FnMut(u64, &MemSlice) -> io::Result<Option<usize>>,
) -> Result<(), (u64, io::Error)> {
    let mut total = 0;
    for (region, pieces) in jobs {
        let mut offset = region.offset;
        for piece in pieces {
            let mut done = 0;
            while done < piece.len() {
                match step(offset, &piece.slice(done, piece.len() - done)) {
                    Ok(Some(len)) => {
                        done += len;
                        offset += len as u64;
                        total += len as u64;
                    }
                    // The end of the file: the rest of this piece is zeros already.
                    Ok(None) => {
                        let rest = piece.len() - done;
                        (done, offset, total) = (piece.len(), offset + rest as u64, total + rest as u64);
                    }
                    Err(error) => return Err((total, error)),
                }
            }
        }
    }
    Ok(())
}

fn write_all(file: &File, jobs: &[Job]) -> Result<(), (u64, io::Error)> {
    transfer(jobs, |offset, piece| match sys::write_at(file, offset, piece)? {
        0 => Err(io::Error::from(io::ErrorKind::WriteZero)),
        len => Ok(Some(len)),
    })
}

fn read_all(file: &File, jobs: &[Job]) -> Result<(), (u64, io::Error)> {
    transfer(jobs, |offset, piece| match sys::read_at(file, offset, piece)? {
        0 => {
            zero(piece);
            Ok(None)
        }
        len => Ok(Some(len)),
    })
}

/// Fills a piece with zeros.
pub(super) fn zero(piece: &MemSlice) {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut at = 0;
    while at < piece.len() {
        let len = ZEROS.len().min(piece.len() - at);
        piece.slice(at, len).copy_from(&ZEROS[..len]);
        at += len;
    }
}

#[async_trait(?Send)]
impl DataStore for FileStore {
    fn places(&self) -> usize {
        PLACES
    }

    async fn write(&self, datafile: DatafileHandle, regions: &[Region], from: &MemList) -> Result<(), FsError> {
        let file = self.create(datafile).map_err(|error| error.with_ranges(regions.iter().copied()))?;
        let jobs = jobs(regions, from);
        let result = if from.len() as u64 >= self.offload {
            offload(move || write_all(&file, &jobs)).await?
        } else {
            write_all(&file, &jobs)
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
            offload(move || read_all(&file, &jobs)).await?
        } else {
            read_all(&file, &jobs)
        };
        result.map_err(|(done, error)| fault("reading", datafile, &error).with_ranges(remainder(regions, done)))
    }

    async fn truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        let file = self.create(datafile)?;
        offload(move || file.set_len(size)).await?.map_err(|error| fault("truncating", datafile, &error))
    }

    async fn remove(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        self.removed.borrow_mut().bury(datafile);
        self.open.borrow_mut().files.remove(&datafile);
        let (path, subdir, tombstone_file) = (self.path(datafile), self.subdir(datafile), self.tombstone_file.clone());
        let result = offload(move || {
            if let Err(error) = tombstone_file.bury(datafile) {
                tracing::warn!(%datafile, %error, "removed, but this is not noted");
            }
            match fs::remove_file(path) {
                // If the file does not exist, or was removed before a crash, still make its removal
                // durable.
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => File::open(subdir)?.sync_all(),
            }
        });
        result.await?.map_err(|error| fault("removing", datafile, &error))
    }

    async fn sync(&self, datafile: DatafileHandle) -> Result<(), FsError> {
        let Some(file) = self.file(datafile, false)? else { return Ok(()) };
        let subdir = self.subdir(datafile);
        let result = offload(move || {
            file.sync_data()?;
            File::open(subdir)?.sync_all()
        });
        result.await?.map_err(|error| fault("syncing", datafile, &error))
    }

    async fn held(&self, datafile: DatafileHandle) -> Result<Held, FsError> {
        let Some(file) = self.file(datafile, false)? else { return Ok(Held::default()) };
        let metadata = file.metadata().map_err(|error| fault("looking at", datafile, &error))?;
        let ns = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        // Times before 1970 count as never.
        Ok(Held { size: metadata.len(), mtime_ns: u64::try_from(ns).unwrap_or(0) })
    }

    async fn stat(&self) -> Result<IodStat, FsError> {
        let dir = self.dir.clone();
        let stat = offload(move || -> io::Result<IodStat> {
            let stat = rustix::fs::statvfs(&dir)?;
            let datafiles = (0..=0xffu8).map(|sub| count(&dir.join(format!("{sub:02x}")))).sum::<io::Result<u64>>()?;
            Ok(IodStat {
                capacity: stat.f_blocks.saturating_mul(stat.f_frsize),
                free: stat.f_bavail.saturating_mul(stat.f_frsize),
                datafiles,
            })
        });
        stat.await?.map_err(|error| FsError::new(ErrorCode::Io, format!("looking at {}: {error}", self.dir.display())))
    }
}

fn count(dir: &Path) -> io::Result<u64> {
    Ok(fs::read_dir(dir)?.count() as u64)
}
