//! What is mounted: the operations of the kernel as requests to the servers. Names (`names`),
//! attributes (`attributes`, `xattrs`), data (`data`), directories (`listing`).
//!
//! **Invariants**
//! 1. A request that was interrupted is dropped at any await, and holds nothing then.
//! 2. Nothing waits for a server that a process needs to end. So closing a file asks no server:
//!    a write is answered by the servers, and nothing is left to be written then. An exclusive
//!    mount is the exception: the kernel writes back what it has kept when a file is closed.
//! 3. No lock is held across an await, but for that of one listing.

mod attributes;
mod data;
mod listing;
mod names;
mod xattrs;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fs_client::{Caller, Error, SharedClient};
use fs_proto::Kind;
use rustix::io::Errno;

use crate::errors::errno;
use crate::fuse::{Attr, Buffers, Coherence, EntryTimes, Reply, Request, Space, op};
use crate::nodes::Nodes;
use attributes::{SET_GID, SET_UID};
use listing::OpenDir;
pub(crate) use names::{O_TRUNC, O_WRITES};

/// How long the kernel believes what it was told, where it may keep anything.
const BELIEVED: Duration = Duration::from_secs(1);
/// The same for an exclusive mount, where nobody else changes anything.
const BELIEVED_EXCLUSIVELY: Duration = Duration::from_hours(1);
/// Pause before a request is sent again that no server has answered.
const PAUSE: Duration = Duration::from_millis(200);
/// How long `df` and a listing wait for servers before they go on without them.
const SOON: Duration = Duration::from_millis(500);

/// How the file system is mounted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Requests are sent again until a server answers.
    pub(crate) is_hard: bool,
    pub(crate) coherence: Coherence,
    /// The servers know this machine by its certificate, and whom it may ask for.
    pub(crate) is_secure: bool,
}

/// A file system that is mounted, as the user of a request sees it. A clone has the same state.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) client: SharedClient,
    state: Arc<State>,
}

/// What all requests share.
pub(crate) struct State {
    pub(crate) buffers: Buffers,
    pub(crate) settings: Settings,
    nodes: Nodes,
    listings: Mutex<BTreeMap<u64, Arc<OpenDir>>>,
    next_listing: AtomicU64,
    /// What the servers answered last about their space.
    space: Mutex<Space>,
}

impl Deref for Served {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl Served {
    pub(crate) fn new(client: SharedClient, settings: Settings) -> Served {
        let state = State {
            buffers: Buffers::new(Some(client.clone())),
            settings,
            nodes: Nodes::new(),
            listings: Mutex::default(),
            next_listing: AtomicU64::new(1),
            space: Mutex::default(),
        };
        Served { client, state: Arc::new(state) }
    }

    /// Carries a request out, for the user who has made it. In the clear, the servers know nobody,
    /// and the kernel alone checks what he may do.
    pub(crate) async fn serve(&self, request: Request) -> Result<Reply, Errno> {
        if !self.settings.is_secure || request.uid == self.client.caller().uid {
            return self.carry_out(request).await;
        }
        let caller = Caller::new(request.uid, request.gid, groups_of(request.pid));
        let own = Served { client: self.client.for_caller(caller), state: self.state.clone() };
        own.carry_out(request).await
    }

    async fn carry_out(&self, mut request: Request) -> Result<Reply, Errno> {
        let data = request.data.take();
        let (node, mut args) = (request.node, request.args());
        match request.op {
            op::LOOKUP => self.lookup(node, args.name()?).await,
            op::GETATTR => self.attributes(node).await,
            op::SETATTR => self.set_attributes(node, args).await,
            op::MKNOD => self.make_node(&request).await,
            op::MKDIR => self.make_dir(&request).await,
            op::UNLINK => self.unlink(node, args.name()?).await,
            op::RMDIR => self.remove_dir(node, args.name()?).await,
            op::RENAME => {
                let to = args.u64()?;
                self.rename((node, args.name()?), (to, args.name()?), 0).await
            }
            op::RENAME2 => {
                let (to, how, _) = (args.u64()?, args.u32()?, args.u32()?);
                self.rename((node, args.name()?), (to, args.name()?), how).await
            }
            op::READLINK => self.read_link(node).await,
            op::SYMLINK => self.make_symlink(&request).await,
            op::LINK => {
                let file = args.u64()?;
                self.link(file, node, args.name()?).await
            }
            op::SETXATTR => self.set_xattr(node, args).await,
            op::GETXATTR => self.xattr(node, args).await,
            op::LISTXATTR => self.xattrs(node, args).await,
            op::REMOVEXATTR => self.remove_xattr(node, args.name()?).await,
            op::OPEN => self.open(node, args.u32()?, args.u32()?).await,
            op::CREATE => self.create(&request).await,
            op::READ => self.read(node, args).await,
            op::WRITE => self.write(node, args, data.ok_or(Errno::INVAL)?).await,
            op::FSYNC => self.sync(node).await,
            op::FALLOCATE => self.allocate(node, args).await,
            op::FLUSH if self.is_exclusive() => self.flush(node).await,
            // The servers do not know what the kernel keeps. So it takes all for data.
            op::LSEEK if self.is_exclusive() => Err(Errno::NOSYS),
            op::LSEEK => self.seek(node, args).await,
            op::RELEASE => self.close(node),
            op::STATFS => self.statfs().await,
            op::OPENDIR => self.open_dir(node),
            op::READDIR | op::READDIRPLUS => self.read_dir(node, args, request.op == op::READDIRPLUS).await,
            op::RELEASEDIR => self.close_dir(args.u64()?),
            // The manager answers a change when it is on its disk.
            op::FSYNCDIR | op::DESTROY => Ok(Reply::done()),
            // The kernel does not ask again.
            _ => Err(Errno::NOSYS),
        }
    }

    /// The kernel forgets nodes.
    pub(crate) fn forget(&self, request: &Request) -> Result<(), Errno> {
        request.forgotten()?.into_iter().for_each(|(node, count)| self.nodes.forget(node, count));
        Ok(())
    }

    /// Asks servers. If the mount is hard, asks until they answer.
    async fn ask<T, F: Future<Output = Result<T, Error>>>(&self, question: impl Fn() -> F) -> Result<T, Errno> {
        loop {
            match question().await {
                Ok(answer) => return Ok(answer),
                Err(error) if self.settings.is_hard && error.is_retryable() => {
                    tracing::info!(%error, "asking again");
                    self.client.endpoint().sleep(PAUSE).await;
                }
                Err(error) => {
                    tracing::debug!(%error, "failed");
                    return Err(errno(&error));
                }
            }
        }
    }

    /// Returns how long the kernel may believe a name and the attributes of what it leads to.
    fn times(&self, attr: &Attr, is_listed: bool) -> EntryTimes {
        match self.settings.coherence {
            Coherence::Open => times(attr, is_listed),
            Coherence::Strict => EntryTimes::default(),
            Coherence::Exclusive => exclusive_times(attr),
        }
    }

    /// Returns true if nobody else changes anything.
    fn is_exclusive(&self) -> bool {
        self.settings.coherence == Coherence::Exclusive
    }

    /// Returns the space of all servers. Those that do not answer soon are as they were.
    async fn statfs(&self) -> Result<Reply, Errno> {
        let asked = std::pin::pin!(self.client.statfs());
        let soon = std::pin::pin!(self.client.endpoint().sleep(SOON));
        let mut known = self.last_space();
        if let futures_util::future::Either::Left((Ok(space), _)) = futures_util::future::select(asked, soon).await {
            let stats = space.servers.iter().filter_map(|server| server.result.as_ref().ok());
            // Stores on one disk report the same space.
            let disks: BTreeMap<u64, (u64, u64)> = stats.map(|stat| (stat.disk, (stat.capacity, stat.free))).collect();
            let objects = space.manager.files + space.manager.dirs;
            let sum = |of: fn(&(u64, u64)) -> u64| disks.values().map(of).fold(0, u64::saturating_add);
            known = Space { bytes: sum(|disk| disk.0), free: sum(|disk| disk.1), objects };
            *self.space.lock().unwrap_or_else(PoisonError::into_inner) = known;
        }
        Ok(Reply::space(known))
    }

    fn last_space(&self) -> Space {
        *self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new_listing(&self) -> u64 {
        self.next_listing.fetch_add(1, Ordering::Relaxed)
    }
}

/// Returns the further groups of a process. The kernel tells them nowhere else; of a process that
/// has ended, or that is the kernel, there are none.
fn groups_of(process: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    groups.unwrap_or_default().split_whitespace().filter_map(|group| group.parse().ok()).collect()
}

/// Returns how long the kernel may believe a name and the attributes of what it leads to, where it
/// may keep anything.
///
/// The name of a file is believed only after a listing. So an open looks at the name, and gets new
/// attributes with it. After a listing, the open looks at the name too: see `Served::open`.
pub(crate) fn times(attr: &Attr, is_listed: bool) -> EntryTimes {
    let is_believed = is_listed || attr.mode & KIND == mode_of(Kind::Dir);
    let name = if is_believed { BELIEVED } else { Duration::ZERO };
    EntryTimes { name, attr: BELIEVED, least_blocks: 0 }
}

/// Returns the same for an exclusive mount.
///
/// A write may take the set-id bits from a file, which the kernel does not notice by itself. And a
/// file without blocks is a hole for some programs, but its bytes may be those that the kernel
/// keeps.
fn exclusive_times(attr: &Attr) -> EntryTimes {
    let is_file = attr.mode & KIND == mode_of(Kind::File);
    let has_set_id = is_file && attr.mode & (SET_UID | SET_GID) != 0;
    EntryTimes {
        name: BELIEVED_EXCLUSIVELY,
        attr: if has_set_id { Duration::ZERO } else { BELIEVED_EXCLUSIVELY },
        least_blocks: u64::from(is_file),
    }
}

/// The bits of a mode that tell the kind of an object.
const KIND: u32 = 0o170_000;

/// Returns the kind of an object as a mode has it.
const fn mode_of(kind: Kind) -> u32 {
    match kind {
        Kind::Dir => 0o040_000,
        Kind::File => 0o100_000,
        Kind::Symlink => 0o120_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exclusive_mount_believes_all_but_the_attributes_of_files_with_set_id_bits() {
        let of = |kind, mode| {
            let times = exclusive_times(&Attr { mode: mode_of(kind) | mode, ..Attr::default() });
            assert_eq!(times.name, BELIEVED_EXCLUSIVELY);
            (times.attr == BELIEVED_EXCLUSIVELY, times.least_blocks)
        };
        assert_eq!(
            [of(Kind::File, 0o755), of(Kind::File, 0o4755), of(Kind::File, 0o2711)],
            [(true, 1), (false, 1), (false, 1)]
        );
        assert_eq!([of(Kind::Dir, 0o2755), of(Kind::Symlink, 0o777)], [(true, 0), (true, 0)]);
    }
}
