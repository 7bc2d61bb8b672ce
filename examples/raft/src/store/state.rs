//! The state: the values of all keys, in memory. A snapshot of it is on the disk.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use openraft::storage::RaftStateMachine;
use openraft::{
    AnyError, BasicNode, Entry, EntryPayload, LogId, OptionalSend, RaftSnapshotBuilder, Snapshot, SnapshotMeta,
    StorageError, StorageIOError, StoredMembership,
};
use tokio::sync::Notify;

use super::disk::{Bug, Disk};
use crate::{Put, Types};

type Result<T> = std::result::Result<T, StorageError<u64>>;

/// Is called with each entry that a node applies: its place in the log, and what it does.
pub type Observer = Arc<dyn Fn(LogId<u64>, &Put) + Send + Sync>;

/// The state of a node. A clone is another handle to it.
#[derive(Clone)]
pub struct StateMachine {
    state: Arc<Mutex<State>>,
    /// Notified when entries were applied. Openraft's metrics would tell it as well, through
    /// tokio's `watch`, which wakes those that wait in random order: a run could not be repeated.
    changed: Arc<Notify>,
    disk: Disk,
    observer: Option<Observer>,
}

#[derive(Default)]
struct State {
    applied: Option<LogId<u64>>,
    membership: StoredMembership<u64, BasicNode>,
    values: BTreeMap<u64, Bytes>,
    installed: u64,
}

impl StateMachine {
    /// Begins with the snapshot on the disk, if there is one.
    ///
    /// # Errors
    /// Those of a snapshot that cannot be read.
    pub fn open(disk: Disk, observer: Option<Observer>) -> Result<StateMachine> {
        let mut state = State::default();
        if let Some((meta, bytes)) = &disk.files().snapshot {
            state.restore(meta, bytes)?;
        }
        Ok(StateMachine { state: Arc::new(Mutex::new(state)), changed: Arc::default(), disk, observer })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value of a key at this node, which may be an old one.
    pub fn value(&self, key: u64) -> Option<Bytes> {
        self.state().values.get(&key).cloned()
    }

    /// Waits until an entry was applied.
    pub async fn reached(&self, upto: Option<LogId<u64>>) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.state().applied >= upto {
                return;
            }
            changed.await;
        }
    }

    /// Returns all values.
    pub fn values(&self) -> BTreeMap<u64, Bytes> {
        self.state().values.clone()
    }

    /// Returns how many snapshots of other nodes this one has taken.
    pub fn installed(&self) -> u64 {
        self.state().installed
    }
}

impl State {
    fn restore(&mut self, meta: &SnapshotMeta<u64, BasicNode>, bytes: &Bytes) -> Result<()> {
        let read = postcard::from_bytes(bytes);
        self.values = read.map_err(|error| StorageIOError::read_snapshot(None, AnyError::new(&error)))?;
        (self.applied, self.membership) = (meta.last_log_id, meta.last_membership.clone());
        Ok(())
    }
}

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotBuilder = StateMachine;

    async fn applied_state(&mut self) -> Result<(Option<LogId<u64>>, StoredMembership<u64, BasicNode>)> {
        let state = self.state();
        Ok((state.applied, state.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<()>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut state = self.state();
        let mut answers = Vec::new();
        for Entry { log_id, payload } in entries {
            match payload {
                EntryPayload::Blank => {}
                EntryPayload::Membership(members) => {
                    state.membership = StoredMembership::new(Some(log_id), members);
                }
                EntryPayload::Normal(put) => {
                    if let Some(observer) = &self.observer {
                        observer(log_id, &put);
                    }
                    state.values.insert(put.key, put.value);
                }
            }
            state.applied = Some(log_id);
            answers.push(());
        }
        self.changed.notify_waiters();
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> StateMachine {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Bytes>> {
        Ok(Box::default())
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta<u64, BasicNode>, snapshot: Box<Bytes>) -> Result<()> {
        let mut state = self.state();
        state.restore(meta, &snapshot)?;
        state.installed += 1;
        self.changed.notify_waiters();
        self.disk.files().snapshot = Some((meta.clone(), *snapshot));
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>> {
        let on_disk = self.disk.files().snapshot.clone();
        Ok(on_disk.map(|(meta, bytes)| Snapshot { meta, snapshot: Box::new(bytes) }))
    }
}

impl RaftSnapshotBuilder<Types> for StateMachine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>> {
        let state = self.state();
        let kept = state.values.len() - usize::from(self.disk.bug == Bug::ShortSnapshot);
        let encoded = postcard::to_stdvec(&state.values.iter().take(kept).collect::<BTreeMap<_, _>>());
        let bytes = Bytes::from(encoded.map_err(|error| StorageIOError::write_snapshot(None, AnyError::new(&error)))?);
        let snapshot_id = state.applied.map_or_else(String::new, |applied| applied.to_string());
        let meta = SnapshotMeta { last_log_id: state.applied, last_membership: state.membership.clone(), snapshot_id };
        self.disk.files().snapshot = Some((meta.clone(), bytes.clone()));
        Ok(Snapshot { meta, snapshot: Box::new(bytes) })
    }
}
