//! Names: looking at them, making, moving and removing them.

use bmi::threading::AnyThread;
use fs_client::{CreateOptions, Entry, Error, FsPath, Handle, Held, Kind, RemoveKind, Replace, SharedFile};
use fs_proto::ErrorCode;
use futures_util::FutureExt;
use rustix::io::Errno;

use super::attributes::{SET_GID, attr_of};
use super::{BELIEVED_EXCLUSIVELY, KIND, Served, mode_of};
use crate::errors::errno;
use crate::fuse::{Attr, Reply, Request, flags};

/// Bits of the flags of open(2).
pub(crate) const O_WRITES: u32 = 0o3;
const O_EXCL: u32 = 0o200;
pub(crate) const O_TRUNC: u32 = 0o1000;
pub(super) const O_APPEND: u32 = 0o2000;
/// Longest name, in bytes.
const LONGEST_NAME: usize = 255;

impl Served {
    /// Returns the place of a name in a directory.
    fn place(&self, dir: u64, name: &[u8]) -> Result<FsPath, Errno> {
        let dir = self.nodes.path(dir)?;
        dir.join(name).map_err(|error| if name.len() > LONGEST_NAME { Errno::NAMETOOLONG } else { errno(&error) })
    }

    pub(super) async fn lookup(&self, dir: u64, name: &[u8]) -> Result<Reply, Errno> {
        let place = self.place(dir, name)?;
        let entry = match self.ask(|| self.client.lookup(&place)).await {
            Err(Errno::NOENT) if self.is_exclusive() => return Ok(Reply::nothing(BELIEVED_EXCLUSIVELY)),
            other => other?,
        };
        Ok(self.found(dir, &self.attr_of_entry(&entry).await?, entry.handle))
    }

    /// Tells the kernel what a name leads to.
    fn found(&self, dir: u64, attr: &Attr, handle: Handle) -> Reply {
        self.nodes.learn(dir, handle, *attr, false);
        Reply::entry(attr, self.times(attr, false))
    }

    /// Tells the kernel about an object that has just been made.
    fn made(&self, dir: u64, entry: &Entry) -> Reply {
        self.found(dir, &attr_of(entry.handle, &entry.attr), entry.handle)
    }

    /// Returns the mode and the owner of what is made for a request.
    fn owned(&self, request: &Request, mode: u32, is_dir: bool) -> Result<(u32, (u32, u32)), Errno> {
        let above = self.nodes.known(request.node)?;
        // What is made in a directory with this bit gets the directory's group.
        let inherits = above.mode & SET_GID != 0;
        let mode = mode & 0o7777 | if inherits && is_dir { SET_GID } else { 0 };
        Ok((mode, (request.uid, if inherits { above.gid } else { request.gid })))
    }

    pub(super) async fn make_dir(&self, request: &Request) -> Result<Reply, Errno> {
        let mut args = request.args();
        let (mode, _, name) = (args.u32()?, args.u32()?, args.name()?);
        let (place, (mode, owner)) = (self.place(request.node, name)?, self.owned(request, mode, true)?);
        let entry = self.ask(|| self.client.mkdir_for(&place, mode, owner)).await?;
        Ok(self.made(request.node, &entry))
    }

    pub(super) async fn make_symlink(&self, request: &Request) -> Result<Reply, Errno> {
        let mut args = request.args();
        let (name, target) = (args.name()?, args.name()?);
        let (place, (_, owner)) = (self.place(request.node, name)?, self.owned(request, 0o777, false)?);
        let entry = self.ask(|| self.client.symlink(&place, target, owner)).await?;
        Ok(self.made(request.node, &entry))
    }

    pub(super) async fn read_link(&self, node: u64) -> Result<Reply, Errno> {
        let path = self.nodes.path(node)?;
        Ok(Reply::Bytes(self.ask(|| self.client.read_link(&path)).await?.into()))
    }

    /// Gives a file one more name.
    pub(super) async fn link(&self, file: u64, dir: u64, name: &[u8]) -> Result<Reply, Errno> {
        let (path, place) = (self.nodes.path(file)?, self.place(dir, name)?);
        let entry = self.ask(|| self.client.link(&path, &place)).await?;
        Ok(self.found(dir, &self.attr_of_entry(&entry).await?, entry.handle))
    }

    /// Creates a file that is not opened. Devices, pipes and sockets are not offered.
    pub(super) async fn make_node(&self, request: &Request) -> Result<Reply, Errno> {
        let mut args = request.args();
        let (mode, _, _, _, name) = (args.u32()?, args.u32()?, args.u32()?, args.u32()?, args.name()?);
        if mode & KIND != mode_of(Kind::File) {
            return Err(Errno::PERM);
        }
        let (_, _, entry) = self.make_file(request, &self.place(request.node, name)?, mode).await?;
        Ok(self.made(request.node, &entry))
    }

    /// Creates a file where nothing is. The answer is waited for by a task of its own: a hold whose
    /// create was dropped, because its process was killed, would last as long as the mount. If the
    /// mount is hard, the task waits until the manager answers.
    async fn make_file(
        &self,
        request: &Request,
        place: &FsPath,
        mode: u32,
    ) -> Result<(Held<AnyThread>, SharedFile, Entry), Errno> {
        let (mode, owner) = self.owned(request, mode, false)?;
        let options = CreateOptions { mode, owner: Some(owner), small: true, ..CreateOptions::default() };
        self.ask(|| {
            let (client, place) = (self.client.clone(), place.clone());
            let created = tokio::spawn(async move { client.create_held(&place, options).await });
            created.map(|ended| ended.unwrap_or_else(|error| Err(Error::new(ErrorCode::Io, error.to_string()))))
        })
        .await
    }

    /// Creates a file and opens it. Opens one that is there, unless that was excluded.
    pub(super) async fn create(&self, request: &Request) -> Result<Reply, Errno> {
        let mut args = request.args();
        let (how, mode, _, _, name) = (args.u32()?, args.u32()?, args.u32()?, args.u32()?, args.name()?);
        let place = self.place(request.node, name)?;
        let (held, file, attr) = match self.make_file(request, &place, mode).await {
            Err(Errno::EXIST) if how & O_EXCL == 0 => {
                let (held, entry) = self.ask(|| self.client.hold(&place)).await?;
                let file = self.file_as_told(&place, &entry).await?;
                self.begin_write(&file, how).await?;
                let path = FsPath::of(entry.handle);
                let entry = self.ask(|| self.client.lookup(&path)).await?;
                (held, file, self.attr_of_entry(&entry).await?)
            }
            made => {
                let (held, file, entry) = made?;
                (held, self.coherent(file), attr_of(entry.handle, &entry.attr))
            }
        };
        self.nodes.learn(request.node, Handle::File(file.handle()), attr, false);
        self.nodes.opened(attr.node, file, held)?;
        Ok(Reply::created(&attr, self.times(&attr, false), 0, self.opened_flags(how)))
    }

    /// Removes the name of a file. If it is open anywhere, its bytes stay until it is closed.
    pub(super) async fn unlink(&self, dir: u64, name: &[u8]) -> Result<Reply, Errno> {
        let place = self.place(dir, name)?;
        self.ask(|| self.client.remove(&place, RemoveKind::File)).await?;
        Ok(Reply::done())
    }

    pub(super) async fn remove_dir(&self, dir: u64, name: &[u8]) -> Result<Reply, Errno> {
        let place = self.place(dir, name)?;
        self.ask(|| self.client.remove(&place, RemoveKind::Dir)).await?;
        Ok(Reply::done())
    }

    /// Moves a name.
    pub(super) async fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), how: u32) -> Result<Reply, Errno> {
        let (old, new) = (self.place(from.0, from.1)?, self.place(to.0, to.1)?);
        match how {
            0 => self.ask(|| self.client.rename(&old, &new)).await?,
            flags::RENAME_NOREPLACE => self.ask(|| self.client.rename_over(&old, &new, Replace::Nothing)).await?,
            flags::RENAME_EXCHANGE => self.ask(|| self.client.exchange(&old, &new)).await?,
            _ => return Err(Errno::INVAL),
        }
        Ok(Reply::done())
    }
}
