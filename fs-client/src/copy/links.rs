//! Links: they are made again, beside those that lead to the same place.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use bmi::threading::Threading;
use fs_proto::{ErrorCode, SetAttr};

use super::landing::link_over;
use super::source::Source;
use super::{Copied, Copier, attributes};
use crate::error::Error;
use crate::path::FsPath;

const STORED: Copied = Copied { files: 1, directories: 0, bytes: 0, skipped: 0, failed: 0 };
const SKIPPED: Copied = Copied { files: 0, skipped: 1, ..STORED };

impl<S: Threading> Copier<S> {
    /// Stores a symbolic link.
    pub(super) async fn put_link(&self, source: &Source, to: &FsPath) -> Result<Copied, Error> {
        let target = self.link_target(source).await?;
        let owner = self.client.owner();
        let (link, copied) = match self.client.symlink(to, target.clone(), owner).await {
            Err(error) if error.code() == ErrorCode::Exists => match self.client.lookup(to).await? {
                there if there.target.as_ref() == Some(&target) => (there, SKIPPED),
                _ => (self.client.symlink_over(to, target, owner).await?, STORED),
            },
            made => (made?, STORED),
        };
        if self.archive {
            let set = SetAttr { mode: None, ..self.attributes(source).await? };
            attributes::set_copied(&self.client, &FsPath::of(link.handle), set).await?;
        }
        Ok(copied)
    }

    /// Gives the file that was stored as `first` the name `to`, too.
    pub(super) async fn put_name(&self, first: &FsPath, to: &FsPath) -> Result<Copied, Error> {
        let file = self.client.lookup(first).await?.handle;
        if self.client.lookup(to).await.is_ok_and(|there| there.handle == file) {
            return Ok(SKIPPED);
        }
        self.client.link_over(first, to).await.map(|_| STORED)
    }

    /// Fetches a symbolic link. It replaces anything but a directory.
    ///
    /// # Errors
    /// `Io` naming the local file; those of [`lookup`](crate::Client::lookup).
    pub async fn get_link(&self, source: &FsPath, target: &Path) -> Result<Copied, Error> {
        let entry = self.client.lookup(source).await?;
        let other = || Error::new(ErrorCode::Invalid, format!("{source} is {}", entry.handle));
        let leads_to = entry.target.clone().ok_or_else(other)?;
        let (path, archive, set) = (target.to_owned(), self.archive, attributes::of_remote(&entry.attr));
        let make = move || {
            let leads_to = Path::new(OsStr::from_bytes(&leads_to));
            let is_there = fs::read_link(&path).is_ok_and(|there| there == leads_to);
            if !is_there {
                link_over(&path, |name| symlink(leads_to, name))?;
            }
            if archive {
                attributes::set_link(&path, &set)?;
            }
            Ok(if is_there { SKIPPED } else { STORED })
        };
        self.io.run(make).await.map_err(|error| Error::local(target.display(), &error))
    }

    /// Gives the file that was fetched as `first` the name `to`, too.
    pub(super) async fn get_name(&self, first: &Path, to: &Path) -> Result<Copied, Error> {
        let (one, other) = (first.to_owned(), to.to_owned());
        let make = move || {
            let is = fs::symlink_metadata(&one)?;
            if fs::symlink_metadata(&other).is_ok_and(|there| (there.dev(), there.ino()) == (is.dev(), is.ino())) {
                return Ok(SKIPPED);
            }
            link_over(&other, |name| fs::hard_link(&one, name)).map(|()| STORED)
        };
        self.io.run(make).await.map_err(|error| Error::local(to.display(), &error))
    }
}
