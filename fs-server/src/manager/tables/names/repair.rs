//! Repairs of what a check has found ([`Fix`]).
//!
//! **Invariants**
//! 1. A repair is made only if the tables are damaged in the way that the check has found. What
//!    shows only in all rows, such as a number of names, must be as it was then.
//! 2. Nothing is lost: what has no place gets a name in `lost+found`. Only names that lead to
//!    nothing go, and second names of directories.
//! 3. One client repairs at a time: each repair names how many there were before it. So a datafile
//!    becomes a file once.

use fs_proto::limits::DEFAULT_STRIP;
use fs_proto::{DirHandle, Distribution, ErrorCode, Fix, Kind, Layout, Repair, Ties, handle_number};
use redb::ReadableTable;

use super::change::{Birth, Change};
use super::object::{NO_PARENT, Object, kind_number, refuse};
use crate::manager::Fault;

/// The counter of repairs.
pub(in crate::manager) const REPAIRS: &str = "repairs";

fn changed<T>() -> Result<T, Fault> {
    refuse(ErrorCode::Stale, "it is not damaged in this way any more; check again")
}

impl Change<'_> {
    /// Makes a repair, in a cluster of `iods` I/O servers.
    pub(in crate::manager) fn repair(&mut self, repair: &Repair, iods: usize) -> Result<(), Fault> {
        let Repair { fix, before, lost } = repair;
        if self.counter(REPAIRS)? != *before {
            return refuse(ErrorCode::Stale, "somebody else repairs; check again");
        }
        match fix {
            Fix::Name { dir, name } => self.repair_name(*dir, name, *lost)?,
            Fix::Nameless { raw, was } => {
                let object = self.tied(*raw, *was)?;
                if self.is_unnamed(*raw)? || self.view.is_within(lost.0, *raw)? {
                    return changed();
                }
                let is_uncounted = object.is_nameless();
                self.move_to_lost(*raw, object, *lost, true)?;
                self.count("files", i64::from(is_uncounted))?;
            }
            Fix::Ties { raw, was, now } => {
                let mut object = self.tied(*raw, *was)?;
                let moves = now.parent != was.parent;
                if moves && (!self.is_dir(now.parent)? || self.view.is_within(now.parent, *raw)?) {
                    return changed();
                }
                (object.parent, object.attr.size, object.attr.nlink) = (now.parent, now.size, now.nlink);
                self.store(*raw, &object)?;
            }
            Fix::Datafile { iod, datafile } => {
                let next = handle_number(self.epoch, self.assigned()?);
                if datafile.0 >= next || *iod as usize >= iods || self.orphans.get((*iod, datafile.0))?.is_some() {
                    return changed();
                }
                let name = Fix::name_of_datafile(*iod, *datafile);
                self.check_free(*lost, &name)?;
                let layout = Layout::new(Distribution::simple_stripe(DEFAULT_STRIP, 1)?, vec![(*iod, *datafile)])?;
                let raw = self.handles(1)?;
                // Whose it was is not known, so only root may look.
                let attr = self.attr(Kind::File, Birth { mode: 0o600, uid: 0, gid: 0 });
                self.store(raw, &Object { layout: Some(layout), ..self.object(lost.0, attr) })?;
                self.link(lost.0, &name, Some((raw, Kind::File)), 0)?;
                self.count("files", 1)?;
            }
            Fix::Counts { files, dirs } => {
                self.count("files", *files)?;
                self.count("dirs", *dirs)?;
            }
        }
        self.count(REPAIRS, 1)
    }

    /// Returns an object that is tied in as it was found.
    fn tied(&self, raw: u64, was: Ties) -> Result<Object, Fault> {
        let object = self.view.object(raw)?;
        let Ties { parent, size, nlink } = was;
        match (object.parent, object.attr.size, object.attr.nlink) == (parent, size, nlink) {
            true => Ok(object),
            false => changed(),
        }
    }

    fn is_dir(&self, raw: u64) -> Result<bool, Fault> {
        Ok(self.view.find(raw)?.is_some_and(|object| object.attr.kind == Kind::Dir))
    }

    fn check_free(&self, dir: DirHandle, name: &[u8]) -> Result<(), Fault> {
        if !self.is_dir(dir.0)? {
            return refuse(ErrorCode::NotDirectory, dir.to_string());
        }
        match self.view.names.get((dir.0, name))? {
            Some(_) => refuse(ErrorCode::Exists, format!("lost+found has {:?} already", bstr::BStr::new(name))),
            None => Ok(()),
        }
    }

    /// Gives an object a name in `lost+found`, which is its only one or takes the place of another.
    fn move_to_lost(&mut self, raw: u64, mut object: Object, lost: DirHandle, is_only: bool) -> Result<(), Fault> {
        let (name, kind) = (Fix::name_of(raw), object.attr.kind);
        self.check_free(lost, &name)?;
        object.parent = lost.0;
        if is_only && kind != Kind::Dir {
            object.attr.nlink = 1;
        }
        self.store(raw, &object)?;
        self.link(lost.0, &name, Some((raw, kind)), i32::from(kind == Kind::Dir))
    }

    fn repair_name(&mut self, dir: u64, name: &[u8], lost: DirHandle) -> Result<(), Fault> {
        let Some((raw, number)) = self.view.names.get((dir, name))?.map(|named| named.value()) else {
            return changed();
        };
        let counted = |number| i32::from(number == kind_number(Kind::Dir));
        let is_there = self.is_dir(dir)?;
        match self.view.find(raw)? {
            Some(object) if !is_there => {
                if self.view.is_within(lost.0, raw)? {
                    return changed();
                }
                self.move_to_lost(raw, object, lost, false)?;
                self.view.names.remove((dir, name))?;
                Ok(())
            }
            None if !is_there => {
                self.view.names.remove((dir, name))?;
                Ok(())
            }
            None => self.link(dir, name, None, -counted(number)),
            Some(object) if kind_number(object.attr.kind) != number => {
                let kind = object.attr.kind;
                self.link(dir, name, Some((raw, kind)), counted(kind_number(kind)) - counted(number))
            }
            Some(object) if object.attr.kind == Kind::Dir && object.parent != dir && object.parent != NO_PARENT => {
                self.link(dir, name, None, -1)
            }
            Some(_) => changed(),
        }
    }
}
