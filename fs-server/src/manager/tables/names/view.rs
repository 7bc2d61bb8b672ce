//! What requests read: looking up, listing, counting.

use bmi::hooks::step;
use bstr::{BStr, BString};
use fs_proto::limits::MAX_XATTRS;
use fs_proto::{
    Access, Caller, DatafileHandle, DirEntry, DirHandle, Entry, ErrorCode, FileHandle, Handle, Kind, ListEntry,
    ManagerStat, Place, Replace, XattrName,
};
use redb::{AccessGuard, ReadTransaction, ReadableTable, ReadableTableMetadata};

use super::object::{
    COUNTERS, Key, NAMELESS, NAMES, Named, OBJECTS, ORPHANS, Object, STARTED, Stored, XATTRS, components, decoded,
    kind_of, refuse,
};
use crate::manager::Fault;

/// Bytes of a directory entry in a reply, without its name: kind, handle and lengths.
const ENTRY_ROOM: usize = 16;
/// Bytes of a listed object in a reply beyond those of its row, without its name: its handle, in
/// place of the directory above, lengths, and a count that is longer than the stored one.
const LISTED_ROOM: usize = 32;

/// The tables that read operations need, in a transaction for reading or for writing.
pub(in crate::manager) struct View<O, N> {
    pub(super) objects: O,
    pub(super) names: N,
    /// Who asks.
    pub(super) caller: Caller,
    /// The number of its client, if it is one.
    pub(super) client: Option<u128>,
    /// How often I/O servers were started.
    pub(super) starts: u64,
}

/// Returns the tables as of the last commit, for [everybody](View::by).
pub(in crate::manager) fn view(
    transaction: &ReadTransaction,
) -> Result<View<impl ReadableTable<u64, &'static [u8]>, impl ReadableTable<Key, Named>>, Fault> {
    let starts = transaction.open_table(COUNTERS)?.get(STARTED)?.map_or(0, |starts| starts.value());
    let (objects, names) = (transaction.open_table(OBJECTS)?, transaction.open_table(NAMES)?);
    Ok(View { objects, names, caller: Caller::ROOT, client: None, starts })
}

/// Returns the counts of what the manager holds, without the pools.
pub(in crate::manager) fn stat(transaction: &ReadTransaction) -> Result<ManagerStat, Fault> {
    let counters = transaction.open_table(COUNTERS)?;
    let counter = |name: &str| Ok::<u64, Fault>(counters.get(name)?.map_or(0, |value| value.value()));
    Ok(ManagerStat {
        files: counter("files")?,
        dirs: counter("dirs")?,
        nameless: transaction.open_table(NAMELESS)?.len()?,
        orphans: transaction.open_table(ORPHANS)?.len()?,
        prepared: 0,
    })
}

/// Returns the value of an extended attribute.
pub(in crate::manager) fn xattr(
    transaction: &ReadTransaction,
    caller: &Caller,
    handle: Handle,
    name: &XattrName,
) -> Result<BString, Fault> {
    let view = view(transaction)?.by(caller, 0);
    view.may_use_xattr(&view.named(handle)?, Some(&name.0), Access::READ)?;
    match transaction.open_table(XATTRS)?.get((handle.raw(), name.0.as_slice()))? {
        Some(value) => Ok(value.value().into()),
        None => refuse(ErrorCode::NotFound, format!("{handle} has no extended attribute {:?}", name.0)),
    }
}

/// Returns the names of the extended attributes of an object.
pub(in crate::manager) fn xattrs(
    transaction: &ReadTransaction,
    caller: &Caller,
    handle: Handle,
) -> Result<Vec<XattrName>, Fault> {
    let view = view(transaction)?.by(caller, 0);
    view.may_use_xattr(&view.named(handle)?, None, Access::READ)?;
    xattr_names(&transaction.open_table(XATTRS)?, handle.raw())
}

pub(super) fn xattr_names(xattrs: &impl ReadableTable<Key, &'static [u8]>, raw: u64) -> Result<Vec<XattrName>, Fault> {
    let rows = xattrs.range((raw, [].as_slice())..(raw + 1, [].as_slice()))?.take(MAX_XATTRS);
    rows.map(|row| Ok(XattrName(row?.0.value().1.into()))).collect()
}

/// Returns up to `max` datafiles that must still be removed from I/O server `iod`.
pub(in crate::manager) fn orphans(
    transaction: &ReadTransaction,
    iod: u32,
    from: u64,
    max: usize,
) -> Result<Vec<DatafileHandle>, Fault> {
    let table = transaction.open_table(ORPHANS)?;
    let mut list = Vec::new();
    for row in table.range((iod, from)..=(iod, u64::MAX))?.take(max) {
        step();
        list.push(DatafileHandle(row?.0.value().1));
    }
    Ok(list)
}

/// Returns at most `most` objects from the number `first` on, with their numbers.
pub(in crate::manager) fn objects_from(
    objects: &impl ReadableTable<u64, &'static [u8]>,
    first: u64,
    most: usize,
) -> Result<Vec<(u64, Object)>, Fault> {
    let read = |row: Result<(AccessGuard<'_, u64>, AccessGuard<'_, &'static [u8]>), redb::StorageError>| {
        let (raw, bytes) = row?;
        Ok((raw.value(), decoded(raw.value(), bytes.value())?))
    };
    objects.range(first..)?.take(most).map(read).collect()
}

impl<O: ReadableTable<u64, &'static [u8]>, N: ReadableTable<Key, Named>> View<O, N> {
    pub(super) fn find(&self, raw: u64) -> Result<Option<Object>, Fault> {
        step();
        self.objects.get(raw)?.map(|bytes| decoded(raw, bytes.value())).transpose()
    }

    pub(super) fn object(&self, raw: u64) -> Result<Object, Fault> {
        match self.find(raw)? {
            Some(object) => Ok(object),
            None => refuse(ErrorCode::Stale, format!("handle {raw:x} names nothing")),
        }
    }

    /// Returns the number and the kind of what has a name.
    pub(super) fn name(&self, dir: u64, name: &[u8]) -> Result<Option<(u64, Kind)>, Fault> {
        step();
        let named = self.names.get((dir, name))?.map(|value| value.value());
        named.map(|named| Ok((named.0, kind_of(named)?))).transpose()
    }

    /// Follows `names` from `dir`, and returns the object at the end. Symbolic links are not
    /// followed.
    pub(super) fn walk(&self, dir: DirHandle, names: &[&BStr], path: &BStr) -> Result<u64, Fault> {
        let first = self.object(dir.0)?;
        if first.attr.kind != Kind::Dir {
            return refuse(ErrorCode::NotDirectory, format!("handle {:x}", dir.0));
        }
        if dir != DirHandle::ROOT {
            self.may_reach(&first)?;
        }
        let mut at = (dir.0, Kind::Dir);
        for name in names {
            match at.1 {
                Kind::Dir => {}
                Kind::File => return refuse(ErrorCode::NotDirectory, format!("{path:?}, before {name:?}")),
                Kind::Symlink => {
                    let text = format!("{path:?}, before {name:?}: a symbolic link, which the client must follow");
                    return refuse(ErrorCode::NotDirectory, text);
                }
            }
            if at.0 == dir.0 {
                self.may_search(&first)?;
            } else if !self.caller.is_root() {
                self.may_search(&self.object(at.0)?)?;
            }
            match self.name(at.0, name)? {
                Some(next) => at = next,
                None => return refuse(ErrorCode::NotFound, format!("{path:?}, at {name:?}")),
            }
        }
        Ok(at.0)
    }

    /// Returns the directory and the last name of a place.
    pub(super) fn parent<'p>(&self, place: &'p Place) -> Result<(u64, &'p BStr), Fault> {
        let names = components(BStr::new(&place.path))?;
        let Some((last, before)) = names.split_last() else {
            return refuse(ErrorCode::Invalid, "the empty path has no name that could be made, moved or removed");
        };
        let dir = self.walk(place.dir, before, BStr::new(&place.path))?;
        let above = self.object(dir)?;
        if above.attr.kind != Kind::Dir {
            return refuse(ErrorCode::NotDirectory, format!("{:?}, before {last:?}", place.path));
        }
        self.may_search(&above)?;
        Ok((dir, last))
    }

    /// Checks that what is at a place may be replaced.
    pub(super) fn check_replaced(
        &self,
        place: &Place,
        there: Option<(u64, Kind)>,
        replace: Replace,
    ) -> Result<(), Fault> {
        match (replace, there) {
            (Replace::Anything, _) | (Replace::Nothing, None) => Ok(()),
            (Replace::File(_), None) => refuse(ErrorCode::NotFound, format!("{:?}", place.path)),
            (Replace::File(FileHandle(file)), Some((raw, Kind::File)))
                if raw == file && matches!(self.object(raw)?.content, Stored::Recorded(_)) =>
            {
                Ok(())
            }
            _ => refuse(ErrorCode::Exists, format!("{:?}", place.path)),
        }
    }

    /// Returns the object at a place.
    #[cfg(any(test, all(fuzzing, feature = "sim")))]
    pub(in crate::manager) fn lookup(&self, place: &Place) -> Result<Entry, Fault> {
        let (raw, object) = self.found(place)?;
        Ok(self.told(raw, object))
    }

    /// Returns the object at a place, with its number, as it is stored.
    pub(in crate::manager) fn found(&self, place: &Place) -> Result<(u64, Object), Fault> {
        let path = BStr::new(&place.path);
        let raw = self.walk(place.dir, &components(path)?, path)?;
        Ok((raw, self.object(raw)?))
    }

    /// Returns an object as its client is told of it.
    pub(in crate::manager) fn told(&self, raw: u64, object: Object) -> Entry {
        object.entry(raw, self.starts, self.client)
    }

    /// Returns the object that a handle names.
    pub(in crate::manager) fn getattr(&self, wanted: Handle) -> Result<Entry, Fault> {
        Ok(self.told(wanted.raw(), self.named(wanted)?))
    }

    /// Returns the object that a handle names, as it is stored.
    pub(in crate::manager) fn named(&self, wanted: Handle) -> Result<Object, Fault> {
        let object = self.object(wanted.raw())?;
        if object.attr.kind != wanted.kind() {
            return refuse(ErrorCode::Stale, format!("{wanted} names something of another kind"));
        }
        Ok(object)
    }

    /// Returns the entries after `after`, at most `max` of them and at most `room` bytes of reply.
    /// Also returns whether there are more.
    pub(in crate::manager) fn readdir(
        &self,
        dir: DirHandle,
        after: &[u8],
        max: usize,
        room: usize,
    ) -> Result<(Vec<DirEntry>, bool), Fault> {
        self.list(dir, after, (max, room), |name, raw, kind| {
            Ok((DirEntry { name: name.into(), handle: Handle::new(kind, raw) }, ENTRY_ROOM))
        })
    }

    /// Returns entries like [`View::readdir`], each with its object.
    pub(in crate::manager) fn listing(
        &self,
        dir: DirHandle,
        after: &[u8],
        max: usize,
        room: usize,
    ) -> Result<(Vec<ListEntry>, bool), Fault> {
        self.list(dir, after, (max, room), |name, raw, _| {
            step();
            let Some(bytes) = self.objects.get(raw)? else {
                return Err(Fault::Corrupt(format!("{name:?} leads to {raw:x}, which is not there")));
            };
            let entry = decoded(raw, bytes.value())?.entry(raw, self.starts, self.client);
            Ok((ListEntry { name: name.into(), entry }, bytes.value().len() + LISTED_ROOM))
        })
    }

    /// Returns what `entry` makes of the names after `after`, each with the bytes that it takes
    /// beside the name: at most `max` of them, and at most `room` bytes.
    fn list<E>(
        &self,
        dir: DirHandle,
        after: &[u8],
        (max, room): (usize, usize),
        entry: impl Fn(&BStr, u64, Kind) -> Result<(E, usize), Fault>,
    ) -> Result<(Vec<E>, bool), Fault> {
        self.may_list(dir)?;
        let (mut entries, mut left) = (Vec::new(), room);
        for row in self.names.range((dir.0, after)..)? {
            step();
            let (key, value) = row?;
            let ((of, name), named) = (key.value(), value.value());
            if of != dir.0 {
                break;
            }
            if name == after {
                continue;
            }
            if entries.len() >= max.max(1) {
                return Ok((entries, true));
            }
            let (made, needed) = entry(BStr::new(name), named.0, kind_of(named)?)?;
            let needed = name.len() + needed;
            if needed > left && !entries.is_empty() {
                return Ok((entries, true));
            }
            left = left.saturating_sub(needed);
            entries.push(made);
        }
        Ok((entries, false))
    }

    /// Returns true if `dir` is `ancestor` or is below it.
    ///
    /// # Errors
    /// `Corrupt` if a directory is below itself. The last directory of 1, 2, 4, 8 … steps is
    /// remembered to find that out, however deep the directories are.
    pub(super) fn is_within(&self, mut dir: u64, ancestor: u64) -> Result<bool, Fault> {
        let (mut remembered, mut steps) = (dir, 0u64);
        loop {
            if dir == ancestor {
                return Ok(true);
            }
            if dir == DirHandle::ROOT.0 {
                return Ok(false);
            }
            dir = self.object(dir)?.parent;
            if dir == remembered {
                return Err(Fault::Corrupt(format!("directory {dir:x} is below itself")));
            }
            steps += 1;
            if steps.is_power_of_two() {
                remembered = dir;
            }
        }
    }
}
