//! Converts the manager's directory.

use std::path::Path;

use fs_proto::{ClusterId, FsError, Role};

use super::directory::OldDirectory;
use super::layouts::Layouts;
use crate::embedded::{DATABASE, random_number};
use crate::manager::{self, invalid_directory};
use crate::store::{Label, MetaStore};

/// Opens the database, which must exist.
fn open(old: &OldDirectory) -> Result<MetaStore, FsError> {
    let path = old.path.join(DATABASE);
    if !path.try_exists().map_err(|error| old.trouble(&error))? {
        return Err(invalid_directory(&old.path, &format!("{DATABASE} is gone: is that disk mounted?")));
    }
    MetaStore::open(path)
}

/// Returns the number of objects and the layouts. Changes nothing.
pub(super) fn inspect(old: &OldDirectory) -> Result<(u64, Layouts), FsError> {
    let store = open(old)?;
    let (objects, datafiles) = manager::layouts(&store)?;
    Ok((objects, Layouts::new(ClusterId(0), datafiles)))
}

/// Converts the directory, and writes the layouts to `file`. Returns the number of objects and the
/// layouts.
pub(super) fn convert(mut old: OldDirectory, file: &Path) -> Result<(u64, Layouts), FsError> {
    let store = open(&old)?;
    old.mark()?;
    let cluster = manager::convert(&store, ClusterId(random_number()?), old.store)?;
    let (objects, datafiles) = manager::layouts(&store)?;
    drop(store);
    let layouts = Layouts::new(cluster, datafiles);
    layouts.write(file).map_err(|error| old.trouble(&error))?;
    let label = Label::new(cluster, Role::Manager, old.store);
    old.finish(&label)?;
    Ok((objects, layouts))
}
