//! What is stored: files and trees of this machine, or of the cluster itself.

use std::fmt;
use std::fs::{self, FileType, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bmi::MemSlice;
use bmi::threading::Threading;
use fs_proto::{BString, Handle, SetAttr};

use super::get::Remote;
use super::{Copier, attributes};
use crate::client::CreateOptions;
use crate::error::Error;
use crate::file::File;
use crate::local;
use crate::path::FsPath;

/// A file, a directory or something else that is copied.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Local(PathBuf),
    Remote(FsPath),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Local(path) => path.display().fmt(f),
            Source::Remote(path) => path.fmt(f),
        }
    }
}

/// What a source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Dir,
    Symlink,
    Other,
}

impl Kind {
    fn of_local(is: FileType) -> Kind {
        match () {
            () if is.is_dir() => Kind::Dir,
            () if is.is_file() => Kind::File,
            () if is.is_symlink() => Kind::Symlink,
            () => Kind::Other,
        }
    }

    fn of_remote(handle: Handle) -> Kind {
        match handle {
            Handle::Dir(_) => Kind::Dir,
            Handle::File(_) => Kind::File,
            Handle::Symlink(_) => Kind::Symlink,
        }
    }
}

/// An entry of a directory.
pub(super) struct Found {
    pub(super) source: Source,
    pub(super) name: BString,
    pub(super) kind: Kind,
    /// Names of one file have the same numbers. `None` if it has no other name, or nobody asks.
    pub(super) id: Option<(u64, u64)>,
}

/// A file that was opened.
pub(super) struct Input<S: Threading> {
    pub(super) bytes: Bytes<S>,
    /// In bytes; 0 if it is not known.
    pub(super) size: u64,
    /// A pipe or a device has no times.
    pub(super) attr: SetAttr,
}

/// Where the bytes of a file are.
pub(super) enum Bytes<S: Threading> {
    Local(Arc<fs::File>),
    Remote(File<S>),
}

impl<S: Threading> Copier<S> {
    /// Returns what a source is. A local link is what it leads to, unless links are kept.
    pub(super) async fn kind(&self, source: &Source) -> Result<Kind, Error> {
        match source {
            Source::Local(path) if self.archive => Ok(Kind::of_local(self.look(path).await?.file_type())),
            Source::Local(path) => {
                let at = path.clone();
                let found = self.io.run(move || fs::metadata(at)).await;
                Ok(Kind::of_local(found.map_err(|error| Error::local(path.display(), &error))?.file_type()))
            }
            Source::Remote(path) => Ok(Kind::of_remote(self.client.lookup(path).await?.handle)),
        }
    }

    /// Returns the attributes of a directory or a link, which is not followed.
    pub(super) async fn attributes(&self, source: &Source) -> Result<SetAttr, Error> {
        match source {
            Source::Local(path) => Ok(attributes::of_local(&self.look(path).await?)),
            Source::Remote(path) => Ok(attributes::of_remote(&self.client.lookup(path).await?.attr)),
        }
    }

    async fn look(&self, path: &Path) -> Result<Metadata, Error> {
        let at = path.to_owned();
        let found = self.io.run(move || fs::symlink_metadata(at)).await;
        found.map_err(|error| Error::local(path.display(), &error))
    }

    /// Returns where a symbolic link leads.
    pub(super) async fn link_target(&self, source: &Source) -> Result<BString, Error> {
        match source {
            Source::Local(path) => {
                let at = path.clone();
                let target = self.io.run(move || fs::read_link(at)).await;
                let target = target.map_err(|error| Error::local(path.display(), &error))?;
                Ok(target.into_os_string().into_vec().into())
            }
            Source::Remote(path) => self.client.read_link(path).await,
        }
    }

    /// Returns what is in a directory, sorted by name.
    pub(super) async fn list(&self, dir: &Source) -> Result<Vec<Found>, Error> {
        let archive = self.archive;
        match dir {
            Source::Local(path) => {
                let at = path.clone();
                let list = self.io.run(move || list_local(&at, archive)).await;
                list.map_err(|error| Error::local(path.display(), &error))
            }
            Source::Remote(path) => {
                let entries = self.client.readdir(path).await?.into_iter().map(|entry| {
                    let (kind, id) = (Kind::of_remote(entry.handle), (0, entry.handle.raw()));
                    let source = Source::Remote(path.join(&entry.name)?);
                    Ok(Found { source, name: entry.name, kind, id: archive.then_some(id) })
                });
                entries.collect()
            }
        }
    }

    /// Opens a file for reading.
    pub(super) async fn input(&self, source: &Source) -> Result<Input<S>, Error> {
        match source {
            Source::Local(path) => {
                let at = path.clone();
                let opened = self.io.run(move || open_local(&at)).await;
                let (file, size, attr) = opened.map_err(|error| Error::local(path.display(), &error))?;
                Ok(Input { bytes: Bytes::Local(Arc::new(file)), size, attr })
            }
            Source::Remote(path) => {
                let Remote { file, size, attr } = self.open(path).await?;
                Ok(Input { bytes: Bytes::Remote(file), size, attr })
            }
        }
    }

    /// Reads from `offset` on. Returns how many bytes there were.
    pub(super) async fn read_input(
        &self,
        source: &Source,
        bytes: &Bytes<S>,
        offset: u64,
        into: MemSlice,
    ) -> Result<usize, Error> {
        match bytes {
            Bytes::Local(file) => {
                let file = file.clone();
                let read = self.io.run(move || local::read_at(&file, offset, &into)).await;
                read.map_err(|error| Error::local(source, &error))
            }
            Bytes::Remote(file) => {
                let most = into.len();
                Ok(usize::try_from(file.read_at(offset, into).await?).map_or(most, |len| len.min(most)))
            }
        }
    }
}

fn list_local(dir: &Path, archive: bool) -> io::Result<Vec<Found>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = Kind::of_local(entry.file_type()?);
        let id = match archive && kind == Kind::File {
            true => Some(entry.metadata()?).filter(|is| is.nlink() > 1).map(|is| (is.dev(), is.ino())),
            false => None,
        };
        let name = entry.file_name().as_bytes().into();
        entries.push(Found { source: Source::Local(entry.path()), name, kind, id });
    }
    entries.sort_by(|one: &Found, other| one.name.cmp(&other.name));
    Ok(entries)
}

/// Opens a local file for reading. Returns its size and its attributes, too.
fn open_local(path: &Path) -> io::Result<(fs::File, u64, SetAttr)> {
    let file = fs::File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    // Only a regular file has a size. The kernel's own files (such as those in `/proc`) report 0,
    // however many bytes they contain.
    Ok(match metadata.is_file() {
        true => (file, metadata.len(), attributes::of_local(&metadata)),
        false => (file, 0, SetAttr { mode: Some(CreateOptions::default().mode), ..SetAttr::default() }),
    })
}
