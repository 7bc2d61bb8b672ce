//! The objects that the kernel knows, by their node: the number of their handle. That of the root
//! is 1 on both sides.
//!
//! **Why paths.** Requests of the kernel name a directory and an entry of it, and the library takes
//! paths. So each node remembers under which name it was found.
//!
//! **Invariants**
//! 1. A node is here as long as the kernel knows it, or has it open. So the table is as long as the
//!    kernel's, which forgets what it does not need.
//! 2. All that have a file open share one [`SharedFile`]. So a sync covers what any of them wrote.
//! 3. A name leads to one node at most: the last one that was found under it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use fs_client::{FsPath, Handle, SharedFile};
use fs_proto::DirHandle;
use rustix::io::Errno;

use crate::errors::errno;

/// The node of the root.
pub(crate) const ROOT: u64 = 1;

/// Most directories above an object: each takes two bytes of a path.
const DEEPEST: usize = 2048;

/// An object that the kernel knows.
struct Node {
    handle: Handle,
    dir: u64,
    name: Vec<u8>,
    /// How often the kernel was told of it and has not forgotten it.
    lookups: u64,
    opens: u64,
    file: Option<SharedFile>,
    known: Known,
    is_listed: bool,
    is_removed: bool,
}

/// What is remembered of the attributes of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// The permission bits.
    pub(crate) mode: u32,
    pub(crate) gid: u32,
}

struct Table {
    nodes: BTreeMap<u64, Node>,
    names: BTreeMap<(u64, Vec<u8>), u64>,
    open: BTreeSet<u64>,
}

/// The nodes.
pub(crate) struct Nodes(Mutex<Table>);

impl Nodes {
    /// Creates the table with the root.
    pub(crate) fn new() -> Nodes {
        let root = Node {
            handle: Handle::Dir(DirHandle::ROOT),
            dir: ROOT,
            name: Vec::new(),
            // The kernel never forgets it.
            lookups: 1,
            opens: 0,
            file: None,
            known: Known::default(),
            is_listed: false,
            is_removed: false,
        };
        let nodes = BTreeMap::from([(ROOT, root)]);
        Nodes(Mutex::new(Table { nodes, names: BTreeMap::new(), open: BTreeSet::new() }))
    }

    fn with<R>(&self, f: impl FnOnce(&mut Table) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn node<R>(&self, node: u64, f: impl FnOnce(&mut Node) -> R) -> Result<R, Errno> {
        self.with(|table| table.nodes.get_mut(&node).map(f)).ok_or(Errno::STALE)
    }

    /// The kernel is told of an object under a name: by a look at the name, or in a listing.
    pub(crate) fn learn(&self, (dir, name): (u64, &[u8]), handle: Handle, known: Known, is_listed: bool) {
        self.with(|table| {
            let fresh = Node {
                handle,
                dir,
                name: Vec::new(),
                lookups: 0,
                opens: 0,
                file: None,
                known,
                is_listed,
                is_removed: false,
            };
            let node = table.nodes.entry(handle.raw()).or_insert(fresh);
            node.lookups += 1;
            (node.known, node.is_listed, node.is_removed) = (known, is_listed, false);
            table.name(handle.raw(), dir, name);
        });
    }

    /// The attributes of a node were read.
    pub(crate) fn note(&self, node: u64, known: Known) {
        // It may have been forgotten meanwhile.
        let _ = self.node(node, |node| node.known = known);
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

    /// Returns what is remembered of the attributes.
    pub(crate) fn known(&self, node: u64) -> Result<Known, Errno> {
        self.node(node, |node| node.known)
    }

    /// Returns the node of the directory above.
    pub(crate) fn above(&self, node: u64) -> Result<u64, Errno> {
        self.node(node, |node| node.dir)
    }

    /// Returns true the first time after the node was listed, and not looked at by name since.
    pub(crate) fn was_listed(&self, node: u64) -> bool {
        self.node(node, |node| std::mem::take(&mut node.is_listed)).unwrap_or(false)
    }

    /// Returns the path of a node.
    pub(crate) fn path(&self, node: u64) -> Result<FsPath, Errno> {
        let names = self.with(|table| {
            let (mut names, mut at) = (Vec::new(), node);
            while at != ROOT && names.len() <= DEEPEST {
                let node = table.nodes.get(&at)?;
                names.push(node.name.clone());
                at = node.dir;
            }
            Some(names)
        });
        names.ok_or(Errno::STALE)?.iter().rev().try_fold(FsPath::root(), |path, name| below(&path, name))
    }

    /// Returns the path of an entry of a directory.
    pub(crate) fn place(&self, dir: u64, name: &[u8]) -> Result<FsPath, Errno> {
        below(&self.path(dir)?, name)
    }

    /// Returns the file of a node that is open.
    pub(crate) fn file(&self, node: u64) -> Option<SharedFile> {
        self.node(node, |node| node.file.clone()).ok().flatten()
    }

    /// A file was opened. `file` is what was opened, unless others have it open.
    pub(crate) fn opened(&self, node: u64, file: SharedFile) -> Result<(), Errno> {
        self.with(|table| {
            let known = table.nodes.get_mut(&node).ok_or(Errno::STALE)?;
            known.opens += 1;
            known.file.get_or_insert(file);
            table.open.insert(node);
            Ok(())
        })
    }

    /// A file was closed. Returns the path that it has to be removed from, if it was removed while
    /// it was open and this was the last to have it open.
    pub(crate) fn closed(&self, node: u64) -> Option<FsPath> {
        let is_removed = self.with(|table| {
            let known = table.nodes.get_mut(&node)?;
            known.opens = known.opens.saturating_sub(1);
            if known.opens > 0 {
                return None;
            }
            known.file = None;
            table.open.remove(&node);
            known.is_removed.then_some(())
        });
        let path = is_removed.and_then(|()| self.path(node).ok());
        self.with(|table| table.sweep(node));
        path
    }

    /// Returns the node that a name leads to, if it is open.
    pub(crate) fn open_at(&self, dir: u64, name: &[u8]) -> Option<u64> {
        self.with(|table| {
            let node = table.names.get(&(dir, name.to_vec())).copied()?;
            let is_kept = table.open.contains(&node) && table.nodes.get(&node).is_some_and(|node| !node.is_removed);
            is_kept.then_some(node)
        })
    }

    /// A name was moved. `is_removed` tells that it was moved instead of being removed.
    pub(crate) fn moved(&self, from: (u64, &[u8]), to: (u64, &[u8]), is_removed: bool) {
        self.with(|table| {
            let Some(node) = table.names.get(&(from.0, from.1.to_vec())).copied() else { return };
            table.name(node, to.0, to.1);
            table.nodes.get_mut(&node).into_iter().for_each(|node| node.is_removed = is_removed);
        });
    }
}

impl Table {
    /// Notes the name of a node.
    fn name(&mut self, number: u64, dir: u64, name: &[u8]) {
        let Some(node) = self.nodes.get_mut(&number) else { return };
        let old = (std::mem::replace(&mut node.dir, dir), std::mem::replace(&mut node.name, name.to_vec()));
        if self.names.get(&old) == Some(&number) {
            self.names.remove(&old);
        }
        self.names.insert((dir, name.to_vec()), number);
    }

    /// Removes a node that nobody knows any more.
    fn sweep(&mut self, number: u64) {
        if self.nodes.get(&number).is_some_and(|node| node.lookups == 0 && node.opens == 0)
            && let Some(node) = self.nodes.remove(&number)
        {
            let name = (node.dir, node.name);
            if self.names.get(&name) == Some(&number) {
                self.names.remove(&name);
            }
        }
    }
}

fn below(path: &FsPath, name: &[u8]) -> Result<FsPath, Errno> {
    let name = std::str::from_utf8(name).map_err(|_| Errno::ILSEQ)?;
    path.join(name).map_err(|error| if name.len() > 255 { Errno::NAMETOOLONG } else { errno(&error) })
}

#[cfg(test)]
mod tests {
    use fs_proto::FileHandle;

    use super::*;

    fn path(nodes: &Nodes, node: u64) -> Result<String, Errno> {
        nodes.path(node).map(|path| path.as_str().to_owned())
    }

    #[test]
    fn paths_follow_what_is_moved_and_nodes_end_with_the_kernels() {
        let nodes = Nodes::new();
        let learn = |dir, name: &[u8], handle| nodes.learn((dir, name), handle, Known::default(), false);
        learn(ROOT, b"a", Handle::Dir(DirHandle(5)));
        learn(5, b"f", Handle::File(FileHandle(6)));
        learn(5, b"f", Handle::File(FileHandle(6)));
        assert_eq!(path(&nodes, 6), Ok("/a/f".to_owned()));
        nodes.moved((ROOT, b"a"), (ROOT, b"b"), false);
        assert_eq!(path(&nodes, 6), Ok("/b/f".to_owned()));
        assert_eq!(nodes.place(ROOT, "é\0".as_bytes()).unwrap_err(), Errno::INVAL);
        assert_eq!(nodes.place(ROOT, &[0xff]).unwrap_err(), Errno::ILSEQ);
        assert_eq!(nodes.place(ROOT, &[b'x'; 256]).unwrap_err(), Errno::NAMETOOLONG);
        nodes.forget(6, 1);
        assert_eq!(path(&nodes, 6), Ok("/b/f".to_owned()));
        nodes.forget(6, 1);
        assert_eq!(path(&nodes, 6), Err(Errno::STALE));
        nodes.forget(ROOT, 10);
        assert_eq!(path(&nodes, ROOT), Ok("/".to_owned()));
        nodes.with(|table| assert_eq!((table.nodes.len(), table.names.len()), (2, 1)));
    }
}
