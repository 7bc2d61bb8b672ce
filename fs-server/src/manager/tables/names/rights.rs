//! What the caller of a request may do with objects, as their modes say.
//!
//! **Why here.** The kernel of a mount checks modes too, against what it remembers. Other programs
//! check nothing, and nobody has to use ours. So the manager decides, in the transaction of the
//! change itself: nobody changes a mode in between.
//!
//! **Invariants**
//! 1. A name is looked up only in a directory that the caller may search, and changed only in one
//!    that he may write. In a directory with the sticky bit, only his own things may be moved,
//!    replaced or removed.
//! 2. Nothing was changed when a request is refused: all checks come first.
//! 3. A handle alone opens nothing: all directories above are searched, unless the client has what
//!    it names open. Attributes are told to everybody who names them.

use bmi::hooks::mutated;
use fs_proto::limits::MAX_PATH;
use fs_proto::{Access, Attr, Caller, DirHandle, ErrorCode, FileHandle, Kind, SetAttr};
use redb::ReadableTable;

use super::change::Birth;
use super::object::{Key, Named, Object, Stored, refuse};
use super::view::View;
use crate::manager::Fault;
use crate::manager::tables::Holds;

const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
/// What counts as now, in nanoseconds: clocks differ.
const NOW_NS: u64 = 60_000_000_000;
/// Most directories above something that is named by its handle: as many as a path can name. So the
/// work is bounded, whatever somebody has made.
const DEEPEST: usize = MAX_PATH / 2;
/// In such a directory, what is somebody else's stays.
const S_ISVTX: u32 = 0o1000;

/// Rights of which one is needed to open a file. Who may run a program may open it: the kernel of a
/// mount reads it for him.
const ANY: Access = Access::BOTH.and(Access::SEARCH);

impl<O: ReadableTable<u64, &'static [u8]>, N: ReadableTable<Key, Named>> View<O, N> {
    /// Returns the same tables, as this caller may see them through this client.
    #[must_use]
    pub(in crate::manager) fn by(mut self, caller: &Caller, client: u128) -> View<O, N> {
        self.caller = caller.clone();
        self.client = Some(client);
        self
    }

    fn check(&self, attr: &Attr, needed: Access, what: &str) -> Result<(), Fault> {
        if attr.access(&self.caller).has(needed) || mutated("manager/rights-not-checked") {
            return Ok(());
        }
        let Caller { uid, .. } = self.caller;
        let text = format!("user {uid} may not {what}: its mode is {:04o}, of user {}", attr.mode, attr.uid);
        refuse(ErrorCode::Permission, text)
    }

    /// Checks that the caller may look for names in a directory.
    pub(super) fn may_search(&self, dir: &Object) -> Result<(), Fault> {
        self.check(&dir.attr, Access::SEARCH, "look into the directory")
    }

    /// Checks that the caller may change names in a directory: add one, or take away that of
    /// `victim`. Returns the directory.
    pub(super) fn may_change(&self, dir: u64, victim: Option<&Object>) -> Result<Object, Fault> {
        let above = self.object(dir)?;
        self.check(&above.attr, Access::WRITE.and(Access::SEARCH), "change the directory")?;
        let is_own = |attr: &Attr| self.caller.is_root() || attr.uid == self.caller.uid;
        if above.attr.mode & S_ISVTX != 0
            && let Some(victim) = victim
            && !is_own(&above.attr)
            && !is_own(&victim.attr)
        {
            let text = format!("in a directory with the sticky bit, this belongs to user {}", victim.attr.uid);
            return refuse(ErrorCode::Permission, text);
        }
        Ok(above)
    }

    /// Checks that the caller may move an object out of a directory into another.
    pub(super) fn may_move(&self, object: &Object, from: u64, to: u64) -> Result<(), Fault> {
        if object.attr.kind != Kind::Dir || from == to {
            return Ok(());
        }
        // Its entry for what is above it changes.
        self.check(&object.attr, Access::WRITE, "move the directory")
    }

    /// Checks that the caller may set attributes, and returns the mode as he may set it.
    pub(super) fn may_set(&self, attr: &Attr, set: &SetAttr, now_ns: u64) -> Result<Option<u32>, Fault> {
        let caller = &self.caller;
        if caller.is_root() {
            return Ok(set.mode);
        }
        let is_owner = caller.uid == attr.uid;
        // Who writes to a file takes these bits away with it.
        let writes = set.mode == Some(attr.mode & !(S_ISUID | S_ISGID)) && set.mode != Some(attr.mode);
        if writes && !is_owner && *set == (SetAttr { mode: set.mode, ..SetAttr::default() }) {
            return self.check(attr, Access::WRITE, "write to it").map(|()| set.mode);
        }
        let gives = set.uid.is_some_and(|uid| uid != attr.uid);
        let joins = set.gid.is_some_and(|gid| gid != attr.gid && !caller.is_in(gid));
        if (set.mode.is_some() || set.uid.is_some() || set.gid.is_some()) && (!is_owner || gives || joins) {
            let text = format!("this takes its owner, user {}, or root, and this is user {}", attr.uid, caller.uid);
            return refuse(ErrorCode::Permission, text);
        }
        let times = [set.atime_ns, set.mtime_ns];
        if !is_owner && times.iter().flatten().next().is_some() {
            if times.iter().flatten().any(|ns| ns.abs_diff(now_ns) > NOW_NS) {
                return refuse(ErrorCode::Permission, format!("any time but now is set by user {}", attr.uid));
            }
            self.check(attr, Access::WRITE, "set its times")?;
        }
        Ok(set.mode.map(|mode| self.set_group_of(set.gid.unwrap_or(attr.gid), mode)))
    }

    /// Returns a mode as the caller may give it to something of a group: nobody makes a program of
    /// a group that he is not in.
    pub(super) fn set_group_of(&self, gid: u32, mode: u32) -> u32 {
        let may = self.caller.is_root() || self.caller.is_in(gid);
        if may { mode } else { mode & !S_ISGID }
    }

    /// Checks that the caller may read (or write) the extended attributes of an object. Those of
    /// other namespaces than `user.` are for its owner.
    pub(super) fn may_use_xattr(&self, object: &Object, name: Option<&[u8]>, needed: Access) -> Result<(), Fault> {
        let is_owner = self.caller.is_root() || self.caller.uid == object.attr.uid;
        if name.is_some_and(|name| !name.starts_with(b"user.")) && needed.has(Access::WRITE) && !is_owner {
            return refuse(ErrorCode::Permission, format!("this takes its owner, user {}", object.attr.uid));
        }
        self.may_reach(object)?;
        self.check(&object.attr, needed, "use its extended attributes")
    }

    /// Returns whose a new object is in a directory, if somebody asks for `birth`: only root makes
    /// things for others.
    pub(super) fn born(&self, above: &Object, birth: Birth, kind: Kind) -> Birth {
        let caller = &self.caller;
        if caller.is_root() {
            return birth;
        }
        let inherits = above.attr.mode & S_ISGID != 0 && birth.gid == above.attr.gid;
        let gid = if caller.is_in(birth.gid) || inherits { birth.gid } else { caller.gid };
        let mode = if kind == Kind::Dir { birth.mode } else { self.set_group_of(gid, birth.mode) };
        Birth { uid: caller.uid, gid, mode }
    }

    /// Returns what the caller may do with an object that a client of his opens. `held` is what it
    /// may do already, since it has it open.
    ///
    /// # Errors
    /// `Permission` if that is nothing.
    pub(in crate::manager) fn opened(&self, object: &Object, held: Access) -> Result<Access, Fault> {
        let held = if self.writes(object) { Access::BOTH } else { held };
        let access = object.attr.access(&self.caller).and(held);
        if !access.has_any(ANY) {
            self.check(&object.attr, Access::READ, "open it")?;
        }
        Ok(if access.has(Access::SEARCH) { access.and(Access::READ) } else { access })
    }

    /// Returns the same for an object that was named by its handle alone.
    ///
    /// # Errors
    /// As [`View::opened`], and if the caller could not have come to it by a name.
    pub(in crate::manager) fn opened_by_handle(&self, object: &Object, held: Access) -> Result<Access, Fault> {
        if held == Access::NONE && !self.writes(object) {
            self.may_reach(object)?;
        }
        self.opened(object, held)
    }

    /// Returns true if the client has created the object, or has begun to write, and not closed it.
    fn writes(&self, object: &Object) -> bool {
        matches!(object.content, Stored::Written { begun, .. } if Some(begun.client) == self.client)
    }

    /// Checks that the caller could have come to an object by its name. Handles are counted, so
    /// somebody who has been told one can name others.
    ///
    /// A file of several names has one of them in its row, perhaps one that the caller has not
    /// seen. So it can be reached.
    pub(super) fn may_reach(&self, object: &Object) -> Result<(), Fault> {
        if self.caller.is_root() || object.attr.kind != Kind::Dir && object.attr.nlink > 1 {
            return Ok(());
        }
        if object.is_nameless() {
            let is_own = self.caller.uid == object.attr.uid;
            return if is_own { Ok(()) } else { refuse(ErrorCode::Permission, "it has no name") };
        }
        let mut at = object.parent;
        for _ in 0..DEEPEST {
            let dir = self.object(at)?;
            self.may_search(&dir)?;
            if at == DirHandle::ROOT.0 {
                return Ok(());
            }
            at = dir.parent;
        }
        refuse(ErrorCode::NameTooLong, format!("there are more than {DEEPEST} directories above it"))
    }

    /// Checks that a client of the caller may write to a file: by its mode, or because it writes
    /// already, or has opened it for that.
    pub(in crate::manager) fn may_write(&self, file: FileHandle, client: u128, holds: &Holds) -> Result<(), Fault> {
        let object = self.object(file.0)?;
        if self.writes(&object) || holds.access(file.0, client).has(Access::WRITE) {
            return Ok(());
        }
        self.may_reach(&object)?;
        self.check(&object.attr, Access::WRITE, "write to it")
    }

    /// Checks that the caller may give a file one more name: it is his, or he may read and write
    /// it.
    pub(super) fn may_link(&self, object: &Object) -> Result<(), Fault> {
        if self.caller.uid == object.attr.uid {
            return Ok(());
        }
        self.may_reach(object)?;
        self.check(&object.attr, Access::BOTH, "give it another name")
    }

    /// Checks that the caller may list a directory.
    pub(super) fn may_list(&self, dir: DirHandle) -> Result<(), Fault> {
        let object = self.object(dir.0)?;
        if object.attr.kind != Kind::Dir {
            return refuse(ErrorCode::NotDirectory, dir.to_string());
        }
        self.may_reach(&object)?;
        self.check(&object.attr, Access::READ, "list the directory")
    }
}
