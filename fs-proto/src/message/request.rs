//! Requests of the clients.

use std::fmt;

use bstr::BString;
use serde::{Deserialize, Serialize};

use crate::attr::{Extent, SetAttr};
use crate::cache::CacheHints;
use crate::datatype::ViewPart;
use crate::handle::{DatafileHandle, DirHandle, FileHandle, Handle};
use crate::identity::{Access, Caller, Duty, Hello, Name, Start, StoreId, Ticket};
use crate::joined::Joined;
use crate::limits::{self, MAX_CLOSED, MAX_DATAFILES, MAX_NAME, MAX_PATH, MAX_RELEASED, MAX_SERVERS, MAX_XATTR};
use crate::message::check::Repair;
use crate::message::reply::XattrName;
use crate::region::Region;
use crate::regions::Regions;

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
    /// For whom it is made, if not for whom the [`Hello`] has named.
    pub caller: Option<Caller>,
    /// The right to the datafile of the request, unless one was shown on this connection before.
    pub ticket: Option<Ticket>,
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
    /// The first request on a connection, to either kind of server.
    Hello(Hello),
}

impl RequestBody {
    /// Returns the duty that the request takes, if it takes one.
    pub fn duty(&self) -> Option<Duty> {
        match self {
            RequestBody::Manager(ManagerRequest::Backup { .. }) => Some(Duty::Backup),
            RequestBody::Manager(
                ManagerRequest::Check { .. }
                | ManagerRequest::Repair(_)
                | ManagerRequest::Revoke { .. }
                | ManagerRequest::Revoked,
            ) => Some(Duty::Admin),
            RequestBody::Iod(IodRequest::List { .. } | IodRequest::Scrub { .. }) => Some(Duty::Admin),
            _ => None,
        }
    }
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

/// A place in the namespace: a path relative to a directory. Components are separated by `/`, and
/// are bytes in no particular encoding, without NUL. Leading, trailing and doubled slashes are
/// ignored. `.` and `..` are rejected; clients resolve them, and symbolic links. The empty path is
/// the directory itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The directory where the path begins.
    pub dir: DirHandle,
    /// The path, at most [`MAX_PATH`] bytes long. Each component has at most [`MAX_NAME`] bytes.
    #[serde(deserialize_with = "limits::bytes::<MAX_PATH, _, _>")]
    pub path: BString,
}

impl Place {
    /// Creates a place with `path` relative to the root.
    pub fn root(path: impl Into<BString>) -> Place {
        Place { dir: DirHandle::ROOT, path: path.into() }
    }

    /// Creates a place with `path` relative to `dir`.
    pub fn at(dir: DirHandle, path: impl Into<BString>) -> Place {
        Place { dir, path: path.into() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { dir, path } = self;
        match *dir {
            DirHandle::ROOT if path.starts_with(b"/") => path.fmt(f),
            DirHandle::ROOT => write!(f, "/{path}"),
            dir => write!(f, "{dir}/{path}"),
        }
    }
}

/// The kinds of object that a removal may remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RemoveKind {
    /// Anything but a directory: `unlink`.
    File,
    /// An empty directory only: `rmdir`.
    Dir,
    /// Either.
    Any,
}

/// What a request to create a file does if there is a file already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Existing {
    /// It is an error: `Exists`.
    Refuse,
    /// It is the answer.
    Open,
    /// Nothing happens to it yet. The new file has no name until it is published
    /// ([`ManagerRequest::Publish`]). If no strip size or no number of servers is requested, those
    /// of the existing file are used, as far as enough servers are up.
    ///
    /// A file without a name belongs to the client that created it. It is removed when that client
    /// has had no connection to the manager for some minutes.
    Replace,
}

/// What must be at a place where something is moved, when it is moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Replace {
    /// Anything that can be replaced, or nothing.
    #[default]
    Anything,
    /// Nothing. Otherwise the answer is `Exists`.
    Nothing,
    /// This file, and it was not written since its size was recorded: with its publication, as a
    /// rule. If there is nothing, the answer is `NotFound`, and otherwise `Exists`.
    File(FileHandle),
}

/// The value of an extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct XattrValue(#[serde(deserialize_with = "limits::bytes::<MAX_XATTR, _, _>")] pub BString);

/// What becomes of the disk space of a range of bytes: the modes of `fallocate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Allocation {
    /// Each byte has space, so a later write to it does not fail for want of it. No byte changes.
    Reserve {
        /// True if the range becomes a part of the file where it goes beyond its end. False if the
        /// file keeps its size.
        grows: bool,
    },
    /// The range is a hole: it takes no space, and its bytes are zeros. The file keeps its size.
    Hole,
    /// The bytes are zeros, and have space.
    Zeros {
        /// As with `Reserve`.
        grows: bool,
    },
}

/// What is looked for in a file: the `whence` of `lseek`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Sought {
    /// Bytes that are not in a hole.
    Data,
    /// A hole. There is one at the end of each file.
    Hole,
}

/// Requests to the manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManagerRequest {
    /// Checks that the server responds. Answered by [`crate::ManagerReply::Done`].
    Ping,
    /// Creates a directory. Its parent must exist. Answered by `Entry`. Changes the namespace. It
    /// takes over how new files are striped ([`crate::DefaultLayout`]).
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
    /// Creates a file. Its parent must exist. Answered by `Opened`. Changes the namespace.
    Create {
        /// The place of the new file.
        place: Place,
        /// Permission bits.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Strip size in bytes; 0 for that of the directory ([`crate::DefaultLayout`]), or the
        /// cluster's default.
        strip_size: u64,
        /// Number of I/O servers to stripe over. 0 for those of the directory, or all that are up
        /// (at most [`crate::limits::MAX_SERVERS`]). Any other number is met, if necessary with
        /// servers that are down.
        servers: u32,
        /// Numbers of the I/O servers that the client cannot reach. They count as down.
        #[serde(deserialize_with = "limits::bounded::<MAX_SERVERS, _, _>")]
        avoid: Vec<u32>,
        /// What happens if there is a file already. An existing directory is always an error.
        existing: Existing,
        /// True if the client has the new file open, as after `Hold`. Only with
        /// [`Existing::Refuse`].
        hold: bool,
        /// True if it begins small ([`crate::Layout`]): with one datafile, until it grows.
        small: bool,
    },
    /// Looks up the object at a place. Answered by `Entry`.
    Lookup {
        /// The place to look up.
        place: Place,
        /// True to open it: the answer is `Opened`, or `Permission` if the caller may do nothing
        /// with it.
        open: bool,
    },
    /// Lists a directory sorted by name (by bytes), one page at a time. Answered by `Entries`, or
    /// by `Listing`. For the next page, ask again with the last name, until there are no more.
    /// Entries that exist during the whole listing are listed exactly once.
    Readdir {
        /// The directory to list.
        dir: DirHandle,
        /// Begin after this name. Empty for the beginning.
        #[serde(deserialize_with = "limits::bytes::<MAX_NAME, _, _>")]
        after: BString,
        /// Return at most this many entries. The server returns fewer if they do not fit into a
        /// message.
        max: u32,
        /// True for all that the manager knows about each object: a `Listing`.
        attributes: bool,
    },
    /// Returns the attributes and layout of an object. Answered by `Entry`.
    Getattr {
        /// The object.
        handle: Handle,
        /// As with `Lookup`.
        open: bool,
    },
    /// Changes attributes. Answered by `Entry`. Changes the namespace.
    Setattr {
        /// The object.
        handle: Handle,
        /// The attributes to change.
        set: SetAttr,
    },
    /// Moves a name, atomically. Anything but a directory replaces anything but a directory at
    /// `to`, and a directory replaces an empty directory. Answered by `Done`. Changes the
    /// namespace.
    Rename {
        /// The old place.
        from: Place,
        /// The new place. Its parent must exist.
        to: Place,
        /// What must be there.
        replace: Replace,
    },
    /// Removes a name: of a file, of a symbolic link, or of an empty directory. Answered by `Done`.
    /// Changes the namespace. With its last name a file goes. The manager removes the file's data
    /// later.
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
    /// Records the size of a file that is complete and synced. Answered by `Done`. Changes the
    /// namespace.
    ///
    /// A size is recorded only if nobody but the client may write ([`crate::Content`]). Otherwise
    /// the answer is `Done` too, and nothing is recorded. From then on the client may not write.
    RecordSize {
        /// The file.
        file: FileHandle,
        /// Its size in bytes.
        size: u64,
    },
    /// Registers the store of an I/O server, and confirms again and again that the server is up.
    /// The I/O server sends it. Answered by `Registered`; by `Invalid` if the store is not the one
    /// that this I/O server registered before, is another server's, or has gone back in time.
    Register(Registration),
    /// Returns a page of the metadata, all of it as it was at one moment. Answered by `Backup`.
    ///
    /// Page 0 begins: the manager holds on to the metadata of this moment. The pages are then
    /// requested in order over the same connection. The manager lets go after the last page, when
    /// the connection ends, or when no page is requested for a minute.
    Backup {
        /// The number of the page.
        page: u64,
    },
    /// Gives a file without a name its name, in one step. Replaces a file that is there. Answered
    /// by `Entry`. Changes the namespace. Only the client that created the file may send it, and
    /// only after everything that must survive was synced.
    Publish {
        /// The file, created with [`Existing::Replace`].
        file: FileHandle,
        /// Its place. The parent must exist.
        place: Place,
        /// If true and a file is replaced, the new one takes over its mode, owner and group.
        inherit: bool,
        /// Permission bits to set in any case.
        mode: Option<u32>,
        /// Last change of the content, in nanoseconds since 1970. `None` for now.
        mtime_ns: Option<u64>,
        /// The size of the file in bytes, to be recorded as with `RecordSize`. `None` if it is not
        /// known, or the file is written further.
        size: Option<u64>,
        /// What must be at the place.
        replace: Replace,
    },
    /// Removes a file without a name. Answered by `Done`, also if it does not exist. Changes the
    /// namespace. Only the client that created the file may send it.
    Abandon {
        /// The file.
        file: FileHandle,
    },
    /// Sets the size of a file: cuts it off or extends it with a hole. Answered by `Truncation`.
    /// Changes the namespace.
    ///
    /// It happens at all I/O servers of the file or at none. If the answer names servers, the
    /// change is decided, and they have not carried it out yet. They do so before they serve the
    /// datafile again.
    Truncate {
        /// The file.
        file: FileHandle,
        /// The new size, in bytes.
        size: u64,
    },
    /// Asks which I/O servers have not carried out the last change of a file's size. Answered by
    /// `Truncation`.
    Truncation {
        /// The file.
        file: FileHandle,
    },
    /// Creates a symbolic link. Its parent must exist. Answered by `Entry`. Changes the namespace.
    Symlink {
        /// The place of the new link.
        place: Place,
        /// Where it leads: not empty, and without NUL.
        #[serde(deserialize_with = "limits::bytes::<MAX_PATH, _, _>")]
        target: BString,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// True if it replaces anything but a directory, in one step.
        replace: bool,
    },
    /// Gives a file one more name: a hard link. Answered by `Entry`. Changes the namespace. A file
    /// has at most [`limits::MAX_LINKS`] names.
    Link {
        /// The file, which has a name.
        file: FileHandle,
        /// The new place.
        place: Place,
        /// True if it replaces anything but a directory, in one step.
        replace: bool,
    },
    /// Exchanges two names, atomically. Answered by `Done`. Changes the namespace.
    Exchange {
        /// One place.
        one: Place,
        /// The other.
        other: Place,
    },
    /// Sets or removes an extended attribute. Answered by `Done`. Changes the namespace. An object
    /// has at most [`limits::MAX_XATTRS`] of them. That of [`crate::DefaultLayout`] is for
    /// directories only, and its value is checked.
    SetXattr {
        /// The object.
        handle: Handle,
        /// The name: not empty, and without NUL.
        name: XattrName,
        /// The value; `None` to remove it.
        value: Option<XattrValue>,
        /// True if it must be there already, false if it must not. Otherwise the answer is
        /// `NotFound` or `Exists`.
        exists: Option<bool>,
    },
    /// Returns the value of an extended attribute. Answered by `Xattr`, or `NotFound`.
    GetXattr {
        /// The object.
        handle: Handle,
        /// The name.
        name: XattrName,
    },
    /// Lists the extended attributes of an object. Answered by `Xattrs`.
    ListXattrs {
        /// The object.
        handle: Handle,
    },
    /// Says that the client has a file open. Answered by `Opened`. If the file loses its last name,
    /// it stays until every client that holds it has released it, or has had no connection for
    /// some minutes. The manager forgets holds with its start: clients then say them again, within
    /// a minute.
    Hold {
        /// The file.
        file: FileHandle,
    },
    /// Says that the client has closed files. Answered by `Done`, whatever it holds.
    Release {
        /// The files.
        #[serde(deserialize_with = "limits::bounded::<MAX_RELEASED, _, _>")]
        files: Vec<FileHandle>,
    },
    /// Says that the client begins to write to a file. Answered by `Done`. Changes the namespace. A
    /// client may write without it if the file's [`crate::Content`] names it, or is `Shared`.
    BeginWrite {
        /// The file.
        file: FileHandle,
    },
    /// Says that the client has ended to write to files, all its writes have ended, and how the
    /// files are now. Answered by `Done`. Changes the namespace. It has no effect for a file that
    /// others may write, too, or that is gone.
    Close {
        /// The files.
        #[serde(deserialize_with = "limits::bounded::<MAX_CLOSED, _, _>")]
        files: Vec<(FileHandle, Extent)>,
    },
    /// Returns a page of what the manager keeps, for a check, all of it as it was at one moment.
    /// Answered by `Check`. Pages are asked for as those of `Backup`.
    Check {
        /// The number of the page.
        page: u64,
    },
    /// Repairs what a check has found. Answered by `Done`; by `Stale` if it is not damaged in that
    /// way any more, or somebody else repairs. Changes the namespace.
    Repair(Repair),
    /// Gives a small file all its datafiles, as far as servers are up. Answered by `Opened`, also
    /// if it has grown already. Changes the namespace. Only then bytes behind
    /// [`crate::Layout::limit`] may be written.
    Grow {
        /// The file.
        file: FileHandle,
        /// Numbers of the I/O servers that the client cannot reach. They count as down.
        #[serde(deserialize_with = "limits::bounded::<MAX_SERVERS, _, _>")]
        avoid: Vec<u32>,
    },
    /// Shuts the holder of a certificate out, or lets him in again. His requests are refused from
    /// now on, and by the I/O servers when they have next registered. Answered by `Done`; by
    /// `NoSpace` if too many are shut out, by `NotFound` if he is not. Changes the namespace.
    Revoke {
        /// The role in his certificate, such as `pvfs:user/anna`.
        holder: Name,
        /// True to let him in again.
        back: bool,
    },
    /// Returns who was shut out. Answered by `Revoked`.
    Revoked,
}

/// What an I/O server reports about its store.
///
/// The manager remembers the start that it recorded last. The store knows that start too: it wrote
/// it into its label before it offered it. A copy of the store that is older does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// The number of the I/O server.
    pub iod: u32,
    /// Its store. `None` if its directory is empty: the answer says whether it may be used.
    pub store: Option<StoreId>,
    /// The current start of the server.
    pub start: Start,
    /// The last start that the store has offered to the manager.
    pub offered: Option<Start>,
    /// The last start of which the store knows that the manager has recorded it.
    pub confirmed: Option<Start>,
    /// The newest start of the manager that has accepted the store.
    pub manager: Option<Start>,
    /// The highest handle of a datafile that the store has seen.
    pub highest: DatafileHandle,
    /// True if the store is to replace the one that this I/O server registered before.
    pub replace: bool,
    /// False if the manager is only to judge. True if the store has written the start, and the
    /// start of this manager, into its label: the manager records the start, and the server is up.
    pub ready: bool,
}

impl ManagerRequest {
    /// Returns true if the request changes the namespace. Such a request is executed once, even if
    /// it arrives several times.
    pub fn changes(&self) -> bool {
        matches!(
            self,
            ManagerRequest::Mkdir { .. }
                | ManagerRequest::Create { .. }
                | ManagerRequest::Setattr { .. }
                | ManagerRequest::Rename { .. }
                | ManagerRequest::Symlink { .. }
                | ManagerRequest::Link { .. }
                | ManagerRequest::Exchange { .. }
                | ManagerRequest::SetXattr { .. }
                | ManagerRequest::Remove { .. }
                | ManagerRequest::RecordSize { .. }
                | ManagerRequest::BeginWrite { .. }
                | ManagerRequest::Close { .. }
                | ManagerRequest::Publish { .. }
                | ManagerRequest::Abandon { .. }
                | ManagerRequest::Truncate { .. }
                | ManagerRequest::Repair(_)
                | ManagerRequest::Grow { .. }
                | ManagerRequest::Revoke { .. }
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
            ManagerRequest::Symlink { .. } => "symlink",
            ManagerRequest::Link { .. } => "link",
            ManagerRequest::Exchange { .. } => "exchange",
            ManagerRequest::SetXattr { .. } => "set xattr",
            ManagerRequest::GetXattr { .. } => "get xattr",
            ManagerRequest::ListXattrs { .. } => "list xattrs",
            ManagerRequest::Statfs => "statfs",
            ManagerRequest::Cluster { .. } => "cluster",
            ManagerRequest::RecordSize { .. } => "record size",
            ManagerRequest::BeginWrite { .. } => "begin write",
            ManagerRequest::Close { .. } => "close",
            ManagerRequest::Publish { .. } => "publish",
            ManagerRequest::Abandon { .. } => "abandon",
            ManagerRequest::Hold { .. } => "hold",
            ManagerRequest::Release { .. } => "release",
            ManagerRequest::Truncate { .. } => "truncate",
            ManagerRequest::Truncation { .. } => "truncation",
            ManagerRequest::Backup { .. } => "backup",
            ManagerRequest::Check { .. } => "check",
            ManagerRequest::Repair(_) => "repair",
            ManagerRequest::Grow { .. } => "grow",
            ManagerRequest::Revoke { .. } => "revoke",
            ManagerRequest::Revoked => "revoked",
            ManagerRequest::Register(_) => "register",
        }
    }
}

/// Requests to an I/O server. All of them are idempotent, so they may be sent again.
///
/// Datafiles are created in advance, by the manager (`Create`). A request for a datafile that does
/// not exist fails with `Lost`: it was removed, or the store has lost it.
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
    /// Writes a part of a view. Answered as `Write`.
    WriteView {
        /// The datafile to write.
        datafile: DatafileHandle,
        /// The bytes of the datafile, as many as the call has data.
        part: ViewPart,
        /// The requests of other clients that the server may carry it out with.
        joined: Option<Joined>,
    },
    /// Reads a part of a view. Answered as `Read`.
    ReadView {
        /// The datafile to read.
        datafile: DatafileHandle,
        /// The bytes of the datafile, as many as the call has room for.
        part: ViewPart,
        /// The requests of other clients that the server may carry it out with.
        joined: Option<Joined>,
    },
    /// Sets the size of the datafile to `size` bytes, durably: cuts it off or fills it up with
    /// zeros. What was written to it before is then durable, too. Answered by `Written`.
    Truncate {
        /// The datafile.
        datafile: DatafileHandle,
        /// The new size, in bytes.
        size: u64,
    },
    /// Creates empty datafiles, durably. Answered by `Done`. Only the manager may send it, and only
    /// for handles above all that the store has seen; the last request of the manager's current
    /// start may be repeated.
    Create {
        /// The first handle.
        first: DatafileHandle,
        /// The number of datafiles, with consecutive handles; at most [`MAX_DATAFILES`].
        count: u32,
    },
    /// Removes those of a range of datafiles that were never written. Answered by `Done`. Only the
    /// manager may send it, for datafiles that it created and gave to no file.
    Discard {
        /// The first handle.
        first: DatafileHandle,
        /// The number of handles, at most [`MAX_DATAFILES`].
        count: u32,
    },
    /// Removes the datafiles that exist. Answered by `Done`. The removal is then durable. Only the
    /// manager may send it.
    Remove {
        /// The datafiles.
        #[serde(deserialize_with = "limits::bounded::<MAX_DATAFILES, _, _>")]
        datafiles: Vec<DatafileHandle>,
    },
    /// Lists the datafiles of the store, one page at a time, in the server's order. Answered by
    /// `Datafiles`.
    List {
        /// Begin after this one; `None` for the beginning.
        after: Option<DatafileHandle>,
    },
    /// Flushes written bytes of several datafiles to the disk. Answered by `Synced`. Everything
    /// that was written to them since the start named in that reply then survives a crash.
    Sync {
        /// The datafiles.
        #[serde(deserialize_with = "limits::bounded::<MAX_DATAFILES, _, _>")]
        datafiles: Vec<DatafileHandle>,
    },
    /// Returns the size of the datafile and the time of its last change. Answered by `Held`.
    Getsize {
        /// The datafile.
        datafile: DatafileHandle,
    },
    /// Returns the size and use of the server's store. Answered by `Stat`.
    Statfs,
    /// Prepares a change of size, durably: until `CommitTruncates` or `CancelTruncates`, every
    /// other request for the datafile fails with `Busy`, or with `Unfinished` once a commit has
    /// failed. Answered by `Done`. A size that the server's file system cannot have is refused.
    /// Only the manager may send it.
    PrepareTruncate {
        /// The datafile.
        datafile: DatafileHandle,
        /// The new size, in bytes.
        size: u64,
        /// The number of the change. Numbers increase, also from one start of the manager to the
        /// next.
        number: u64,
    },
    /// Carries out prepared changes of size, durably. Those of other datafiles in the list were
    /// carried out before. Answered by `Committed`, for each datafile by itself. Only the manager
    /// may send it.
    CommitTruncates {
        /// A datafile that was prepared with this number or a higher one is left alone: this
        /// request was given up before.
        before: u64,
        /// The datafiles, each with two sizes in bytes: it is cut off at the first one, and then
        /// has the second one. They count, and not those that were prepared. The first one is
        /// smaller if an earlier change could not be carried out.
        #[serde(deserialize_with = "limits::bounded::<MAX_DATAFILES, _, _>")]
        datafiles: Vec<(DatafileHandle, u64, u64)>,
    },
    /// Forgets all prepared changes of size with a smaller number than `before`, except those of
    /// some datafiles. Answered by `Done`. Only the manager may send it.
    CancelTruncates {
        /// A request to prepare with a smaller number that arrives later is refused. A change with
        /// this number or a higher one remains: it may have been prepared over another connection.
        before: u64,
        /// The datafiles that remain prepared, or may still be.
        #[serde(deserialize_with = "limits::bounded::<MAX_DATAFILES, _, _>")]
        except: Vec<DatafileHandle>,
    },
    /// Tells how the datafile will be used, in place of what was told before. Answered by `Done`,
    /// at once, whatever the hints are: the server ignores what makes no sense, and need not follow
    /// the rest. It remembers them in memory only, for a bounded number of datafiles.
    Advise {
        /// The datafile. It need not exist.
        datafile: DatafileHandle,
        /// The hints.
        hints: CacheHints,
    },
    /// Returns the service of the server, the state of its cache, and the busiest of the datafiles
    /// of which something is cached. Answered by `CacheState`. One reply is about a bounded number
    /// of datafiles, in the order of their handles, and names the busiest of these. For those
    /// behind, ask again with the last one.
    CacheState {
        /// Begin behind this datafile; `None` for the beginning.
        after: Option<DatafileHandle>,
        /// Most datafiles to name. 0 for the state of the cache alone.
        files: u32,
    },
    /// Returns how much of a range of the datafile is in the server's cache. Answered by
    /// `CacheCoverage`, about as much of the range as takes bounded work.
    CacheCoverage {
        /// The datafile.
        datafile: DatafileHandle,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Asks for a view of a range of the datafile, to be read where it is. Answered by `Shared`.
    /// The range must be in one window ([`crate::ViewRange`]).
    ReadShared {
        /// The datafile.
        datafile: DatafileHandle,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes, at least one.
        len: u64,
    },
    /// Asks for a lock of a range of the file, or asks again for one that is waited for or held. It
    /// excludes the locks of others, and nothing else. Answered by `Locked`, at once; by `Stale` if
    /// a lock that was held is lost, by `Busy` if there are too many. Who does not ask again for
    /// ten seconds may lose it.
    Lock {
        /// The first datafile of the file. It need not exist.
        datafile: DatafileHandle,
        /// The bytes of the file.
        range: Region,
        /// True if it excludes every lock, false if it excludes exclusive ones.
        exclusive: bool,
        /// A number that no other lock of the client has.
        number: u64,
        /// True if the client had it already.
        held: bool,
    },
    /// Gives a lock back, or stops to wait for it. Answered by `Done`; by `Stale` if it is lost.
    Unlock {
        /// The first datafile of the file.
        datafile: DatafileHandle,
        /// The number of the lock.
        number: u64,
    },
    /// Returns the sizes of datafiles and the times of their last changes. Answered by `Sizes`.
    Getsizes {
        /// The datafiles.
        #[serde(deserialize_with = "limits::bounded::<MAX_DATAFILES, _, _>")]
        datafiles: Vec<DatafileHandle>,
    },
    /// Gives a range of the datafile space on the disk, or takes it away. Answered by `Written`; by
    /// `Unsupported` if the server's file system cannot do it. If it fails, any part of it may be
    /// done. It is durable after a sync.
    Allocate {
        /// The datafile.
        datafile: DatafileHandle,
        /// The bytes of the datafile, at most [`limits::MAX_ALLOCATION`].
        range: Region,
        /// What becomes of them.
        how: Allocation,
    },
    /// Looks for the first byte of data, or of a hole, from an offset on. Answered by `Sought`.
    /// Bytes that were never written may count as data.
    Seek {
        /// The datafile.
        datafile: DatafileHandle,
        /// Where to begin.
        offset: u64,
        /// What to look for.
        what: Sought,
    },
    /// Compares what the disk has of datafiles with their checksums. Answered by `Scrubbed`; by
    /// `Unsupported` if the server keeps none.
    Scrub {
        /// The datafiles.
        #[serde(deserialize_with = "limits::bounded::<MAX_DATAFILES, _, _>")]
        datafiles: Vec<DatafileHandle>,
        /// Where to begin in the first one, in bytes.
        offset: u64,
    },
}

impl IodRequest {
    /// Returns true if only the manager may send the request.
    pub fn is_the_managers(&self) -> bool {
        matches!(
            self,
            IodRequest::Create { .. }
                | IodRequest::Discard { .. }
                | IodRequest::Remove { .. }
                | IodRequest::PrepareTruncate { .. }
                | IodRequest::CommitTruncates { .. }
                | IodRequest::CancelTruncates { .. }
        )
    }

    /// Returns the datafile that the request takes a ticket for, and the right: of several, any one
    /// will do. How long datafiles are, and when they were written, is told to everybody.
    pub fn needs(&self) -> Option<(DatafileHandle, Access)> {
        match self {
            IodRequest::Read { datafile, .. }
            | IodRequest::ReadView { datafile, .. }
            | IodRequest::ReadShared { datafile, .. }
            | IodRequest::Seek { datafile, .. } => Some((*datafile, Access::READ)),
            IodRequest::Write { datafile, .. }
            | IodRequest::WriteView { datafile, .. }
            | IodRequest::Truncate { datafile, .. }
            | IodRequest::Allocate { datafile, .. } => Some((*datafile, Access::WRITE)),
            IodRequest::Lock { datafile, exclusive: true, .. } => Some((*datafile, Access::WRITE)),
            IodRequest::Lock { datafile, .. } => Some((*datafile, Access::READ)),
            IodRequest::Unlock { datafile, .. }
            | IodRequest::Advise { datafile, .. }
            | IodRequest::CacheCoverage { datafile, .. } => Some((*datafile, Access::BOTH)),
            _ => None,
        }
    }

    /// Returns the name of the request, for logs and errors.
    pub fn name(&self) -> &'static str {
        match self {
            IodRequest::Ping => "ping",
            IodRequest::Write { .. } => "write",
            IodRequest::Read { .. } => "read",
            IodRequest::WriteView { .. } => "write view",
            IodRequest::ReadView { .. } => "read view",
            IodRequest::Truncate { .. } => "truncate",
            IodRequest::Create { .. } => "create",
            IodRequest::Discard { .. } => "discard",
            IodRequest::Remove { .. } => "remove",
            IodRequest::List { .. } => "list",
            IodRequest::Sync { .. } => "sync",
            IodRequest::PrepareTruncate { .. } => "prepare truncate",
            IodRequest::CommitTruncates { .. } => "commit truncates",
            IodRequest::CancelTruncates { .. } => "cancel truncates",
            IodRequest::Getsize { .. } => "getsize",
            IodRequest::Statfs => "statfs",
            IodRequest::Advise { .. } => "advise",
            IodRequest::CacheState { .. } => "cache state",
            IodRequest::CacheCoverage { .. } => "cache coverage",
            IodRequest::ReadShared { .. } => "read shared",
            IodRequest::Lock { .. } => "lock",
            IodRequest::Unlock { .. } => "unlock",
            IodRequest::Getsizes { .. } => "getsizes",
            IodRequest::Allocate { .. } => "allocate",
            IodRequest::Seek { .. } => "seek",
            IodRequest::Scrub { .. } => "scrub",
        }
    }
}
