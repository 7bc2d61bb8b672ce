//! Names: looking at them, making, moving and removing them.

use fs_client::{CreateOptions, FsPath, RemoveKind, Replace, SetAttr};
use rustix::io::Errno;

use super::attributes::{attr_of, known_of};
use super::{KIND, Served, mode_of};
use crate::fuse::{Attr, Reply, Request, flags};

/// Bits of the flags of open(2).
const O_EXCL: u32 = 0o200;
pub(super) const O_TRUNC: u32 = 0o1000;
/// What is made in a directory with this bit gets the directory's group.
const SET_GID: u32 = 0o2000;

impl Served {
    pub(super) async fn lookup(&self, dir: u64, name: &[u8]) -> Result<Reply, Errno> {
        let path = self.nodes.place(dir, name)?;
        let attr = self.learn(dir, name, &path).await?;
        Ok(Reply::entry(&attr, self.times(&attr, false)))
    }

    /// Asks what a name leads to, and notes it for the kernel.
    async fn learn(&self, dir: u64, name: &[u8], path: &FsPath) -> Result<Attr, Errno> {
        let stat = self.ask(|| self.client.stat(path)).await?;
        let attr = attr_of(&stat);
        self.nodes.learn((dir, name), stat.handle, known_of(&attr), false);
        Ok(attr)
    }

    /// Returns the mode and the owner that a new object must be given, if it did not get them when
    /// it was created with `mode` for this client.
    fn corrected(&self, request: &Request, created: u32, mode: u32, is_dir: bool) -> Result<SetAttr, Errno> {
        let above = self.nodes.known(request.node)?;
        let inherits = above.mode & SET_GID != 0;
        let mode = mode & 0o7777 | if inherits && is_dir { SET_GID } else { 0 };
        let gid = if inherits { above.gid } else { request.gid };
        let own = self.client.options();
        Ok(SetAttr {
            mode: (mode != created).then_some(mode),
            uid: (request.uid != own.uid).then_some(request.uid),
            gid: (gid != own.gid).then_some(gid),
            ..SetAttr::default()
        })
    }

    pub(super) async fn make_dir(&self, request: &Request) -> Result<Reply, Errno> {
        /// What the library creates a directory with.
        const MODE: u32 = 0o755;
        let mut args = request.args();
        let (mode, _, name) = (args.u32()?, args.u32()?, args.name()?);
        let path = self.nodes.place(request.node, name)?;
        self.ask(|| self.client.mkdir(&path)).await?;
        let set = self.corrected(request, MODE, mode, true)?;
        if set != SetAttr::default() {
            self.ask(|| self.client.setattr(&path, set)).await?;
        }
        self.lookup(request.node, name).await
    }

    /// Creates a file that is not opened. Devices, pipes and sockets are not offered.
    pub(super) async fn make_node(&self, request: &Request) -> Result<Reply, Errno> {
        let mut args = request.args();
        let (mode, _, _, _, name) = (args.u32()?, args.u32()?, args.u32()?, args.u32()?, args.name()?);
        if mode & KIND != mode_of(fs_proto::Kind::File) {
            return Err(Errno::PERM);
        }
        let path = self.nodes.place(request.node, name)?;
        self.make_file(request, &path, mode).await?;
        self.lookup(request.node, name).await
    }

    /// Creates a file where nothing is.
    async fn make_file(&self, request: &Request, path: &FsPath, mode: u32) -> Result<fs_client::SharedFile, Errno> {
        let mode = mode & 0o7777;
        let options = CreateOptions { mode, ..CreateOptions::default() };
        let file = self.ask(|| self.client.create(path, options)).await?;
        let set = self.corrected(request, mode, mode, false)?;
        if set != SetAttr::default() {
            self.ask(|| self.client.setattr(path, set)).await?;
        }
        Ok(file)
    }

    /// Creates a file and opens it. Opens one that is there, unless that was excluded.
    pub(super) async fn create(&self, request: &Request) -> Result<Reply, Errno> {
        let mut args = request.args();
        let (how, mode, _, _, name) = (args.u32()?, args.u32()?, args.u32()?, args.u32()?, args.name()?);
        let path = self.nodes.place(request.node, name)?;
        let file = match self.make_file(request, &path, mode).await {
            Err(Errno::EXIST) if how & O_EXCL == 0 => {
                let file = self.ask(|| self.client.open(&path)).await?;
                if how & O_TRUNC != 0 {
                    self.ask(|| file.set_len(0)).await?;
                }
                file
            }
            made => made?,
        };
        let attr = self.learn(request.node, name, &path).await?;
        self.nodes.opened(attr.node, file)?;
        Ok(Reply::created(&attr, self.times(&attr, false), self.opened_flags()))
    }

    /// Removes the name of a file. A file that is open here gets a hidden name, and is removed when
    /// it is closed. So it can be read and written until then.
    pub(super) async fn unlink(&self, dir: u64, name: &[u8]) -> Result<Reply, Errno> {
        if let Some(node) = self.nodes.open_at(dir, name) {
            self.hide(dir, name, node).await?;
        } else {
            let path = self.nodes.place(dir, name)?;
            self.ask(|| self.client.remove(&path, RemoveKind::File)).await?;
        }
        Ok(Reply::done())
    }

    /// Moves a file that is open to a hidden name in its directory. Returns the name.
    async fn hide(&self, dir: u64, name: &[u8], node: u64) -> Result<Vec<u8>, Errno> {
        let hidden = format!(".pvfs-removed-{node:x}").into_bytes();
        let (from, to) = (self.nodes.place(dir, name)?, self.nodes.place(dir, &hidden)?);
        self.ask(|| self.client.rename(&from, &to)).await?;
        self.nodes.moved((dir, name), (dir, &hidden), true);
        Ok(hidden)
    }

    pub(super) async fn remove_dir(&self, dir: u64, name: &[u8]) -> Result<Reply, Errno> {
        let path = self.nodes.place(dir, name)?;
        self.ask(|| self.client.remove(&path, RemoveKind::Dir)).await?;
        Ok(Reply::done())
    }

    /// Moves a name. A file that is replaced, and is open here, gets a hidden name before.
    pub(super) async fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), how: u32) -> Result<Reply, Errno> {
        let replace = match how {
            0 => Replace::Anything,
            flags::RENAME_NOREPLACE => Replace::Nothing,
            _ => return Err(Errno::INVAL),
        };
        let (old, new) = (self.nodes.place(from.0, from.1)?, self.nodes.place(to.0, to.1)?);
        let open = self.nodes.open_at(to.0, to.1).filter(|_| replace == Replace::Anything && from != to);
        let hidden = match open {
            Some(node) => Some(self.hide(to.0, to.1, node).await?),
            None => None,
        };
        let moved = self.ask(|| self.client.rename_over(&old, &new, replace)).await;
        if let (Err(_), Some(hidden)) = (&moved, hidden) {
            let back = self.nodes.place(to.0, &hidden)?;
            self.ask(|| self.client.rename_over(&back, &new, Replace::Nothing)).await?;
            self.nodes.moved((to.0, &hidden), to, false);
        }
        moved?;
        self.nodes.moved(from, to, false);
        Ok(Reply::done())
    }
}
