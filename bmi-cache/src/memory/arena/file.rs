//! The file of an arena: who may use it, and room in its file system.
//!
//! **Why.** The path is in a directory that everybody may write to, so what is found there may be
//! anybody's. And the bytes are acknowledged data, so two servers must never use them at the same
//! time.
//!
//! **Invariants** of a file that [`open`] returns:
//! 1. It is a regular file of this user, with mode 0600 and no other name. So nobody else can have
//!    put it there as a trap: a symbolic link is not followed, a hard link to another file of this
//!    user has two names.
//! 2. It is locked, and it has the name that was asked for. The lock (`flock`) belongs to the open
//!    file, which the mapping refers to as well. So it lasts as long as the process, or any access
//!    to the mapped bytes that the kernel still makes for another process.
//!
//! **Source.** open(2), flock(2), fallocate(2), tmpfs(5).
//!
//! **Tests** are here, and for a full file system in `tests/full.rs`.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bmi_core::{Error, ErrorKind};
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// How often a name may be created or removed by others while it is opened.
const ATTEMPTS: usize = 100;

/// Opens and locks the file at `path`, or creates it empty.
///
/// # Errors
/// `Refused`, which is worth a retry, if another process uses the file; `Invalid` if the file is
/// not this user's alone; what the system fails with.
pub(super) fn open(path: &Path) -> Result<File, Error> {
    for _ in 0..ATTEMPTS {
        let file = match open_or_create(path) {
            Err(Errno::EXIST) => continue,
            Err(Errno::LOOP) => return Err(refused(path, "it is a symbolic link; choose another path")),
            opened => opened.map_err(|error| failed("cannot open", path, error))?,
        };
        let metadata = file.metadata().map_err(|error| failed("cannot look at", path, error))?;
        if let Some(reason) = refusal(&Facts::of(&metadata), rustix::process::geteuid().as_raw()) {
            return Err(refused(path, &reason));
        }
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let text = format!("{} is in use: stop the server that uses it, or wait for its end", path.display());
                return Err(Error::new(ErrorKind::Refused, text));
            }
            Err(error) => return Err(failed("cannot lock", path, error)),
        }
        // Whoever had the lock before may have removed the name.
        if is_named(&file, path) {
            return Ok(file);
        }
    }
    let text = format!("{} is created and removed again and again", path.display());
    Err(Error::new(ErrorKind::Refused, text))
}

/// Opens a file, or creates one. `EXIST` if it exists by now.
fn open_or_create(path: &Path) -> rustix::io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => {
            rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR).map(File::from)
        }
        opened => opened.map(File::from),
    }
}

/// What decides whether a file may be used.
struct Facts {
    is_file: bool,
    user: u32,
    mode: u32,
    names: u64,
}

impl Facts {
    fn of(metadata: &Metadata) -> Facts {
        let (user, mode, names) = (metadata.uid(), metadata.mode() & 0o777, metadata.nlink());
        Facts { is_file: metadata.is_file(), user, mode, names }
    }
}

/// Returns why the user `me` must not use a file, and what to do.
fn refusal(facts: &Facts, me: u32) -> Option<String> {
    let Facts { is_file, user, mode, names } = *facts;
    if !is_file {
        Some("it is no regular file; choose another path".into())
    } else if user != me {
        Some(format!("it belongs to user {user}, and this is user {me}; run as that user, or choose another path"))
    } else if mode & 0o077 != 0 {
        Some(format!("others may access it (mode {mode:03o}); if it is the cache's, set its mode to 600"))
    } else if names > 1 {
        Some(format!("it has {names} names; choose another path"))
    } else {
        None
    }
}

/// Returns true if the file is the one at `path`.
pub(super) fn is_named(file: &File, path: &Path) -> bool {
    let id = |metadata: io::Result<Metadata>| metadata.ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let own = id(file.metadata());
    own.is_some() && own == id(fs::symlink_metadata(path))
}

/// Gives the file pages for `len` bytes at an offset. Bytes that it has are kept, others are zeros.
/// Touching them cannot fail afterwards.
pub(super) fn allocate(file: &File, at: usize, len: usize) -> io::Result<()> {
    let (at, len) = (at as u64, len as u64);
    Ok(rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), at, len))?)
}

fn refused(path: &Path, reason: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("{} cannot be the cache's memory: {reason}", path.display()))
}

/// Describes a failure of the system.
pub(super) fn failed(what: &str, path: &Path, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    Error::new(ErrorKind::from(&error), format!("{what} {}, the cache's memory", path.display())).caused_by(error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::tests::no_new_process;
    use super::*;

    fn kind_of(path: &Path) -> ErrorKind {
        open(path).unwrap_err().kind()
    }

    #[test]
    fn only_a_private_file_of_this_user_is_used() {
        let good = Facts { is_file: true, user: 7, mode: 0o600, names: 1 };
        assert_eq!(refusal(&good, 7), None);
        assert!(refusal(&good, 0).unwrap().contains("user 7"), "not even root takes another user's file");
        assert!(refusal(&Facts { mode: 0o640, ..good }, 7).unwrap().contains("mode 640"));
        assert!(refusal(&Facts { names: 2, ..good }, 7).is_some());
        assert!(refusal(&Facts { is_file: false, ..good }, 7).is_some());
    }

    #[test]
    fn traps_are_refused_and_left_alone() {
        let _guard = no_new_process();
        let dir = tempfile::tempdir().unwrap();
        let (target, path) = (dir.path().join("target"), dir.path().join("arena"));
        fs::write(&target, "precious").unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        assert_eq!(kind_of(&path), ErrorKind::Invalid, "a symbolic link");
        fs::remove_file(&path).unwrap();
        fs::hard_link(&target, &path).unwrap();
        assert_eq!(kind_of(&path), ErrorKind::Invalid, "a hard link");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(dir.path().join("nothing"), &path).unwrap();
        assert_eq!(kind_of(&path), ErrorKind::Invalid, "a symbolic link to nothing");
        assert!(!dir.path().join("nothing").exists());
        fs::remove_file(&path).unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(kind_of(&target), ErrorKind::Invalid, "a file that others may read");
        assert!(open(dir.path()).is_err(), "a directory");
        assert_eq!(fs::read(&target).unwrap(), b"precious");
    }

    #[test]
    fn one_process_has_the_file_and_nobody_else_may_read_it() {
        let _guard = no_new_process();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("arena");
        let file = open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        let refused = open(&path).unwrap_err();
        assert!(refused.kind() == ErrorKind::Refused && refused.is_retryable(), "{refused}");
        drop(file);
        open(&path).unwrap();
    }

    #[test]
    fn a_file_that_was_removed_has_no_name() {
        let _guard = no_new_process();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("arena");
        let file = open(&path).unwrap();
        assert!(is_named(&file, &path));
        fs::remove_file(&path).unwrap();
        assert!(!is_named(&file, &path));
        let other = open(&path).unwrap();
        assert!(is_named(&other, &path) && !is_named(&file, &path));
    }
}
