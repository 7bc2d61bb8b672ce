//! Directories, files and names: the manager's tables and the operations on them.
//!
//! **Layout** of the tables
//!
//! ```text
//!   objects   handle → parent, attributes, layout       every file and directory, by number
//!   names     (directory, name) → handle, kind          in the order of names, so a page of a directory is a range
//!   counters  "epoch" | "next" | "created" | "files" | "dirs" → number
//!   orphans   (I/O server, datafile) → ()               datafiles of removed files, still to be removed there
//!   nameless  (client, file) → ()                       files without a name (`nameless`)
//!   truncates (I/O server, datafile) → size, error      changes of size in progress (`truncates`)
//! ```
//!
//! **Invariants**
//! 1. A change makes all its checks before its first write. A change that is refused has written
//!    nothing, so several changes can share a transaction.
//! 2. Every object but the root and the nameless files has exactly one name, and its `parent` is
//!    the directory of that name.
//! 3. A directory's `size` is its number of names. Its `nlink` is two plus one for each
//!    subdirectory.
//! 4. A handle is assigned once: it is the manager's start epoch and a count that never goes back.
//!    A datafile is in a pool (`pools`), in the layout of one file, or among the orphans until its
//!    server has removed it.
//!
//! **Source.** [PVFS-IB §2.1]. The tests in `tests.rs` check invariants 2 to 4 after every change
//! of a random sequence.

mod nameless;
mod truncates;

use bmi::hooks::{mutated, step};

use fs_proto::limits::{MAX_NAME, MAX_PATH};
use fs_proto::{
    Attr, DatafileHandle, DirEntry, DirHandle, Distribution, Entry, ErrorCode, Existing, FileHandle, FsError, Handle,
    Kind, Layout, MAX_EPOCH, ManagerStat, Place, RemoveKind, SetAttr, handle_number,
};
use redb::{
    AccessGuard, ReadTransaction, ReadableTable, ReadableTableMetadata, Table, TableDefinition, WriteTransaction,
};
use serde::{Deserialize, Serialize};

use super::Fault;
use super::placement::Wanted;
pub(super) use nameless::{NAMELESS, Publication, owners};
pub(super) use truncates::{Decided, TRUNCATES, Truncates, truncates, truncation};

pub(super) type Key = (u64, &'static str);
pub(super) type Named = (u64, bool);

pub(super) const OBJECTS: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("objects");
pub(super) const NAMES: TableDefinition<'static, Key, Named> = TableDefinition::new("names");
pub(super) const COUNTERS: TableDefinition<'static, &'static str, u64> = TableDefinition::new("counters");
pub(super) const ORPHANS: TableDefinition<'static, (u32, u64), ()> = TableDefinition::new("orphans");

/// Bytes of a directory entry in a reply, without its name: kind, handle and lengths.
const ENTRY_ROOM: usize = 16;

/// A file or directory, as stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Object {
    pub(super) parent: u64,
    pub(super) attr: Attr,
    pub(super) layout: Option<Layout>,
    /// See [`Entry::touched_ns`].
    pub(super) touched_ns: u64,
    /// See [`Entry::recorded_size`].
    pub(super) recorded_size: Option<u64>,
}

impl Object {
    pub(super) fn decode(bytes: &[u8]) -> postcard::Result<Object> {
        postcard::from_bytes(bytes)
    }

    /// Returns true for a file without a name.
    pub(super) fn is_nameless(&self) -> bool {
        self.parent == nameless::NO_PARENT
    }
}

impl Object {
    fn entry(self, raw: u64) -> Entry {
        let handle = handle(raw, self.attr.kind == Kind::Dir);
        let Object { attr, layout, touched_ns, recorded_size, .. } = self;
        Entry { handle, attr, layout, touched_ns, recorded_size }
    }
}

fn handle(raw: u64, dir: bool) -> Handle {
    if dir { Handle::Dir(DirHandle(raw)) } else { Handle::File(FileHandle(raw)) }
}

fn refuse<T>(code: ErrorCode, detail: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Refused(FsError::new(code, detail)))
}

/// Checks one component of a path.
fn check_name(name: &str) -> Result<(), Fault> {
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
fn components(path: &str) -> Result<Vec<&str>, Fault> {
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

/// The tables that read operations need, in a transaction for reading or for writing.
pub(super) struct View<O, N> {
    objects: O,
    names: N,
}

/// Returns the tables as of the last commit.
pub(super) fn view(
    transaction: &ReadTransaction,
) -> Result<View<impl ReadableTable<u64, &'static [u8]>, impl ReadableTable<Key, Named>>, Fault> {
    Ok(View { objects: transaction.open_table(OBJECTS)?, names: transaction.open_table(NAMES)? })
}

/// Returns the counts of what the manager holds, without the pools.
pub(super) fn stat(transaction: &ReadTransaction) -> Result<ManagerStat, Fault> {
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

/// Returns up to `max` datafiles that must still be removed from I/O server `iod`.
pub(super) fn orphans(
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

/// Decodes a stored object.
fn decoded(raw: u64, bytes: &[u8]) -> Result<Object, Fault> {
    Object::decode(bytes).map_err(|error| Fault::Corrupt(format!("object {raw}: {error}")))
}

/// Returns at most `most` objects from the number `first` on, with their numbers.
pub(super) fn objects_from(
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
    fn find(&self, raw: u64) -> Result<Option<Object>, Fault> {
        step();
        self.objects.get(raw)?.map(|bytes| decoded(raw, bytes.value())).transpose()
    }

    fn object(&self, raw: u64) -> Result<Object, Fault> {
        match self.find(raw)? {
            Some(object) => Ok(object),
            None => refuse(ErrorCode::Stale, format!("handle {raw:x} names nothing")),
        }
    }

    fn name(&self, dir: u64, name: &str) -> Result<Option<Named>, Fault> {
        step();
        Ok(self.names.get((dir, name))?.map(|value| value.value()))
    }

    /// Follows `names` from `dir`, and returns the file or directory at the end.
    fn walk(&self, dir: DirHandle, names: &[&str], path: &str) -> Result<u64, Fault> {
        if self.object(dir.0)?.attr.kind != Kind::Dir {
            return refuse(ErrorCode::NotDirectory, format!("handle {:x}", dir.0));
        }
        let mut at = (dir.0, true);
        for name in names {
            if !at.1 {
                return refuse(ErrorCode::NotDirectory, format!("{path:?}, before {name:?}"));
            }
            match self.name(at.0, name)? {
                Some(next) => at = next,
                None => return refuse(ErrorCode::NotFound, format!("{path:?}, at {name:?}")),
            }
        }
        Ok(at.0)
    }

    /// Returns the directory and the last name of a place.
    fn parent<'p>(&self, place: &'p Place) -> Result<(u64, &'p str), Fault> {
        let names = components(&place.path)?;
        let Some((last, before)) = names.split_last() else {
            return refuse(ErrorCode::Invalid, "the empty path has no name that could be made, moved or removed");
        };
        let dir = self.walk(place.dir, before, &place.path)?;
        if self.object(dir)?.attr.kind != Kind::Dir {
            return refuse(ErrorCode::NotDirectory, format!("{:?}, before {last:?}", place.path));
        }
        Ok((dir, last))
    }

    /// Returns the object at a place.
    pub(super) fn lookup(&self, place: &Place) -> Result<Entry, Fault> {
        let raw = self.walk(place.dir, &components(&place.path)?, &place.path)?;
        Ok(self.object(raw)?.entry(raw))
    }

    /// Returns the object that a handle names.
    pub(super) fn getattr(&self, wanted: Handle) -> Result<Entry, Fault> {
        let entry = self.object(wanted.raw())?.entry(wanted.raw());
        if entry.handle != wanted {
            return refuse(ErrorCode::Stale, format!("{wanted} names something of another kind"));
        }
        Ok(entry)
    }

    /// Returns the entries after `after`, at most `max` of them and at most `room` bytes of reply.
    /// Also returns whether there are more.
    pub(super) fn readdir(
        &self,
        dir: DirHandle,
        after: &str,
        max: usize,
        room: usize,
    ) -> Result<(Vec<DirEntry>, bool), Fault> {
        if self.object(dir.0)?.attr.kind != Kind::Dir {
            return refuse(ErrorCode::NotDirectory, dir.to_string());
        }
        let (mut entries, mut left) = (Vec::new(), room);
        for row in self.names.range((dir.0, after)..)? {
            step();
            let (key, value) = row?;
            let ((of, name), (raw, is_dir)) = (key.value(), value.value());
            if of != dir.0 {
                break;
            }
            if name == after {
                continue;
            }
            let needed = name.len() + ENTRY_ROOM;
            if entries.len() >= max.max(1) || (needed > left && !entries.is_empty()) {
                return Ok((entries, true));
            }
            left = left.saturating_sub(needed);
            entries.push(DirEntry { name: name.to_owned(), handle: handle(raw, is_dir) });
        }
        Ok((entries, false))
    }

    /// Returns true if `dir` is `ancestor` or is below it.
    ///
    /// # Errors
    /// `Corrupt` if a directory is below itself. The last directory of 1, 2, 4, 8 … steps is
    /// remembered to find that out, however deep the directories are.
    fn is_within(&self, mut dir: u64, ancestor: u64) -> Result<bool, Fault> {
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

/// Looks at a directory and at what is in it, and moves a directory into another, as requests
/// would.
#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub(crate) fn fuzz_view(store: &crate::store::MetaStore, dir: DirHandle) {
    let entries = {
        let read = store.read().expect("a database");
        let _ = stat(&read);
        let view = view(&read).expect("tables");
        let Ok((entries, _)) = view.readdir(dir, "", 8, 4096) else { return };
        for entry in &entries {
            let _ = view.getattr(entry.handle);
            let _ = view.lookup(&Place::at(dir, entry.name.clone()));
        }
        entries
    };
    let transaction = store.write().expect("a database");
    let mut change = Change::open(&transaction, 0).expect("tables");
    for from in &entries {
        for to in &entries {
            let _ = change.rename(&Place::at(dir, from.name.clone()), &Place::at(dir, format!("{}/x", to.name)));
        }
    }
}

/// The tables in a transaction for writing.
pub(super) struct Change<'t> {
    view: View<Table<'t, u64, &'static [u8]>, Table<'t, Key, Named>>,
    counters: Table<'t, &'static str, u64>,
    orphans: Table<'t, (u32, u64), ()>,
    nameless: Table<'t, (u128, u64), ()>,
    truncates: Table<'t, (u32, u64), truncates::Row>,
    epoch: u64,
    now_ns: u64,
}

/// A file that is to be created.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewFile<'a> {
    pub(super) place: &'a Place,
    pub(super) birth: Birth,
    /// In bytes; 0 if none is requested.
    pub(super) strip_size: u64,
    /// The strip size if there is no other, in bytes.
    pub(super) default_strip: u64,
    /// The requested number of servers, or 0.
    pub(super) servers: u32,
    pub(super) existing: Existing,
    /// The client that creates it.
    pub(super) client: u128,
}

/// The initial attributes of a new file or directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Birth {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl<'t> Change<'t> {
    /// Opens the tables, and creates them and the root if they do not exist.
    pub(super) fn open(transaction: &'t WriteTransaction, now_ns: u64) -> Result<Change<'t>, Fault> {
        let view = View { objects: transaction.open_table(OBJECTS)?, names: transaction.open_table(NAMES)? };
        let counters = transaction.open_table(COUNTERS)?;
        let orphans = transaction.open_table(ORPHANS)?;
        let nameless = transaction.open_table(NAMELESS)?;
        let truncates = transaction.open_table(truncates::TRUNCATES)?;
        let epoch = counters.get("epoch")?.map_or(0, |epoch| epoch.value());
        let mut change = Change { view, counters, orphans, nameless, truncates, epoch, now_ns };
        if change.view.find(DirHandle::ROOT.0)?.is_none() {
            let attr = change.attr(Kind::Dir, Birth { mode: 0o755, uid: 0, gid: 0 });
            change.store(
                DirHandle::ROOT.0,
                &Object { parent: DirHandle::ROOT.0, attr, layout: None, touched_ns: now_ns, recorded_size: None },
            )?;
            change.count("dirs", 1)?;
            change.counters.insert("next", DirHandle::ROOT.0 + 1)?;
        }
        Ok(change)
    }

    fn attr(&self, kind: Kind, birth: Birth) -> Attr {
        let Birth { mode, uid, gid } = birth;
        let (nlink, now) = (if kind == Kind::Dir { 2 } else { 1 }, self.now_ns);
        Attr { kind, mode: mode & 0o7777, uid, gid, size: 0, atime_ns: now, mtime_ns: now, ctime_ns: now, nlink }
    }

    fn store(&mut self, raw: u64, object: &Object) -> Result<(), Fault> {
        let bytes = postcard::to_extend(object, Vec::with_capacity(128))
            .map_err(|error| Fault::Corrupt(format!("object {raw}: {error}")))?;
        self.view.objects.insert(raw, bytes.as_slice())?;
        Ok(())
    }

    fn counter(&self, name: &str) -> Result<u64, Fault> {
        Ok(self.counters.get(name)?.map_or(0, |value| value.value()))
    }

    fn count(&mut self, name: &str, by: i64) -> Result<(), Fault> {
        let value = self.counter(name)?.saturating_add_signed(by);
        self.counters.insert(name, value)?;
        Ok(())
    }

    /// Begins the next start of the database. Returns its number.
    pub(super) fn begin_epoch(&mut self) -> Result<u64, Fault> {
        self.epoch += 1;
        if self.epoch > MAX_EPOCH {
            return Err(Fault::Corrupt(format!("epoch {}", self.epoch)));
        }
        self.counters.insert("epoch", self.epoch)?;
        Ok(self.epoch)
    }

    /// Returns the number of handles that were assigned.
    pub(super) fn assigned(&self) -> Result<u64, Fault> {
        self.counter("next")
    }

    /// Returns the first of the next `count` handles.
    pub(super) fn handles(&mut self, count: u64) -> Result<u64, Fault> {
        let first = self.counter("next")?;
        self.counters.insert("next", first + count)?;
        Ok(handle_number(self.epoch, first))
    }

    /// Adds or removes a name, and updates its directory.
    fn link(&mut self, dir: u64, name: &str, target: Option<Named>, subdirs: i32) -> Result<(), Fault> {
        let mut parent = self.view.object(dir)?;
        match target {
            Some(target) => {
                if self.view.names.insert((dir, name), target)?.is_none() {
                    parent.attr.size += 1;
                }
            }
            None => {
                if self.view.names.remove((dir, name))?.is_some() {
                    parent.attr.size = parent.attr.size.saturating_sub(1);
                }
            }
        }
        parent.attr.nlink = parent.attr.nlink.saturating_add_signed(subdirs);
        (parent.attr.mtime_ns, parent.attr.ctime_ns) = (self.now_ns, self.now_ns);
        self.store(dir, &parent)
    }

    /// Removes an object that has no name any more. The datafiles of a file become orphans.
    fn bury(&mut self, raw: u64, object: &Object) -> Result<(), Fault> {
        self.bury_uncounted(raw, object)?;
        self.count(if object.attr.kind == Kind::Dir { "dirs" } else { "files" }, -1)
    }

    fn bury_uncounted(&mut self, raw: u64, object: &Object) -> Result<(), Fault> {
        self.view.objects.remove(raw)?;
        for (iod, datafile) in object.layout.iter().flat_map(Layout::datafiles) {
            step();
            self.truncates.remove((*iod, datafile.0))?;
            if !mutated("manager/datafiles-of-a-removed-file-forgotten") {
                self.orphans.insert((*iod, datafile.0), ())?;
            }
        }
        Ok(())
    }

    /// Creates a directory.
    pub(super) fn mkdir(&mut self, place: &Place, birth: Birth) -> Result<Entry, Fault> {
        let (dir, name) = self.view.parent(place)?;
        if self.view.name(dir, name)?.is_some() {
            return refuse(ErrorCode::Exists, format!("{:?}", place.path));
        }
        let raw = self.handles(1)?;
        let attr = self.attr(Kind::Dir, birth);
        let object = Object { parent: dir, attr, layout: None, touched_ns: self.now_ns, recorded_size: None };
        self.store(raw, &object)?;
        self.link(dir, name, Some((raw, true)), 1)?;
        self.count("dirs", 1)?;
        Ok(object.entry(raw))
    }

    /// Creates a file. `place_datafiles` chooses its datafiles; it is given the number of files
    /// created before. Also returns whether it was created.
    pub(super) fn create(
        &mut self,
        new: NewFile<'_>,
        place_datafiles: impl FnOnce(u64, Wanted) -> Result<Vec<(u32, DatafileHandle)>, Fault>,
    ) -> Result<(Entry, bool), Fault> {
        let NewFile { place, mut strip_size, servers, existing, .. } = new;
        let (dir, name) = self.view.parent(place)?;
        let mut wanted = if servers == 0 { Wanted::All } else { Wanted::Exactly(servers) };
        match (self.view.name(dir, name)?, existing) {
            (Some((_, true)), _) => return refuse(ErrorCode::IsDirectory, format!("{:?}", place.path)),
            (Some(_), Existing::Refuse) => return refuse(ErrorCode::Exists, format!("{:?}", place.path)),
            (Some((raw, false)), Existing::Open) => return Ok((self.view.object(raw)?.entry(raw), false)),
            (Some((raw, false)), Existing::Replace) => {
                // One that cannot be read can still be replaced.
                if let Some(layout) = self.view.object(raw).ok().and_then(|object| object.layout) {
                    let distribution = layout.distribution();
                    strip_size = if strip_size == 0 { distribution.strip_size() } else { strip_size };
                    wanted = if servers == 0 { Wanted::AtMost(layout.datafiles().len() as u32) } else { wanted };
                }
            }
            (None, _) => {}
        }
        let strip_size = if strip_size == 0 { new.default_strip } else { strip_size };
        // Any number of servers is possible here, so only the strip size can be wrong.
        Distribution::simple_stripe(strip_size, 1)?;
        let created = self.counter("created")?;
        let datafiles = place_datafiles(created, wanted)?;
        let distribution = Distribution::simple_stripe(strip_size, datafiles.len() as u32)?;
        let layout = Layout::new(distribution, datafiles)?;
        let raw = self.handles(1)?;
        self.count("created", 1)?;
        let (attr, touched_ns) = (self.attr(Kind::File, new.birth), self.now_ns);
        let object = Object { parent: dir, attr, layout: Some(layout), touched_ns, recorded_size: None };
        if existing == Existing::Replace {
            return Ok((self.keep_nameless(raw, object, new.client)?, true));
        }
        self.store(raw, &object)?;
        self.link(dir, name, Some((raw, false)), 0)?;
        self.count("files", 1)?;
        Ok((object.entry(raw), true))
    }

    /// Records the size of a file, or forgets it.
    pub(super) fn record_size(&mut self, file: FileHandle, size: Option<u64>) -> Result<(), Fault> {
        self.view.getattr(Handle::File(file))?;
        let mut object = self.view.object(file.0)?;
        if object.recorded_size != size {
            object.recorded_size = size;
            self.store(file.0, &object)?;
        }
        Ok(())
    }

    /// Changes attributes.
    pub(super) fn setattr(&mut self, wanted: Handle, set: &SetAttr) -> Result<Entry, Fault> {
        self.view.getattr(wanted)?;
        let mut object = self.view.object(wanted.raw())?;
        let attr = &mut object.attr;
        attr.mode = set.mode.map_or(attr.mode, |mode| mode & 0o7777);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime_ns = set.atime_ns.unwrap_or(attr.atime_ns);
        if let Some(mtime_ns) = set.mtime_ns {
            (attr.mtime_ns, object.touched_ns) = (mtime_ns, self.now_ns);
        }
        attr.ctime_ns = self.now_ns;
        self.store(wanted.raw(), &object)?;
        Ok(object.entry(wanted.raw()))
    }

    /// Removes a file or an empty directory.
    pub(super) fn remove(&mut self, place: &Place, kind: RemoveKind) -> Result<(), Fault> {
        let (dir, name) = self.view.parent(place)?;
        let Some((raw, is_dir)) = self.view.name(dir, name)? else {
            return refuse(ErrorCode::NotFound, format!("{:?}", place.path));
        };
        match kind {
            RemoveKind::File if is_dir => return refuse(ErrorCode::IsDirectory, format!("{:?}", place.path)),
            RemoveKind::Dir if !is_dir => return refuse(ErrorCode::NotDirectory, format!("{:?}", place.path)),
            _ => {}
        }
        let object = self.view.object(raw)?;
        if is_dir && object.attr.size > 0 {
            return refuse(ErrorCode::NotEmpty, format!("{:?}", place.path));
        }
        self.bury(raw, &object)?;
        self.link(dir, name, None, if is_dir { -1 } else { 0 })
    }

    /// Moves a name.
    pub(super) fn rename(&mut self, from: &Place, to: &Place) -> Result<(), Fault> {
        let (from_dir, from_name) = self.view.parent(from)?;
        let (to_dir, to_name) = self.view.parent(to)?;
        let Some((raw, is_dir)) = self.view.name(from_dir, from_name)? else {
            return refuse(ErrorCode::NotFound, format!("{:?}", from.path));
        };
        if is_dir && self.view.is_within(to_dir, raw)? {
            let text = format!("{:?} cannot be moved into itself ({:?})", from.path, to.path);
            return refuse(ErrorCode::Invalid, text);
        }
        let replaced = match self.view.name(to_dir, to_name)? {
            Some((there, _)) if there == raw => return Ok(()),
            Some((_, true)) if !is_dir => return refuse(ErrorCode::IsDirectory, format!("{:?}", to.path)),
            Some((_, false)) if is_dir => return refuse(ErrorCode::NotDirectory, format!("{:?}", to.path)),
            Some((there, _)) => Some((there, self.view.object(there)?)),
            None => None,
        };
        if let Some((_, object)) = &replaced
            && is_dir
            && object.attr.size > 0
        {
            return refuse(ErrorCode::NotEmpty, format!("{:?}", to.path));
        }
        let mut object = self.view.object(raw)?;
        let subdirs = i32::from(is_dir);
        if let Some((there, old)) = &replaced {
            self.bury(*there, old)?;
            self.link(to_dir, to_name, None, -subdirs)?;
        }
        if !mutated("manager/rename-keeps-the-old-name") {
            self.link(from_dir, from_name, None, -subdirs)?;
        }
        self.link(to_dir, to_name, Some((raw, is_dir)), subdirs)?;
        (object.parent, object.attr.ctime_ns) = (to_dir, self.now_ns);
        self.store(raw, &object)
    }

    /// Forgets all orphans of an I/O server, whose store was replaced.
    pub(super) fn forget_all(&mut self, iod: u32) -> Result<(), Fault> {
        Ok(self.orphans.retain_in((iod, 0)..=(iod, u64::MAX), |_, ()| false)?)
    }

    /// Forgets datafiles that their I/O server has removed.
    pub(super) fn forget(&mut self, iod: u32, datafiles: &[DatafileHandle]) -> Result<(), Fault> {
        for datafile in datafiles {
            self.orphans.remove((iod, datafile.0))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
