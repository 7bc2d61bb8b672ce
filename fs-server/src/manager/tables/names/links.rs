//! Symbolic links, further names of files, names that are exchanged, and extended attributes.
//!
//! **Invariants**
//! 1. The number of names of a file is that of the rows of names that lead to it. A file without a
//!    name gets its first one by its publication, and only then further ones.
//! 2. An object has at most [`MAX_XATTRS`] extended attributes. They go with it.

use fs_proto::limits::{MAX_LINKS, MAX_PATH, MAX_XATTRS};
use fs_proto::{
    Access, BString, DefaultLayout, Entry, ErrorCode, FileHandle, Handle, Kind, Place, XattrName, XattrValue,
};
use redb::ReadableTable;

use super::change::{Birth, Change};
use super::object::{Object, refuse};
use super::view::xattr_names;
use crate::manager::Fault;

impl Change<'_> {
    /// Takes what is at a place away, if it is to be replaced and is no directory. Returns the
    /// directory of the place, as it was.
    fn make_room(&mut self, place: &Place, replace: bool) -> Result<Object, Fault> {
        let (dir, name) = self.view.parent(place)?;
        match self.view.name(dir, name)? {
            None => self.view.may_change(dir, None),
            Some(_) if !replace => refuse(ErrorCode::Exists, place.to_string()),
            Some((_, Kind::Dir)) => refuse(ErrorCode::IsDirectory, place.to_string()),
            Some((raw, _)) => {
                let old = self.view.object(raw)?;
                let above = self.view.may_change(dir, Some(&old))?;
                self.unname(raw, old)?;
                self.link(dir, name, None, 0)?;
                Ok(above)
            }
        }
    }

    /// Creates a symbolic link. If `replace`, it replaces anything but a directory.
    pub(in crate::manager) fn symlink(
        &mut self,
        place: &Place,
        target: &BString,
        (uid, gid): (u32, u32),
        replace: bool,
    ) -> Result<Entry, Fault> {
        let (dir, name) = self.view.parent(place)?;
        if target.is_empty() || target.contains(&0) {
            return refuse(ErrorCode::Invalid, format!("{target:?} is not a target of a symbolic link"));
        }
        if target.len() >= MAX_PATH {
            return refuse(ErrorCode::NameTooLong, format!("a target of {} bytes", target.len()));
        }
        let above = self.make_room(place, replace)?;
        let raw = self.handles(1)?;
        let mut attr = self.attr(Kind::Symlink, self.view.born(&above, Birth { mode: 0o777, uid, gid }, Kind::Symlink));
        attr.size = target.len() as u64;
        let object = Object { target: Some(target.clone()), ..self.object(dir, attr) };
        self.store(raw, &object)?;
        self.link(dir, name, Some((raw, Kind::Symlink)), 0)?;
        self.count("files", 1)?;
        Ok(self.entry(raw, object))
    }

    /// Gives a file one more name. If `replace`, it replaces anything but a directory.
    pub(in crate::manager) fn hard_link(
        &mut self,
        file: FileHandle,
        place: &Place,
        replace: bool,
    ) -> Result<Entry, Fault> {
        let (dir, name) = self.view.parent(place)?;
        self.view.getattr(file.into())?;
        let mut object = self.view.object(file.0)?;
        if object.is_nameless() {
            return refuse(ErrorCode::NotFound, format!("{file} has no name"));
        }
        self.view.may_link(&object)?;
        if replace && self.view.name(dir, name)?.is_some_and(|(raw, _)| raw == file.0) {
            return Ok(self.entry(file.0, object));
        }
        if object.attr.nlink >= MAX_LINKS {
            return refuse(ErrorCode::TooManyLinks, format!("{file} has {} names", object.attr.nlink));
        }
        self.make_room(place, replace)?;
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
        for ((from, _, raw, _), (to, ..)) in [(&left, &right), (&right, &left)] {
            let object = self.view.object(*raw)?;
            self.view.may_change(*from, Some(&object))?;
            self.view.may_move(&object, *from, *to)?;
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
        let mut object = self.view.named(handle)?;
        self.view.may_use_xattr(&object, Some(name), Access::WRITE)?;
        if name.is_empty() || name.contains(&0) {
            return refuse(ErrorCode::Invalid, format!("{name:?} is not a name of an extended attribute"));
        }
        if let Some(XattrValue(text)) = value.filter(|_| name == DefaultLayout::XATTR) {
            if handle.dir().is_none() {
                return refuse(ErrorCode::Invalid, format!("{name} is for directories; {handle} keeps its layout"));
            }
            DefaultLayout::parse(text)?;
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
        object.attr.ctime_ns = self.now_ns;
        self.store(handle.raw(), &object)
    }
}
