//! Attributes of files and directories.

use bstr::BString;
use serde::{Deserialize, Serialize};

use crate::distribution::Layout;
use crate::handle::Handle;
use crate::limits;

/// The kind of object that a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
}

/// Attributes, as `stat` shows them. Times are in nanoseconds since 1970. They come from the
/// manager's clock or were set by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// File, directory or symbolic link.
    pub kind: Kind,
    /// Permission bits, at most `0o7777`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size. For a directory, the number of entries. For a symbolic link, the length of its target.
    /// For a file, the size in bytes, which only the
    /// I/O servers know. It is 0 in a manager's reply. The client library computes it from the
    /// sizes of the datafiles ([`crate::Distribution::file_size`]).
    pub size: u64,
    /// Last access, in nanoseconds.
    pub atime_ns: u64,
    /// Last change of the content, in nanoseconds. Only the I/O servers know when a file was
    /// written. The client library fills in this time as it fills in the size
    /// ([`Entry::touched_ns`]).
    pub mtime_ns: u64,
    /// Last change of the attributes, in nanoseconds.
    pub ctime_ns: u64,
    /// Number of names of the object. For a directory, 2 plus one for each subdirectory.
    pub nlink: u32,
}

/// The attributes to change. `None` leaves a value unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access, in nanoseconds.
    pub atime_ns: Option<u64>,
    /// Last change of the content, in nanoseconds.
    pub mtime_ns: Option<u64>,
}

/// Everything that the manager knows about an object, beside its extended attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its handle, which names it in further requests.
    pub handle: Handle,
    /// Its attributes.
    pub attr: Attr,
    /// The location of a file's bytes; `None` for anything else.
    pub layout: Option<Layout>,
    /// Where a symbolic link leads; `None` for anything else. Nobody but the reader interprets it.
    #[serde(deserialize_with = "limits::target")]
    pub target: Option<BString>,
    /// The time at which `attr.mtime_ns` was set, in nanoseconds by the manager's clock: when the
    /// file was created, or when a client last set `mtime_ns`. If an I/O server has written later
    /// than this, the content changed later. The manager is not told about writes.
    pub touched_ns: u64,
    /// The size of a file in bytes, if it was recorded when the file was complete
    /// ([`crate::ManagerRequest::RecordSize`]) and the file has not been written since.
    pub recorded_size: Option<u64>,
}
