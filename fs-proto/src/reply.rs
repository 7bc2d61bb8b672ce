//! Replies of the servers.

use bmi_core::Addr;
use serde::{Deserialize, Deserializer, Serialize};

use crate::attr::Entry;
use crate::error::FsError;
use crate::handle::Handle;
use crate::identity::{Identity, bounded_addresses};
use crate::limits::{self, MAX_ENTRIES, MAX_NAME, MAX_SERVERS};

/// A reply: an answer, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The answer.
    pub result: Result<ReplyBody, FsError>,
}

impl From<Result<ReplyBody, FsError>> for Reply {
    fn from(result: Result<ReplyBody, FsError>) -> Reply {
        Reply { result }
    }
}

/// An answer, by kind of server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplyBody {
    /// Answer of the manager.
    Manager(ManagerReply),
    /// Answer of an I/O server.
    Iod(IodReply),
    /// Answer of either kind of server: its identity.
    Identity(Identity),
}

impl From<ManagerReply> for ReplyBody {
    fn from(reply: ManagerReply) -> ReplyBody {
        ReplyBody::Manager(reply)
    }
}

impl From<IodReply> for ReplyBody {
    fn from(reply: IodReply) -> ReplyBody {
        ReplyBody::Iod(reply)
    }
}

impl From<Identity> for ReplyBody {
    fn from(identity: Identity) -> ReplyBody {
        ReplyBody::Identity(identity)
    }
}

/// Answers of the manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManagerReply {
    /// The request is done.
    Done,
    /// The object that was found, created or changed.
    Entry(Entry),
    /// A page of a directory.
    Entries {
        /// The entries, sorted by name.
        #[serde(deserialize_with = "limits::bounded::<MAX_ENTRIES, _, _>")]
        entries: Vec<DirEntry>,
        /// True if more entries follow the last of these.
        more: bool,
    },
    /// Counts of the objects that the manager holds.
    Stat(ManagerStat),
    /// The cluster.
    Cluster(ClusterInfo),
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// The name.
    #[serde(deserialize_with = "limits::text::<MAX_NAME, _>")]
    pub name: String,
    /// The handle of the file or directory with this name.
    pub handle: Handle,
}

/// Counts of the objects that the manager holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerStat {
    /// Number of files.
    pub files: u64,
    /// Number of directories, including the root.
    pub dirs: u64,
    /// Number of datafiles of removed files that must still be removed from their I/O servers.
    pub orphans: u64,
}

/// Information about the cluster, as much of it as fits into one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// The addresses that the I/O servers are known by, in the order of their numbers in
    /// [`crate::Layout`]. The list begins at the requested server. Each server reports its other
    /// addresses on request ([`crate::RequestBody::Identify`]).
    #[serde(deserialize_with = "addresses")]
    pub iods: Vec<Addr>,
    /// Total number of I/O servers.
    pub total: u32,
    /// Strip size of files for which the client requests no other, in bytes.
    pub strip_size: u64,
}

/// Deserializes at most [`MAX_SERVERS`] addresses.
fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Addr>, D::Error> {
    bounded_addresses::<MAX_SERVERS, D>(deserializer)
}

/// Answers of an I/O server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IodReply {
    /// The request is done.
    Done,
    /// Bytes were written, or the datafile's size was changed.
    Written {
        /// Number of bytes written.
        len: u64,
        /// The datafile's size after the request, in bytes.
        size: u64,
        /// The number of this start of the server. Bytes that were written under another start, and
        /// not synced then, may be lost.
        start: u64,
    },
    /// Bytes were read.
    Read {
        /// Number of bytes read: as many as were requested.
        len: u64,
        /// The datafile's size, in bytes. The bytes read beyond it are zeros.
        size: u64,
    },
    /// The size and use of the server's store.
    Stat(IodStat),
    /// Size and modification time of a datafile.
    Held {
        /// Its size, in bytes.
        size: u64,
        /// Time of the last write or change of size, in nanoseconds since 1970 by the server's
        /// clock. 0 if there was none.
        mtime_ns: u64,
    },
}

/// The size and use of an I/O server's store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IodStat {
    /// Size of the store, in bytes.
    pub capacity: u64,
    /// Free bytes in the store.
    pub free: u64,
    /// Number of datafiles in the store.
    pub datafiles: u64,
}
