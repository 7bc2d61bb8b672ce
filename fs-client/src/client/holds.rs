//! What a client holds: files that the manager keeps although their last name is gone.
//!
//! **Invariants**
//! 1. While a file is released, nobody begins to hold it: the release would end the new hold.
//! 2. A file is in the table as long as the manager may count it as held by this client.

use std::collections::BTreeMap;

use fs_proto::FileHandle;
use fs_proto::limits::MAX_RELEASED;
use tokio::sync::Notify;

use crate::locked::Locked;

/// What a client holds.
#[derive(Default)]
pub(crate) struct Holds {
    files: Locked<BTreeMap<FileHandle, State>>,
    /// A file is to be released.
    pub(crate) due: Notify,
    /// Files were released.
    pub(crate) released: Notify,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// How often it is held. If it is 0, the file is to be released.
    count: usize,
    is_releasing: bool,
}

/// Files that are being released, until this is dropped.
pub(crate) struct Releasing<'a> {
    holds: &'a Holds,
    pub(crate) files: Vec<FileHandle>,
    pub(crate) is_done: bool,
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        self.holds.files.with(|files| {
            for file in &self.files {
                match self.is_done {
                    true => drop(files.remove(file)),
                    false => files.entry(*file).or_default().is_releasing = false,
                }
            }
        });
        self.holds.released.notify_waiters();
    }
}

impl Holds {
    /// Counts a hold. Returns false if the file is being released.
    pub(crate) fn begin(&self, file: FileHandle) -> bool {
        self.files.with(|files| {
            let state = files.entry(file).or_default();
            state.count += usize::from(!state.is_releasing);
            !state.is_releasing
        })
    }

    /// Counts the end of a hold.
    pub(crate) fn end(&self, file: FileHandle) {
        let is_last = self.files.with(|files| {
            let state = files.entry(file).or_default();
            state.count -= 1;
            state.count == 0
        });
        if is_last {
            self.due.notify_one();
        }
    }

    /// Begins to release the files that are not held any more, as many as fit into a request.
    pub(crate) fn release(&self) -> Releasing<'_> {
        let files = self.files.with(|files| {
            let due = files.iter_mut().filter(|(_, state)| state.count == 0 && !state.is_releasing);
            due.take(MAX_RELEASED)
                .map(|(file, state)| {
                    state.is_releasing = true;
                    *file
                })
                .collect()
        });
        Releasing { holds: self, files, is_done: false }
    }

    /// Returns what is held.
    pub(crate) fn all(&self) -> Vec<FileHandle> {
        self.files.with(|files| files.keys().copied().collect())
    }
}
