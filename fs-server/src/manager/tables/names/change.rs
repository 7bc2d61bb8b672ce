//! What requests change, each in a transaction ([`Change`]).

use bmi::hooks::{mutated, step};
use fs_proto::{
    Access, Attr, Caller, DatafileHandle, DefaultLayout, DirHandle, Distribution, Entry, ErrorCode, Existing, Extent,
    FileHandle, Handle, Kind, Layout, MAX_EPOCH, Place, RemoveKind, Replace, RequestId, SetAttr, handle_number,
};
use redb::{ReadableTable, Table, WriteTransaction};

use super::object::{
    COUNTERS, Key, NAMELESS, NAMES, Named, OBJECTS, ORPHANS, Object, Row, STARTED, Stored, TRUNCATES, UNNAMED, XATTRS,
    check_size, kind_number, refuse,
};
use super::view::{View, xattr_names};
use crate::manager::Fault;
use crate::manager::tables::placement::Wanted;
use crate::manager::tables::{HOLDERS, Holds};

/// Bits of a mode: a program runs as its owner, or as its group, and who is in that may run it.
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o0010;

/// The tables in a transaction for writing.
pub(in crate::manager) struct Change<'t> {
    pub(super) view: View<Table<'t, u64, &'static [u8]>, Table<'t, Key, Named>>,
    pub(in crate::manager::tables) counters: Table<'t, &'static str, u64>,
    pub(super) orphans: Table<'t, (u32, u64), ()>,
    pub(super) nameless: Table<'t, (u128, u64), ()>,
    pub(super) unnamed: Table<'t, (u64, u128), ()>,
    pub(super) holders: Table<'t, u128, ()>,
    pub(super) truncates: Table<'t, (u32, u64), Row>,
    pub(super) xattrs: Table<'t, Key, &'static [u8]>,
    pub(super) epoch: u64,
    pub(in crate::manager::tables) now_ns: u64,
    /// Who holds the files that lose their last names.
    pub(in crate::manager) holds: Holds,
}

/// A file that is to be created.
#[derive(Clone, Copy, Debug)]
pub(in crate::manager) struct NewFile<'a> {
    pub(in crate::manager) place: &'a Place,
    pub(in crate::manager) birth: Birth,
    /// In bytes; 0 if none is requested.
    pub(in crate::manager) strip_size: u64,
    /// The strip size if there is no other, in bytes.
    pub(in crate::manager) default_strip: u64,
    /// The requested number of servers, or 0.
    pub(in crate::manager) servers: u32,
    pub(in crate::manager) existing: Existing,
    /// It begins with one datafile.
    pub(in crate::manager) small: bool,
    /// Who creates it.
    pub(in crate::manager) by: RequestId,
}

/// The initial attributes of a new file or directory.
#[derive(Clone, Copy, Debug)]
pub(in crate::manager) struct Birth {
    pub(in crate::manager) mode: u32,
    pub(in crate::manager) uid: u32,
    pub(in crate::manager) gid: u32,
}

impl<'t> Change<'t> {
    /// Opens the tables for root, and creates them and the root if they do not exist.
    pub(in crate::manager) fn open(transaction: &'t WriteTransaction, now_ns: u64) -> Result<Change<'t>, Fault> {
        let counters = transaction.open_table(COUNTERS)?;
        let starts = counters.get(STARTED)?.map_or(0, |starts| starts.value());
        let view = View {
            objects: transaction.open_table(OBJECTS)?,
            names: transaction.open_table(NAMES)?,
            caller: Caller::ROOT,
            client: None,
            starts,
        };
        let orphans = transaction.open_table(ORPHANS)?;
        let nameless = transaction.open_table(NAMELESS)?;
        let unnamed = transaction.open_table(UNNAMED)?;
        let holders = transaction.open_table(HOLDERS)?;
        let truncates = transaction.open_table(TRUNCATES)?;
        let xattrs = transaction.open_table(XATTRS)?;
        let epoch = counters.get("epoch")?.map_or(0, |epoch| epoch.value());
        let holds = Holds::default();
        let mut change =
            Change { view, counters, orphans, nameless, unnamed, holders, truncates, xattrs, epoch, now_ns, holds };
        if change.view.find(DirHandle::ROOT.0)?.is_none() {
            let attr = change.attr(Kind::Dir, Birth { mode: 0o755, uid: 0, gid: 0 });
            change.store(DirHandle::ROOT.0, &change.object(DirHandle::ROOT.0, attr))?;
            change.count("dirs", 1)?;
            change.counters.insert("next", DirHandle::ROOT.0 + 1)?;
        }
        Ok(change)
    }

    pub(super) fn attr(&self, kind: Kind, birth: Birth) -> Attr {
        let Birth { mode, uid, gid } = birth;
        let (nlink, now) = (if kind == Kind::Dir { 2 } else { 1 }, self.now_ns);
        Attr { kind, mode: mode & 0o7777, uid, gid, size: 0, atime_ns: now, mtime_ns: now, ctime_ns: now, nlink }
    }

    /// Returns a new object that is neither file nor link.
    pub(super) fn object(&self, parent: u64, attr: Attr) -> Object {
        Object { parent, attr, layout: None, target: None, touched_ns: self.now_ns, content: Stored::Shared }
    }

    /// Returns an object as the client of a request is told of it.
    pub(super) fn entry(&self, raw: u64, object: Object) -> Entry {
        object.entry(raw, self.view.starts, self.view.client)
    }

    pub(super) fn store(&mut self, raw: u64, object: &Object) -> Result<(), Fault> {
        self.view.objects.insert(raw, object.encode(raw)?.as_slice())?;
        Ok(())
    }

    pub(super) fn counter(&self, name: &str) -> Result<u64, Fault> {
        Ok(self.counters.get(name)?.map_or(0, |value| value.value()))
    }

    pub(super) fn count(&mut self, name: &str, by: i64) -> Result<(), Fault> {
        let value = self.counter(name)?.saturating_add_signed(by);
        self.counters.insert(name, value)?;
        Ok(())
    }

    /// Gives the root directory away.
    pub(in crate::manager) fn give_root_to(&mut self, owner: &Caller) -> Result<(), Fault> {
        let mut root = self.view.object(DirHandle::ROOT.0)?;
        (root.attr.uid, root.attr.gid) = (owner.uid, owner.gid);
        self.store(DirHandle::ROOT.0, &root)
    }

    /// From now on changes are made for this caller, by this client.
    pub(in crate::manager) fn speak_for(&mut self, caller: &Caller, client: u128) {
        self.view.caller.clone_from(caller);
        self.view.client = Some(client);
    }

    /// Checks that a client may write to a file, for the caller.
    pub(in crate::manager) fn may_write(&self, file: FileHandle, client: u128) -> Result<(), Fault> {
        // One that had a name belongs to all who had it open, for whatever they had.
        if self.nameless.get((client, file.0))?.is_some() && !self.is_unnamed(file.0)? {
            return Ok(());
        }
        self.view.may_write(file, client, &self.holds)
    }

    /// Returns what a client may do with a file that it may write.
    pub(in crate::manager) fn writer_access(&self, file: FileHandle, client: u128) -> Result<Access, Fault> {
        let held = self.holds.access(file.0, client).and(Access::WRITE);
        self.view.opened_by_handle(&self.view.object(file.0)?, held)
    }

    /// Begins the next start of the database. Returns its number.
    pub(in crate::manager) fn begin_epoch(&mut self) -> Result<u64, Fault> {
        self.epoch += 1;
        if self.epoch > MAX_EPOCH {
            return Err(Fault::Corrupt(format!("epoch {}", self.epoch)));
        }
        self.counters.insert("epoch", self.epoch)?;
        Ok(self.epoch)
    }

    /// Returns the number of handles that were assigned.
    pub(in crate::manager) fn assigned(&self) -> Result<u64, Fault> {
        self.counter("next")
    }

    /// Returns the first of the next `count` handles.
    pub(in crate::manager) fn handles(&mut self, count: u64) -> Result<u64, Fault> {
        let first = self.counter("next")?;
        self.counters.insert("next", first + count)?;
        Ok(handle_number(self.epoch, first))
    }

    /// Adds or removes a name, and updates its directory.
    pub(super) fn link(
        &mut self,
        dir: u64,
        name: &[u8],
        target: Option<(u64, Kind)>,
        subdirs: i32,
    ) -> Result<(), Fault> {
        let mut parent = self.view.object(dir)?;
        match target {
            Some((raw, kind)) => {
                if self.view.names.insert((dir, name), (raw, kind_number(kind)))?.is_none() {
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

    /// Notes that an object has a name less. If that was the last one, a file that is held stays
    /// without a name, and anything else is removed. The datafiles of a file become orphans.
    pub(super) fn unname(&mut self, raw: u64, mut object: Object) -> Result<(), Fault> {
        let is_dir = object.attr.kind == Kind::Dir;
        if !is_dir && object.attr.nlink > 1 {
            (object.attr.nlink, object.attr.ctime_ns) = (object.attr.nlink - 1, self.now_ns);
            return self.store(raw, &object);
        }
        match object.attr.kind {
            Kind::File => match self.holds.unnamed(raw) {
                holders if holders.is_empty() => self.bury_uncounted(raw, &object)?,
                holders => self.keep_unnamed(raw, object, &holders)?,
            },
            Kind::Dir | Kind::Symlink => self.bury_uncounted(raw, &object)?,
        }
        self.count(if is_dir { "dirs" } else { "files" }, -1)
    }

    pub(super) fn bury_uncounted(&mut self, raw: u64, object: &Object) -> Result<(), Fault> {
        self.view.objects.remove(raw)?;
        for name in xattr_names(&self.xattrs, raw)? {
            step();
            self.xattrs.remove((raw, name.0.as_slice()))?;
        }
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
    pub(in crate::manager) fn mkdir(&mut self, place: &Place, birth: Birth) -> Result<Entry, Fault> {
        let (dir, name) = self.view.parent(place)?;
        if self.view.name(dir, name)?.is_some() {
            return refuse(ErrorCode::Exists, format!("{:?}", place.path));
        }
        let birth = self.view.born(&self.view.may_change(dir, None)?, birth, Kind::Dir);
        let raw = self.handles(1)?;
        let object = self.object(dir, self.attr(Kind::Dir, birth));
        self.store(raw, &object)?;
        let layout = self.xattrs.get((dir, DefaultLayout::XATTR.as_bytes()))?.map(|layout| layout.value().to_vec());
        if let Some(layout) = layout {
            self.xattrs.insert((raw, DefaultLayout::XATTR.as_bytes()), layout.as_slice())?;
        }
        self.link(dir, name, Some((raw, Kind::Dir)), 1)?;
        self.count("dirs", 1)?;
        Ok(self.entry(raw, object))
    }

    /// Returns how new files of a directory are striped.
    fn default_layout(&self, dir: u64) -> Result<DefaultLayout, Fault> {
        let text = self.xattrs.get((dir, DefaultLayout::XATTR.as_bytes()))?;
        // It was checked when it was set.
        Ok(text.and_then(|text| DefaultLayout::parse(text.value()).ok()).unwrap_or_default())
    }

    /// Creates a file. `place_datafiles` chooses its datafiles, and the number of its servers; it
    /// is given the number of files created before. Also returns what the caller may do with it:
    /// with a new one everything, whatever its mode.
    pub(in crate::manager) fn create(
        &mut self,
        new: NewFile<'_>,
        place_datafiles: impl FnOnce(u64, Wanted) -> Result<(Vec<(u32, DatafileHandle)>, u32), Fault>,
    ) -> Result<(Entry, Access), Fault> {
        let NewFile { place, mut strip_size, servers, existing, small, .. } = new;
        let (dir, name) = self.view.parent(place)?;
        let mut wanted = if servers == 0 { Wanted::All } else { Wanted::Exactly(servers) };
        match (self.view.name(dir, name)?, existing) {
            (Some((_, Kind::Dir)), _) => return refuse(ErrorCode::IsDirectory, format!("{:?}", place.path)),
            (Some(_), Existing::Refuse) | (Some((_, Kind::Symlink)), Existing::Open) => {
                return refuse(ErrorCode::Exists, format!("{:?}", place.path));
            }
            (Some((raw, Kind::File)), Existing::Open) => {
                let object = self.view.object(raw)?;
                let access = self.view.opened(&object, self.holds.access(raw, new.by.client))?;
                return Ok((self.entry(raw, object), access));
            }
            (Some((raw, _)), Existing::Replace) => {
                // One that cannot be read can still be replaced.
                let old = self.view.object(raw).ok();
                self.view.may_change(dir, old.as_ref())?;
                if let Some(layout) = old.and_then(|object| object.layout) {
                    let distribution = layout.distribution();
                    strip_size = if strip_size == 0 { distribution.strip_size() } else { strip_size };
                    wanted = if servers == 0 { Wanted::AtMost(layout.most_servers()) } else { wanted };
                }
            }
            (None, _) => {}
        }
        let birth = self.view.born(&self.view.may_change(dir, None)?, new.birth, Kind::File);
        if strip_size == 0 || wanted == Wanted::All {
            let of_dir = self.default_layout(dir)?;
            strip_size = if strip_size == 0 { of_dir.strip_size } else { strip_size };
            if let (Wanted::All, most @ 1..) = (wanted, of_dir.servers) {
                wanted = Wanted::AtMost(most);
            }
        }
        let strip_size = if strip_size == 0 { new.default_strip } else { strip_size };
        // Any number of servers is possible here, so only the strip size can be wrong.
        Distribution::simple_stripe(strip_size, 1)?;
        let created = self.counter("created")?;
        let (datafiles, servers) = place_datafiles(created, wanted)?;
        let distribution = Distribution::simple_stripe(strip_size, servers)?;
        let layout = match datafiles[..] {
            [first] if small => Layout::small(distribution, first),
            _ => Layout::new(distribution, datafiles)?,
        };
        let raw = self.handles(1)?;
        self.count("created", 1)?;
        let content = Stored::Written { begun: new.by, starts: self.view.starts };
        let object = Object { layout: Some(layout), content, ..self.object(dir, self.attr(Kind::File, birth)) };
        if existing == Existing::Replace {
            return Ok((self.keep_nameless(raw, object, new.by.client)?, Access::BOTH));
        }
        self.store(raw, &object)?;
        self.link(dir, name, Some((raw, Kind::File)), 0)?;
        self.count("files", 1)?;
        Ok((self.entry(raw, object), Access::BOTH))
    }

    /// Gives a small file its further datafiles. `place_datafiles` chooses them; it is given the
    /// server of the first one, and how many there are at most.
    pub(in crate::manager) fn grow(
        &mut self,
        file: FileHandle,
        place_datafiles: impl FnOnce(u32, u32) -> Result<Vec<(u32, DatafileHandle)>, Fault>,
    ) -> Result<Entry, Fault> {
        self.view.getattr(Handle::File(file))?;
        let mut object = self.view.object(file.0)?;
        if let Some(layout) = object.layout.take_if(|layout| layout.limit().is_some()) {
            let &[(iod, first)] = layout.datafiles() else {
                return Err(Fault::Corrupt(format!("{file} is small, and has {} datafiles", layout.datafiles().len())));
            };
            // A change of size that is not decided is prepared at the servers of before.
            let row = self.truncates.get((iod, first.0))?;
            if row.is_some_and(|row| matches!(row.value(), (None, ..) | (.., true))) {
                return refuse(ErrorCode::Busy, format!("the size of {file} is being changed"));
            }
            let others = place_datafiles(iod, layout.most_servers() - 1)?;
            object.layout = Some(layout.grown(others)?);
            self.store(file.0, &object)?;
        }
        Ok(self.entry(file.0, object))
    }

    /// Changes what is known about the content of a file.
    pub(in crate::manager) fn note_content(
        &mut self,
        file: FileHandle,
        change: impl FnOnce(Stored) -> Stored,
    ) -> Result<(), Fault> {
        let mut object = self.view.object(file.0)?;
        if object.attr.kind != Kind::File {
            return refuse(ErrorCode::Stale, format!("{file} names something of another kind"));
        }
        let content = change(object.content);
        if content != object.content {
            object.content = content;
            self.store(file.0, &object)?;
        }
        Ok(())
    }

    /// Somebody writes to a file. Who gets a program with set-id bits would get its rights, so they
    /// go, unless root writes.
    fn drop_set_id(&mut self, file: FileHandle) -> Result<(), Fault> {
        let mut object = self.view.object(file.0)?;
        let bits = S_ISUID | if object.attr.mode & S_IXGRP == 0 { 0 } else { S_ISGID };
        if !self.view.caller.is_root() && object.attr.kind == Kind::File && object.attr.mode & bits != 0 {
            object.attr.mode &= !bits;
            self.store(file.0, &object)?;
        }
        Ok(())
    }

    /// A client has recorded the size of a file that nobody else may write.
    pub(in crate::manager) fn record_size(&mut self, file: FileHandle, by: RequestId, size: u64) -> Result<(), Fault> {
        check_size(size)?;
        self.note_content(file, |content| content.ended(by, |_| Stored::Recorded(size)))
    }

    /// A client begins to write to a file.
    pub(in crate::manager) fn begin_write(&mut self, file: FileHandle, by: RequestId) -> Result<(), Fault> {
        let starts = self.view.starts;
        self.note_content(file, |content| content.begun(by, starts))?;
        self.drop_set_id(file)
    }

    /// A client has ended to write to files, and has left them like this.
    pub(in crate::manager) fn close(&mut self, files: &[(FileHandle, Extent)], by: RequestId) -> Result<(), Fault> {
        for &(file, extent) in files {
            // If a server was started since, this is not right even now.
            let closed = |starts| Stored::Closed { extent, starts };
            let size = check_size(extent.size);
            match size.and_then(|()| self.note_content(file, |content| content.ended(by, closed))) {
                // It was removed meanwhile, or its size cannot be.
                Err(Fault::Refused(_)) => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Changes attributes.
    pub(in crate::manager) fn setattr(&mut self, wanted: Handle, set: &SetAttr) -> Result<Entry, Fault> {
        let mut object = self.view.named(wanted)?;
        let mode = self.view.may_set(&object.attr, set, self.now_ns)?;
        // Somebody else decides anew who may write: who does has no right by that any more.
        if let Stored::Written { begun, .. } = object.content
            && Some(begun.client) != self.view.client
            && (set.mode.is_some() || set.uid.is_some() || set.gid.is_some())
        {
            object.content = Stored::Shared;
        }
        let attr = &mut object.attr;
        if attr.kind == Kind::File && (set.uid.is_some() || set.gid.is_some()) {
            // Who gets a program with these bits would get its rights.
            attr.mode &= !(S_ISUID | if attr.mode & S_IXGRP == 0 { 0 } else { S_ISGID });
        }
        attr.mode = mode.map_or(attr.mode, |mode| mode & 0o7777);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime_ns = set.atime_ns.unwrap_or(attr.atime_ns);
        if let Some(mtime_ns) = set.mtime_ns {
            (attr.mtime_ns, object.touched_ns) = (mtime_ns, self.now_ns);
        }
        attr.ctime_ns = self.now_ns;
        self.store(wanted.raw(), &object)?;
        Ok(self.entry(wanted.raw(), object))
    }

    /// Removes a file or an empty directory.
    pub(in crate::manager) fn remove(&mut self, place: &Place, kind: RemoveKind) -> Result<(), Fault> {
        let (dir, name) = self.view.parent(place)?;
        let Some((raw, found)) = self.view.name(dir, name)? else {
            return refuse(ErrorCode::NotFound, format!("{:?}", place.path));
        };
        let is_dir = found == Kind::Dir;
        match kind {
            RemoveKind::File if is_dir => return refuse(ErrorCode::IsDirectory, format!("{:?}", place.path)),
            RemoveKind::Dir if !is_dir => return refuse(ErrorCode::NotDirectory, format!("{:?}", place.path)),
            _ => {}
        }
        let object = self.view.object(raw)?;
        self.view.may_change(dir, Some(&object))?;
        if is_dir && object.attr.size > 0 {
            return refuse(ErrorCode::NotEmpty, format!("{:?}", place.path));
        }
        self.unname(raw, object)?;
        self.link(dir, name, None, if is_dir { -1 } else { 0 })
    }

    /// Moves a name.
    pub(in crate::manager) fn rename(&mut self, from: &Place, to: &Place, replace: Replace) -> Result<(), Fault> {
        let (from_dir, from_name) = self.view.parent(from)?;
        let (to_dir, to_name) = self.view.parent(to)?;
        let Some((raw, kind)) = self.view.name(from_dir, from_name)? else {
            return refuse(ErrorCode::NotFound, format!("{:?}", from.path));
        };
        let is_dir = kind == Kind::Dir;
        if is_dir && self.view.is_within(to_dir, raw)? {
            let text = format!("{:?} cannot be moved into itself ({:?})", from.path, to.path);
            return refuse(ErrorCode::Invalid, text);
        }
        let there = self.view.name(to_dir, to_name)?;
        self.view.check_replaced(to, there, replace)?;
        let replaced = match there {
            Some((there, _)) if there == raw => return Ok(()),
            Some((_, Kind::Dir)) if !is_dir => return refuse(ErrorCode::IsDirectory, format!("{:?}", to.path)),
            Some((_, Kind::File | Kind::Symlink)) if is_dir => {
                return refuse(ErrorCode::NotDirectory, format!("{:?}", to.path));
            }
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
        self.view.may_change(from_dir, Some(&object))?;
        self.view.may_change(to_dir, replaced.as_ref().map(|(_, old)| old))?;
        self.view.may_move(&object, from_dir, to_dir)?;
        let subdirs = i32::from(is_dir);
        if let Some((there, old)) = replaced {
            self.unname(there, old)?;
            self.link(to_dir, to_name, None, -subdirs)?;
        }
        if !mutated("manager/rename-keeps-the-old-name") {
            self.link(from_dir, from_name, None, -subdirs)?;
        }
        self.link(to_dir, to_name, Some((raw, kind)), subdirs)?;
        (object.parent, object.attr.ctime_ns) = (to_dir, self.now_ns);
        self.store(raw, &object)
    }

    /// An I/O server was started: what was not synced there may be lost.
    pub(in crate::manager) fn iod_started(&mut self) -> Result<(), Fault> {
        self.count(STARTED, 1)
    }

    /// Forgets all orphans of an I/O server, whose store was replaced.
    pub(in crate::manager) fn forget_all(&mut self, iod: u32) -> Result<(), Fault> {
        Ok(self.orphans.retain_in((iod, 0)..=(iod, u64::MAX), |_, ()| false)?)
    }

    /// Forgets datafiles that their I/O server has removed.
    pub(in crate::manager) fn forget(&mut self, iod: u32, datafiles: &[DatafileHandle]) -> Result<(), Fault> {
        for datafile in datafiles {
            self.orphans.remove((iod, datafile.0))?;
        }
        Ok(())
    }
}

/// Looks at a directory and at what is in it, and moves a directory into another, as requests
/// would.
#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub(in crate::manager) fn fuzz_view(store: &crate::store::MetaStore, dir: DirHandle) {
    let entries = {
        let read = store.read().expect("a database");
        let _ = super::view::stat(&read);
        let view = super::view::view(&read).expect("tables");
        let Ok((entries, _)) = view.readdir(dir, b"", 8, 4096) else { return };
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
            let _ = change.rename(
                &Place::at(dir, from.name.clone()),
                &Place::at(dir, format!("{}/x", to.name)),
                Replace::Anything,
            );
        }
    }
}
