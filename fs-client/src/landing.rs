//! A local file that is being fetched: nobody sees it before it is complete.
//!
//! **Why.** A fetch can end in the middle: a server dies, the disk is full, somebody presses
//! Ctrl-C. What is left then must not look like the file, and must not have cost the file that
//! stood there before.
//!
//! **How.** The bytes go into a file without a name in the target's directory (`O_TMPFILE`), which
//! is given its name when it is complete; whatever ends the program before, `kill -9` too, leaves
//! nothing behind. A file system without such files gets one with a name of its own, which is
//! removed on failure.
//!
//! **Invariants**
//! 1. The target is what it was, or the whole file.
//! 2. A link stays a link, and leads to the new file. A file that is replaced hands on its
//!    permissions.
//! 3. What is no file, a device or a pipe, is written to and never replaced.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, linkat};
use tempfile::{Builder, TempPath};

/// Beginning of the names that exist for a moment, or as long as a fetch where files must have
/// names.
const PREFIX: &str = ".pvfs-get-";

/// Where fetched bytes go.
#[derive(Debug)]
pub(crate) struct Landing {
    file: Arc<File>,
    /// The name that it is to have; `None` for what is written to as it is.
    target: Option<PathBuf>,
    /// The name that it has meanwhile, if it has one.
    named: Option<TempPath>,
}

impl Landing {
    /// Makes ready for a file that is to be at `target`, with the permissions `mode` as far as the
    /// process's mask allows, unless a file is there already.
    ///
    /// # Errors
    /// Those of the system; `IsADirectory`.
    pub(crate) fn open(target: &Path, mode: u32) -> io::Result<Landing> {
        Landing::open_as(target, mode, true)
    }

    fn open_as(target: &Path, mode: u32, nameless: bool) -> io::Result<Landing> {
        let (target, kept) = match fs::metadata(target) {
            Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            // To where a link leads.
            Ok(there) if there.is_file() => (fs::canonicalize(target)?, Some(there.permissions())),
            Ok(_) => {
                return Ok(Landing {
                    file: Arc::new(OpenOptions::new().write(true).open(target)?),
                    target: None,
                    named: None,
                });
            }
            // A link that leads nowhere is filled where it leads to, as `cp` does it not, but `>`
            // does.
            Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(target).is_ok() => {
                let file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(target)?;
                return Ok(Landing { file: Arc::new(file), target: None, named: None });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (target.to_owned(), None),
            Err(error) => return Err(error),
        };
        let dir = directory(&target);
        let nameless = if nameless { open_nameless(dir, mode) } else { None };
        let (file, named) = match nameless {
            Some(file) => (file, None),
            None => {
                let made = Builder::new().prefix(PREFIX).permissions(Permissions::from_mode(mode)).tempfile_in(dir)?;
                let (file, path) = made.into_parts();
                (file, Some(path))
            }
        };
        if let Some(kept) = kept {
            file.set_permissions(kept)?;
        }
        Ok(Landing { file: Arc::new(file), target: Some(target), named })
    }

    /// The file to write to.
    pub(crate) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Whether bytes may be written at any place, in any order.
    pub(crate) fn is_file(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.is_file())
    }

    /// It is complete: gives it its name.
    ///
    /// # Errors
    /// Those of the system; then there is nothing at the target that was not there before.
    pub(crate) fn settle(self) -> io::Result<()> {
        let Some(target) = self.target else { return Ok(()) };
        if let Some(named) = self.named {
            return named.persist(target).map_err(|error| error.error);
        }
        let anonymous = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let link =
            |name: &Path| linkat(CWD, anonymous.as_str(), CWD, name, AtFlags::SYMLINK_FOLLOW).map_err(io::Error::from);
        match link(&target) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => return result,
        }
        // A link cannot take a name that is taken, a rename can.
        let linked = Builder::new().prefix(PREFIX).make_in(directory(&target), link)?;
        linked.into_temp_path().persist(target).map_err(|error| error.error)
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file without a name; `None` where that cannot be had. What is really wrong the attempt with a
/// name will say.
fn open_nameless(dir: &Path, mode: u32) -> Option<File> {
    OpenOptions::new().read(true).write(true).mode(mode).custom_flags(libc::O_TMPFILE).open(dir).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_when_it_is_complete_and_not_before() {
        for nameless in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let target = dir.path().join("x".repeat(255));
            let landing = Landing::open_as(&target, 0o600, nameless).unwrap();
            landing.file().as_ref().write_all(b"new").unwrap();
            assert!(!target.exists());
            landing.settle().unwrap();
            assert_eq!(fs::read(&target).unwrap(), b"new");
            assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o600);
            // Replaced, with the permissions that it had.
            fs::set_permissions(&target, Permissions::from_mode(0o751)).unwrap();
            let landing = Landing::open_as(&target, 0o600, nameless).unwrap();
            landing.file().as_ref().write_all(b"newer").unwrap();
            landing.settle().unwrap();
            assert_eq!(fs::read(&target).unwrap(), b"newer");
            assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o751);
            // Given up.
            let landing = Landing::open_as(&target, 0o600, nameless).unwrap();
            landing.file().as_ref().write_all(b"half").unwrap();
            drop(landing);
            assert_eq!(fs::read(&target).unwrap(), b"newer");
            assert_eq!(names(dir.path()).len(), 1, "nothing else is left");
        }
    }

    #[test]
    fn links_and_devices_stay_what_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        let landing = Landing::open(&link, 0o644).unwrap();
        landing.file().as_ref().write_all(b"new").unwrap();
        landing.settle().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
        let null = Landing::open(Path::new("/dev/null"), 0o644).unwrap();
        assert!(!null.is_file());
        null.settle().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        let error = Landing::open(dir.path(), 0o644).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
    }
}
