//! The ways in which a store of files moves bytes ([`Mode`]), and where a test can try them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use bmi::{MemList, Memory};
use tempfile::TempDir;

use super::run;
use crate::store::disk::SystemDir;
use crate::store::transfer::{AtOnce, Ring};
use crate::store::{FileStore, sys};

/// How a store moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Mode {
    /// Through the page cache.
    Cached,
    /// By direct I/O of threads.
    Threads,
    /// By direct I/O of the kernel's ring.
    Ring,
}

pub(in crate::store) const MODES: [Mode; 3] = [Mode::Cached, Mode::Threads, Mode::Ring];
pub(in crate::store) const DIRECT: [Mode; 2] = [Mode::Threads, Mode::Ring];

/// Returns a directory on a disk, where the sources are on one.
pub(in crate::store) fn disk_dir() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

/// Returns true if direct I/O is possible in a directory: there is a disk, and a transfer succeeds.
pub(in crate::store) fn permits(dir: &Path) -> bool {
    if AtOnce::on(&SystemDir::open(dir).unwrap()).unwrap().in_memory() {
        return false;
    }
    let path = dir.join("probe");
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
    let memory = Memory::zeroed(64 << 10).unwrap().all();
    let moved = options.open(&path).and_then(|file| sys::write_at(&file, 0, &memory));
    let _ = fs::remove_file(&path);
    moved.is_ok()
}

/// Returns true if this process may certainly use rings: no switch and no filter forbids it.
fn has_rings() -> bool {
    let switch = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    switch.trim() == "0" && status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "0"]))
}

/// Opens a ring. `None` if the kernel does not permit any. Fails if it does, and there is none.
pub(in crate::store) fn opened_ring<R>(open: impl FnOnce() -> io::Result<R>) -> Option<R> {
    match open() {
        Ok(ring) => Some(ring),
        Err(error) => {
            assert!(!has_rings(), "the kernel permits rings: {error}");
            eprintln!("the kernel permits no rings ({error}): threads make the transfers");
            None
        }
    }
}

impl Mode {
    /// Opens a store. Checks that it uses direct I/O exactly where that is possible.
    pub(in crate::store) fn open(self, dir: &Path, offload: u64) -> FileStore {
        let store = FileStore::open(dir, offload).unwrap();
        if self == Mode::Cached {
            assert!(!store.moves_directly() && !store.has_ring());
            return store;
        }
        let store = store.direct_io(true);
        assert_eq!(store.moves_directly(), permits(dir), "{}", dir.display());
        if self == Mode::Threads {
            return store.without_ring();
        }
        if store.moves_directly() {
            assert_eq!(store.has_ring(), opened_ring(Ring::open).is_some());
        }
        store
    }
}

/// Bytes in memory that begins `at` bytes behind the beginning of a page.
pub(in crate::store) fn placed(at: usize, bytes: &[u8]) -> MemList {
    let memory = Memory::zeroed(at + bytes.len()).unwrap();
    memory.copy_from(at, bytes);
    memory.slice(at, bytes.len()).into()
}

/// Runs a test with a new directory for each way of moving bytes.
pub(super) fn each_mode(test: impl AsyncFn(Mode, &Path)) {
    for mode in MODES {
        let dir = disk_dir();
        run(test(mode, dir.path()));
    }
}
