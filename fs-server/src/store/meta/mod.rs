//! The manager's store: an embedded transactional database, in a file or in memory.
//!
//! **Invariants**
//! 1. A transaction is durable once its commit has returned without an error.
//! 2. After a failed sync nothing is written any more, and the manager stops (`guard.rs`). The
//!    system may have discarded what it could not write, but keeps it in memory as if it were on
//!    the disk. So only a start that reads the disk again knows what was stored.
//! 3. A database is opened from what the disk has, not from what the system has of it in memory
//!    (`residue.rs`).
//!
//! All methods but [`MetaStore::doubt`] may wait for the disk. A manager calls them on a worker
//! thread (`manager/commit/database.rs`).

mod guard;
mod residue;
#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bmi::hooks::mutated;
use fs_proto::{ErrorCode, FsError};
use redb::backends::FileBackend;
use redb::{
    Builder, Database, DatabaseError, ReadTransaction, ReadableDatabase, ReadableTableMetadata, StorageBackend,
    WriteTransaction,
};

use self::guard::{Doubt, Guarded};

use crate::lock::lock;

/// Size of the database's page cache, in bytes. It holds the whole namespace of a small cluster.
/// The system's page cache holds the rest.
const CACHE_BYTES: usize = 64 << 20;

/// Length of a database file that is read into the cache as a whole when it is opened, in bytes.
/// All of it then stays there: changed pages stay in the cache too, and nothing is evicted. So
/// reading from it does not wait for the disk.
const RESIDENT_BYTES: u64 = CACHE_BYTES as u64 / 2;

/// The manager's database. A transaction is durable once its commit returns.
///
/// After any failure of its disk, even a full disk, the database refuses all operations, because it
/// does not know what reached the disk. If only a read failed, or the disk was full, the database
/// is closed, and opened again for the next transaction. Otherwise the manager would have to be
/// restarted. What was written before is still in the system's memory, and the next sync covers it.
/// After a failed sync, or any other failed write, the database stays closed
/// (`MetaStore::doubt`).
///
/// The database file grows in large steps, and its pages are used gradually. If the disk were full
/// by then, no change would be possible, not even a removal that makes room. So all blocks of the
/// file are allocated in advance.
pub struct MetaStore {
    database: Mutex<Option<Opened>>,
    file: Option<Solid>,
    doubt: Doubt,
    open: Box<dyn Fn() -> Result<Opened, DatabaseError> + Send + Sync>,
}

/// A database that is open.
struct Opened {
    database: Database,
    /// True if its disk has failed, so that it is of no use any more.
    failed: Arc<AtomicBool>,
}

/// A file that is kept free of holes.
struct Solid {
    file: File,
    /// The file has no holes before this offset.
    len: AtomicU64,
}

impl Solid {
    /// Allocates all blocks. If that fails, because the disk is full or the file system does not
    /// support it, the holes remain until the next attempt.
    fn fill(&self) -> io::Result<()> {
        let len = self.file.metadata()?.len();
        if len > self.len.load(Ordering::Relaxed) {
            rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, len)?;
            self.len.store(len, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Reads all pages of a database that can be reached, and thereby puts them into its cache.
fn warm(database: &Database) -> Result<(), redb::Error> {
    let read = database.begin_read()?;
    for table in read.list_tables()? {
        read.open_untyped_table(table)?.stats()?;
    }
    Ok(())
}

/// Converts a failure of the database to the error for a request.
pub(crate) fn fault(error: &redb::Error) -> FsError {
    let code = match error {
        redb::Error::Io(error) => code_of(error),
        _ => ErrorCode::Io,
    };
    FsError::new(code, format!("metadata store: {error}"))
}

fn code_of(error: &io::Error) -> ErrorCode {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::NoSpace,
        _ => ErrorCode::Io,
    }
}

/// Returns true if a database that has failed stays open: a seeded bug.
fn keeps_failed() -> bool {
    mutated("manager/failed-store-kept")
}

impl MetaStore {
    /// Opens the database in the file at `path`, and creates it if it does not exist. Its directory
    /// must exist.
    ///
    /// # Errors
    /// `Busy` if another process has it open; otherwise `NoSpace` or `Io`. The text names the file.
    pub fn open(path: impl AsRef<Path>) -> Result<MetaStore, FsError> {
        let path = path.as_ref();
        let trouble = |error: &dyn std::fmt::Display, code| {
            FsError::new(code, format!("metadata store {}: {error}", path.display()))
        };
        let failed = |error: io::Error| trouble(&error, code_of(&error));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        // The database takes the same lock. But before the file is looked at, nobody else must be
        // at work on it.
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(trouble(&DatabaseError::DatabaseAlreadyOpen, ErrorCode::Busy)),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        residue::forget(&file).map_err(failed)?;
        let solid = file.try_clone().map(|file| Solid { file, len: AtomicU64::new(0) });
        let backend = move || FileBackend::new(file.try_clone()?);
        let mut store = MetaStore::with(backend).map_err(|error| {
            let code = match &error {
                DatabaseError::DatabaseAlreadyOpen => ErrorCode::Busy,
                DatabaseError::Storage(redb::StorageError::Io(error)) => code_of(error),
                _ => ErrorCode::Io,
            };
            trouble(&error, code)
        })?;
        store.file = solid.inspect(|solid| drop(solid.fill())).ok();
        // The database syncs its file, but not the file's name.
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
        Ok(store)
    }

    /// Opens a database on any backend. A clone of the backend must refer to the same bytes.
    ///
    /// # Errors
    /// `Io`.
    pub fn on(backend: impl StorageBackend + Clone) -> Result<MetaStore, FsError> {
        MetaStore::with(move || Ok(backend.clone())).map_err(|error| fault(&error.into()))
    }

    fn with<B: StorageBackend>(
        backend: impl Fn() -> Result<B, DatabaseError> + Send + Sync + 'static,
    ) -> Result<MetaStore, DatabaseError> {
        let doubt = Doubt::default();
        let guard = doubt.clone();
        let open = move || {
            let disk = Guarded::new(backend()?, guard.clone());
            let (failed, len) = (disk.failed(), disk.len().map_err(redb::StorageError::Io)?);
            let database = Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(disk)?;
            if len <= RESIDENT_BYTES
                && let Err(error) = warm(&database)
            {
                // What needs this part of the database fails.
                tracing::warn!(%error, "the database was not read as a whole");
            }
            Ok(Opened { database, failed })
        };
        Ok(MetaStore { database: Mutex::new(Some(open()?)), file: None, doubt, open: Box::new(open) })
    }

    /// Creates a database in memory. It is lost with its last handle.
    ///
    /// # Errors
    /// `Io`.
    #[cfg(any(test, feature = "sim"))]
    pub fn in_memory() -> Result<MetaStore, FsError> {
        MetaStore::on(crate::store::MemDisk::default().database())
    }

    /// Begins to read what was committed last.
    pub(crate) fn read(&self) -> Result<ReadTransaction, redb::Error> {
        self.begin(|database| Ok(database.begin_read()?))
    }

    /// Begins a change. Waits until no other one is in progress.
    pub(crate) fn write(&self) -> Result<WriteTransaction, redb::Error> {
        // The file may have grown in the previous transaction.
        self.file.iter().for_each(|solid| drop(solid.fill()));
        self.begin(|database| Ok(database.begin_write()?))
    }

    fn begin<R>(&self, begin: impl FnOnce(&Database) -> Result<R, redb::Error>) -> Result<R, redb::Error> {
        if let Some(error) = self.doubt() {
            return Err(redb::Error::Io(io::Error::other(error.detail)));
        }
        let mut database = lock(&self.database);
        if let Some(open) = &*database
            && open.failed.load(Ordering::Relaxed)
            && !keeps_failed()
        {
            *database = None;
        }
        match &*database {
            Some(open) => begin(&open.database),
            None => begin(&database.insert((self.open)()?).database),
        }
    }

    /// Returns the reason why the database must not be used any more by this process.
    pub(crate) fn doubt(&self) -> Option<FsError> {
        self.doubt.reason().map(|why| {
            let text = format!(
                "metadata store: {why}. So it is not known which of the last changes the disk has, and the manager \
                 stops. Check the disk and the file system (the system's log says more), then start the manager again: it \
                 reads from the disk what was stored. If it cannot, restore a backup (`pvfsd restore`)"
            );
            FsError::new(ErrorCode::Io, text)
        })
    }

    /// Closes the database after a transaction has failed. The next transaction reopens it.
    pub(crate) fn close_failed(&self) {
        if keeps_failed() {
            return;
        }
        *lock(&self.database) = None;
    }
}
