//! The objects that the kernel knows, by their node: the number of their handle. That of the root
//! is 1 on both sides.
//!
//! **Invariants**
//! 1. A node is here as long as the kernel knows it, or has it open. So the table is as long as the
//!    kernel's, which forgets what it does not need. What is only known, and not open, is small:
//!    there may be a million of it.
//! 2. All that have a file open share one [`SharedFile`]. So a sync covers what any of them wrote.
//! 3. Where the kernel keeps what is written, it closes a file after it has written all of that
//!    back. So what it writes back is of a node that is open.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use bmi::threading::AnyThread;
use fs_client::{DirHandle, FsPath, Handle, Held, Kind, SharedFile};
use rustix::io::Errno;

use crate::fuse::Attr;

/// The node of the root.
const ROOT: u64 = 1;

/// An object that the kernel knows.
struct Node {
    kind: Kind,
    is_listed: bool,
    opens: u32,
    /// The directory in which it was found last.
    dir: u64,
    /// How often the kernel was told of it and has not forgotten it.
    lookups: u64,
    open: Option<Box<Open>>,
    /// The attributes that were read last.
    known: Attr,
    /// When its attributes were read, or it was closed.
    touched: u64,
}

/// What is known of a node while it is open.
struct Open {
    file: SharedFile,
    /// So that the manager keeps it.
    _held: Held<AnyThread>,
    writes: Writes,
}

/// The writes of a file that is open, and the time that the kernel sets for them. Such a time
/// counts for a write that had ended before. The servers take a time of their own for others.
#[derive(Default)]
struct Writes {
    begun: u64,
    ended: u64,
    /// The time that the kernel has set last.
    mtime_ns: Option<u64>,
    /// It counts for so many writes.
    timed: u64,
}

struct Table {
    nodes: BTreeMap<u64, Node>,
    /// Counts what sets [`Node::touched`].
    clock: u64,
    /// When the kernel forgot a file last.
    forgotten: u64,
}

/// The nodes.
pub(crate) struct Nodes(Mutex<Table>);

impl Nodes {
    /// Creates the table with the root, which the kernel never forgets.
    pub(crate) fn new() -> Nodes {
        let table = Table { nodes: BTreeMap::new(), clock: 0, forgotten: 0 };
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

    /// Returns the time by the clock of the nodes.
    pub(crate) fn clock(&self) -> u64 {
        self.with(|table| table.clock)
    }

    /// Returns true if more may be known about a node than the manager said at `clock`: it was
    /// looked at or closed since, or, if the answer is for an earlier request, is open.
    pub(crate) fn is_newer(&self, node: u64, clock: u64, is_earlier: bool) -> bool {
        let is_newer = |node: &mut Node| node.touched > clock || is_earlier && node.opens > 0;
        self.node(node, is_newer).unwrap_or(false)
    }

    /// Returns true if the kernel has forgotten a file since `clock`.
    pub(crate) fn has_forgotten(&self, clock: u64) -> bool {
        self.with(|table| table.forgotten > clock)
    }

    /// The kernel is told of an object in a directory: by a look at a name, or in a listing.
    pub(crate) fn learn(&self, dir: u64, handle: Handle, known: Attr, is_listed: bool) {
        self.with(|table| {
            let touched = table.tick();
            let kind = handle.kind();
            let fresh = Node { kind, is_listed, opens: 0, dir, lookups: 0, open: None, known, touched };
            let node = table.nodes.entry(handle.raw()).or_insert(fresh);
            node.lookups += 1;
            (node.dir, node.known, node.is_listed, node.touched) = (dir, known, is_listed, touched);
        });
    }

    /// The attributes of a node were read.
    pub(crate) fn note(&self, node: u64, known: Attr) {
        self.with(|table| {
            let touched = table.tick();
            // It may have been forgotten meanwhile.
            table.nodes.get_mut(&node).into_iter().for_each(|node| (node.known, node.touched) = (known, touched));
        });
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
        self.node(node, |known| Handle::new(known.kind, node))
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

    /// Returns the file of a node that is open.
    pub(crate) fn file(&self, node: u64) -> Option<SharedFile> {
        self.node(node, |node| node.open.as_ref().map(|open| open.file.clone())).ok().flatten()
    }

    /// A file was opened. `file` and `held` are what was opened, unless others have it open.
    pub(crate) fn opened(&self, node: u64, file: SharedFile, held: Held<AnyThread>) -> Result<(), Errno> {
        self.node(node, |node| {
            node.opens += 1;
            node.open.get_or_insert_with(|| Box::new(Open { file, _held: held, writes: Writes::default() }));
        })
    }

    /// Changes what is known of a node, and the record of its writes, if it is open.
    fn writes(&self, node: u64, f: impl FnOnce(&mut Attr, Option<&mut Writes>)) {
        // It may have been forgotten meanwhile.
        let _ = self.node(node, |node| f(&mut node.known, node.open.as_mut().map(|open| &mut open.writes)));
    }

    /// A write of a file that is open begins. One that is given up may still reach the servers.
    pub(crate) fn begin_write(&self, node: u64) {
        self.writes(node, |_, writes| writes.into_iter().for_each(|writes| writes.begun += 1));
    }

    /// A write has ended. Its last byte is before `end`.
    pub(crate) fn written(&self, node: u64, end: u64) {
        self.writes(node, |known, writes| {
            known.size = known.size.max(end);
            writes.into_iter().for_each(|writes| writes.ended += 1);
        });
    }

    /// Returns how many writes there were, if all have ended.
    pub(crate) fn written_before(&self, node: u64) -> Option<u64> {
        let count = |node: &mut Node| node.open.as_ref().map_or(Some(0), |open| open.writes.before());
        self.node(node, count).ok().flatten()
    }

    /// The kernel has set when the content of a file was changed. There were so many writes before.
    pub(crate) fn set_mtime(&self, node: u64, mtime_ns: u64, before: Option<u64>) {
        self.writes(node, |known, writes| {
            known.mtime_ns = mtime_ns;
            writes.into_iter().for_each(|writes| writes.set_mtime(mtime_ns, before));
        });
    }

    /// Returns true if the content of a node was changed at this time, as far as the servers know.
    pub(crate) fn has_mtime(&self, node: u64, mtime_ns: u64) -> bool {
        let has = |node: &mut Node| {
            node.known.mtime_ns == mtime_ns && node.open.as_ref().is_none_or(|open| !open.writes.is_late())
        };
        self.node(node, has).unwrap_or(false)
    }

    /// Returns when the content of a node was changed, if the kernel has set that too early.
    pub(crate) fn late_mtime(&self, node: u64) -> Option<u64> {
        let late = |node: &mut Node| node.open.as_ref().filter(|open| open.writes.is_late())?.writes.mtime_ns;
        self.node(node, late).ok().flatten()
    }

    /// A file was closed.
    pub(crate) fn closed(&self, node: u64) {
        let ended = self.with(|table| {
            let touched = table.tick();
            let known = table.nodes.get_mut(&node)?;
            (known.opens, known.touched) = (known.opens.saturating_sub(1), touched);
            let ended = known.open.take_if(|_| known.opens == 0);
            table.sweep(node);
            ended
        });
        // Without the lock: their ends take others.
        drop(ended);
    }
}

impl Writes {
    /// Returns how many there were, if all have ended.
    fn before(&self) -> Option<u64> {
        Some(self.begun).filter(|begun| *begun == self.ended)
    }

    fn set_mtime(&mut self, mtime_ns: u64, before: Option<u64>) {
        self.mtime_ns = Some(mtime_ns);
        self.timed = before.unwrap_or(self.timed);
    }

    /// Returns true if a write may have come to the servers after its time.
    fn is_late(&self) -> bool {
        self.begun > self.timed
    }
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Removes a node that nobody knows any more.
    fn sweep(&mut self, node: u64) {
        let is_unknown = self.nodes.get(&node).is_some_and(|node| node.lookups == 0 && node.opens == 0);
        let gone = if is_unknown { self.nodes.remove(&node) } else { None };
        if gone.is_some_and(|node| node.kind == Kind::File) {
            self.forgotten = self.tick();
        }
    }
}

#[cfg(test)]
mod tests {
    use fs_client::FileHandle;

    use super::*;

    /// Of a page that served several requests the kernel got sizes that were older than its own.
    #[test]
    fn an_earlier_answer_is_not_newer_than_what_was_done_since() {
        let nodes = Nodes::new();
        nodes.learn(ROOT, Handle::File(FileHandle(6)), Attr::default(), false);
        let is_newer = |clock| [false, true].map(|is_earlier| nodes.is_newer(6, clock, is_earlier));
        let before = nodes.clock();
        assert_eq!(is_newer(before), [false, false]);
        nodes.note(6, Attr::default());
        assert_eq!(is_newer(before), [true, true]);
        assert_eq!(is_newer(nodes.clock()), [false, false]);
        nodes.node(6, |node| node.opens = 1).unwrap();
        assert_eq!(is_newer(nodes.clock()), [false, true], "it is open");
        let before = nodes.clock();
        nodes.closed(6);
        assert_eq!(is_newer(before), [true, true]);
        assert!(!nodes.is_newer(7, 0, true), "the kernel does not know it");
    }

    /// The write came to its server after the time had come to the manager, and its answer before
    /// the manager's. The file kept the time at which the bytes came.
    #[test]
    fn a_time_that_was_set_beside_a_write_is_late() {
        let mut writes = Writes::default();
        assert!(!writes.is_late());
        writes.begun += 1;
        let before = writes.before();
        writes.ended += 1;
        writes.set_mtime(7, before);
        assert!(writes.is_late() && writes.mtime_ns == Some(7));
        let before = writes.before();
        writes.set_mtime(7, before);
        assert!(!writes.is_late());
        // One that begins meanwhile.
        let before = writes.before();
        writes.begun += 1;
        writes.set_mtime(8, before);
        assert!(writes.is_late());
    }

    #[test]
    fn nodes_end_when_the_kernel_forgets_them() {
        let nodes = Nodes::new();
        for is_listed in [false, true] {
            nodes.learn(ROOT, Handle::File(FileHandle(6)), Attr::default(), is_listed);
        }
        assert!(nodes.was_listed(6) && !nodes.was_listed(6));
        nodes.forget(6, 1);
        let clock = nodes.clock();
        assert!(!nodes.has_forgotten(clock));
        assert_eq!(nodes.path(6), Ok(FsPath::of(FileHandle(6))));
        nodes.forget(6, 1);
        assert_eq!(nodes.path(6), Err(Errno::STALE));
        assert!(nodes.has_forgotten(clock) && !nodes.has_forgotten(nodes.clock()));
        nodes.forget(ROOT, 10);
        assert_eq!(nodes.path(ROOT), Ok(FsPath::root()));
        nodes.with(|table| assert_eq!(table.nodes.len(), 1));
    }
}
