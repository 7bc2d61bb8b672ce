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
//! 3. A handle opens what it names, whatever is above it, like an open directory in Unix.

use bmi::hooks::mutated;
use fs_proto::{Access, Attr, Caller, DirHandle, Entry, ErrorCode, FileHandle, Kind, SetAttr};
use redb::ReadableTable;

use super::change::Birth;
use super::object::{Key, Named, Object, Stored, refuse};
use super::view::View;
use crate::manager::Fault;
use crate::manager::tables::Holds;

const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
/// In such a directory, what is somebody else's stays.
const S_ISVTX: u32 = 0o1000;

/// Rights of which one is needed to open a file. Who may run a program may open it: the kernel of a
/// mount reads it for him.
const ANY: Access = Access::BOTH.and(Access::SEARCH);

impl<O: ReadableTable<u64, &'static [u8]>, N: ReadableTable<Key, Named>> View<O, N> {
    /// Returns the same tables, as this caller may see them.
    #[must_use]
    pub(in crate::manager) fn by(mut self, caller: &Caller) -> View<O, N> {
        self.caller = caller.clone();
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
    pub(super) fn may_set(&self, attr: &Attr, set: &SetAttr) -> Result<Option<u32>, Fault> {
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
        if (set.atime_ns.is_some() || set.mtime_ns.is_some()) && !is_owner {
            self.check(attr, Access::WRITE, "set its times")?;
        }
        // Nobody makes a program of a group that he is not in.
        let clears = !caller.is_in(set.gid.unwrap_or(attr.gid));
        Ok(set.mode.map(|mode| if clears { mode & !S_ISGID } else { mode }))
    }

    /// Checks that the caller may read (or write) the extended attributes of an object. Those of
    /// other namespaces than `user.` are for its owner.
    pub(super) fn may_use_xattr(&self, object: &Object, name: Option<&[u8]>, needed: Access) -> Result<(), Fault> {
        let is_owner = self.caller.is_root() || self.caller.uid == object.attr.uid;
        if name.is_some_and(|name| !name.starts_with(b"user.")) && needed.has(Access::WRITE) && !is_owner {
            return refuse(ErrorCode::Permission, format!("this takes its owner, user {}", object.attr.uid));
        }
        self.check(&object.attr, needed, "use its extended attributes")
    }

    /// Returns whose a new object is in a directory, if somebody asks for `birth`: only root makes
    /// things for others.
    pub(super) fn born(&self, above: &Object, birth: Birth) -> Birth {
        let caller = &self.caller;
        if caller.is_root() {
            return birth;
        }
        let inherits = above.attr.mode & S_ISGID != 0 && birth.gid == above.attr.gid;
        let gid = if caller.is_in(birth.gid) || inherits { birth.gid } else { caller.gid };
        Birth { uid: caller.uid, gid, ..birth }
    }

    /// Returns what the caller may do with an object that a client of his opens.
    ///
    /// # Errors
    /// `Permission` if that is nothing.
    pub(in crate::manager) fn opened(&self, entry: &Entry, held: Access) -> Result<Access, Fault> {
        let access = entry.attr.access(&self.caller).and(held);
        if !access.has_any(ANY) {
            self.check(&entry.attr, Access::READ, "open it")?;
        }
        Ok(if access.has(Access::SEARCH) { access.and(Access::READ) } else { access })
    }

    /// Checks that a client of the caller may write to a file: by its mode, or because it writes
    /// already, or has opened it for that.
    pub(in crate::manager) fn may_write(&self, file: FileHandle, client: u128, holds: &Holds) -> Result<(), Fault> {
        let object = self.object(file.0)?;
        let writes = matches!(object.content, Stored::Written { begun, .. } if begun.client == client);
        if writes || holds.access(file.0, client).has(Access::WRITE) {
            return Ok(());
        }
        self.check(&object.attr, Access::WRITE, "write to it")
    }

    /// Checks that the caller may list a directory.
    pub(super) fn may_list(&self, dir: DirHandle) -> Result<(), Fault> {
        let object = self.object(dir.0)?;
        if object.attr.kind != Kind::Dir {
            return refuse(ErrorCode::NotDirectory, dir.to_string());
        }
        self.check(&object.attr, Access::READ, "list the directory")
    }
}
