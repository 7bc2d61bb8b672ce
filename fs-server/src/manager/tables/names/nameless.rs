//! Files without a name: new files that are written and not yet published, and files that have lost
//! their last name while clients had them open ([`Holds`](crate::manager::tables::Holds)).
//!
//! **Why.** A file that is stored under its final name is visible in part until it is complete. If
//! the client fails, a part remains, and what was there before is lost. So a client writes to a
//! file without a name, and publishes it when it is complete and synced: one transaction gives it
//! its name and removes what was there.
//!
//! **Invariants**
//! 1. A nameless file is in the table, and in no directory. A file in a directory is not in the
//!    table.
//! 2. A new one belongs to one client. No other client can publish or abandon it. One that had a
//!    name belongs to those who hold it, is never published, and goes with the last of them.
//! 3. The number of files counts only those with a name.

use bmi::hooks::{mutated, step};
use fs_proto::{Attr, Entry, ErrorCode, FileHandle, Kind, Place, Replace};
use redb::{ReadTransaction, ReadableTable};

use super::change::Change;
use super::object::{NAMELESS, NO_PARENT, Object, Stored, UNNAMED, check_size, refuse};
use crate::manager::Fault;

/// How a file gets its name.
#[derive(Clone, Copy, Debug)]
pub(in crate::manager) struct Publication<'a> {
    pub(in crate::manager) file: FileHandle,
    pub(in crate::manager) place: &'a Place,
    /// Take over mode, owner and group of the file that is replaced.
    pub(in crate::manager) inherit: bool,
    pub(in crate::manager) mode: Option<u32>,
    pub(in crate::manager) mtime_ns: Option<u64>,
    pub(in crate::manager) size: Option<u64>,
    pub(in crate::manager) replace: Replace,
}

/// Returns those of `files` that have lost their last name, and that this client keeps. Drafts are
/// not among them.
pub(in crate::manager) fn owned(
    transaction: &ReadTransaction,
    client: u128,
    files: &[FileHandle],
) -> Result<Vec<FileHandle>, Fault> {
    let table = transaction.open_table(UNNAMED)?;
    let mut owned = Vec::new();
    for file in files {
        step();
        if table.get((file.0, client))?.is_some() {
            owned.push(*file);
        }
    }
    Ok(owned)
}

/// Returns the clients that have nameless files.
pub(in crate::manager) fn owners(transaction: &ReadTransaction) -> Result<Vec<u128>, Fault> {
    let table = transaction.open_table(NAMELESS)?;
    let mut owners = Vec::new();
    let mut next = Some(0);
    while let Some(first) = next {
        let Some(row) = table.range((first, 0)..)?.next() else { break };
        let (client, _) = row?.0.value();
        owners.push(client);
        next = client.checked_add(1);
    }
    Ok(owners)
}

impl Change<'_> {
    /// Stores a new file without a name.
    pub(super) fn keep_nameless(&mut self, raw: u64, mut object: Object, client: u128) -> Result<Entry, Fault> {
        (object.parent, object.attr.nlink) = (NO_PARENT, 0);
        self.store(raw, &object)?;
        self.nameless.insert((client, raw), ())?;
        Ok(self.entry(raw, object))
    }

    /// Keeps a file that has lost its last name for its holders.
    pub(super) fn keep_unnamed(&mut self, raw: u64, mut object: Object, holders: &[u128]) -> Result<(), Fault> {
        (object.parent, object.attr.nlink, object.attr.ctime_ns) = (NO_PARENT, 0, self.now_ns);
        self.store(raw, &object)?;
        for client in holders {
            step();
            self.nameless.insert((*client, raw), ())?;
            self.unnamed.insert((raw, *client), ())?;
        }
        Ok(())
    }

    /// Notes that a client holds `file`. It is among those who keep the file if that has lost its
    /// last name already.
    pub(in crate::manager) fn hold(&mut self, client: u128, file: FileHandle) -> Result<(), Fault> {
        self.holders.insert(client, ())?;
        if self.is_unnamed(file.0)? {
            self.nameless.insert((client, file.0), ())?;
            self.unnamed.insert((file.0, client), ())?;
        }
        Ok(())
    }

    /// Forgets a client that has no holds any more.
    pub(in crate::manager) fn forget_holder(&mut self, client: u128) -> Result<(), Fault> {
        self.holders.remove(client)?;
        Ok(())
    }

    /// Returns true if a file has lost its last name, and is held.
    pub(super) fn is_unnamed(&self, raw: u64) -> Result<bool, Fault> {
        Ok(self.unnamed.range((raw, 0)..=(raw, u128::MAX))?.next().transpose()?.is_some())
    }

    /// Gives a nameless file its name. A file that is there is replaced.
    pub(in crate::manager) fn publish(&mut self, client: u128, how: Publication<'_>) -> Result<Entry, Fault> {
        let raw = how.file.0;
        how.size.map_or(Ok(()), check_size)?;
        if self.nameless.get((client, raw))?.is_none() || self.is_unnamed(raw)? {
            return refuse(ErrorCode::Stale, format!("{} is not a file without a name of this client", how.file));
        }
        let (dir, name) = self.view.parent(how.place)?;
        let there = self.view.name(dir, name)?;
        self.view.check_replaced(how.place, there, how.replace)?;
        let replaced = match there {
            Some((_, Kind::Dir)) => return refuse(ErrorCode::IsDirectory, format!("{:?}", how.place.path)),
            Some((there, _)) => Some((there, self.view.object(there)?)),
            None => None,
        };
        self.view.may_change(dir, replaced.as_ref().map(|(_, old)| old))?;
        let mut object = self.view.object(raw)?;
        if let Some((_, old)) = replaced.as_ref().filter(|_| how.inherit) {
            let (caller, Attr { mode, uid, gid, .. }) = (&self.view.caller, old.attr);
            let keeps = caller.is_root() || caller.uid == uid;
            // What another owner's program could do, it cannot do as one's own.
            object.attr.mode = if keeps { mode } else { mode & 0o777 };
            object.attr.uid = if keeps { uid } else { caller.uid };
            object.attr.gid = if keeps || caller.is_in(gid) { gid } else { object.attr.gid };
        }
        object.attr.mode = how.mode.map_or(object.attr.mode, |mode| mode & 0o7777);
        object.attr.mode = self.view.set_group_of(object.attr.gid, object.attr.mode);
        (object.parent, object.attr.nlink) = (dir, 1);
        object.content = how.size.map_or(object.content, Stored::Recorded);
        (object.attr.mtime_ns, object.attr.ctime_ns) = (how.mtime_ns.unwrap_or(self.now_ns), self.now_ns);
        object.touched_ns = self.now_ns;
        if !mutated("manager/published-file-stays-nameless") {
            self.nameless.remove((client, raw))?;
        }
        let is_new = replaced.is_none();
        if let Some((there, old)) = replaced.filter(|_| !mutated("manager/replaced-file-not-removed")) {
            self.unname(there, old)?;
        }
        self.store(raw, &object)?;
        if is_new || !mutated("manager/name-still-leads-to-the-replaced-file") {
            self.link(dir, name, Some((raw, Kind::File)), 0)?;
        }
        self.count("files", 1)?;
        Ok(self.entry(raw, object))
    }

    /// Removes a nameless file of a client, if it exists. One that had a name stays as long as
    /// others hold it.
    pub(in crate::manager) fn abandon(&mut self, client: u128, file: FileHandle) -> Result<(), Fault> {
        if self.nameless.get((client, file.0))?.is_none() {
            return Ok(());
        }
        let object = self.view.object(file.0)?;
        self.nameless.remove((client, file.0))?;
        self.unnamed.remove((file.0, client))?;
        if self.is_unnamed(file.0)? && !mutated("manager/open-file-goes-with-its-first-holder") {
            return Ok(());
        }
        self.bury_uncounted(file.0, &object)
    }

    /// Removes up to `max` nameless files of a client. Returns how many.
    pub(in crate::manager) fn abandon_all(&mut self, client: u128, max: usize) -> Result<usize, Fault> {
        let mut files = Vec::new();
        for row in self.nameless.range((client, 0)..=(client, u64::MAX))?.take(max) {
            files.push(FileHandle(row?.0.value().1));
        }
        for file in &files {
            match self.abandon(client, *file) {
                Err(error @ (Fault::Corrupt(_) | Fault::Refused(_))) => {
                    // Its datafiles are not known. They are left at their servers.
                    tracing::error!(%file, error = %error.into_error(), "a file without a name is forgotten");
                    self.nameless.remove((client, file.0))?;
                }
                result => result?,
            }
        }
        Ok(files.len())
    }
}
