//! Attributes of files and directories.

use serde::{Deserialize, Serialize};

use crate::distribution::Layout;
use crate::handle::Handle;

/// What a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Dir,
}

/// Attributes as `stat` shows them. Times are nanoseconds since 1970, by the manager's clock or as
/// a client set them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// File or directory.
    pub kind: Kind,
    /// Permission bits, at most `0o7777`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Directory: its number of entries. File: its size in bytes, which only the I/O servers know;
    /// 0 in a manager's reply, filled in by the client library from the sizes of the datafiles
    /// ([`crate::Distribution::file_size`]).
    pub size: u64,
    /// Last access, in nanoseconds.
    pub atime_ns: u64,
    /// Last change of the content, in nanoseconds. Of a file, only the I/O servers know when it was
    /// written; the client library fills that in as it does the size ([`Entry::touched_ns`]).
    pub mtime_ns: u64,
    /// Last change of the attributes, in nanoseconds.
    pub ctime_ns: u64,
    /// Names that lead here: 1 for a file, 2 and one for each subdirectory for a directory.
    pub nlink: u32,
}

/// What of the attributes to change; `None` leaves a value as it is.
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

/// All that the manager knows of a file or directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name for further requests.
    pub handle: Handle,
    /// Its attributes.
    pub attr: Attr,
    /// Where a file's bytes are; `None` for a directory.
    pub layout: Option<Layout>,
    /// When `attr.mtime_ns` was set, in nanoseconds by the manager's clock: when the file was made,
    /// or by hand. What an I/O server has written later is a later change of the content, which the
    /// manager is not told.
    pub touched_ns: u64,
}
