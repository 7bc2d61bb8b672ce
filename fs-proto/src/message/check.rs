//! The check of a whole cluster: what the manager tells of its tables, and what a repair changes.
//!
//! **Why rows.** Much of what can be wrong shows only if all rows are compared: how many names a
//! file has, and who owns a datafile. That takes memory and time, which belong to the one who
//! checks. So the manager only tells its rows, all as of one moment.

use bstr::BString;
use serde::{Deserialize, Serialize};

use crate::attr::Content;
use crate::distribution::Layout;
use crate::handle::{DatafileHandle, DirHandle, Kind};
use crate::limits::{self, MAX_NAME};

/// Where an object is, and how often: what must agree with the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ties {
    /// The directory that it is in; 0 for a file without a name. Of a file with several names, that
    /// of one of them, as it was.
    pub parent: u64,
    /// Of a directory, the number of names in it.
    pub size: u64,
    /// The number of its names; of a directory, two and one for each directory in it.
    pub nlink: u32,
}

/// A row of what the manager keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckRow {
    /// The first row.
    Begin {
        /// Handles from this one on were not assigned.
        next: u64,
        /// The number of repairs so far.
        repairs: u64,
        /// The manager's count of files and symbolic links with a name.
        files: u64,
        /// The manager's count of directories.
        dirs: u64,
    },
    /// A file, directory or symbolic link.
    Object {
        /// Its number.
        raw: u64,
        /// What it is.
        kind: Kind,
        /// Where it is.
        ties: Ties,
        /// The location of a file's bytes.
        layout: Option<Layout>,
        /// What is known about the content of a file.
        content: Content,
    },
    /// An object that cannot be read.
    Unreadable {
        /// Its number.
        raw: u64,
    },
    /// A name.
    Name {
        /// The number of its directory.
        dir: u64,
        /// The name.
        #[serde(deserialize_with = "limits::bytes::<MAX_NAME, _, _>")]
        name: BString,
        /// The number of what has it.
        raw: u64,
        /// What that is; `None` if it is stored as something that there is not.
        kind: Option<Kind>,
    },
    /// A file that is without a name on purpose: new, or open.
    Nameless {
        /// Its number.
        raw: u64,
    },
    /// Datafiles that belong to no file on purpose: created in advance, or about to be removed.
    Spare {
        /// The I/O server.
        iod: u32,
        /// The first one.
        first: u64,
        /// Their number.
        count: u32,
    },
}

/// A repair of one thing. It is made only if the manager finds it damaged in the same way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fix {
    /// Of a name: it goes if it leads to nothing, or is not where the directory that has it is. If
    /// its own directory is not there, what has it gets a name in `lost+found`. If it is stored
    /// with another kind, that is corrected.
    Name {
        /// The number of its directory.
        dir: u64,
        /// The name.
        #[serde(deserialize_with = "limits::bytes::<MAX_NAME, _, _>")]
        name: BString,
    },
    /// An object without a name gets one in `lost+found`.
    Nameless {
        /// Its number.
        raw: u64,
        /// Where it was found.
        was: Ties,
    },
    /// What does not agree with the names is set right.
    Ties {
        /// The number of the object.
        raw: u64,
        /// Where it was found.
        was: Ties,
        /// Where it is.
        now: Ties,
    },
    /// A datafile that belongs to no file becomes a file in `lost+found`, with its bytes.
    Datafile {
        /// The I/O server.
        iod: u32,
        /// The datafile.
        datafile: DatafileHandle,
    },
    /// The counts of files and of directories are corrected by so much.
    Counts {
        /// More files.
        files: i64,
        /// More directories.
        dirs: i64,
    },
}

impl Fix {
    /// Returns the name in `lost+found` of an object without another one.
    pub fn name_of(raw: u64) -> BString {
        format!("{raw:016x}").into()
    }

    /// Returns the name in `lost+found` of the file that a datafile becomes.
    pub fn name_of_datafile(iod: u32, datafile: DatafileHandle) -> BString {
        format!("iod{iod}-{:016x}", datafile.0).into()
    }
}

/// A request for a repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repair {
    /// What is repaired.
    pub fix: Fix,
    /// The number of repairs so far, as in [`CheckRow::Begin`] and one more for each that was made
    /// since. Otherwise somebody else repairs too, and the answer is `Stale`.
    pub before: u64,
    /// The directory `lost+found`.
    pub lost: DirHandle,
}
