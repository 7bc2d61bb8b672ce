//! Locks a data directory, and finds the process that holds the lock.
//!
//! **Why.** A file with a process id goes stale: the process is gone, and its number may belong to
//! another program. A lock cannot. The kernel releases it when the process ends, however it ends.
//! So whether a server runs is asked of the lock, and the lock leads to the process.
//!
//! **Invariants**
//! 1. The lock is on the directory itself (`flock`). No file is left behind.
//! 2. Asking never prevents a server from starting. [`holder`] asks with a shared lock, which only
//!    others that ask hold, and [`DirLock::take`] waits for these.
//! 3. Only a process that holds the lock is reported. A process that has the directory open without
//!    a lock is not.
//!
//! **Source.** flock(2); proc_pid_fdinfo(5): the line `lock:` is printed for the descriptors whose
//! open file holds a lock.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

use crate::store::sys::pause;

/// How often [`DirLock::take`] tries while others only ask, and the pause after each attempt. They
/// ask for some microseconds.
const ATTEMPTS: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(1);
/// How often [`holder`] looks for a process before it reports that none can be seen. The process
/// may end, and another one start, while it looks.
const LOOKS: u32 = 3;

/// An exclusive lock on a directory. It lasts until it is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct DirLock {
    _dir: File,
}

impl DirLock {
    /// Locks the directory.
    ///
    /// # Errors
    /// `WouldBlock` if another holds the lock; what opening the directory fails with, `NotFound`
    /// and `NotADirectory` among others.
    pub(crate) fn take(dir: &Path) -> io::Result<DirLock> {
        let dir = open_dir(dir)?;
        for _ in 0..ATTEMPTS {
            if try_flock(&dir, FlockOperation::NonBlockingLockExclusive)? {
                return Ok(DirLock { _dir: dir });
            }
            // A shared lock is possible if all others are shared too: nobody uses the directory.
            if !try_flock(&dir, FlockOperation::NonBlockingLockShared)? {
                break;
            }
            flock(&dir, FlockOperation::Unlock)?;
            pause(PAUSE);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

/// The process that holds the lock on a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// None. The directory may not exist.
    Nobody,
    /// The process with this id.
    Process(u32),
    /// A process that cannot be seen, such as another user's.
    Unknown,
}

/// Returns the holder of the lock on a directory.
///
/// # Errors
/// What opening the directory fails with, except `NotFound`.
pub(crate) fn holder(dir: &Path) -> io::Result<Holder> {
    let dir = match open_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Holder::Nobody),
        opened => opened?,
    };
    let metadata = dir.metadata()?;
    for _ in 0..LOOKS {
        // Closing the directory releases the shared lock.
        if try_flock(&dir, FlockOperation::NonBlockingLockShared)? {
            return Ok(Holder::Nobody);
        }
        if let Some(pid) = find((metadata.dev(), metadata.ino()))? {
            return Ok(Holder::Process(pid));
        }
    }
    Ok(Holder::Unknown)
}

/// Returns the process with an exclusive lock on the directory that has this device and inode.
fn find(id: (u64, u64)) -> io::Result<Option<u32>> {
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if holds(&entry.path(), id) {
            return Ok(Some(pid));
        }
    }
    Ok(None)
}

/// Returns true if the process at this place under /proc has the lock. Returns false if the process
/// ends meanwhile or may not be looked at.
fn holds(process: &Path, id: (u64, u64)) -> bool {
    let locked = |info: PathBuf| {
        fs::read_to_string(info).is_ok_and(|text| {
            let mut locks = text.lines().filter(|line| line.starts_with("lock:"));
            locks.any(|line| line.contains(" FLOCK ") && line.contains(" WRITE "))
        })
    };
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    descriptors.into_iter().any(|descriptor| {
        // Look at locked files only. Looking at any other may hang, if its server has.
        locked(process.join("fdinfo").join(descriptor.file_name()))
            && fs::metadata(descriptor.path()).is_ok_and(|file| (file.dev(), file.ino()) == id)
    })
}

fn open_dir(dir: &Path) -> io::Result<File> {
    Ok(open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// Returns false if another has a lock that excludes this one.
fn try_flock(dir: &File, operation: FlockOperation) -> io::Result<bool> {
    match flock(dir, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

// These tests start no process. Until it runs another program, a child process has all open files
// of its parent, and so the locks of every test in this process. The tests of fs-client start
// servers.
#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_lock_is_exclusive_and_leads_to_its_process() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(holder(dir.path()).unwrap(), Holder::Nobody);
        let lock = DirLock::take(dir.path()).unwrap();
        assert_eq!(holder(dir.path()).unwrap(), Holder::Process(std::process::id()));
        assert_eq!(DirLock::take(dir.path()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "no file is left in the directory");
        drop(lock);
        assert_eq!(holder(dir.path()).unwrap(), Holder::Nobody);
        DirLock::take(dir.path()).unwrap();
    }

    #[test]
    fn an_open_directory_is_not_a_locked_one() {
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let open = File::open(dir.path()).unwrap();
        let lock = DirLock::take(other.path()).unwrap();
        assert_eq!(holder(dir.path()).unwrap(), Holder::Nobody);
        // Another lock than a server's.
        flock(&open, FlockOperation::LockShared).unwrap();
        assert_eq!(holder(dir.path()).unwrap(), Holder::Nobody);
        drop((open, lock));
    }

    #[test]
    fn a_directory_that_is_missing_has_no_holder_and_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none");
        assert_eq!(holder(&missing).unwrap(), Holder::Nobody);
        assert_eq!(DirLock::take(&missing).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&missing, "a file").unwrap();
        assert_eq!(holder(&missing).unwrap_err().kind(), io::ErrorKind::NotADirectory);
    }

    #[test]
    fn asking_does_not_prevent_a_server_from_starting() {
        let dir = tempfile::tempdir().unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        holder(dir.path()).unwrap();
                    }
                });
            }
            let taken = (0..200).try_for_each(|_| DirLock::take(dir.path()).map(drop));
            done.store(true, Ordering::Relaxed);
            taken.unwrap();
        });
    }
}
