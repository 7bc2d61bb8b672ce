//! The directory of a manager: a new one, an existing one, and one that was restored from a backup.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use fs_proto::{Caller, ErrorCode, FsError, StoreId};

use crate::host::{random_number, wall_clock};
use crate::manager::{Manager, invalid_directory};
use crate::store::{DATABASE, Directory, Label, MetaStore};

/// Opens the directory of a manager, which must be formatted.
pub(super) fn open_manager_directory(dir: &Path) -> Result<Directory, FsError> {
    let directory = Directory::open(dir, fs_proto::Role::Manager)?;
    let gone = |text: String| Err(invalid_directory(dir, &text));
    if directory.label().is_none() {
        let what = if directory.exists() { "it is empty" } else { "it does not exist" };
        return gone(format!("{what}: is that disk mounted? Only a new cluster begins with `pvfsd format`"));
    }
    if std::fs::metadata(dir.join(DATABASE)).map_or(0, |file| file.len()) == 0 {
        return gone(format!("{DATABASE} is gone: is that disk mounted? `pvfsd restore` brings back a backup"));
    }
    Ok(directory)
}

/// Formats the manager's directory of a new cluster. Returns the cluster.
pub(crate) fn format_manager_directory(dir: &Path) -> Result<fs_proto::ClusterId, FsError> {
    let mut directory = Directory::open(dir, fs_proto::Role::Manager)?;
    if let Some(label) = directory.label() {
        let text = format!("data directory {}: it is that of the manager of cluster {}", dir.display(), label.cluster);
        return Err(FsError::new(ErrorCode::Invalid, text));
    }
    let cluster = fs_proto::ClusterId(random_number()?);
    let label = Label::new(cluster, fs_proto::Role::Manager, StoreId(random_number()?));
    // The label comes last: without it the directory is not used.
    directory.claim()?;
    let store = MetaStore::open(dir.join(DATABASE))?;
    crate::manager::format(&store, cluster, label.store, &Caller::of_process(), wall_clock())?;
    drop(store);
    directory.establish(&label)?;
    Ok(cluster)
}

/// Compares restored metadata with the datafiles of the I/O servers, and writes the report. A
/// failure is logged: the manager serves all the same.
pub(super) async fn take_inventory(manager: &Manager, dir: &Path, progress: fn(&str)) {
    let path = dir.join(format!("restored-{}.txt", manager.identity().start.epoch));
    progress(&format!("comparing the metadata with the datafiles, into {}", path.display()));
    let inventory = async {
        let file = File::create(&path).map_err(|error| FsError::new(ErrorCode::Io, error.to_string()))?;
        let mut out = BufWriter::new(file);
        let inventory = manager.take_inventory(&mut out).await?;
        out.get_ref().sync_all().map_err(|error| FsError::new(ErrorCode::Io, error.to_string()))?;
        Ok::<_, FsError>(inventory)
    };
    match inventory.await {
        Ok(inventory) => {
            tracing::info!(missing = inventory.missing, unowned = inventory.unowned, report = %path.display(), "compared");
            progress(&format!("compared: {inventory}; see {}", path.display()));
        }
        Err(error) => {
            tracing::error!(%error, report = %path.display(), "the metadata was not compared with the datafiles")
        }
    }
}
