//! Links, names that are exchanged, and extended attributes.

use bmi::threading::Threading;
use fs_proto::{BString, DefaultLayout, Entry, ErrorCode, ManagerReply, ManagerRequest, XattrName, XattrValue};

use crate::client::Client;
use crate::error::Error;
use crate::path::FsPath;

impl<S: Threading> Client<S> {
    /// Creates a symbolic link that leads to `target`, for an owner: user and group. The target is
    /// stored as it is. Nothing here follows it.
    ///
    /// # Errors
    /// `Exists`, `NotFound` for the parent directory, `Invalid` or `NameTooLong` for a target that
    /// is empty, has a NUL byte, or has 4096 bytes or more, and those of every request.
    pub async fn symlink(
        &self,
        path: &FsPath,
        target: impl Into<BString>,
        (uid, gid): (u32, u32),
    ) -> Result<Entry, Error> {
        self.make_symlink(path, target.into(), (uid, gid), false).await
    }

    /// Creates a symbolic link, which replaces anything but a directory, in one step.
    ///
    /// # Errors
    /// `IsDirectory`, and those of [`Client::symlink`].
    pub async fn symlink_over(
        &self,
        path: &FsPath,
        target: impl Into<BString>,
        owner: (u32, u32),
    ) -> Result<Entry, Error> {
        self.make_symlink(path, target.into(), owner, true).await
    }

    async fn make_symlink(
        &self,
        path: &FsPath,
        target: BString,
        (uid, gid): (u32, u32),
        replace: bool,
    ) -> Result<Entry, Error> {
        let request = ManagerRequest::Symlink { place: path.place(), target, uid, gid, replace };
        self.ask_entry(request).await.map_err(|error| error.during(format!("symlink {path}")))
    }

    /// Returns where a symbolic link leads.
    ///
    /// # Errors
    /// `Invalid` if there is something else, and those of [`Client::lookup`].
    pub async fn read_link(&self, path: &FsPath) -> Result<BString, Error> {
        let entry = self.lookup(path).await?;
        let other = || Error::new(ErrorCode::Invalid, format!("{path} is {}", entry.handle));
        entry.target.ok_or_else(other)
    }

    /// Gives a file one more name: a hard link.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `Permission` if `file` leads to something else than a file,
    /// `TooManyLinks`, and those of every request.
    pub async fn link(&self, file: &FsPath, path: &FsPath) -> Result<Entry, Error> {
        self.make_link(file, path, false).await
    }

    /// Gives a file one more name, which replaces anything but a directory, in one step.
    ///
    /// # Errors
    /// `IsDirectory`, and those of [`Client::link`].
    pub async fn link_over(&self, file: &FsPath, path: &FsPath) -> Result<Entry, Error> {
        self.make_link(file, path, true).await
    }

    async fn make_link(&self, file: &FsPath, path: &FsPath, replace: bool) -> Result<Entry, Error> {
        let during = |error: Error| error.during(format!("link {path} to {file}"));
        let handle = self.handle_of(file).await.map_err(during)?;
        let Some(file) = handle.file() else {
            return Err(during(Error::new(
                ErrorCode::Permission,
                format!("only files have several names, not {handle}"),
            )));
        };
        self.ask_entry(ManagerRequest::Link { file, place: path.place(), replace }).await.map_err(during)
    }

    /// Says how new files of a directory are striped from now on: by the attribute
    /// [`DefaultLayout::XATTR`]. `DefaultLayout::default()` is the default of the cluster.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` if it cannot be, or for anything but a directory, and those of
    /// [`Client::set_xattr`].
    pub async fn set_default_layout(&self, dir: &FsPath, layout: DefaultLayout) -> Result<(), Error> {
        let value = (layout != DefaultLayout::default()).then(|| layout.to_string().into());
        let removes = value.is_none();
        match self.set_xattr(dir, DefaultLayout::XATTR, value, None).await {
            // There was none, or there is no such directory.
            Err(error) if removes && error.code() == ErrorCode::NotFound => self.lookup(dir).await.map(drop),
            set => set,
        }
    }

    /// Returns how new files of a directory are striped.
    ///
    /// # Errors
    /// `NotFound`, and those of every request.
    pub async fn default_layout(&self, dir: &FsPath) -> Result<DefaultLayout, Error> {
        match self.xattr(dir, DefaultLayout::XATTR).await {
            Ok(text) => DefaultLayout::parse(&text).map_err(|error| Error::new(error.code, error.detail)),
            // There is none, or there is no such directory.
            Err(error) if error.code() == ErrorCode::NotFound => {
                self.lookup(dir).await.map(|_| DefaultLayout::default())
            }
            Err(error) => Err(error),
        }
    }

    /// Exchanges two names, in one step.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` if a directory would be in itself, and those of every request.
    pub async fn exchange(&self, one: &FsPath, other: &FsPath) -> Result<(), Error> {
        let request = ManagerRequest::Exchange { one: one.place(), other: other.place() };
        self.ask_done(request).await.map_err(|error| error.during(format!("exchange {one} and {other}")))
    }

    /// Sets an extended attribute, or removes it (`None`). If `exists` is true it must be there,
    /// and if false it must not.
    ///
    /// # Errors
    /// `NotFound`, `Exists`; `NoSpace` if the object has [`MAX_XATTRS`] of them; `TooLarge` for a
    /// value of more than [`MAX_XATTR`] bytes; `NameTooLong`; and those of every request.
    ///
    /// [`MAX_XATTRS`]: fs_proto::limits::MAX_XATTRS
    /// [`MAX_XATTR`]: fs_proto::limits::MAX_XATTR
    pub async fn set_xattr(
        &self,
        path: &FsPath,
        name: impl Into<BString>,
        value: Option<BString>,
        exists: Option<bool>,
    ) -> Result<(), Error> {
        let during = |error: Error| error.during(format!("set an extended attribute of {path}"));
        let name = named(name.into()).map_err(during)?;
        if let Some(value) = value.as_ref().filter(|value| value.len() > fs_proto::limits::MAX_XATTR) {
            return Err(during(Error::new(ErrorCode::TooLarge, format!("a value of {} bytes", value.len()))));
        }
        let handle = self.handle_of(path).await.map_err(during)?;
        let request = ManagerRequest::SetXattr { handle, name, value: value.map(XattrValue), exists };
        self.ask_done(request).await.map_err(during)
    }

    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// `NotFound` if there is none, and those of every request.
    pub async fn xattr(&self, path: &FsPath, name: impl Into<BString>) -> Result<BString, Error> {
        let during = |error: Error| error.during(format!("get an extended attribute of {path}"));
        let name = named(name.into()).map_err(during)?;
        let handle = self.handle_of(path).await.map_err(during)?;
        match self.ask_manager(ManagerRequest::GetXattr { handle, name }).await.map_err(during)? {
            ManagerReply::Xattr(value) => Ok(value),
            other => Err(self.odd(other.into())),
        }
    }

    /// Returns the names of the extended attributes, sorted.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn xattrs(&self, path: &FsPath) -> Result<Vec<XattrName>, Error> {
        let during = |error: Error| error.during(format!("list the extended attributes of {path}"));
        let handle = self.handle_of(path).await.map_err(during)?;
        match self.ask_manager(ManagerRequest::ListXattrs { handle }).await.map_err(during)? {
            ManagerReply::Xattrs(names) => Ok(names),
            other => Err(self.odd(other.into())),
        }
    }
}

/// Checks the length of a name, which the codec refuses with the whole message.
fn named(name: BString) -> Result<XattrName, Error> {
    match name.len() {
        0..=fs_proto::limits::MAX_NAME => Ok(XattrName(name)),
        len => Err(Error::new(ErrorCode::NameTooLong, format!("a name of {len} bytes"))),
    }
}
