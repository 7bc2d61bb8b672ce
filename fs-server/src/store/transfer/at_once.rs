//! The part of a transfer that an event loop may do itself: what cannot wait for the disk.
//!
//! **Why.** Most short reads find their bytes in the system's memory, and copying them takes less
//! time than a hand-over to a worker thread. But a read that finds them only on the disk waits for
//! it, and a write waits for many things: for a block to read that it fills in part, for the
//! journal, for other pages to be written first. The system does a transfer without any wait if it
//! is told to (`RWF_NOWAIT`), and otherwise refuses. What it refuses is left to a worker.
//!
//! | file system | reads | writes |
//! |---|---|---|
//! | ext4 | here, from the page cache | by a worker: `EOPNOTSUPP` |
//! | XFS, Btrfs | here, from the page cache | here, if they need no wait |
//! | in memory (tmpfs, ramfs) | here: there is no disk | here |
//! | all others, FUSE and NFS among them | as they support it | as they support it |
//!
//! Nothing else is done here. *Opening* a file may wait although its name is in memory
//! (`RESOLVE_CACHED` is about names only): the file system may ask another machine or program, and
//! the length that was synced is an attribute on the disk.
//!
//! A store with direct I/O does nothing of a transfer here (`direct_io` has the table for that).
//!
//! **Source.** preadv2(2), openat2(2), statx(2).

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::fstatfs;

use super::jobs::{self, Job};
use crate::store::disk::DiskDir;

/// File systems by their numbers (statfs(2)).
const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;
const EXT4: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683e;
const F2FS: u64 = 0xf2f5_2010;

/// What a file system does without a wait.
#[derive(Debug)]
pub(in crate::store) struct AtOnce {
    /// It has no disk.
    in_memory: bool,
    /// It has the attributes of an open file in memory.
    attributes: bool,
    /// It has not refused to read without a wait.
    reads: AtomicBool,
    /// It has not refused to write without a wait.
    writes: AtomicBool,
}

/// How far a transfer came: the number of bytes, and the error that ended it, if any.
type Moved = Result<u64, (u64, io::Error)>;

impl AtOnce {
    /// Finds out what the file system of a directory does. A disk without descriptors is in
    /// memory.
    pub(in crate::store) fn on(dir: &dyn DiskDir) -> io::Result<AtOnce> {
        let kind =
            dir.system().map_or(Ok(RAMFS), |dir| Ok::<_, io::Error>(fstatfs(dir)?.f_type as u64 & 0xffff_ffff))?;
        let in_memory = matches!(kind, TMPFS | RAMFS);
        let attributes = in_memory || matches!(kind, EXT4 | XFS | BTRFS | F2FS);
        Ok(AtOnce { in_memory, attributes, reads: AtomicBool::new(true), writes: AtomicBool::new(true) })
    }

    /// Returns true if nothing short waits, because there is no disk.
    pub(in crate::store) fn in_memory(&self) -> bool {
        self.in_memory
    }

    /// Returns true if the attributes of an open file are in memory.
    pub(in crate::store) fn knows_attributes(&self) -> bool {
        self.attributes
    }

    /// Reads as many bytes as needs no wait.
    pub(in crate::store) fn read(&self, file: &File, jobs: &[Job]) -> Moved {
        attempt(&self.reads, || jobs::read_at_once(file, jobs), jobs::len(jobs))
    }

    /// Writes as many bytes as needs no wait.
    pub(in crate::store) fn write(&self, file: &File, jobs: &[Job]) -> Moved {
        attempt(&self.writes, || jobs::write_at_once(file, jobs), jobs::len(jobs))
    }
}

/// Makes an attempt to transfer `len` bytes, unless the file system has refused one as such.
fn attempt(supported: &AtomicBool, transfer: impl FnOnce() -> Result<(), (u64, io::Error)>, len: u64) -> Moved {
    if !supported.load(Ordering::Relaxed) {
        return Ok(0);
    }
    match transfer() {
        Ok(()) => Ok(len),
        Err((moved, error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(moved),
        Err((moved, error)) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS)) => {
            supported.store(false, Ordering::Relaxed);
            Ok(moved)
        }
        Err(failed) => Err(failed),
    }
}

#[cfg(test)]
mod tests {
    use bmi::{MemList, Memory};
    use fs_proto::Region;

    use super::*;
    use crate::store::disk::SystemDir;

    fn failing(error: i32) -> Result<(), (u64, io::Error)> {
        Err((7, io::Error::from_raw_os_error(error)))
    }

    #[test]
    fn what_would_wait_is_left_to_others() {
        let supported = AtomicBool::new(true);
        assert!(matches!(attempt(&supported, || Ok(()), 10), Ok(10)));
        assert!(matches!(attempt(&supported, || failing(libc::EAGAIN), 10), Ok(7)));
        assert!(matches!(attempt(&supported, || failing(libc::ENOSPC), 10), Err((7, _))));
        assert!(supported.load(Ordering::Relaxed));
        assert!(matches!(attempt(&supported, || failing(libc::EOPNOTSUPP), 10), Ok(7)));
        assert!(matches!(attempt(&supported, || unreachable!("it is not tried again"), 10), Ok(0)));
    }

    /// Whatever the file system does at once, a worker that does the rest makes it whole.
    #[test]
    fn the_rest_of_a_transfer_makes_it_whole() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::options().read(true).write(true).create_new(true).open(dir.path().join("f")).unwrap();
        let at_once = AtOnce::on(&SystemDir::open(dir.path()).unwrap()).unwrap();
        let bytes: Vec<u8> = (0..20_000u32).map(|at| (at % 251) as u8).collect();
        let regions = [Region::new(100, 12_000), Region::new(50_000, 8_000)];
        let out = jobs::jobs(&regions, &MemList::from(bytes.clone()));
        let moved = at_once.write(&file, &out).unwrap();
        jobs::write_all(&file, &jobs::rest(out, moved)).unwrap();
        for _ in 0..2 {
            let list = MemList::from(Memory::from(vec![0xee; 20_000]));
            let into = jobs::jobs(&regions, &list);
            let moved = at_once.read(&file, &into).unwrap();
            jobs::read_all(&file, &jobs::rest(into, moved)).unwrap();
            assert_eq!(list.to_vec(), bytes);
        }
        // Beyond the end there are zeros.
        let list = MemList::from(Memory::from(vec![0xee; 9_000]));
        let into = jobs::jobs(&[Region::new(57_000, 9_000)], &list);
        let moved = at_once.read(&file, &into).unwrap();
        jobs::read_all(&file, &jobs::rest(into, moved)).unwrap();
        assert_eq!((&list.to_vec()[..1000], &list.to_vec()[1000..]), (&bytes[19_000..], &[0; 8_000][..]));
    }
}
