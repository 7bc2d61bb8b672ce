//! Records the owner of a data directory in a file, and locks the directory against a second
//! server.
//!
//! **Why.** Bytes that were never written are zeros. So a server that is started with the wrong
//! directory looks like one that works, and answers zeros. The wrong directory could be another
//! server's, or the empty mount point of a disk that is not mounted. If two servers used one
//! directory, each would keep what the other removed.
//!
//! **Invariants**
//! 1. A directory without an identity is accepted only if it is empty.
//! 2. A directory with an identity is accepted only for the role in it, by one server at a time.
//! 3. A store's number is drawn when its directory is first used, and never changes. The manager
//!    knows the number of each I/O server's store (see [`crate::manager`]), and so notices if a
//!    directory was exchanged for another.
//!
//! **Layout**
//!
//! ```text
//!   <dir>/lock            empty; locked by the server that uses the directory
//!   <dir>/identity.toml   format = 1, role = "iod", index = 2, store = "9f0c…" (32 hexadecimal digits)
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use fs_proto::{ErrorCode, FsError, Role};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::durable_dir;

/// The format of data directories.
const FORMAT: u32 = 1;
const IDENTITY: &str = "identity.toml";
const LOCK: &str = "lock";
/// Names that are ignored when checking for an empty directory: what a new file system has in its
/// root, and the files of this module.
const NOTHING: [&str; 4] = ["lost+found", LOCK, IDENTITY, "identity.new"];

/// The contents of the identity file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Identity {
    format: u32,
    role: String,
    /// The number of the I/O server; absent for the manager.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u32>,
    store: String,
}

impl Identity {
    fn new(role: Role, store: u128) -> Identity {
        let (role, index) = match role {
            Role::Manager => ("manager", None),
            Role::Iod(index) => ("iod", Some(index)),
        };
        Identity { format: FORMAT, role: role.to_owned(), index, store: format!("{store:032x}") }
    }

    fn whose(&self) -> String {
        match self.index {
            None => format!("the {}", self.role),
            Some(index) => format!("{} {index}", self.role),
        }
    }
}

/// A data directory that this server has claimed. The claim lasts until it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    /// The number of the store.
    pub(crate) store: u128,
    /// True if the directory was empty when it was claimed.
    pub(crate) fresh: bool,
    _lock: File,
}

impl Claim {
    /// Claims a directory for a server, and creates it if it does not exist. With `adopt`, the
    /// directory is accepted even if it belongs to another server, or has files but no identity.
    /// `number` is drawn at random, for a store that has none yet.
    ///
    /// # Errors
    /// `Busy` if another server uses it; `Invalid` if it is not this server's; `Io`, `Permission`,
    /// `NoSpace`. Each names the directory.
    pub(crate) fn take(dir: &Path, role: Role, adopt: bool, number: u128) -> Result<Claim, FsError> {
        let fail = |error: io::Error| {
            let code = match error.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorCode::Permission,
                io::ErrorKind::StorageFull => ErrorCode::NoSpace,
                io::ErrorKind::WouldBlock => ErrorCode::Busy,
                _ => ErrorCode::Io,
            };
            let text = match code {
                ErrorCode::Busy => "another server is at work on it".to_owned(),
                _ => error.to_string(),
            };
            FsError::new(code, format!("data directory {}: {text}", dir.display()))
        };
        let refuse =
            |why: String| Err(FsError::new(ErrorCode::Invalid, format!("data directory {}: {why}", dir.display())));
        let wanted = Identity::new(role, number);
        durable_dir(dir).map_err(fail)?;
        let open = |name| OpenOptions::new().write(true).create(true).truncate(false).open(dir.join(name));
        let lock = open(LOCK).map_err(fail)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| fail(error.into()))?;
        let found = read(dir).map_err(fail)?;
        match found {
            None => {
                let others = others(dir).map_err(fail)?;
                if let Some(first) = others.first()
                    && !adopt
                {
                    let more = if others.len() > 1 { " and more" } else { "" };
                    return refuse(format!(
                        "it has {first}{more} in it, but no {IDENTITY}; --adopt takes it all the same"
                    ));
                }
                write(dir, &wanted).map_err(fail)?;
                Ok(Claim { store: number, fresh: others.is_empty(), _lock: lock })
            }
            Some(Err(why)) => refuse(format!("{IDENTITY}: {why}")),
            Some(Ok(found)) => {
                let Ok(store) = u128::from_str_radix(&found.store, 16) else {
                    return refuse(format!("{IDENTITY}: {:?} is no number of a store", found.store));
                };
                if found.format != FORMAT {
                    return refuse(format!("it is of format {}; format {FORMAT} is known here", found.format));
                }
                if (&found.role, found.index) != (&wanted.role, wanted.index) {
                    if !adopt {
                        let (is, not) = (found.whose(), wanted.whose());
                        return refuse(format!("it belongs to {is}, not to {not}; --adopt takes it all the same"));
                    }
                    write(dir, &Identity::new(role, store)).map_err(fail)?;
                }
                Ok(Claim { store, fresh: false, _lock: lock })
            }
        }
    }
}

fn read(dir: &Path) -> io::Result<Option<Result<Identity, String>>> {
    match fs::read_to_string(dir.join(IDENTITY)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(text) => Ok(Some(toml::from_str(&text).map_err(|error| error.message().replace('\n', " ")))),
    }
}

/// Writes the identity atomically and durably.
fn write(dir: &Path, identity: &Identity) -> io::Result<()> {
    let text = toml::to_string(identity).map_err(io::Error::other)?;
    let text = format!(
        "# Which store this directory is. Written by pvfsd; belongs to this directory and to no copy of it.\n{text}"
    );
    let new = dir.join("identity.new");
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, dir.join(IDENTITY))?;
    File::open(dir)?.sync_all()
}

/// Returns the names in a directory, without those of the identity and of a new file system.
fn others(dir: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<io::Result<Vec<String>>>()?;
    names.retain(|name| !NOTHING.contains(&name.as_str()));
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(dir: &Path, role: Role) -> FsError {
        Claim::take(dir, role, false, 9).unwrap_err()
    }

    #[test]
    fn a_directory_is_one_servers() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("made/here");
        let claim = Claim::take(&dir, Role::Iod(2), false, 7).unwrap();
        assert!(claim.fresh && claim.store == 7);
        let busy = refusal(&dir, Role::Iod(2));
        assert!(busy.code == ErrorCode::Busy && busy.detail.contains("another server"), "{busy}");
        drop(claim);
        let again = Claim::take(&dir, Role::Iod(2), false, 8).unwrap();
        assert!(!again.fresh && again.store == 7, "the number stays");
        drop(again);
        for (role, name) in [(Role::Iod(1), "iod 1"), (Role::Manager, "the manager")] {
            let other = refusal(&dir, role);
            assert!(
                other.code == ErrorCode::Invalid && other.detail.contains("iod 2") && other.detail.contains(name),
                "{other}"
            );
        }
        assert_eq!(Claim::take(&dir, Role::Iod(1), true, 8).unwrap().store, 7, "adopted");
        assert!(refusal(&dir, Role::Iod(2)).detail.contains("iod 1"));
    }

    #[test]
    fn a_directory_of_other_things_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        drop(Claim::take(dir.path(), Role::Manager, false, 1).unwrap());
        fs::remove_file(dir.path().join(IDENTITY)).unwrap();
        fs::write(dir.path().join("metadata.redb"), "").unwrap();
        let error = refusal(dir.path(), Role::Manager);
        assert!(error.detail.contains("metadata.redb") && error.detail.contains("--adopt"), "{error}");
        let adopted = Claim::take(dir.path(), Role::Manager, true, 3).unwrap();
        assert!(!adopted.fresh && adopted.store == 3);
    }

    #[test]
    fn an_identity_that_cannot_be_read_is_no_identity_to_overwrite() {
        let dir = tempfile::tempdir().unwrap();
        for (text, why) in [
            ("", "missing field"),
            ("nonsense", "identity.toml"),
            ("format = 2\nrole = \"iod\"\nindex = 0\nstore = \"1\"\n", "format 2"),
            ("format = 1\nrole = \"iod\"\nindex = 0\nstore = \"x\"\n", "no number"),
        ] {
            fs::write(dir.path().join(IDENTITY), text).unwrap();
            let error = Claim::take(dir.path(), Role::Iod(0), true, 1).unwrap_err();
            assert!(error.detail.contains(why) && !error.detail.contains('\n'), "{error}");
            assert_eq!(fs::read_to_string(dir.path().join(IDENTITY)).unwrap(), text);
        }
    }
}
