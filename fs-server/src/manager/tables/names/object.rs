//! A file or directory as it is stored, the tables that it is in, and paths.

use bmi::hooks::step;
use fs_proto::limits::{MAX_NAME, MAX_PATH};
use fs_proto::{Attr, DirHandle, Entry, ErrorCode, FileHandle, FsError, Handle, Kind, Layout};
use redb::TableDefinition;
use serde::{Deserialize, Serialize};

use crate::manager::Fault;

pub(in crate::manager) type Key = (u64, &'static str);
pub(in crate::manager) type Named = (u64, bool);

pub(in crate::manager) const OBJECTS: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("objects");
pub(in crate::manager) const NAMES: TableDefinition<'static, Key, Named> = TableDefinition::new("names");
pub(in crate::manager) const COUNTERS: TableDefinition<'static, &'static str, u64> = TableDefinition::new("counters");
pub(in crate::manager) const ORPHANS: TableDefinition<'static, (u32, u64), ()> = TableDefinition::new("orphans");

/// Files without a name, by their client.
pub(in crate::manager) const NAMELESS: TableDefinition<'static, (u128, u64), ()> = TableDefinition::new("nameless");
/// Where to cut the datafile off, and its size then, if they are decided; the encoded error of the
/// server, if it has failed often; and whether another change was begun since.
pub(in crate::manager) type Row = (Option<(u64, u64)>, Option<&'static [u8]>, bool);
pub(in crate::manager) const TRUNCATES: TableDefinition<'static, (u32, u64), Row> = TableDefinition::new("truncates");

/// The parent of a file without a name. No directory has this number.
pub(super) const NO_PARENT: u64 = 0;

/// A file or directory, as stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::manager) struct Object {
    pub(in crate::manager) parent: u64,
    pub(in crate::manager) attr: Attr,
    pub(in crate::manager) layout: Option<Layout>,
    /// See [`Entry::touched_ns`].
    pub(in crate::manager) touched_ns: u64,
    /// See [`Entry::recorded_size`].
    pub(in crate::manager) recorded_size: Option<u64>,
}

impl Object {
    pub(in crate::manager) fn decode(bytes: &[u8]) -> postcard::Result<Object> {
        postcard::from_bytes(bytes)
    }

    /// Returns true for a file without a name.
    pub(in crate::manager) fn is_nameless(&self) -> bool {
        self.parent == NO_PARENT
    }
}

impl Object {
    pub(super) fn entry(self, raw: u64) -> Entry {
        let handle = handle(raw, self.attr.kind == Kind::Dir);
        let Object { attr, layout, touched_ns, recorded_size, .. } = self;
        Entry { handle, attr, layout, touched_ns, recorded_size }
    }
}

pub(super) fn handle(raw: u64, dir: bool) -> Handle {
    if dir { Handle::Dir(DirHandle(raw)) } else { Handle::File(FileHandle(raw)) }
}

pub(super) fn refuse<T>(code: ErrorCode, detail: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Refused(FsError::new(code, detail)))
}

/// Checks one component of a path.
pub(super) fn check_name(name: &str) -> Result<(), Fault> {
    if name.len() > MAX_NAME {
        return refuse(
            ErrorCode::NameTooLong,
            format!("a name of {} bytes; at most {MAX_NAME} are allowed", name.len()),
        );
    }
    if name == "." || name == ".." || name.contains(['\0', '/']) {
        return refuse(ErrorCode::Invalid, format!("{name:?} is not a name"));
    }
    Ok(())
}

/// Returns the components of a path, checked.
pub(super) fn components(path: &str) -> Result<Vec<&str>, Fault> {
    if path.len() > MAX_PATH {
        return refuse(
            ErrorCode::NameTooLong,
            format!("a path of {} bytes; at most {MAX_PATH} are allowed", path.len()),
        );
    }
    let names: Vec<&str> = path.split('/').inspect(|_| step()).filter(|name| !name.is_empty()).collect();
    names.iter().try_for_each(|name| check_name(name))?;
    Ok(names)
}

/// Decodes a stored object.
pub(super) fn decoded(raw: u64, bytes: &[u8]) -> Result<Object, Fault> {
    Object::decode(bytes).map_err(|error| Fault::Corrupt(format!("object {raw}: {error}")))
}
