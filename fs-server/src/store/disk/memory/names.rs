//! The names of files in memory, and those that the disk has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use super::bytes::Bytes;
use crate::store::Fates;

/// A file, as long as a name or a program has it.
pub(super) type Inode = Arc<Mutex<Bytes>>;

/// What has a name.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    Dir,
    File(Inode),
}

/// Names that get another entry together, or lose theirs.
type Change = Vec<(String, Option<Entry>)>;

/// The names of a disk.
#[derive(Debug, Default)]
pub(super) struct Names {
    now: BTreeMap<String, Entry>,
    synced: BTreeMap<String, Entry>,
    /// The changes of each directory since its last sync.
    changes: Vec<(String, Change)>,
}

/// Returns the directory of a name.
pub(super) fn dir_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(dir, _)| dir)
}

fn apply(names: &mut BTreeMap<String, Entry>, change: &Change) {
    for (name, entry) in change {
        match entry {
            Some(entry) => drop(names.insert(name.clone(), entry.clone())),
            None => drop(names.remove(name)),
        }
    }
}

impl Names {
    pub(super) fn find(&self, name: &str) -> Option<&Entry> {
        self.now.get(name)
    }

    pub(super) fn file(&self, name: &str) -> Option<&Inode> {
        match self.now.get(name)? {
            Entry::File(inode) => Some(inode),
            Entry::Dir => None,
        }
    }

    /// Makes a change in the directory of its first name.
    pub(super) fn change(&mut self, change: Change) {
        let Some((first, _)) = change.first() else { return };
        let dir = dir_of(first).to_owned();
        apply(&mut self.now, &change);
        self.changes.push((dir, change));
    }

    /// Makes a change as somebody does who is at the disk itself.
    pub(super) fn tamper(&mut self, change: Change) {
        apply(&mut self.now, &change);
        apply(&mut self.synced, &change);
    }

    /// Returns the names in a directory.
    pub(super) fn within(&self, dir: &str) -> impl Iterator<Item = &str> {
        let first = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        let skip = first.len();
        let all = self.now.range(first.clone()..).map(|(name, _)| name.as_str());
        all.take_while(move |name| name.starts_with(&first))
            .map(move |name| &name[skip..])
            .filter(|name| !name.contains('/'))
    }

    pub(super) fn sync(&mut self, dir: &str) {
        for (_, change) in self.changes.extract_if(.., |(of, _)| of == dir) {
            apply(&mut self.synced, &change);
        }
    }

    /// Makes all names durable.
    pub(super) fn sync_all(&mut self) {
        self.changes.clear();
        self.synced = self.now.clone();
    }

    /// Fails the power. `fates` decides which changes are left, and what of the files.
    pub(super) fn power_fails(&mut self, fates: &mut dyn Fates) {
        for (_, change) in std::mem::take(&mut self.changes) {
            if fates.keeps() {
                apply(&mut self.synced, &change);
            }
        }
        // What was in a directory is gone with it.
        let dirs: BTreeSet<String> =
            self.synced.iter().filter(|(_, of)| matches!(of, Entry::Dir)).map(|(name, _)| name.clone()).collect();
        self.synced.retain(|name, _| dir_of(name).is_empty() || dirs.contains(dir_of(name)));
        self.now = self.synced.clone();
        self.files().for_each(|inode| super::lock(inode).power_fails(fates));
    }

    /// Returns the files that have a name, in the order of the names.
    pub(super) fn files(&self) -> impl Iterator<Item = &Inode> {
        self.all().map(|(_, inode)| inode)
    }

    /// As [`Names::files`], with the names.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &Inode)> {
        self.now.iter().filter_map(|(name, entry)| match entry {
            Entry::File(inode) => Some((name.as_str(), inode)),
            Entry::Dir => None,
        })
    }

    /// Returns the space that the files in directories take.
    pub(super) fn space(&self) -> u64 {
        let counted = self.now.iter().filter(|(name, _)| name.contains('/'));
        let space = |entry: &Entry| match entry {
            Entry::File(inode) => super::lock(inode).space(),
            Entry::Dir => 0,
        };
        counted.map(|(_, entry)| space(entry)).sum()
    }

    /// Returns a copy that shares no file with this one.
    pub(super) fn copy(&self) -> Names {
        let mut made: BTreeMap<*const Mutex<Bytes>, Inode> = BTreeMap::new();
        let mut entry = |entry: &Entry| match entry {
            Entry::Dir => Entry::Dir,
            Entry::File(inode) => {
                let copy = made.entry(Arc::as_ptr(inode));
                Entry::File(copy.or_insert_with(|| Arc::new(Mutex::new(super::lock(inode).clone()))).clone())
            }
        };
        let mut all = |names: &BTreeMap<String, Entry>| -> BTreeMap<String, Entry> {
            names.iter().map(|(name, of)| (name.clone(), entry(of))).collect()
        };
        let (now, synced) = (all(&self.now), all(&self.synced));
        let changes = self.changes.iter().map(|(dir, change)| {
            let change = change.iter().map(|(name, of)| (name.clone(), of.as_ref().map(&mut entry)));
            (dir.clone(), change.collect())
        });
        let changes = changes.collect();
        Names { now, synced, changes }
    }
}
