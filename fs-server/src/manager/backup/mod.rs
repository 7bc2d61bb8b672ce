//! Backups of the metadata: `pvfsd backup` and `pvfsd restore`.
//!
//! **Why.** The manager's database is the only place that knows which datafiles make up a file. A
//! copy of the database file of a running manager is of no use: it is of several moments. So the
//! manager itself returns its metadata as of one moment, in pages, while changes go on
//! (`snapshot`). A copy of the whole directory of a *stopped* manager is a backup too.
//!
//! **What is in it.** Cluster and store, counters, I/O servers, objects, names, and the datafiles
//! that wait to be removed. Pools, discards and remembered replies are left out. A manager that was
//! restored does not know which datafiles of its pools were used after the backup, and it must
//! answer no change that it has forgotten.
//!
//! **Afterwards.** A restored manager is older than what the I/O servers have seen. It refuses to
//! start until `pvfsd manager --restored` has asked all of them (`manager/fleet/roll_call.rs`).
//!
//! | module | contents |
//! |---|---|
//! | `file` | the format of the file: header, rows, trailer |
//! | `row` | the rows |
//! | `snapshot` | the metadata as of one moment, in pages of rows |
//! | `import` | a database from rows |
//! | `pull` | requests the pages and writes the file |
//! | `restore` | makes a manager's directory from the file |

mod file;
#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub(crate) mod fuzz;
mod import;
mod pull;
mod restore;
mod row;
mod snapshot;

pub(crate) use pull::backup;
pub(crate) use restore::restore;
pub(super) use snapshot::{Snapshots, What};

use std::fmt;

use fs_proto::ClusterId;

/// What a backup contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) cluster: ClusterId,
    /// The manager's start that the backup was made from.
    pub(crate) epoch: u64,
    /// Number of files and directories.
    pub(crate) objects: u64,
    /// Size of the file, in bytes.
    pub(crate) bytes: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { cluster, epoch, objects, bytes } = self;
        write!(f, "cluster {cluster}, start {epoch} of its manager: {objects} objects, {bytes} bytes")
    }
}
