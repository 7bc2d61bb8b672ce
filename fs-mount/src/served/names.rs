//! Names: looking at them, making, moving and removing them.

use fs_client::{CreateOptions, Entry, FsPath, Handle, Kind, RemoveKind, Replace, SharedFile};
use rustix::io::Errno;

use super::attributes::attr_of;
use super::{KIND, Served, mode_of};
use crate::errors::errno;
use crate::fuse::{Attr, Reply, Request, flags};

/// Bits of the flags of open(2).
const O_EXCL: u32 = 0o200;
pub(super) const O_TRUNC: u32 = 0o1000;
/// What is made in a directory with this bit gets the directory's group.
const SET_GID: u32 = 0o2000;
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
        let entry = self.ask(|| self.client.lookup(&place)).await?;
        let stat = self.ask(|| self.client.stat_of(&place, entry.clone())).await?;
        self.nodes.keep_recent(entry.handle.raw(), entry);
        Ok(self.found(dir, &attr_of(stat.handle, &stat.attr), stat.handle))
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
        let stat = self.ask(|| self.client.stat_of(&place, entry.clone())).await?;
        Ok(self.found(dir, &attr_of(stat.handle, &stat.attr), stat.handle))
    }

    /// Creates a file that is not opened. Devices, pipes and sockets are not offered.
    pub(super) async fn make_node(&self, request: &Request) -> Result<Reply, Errno> {
        let mut args = request.args();
        let (mode, _, _, _, name) = (args.u32()?, args.u32()?, args.u32()?, args.u32()?, args.name()?);
        if mode & KIND != mode_of(Kind::File) {
            return Err(Errno::PERM);
        }
        let file = self.make_file(request, &self.place(request.node, name)?, mode).await?;
        let attr = self.fresh(&file).await?;
        Ok(self.found(request.node, &attr, Handle::File(file.handle())))
    }

    /// Creates a file where nothing is.
    async fn make_file(&self, request: &Request, place: &FsPath, mode: u32) -> Result<SharedFile, Errno> {
        let (mode, owner) = self.owned(request, mode, false)?;
        let options = CreateOptions { mode, owner: Some(owner), ..CreateOptions::default() };
        self.ask(|| self.client.create(place, options)).await
    }

    /// Returns the attributes of a file that was just created and is empty.
    async fn fresh(&self, file: &SharedFile) -> Result<Attr, Errno> {
        let path = FsPath::of(file.handle());
        let entry = self.ask(|| self.client.lookup(&path)).await?;
        Ok(attr_of(entry.handle, &entry.attr))
    }

    /// Creates a file and opens it. Opens one that is there, unless that was excluded.
    pub(super) async fn create(&self, request: &Request) -> Result<Reply, Errno> {
        let mut args = request.args();
        let (how, mode, _, _, name) = (args.u32()?, args.u32()?, args.u32()?, args.u32()?, args.name()?);
        let place = self.place(request.node, name)?;
        let (file, attr) = match self.make_file(request, &place, mode).await {
            Err(Errno::EXIST) if how & O_EXCL == 0 => {
                let file = self.ask(|| self.client.open(&place)).await?;
                if how & O_TRUNC != 0 {
                    self.ask(|| file.set_len(0)).await?;
                }
                let path = FsPath::of(file.handle());
                let stat = self.ask(|| self.client.stat(&path)).await?;
                let attr = attr_of(stat.handle, &stat.attr);
                (file, attr)
            }
            made => {
                let file = made?;
                let attr = self.fresh(&file).await?;
                (file, attr)
            }
        };
        self.nodes.learn(request.node, Handle::File(file.handle()), attr, false);
        self.nodes.opened(attr.node, file)?;
        Ok(Reply::created(&attr, self.times(&attr, false), self.opened_flags()))
    }

    /// Removes the name of a file. A file that is open here and has no other name gets a hidden
    /// one, and is removed when it is closed. So it can be read and written until then.
    pub(super) async fn unlink(&self, dir: u64, name: &[u8]) -> Result<Reply, Errno> {
        let place = self.place(dir, name)?;
        if self.hide_open(dir, &place).await?.is_none() {
            self.ask(|| self.client.remove(&place, RemoveKind::File)).await?;
        }
        Ok(Reply::done())
    }

    /// Moves a file to a hidden name in its directory, if it is open here and has no other name.
    /// Returns its node and the hidden name.
    async fn hide_open(&self, dir: u64, place: &FsPath) -> Result<Option<(u64, FsPath)>, Errno> {
        if !self.nodes.has_open() {
            return Ok(None);
        }
        let entry = match self.ask(|| self.client.lookup(place)).await {
            Err(Errno::NOENT) => return Ok(None),
            entry => entry?,
        };
        let node = entry.handle.raw();
        if entry.attr.nlink > 1 || self.nodes.file(node).is_none() || self.nodes.is_hidden(node) {
            return Ok(None);
        }
        let hidden = self.place(dir, format!(".pvfs-removed-{node:x}").as_bytes())?;
        self.ask(|| self.client.rename(place, &hidden)).await?;
        self.nodes.hide(node, Some(hidden.clone()));
        Ok(Some((node, hidden)))
    }

    pub(super) async fn remove_dir(&self, dir: u64, name: &[u8]) -> Result<Reply, Errno> {
        let place = self.place(dir, name)?;
        self.ask(|| self.client.remove(&place, RemoveKind::Dir)).await?;
        Ok(Reply::done())
    }

    /// Moves a name. A file that is replaced, and is open here, gets a hidden name before.
    pub(super) async fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), how: u32) -> Result<Reply, Errno> {
        let (old, new) = (self.place(from.0, from.1)?, self.place(to.0, to.1)?);
        let moved = match how {
            0 if old != new => {
                let hidden = self.hide_open(to.0, &new).await?;
                let moved = self.ask(|| self.client.rename(&old, &new)).await;
                if let (Err(_), Some((node, hidden))) = (&moved, hidden) {
                    self.ask(|| self.client.rename_over(&hidden, &new, Replace::Nothing)).await?;
                    self.nodes.hide(node, None);
                }
                moved
            }
            0 => self.ask(|| self.client.rename(&old, &new)).await,
            flags::RENAME_NOREPLACE => self.ask(|| self.client.rename_over(&old, &new, Replace::Nothing)).await,
            flags::RENAME_EXCHANGE => self.ask(|| self.client.exchange(&old, &new)).await,
            _ => Err(Errno::INVAL),
        };
        moved?;
        Ok(Reply::done())
    }
}
