//! Makes a manager's directory from a backup.

use std::path::Path;

use fs_proto::{FsError, Role};

use super::Summary;
use super::file::{Header, Reader};
use super::import::Import;
use crate::manager::invalid_directory;
use crate::store::{DATABASE, Directory, Label, MetaStore};

/// Makes the directory of a manager from a backup. The directory must be empty or missing.
///
/// The backup is read twice: first to check all of it, then to store it. The label comes last, so a
/// directory that was not completed is not used.
///
/// # Errors
/// `Invalid` if the directory is in use or the backup is damaged; `Busy`, `Io`, `NoSpace`,
/// `Permission`.
pub(crate) fn restore(path: &Path, dir: &Path) -> Result<Summary, FsError> {
    let mut directory = Directory::open(dir, Role::Manager)?;
    if let Some(label) = directory.label() {
        let whose = format!("it is that of the manager of cluster {}", label.cluster);
        return Err(invalid_directory(
            dir,
            &format!("{whose}; a backup is restored into an empty directory: move this one away"),
        ));
    }
    check(path)?;
    directory.claim()?;
    let database = dir.join(DATABASE);
    let stored = store(path, &database);
    if stored.is_err() {
        // The directory is empty again for the next attempt.
        let _ = std::fs::remove_file(&database);
    }
    let (header, summary) = stored?;
    directory.establish(&Label::new(header.cluster, Role::Manager, header.store))?;
    Ok(summary)
}

/// Reads a whole backup.
fn check(path: &Path) -> Result<(), FsError> {
    let (mut reader, _) = Reader::open(path)?;
    while reader.next()?.is_some() {}
    Ok(())
}

fn store(path: &Path, database: &Path) -> Result<(Header, Summary), FsError> {
    let (mut reader, header) = Reader::open(path)?;
    let store = MetaStore::open(database)?;
    let mut import = Import::begin(&store, &header)?;
    while let Some(row) = reader.next()? {
        if !import.add(&row)? {
            return Err(reader.damaged());
        }
    }
    let objects = import.finish(&store)?.ok_or_else(|| reader.damaged())?;
    let Header { cluster, epoch, .. } = header;
    Ok((header, Summary { cluster, epoch, objects, bytes: reader.bytes() }))
}
