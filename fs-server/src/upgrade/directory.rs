//! Data directories of version 0.1.
//!
//! **Layout**
//!
//! ```text
//!   <dir>/lock            empty; locked by the server that uses the directory
//!   <dir>/identity.toml   format = 1, role = "iod", index = 2, store = "9f0c…"
//! ```

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use fs_proto::{ErrorCode, FsError, Role, StoreId};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::manager::invalid_directory;
use crate::store::identity::{IDENTITY, others, read_label, trouble, write_identity, write_label};
use crate::store::{DirLock, Label};

const LOCK: &str = "lock";

/// The identity file of version 0.1.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Identity {
    format: u32,
    /// Set by this version when the conversion begins. Version 0.1 refuses a field that it does not
    /// know.
    #[serde(default)]
    upgrading: bool,
    role: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u32>,
    store: String,
}

/// A directory of version 0.1, locked.
#[derive(Debug)]
pub(super) struct OldDirectory {
    pub(super) path: PathBuf,
    pub(super) role: Role,
    pub(super) store: StoreId,
    identity: Identity,
    _lock: DirLock,
    /// The lock of version 0.1.
    _old_lock: Option<File>,
}

/// What is at the place of a data directory.
#[derive(Debug)]
pub(super) enum Found {
    /// Nothing, or an empty directory.
    Nothing,
    /// A directory of this version.
    Current,
    /// A directory of version 0.1.
    Old(OldDirectory),
}

/// Looks at the data directory of a server, and locks it if it is of version 0.1.
///
/// # Errors
/// `Busy` if a server uses it; `Invalid` if it is another server's, or not a data directory; `Io`,
/// `Permission`.
pub(super) fn find(path: &Path, role: Role) -> Result<Found, FsError> {
    let fail = |error: io::Error| trouble(path, &error);
    if !path.try_exists().map_err(fail)? {
        return Ok(Found::Nothing);
    }
    let text = match fs::read_to_string(path.join(IDENTITY)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match others(path).map_err(fail)?.first() {
                None => Ok(Found::Nothing),
                Some(first) => {
                    let text = format!("it has {first} in it, but no {IDENTITY}: it is no data directory of a server");
                    Err(invalid_directory(path, &text))
                }
            };
        }
        text => text.map_err(fail)?,
    };
    let identity = match toml::from_str::<Identity>(&text) {
        Ok(identity) if identity.format == 1 => identity,
        _ => {
            return match read_label(path).map_err(fail)? {
                Some(Ok(_)) | None => Ok(Found::Current),
                Some(Err(why)) => Err(invalid_directory(path, &why)),
            };
        }
    };
    let lock = DirLock::take(path).map_err(fail)?;
    let old_lock = take_old_lock(path).map_err(fail)?;
    let owner = match (identity.role.as_str(), identity.index) {
        ("manager", None) => Some(Role::Manager),
        ("iod", Some(index)) => Some(Role::Iod(index)),
        _ => None,
    };
    let store = u128::from_str_radix(&identity.store, 16).ok().map(StoreId);
    match (owner, store) {
        (Some(owner), _) if owner != role => {
            let text = format!("it belongs to {owner}, not to {role}; see `storage` in the configuration");
            Err(invalid_directory(path, &text))
        }
        (Some(role), Some(store)) => {
            let path = path.to_owned();
            Ok(Found::Old(OldDirectory { path, role, store, identity, _lock: lock, _old_lock: old_lock }))
        }
        _ => Err(invalid_directory(path, &format!("{IDENTITY} is not that of a server"))),
    }
}

fn take_old_lock(path: &Path) -> io::Result<Option<File>> {
    match OpenOptions::new().write(true).open(path.join(LOCK)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        file => {
            let file = file?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            Ok(Some(file))
        }
    }
}

impl OldDirectory {
    /// Converts an error of the system to one that names the directory.
    pub(super) fn trouble(&self, error: &io::Error) -> FsError {
        trouble(&self.path, error)
    }

    /// Makes version 0.1 refuse the directory.
    pub(super) fn mark(&mut self) -> Result<(), FsError> {
        if !self.identity.upgrading {
            self.identity.upgrading = true;
            let text =
                toml::to_string(&self.identity).map_err(|error| FsError::new(ErrorCode::Io, error.to_string()))?;
            let text = format!("# `pvfsd upgrade` has begun to convert this directory; run it again.\n{text}");
            File::open(&self.path).and_then(|dir| write_identity(&dir, &text)).map_err(|error| self.trouble(&error))?;
        }
        Ok(())
    }

    /// Removes the lock file of version 0.1, and writes the label.
    pub(super) fn finish(self, label: &Label) -> Result<(), FsError> {
        remove(&self.path.join(LOCK))
            .and_then(|()| write_label(&File::open(&self.path)?, label))
            .map_err(|error| self.trouble(&error))
    }
}

/// Removes a file, unless there is none.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_both_versions_are_told_apart_and_a_running_server_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("iod1");
        assert!(matches!(find(&path, Role::Iod(1)), Ok(Found::Nothing)));
        fs::create_dir(&path).unwrap();
        assert!(matches!(find(&path, Role::Iod(1)), Ok(Found::Nothing)));
        fs::write(path.join(LOCK), "").unwrap();
        assert!(find(&path, Role::Iod(1)).unwrap_err().detail.contains("no data directory"));
        let digits = format!("{:032x}", 77);
        let text = format!("format = 1\nrole = \"iod\"\nindex = 1\nstore = \"{digits}\"\n");
        fs::write(path.join(IDENTITY), &text).unwrap();
        assert!(find(&path, Role::Iod(0)).unwrap_err().detail.contains("belongs to iod 1"));
        let held = File::open(path.join(LOCK)).unwrap();
        flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(find(&path, Role::Iod(1)).unwrap_err().code, ErrorCode::Busy);
        drop(held);
        let Found::Old(mut old) = find(&path, Role::Iod(1)).unwrap() else { panic!("it is of version 0.1") };
        assert_eq!(old.store, StoreId(77));
        old.mark().unwrap();
        drop(old);
        let refused = read_label(&path).unwrap().unwrap().unwrap_err();
        assert!(refused.contains("pvfsd upgrade"), "{refused}");
        let Found::Old(old) = find(&path, Role::Iod(1)).unwrap() else { panic!("it is not finished") };
        old.finish(&Label::new(fs_proto::ClusterId(5), Role::Iod(1), StoreId(77))).unwrap();
        assert!(matches!(find(&path, Role::Iod(1)), Ok(Found::Current)));
        assert!(!path.join(LOCK).exists(), "the lock file is gone");
    }
}
