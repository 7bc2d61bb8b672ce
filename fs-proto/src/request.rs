//! What clients ask.

use serde::{Deserialize, Serialize};

use crate::attr::SetAttr;
use crate::handle::{DatafileHandle, DirHandle, Handle};
use crate::limits::{self, MAX_NAME, MAX_PATH};
use crate::region::Regions;

/// Names a request for all time: which client, and the client's own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RequestId {
    /// A number that no other client has: drawn at random by each client instance.
    pub client: u128,
    /// The client's count of requests, from 1; the same when a request is sent again.
    pub seq: u64,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Its id.
    pub id: RequestId,
    /// The client has the replies to all requests with a smaller `seq`, and will not send those
    /// again: the server may forget them.
    pub unanswered: u64,
    /// How long the server may work at it, in milliseconds, counted from its arrival. The server
    /// has a limit of its own.
    pub timeout_ms: u32,
    /// What is asked.
    pub body: RequestBody,
}

/// What is asked, of which kind of server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestBody {
    /// Of the manager.
    Manager(ManagerRequest),
    /// Of an I/O server.
    Iod(IodRequest),
    /// Of either: who are you? Answered by [`crate::ReplyBody::Identity`].
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

/// A place in the namespace: a path from a directory. Components are separated by `/`; leading,
/// trailing and doubled ones do not matter, `.` and `..` are refused (clients resolve them). The
/// empty path is the directory itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Where the path begins.
    pub dir: DirHandle,
    /// The path, at most [`MAX_PATH`] bytes, each component at most [`MAX_NAME`].
    #[serde(deserialize_with = "limits::text::<MAX_PATH, _>")]
    pub path: String,
}

impl Place {
    /// `path` from the root.
    pub fn root(path: impl Into<String>) -> Place {
        Place { dir: DirHandle::ROOT, path: path.into() }
    }

    /// `path` from `dir`.
    pub fn at(dir: DirHandle, path: impl Into<String>) -> Place {
        Place { dir, path: path.into() }
    }
}

/// What a removal may remove.
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
    /// Are you there? Answered by [`crate::ManagerReply::Done`].
    Ping,
    /// Makes a directory; its parent must be there. Answered by `Entry`. Changes the namespace.
    Mkdir {
        /// Where.
        place: Place,
        /// Permission bits.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
    },
    /// Makes a file; its parent must be there. Answered by `Entry`. Changes the namespace.
    Create {
        /// Where.
        place: Place,
        /// Permission bits.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Strip size in bytes; 0 for the cluster's default.
        strip_size: u64,
        /// I/O servers to stripe over; 0 for all (at most [`crate::limits::MAX_SERVERS`]).
        servers: u32,
        /// Whether a file that is already there is an error (`Exists`) or the answer. A directory
        /// there is always an error.
        exclusive: bool,
    },
    /// Finds what is at a place. Answered by `Entry`.
    Lookup {
        /// Where.
        place: Place,
    },
    /// Lists a directory in the order of names (by bytes), a page at a time. Answered by `Entries`;
    /// ask again with the last name until there is no more. Entries that stay there all the while
    /// are listed exactly once.
    Readdir {
        /// Which.
        dir: DirHandle,
        /// Begin after this name; empty for the beginning.
        #[serde(deserialize_with = "limits::text::<MAX_NAME, _>")]
        after: String,
        /// At most this many entries; the server sends fewer if they would not fit a message.
        max: u32,
    },
    /// Attributes and layout. Answered by `Entry`.
    Getattr {
        /// Of what.
        handle: Handle,
    },
    /// Changes attributes. Answered by `Entry`. Changes the namespace.
    Setattr {
        /// Of what.
        handle: Handle,
        /// What.
        set: SetAttr,
    },
    /// Moves a name, atomically. A file at `to` is replaced by a file, an empty directory by a
    /// directory. Answered by `Done`. Changes the namespace.
    Rename {
        /// From where.
        from: Place,
        /// To where; its parent must be there.
        to: Place,
    },
    /// Removes a file, or an empty directory. Answered by `Done`. Changes the namespace; the file's
    /// data is removed later by the manager.
    Remove {
        /// Where.
        place: Place,
        /// What it may be.
        kind: RemoveKind,
    },
    /// What the manager holds. Answered by `Stat`.
    Statfs,
    /// Who the I/O servers are and what the cluster's limits are. Answered by `Cluster`, paged like
    /// a directory.
    Cluster {
        /// Begin at this I/O server.
        first: u32,
    },
    /// An I/O server says which store it has. Answered by `Done`; `Invalid` if it is not the one
    /// that it had before, or another server's.
    Register {
        /// Which I/O server.
        iod: u32,
        /// The number of its store, drawn at random when that was made.
        store: u128,
        /// Whether datafiles were in it when the server was started.
        used: bool,
        /// Whether it is to be taken for the right one, whatever it had before.
        adopt: bool,
    },
}

impl ManagerRequest {
    /// Whether it changes what the manager keeps, and so is executed once however often it arrives.
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

    /// Its name for logs and errors.
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

/// Requests to an I/O server. All may be sent again: executed twice, they have the effect of once.
///
/// A datafile need not be created: one that nobody wrote is an empty one. One that was removed is
/// `Stale` for those who still write to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IodRequest {
    /// Are you there? Answered by [`crate::IodReply::Done`].
    Ping,
    /// Writes regions, in order. Answered by `Written`, once the bytes are in the store, though not
    /// necessarily on the disk. Where regions overlap, which bytes stay is not defined.
    Write {
        /// To which datafile.
        datafile: DatafileHandle,
        /// Where in it: as many bytes as the call has data.
        regions: Regions,
        /// Whether the bytes are to be on the disk before the answer, as with `Sync`.
        sync: bool,
    },
    /// Reads regions, in order. Answered by `Read`. Never short: bytes that were never written, and
    /// those beyond the end of the datafile, are zero. (The end of the *file* is the client's to
    /// find, from the sizes of all its datafiles.)
    Read {
        /// From which datafile.
        datafile: DatafileHandle,
        /// Where in it: as many bytes as the call has room for.
        regions: Regions,
    },
    /// Makes the datafile `size` bytes long, cut off or filled up with zeros. Answered by
    /// `Written`.
    Truncate {
        /// Which.
        datafile: DatafileHandle,
        /// How long, in bytes.
        size: u64,
    },
    /// Removes the datafile, if it is there. Answered by `Done`, and durable.
    Remove {
        /// Which.
        datafile: DatafileHandle,
    },
    /// Puts what was written on the disk. Answered by `Written`; from then on what was written
    /// since the start that it names survives a crash.
    Sync {
        /// Which.
        datafile: DatafileHandle,
    },
    /// How long the datafile is, and when it was changed. Answered by `Held`.
    Getsize {
        /// Which.
        datafile: DatafileHandle,
    },
    /// What the server holds. Answered by `Stat`.
    Statfs,
}

impl IodRequest {
    /// Its name for logs and errors.
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
