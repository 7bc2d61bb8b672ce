//! The manager's store: an embedded transactional database, in a file or in memory.

use super::{AllLost, Fates, SECTOR};
use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use fs_proto::{ErrorCode, FsError};
use redb::{Builder, Database, DatabaseError, ReadTransaction, ReadableDatabase, StorageBackend, WriteTransaction};

/// Size of the database's page cache, in bytes. It holds the whole namespace of a small cluster.
/// The system's page cache holds the rest.
const CACHE_BYTES: usize = 64 << 20;

/// The manager's database. A transaction is durable once its commit returns.
///
/// After any failure of its disk, even a full disk, the database refuses all operations, because it
/// does not know what reached the disk. So it is closed and reopened, from the durable state,
/// before the next transaction. Otherwise the manager would have to be restarted.
///
/// The database file grows in large steps, and its pages are used gradually. If the disk were full
/// by then, no change would be possible, not even a removal that makes room. So all blocks of the
/// file are allocated in advance.
pub struct MetaStore {
    database: RefCell<Option<Database>>,
    file: Option<Solid>,
    open: Box<dyn Fn() -> Result<Database, DatabaseError>>,
}

/// A file that is kept free of holes.
struct Solid {
    file: File,
    /// The file has no holes before this offset.
    len: Cell<u64>,
}

impl Solid {
    /// Allocates all blocks. If that fails, because the disk is full or the file system does not
    /// support it, the holes remain until the next attempt.
    fn fill(&self) -> io::Result<()> {
        let len = self.file.metadata()?.len();
        if len > self.len.get() {
            rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, len)?;
            self.len.set(len);
        }
        Ok(())
    }
}

/// Converts a failure of the database to the error for a request.
pub(crate) fn fault(error: &redb::Error) -> FsError {
    let code = match error {
        redb::Error::Io(error) if error.kind() == io::ErrorKind::StorageFull => ErrorCode::NoSpace,
        _ => ErrorCode::Io,
    };
    FsError::new(code, format!("metadata store: {error}"))
}

impl MetaStore {
    /// Opens the database in the file at `path`, and creates it if it does not exist. Its directory
    /// must exist.
    ///
    /// # Errors
    /// `Busy` if another process has it open; otherwise `NoSpace` or `Io`. The text names the file.
    pub fn open(path: impl AsRef<Path>) -> Result<MetaStore, FsError> {
        let path = path.as_ref();
        let file = path.to_owned();
        let store = MetaStore::with(move || Builder::new().set_cache_size(CACHE_BYTES).create(&file));
        let mut store = store.map_err(|error| {
            let code = match &error {
                DatabaseError::DatabaseAlreadyOpen => ErrorCode::Busy,
                _ => ErrorCode::Io,
            };
            FsError::new(code, format!("metadata store {}: {error}", path.display()))
        })?;
        let solid = OpenOptions::new().write(true).open(path).map(|file| Solid { file, len: Cell::new(0) });
        store.file = solid.inspect(|solid| drop(solid.fill())).ok();
        // The database syncs its file, but not the file's name.
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let named = File::open(dir).and_then(|dir| dir.sync_all());
        named.map_err(|error| FsError::new(ErrorCode::Io, format!("metadata store {}: {error}", path.display())))?;
        Ok(store)
    }

    /// Opens a database on any backend. A clone of the backend must refer to the same bytes.
    ///
    /// # Errors
    /// `Io`.
    pub fn on(backend: impl StorageBackend + Clone) -> Result<MetaStore, FsError> {
        let open = move || Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend.clone());
        MetaStore::with(open).map_err(|error| fault(&error.into()))
    }

    fn with(open: impl Fn() -> Result<Database, DatabaseError> + 'static) -> Result<MetaStore, DatabaseError> {
        Ok(MetaStore { database: RefCell::new(Some(open()?)), file: None, open: Box::new(open) })
    }

    /// Creates a database in memory. It is lost with its last handle.
    ///
    /// # Errors
    /// `Io`.
    pub fn in_memory() -> Result<MetaStore, FsError> {
        MetaStore::on(SharedBackend::default())
    }

    pub(crate) fn read(&self) -> Result<ReadTransaction, redb::Error> {
        self.begin(|database| Ok(database.begin_read()?))
    }

    pub(crate) fn write(&self) -> Result<WriteTransaction, redb::Error> {
        // The file may have grown in the previous transaction.
        self.file.iter().for_each(|solid| drop(solid.fill()));
        self.begin(|database| Ok(database.begin_write()?))
    }

    fn begin<R>(&self, begin: impl FnOnce(&Database) -> Result<R, redb::Error>) -> Result<R, redb::Error> {
        let mut database = self.database.borrow_mut();
        match &*database {
            Some(database) => begin(database),
            None => begin(database.insert((self.open)()?)),
        }
    }

    /// Closes the database after a transaction has failed. The next transaction reopens it.
    pub(crate) fn close_failed(&self) {
        *self.database.borrow_mut() = None;
    }
}

/// The bytes of a database, in memory. A clone refers to the same bytes, so they outlive a server
/// that is stopped, as a disk does.
///
/// A power failure ([`SharedBackend::power_fails`]) keeps everything synced, and any part of the
/// rest. Older handles then fail: data that a database writes while it is dropped does not reach
/// the disk any more. [`SharedBackend::reopen`] returns a handle that works.
#[derive(Clone, Debug, Default)]
pub struct SharedBackend {
    bytes: Arc<Mutex<Bytes>>,
    /// Number of power failures when this handle was made.
    power: u64,
}

#[derive(Debug, Default)]
struct Bytes {
    now: Vec<u8>,
    synced: Vec<u8>,
    /// The range of `now` that differs from `synced`.
    dirty: Option<(usize, usize)>,
    power: u64,
    /// The error for writes, if any. If the flag is set, it is returned for all other operations
    /// too.
    fault: Option<(io::ErrorKind, bool)>,
    /// Number of writes and syncs until the power fails during one of them; 0 if it has failed.
    fuse: Option<u32>,
}

impl Bytes {
    fn touch(&mut self, from: usize, to: usize) {
        let (low, high) = self.dirty.unwrap_or((from, to));
        self.dirty = Some((low.min(from), high.max(to)));
    }
}

impl SharedBackend {
    /// Calls `f` with the bytes, unless the power has failed or the disk refuses.
    fn with<R>(&self, writes: bool, f: impl FnOnce(&mut Bytes) -> io::Result<R>) -> io::Result<R> {
        let bytes = &mut self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes.power != self.power {
            return Err(io::Error::other("the power has failed"));
        }
        if let Some(left) = &mut bytes.fuse {
            *left = left.saturating_sub(u32::from(writes));
            if *left == 0 {
                return Err(io::Error::other("the power has failed"));
            }
        }
        match bytes.fault {
            Some((kind, all)) if all || writes => Err(kind.into()),
            _ => f(bytes),
        }
    }

    /// Fails the power. `fates` decides what is left of each sector that was not synced.
    pub fn power_fails(&self, fates: &mut dyn Fates) {
        let mut guard = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = &mut *guard;
        bytes.power += 1;
        bytes.fuse = None;
        if bytes.now.len() != bytes.synced.len() && !fates.keeps() {
            // The bytes that were cut off are back, with their old contents.
            let kept = bytes.now.len().min(bytes.synced.len());
            bytes.now.truncate(kept);
            bytes.now.extend_from_slice(&bytes.synced[kept..]);
        }
        if let Some((low, high)) = bytes.dirty.take() {
            let end = high.min(bytes.now.len());
            for from in (low / SECTOR * SECTOR..end).step_by(SECTOR) {
                let to = (from + SECTOR).min(bytes.now.len());
                let old = bytes.synced.get(from..to.min(bytes.synced.len())).unwrap_or(&[]);
                let now = &mut bytes.now[from..to];
                if now != old {
                    fates.sector(old, now);
                }
            }
        }
        bytes.synced.clone_from(&bytes.now);
    }

    /// Returns a handle to the current bytes.
    #[must_use]
    pub fn reopen(&self) -> SharedBackend {
        let power = self.bytes.lock().unwrap_or_else(PoisonError::into_inner).power;
        SharedBackend { bytes: self.bytes.clone(), power }
    }

    /// Schedules a power failure at the `writes`th write or sync from now. That operation and all
    /// later ones change nothing. `None` cancels it. [`SharedBackend::power_fails`] then decides
    /// what is left.
    pub fn cut_off(&self, writes: Option<u32>) {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).fuse = writes;
    }

    /// Returns true if the scheduled power failure has happened.
    pub fn is_cut_off(&self) -> bool {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).fuse == Some(0)
    }

    /// Makes the disk fail writes with this error and, if the flag is set, all other operations
    /// too. `None` makes it work again.
    pub fn refuse(&self, fault: Option<(io::ErrorKind, bool)>) {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).fault = fault;
    }

    /// Returns a copy of the bytes, as a copy of the disk has them.
    pub fn contents(&self) -> Vec<u8> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).now.clone()
    }

    /// Replaces the bytes, as if another disk were put in. Returns the old ones. Older handles then
    /// fail.
    pub fn replace(&self, contents: Vec<u8>) -> Vec<u8> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        (bytes.power, bytes.dirty) = (bytes.power + 1, None);
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
        self.with(false, |bytes| Ok(bytes.now.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(false, |bytes| {
            let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
            let end = start.checked_add(out.len()).filter(|end| *end <= bytes.now.len());
            out.copy_from_slice(&bytes.now[start..end.ok_or(io::ErrorKind::UnexpectedEof)?]);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(true, |bytes| {
            let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
            let old = bytes.now.len();
            bytes.now.resize(len, 0);
            bytes.touch(old.min(len), len);
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(true, |bytes| {
            if let Some((low, high)) = bytes.dirty.take() {
                bytes.synced.resize(bytes.now.len(), 0);
                let high = high.min(bytes.now.len());
                let low = low.min(high);
                bytes.synced[low..high].copy_from_slice(&bytes.now[low..high]);
            }
            Ok(())
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(true, |bytes| {
            let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
            let end = start.checked_add(data.len()).filter(|end| *end <= bytes.now.len());
            let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
            bytes.now[start..end].copy_from_slice(data);
            bytes.touch(start, end);
            Ok(())
        })
    }
}
