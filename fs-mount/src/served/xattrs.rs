//! Extended attributes. Those of the namespace `system.` are access control lists, which are not
//! offered. Nor are those of `security.`: the kernel asks for the capabilities of a file before it
//! writes to it, and an open file must be written without the manager.

use fs_client::BString;
use rustix::io::Errno;

use super::Served;
use crate::fuse::{Args, Reply, flags};

/// Checks the name of an attribute.
fn named(name: &[u8]) -> Result<BString, Errno> {
    if name.starts_with(b"system.") || name.starts_with(b"security.") { Err(Errno::OPNOTSUPP) } else { Ok(name.into()) }
}

/// What is missing is the attribute, not the object.
fn of_attribute(errno: Errno) -> Errno {
    if errno == Errno::NOENT { Errno::NODATA } else { errno }
}

impl Served {
    pub(super) async fn set_xattr(&self, node: u64, mut args: Args<'_>) -> Result<Reply, Errno> {
        let (len, how, name) = (args.u32()? as usize, args.u32()?, named(args.name()?)?);
        let value = args.rest().get(..len).ok_or(Errno::INVAL)?;
        let exists = match how {
            0 => None,
            flags::XATTR_CREATE => Some(false),
            flags::XATTR_REPLACE => Some(true),
            _ => return Err(Errno::INVAL),
        };
        let path = self.nodes.path(node)?;
        let set = self.ask(|| self.client.set_xattr(&path, name.clone(), Some(value.into()), exists)).await;
        set.map_err(of_attribute)?;
        Ok(Reply::done())
    }

    pub(super) async fn remove_xattr(&self, node: u64, name: &[u8]) -> Result<Reply, Errno> {
        let (path, name) = (self.nodes.path(node)?, named(name)?);
        let removed = self.ask(|| self.client.set_xattr(&path, name.clone(), None, Some(true))).await;
        removed.map_err(of_attribute)?;
        Ok(Reply::done())
    }

    pub(super) async fn xattr(&self, node: u64, mut args: Args<'_>) -> Result<Reply, Errno> {
        let (room, _, name) = (args.u32()?, args.u32()?, named(args.name()?)?);
        let path = self.nodes.path(node)?;
        let value = self.ask(|| self.client.xattr(&path, name.clone())).await.map_err(of_attribute)?;
        Reply::value(value.into(), room)
    }

    pub(super) async fn xattrs(&self, node: u64, mut args: Args<'_>) -> Result<Reply, Errno> {
        let (room, path) = (args.u32()?, self.nodes.path(node)?);
        let names = self.ask(|| self.client.xattrs(&path)).await?;
        Reply::value(names.iter().flat_map(|name| name.0.iter().copied().chain([0])).collect(), room)
    }
}
