//! A directory that goes with the process that made it, however that ends: at its end, by a panic,
//! by Ctrl-C, by `kill -9`.
//!
//! **How.** A shell in a process group of its own, which Ctrl-C does not reach, reads from a pipe.
//! The kernel closes the pipe with the process that made the directory. Then the shell removes it.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::{Outcome, named};

/// Waits for the end of its input, and for the end of processes that the kernel kills at the same
/// time and that may still write.
const REMOVE: &str = "read -r _; rm -rf \"$0\" 2>/dev/null || { sleep 1; rm -rf \"$0\"; }";

/// A directory that is removed when this is dropped or its process has ended.
pub struct Sandbox {
    path: PathBuf,
    /// The shell, unless the directory is kept.
    remover: Option<Child>,
}

impl Sandbox {
    /// Creates the directory of a test below the system's directory for temporary files.
    pub fn new(test: &str) -> Outcome<Sandbox> {
        let path = std::env::temp_dir().join(format!("pvfs-{test}-{}", std::process::id()));
        // Not a directory that is there already, because it is removed.
        std::fs::create_dir(&path).map_err(named(path.display()))?;
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", REMOVE]).arg(&path).process_group(0).stdin(Stdio::piped());
        let remover = Some(shell.spawn().map_err(named("sh"))?);
        Ok(Sandbox { path, remover })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets the directory be kept.
    pub fn keep(&mut self) {
        if let Some(mut remover) = self.remover.take() {
            let _ = remover.kill();
            let _ = remover.wait();
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Some(mut remover) = self.remover.take() {
            drop(remover.stdin.take());
            let _ = remover.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_removed_with_what_is_in_it_unless_it_is_kept() {
        for (name, is_kept) in [("removed", false), ("kept", true)] {
            let mut sandbox = Sandbox::new(name).unwrap();
            let path = sandbox.path().to_owned();
            std::fs::create_dir(path.join("below")).unwrap();
            if is_kept {
                sandbox.keep();
            }
            drop(sandbox);
            assert_eq!(path.exists(), is_kept, "{name}");
            let _ = std::fs::remove_dir_all(path);
        }
    }
}
