//! Requests of the clients.

use serde::{Deserialize, Serialize};

use crate::attr::SetAttr;
use crate::handle::{DatafileHandle, DirHandle, Handle};
use crate::limits::{self, MAX_NAME, MAX_PATH};
use crate::region::Regions;

/// The unique id of a request: the client and the client's own sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RequestId {
    /// A number that no other client has. Each client instance draws it at random.
    pub client: u128,
    /// The client's count of requests, from 1. A request that is sent again keeps its number.
    pub seq: u64,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Its id.
    pub id: RequestId,
    /// The client has the replies to all requests with a smaller `seq` and will not resend those.
    /// The server may forget them.
    pub unanswered: u64,
    /// How long the server may work on the request, in milliseconds from its arrival. The server
    /// has a limit of its own.
    pub timeout_ms: u32,
    /// The content of the request.
    pub body: RequestBody,
}

/// The content of a request, by kind of server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestBody {
    /// A request to the manager.
    Manager(ManagerRequest),
    /// A request to an I/O server.
    Iod(IodRequest),
    /// A request to either kind of server for its identity. Answered by
    /// [`crate::ReplyBody::Identity`].
    Identify,
}

impl From<ManagerRequest> for RequestBody {
    fn from(request: ManagerRequest) -> RequestBody {
        RequestBody::Manager(request)
    }
}

impl From<IodRequest> for RequestBody {
    fn from(request: IodRequest) -> RequestBody {
        RequestBody::Iod(request)
    }
}

/// A place in the namespace: a path relative to a directory. Components are separated by `/`.
/// Leading, trailing and doubled slashes are ignored. `.` and `..` are rejected; clients resolve
/// them. The empty path is the directory itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The directory where the path begins.
    pub dir: DirHandle,
    /// The path, at most [`MAX_PATH`] bytes long. Each component has at most [`MAX_NAME`] bytes.
    #[serde(deserialize_with = "limits::text::<MAX_PATH, _>")]
    pub path: String,
}

impl Place {
    /// Creates a place with `path` relative to the root.
    pub fn root(path: impl Into<String>) -> Place {
        Place { dir: DirHandle::ROOT, path: path.into() }
    }

    /// Creates a place with `path` relative to `dir`.
    pub fn at(dir: DirHandle, path: impl Into<String>) -> Place {
        Place { dir, path: path.into() }
    }
}

/// The kinds of object that a removal may remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RemoveKind {
    /// A file only: `rm`.
    File,
    /// An empty directory only: `rmdir`.
    Dir,
    /// Either.
    Any,
}

/// Requests to the manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManagerRequest {
    /// Checks that the server responds. Answered by [`crate::ManagerReply::Done`].
    Ping,
    /// Creates a directory. Its parent must exist. Answered by `Entry`. Changes the namespace.
    Mkdir {
        /// The place of the new directory.
        place: Place,
        /// Permission bits.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
    },
    /// Creates a file. Its parent must exist. Answered by `Entry`. Changes the namespace.
    Create {
        /// The place of the new file.
        place: Place,
        /// Permission bits.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Strip size in bytes; 0 for the cluster's default.
        strip_size: u64,
        /// Number of I/O servers to stripe over; 0 for all (at most
        /// [`crate::limits::MAX_SERVERS`]).
        servers: u32,
        /// If true, an existing file is an error (`Exists`). If false, it is the answer. An
        /// existing directory is always an error.
        exclusive: bool,
    },
    /// Looks up the object at a place. Answered by `Entry`.
    Lookup {
        /// The place to look up.
        place: Place,
    },
    /// Lists a directory sorted by name (by bytes), one page at a time. Answered by `Entries`. For
    /// the next page, ask again with the last name, until there are no more. Entries that exist
    /// during the whole listing are listed exactly once.
    Readdir {
        /// The directory to list.
        dir: DirHandle,
        /// Begin after this name. Empty for the beginning.
        #[serde(deserialize_with = "limits::text::<MAX_NAME, _>")]
        after: String,
        /// Return at most this many entries. The server returns fewer if they do not fit into a
        /// message.
        max: u32,
    },
    /// Returns the attributes and layout of an object. Answered by `Entry`.
    Getattr {
        /// The object.
        handle: Handle,
    },
    /// Changes attributes. Answered by `Entry`. Changes the namespace.
    Setattr {
        /// The object.
        handle: Handle,
        /// The attributes to change.
        set: SetAttr,
    },
    /// Moves a name, atomically. A file replaces a file at `to`, and a directory replaces an empty
    /// directory. Answered by `Done`. Changes the namespace.
    Rename {
        /// The old place.
        from: Place,
        /// The new place. Its parent must exist.
        to: Place,
    },
    /// Removes a file or an empty directory. Answered by `Done`. Changes the namespace. The manager
    /// removes the file's data later.
    Remove {
        /// The place of the object.
        place: Place,
        /// The kind of object that may be removed.
        kind: RemoveKind,
    },
    /// Returns the counts of what the manager holds. Answered by `Stat`.
    Statfs,
    /// Returns the addresses of the I/O servers and the limits of the cluster. Answered by
    /// `Cluster`, paged like a directory.
    Cluster {
        /// Begin at this I/O server.
        first: u32,
    },
    /// Registers the store of an I/O server. The I/O server sends it. Answered by `Done`, or by
    /// `Invalid` if the store is not the one that this I/O server registered before, or is another
    /// server's.
    Register {
        /// The number of the I/O server.
        iod: u32,
        /// The number of its store, drawn at random when the store was created.
        store: u128,
        /// True if the store contained datafiles when the server was started.
        used: bool,
        /// True if the manager is to accept this store even if the server registered another one
        /// before.
        adopt: bool,
    },
}

impl ManagerRequest {
    /// Returns true if the request changes the manager's state. Such a request is executed once,
    /// even if it arrives several times.
    pub fn changes(&self) -> bool {
        matches!(
            self,
            ManagerRequest::Mkdir { .. }
                | ManagerRequest::Create { .. }
                | ManagerRequest::Setattr { .. }
                | ManagerRequest::Rename { .. }
                | ManagerRequest::Remove { .. }
                | ManagerRequest::Register { .. }
        )
    }

    /// Returns the name of the request, for logs and errors.
    pub fn name(&self) -> &'static str {
        match self {
            ManagerRequest::Ping => "ping",
            ManagerRequest::Mkdir { .. } => "mkdir",
            ManagerRequest::Create { .. } => "create",
            ManagerRequest::Lookup { .. } => "lookup",
            ManagerRequest::Readdir { .. } => "readdir",
            ManagerRequest::Getattr { .. } => "getattr",
            ManagerRequest::Setattr { .. } => "setattr",
            ManagerRequest::Rename { .. } => "rename",
            ManagerRequest::Remove { .. } => "remove",
            ManagerRequest::Statfs => "statfs",
            ManagerRequest::Cluster { .. } => "cluster",
            ManagerRequest::Register { .. } => "register",
        }
    }
}

/// Requests to an I/O server. All of them are idempotent, so they may be sent again.
///
/// A datafile need not be created: one that was never written is empty. Writing to a datafile that
/// was removed fails with `Stale`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IodRequest {
    /// Checks that the server responds. Answered by [`crate::IodReply::Done`].
    Ping,
    /// Writes regions, in order. Answered by `Written` when the bytes are in the store, but not
    /// necessarily on the disk. Where regions overlap, it is undefined which bytes remain.
    Write {
        /// The datafile to write.
        datafile: DatafileHandle,
        /// The regions of the datafile. They have as many bytes as the call has data.
        regions: Regions,
        /// If true, the bytes must be on the disk before the reply, as with `Sync`.
        sync: bool,
    },
    /// Reads regions, in order. Answered by `Read`. A read is never short: bytes that were never
    /// written, and those beyond the end of the datafile, are zero. The client finds the end of the
    /// *file* from the sizes of all its datafiles.
    Read {
        /// The datafile to read.
        datafile: DatafileHandle,
        /// The regions of the datafile. They have as many bytes as the call has room for.
        regions: Regions,
    },
    /// Sets the size of the datafile to `size` bytes: cuts it off or fills it up with zeros.
    /// Answered by `Written`.
    Truncate {
        /// The datafile.
        datafile: DatafileHandle,
        /// The new size, in bytes.
        size: u64,
    },
    /// Removes the datafile if it exists. Answered by `Done`. The removal is then durable.
    Remove {
        /// The datafile.
        datafile: DatafileHandle,
    },
    /// Flushes written bytes to the disk. Answered by `Written`. Everything that was written since
    /// the start named in that reply then survives a crash.
    Sync {
        /// The datafile.
        datafile: DatafileHandle,
    },
    /// Returns the size of the datafile and the time of its last change. Answered by `Held`.
    Getsize {
        /// The datafile.
        datafile: DatafileHandle,
    },
    /// Returns the size and use of the server's store. Answered by `Stat`.
    Statfs,
}

impl IodRequest {
    /// Returns the name of the request, for logs and errors.
    pub fn name(&self) -> &'static str {
        match self {
            IodRequest::Ping => "ping",
            IodRequest::Write { .. } => "write",
            IodRequest::Read { .. } => "read",
            IodRequest::Truncate { .. } => "truncate",
            IodRequest::Remove { .. } => "remove",
            IodRequest::Sync { .. } => "sync",
            IodRequest::Getsize { .. } => "getsize",
            IodRequest::Statfs => "statfs",
        }
    }
}
