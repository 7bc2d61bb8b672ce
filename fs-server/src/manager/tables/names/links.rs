//! Symbolic links, further names of files, names that are exchanged, and extended attributes.
//!
//! **Invariants**
//! 1. The number of names of a file is that of the rows of names that lead to it. A file without a
//!    name gets its first one by its publication, and only then further ones.
//! 2. An object has at most [`MAX_XATTRS`] extended attributes. They go with it.

use fs_proto::limits::{MAX_LINKS, MAX_PATH, MAX_XATTRS};
use fs_proto::{BString, Entry, ErrorCode, FileHandle, Handle, Kind, Place, XattrName, XattrValue};
use redb::ReadableTable;

use super::change::{Birth, Change};
use super::object::{Object, refuse};
use super::view::xattr_names;
use crate::manager::Fault;

impl Change<'_> {
    /// Creates a symbolic link.
    pub(in crate::manager) fn symlink(
        &mut self,
        place: &Place,
        target: &BString,
        (uid, gid): (u32, u32),
    ) -> Result<Entry, Fault> {
        let (dir, name) = self.view.parent(place)?;
        if target.is_empty() || target.contains(&0) {
            return refuse(ErrorCode::Invalid, format!("{target:?} is not a target of a symbolic link"));
        }
        if target.len() >= MAX_PATH {
            return refuse(ErrorCode::NameTooLong, format!("a target of {} bytes", target.len()));
        }
        if self.view.name(dir, name)?.is_some() {
            return refuse(ErrorCode::Exists, place.to_string());
        }
        let raw = self.handles(1)?;
        let mut attr = self.attr(Kind::Symlink, Birth { mode: 0o777, uid, gid });
        attr.size = target.len() as u64;
        let object = Object { target: Some(target.clone()), ..self.object(dir, attr) };
        self.store(raw, &object)?;
        self.link(dir, name, Some((raw, Kind::Symlink)), 0)?;
        self.count("files", 1)?;
        Ok(self.entry(raw, object))
    }

    /// Gives a file one more name.
    pub(in crate::manager) fn hard_link(&mut self, file: FileHandle, place: &Place) -> Result<Entry, Fault> {
        let (dir, name) = self.view.parent(place)?;
        self.view.getattr(file.into())?;
        let mut object = self.view.object(file.0)?;
        if object.is_nameless() {
            return refuse(ErrorCode::NotFound, format!("{file} has no name"));
        }
        if object.attr.nlink >= MAX_LINKS {
            return refuse(ErrorCode::TooManyLinks, format!("{file} has {} names", object.attr.nlink));
        }
        if self.view.name(dir, name)?.is_some() {
            return refuse(ErrorCode::Exists, place.to_string());
        }
        (object.attr.nlink, object.attr.ctime_ns) = (object.attr.nlink + 1, self.now_ns);
        self.store(file.0, &object)?;
        self.link(dir, name, Some((file.0, Kind::File)), 0)?;
        Ok(self.entry(file.0, object))
    }

    /// Exchanges two names.
    pub(in crate::manager) fn exchange(&mut self, one: &Place, other: &Place) -> Result<(), Fault> {
        let find = |change: &Self, place: &Place| {
            let (dir, name) = change.view.parent(place)?;
            match change.view.name(dir, name)? {
                Some((raw, kind)) => Ok((dir, BString::from(name), raw, kind)),
                None => refuse(ErrorCode::NotFound, place.to_string()),
            }
        };
        let (left, right) = (find(self, one)?, find(self, other)?);
        if left.2 == right.2 {
            return Ok(());
        }
        for ((_, _, raw, kind), (to, ..)) in [(&left, &right), (&right, &left)] {
            if *kind == Kind::Dir && self.view.is_within(*to, *raw)? {
                return refuse(ErrorCode::Invalid, format!("{one} and {other}: one is in the other"));
            }
        }
        for ((_, _, raw, kind), (to, name, _, there)) in [(&left, &right), (&right, &left)] {
            let subdirs = i32::from(*kind == Kind::Dir) - i32::from(*there == Kind::Dir);
            self.link(*to, name, Some((*raw, *kind)), subdirs)?;
            let mut object = self.view.object(*raw)?;
            (object.parent, object.attr.ctime_ns) = (*to, self.now_ns);
            self.store(*raw, &object)?;
        }
        Ok(())
    }

    /// Sets or removes an extended attribute.
    pub(in crate::manager) fn set_xattr(
        &mut self,
        handle: Handle,
        XattrName(name): &XattrName,
        value: Option<&XattrValue>,
        exists: Option<bool>,
    ) -> Result<(), Fault> {
        self.view.getattr(handle)?;
        if name.is_empty() || name.contains(&0) {
            return refuse(ErrorCode::Invalid, format!("{name:?} is not a name of an extended attribute"));
        }
        let key = (handle.raw(), name.as_slice());
        let is_there = self.xattrs.get(key)?.is_some();
        if exists == Some(false) && is_there {
            return refuse(ErrorCode::Exists, format!("{handle} has an extended attribute {name:?}"));
        }
        if !is_there && (exists == Some(true) || value.is_none()) {
            return refuse(ErrorCode::NotFound, format!("{handle} has no extended attribute {name:?}"));
        }
        if !is_there && xattr_names(&self.xattrs, handle.raw())?.len() >= MAX_XATTRS {
            return refuse(
                ErrorCode::NoSpace,
                format!("{handle} has {MAX_XATTRS} extended attributes, which is the most"),
            );
        }
        match value {
            Some(XattrValue(value)) => drop(self.xattrs.insert(key, value.as_slice())?),
            None => drop(self.xattrs.remove(key)?),
        }
        let mut object = self.view.object(handle.raw())?;
        object.attr.ctime_ns = self.now_ns;
        self.store(handle.raw(), &object)
    }
}
