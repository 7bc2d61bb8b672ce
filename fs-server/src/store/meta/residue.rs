//! Makes the system forget what it has of a file in memory.
//!
//! **Why.** After a failed sync the pages that could not be written stay in memory, as if they were
//! on the disk. A program that is started anew would read them, and trust them. So before a
//! database is opened, its pages are dropped, and the system is asked whether none is left. What is
//! read then comes from the disk.
//!
//! **Limits.** Pages that another program has mapped, or reads at the same moment, stay. The file
//! is refused then. On a file system in memory the pages are the file, and there is nothing to
//! drop. File systems with a cache of their own beside the system's are not asked about it.
//!
//! **Source.** posix_fadvise(2), mincore(2); fsync(2) on errors of writeback.

use std::fs::File;
use std::io;
use std::time::Duration;

use rustix::fs::{Advice, fadvise, fstatfs};

use crate::store::sys;
use crate::store::sys::pause;

/// How often the pages are dropped, and the pause after each attempt. A page that another program
/// has just read is dropped the next time.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// The kinds of file systems that are in memory.
const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;

/// Drops all pages of a file from memory, after they were written.
pub(in crate::store) fn forget(file: &File) -> io::Result<()> {
    file.sync_all()?;
    let kind = fstatfs(file)?.f_type as i64;
    let len = file.metadata()?.len();
    if len == 0 || kind == TMPFS || kind == RAMFS {
        return Ok(());
    }
    let mut left = 0;
    for _ in 0..ATTEMPTS {
        fadvise(file, 0, None, Advice::DontNeed)?;
        left = sys::resident(file, len)?;
        if left == 0 {
            return Ok(());
        }
        pause(PAUSE);
    }
    let text = format!(
        "{left} pages of it stay in memory, so what the disk has cannot be checked; end other programs that use the file \
         (`fuser` names them), or mount its file system anew"
    );
    Err(io::Error::new(io::ErrorKind::ResourceBusy, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_page_is_left_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7; 300_000]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        // The pages of a file system in memory cannot be dropped.
        let in_memory = [TMPFS, RAMFS].contains(&(fstatfs(&file).unwrap().f_type as i64));
        assert!(sys::resident(&file, 300_000).unwrap() > 0);
        forget(&file).unwrap();
        assert_eq!(sys::resident(&file, 300_000).unwrap() > 0, in_memory);
        assert_eq!(std::fs::read(&path).unwrap(), vec![7; 300_000]);
        let empty = File::create(dir.path().join("empty")).unwrap();
        forget(&empty).unwrap();
    }
}
