//! A file or directory as it is stored, the tables that it is in, and paths.

use bmi::hooks::{mutated, step};
use bstr::{BStr, BString};
use fs_proto::limits::{MAX_NAME, MAX_OFFSET, MAX_PATH};
use fs_proto::{Attr, Content, Entry, ErrorCode, Extent, FsError, Handle, Kind, Layout, RequestId};
use redb::TableDefinition;
use serde::{Deserialize, Serialize};

use crate::manager::Fault;

/// A name: its directory, and its bytes.
pub(in crate::manager) type Key = (u64, &'static [u8]);
/// What has a name: its number, and its kind ([`kind_number`]).
pub(in crate::manager) type Named = (u64, u8);

pub(in crate::manager) const OBJECTS: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("objects");
pub(in crate::manager) const NAMES: TableDefinition<'static, Key, Named> = TableDefinition::new("names");
pub(in crate::manager) const COUNTERS: TableDefinition<'static, &'static str, u64> = TableDefinition::new("counters");
pub(in crate::manager) const ORPHANS: TableDefinition<'static, (u32, u64), ()> = TableDefinition::new("orphans");

/// The counter of the starts of I/O servers.
pub(in crate::manager) const STARTED: &str = "starts";

/// Extended attributes, by the number of their object and by name.
pub(in crate::manager) const XATTRS: TableDefinition<'static, Key, &'static [u8]> = TableDefinition::new("xattrs");

/// Files without a name, by their client.
pub(in crate::manager) const NAMELESS: TableDefinition<'static, (u128, u64), ()> = TableDefinition::new("nameless");
/// Files without a name that once had one, and those who hold them.
pub(in crate::manager) const UNNAMED: TableDefinition<'static, (u64, u128), ()> = TableDefinition::new("unnamed");
/// Where to cut the datafile off, and its size then, if they are decided; the encoded error of the
/// server, if it has failed often; and whether another change was begun since.
pub(in crate::manager) type Row = (Option<(u64, u64)>, Option<&'static [u8]>, bool);
pub(in crate::manager) const TRUNCATES: TableDefinition<'static, (u32, u64), Row> = TableDefinition::new("truncates");

/// The parent of a file without a name. No directory has this number.
pub(super) const NO_PARENT: u64 = 0;

/// What is known about the content of a file, as stored. The first two are encoded as the optional
/// recorded size that was in their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::manager) enum Stored {
    /// See [`Content::Shared`].
    Shared,
    /// See [`Content::Recorded`].
    Recorded(u64),
    /// See [`Content::Written`]. Also the last request by which the client has begun to write: one
    /// of before that comes late ends nothing.
    Written { begun: RequestId, starts: u64 },
    /// See [`Content::Closed`]. The extent is right as long as I/O servers were started `starts`
    /// times.
    Closed { extent: Extent, starts: u64 },
}

impl Stored {
    /// Returns it as clients are told, when I/O servers were started `starts` times.
    fn now(self, starts: u64) -> Content {
        match self {
            Stored::Shared => Content::Shared,
            Stored::Recorded(size) => Content::Recorded(size),
            Stored::Written { begun, starts } => Content::Written { client: begun.client, starts },
            Stored::Closed { extent, starts: then } => {
                let is_right = then == starts || mutated("manager/size-outlives-a-start-of-an-iod");
                Content::Closed { last: is_right.then_some(extent), starts }
            }
        }
    }

    /// Returns it when a client begins to write, by this request.
    pub(super) fn begun(self, by: RequestId, starts: u64) -> Stored {
        match self {
            Stored::Shared => self,
            Stored::Written { begun, starts } if begun.client == by.client => {
                Stored::Written { begun: if begun.seq < by.seq { by } else { begun }, starts }
            }
            Stored::Written { .. } if !mutated("manager/second-writer-not-noticed") => Stored::Shared,
            Stored::Written { .. } | Stored::Recorded(_) | Stored::Closed { .. } => {
                Stored::Written { begun: by, starts }
            }
        }
    }

    /// Returns it when a client has ended to write, by this request, and has left the file like
    /// `left` says, which is given the number of starts when it began.
    pub(super) fn ended(self, by: RequestId, left: impl FnOnce(u64) -> Stored) -> Stored {
        match self {
            Stored::Written { begun, starts } if begun.client == by.client && begun.seq <= by.seq => left(starts),
            other => other,
        }
    }
}

/// Checks a size that a client tells. What reads and writes calculate with it must not overflow.
pub(super) fn check_size(size: u64) -> Result<(), Fault> {
    match size {
        ..=MAX_OFFSET => Ok(()),
        size => refuse(ErrorCode::TooLarge, format!("a file of {size} bytes")),
    }
}

/// An object, as stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::manager) struct Object {
    /// The directory that it is in. Of a file with several names, that of one of them, as it was.
    pub(in crate::manager) parent: u64,
    pub(in crate::manager) attr: Attr,
    pub(in crate::manager) layout: Option<Layout>,
    /// See [`Entry::touched_ns`].
    pub(in crate::manager) touched_ns: u64,
    pub(in crate::manager) content: Stored,
    /// See [`Entry::target`].
    pub(in crate::manager) target: Option<BString>,
}

impl Object {
    pub(in crate::manager) fn decode(bytes: &[u8]) -> postcard::Result<Object> {
        postcard::from_bytes(bytes)
    }

    /// Decodes an object as backups of the first format have it.
    pub(in crate::manager) fn decode_first(bytes: &[u8]) -> postcard::Result<Object> {
        let (parent, attr, layout, touched_ns, content) = postcard::from_bytes(bytes)?;
        Ok(Object { parent, attr, layout, touched_ns, content, target: None })
    }

    pub(in crate::manager) fn encode(&self, raw: u64) -> Result<Vec<u8>, Fault> {
        postcard::to_extend(self, Vec::with_capacity(128))
            .map_err(|error| Fault::Corrupt(format!("object {raw}: {error}")))
    }

    /// Returns true for a file without a name.
    pub(in crate::manager) fn is_nameless(&self) -> bool {
        self.parent == NO_PARENT
    }
}

impl Object {
    /// Returns the object as clients are told of it, when I/O servers were started `starts` times.
    /// Nobody but `asker` is told its number: who knows the number of a client can speak in its
    /// name. Another writer is told as 0. Without an asker, all is told.
    pub(in crate::manager) fn entry(self, raw: u64, starts: u64, asker: Option<u128>) -> Entry {
        let Object { attr, layout, target, touched_ns, content, .. } = self;
        let mut content = content.now(starts);
        if let (Content::Written { client, .. }, Some(asker)) = (&mut content, asker)
            && *client != asker
        {
            *client = 0;
        }
        Entry { handle: Handle::new(attr.kind, raw), attr, layout, target, touched_ns, content }
    }
}

/// Returns the number of a kind in the table of names.
pub(in crate::manager) fn kind_number(kind: Kind) -> u8 {
    match kind {
        Kind::File => 0,
        Kind::Dir => 1,
        Kind::Symlink => 2,
    }
}

/// Returns the kind of what has a name.
pub(super) fn kind_of((raw, kind): Named) -> Result<Kind, Fault> {
    match kind {
        0 => Ok(Kind::File),
        1 => Ok(Kind::Dir),
        2 => Ok(Kind::Symlink),
        other => Err(Fault::Corrupt(format!("object {raw} is of kind {other}"))),
    }
}

pub(super) fn refuse<T>(code: ErrorCode, detail: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Refused(FsError::new(code, detail)))
}

/// Checks one component of a path.
pub(super) fn check_name(name: &[u8]) -> Result<(), Fault> {
    if name.len() > MAX_NAME {
        return refuse(
            ErrorCode::NameTooLong,
            format!("a name of {} bytes; at most {MAX_NAME} are allowed", name.len()),
        );
    }
    if name == b"." || name == b".." || name.contains(&0) {
        return refuse(ErrorCode::Invalid, format!("{:?} is not a name", BStr::new(name)));
    }
    Ok(())
}

/// Returns the components of a path, checked.
pub(super) fn components(path: &BStr) -> Result<Vec<&BStr>, Fault> {
    if path.len() > MAX_PATH {
        return refuse(
            ErrorCode::NameTooLong,
            format!("a path of {} bytes; at most {MAX_PATH} are allowed", path.len()),
        );
    }
    let names = path.split(|byte| *byte == b'/').inspect(|_| step());
    let names: Vec<&BStr> = names.filter(|name| !name.is_empty()).map(BStr::new).collect();
    names.iter().try_for_each(|name| check_name(name))?;
    Ok(names)
}

/// Decodes a stored object.
pub(super) fn decoded(raw: u64, bytes: &[u8]) -> Result<Object, Fault> {
    Object::decode(bytes).map_err(|error| Fault::Corrupt(format!("object {raw}: {error}")))
}
