//! What requests that change nothing are answered from, on every event loop of the manager.
//!
//! **Why.** Changes are made by the first event loop, one group at a time. Most requests only look
//! something up. They need the last commit and nothing else of the manager, so each loop answers
//! those of its own connections.
//!
//! **Invariants**
//! 1. The metadata, and who knows the files in it, change in one step ([`Lookups::publish`]). If
//!    the metadata came first, another client could find a new file before its creator was listed.
//!    The creator would then pass for the only client that knows the file.
//! 2. A change that was answered is in the metadata that is read here: it is published first.
//! 3. What is read here is durable.
//! 4. The lock is held for a look at the state or for one change of it, never across an await, and
//!    nobody takes another lock meanwhile.
//!
//! **Tests**: `tests/sim/manager/loops.rs` and `tests/sim/manager/commits.rs`;
//! `tests/it/transports/loops.rs` of the client with real threads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use bmi::hooks::step;
use fs_proto::limits::MAX_ENTRIES;
use fs_proto::{ErrorCode, FsError, Handle, ManagerReply, ManagerRequest};
use redb::ReadTransaction;
use tokio::sync::Notify;

use super::group::Effect;
use crate::lock::lock;
use crate::manager::Fault;
use crate::manager::tables::{Creators, names};

/// The metadata as of a commit.
pub(in crate::manager) type View = Arc<ReadTransaction>;

/// The metadata as of the last commit, and who knows the files in it.
pub(in crate::manager) struct Lookups {
    state: Mutex<State>,
    /// A group of changes has ended.
    committed: Notify,
}

struct State {
    /// `None` if the database could not be opened again after a failure, or must not be used.
    view: Option<View>,
    /// Number of pieces of work on the database that have ended.
    ended: u64,
    creators: Creators,
    /// The files whose sizes the current group records.
    recording: BTreeSet<u64>,
}

/// Answers a request that changes nothing, from the metadata alone. The reply has `room` bytes.
pub(in crate::manager) fn answer(
    read: &ReadTransaction,
    request: &ManagerRequest,
    room: usize,
) -> Result<ManagerReply, Fault> {
    Ok(match request {
        ManagerRequest::Truncation { file } => ManagerReply::Truncation(names::truncation(read, *file, room)?),
        ManagerRequest::Lookup { place } => ManagerReply::Entry(names::view(read)?.lookup(place)?),
        ManagerRequest::Getattr { handle } => ManagerReply::Entry(names::view(read)?.getattr(*handle)?),
        ManagerRequest::Readdir { dir, after, max } => {
            let max = (*max as usize).min(MAX_ENTRIES);
            let (entries, more) = names::view(read)?.readdir(*dir, after, max, room)?;
            ManagerReply::Entries { entries, more }
        }
        ManagerRequest::GetXattr { handle, name } => ManagerReply::Xattr(names::xattr(read, *handle, name)?),
        ManagerRequest::ListXattrs { handle } => ManagerReply::Xattrs(names::xattrs(read, *handle)?),
        ManagerRequest::Statfs => ManagerReply::Stat(names::stat(read)?),
        other => {
            return Err(FsError::new(ErrorCode::Invalid, format!("{} changes something", other.name())).into());
        }
    })
}

impl Lookups {
    pub(in crate::manager) fn new(view: View) -> Lookups {
        let (creators, recording) = (Creators::default(), BTreeSet::new());
        let state = State { view: Some(view), ended: 0, creators, recording };
        Lookups { state: Mutex::new(state), committed: Notify::new() }
    }

    /// Returns the metadata as of the last commit, and the number of pieces of work that have
    /// ended. `None` if the database must be opened first, or must not be used.
    pub(in crate::manager) fn view(&self) -> Option<(View, u64)> {
        let state = lock(&self.state);
        state.view.clone().map(|view| (view, state.ended))
    }

    /// Returns the number of pieces of work that have ended.
    pub(in crate::manager) fn ended(&self) -> u64 {
        lock(&self.state).ended
    }

    /// A group of changes begins, which records the sizes of these files. Returns the creators of
    /// those that nobody else knows.
    pub(super) fn begin_recording(&self, files: BTreeSet<u64>) -> BTreeMap<u64, u128> {
        let mut state = lock(&self.state);
        let creators = files.iter().filter_map(|file| Some((*file, state.creators.creator(*file)?))).collect();
        state.recording = files;
        creators
    }

    /// A piece of work on the database has ended. From now on requests are answered from `view`, in
    /// which a group of changes has had these effects.
    pub(in crate::manager) fn publish(&self, view: Option<View>, effects: &[Effect]) {
        let mut state = lock(&self.state);
        // The old view is dropped without the lock: that may free pages of the database.
        let old = std::mem::replace(&mut state.view, view);
        state.ended += 1;
        state.recording.clear();
        for effect in effects {
            step();
            match *effect {
                Effect::Created(file, client) => state.creators.created(file, client),
                Effect::Seen(file, client) => state.creators.seen(file, client),
                Effect::DraftBegun(_) | Effect::DraftEnded(_) => {}
            }
        }
        drop(state);
        drop(old);
    }

    /// Wakes the requests that wait for the end of a group of changes.
    pub(super) fn group_ended(&self) {
        self.committed.notify_waiters();
    }

    /// Answers a request for an object or a directory. Returns `None` if only the first event loop
    /// can: the database must be opened first, or a read has failed.
    pub(in crate::manager) async fn look(
        &self,
        client: u128,
        request: &ManagerRequest,
        room: usize,
    ) -> Option<Result<ManagerReply, FsError>> {
        loop {
            let (view, commits) = self.view()?;
            let reply = match answer(&view, request, room) {
                Ok(reply) => reply,
                Err(Fault::Store(error)) => {
                    tracing::warn!(%error, "a read of the metadata failed");
                    return None;
                }
                Err(fault) => return Some(Err(fault.into_error())),
            };
            if self.seen(&reply, client, commits).await {
                return Some(Ok(reply));
            }
        }
    }

    /// Records that a client learns where a file is, from a reply. `commits` is the number of
    /// pieces of work that had ended before the reply was read.
    ///
    /// Returns false if the reply must be made again: the file's creator records its size
    /// meanwhile, and may only do so as long as nobody else knows the file. Waits for the commit
    /// that does.
    pub(in crate::manager) async fn seen(&self, reply: &ManagerReply, client: u128, commits: u64) -> bool {
        let ManagerReply::Entry(entry) = reply else { return true };
        let Handle::File(file) = entry.handle else { return true };
        let committed = self.committed.notified();
        {
            let mut state = lock(&self.state);
            if !state.creators.is_known_to_other(file.0, client) {
                return true;
            }
            if !state.recording.contains(&file.0) {
                if state.ended == commits {
                    state.creators.seen(file.0, client);
                }
                return state.ended == commits;
            }
        }
        committed.await;
        false
    }
}
