//! Attributes: reading and changing them.

use std::pin::pin;

use fs_client::{Entry, Handle, SetAttr, SharedFile};
use futures_util::future::{Either, select};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::{KIND, SOON, Served, mode_of};
use crate::fuse::{Args, Attr, Reply, flags};

/// The bits of a mode that change who a program runs as, and the bit without which the second one
/// means something else.
pub(super) const SET_UID: u32 = 0o4000;
pub(super) const SET_GID: u32 = 0o2000;
const GROUP_RUNS: u32 = 0o010;
/// What the kernel may send with the time of a change. The servers set the other time themselves.
const TIME_BY_KERNEL: u32 = flags::SET_CTIME | flags::SET_BY_FILE;

/// Returns attributes as the kernel has them.
pub(super) fn attr_of(handle: Handle, attr: &fs_client::Attr) -> Attr {
    Attr {
        node: handle.raw(),
        mode: mode_of(attr.kind) | attr.mode & 0o7777,
        size: attr.size,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        atime_ns: attr.atime_ns,
        mtime_ns: attr.mtime_ns,
        ctime_ns: attr.ctime_ns,
    }
}

/// Returns a mode without the bits that a change of the content or of the owner takes away.
fn without_set_id(mode: u32) -> u32 {
    let gone = if mode & GROUP_RUNS == 0 { SET_UID } else { SET_UID | SET_GID };
    mode & !gone
}

/// Returns the time of this machine in nanoseconds since 1970.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec.max(0) as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns a time of the kernel, in seconds and nanoseconds, as the servers have it.
fn time_ns(seconds: u64, nanoseconds: u32) -> u64 {
    // Before 1970 it is negative, and is 0 for the servers.
    u64::try_from(seconds as i64).unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanoseconds.into())
}

impl Served {
    /// Returns the attributes of a node.
    pub(super) async fn attr(&self, node: u64) -> Result<Attr, Errno> {
        let path = self.nodes.path(node)?;
        let entry = self.ask(|| self.client.lookup(&path)).await;
        // The node is not there under any name.
        let entry = entry.map_err(|errno| if errno == Errno::NOENT { Errno::STALE } else { errno })?;
        let attr = self.attr_of_entry(&entry).await?;
        self.nodes.note(node, attr);
        Ok(attr)
    }

    /// Returns the attributes of an object, with the size of a file.
    pub(super) async fn attr_of_entry(&self, entry: &Entry) -> Result<Attr, Errno> {
        let known = async || self.client.attributes(std::slice::from_ref(entry)).await.remove(0);
        Ok(attr_of(entry.handle, &self.ask(known).await?))
    }

    /// Returns the attributes of a node that is open. If the manager does not answer soon, they are
    /// the last ones, with the size that the I/O servers know: the kernel asks before it reads.
    async fn attr_of_open(&self, node: u64, file: &SharedFile) -> Result<Attr, Errno> {
        let asked = pin!(self.attr(node));
        let soon = pin!(self.client.endpoint().sleep(SOON));
        let asked = match select(asked, soon).await {
            Either::Left((attr, _)) => return attr,
            Either::Right(((), asked)) => asked,
        };
        match select(asked, pin!(self.ask(|| file.size()))).await {
            Either::Left((attr, _)) => attr,
            Either::Right((size, _)) => Ok(Attr { size: size?, ..self.nodes.known(node)? }),
        }
    }

    pub(super) async fn attributes(&self, node: u64) -> Result<Reply, Errno> {
        let attr = match self.nodes.file(node) {
            Some(file) => self.attr_of_open(node, &file).await?,
            None => self.attr(node).await?,
        };
        Ok(self.told(&attr))
    }

    fn told(&self, attr: &Attr) -> Reply {
        Reply::attr(attr, self.times(attr, false))
    }

    /// Changes attributes: the length first, because it can fail for want of space.
    pub(super) async fn set_attributes(&self, node: u64, mut args: Args<'_>) -> Result<Reply, Errno> {
        let (changed, _, _) = (args.u32()?, args.u32()?, args.u64()?);
        let (size, _, atime, mtime, _) = (args.u64()?, args.u64()?, args.u64()?, args.u64()?, args.u64()?);
        let (atime_part, mtime_part, _) = (args.u32()?, args.u32()?, args.u32()?);
        let (mode, _, uid, gid) = (args.u32()?, args.u32()?, args.u32()?, args.u32()?);
        let has = |flag: u32| changed & flag != 0;
        let time = |set: u32, now: u32, value: u64| match (has(now), has(set)) {
            (true, _) => Some(now_ns()),
            (false, true) => Some(value),
            (false, false) => None,
        };
        if self.is_exclusive() && changed & !TIME_BY_KERNEL == flags::SET_MTIME {
            return self.set_mtime(node, time_ns(mtime, mtime_part)).await;
        }
        let before = self.nodes.written_before(node);
        if has(flags::SET_SIZE) {
            let file = self.file_of(node).await?;
            self.ask(|| file.set_len(size)).await?;
        }
        let mut set = SetAttr {
            mode: has(flags::SET_MODE).then_some(mode & 0o7777),
            uid: has(flags::SET_UID).then_some(uid),
            gid: has(flags::SET_GID).then_some(gid),
            atime_ns: time(flags::SET_ATIME, flags::SET_ATIME_NOW, time_ns(atime, atime_part)),
            mtime_ns: time(flags::SET_MTIME, flags::SET_MTIME_NOW, time_ns(mtime, mtime_part)),
        };
        if has(flags::SET_UID | flags::SET_GID | flags::SET_KILL_SUIDGID) && set.mode.is_none() {
            set.mode = self.mode_without_set_id(node).await?;
        }
        self.set(node, set).await?;
        set.mtime_ns.into_iter().for_each(|mtime_ns| self.nodes.set_mtime(node, mtime_ns, before));
        self.attributes(node).await
    }

    /// Takes the time of the last change of a file from a kernel that keeps what is written. It
    /// sends that after it has written bytes back, and after each change of the attributes, with
    /// the time that it had sent before.
    async fn set_mtime(&self, node: u64, mtime_ns: u64) -> Result<Reply, Errno> {
        let known = self.nodes.known(node)?;
        if self.nodes.has_mtime(node, mtime_ns) {
            return Ok(self.told(&known));
        }
        let (path, before) = (self.nodes.path(node)?, self.nodes.written_before(node));
        let set = SetAttr { mtime_ns: Some(mtime_ns), ..SetAttr::default() };
        let entry = self.ask(|| self.client.setattr(&path, set)).await?;
        // The size is the one that the kernel has, and is not looked at.
        let attr = Attr { size: self.nodes.known(node)?.size, ..attr_of(entry.handle, &entry.attr) };
        self.nodes.note(node, attr);
        self.nodes.set_mtime(node, mtime_ns, before);
        Ok(self.told(&attr))
    }

    /// A file is closed, and the kernel has written back what it had kept. Where bytes came after
    /// their time, the servers took the time at which they came.
    pub(super) async fn flush(&self, node: u64) -> Result<Reply, Errno> {
        if let Some(mtime_ns) = self.nodes.late_mtime(node) {
            self.set_mtime(node, mtime_ns).await?;
        }
        Ok(Reply::done())
    }

    /// Changes attributes of a node, if there are any to change.
    pub(super) async fn set(&self, node: u64, set: SetAttr) -> Result<(), Errno> {
        if set != SetAttr::default() {
            let path = self.nodes.path(node)?;
            self.ask(|| self.client.setattr(&path, set)).await?;
        }
        Ok(())
    }

    /// Returns the mode that a file must get because its content or its owner changes; `None` if it
    /// stays as it is.
    async fn mode_without_set_id(&self, node: u64) -> Result<Option<u32>, Errno> {
        let attr = self.attr(node).await?;
        let mode = attr.mode & 0o7777;
        let is_file = attr.mode & KIND == mode_of(fs_proto::Kind::File);
        Ok(Some(without_set_id(mode)).filter(|new| is_file && *new != mode))
    }

    /// Takes the set-id bits from a file whose content changes.
    pub(super) async fn drop_set_id(&self, node: u64) -> Result<(), Errno> {
        let known = self.nodes.known(node)?;
        if known.mode & (SET_UID | SET_GID) == 0 {
            return Ok(());
        }
        let mode = self.mode_without_set_id(node).await?;
        self.set(node, SetAttr { mode, ..SetAttr::default() }).await?;
        mode.into_iter().for_each(|mode| self.nodes.note(node, Attr { mode: known.mode & KIND | mode, ..known }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_id_bits_go_and_a_mandatory_lock_stays() {
        assert_eq!([0o6755, 0o2644, 0o4644, 0o1777].map(without_set_id), [0o755, 0o2644, 0o644, 0o1777]);
    }

    #[test]
    fn times_before_1970_are_the_beginning() {
        assert_eq!(time_ns(-1_i64 as u64, 5), 5);
        assert_eq!(time_ns(2, 5), 2_000_000_005);
        assert_eq!(time_ns(i64::MAX as u64, 5), u64::MAX);
    }
}
