//! The objects that the kernel knows, by their node: the number of their handle. That of the root
//! is 1 on both sides.
//!
//! **Invariants**
//! 1. A node is here as long as the kernel knows it, or has it open. So the table is as long as the
//!    kernel's, which forgets what it does not need.
//! 2. All that have a file open share one [`SharedFile`]. So a sync covers what any of them wrote.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use fs_client::{DirHandle, Entry, FsPath, Handle, SharedFile};
use rustix::io::Errno;

use crate::fuse::Attr;

/// The node of the root.
const ROOT: u64 = 1;
/// Most entries that are kept for an open that may follow.
const MOST_RECENT: usize = 64;

/// An object that the kernel knows.
struct Node {
    handle: Handle,
    /// The directory in which it was found last.
    dir: u64,
    /// How often the kernel was told of it and has not forgotten it.
    lookups: u64,
    opens: u64,
    file: Option<SharedFile>,
    /// Where it is until it is closed, if it was removed while it was open.
    hidden: Option<FsPath>,
    /// The attributes that were read last.
    known: Attr,
    is_listed: bool,
}

struct Table {
    nodes: BTreeMap<u64, Node>,
    /// The nodes that are open.
    open: u64,
    recent: VecDeque<(u64, Entry)>,
}

/// The nodes.
pub(crate) struct Nodes(Mutex<Table>);

impl Nodes {
    /// Creates the table with the root, which the kernel never forgets.
    pub(crate) fn new() -> Nodes {
        let table = Table { nodes: BTreeMap::new(), open: 0, recent: VecDeque::new() };
        let nodes = Nodes(Mutex::new(table));
        nodes.learn(ROOT, Handle::Dir(DirHandle::ROOT), Attr::default(), false);
        nodes
    }

    fn with<R>(&self, f: impl FnOnce(&mut Table) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn node<R>(&self, node: u64, f: impl FnOnce(&mut Node) -> R) -> Result<R, Errno> {
        self.with(|table| table.nodes.get_mut(&node).map(f)).ok_or(Errno::STALE)
    }

    /// The kernel is told of an object in a directory: by a look at a name, or in a listing.
    pub(crate) fn learn(&self, dir: u64, handle: Handle, known: Attr, is_listed: bool) {
        self.with(|table| {
            let fresh = Node { handle, dir, lookups: 0, opens: 0, file: None, hidden: None, known, is_listed };
            let node = table.nodes.entry(handle.raw()).or_insert(fresh);
            node.lookups += 1;
            (node.dir, node.known, node.is_listed) = (dir, known, is_listed);
        });
    }

    /// The attributes of a node were read.
    pub(crate) fn note(&self, node: u64, known: Attr) {
        // It may have been forgotten meanwhile.
        let _ = self.node(node, |node| node.known = known);
    }

    /// Keeps an entry for an open that may follow.
    pub(crate) fn keep_recent(&self, node: u64, entry: Entry) {
        self.with(|table| {
            table.recent.retain(|(recent, _)| *recent != node);
            table.recent.push_back((node, entry));
            if table.recent.len() > MOST_RECENT {
                table.recent.pop_front();
            }
        });
    }

    /// Takes the entry that was kept.
    pub(crate) fn take_recent(&self, node: u64) -> Option<Entry> {
        self.with(|table| {
            let at = table.recent.iter().position(|(recent, _)| *recent == node)?;
            table.recent.remove(at).map(|(_, entry)| entry)
        })
    }

    /// The kernel forgets that it was told of a node, so many times.
    pub(crate) fn forget(&self, node: u64, count: u64) {
        self.with(|table| {
            if let Some(known) = table.nodes.get_mut(&node).filter(|_| node != ROOT) {
                known.lookups = known.lookups.saturating_sub(count);
                table.sweep(node);
            }
        });
    }

    /// Returns the handle.
    pub(crate) fn handle(&self, node: u64) -> Result<Handle, Errno> {
        self.node(node, |node| node.handle)
    }

    /// Returns the node of the directory above.
    pub(crate) fn above(&self, node: u64) -> Result<u64, Errno> {
        self.node(node, |node| node.dir)
    }

    /// Returns the path that leads to a node, whatever its name is.
    pub(crate) fn path(&self, node: u64) -> Result<FsPath, Errno> {
        self.handle(node).map(FsPath::of)
    }

    /// Returns the attributes that were read last.
    pub(crate) fn known(&self, node: u64) -> Result<Attr, Errno> {
        self.node(node, |node| node.known)
    }

    /// Returns true the first time after the node was listed, and not looked at by name since.
    pub(crate) fn was_listed(&self, node: u64) -> bool {
        self.node(node, |node| std::mem::take(&mut node.is_listed)).unwrap_or(false)
    }

    /// Returns true if any file is open.
    pub(crate) fn has_open(&self) -> bool {
        self.with(|table| table.open > 0)
    }

    /// Returns the file of a node that is open.
    pub(crate) fn file(&self, node: u64) -> Option<SharedFile> {
        self.node(node, |node| node.file.clone()).ok().flatten()
    }

    /// A file was opened. `file` is what was opened, unless others have it open.
    pub(crate) fn opened(&self, node: u64, file: SharedFile) -> Result<(), Errno> {
        self.with(|table| {
            let known = table.nodes.get_mut(&node).ok_or(Errno::STALE)?;
            table.open += u64::from(known.opens == 0);
            known.opens += 1;
            known.file.get_or_insert(file);
            Ok(())
        })
    }

    /// A file was moved to a hidden name because it was removed; or moved back.
    pub(crate) fn hide(&self, node: u64, hidden: Option<FsPath>) {
        let _ = self.node(node, |node| node.hidden = hidden);
    }

    /// Returns true if a file was removed while it was open.
    pub(crate) fn is_hidden(&self, node: u64) -> bool {
        self.node(node, |node| node.hidden.is_some()).unwrap_or(false)
    }

    /// A file was closed. Returns the hidden name that is to be removed.
    pub(crate) fn closed(&self, node: u64) -> Option<FsPath> {
        self.with(|table| {
            let known = table.nodes.get_mut(&node)?;
            known.opens = known.opens.saturating_sub(1);
            if known.opens > 0 {
                return None;
            }
            known.file = None;
            let hidden = known.hidden.take();
            table.open = table.open.saturating_sub(1);
            table.sweep(node);
            hidden
        })
    }
}

impl Table {
    /// Removes a node that nobody knows any more.
    fn sweep(&mut self, node: u64) {
        if self.nodes.get(&node).is_some_and(|node| node.lookups == 0 && node.opens == 0) {
            self.nodes.remove(&node);
        }
    }
}

#[cfg(test)]
mod tests {
    use fs_client::FileHandle;

    use super::*;

    #[test]
    fn nodes_end_when_the_kernel_forgets_them() {
        let nodes = Nodes::new();
        for is_listed in [false, true] {
            nodes.learn(ROOT, Handle::File(FileHandle(6)), Attr::default(), is_listed);
        }
        assert!(nodes.was_listed(6) && !nodes.was_listed(6));
        nodes.forget(6, 1);
        assert_eq!(nodes.path(6), Ok(FsPath::of(FileHandle(6))));
        nodes.forget(6, 1);
        assert_eq!(nodes.path(6), Err(Errno::STALE));
        nodes.forget(ROOT, 10);
        assert_eq!(nodes.path(ROOT), Ok(FsPath::root()));
        nodes.with(|table| assert_eq!((table.nodes.len(), table.open), (1, 0)));
    }
}
