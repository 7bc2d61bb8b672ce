//! The directory of a server's data: who may use it ([`Directory`]), and how names in it are made
//! durable.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fs_proto::{ErrorCode, FsError, Role};

use super::identity::{IDENTITY, Label, NEW, read_label, write_label};
use super::lock::DirLock;
use crate::store::disk::SystemDir;
use crate::store::sys::trouble;

/// Names that are ignored when checking for an empty directory: what a new file system has in its
/// root, and the file for the next label.
const NOTHING: [&str; 2] = ["lost+found", NEW];

/// A data directory that this process may use. The lock lasts until it is dropped, or longer
/// ([`Directory::lock`]).
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    label: Option<Label>,
    lock: Option<Arc<DirLock>>,
    /// True if it was created here and has no label yet.
    made: bool,
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.made {
            // Only an empty directory can be removed.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

impl Directory {
    /// Opens a directory for a server, and locks it. A directory that is empty or does not exist
    /// has no label, and is not changed.
    ///
    /// # Errors
    /// `Busy` if another server uses it; `Invalid` if it is not this server's; `Io`, `Permission`.
    /// Each names the directory.
    pub(crate) fn open(path: &Path, role: Role) -> Result<Directory, FsError> {
        let fail = |error: io::Error| trouble(path, &error);
        if !path.try_exists().map_err(fail)? {
            return Ok(Directory { path: path.to_owned(), label: None, lock: None, made: false });
        }
        let lock = Arc::new(DirLock::take(path).map_err(fail)?);
        let label = match SystemDir::open(path).and_then(|dir| read_label(&dir)).map_err(fail)? {
            Some(label) => Some(label.map_err(|why| refusal(path, why))?),
            None => {
                refuse_contents(path)?;
                None
            }
        };
        if let Some(label) = &label
            && label.role != role
        {
            let (is, not) = (label.role, role);
            let text = format!(
                "it belongs to {is} (cluster {}), not to {not}; see `storage` in the configuration",
                label.cluster
            );
            return Err(refusal(path, text));
        }
        Ok(Directory { path: path.to_owned(), label, lock: Some(lock), made: false })
    }

    /// Returns the label; `None` if the directory is empty or does not exist.
    pub(crate) fn label(&self) -> Option<&Label> {
        self.label.as_ref()
    }

    /// Returns true if the directory exists.
    pub(crate) fn exists(&self) -> bool {
        self.lock.is_some()
    }

    /// Returns the lock on the directory, if it exists. It lasts until the last handle is dropped.
    pub(crate) fn lock(&self) -> Option<Arc<DirLock>> {
        self.lock.clone()
    }

    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the directory if it does not exist, and locks it. A directory that was created and
    /// gets no label is removed again when this is dropped.
    ///
    /// # Errors
    /// As [`Directory::open`], and `NoSpace`.
    pub(crate) fn claim(&mut self) -> Result<(), FsError> {
        let fail = |error: io::Error| trouble(&self.path, &error);
        if self.lock.is_none() {
            durable_dir(&self.path).map_err(fail)?;
            self.made = true;
            self.lock = Some(Arc::new(DirLock::take(&self.path).map_err(fail)?));
            refuse_contents(&self.path)?;
        }
        Ok(())
    }

    /// Claims the directory, and writes its first label.
    ///
    /// # Errors
    /// As [`Directory::claim`].
    pub(crate) fn establish(&mut self, label: &Label) -> Result<(), FsError> {
        self.claim()?;
        let written = SystemDir::open(&self.path).and_then(|dir| write_label(&dir, label));
        written.map_err(|error| trouble(&self.path, &error))?;
        (self.label, self.made) = (Some(*label), false);
        Ok(())
    }
}

/// Creates an error for a directory that cannot be used.
fn refusal(dir: &Path, why: impl std::fmt::Display) -> FsError {
    FsError::new(ErrorCode::Invalid, format!("data directory {}: {why}", dir.display()))
}

/// Refuses a directory without a label that is not empty.
fn refuse_contents(path: &Path) -> Result<(), FsError> {
    let others = others(path).map_err(|error| trouble(path, &error))?;
    let Some(first) = others.first() else { return Ok(()) };
    let more = if others.len() > 1 { " and more" } else { "" };
    Err(refusal(path, format!("it has {first}{more} in it, but no {IDENTITY}: it is no data directory of a server")))
}

/// Returns the names in a directory, without those that do not count.
pub(crate) fn others(dir: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<io::Result<Vec<String>>>()?;
    names.retain(|name| !NOTHING.contains(&name.as_str()));
    names.sort();
    Ok(names)
}

/// Creates a directory and its missing parents, durably. Data that is synced in it later must not
/// be lost because the directory's name never reached the disk.
pub(in crate::store) fn durable_dir(dir: &Path) -> io::Result<()> {
    durable_dir_by(dir, |above| File::open(above)?.sync_all())
}

/// Implements [`durable_dir`]. `sync` makes the names in a directory durable.
pub(super) fn durable_dir_by(dir: &Path, sync: impl FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    let dir = std::path::absolute(dir)?;
    let missing = dir.ancestors().take_while(|dir| !dir.exists()).count();
    fs::create_dir_all(&dir)?;
    // Always sync at least the parent. The directory may have been created by a process that was
    // killed before it synced.
    dir.ancestors().skip(1).take(missing.max(1)).try_for_each(sync)
}
