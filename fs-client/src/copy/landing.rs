//! The local target of a fetch. It becomes visible only when it is complete.
//!
//! **Why.** A fetch can be interrupted: a server fails, the disk is full, or the user presses
//! Ctrl-C. The remains must not look like the file, and the previous file must not be lost.
//!
//! **How.** The bytes go into an unnamed file in the target's directory (`O_TMPFILE`), which gets
//! its name when it is complete. If the program ends earlier, even by `kill -9`, nothing is left
//! behind. On a file system without unnamed files, a temporary file is used, which is removed on
//! failure.
//!
//! **Invariants**
//! 1. The target is either unchanged or the complete new file, also after the power has failed: the
//!    bytes are on disk before the name is, and the name is before [`Landing::settle`] returns. A
//!    fetch that is resumed trusts a file's length and time, so they must not be there without the
//!    bytes.
//! 2. A symbolic link remains a link, and leads to the new file. The new file takes over the
//!    permissions of the file that it replaces.
//! 3. A target that is not a regular file, such as a device or a pipe, is written to and never
//!    replaced.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fs_proto::SetAttr;
use rustix::fs::{AtFlags, CWD, linkat};
use tempfile::{Builder, TempPath};

use super::attributes;

/// Prefix of temporary names. They exist for a moment, or during the whole fetch where unnamed
/// files are not supported.
const PREFIX: &str = ".pvfs-get-";

/// The destination of fetched bytes.
#[derive(Debug)]
pub(crate) struct Landing {
    file: Arc<File>,
    /// The final name; `None` if the target itself is written to.
    target: Option<PathBuf>,
    /// The temporary name, if there is one.
    named: Option<TempPath>,
}

impl Landing {
    /// Prepares a file that will be at `target`. It gets the permissions `mode`, as far as the
    /// process's umask allows, unless a file exists there already.
    ///
    /// # Errors
    /// Those of the system; `IsADirectory`.
    pub(crate) fn open(target: &Path, mode: u32) -> io::Result<Landing> {
        Landing::open_as(target, mode, true)
    }

    fn open_as(target: &Path, mode: u32, nameless: bool) -> io::Result<Landing> {
        let (target, kept) = match fs::metadata(target) {
            Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            // Replace the file that a link leads to.
            Ok(there) if there.is_file() => (fs::canonicalize(target)?, Some(there.permissions())),
            Ok(_) => {
                return Ok(Landing {
                    file: Arc::new(OpenOptions::new().write(true).open(target)?),
                    target: None,
                    named: None,
                });
            }
            // A dangling link: create the file that it points to. `cp` does not do that, but `>`
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

    /// Returns the file to write to.
    pub(crate) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Returns true if bytes may be written at any offset, in any order.
    pub(super) fn is_file(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.is_file())
    }

    /// Completes the file: gives it its attributes and its name, and makes both durable.
    ///
    /// # Errors
    /// Those of the system. The target is then unchanged, unless only its directory could not be
    /// made durable.
    pub(crate) fn settle(self, attr: &SetAttr) -> io::Result<()> {
        self.settle_with(attr, File::sync_all)
    }

    fn settle_with(self, attr: &SetAttr, sync: impl Fn(&File) -> io::Result<()>) -> io::Result<()> {
        let Some(target) = &self.target else {
            // A device or a pipe has nothing to be made durable. The file of a dangling link has.
            return if self.is_file() { sync(&self.file) } else { Ok(()) };
        };
        attributes::set(&self.file, attr)?;
        sync(&self.file)?;
        let dir = File::open(directory(target))?;
        name(&self.file, self.named, target)?;
        sync(&dir)
    }
}

/// Gives `file`, which may have a temporary name, the name `target`.
fn name(file: &File, named: Option<TempPath>, target: &Path) -> io::Result<()> {
    if let Some(named) = named {
        return named.persist(target).map_err(|error| error.error);
    }
    let anonymous = format!("/proc/self/fd/{}", file.as_raw_fd());
    link_over(target, |name| Ok(linkat(CWD, anonymous.as_str(), CWD, name, AtFlags::SYMLINK_FOLLOW)?))
}

/// Gives what `link` makes the name `target`. It replaces anything but a directory, in one step.
pub(super) fn link_over(target: &Path, link: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    match link(target) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        result => return result,
    }
    // A link cannot replace an existing name, but a rename can.
    let linked = Builder::new().prefix(PREFIX).make_in(directory(target), link)?;
    linked.into_temp_path().persist(target).map_err(|error| error.error)
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Opens a file without a name. Returns `None` if that fails for any reason. A real problem is
/// reported by the attempt with a name that follows.
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
            landing.settle(&SetAttr::default()).unwrap();
            assert_eq!(fs::read(&target).unwrap(), b"new");
            assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o600);
            // A file that is replaced keeps its permissions.
            fs::set_permissions(&target, Permissions::from_mode(0o751)).unwrap();
            let landing = Landing::open_as(&target, 0o600, nameless).unwrap();
            landing.file().as_ref().write_all(b"newer").unwrap();
            landing.settle(&SetAttr::default()).unwrap();
            assert_eq!(fs::read(&target).unwrap(), b"newer");
            assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o751);
            // Dropped before it is complete.
            let landing = Landing::open_as(&target, 0o600, nameless).unwrap();
            landing.file().as_ref().write_all(b"half").unwrap();
            drop(landing);
            assert_eq!(fs::read(&target).unwrap(), b"newer");
            assert_eq!(names(dir.path()).len(), 1, "nothing else is left");
        }
    }

    /// `pvfs get` renamed a file whose bytes were in the page cache only. After a power failure the
    /// complete name could lead to an empty file, and the previous one was lost.
    #[test]
    fn a_file_gets_its_name_when_its_bytes_are_on_disk_and_the_name_is_made_durable() {
        for (nameless, replaces) in [(true, false), (true, true), (false, false), (false, true)] {
            let dir = tempfile::tempdir().unwrap();
            let target = dir.path().join("target");
            if replaces {
                fs::write(&target, "old").unwrap();
            }
            let begin = || {
                let landing = Landing::open_as(&target, 0o600, nameless).unwrap();
                landing.file().as_ref().write_all(b"new").unwrap();
                landing
            };
            let now = || fs::read(&target).ok();
            let before = now();
            // What is synced, and what the target is at that moment.
            let synced = std::cell::RefCell::new(Vec::new());
            let note = |file: &File| {
                synced.borrow_mut().push((file.metadata()?.is_dir(), now()));
                Ok(())
            };
            begin().settle_with(&SetAttr::default(), note).unwrap();
            assert_eq!(*synced.borrow(), [(false, before), (true, Some(b"new".to_vec()))]);
            // A disk that refuses the bytes leaves the target alone.
            fs::write(&target, "old").unwrap();
            let error =
                begin().settle_with(&SetAttr::default(), |_| Err(io::ErrorKind::StorageFull.into())).unwrap_err();
            assert_eq!((error.kind(), now()), (io::ErrorKind::StorageFull, Some(b"old".to_vec())));
            assert_eq!(names(dir.path()), ["target"], "nothing else is left");
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
        landing.settle(&SetAttr::default()).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
        let null = Landing::open(Path::new("/dev/null"), 0o644).unwrap();
        assert!(!null.is_file());
        null.settle(&SetAttr::default()).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        let error = Landing::open(dir.path(), 0o644).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
    }
}
