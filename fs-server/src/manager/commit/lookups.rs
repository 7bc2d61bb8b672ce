//! What requests that change nothing are answered from, on every event loop of the manager.
//!
//! **Why.** Changes are made by the first event loop, one group at a time. Most requests only look
//! something up. They need the last commit and nothing else of the manager, so each loop answers
//! those of its own connections.
//!
//! **Invariants**
//! 1. A file that was created open is held before anybody finds it.
//! 2. A change that was answered is in the metadata that is read here: it is published first.
//! 3. What is read here is durable.
//! 4. A file that a client holds was not removed before ([`Holds`]).
//! 5. The lock is held for a look at the state or for one change of it, never across an await, and
//!    nobody takes another lock meanwhile.
//!
//! **Tests**: `tests/sim/manager/loops.rs` and `tests/sim/manager/commits.rs`;
//! `tests/it/transports/loops.rs` of the client with real threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bmi::hooks::step;
use fs_proto::limits::{MAX_ENTRIES, MAX_LISTED};
use fs_proto::{Access, Caller, Entry, ErrorCode, FileHandle, FsError, ManagerReply, ManagerRequest};
use redb::ReadTransaction;
use tokio::sync::Notify;

use super::group::Effect;
use crate::lock::lock;
use crate::manager::Fault;
use crate::manager::tables::{Held, Holds, names, revoked};
use crate::service::Party;

/// The metadata as of a commit.
pub(in crate::manager) type View = Arc<ReadTransaction>;

/// The metadata as of the last commit, and who has which file open.
pub(in crate::manager) struct Lookups {
    /// `None` if the database could not be opened again after a failure, or must not be used.
    view: Mutex<Option<View>>,
    /// A group of changes has ended.
    committed: Notify,
    /// Who has which file open.
    pub(in crate::manager) holds: Holds,
    /// Who was shut out, and when.
    revoked: Mutex<BTreeMap<String, u64>>,
    any_revoked: AtomicBool,
    /// That has changed, and could not be read.
    is_stale: AtomicBool,
}

/// Who asks for something.
#[derive(Clone, Copy)]
pub(in crate::manager) struct Asker<'a> {
    /// For whom.
    pub(in crate::manager) caller: &'a Caller,
    pub(in crate::manager) client: u128,
    /// Who has which file open.
    pub(in crate::manager) holds: &'a Holds,
}

impl Asker<'_> {
    /// Returns what the client may do with an object since it has it open.
    fn held(&self, raw: u64) -> Access {
        self.holds.access(raw, self.client)
    }
}

fn opened(access: Access, entry: Entry) -> ManagerReply {
    ManagerReply::Opened { entry, access, grant: None }
}

/// Answers a request that changes nothing, from the metadata alone. The reply has `room` bytes.
pub(in crate::manager) fn answer(
    read: &ReadTransaction,
    asker: &Asker<'_>,
    request: &ManagerRequest,
    room: usize,
) -> Result<ManagerReply, Fault> {
    let Asker { caller, client, .. } = *asker;
    Ok(match request {
        ManagerRequest::Truncation { file } => ManagerReply::Truncation(names::truncation(read, *file, room)?),
        ManagerRequest::Lookup { place, open } => {
            let view = names::view(read)?.by(caller, client);
            let (raw, object) = view.found(place)?;
            match *open {
                true => opened(view.opened(&object, asker.held(raw))?, view.told(raw, object)),
                false => ManagerReply::Entry(view.told(raw, object)),
            }
        }
        ManagerRequest::Getattr { handle, open } => {
            let view = names::view(read)?.by(caller, client);
            let (raw, object) = (handle.raw(), view.named(*handle)?);
            match *open {
                true => opened(view.opened_by_handle(&object, asker.held(raw))?, view.told(raw, object)),
                false => ManagerReply::Entry(view.told(raw, object)),
            }
        }
        ManagerRequest::Readdir { dir, after, max, attributes: true } => {
            let max = (*max as usize).min(MAX_LISTED);
            let (entries, more) = names::view(read)?.by(caller, client).listing(*dir, after, max, room)?;
            ManagerReply::Listing { entries, more }
        }
        ManagerRequest::Readdir { dir, after, max, attributes: false } => {
            let max = (*max as usize).min(MAX_ENTRIES);
            let (entries, more) = names::view(read)?.by(caller, client).readdir(*dir, after, max, room)?;
            ManagerReply::Entries { entries, more }
        }
        ManagerRequest::GetXattr { handle, name } => ManagerReply::Xattr(names::xattr(read, caller, *handle, name)?),
        ManagerRequest::ListXattrs { handle } => ManagerReply::Xattrs(names::xattrs(read, caller, *handle)?),
        ManagerRequest::Statfs => ManagerReply::Stat(names::stat(read)?),
        other => {
            return Err(FsError::new(ErrorCode::Invalid, format!("{} changes something", other.name())).into());
        }
    })
}

impl Lookups {
    pub(in crate::manager) fn new(view: View, holds: Holds) -> Result<Lookups, Fault> {
        let revoked = revoked(&view)?;
        let any_revoked = AtomicBool::new(!revoked.is_empty());
        let (view, revoked) = (Mutex::new(Some(view)), Mutex::new(revoked));
        Ok(Lookups { view, committed: Notify::new(), holds, revoked, any_revoked, is_stale: AtomicBool::new(false) })
    }

    /// Returns who was shut out, and when.
    pub(in crate::manager) fn revoked(&self) -> BTreeMap<String, u64> {
        lock(&self.revoked).clone()
    }

    /// Checks that a peer was not shut out.
    ///
    /// # Errors
    /// `Permission`.
    pub(in crate::manager) fn check_party(&self, party: Option<&Party>) -> Result<(), FsError> {
        match party {
            Some(Party { name, is_trusted: false, .. })
                if self.any_revoked.load(Ordering::Acquire) && lock(&self.revoked).contains_key(name) =>
            {
                Err(FsError::new(ErrorCode::Permission, format!("{name} was shut out")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the metadata as of the last commit. `None` if the database must be opened first, or
    /// must not be used.
    pub(in crate::manager) fn view(&self) -> Option<View> {
        lock(&self.view).clone()
    }

    /// A piece of work on the database has ended. From now on requests are answered from `view`, in
    /// which a group of changes has had these effects.
    pub(in crate::manager) fn publish(&self, view: Option<View>, effects: &[Effect]) {
        for effect in effects {
            step();
            if let Effect::Held(file, client) = *effect {
                self.holds.created(file, client);
            }
        }
        let is_stale = effects.contains(&Effect::Revoked) | self.is_stale.swap(false, Ordering::AcqRel);
        if view.is_none() {
            self.is_stale.store(is_stale, Ordering::Release);
        }
        if let Some(view) = view.as_ref().filter(|_| is_stale) {
            match revoked(view) {
                Ok(all) => {
                    self.any_revoked.store(!all.is_empty(), Ordering::Release);
                    *lock(&self.revoked) = all;
                }
                Err(fault) => {
                    // The next commit tries again.
                    self.is_stale.store(true, Ordering::Release);
                    tracing::error!(error = %fault.into_error(), "it is not known who was shut out");
                }
            }
        }
        // The old view is dropped without the lock: that may free pages of the database.
        let old = std::mem::replace(&mut *lock(&self.view), view);
        drop(old);
        self.holds.group_ended();
    }

    /// Wakes the requests that wait for the end of a group of changes.
    pub(super) fn group_ended(&self) {
        self.committed.notify_waiters();
    }

    /// Notes that a client holds a file. Waits for the group of changes that removes it, if there
    /// is one.
    ///
    /// # Errors
    /// `Busy` if the client holds too many.
    pub(in crate::manager) async fn hold(&self, file: FileHandle, client: u128) -> Result<(), FsError> {
        loop {
            let committed = self.committed.notified();
            match self.holds.hold(file.0, client) {
                Held::Yes => return Ok(()),
                Held::Removed => committed.await,
                Held::TooMany => return Err(FsError::new(ErrorCode::Busy, Holds::TOO_MANY)),
            }
        }
    }

    /// Notes that a client does not hold files any more. Waits for the group of changes that takes
    /// the last name of one of them, if there is one.
    pub(in crate::manager) async fn release(&self, files: &[FileHandle], client: u128) {
        let committed = self.committed.notified();
        let mut is_settled = true;
        for file in files {
            step();
            is_settled &= self.holds.release(file.0, client);
        }
        if !is_settled {
            committed.await;
        }
    }

    /// Answers a request for an object or a directory. Returns `None` if only the first event loop
    /// can: the database must be opened first, or a read has failed.
    pub(in crate::manager) fn look(
        &self,
        caller: &Caller,
        client: u128,
        request: &ManagerRequest,
        room: usize,
    ) -> Option<Result<ManagerReply, FsError>> {
        let asker = Asker { caller, client, holds: &self.holds };
        match answer(&*self.view()?, &asker, request, room) {
            Ok(reply) => Some(Ok(reply)),
            Err(Fault::Store(error)) => {
                tracing::warn!(%error, "a read of the metadata failed");
                None
            }
            Err(fault) => Some(Err(fault.into_error())),
        }
    }
}
