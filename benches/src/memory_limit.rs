//! A limit on the memory of a process and on the files that the system caches for it (cgroups).
//!
//! **Why.** What a server's cache is worth shows only when memory is short. A machine has more than
//! a benchmark wants to fill, and the system's cache takes all of it.

use std::io;
use std::path::{Path, PathBuf};

/// Where control groups of the memory are: of version 2, and of version 1.
const ROOTS: [(&str, &str); 2] = [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];

/// A control group with a limit. Dropping it removes it, once its processes have ended.
#[derive(Debug)]
pub struct MemoryLimit {
    folder: PathBuf,
}

impl MemoryLimit {
    /// Makes a group with a limit in bytes. Its name begins with `prefix`.
    ///
    /// # Errors
    /// If this machine or this user has no control over memory.
    pub fn new(prefix: &str, bytes: u64) -> io::Result<MemoryLimit> {
        let mut last = io::Error::from(io::ErrorKind::Unsupported);
        for (root, file) in ROOTS {
            let folder = Path::new(root).join(format!("{prefix}-{}", std::process::id()));
            let limit = match std::fs::create_dir(&folder) {
                Ok(()) => MemoryLimit { folder },
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            // A hierarchy without this controller has no such file.
            match std::fs::write(limit.folder.join(file), bytes.to_string()) {
                Ok(()) => return Ok(limit),
                Err(error) => last = error,
            }
        }
        Err(io::Error::new(last.kind(), format!("no limit on memory can be set (cgroups): {last}")))
    }

    /// Moves a process into the group. What it has so far counts where it was.
    ///
    /// # Errors
    /// That of the system.
    pub fn add(&self, process: u32) -> io::Result<()> {
        std::fs::write(self.folder.join("cgroup.procs"), process.to_string())
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // A group with a process stays. It has no effect on others.
        let _ = std::fs::remove_dir(&self.folder);
    }
}
