//! Replies of the servers.

use bmi::Addr;
use bstr::BString;
use serde::{Deserialize, Serialize};

use crate::attr::{Entry, Extent};
use crate::cache::{CacheCoverage, CacheState, ViewGrant, ViewRefusal};
use crate::error::FsError;
use crate::handle::{DatafileHandle, Handle};
use crate::identity::{Access, ClusterId, Grant, Identity, MAX_REVOKED, Name, Start, StoreId, TicketNews, one_address};
use crate::limits::{
    self, MAX_BACKUP_PAGE, MAX_CHECKED, MAX_DATAFILES, MAX_ENTRIES, MAX_LISTED, MAX_NAME, MAX_SERVERS, MAX_XATTR,
    MAX_XATTRS,
};
use crate::message::check::CheckRow;

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
    /// The manager accepts the store of an I/O server.
    Registered {
        /// The manager's cluster.
        cluster: ClusterId,
        /// The current start of the manager.
        start: Start,
        /// The start that is recorded for the I/O server; `None` if there is none.
        recorded: Option<Start>,
        /// What the server checks tickets with. `None` if the cluster has none.
        tickets: Option<Box<TicketNews>>,
    },
    /// A page of the metadata.
    Backup {
        /// Whole rows, one after the other, in the format of a backup file. The protocol does not
        /// look into them.
        #[serde(deserialize_with = "limits::bytes::<MAX_BACKUP_PAGE, _, _>")]
        rows: Vec<u8>,
        /// True if more pages follow.
        more: bool,
    },
    /// The I/O servers that have not carried out a change of a file's size, as many as fit into a
    /// message.
    Truncation(#[serde(deserialize_with = "limits::bounded::<MAX_SERVERS, _, _>")] Vec<PendingTruncate>),
    /// The value of an extended attribute.
    Xattr(#[serde(deserialize_with = "limits::bytes::<MAX_XATTR, _, _>")] BString),
    /// The names of the extended attributes of an object, sorted.
    Xattrs(#[serde(deserialize_with = "limits::bounded::<MAX_XATTRS, _, _>")] Vec<XattrName>),
    /// A page of a directory, with all that the manager knows about each object.
    Listing {
        /// The entries, sorted by name.
        #[serde(deserialize_with = "limits::bounded::<MAX_LISTED, _, _>")]
        entries: Vec<ListEntry>,
        /// True if more entries follow the last of these.
        more: bool,
    },
    /// A page of what the manager keeps.
    Check {
        /// The rows.
        #[serde(deserialize_with = "limits::bounded::<MAX_CHECKED, _, _>")]
        rows: Vec<CheckRow>,
        /// True if more pages follow.
        more: bool,
    },
    /// The object that was opened.
    Opened {
        /// What the manager knows about it.
        entry: Entry,
        /// What the client may do with it, whatever becomes of its mode, as long as it has it open.
        access: Access,
        /// The tickets for its datafiles. `None` if the cluster has none.
        grant: Option<Grant>,
    },
    /// Who was shut out, and when, in nanoseconds since 1970.
    Revoked(#[serde(deserialize_with = "limits::bounded::<MAX_REVOKED, _, _>")] Vec<(Name, u64)>),
}

/// A change of a datafile's size that was decided, and is not carried out yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingTruncate {
    /// The I/O server.
    pub iod: u32,
    /// The datafile there.
    pub datafile: DatafileHandle,
    /// The new size of the datafile, in bytes.
    pub size: u64,
    /// Why the server could not carry it out. It is tried again all the same. `None` if it has not
    /// answered yet.
    pub error: Option<FsError>,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// The name.
    #[serde(deserialize_with = "limits::bytes::<MAX_NAME, _, _>")]
    pub name: BString,
    /// The handle of the object with this name.
    pub handle: Handle,
}

/// An entry of a directory, with what has the name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListEntry {
    /// The name.
    #[serde(deserialize_with = "limits::bytes::<MAX_NAME, _, _>")]
    pub name: BString,
    /// The object with this name.
    pub entry: Entry,
}

/// The name of an extended attribute, with its namespace (`user.`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct XattrName(#[serde(deserialize_with = "limits::bytes::<MAX_NAME, _, _>")] pub BString);

/// Counts of the objects that the manager holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerStat {
    /// Number of files.
    pub files: u64,
    /// Number of directories, including the root.
    pub dirs: u64,
    /// Number of datafiles of removed files that must still be removed from their I/O servers.
    pub orphans: u64,
    /// Number of datafiles that the I/O servers have created in advance for new files.
    pub prepared: u64,
    /// Number of files without a name.
    pub nameless: u64,
}

/// Information about the cluster, as much of it as fits into one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// The I/O servers, in the order of their numbers in [`crate::Layout`]. The list begins at the
    /// requested server.
    #[serde(deserialize_with = "limits::bounded::<MAX_SERVERS, _, _>")]
    pub iods: Vec<IodInfo>,
    /// Total number of I/O servers.
    pub total: u32,
    /// Strip size of files for which the client requests no other, in bytes.
    pub strip_size: u64,
}

/// What the manager knows about an I/O server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IodInfo {
    /// The address that the server is known by. The server reports its other addresses in its
    /// [`Identity`].
    #[serde(deserialize_with = "one_address")]
    pub addr: Addr,
    /// The server's store; `None` if it has never registered one.
    pub store: Option<StoreId>,
    /// True if the manager knows the server to be up: it has registered and its last heartbeat is
    /// recent.
    pub up: bool,
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
    /// A page of the datafiles of the store.
    Datafiles {
        /// The handles, in the server's order.
        #[serde(deserialize_with = "limits::bounded::<MAX_DATAFILES, _, _>")]
        handles: Vec<DatafileHandle>,
        /// True if more follow the last of these.
        more: bool,
    },
    /// Size and modification time of a datafile.
    Held {
        /// Its size, in bytes.
        size: u64,
        /// Time of the last write or change of size, in nanoseconds since 1970 by the server's
        /// clock. 0 if there was none.
        mtime_ns: u64,
    },
    /// Datafiles were synced.
    Synced {
        /// The number of this start of the server, as in `Written`.
        start: u64,
    },
    /// A lock is held, or waited for.
    Locked {
        /// The number of locks that others must give back before. It is held if there is none.
        ahead: u32,
    },
    /// The service of the server, and the state of its cache.
    CacheState(Box<CacheState>),
    /// How much of a range of a datafile is in the server's cache.
    CacheCoverage {
        /// What is there; `None` if the server has no cache of its own.
        coverage: Option<CacheCoverage>,
        /// Where the part of the range begins that this reply does not cover, if there is one. It
        /// is behind the first byte of the range.
        next: Option<u64>,
    },
    /// A view of the range, or the reason why there is none.
    Shared(Result<ViewGrant, ViewRefusal>),
    /// What became of each of the first datafiles of a list, in its order, and why a change was not
    /// carried out. The others, for which there is no room, were not tried.
    Committed(
        #[serde(deserialize_with = "limits::bounded::<MAX_DATAFILES, _, _>")] Vec<(DatafileHandle, Option<FsError>)>,
    ),
    /// The sizes of the first datafiles of a list, in its order, and the times of their last
    /// changes. `None` if `Getsize` would be answered with an error. For the others there is no
    /// room.
    Sizes(#[serde(deserialize_with = "limits::bounded::<MAX_DATAFILES, _, _>")] Vec<Option<Extent>>),
    /// What `Seek` has found.
    Sought {
        /// The offset; `None` if there is no more data. Everything behind the end is a hole.
        at: Option<u64>,
        /// The datafile's size, in bytes.
        size: u64,
    },
    /// What `Scrub` has compared, as far as it got.
    Scrubbed {
        /// The number of datafiles, from the first one on, that are done.
        done: u32,
        /// Where to go on in the one behind them, in bytes.
        next: u64,
        /// Bytes that were read.
        read: u64,
        /// Of the datafiles that are done, those that were compared to the end.
        summed: u32,
        /// Bytes that are wrong or cannot be read, with their ranges in the datafile.
        #[serde(deserialize_with = "limits::bounded::<MAX_DATAFILES, _, _>")]
        damage: Vec<(DatafileHandle, FsError)>,
    },
}

/// The size and use of an I/O server's store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IodStat {
    /// Size of the store, in bytes.
    pub capacity: u64,
    /// Free bytes in the store.
    pub free: u64,
    /// Number of datafiles in the store, with those that were created in advance.
    pub datafiles: u64,
    /// A number for the disk that the store is on. Stores on one disk have the same number, and
    /// report the same capacity.
    pub disk: u64,
}
