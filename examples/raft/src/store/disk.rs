//! The disk of a node, in memory. What is on it outlives the node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use openraft::{BasicNode, Entry, LogId, SnapshotMeta, Vote};

use crate::Types;

/// A bug that is planted in the store, for tests that must find it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bug {
    /// None.
    #[default]
    None,
    /// A vote is not on the disk: after a restart a node may vote for another candidate in the same
    /// term.
    VoteInMemory,
    /// An entry is called durable a while before it is on the disk.
    EarlyAcknowledgement,
    /// A snapshot lacks the newest key.
    ShortSnapshot,
}

/// The disk of a node. A clone is another handle to it.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    files: Arc<Mutex<Files>>,
    pub(super) bug: Bug,
}

/// What is on a disk.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) vote: Option<Vote<u64>>,
    pub(super) entries: BTreeMap<u64, Entry<Types>>,
    /// With [`Bug::EarlyAcknowledgement`], entries from here on are lost in a crash.
    pub(super) late_from: u64,
    pub(super) committed: Option<LogId<u64>>,
    /// The last entry that was removed, because a snapshot has it.
    pub(super) purged: Option<LogId<u64>>,
    pub(super) snapshot: Option<(SnapshotMeta<u64, BasicNode>, Bytes)>,
}

impl Disk {
    /// Returns an empty disk, with a store on it that has a bug.
    pub fn with(bug: Bug) -> Disk {
        Disk { bug, ..Disk::default() }
    }

    pub(super) fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
