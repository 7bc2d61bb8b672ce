//! Attributes of files and directories.

use bstr::BString;
use serde::{Deserialize, Serialize};

use crate::distribution::Layout;
use crate::handle::{Handle, Kind};
use crate::identity::{Access, Caller};
use crate::limits;

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

impl Attr {
    /// Returns what somebody may do with the object, by its mode. As in any Unix the first class
    /// counts that he belongs to: owner, group, others. Root may do everything, and run what
    /// anybody may run.
    pub fn access(&self, caller: &Caller) -> Access {
        if caller.is_root() {
            let runs = self.kind != Kind::File || self.mode & 0o111 != 0;
            return Access::BOTH.and(if runs { Access::SEARCH } else { Access::NONE });
        }
        let shift = match self {
            _ if caller.uid == self.uid => 6,
            _ if caller.is_in(self.gid) => 3,
            _ => 0,
        };
        Access::of_class(self.mode >> shift)
    }
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

/// How long a file is, and when it was written last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Bytes.
    pub size: u64,
    /// Time of the last write or change of size, in nanoseconds since 1970 by the clock of the I/O
    /// server. 0 if there was none.
    pub written_ns: u64,
}

/// What the manager knows about the content of a file. It is not told about writes. But a client
/// says before its first one that it begins to write ([`crate::ManagerRequest::BeginWrite`]).
///
/// ```text
///            Create                BeginWrite of another client
///   ────────────▶ Written(client) ──────────────────────────────▶ Shared
///    BeginWrite ▲        │ RecordSize, Publish: synced, with a size     ──▶ Recorded
///               └────────┤ Close: every File of the client has ended    ──▶ Closed
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// Several clients may write, and need not say so. Only the I/O servers know the size.
    Shared,
    /// The file was complete and synced with this size, in bytes, and has not been written since. A
    /// datafile that is shorter than that requires is lost.
    Recorded(u64),
    /// This client may write, and nobody else. Only the I/O servers know the size.
    Written {
        /// The client.
        client: u128,
        /// The number of starts of I/O servers when it began.
        starts: u64,
    },
    /// Nobody has written since the last client that did so has closed the file.
    Closed {
        /// How it was then. `None` if an I/O server was restarted since, and may have lost what was
        /// not synced.
        last: Option<Extent>,
        /// The number of starts of I/O servers then.
        starts: u64,
    },
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
    /// The time at which `attr.mtime_ns` was set, in nanoseconds by the manager's clock: when the
    /// file was created, or when a client last set `mtime_ns`. If an I/O server has written later
    /// than this, the content changed later. The manager is not told about writes.
    pub touched_ns: u64,
    /// What is known about the content of a file; [`Content::Shared`] for anything else.
    pub content: Content,
    /// Where a symbolic link leads; `None` for anything else. Nobody but the reader interprets it.
    #[serde(deserialize_with = "limits::target")]
    pub target: Option<BString>,
}

impl Entry {
    /// Returns the size of a file in bytes, if it was recorded when the file was complete, and the
    /// file has not been written since.
    pub fn recorded_size(&self) -> Option<u64> {
        if let Content::Recorded(size) = self.content { Some(size) } else { None }
    }

    /// Returns the attributes of a file with this extent. A write after `touched_ns` is a later
    /// change of the content, and of the attributes too.
    pub fn attr_with(&self, extent: Extent) -> Attr {
        let Extent { size, written_ns } = extent;
        let is_later = written_ns > self.touched_ns && self.recorded_size().is_none();
        let (mtime_ns, ctime_ns) = (self.attr.mtime_ns, self.attr.ctime_ns);
        let (mtime_ns, ctime_ns) = if is_later { (written_ns, ctime_ns.max(written_ns)) } else { (mtime_ns, ctime_ns) };
        Attr { size, mtime_ns, ctime_ns, ..self.attr }
    }

    /// Returns the attributes, if no I/O server has to be asked for them.
    pub fn known_attr(&self) -> Option<Attr> {
        match self.content {
            _ if self.layout.is_none() => Some(self.attr),
            Content::Recorded(size) => Some(self.attr_with(Extent { size, written_ns: 0 })),
            Content::Closed { last: Some(extent), .. } => Some(self.attr_with(extent)),
            Content::Shared | Content::Written { .. } | Content::Closed { last: None, .. } => None,
        }
    }
}
