//! What servers answer.

use bmi_core::Addr;
use serde::{Deserialize, Deserializer, Serialize};

use crate::attr::Entry;
use crate::error::FsError;
use crate::handle::Handle;
use crate::identity::{Identity, bounded_addresses};
use crate::limits::{self, MAX_ENTRIES, MAX_NAME, MAX_SERVERS};

/// A reply: the answer, or why there is none.
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

/// An answer, by which kind of server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplyBody {
    /// By the manager.
    Manager(ManagerReply),
    /// By an I/O server.
    Iod(IodReply),
    /// By either: who it is.
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
    /// It is done.
    Done,
    /// What is there, or was made, or was changed.
    Entry(Entry),
    /// A page of a directory.
    Entries {
        /// The entries, in the order of names.
        #[serde(deserialize_with = "limits::bounded::<MAX_ENTRIES, _, _>")]
        entries: Vec<DirEntry>,
        /// Whether there are more after the last of these.
        more: bool,
    },
    /// What the manager holds.
    Stat(ManagerStat),
    /// The cluster.
    Cluster(ClusterInfo),
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// The name.
    #[serde(deserialize_with = "limits::text::<MAX_NAME, _>")]
    pub name: String,
    /// What it leads to.
    pub handle: Handle,
}

/// What the manager holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerStat {
    /// Files.
    pub files: u64,
    /// Directories, the root included.
    pub dirs: u64,
    /// Datafiles of removed files that still have to be removed from their I/O servers.
    pub orphans: u64,
}

/// The cluster, as far as one message has room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// The addresses that the I/O servers are known by, from the one asked for on, in the order
    /// that [`crate::Layout`] counts them. Where else a server listens it says itself
    /// ([`crate::RequestBody::Identify`]).
    #[serde(deserialize_with = "addresses")]
    pub iods: Vec<Addr>,
    /// How many I/O servers there are in all.
    pub total: u32,
    /// Strip size of files that ask for no other, in bytes.
    pub strip_size: u64,
}

/// Deserializes at most [`MAX_SERVERS`] addresses.
fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Addr>, D::Error> {
    bounded_addresses::<MAX_SERVERS, D>(deserializer)
}

/// Answers of an I/O server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IodReply {
    /// It is done.
    Done,
    /// Bytes were written, or the datafile's size was changed.
    Written {
        /// How many bytes were written.
        len: u64,
        /// The datafile's size now, in bytes.
        size: u64,
        /// Which start of the server this is: what was written before another one, and not synced
        /// then, may be lost.
        start: u64,
    },
    /// Bytes were read.
    Read {
        /// How many bytes: as many as were asked for.
        len: u64,
        /// The datafile's size, in bytes; what was read beyond it is zeros.
        size: u64,
    },
    /// What the server holds.
    Stat(IodStat),
    /// What there is of a datafile.
    Held {
        /// Its size, in bytes.
        size: u64,
        /// When it was last written to or its size changed, in nanoseconds since 1970 by the
        /// server's clock; 0 if never.
        mtime_ns: u64,
    },
}

/// What an I/O server holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IodStat {
    /// Size of the store, in bytes.
    pub capacity: u64,
    /// Bytes of it that are free.
    pub free: u64,
    /// Datafiles in it.
    pub datafiles: u64,
}
