//! What a client knows about the files that it has open, holds or writes.
//!
//! **Why.** The manager keeps a file whose last name is gone as long as a client holds it, and
//! knows the size of a file if it knows who writes it ([`Content`]). So a client says when it
//! begins and when it ends. What ends is said later, for many files at once.
//!
//! **Invariants**
//! 1. While the end of something is said, nothing of the same file begins: the end would be that of
//!    the new one.
//! 2. A file is in the table as long as it is open here, or the manager may count it as held by
//!    this client.
//! 3. A client that has said that it writes no more does not write before it has said that it
//!    begins. It says that only when all its writes have ended. A write that was dropped, or that
//!    no server has answered, may still be under way: its file stays in the table, and is not
//!    closed.
//! 4. The answer to a create says that this client writes. It may come late, when the file was
//!    found by its name and used. So what this client seems to write, without knowing why, it does
//!    not close while it waits for such an answer.

use std::collections::BTreeMap;

use bmi::hooks::mutated;
use fs_proto::limits::{MAX_CLOSED, MAX_RELEASED};
use fs_proto::{Access, Content, FileHandle, Layout};
use tokio::sync::Notify;

use crate::locked::Locked;

/// What a client knows about its files.
#[derive(Default)]
pub(crate) struct Files {
    table: Locked<Table>,
    /// Something is to be said to the manager.
    pub(crate) due: Notify,
    /// It was said.
    pub(crate) said: Notify,
}

#[derive(Default)]
struct Table {
    files: BTreeMap<FileHandle, FileState>,
    /// There is somebody who says what has ended.
    is_kept: bool,
    /// Files that are being created here.
    creating: usize,
}

/// Whether a client may write to a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Right {
    /// It has to say first that it begins.
    #[default]
    Unsaid,
    /// It has said so, or has created the file. It is to say when it has ended.
    Said,
    /// Everybody may, and nobody says anything.
    Shared,
}

#[derive(Default)]
struct FileState {
    /// Number of [`File`](crate::File)s, and of [`Held`](crate::Held)s.
    open: usize,
    holds: usize,
    /// The manager may count it as held by this client.
    is_held: bool,
    right: Right,
    /// Writes that have begun and have not ended in order.
    writing: usize,
    /// The size that is recorded at the manager, as far as this client knows. It may have been
    /// withdrawn.
    recorded_size: Option<u64>,
    /// Number of times that a size was noted here. An answer of the manager to an earlier question
    /// does not replace a size that was noted meanwhile, because the size may be recorded after the
    /// answer.
    noted: u64,
    layout: Option<Layout>,
    /// What this client may do with it, since it has opened it.
    access: Access,
    /// What has ended is being said.
    is_ending: bool,
    /// The manager counts this client as the writer, perhaps because of a create that is not
    /// answered yet.
    is_doubtful: bool,
}

impl FileState {
    fn is_used(&self) -> bool {
        self.open > 0 || self.holds > 0
    }

    /// Its hold has ended, and the manager is to be told.
    fn is_to_be_released(&self) -> bool {
        self.is_held && self.holds == 0
    }

    /// It is not used, and all its writes have ended: the manager may be told how it is.
    fn is_to_be_closed(&self) -> bool {
        !self.is_used() && self.right == Right::Said && self.is_settled()
    }

    /// This client knows of all its writes that they have ended.
    fn is_settled(&self) -> bool {
        !self.is_doubtful && !self.may_be_written()
    }

    /// A write may be under way.
    fn may_be_written(&self) -> bool {
        self.writing > 0 && !mutated("client/unknown-write-forgotten")
    }

    fn note(&mut self, size: u64) {
        (self.recorded_size, self.right) = (Some(size), Right::Unsaid);
        self.noted += 1;
    }
}

/// How a write may begin.
pub(crate) enum Beginning {
    /// It has begun.
    Begun,
    /// First the manager is to be told.
    Unsaid,
    /// First something else is said about the file.
    Ending,
    /// This client may not write to it.
    Denied,
}

/// A file that is being created. If this is dropped before the answer, the file may be there all
/// the same.
pub(crate) struct Creating<'a>(&'a Files);

impl Creating<'_> {
    /// This client has created the file, which it has opened, and may hold. Returns false if the
    /// end of something else is being said, perhaps that of the hold.
    pub(crate) fn created(self, file: FileHandle, is_held: bool) -> bool {
        self.0.with(file, |state| {
            if !state.is_ending {
                (state.right, state.is_doubtful) = (Right::Said, false);
            }
            state.is_held |= is_held;
            state.holds += usize::from(is_held);
            !state.is_ending
        })
    }
}

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        self.0.table.with(|table| table.creating -= 1);
    }
}

/// A file whose use has ended, as far as this client knows.
pub(crate) struct Ended {
    pub(crate) file: FileHandle,
    /// Its hold has ended.
    pub(crate) is_held: bool,
    /// Where its size is to be asked for, if this client has written to it.
    pub(crate) written: Option<Layout>,
}

/// Files whose end is being said, until this is dropped.
pub(crate) struct Ending<'a> {
    files: &'a Files,
    pub(crate) ended: Vec<Ended>,
    pub(crate) is_done: bool,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.files.table.with(|table| {
            for Ended { file, is_held, written } in &self.ended {
                let Some(state) = table.files.get_mut(file) else { continue };
                state.is_ending = false;
                // If it failed, the manager may have been told all the same.
                if written.is_some() && !mutated("client/writes-after-it-has-closed") {
                    state.right = Right::Unsaid;
                }
                state.is_held &= !(*is_held && self.is_done);
                table.sweep(*file);
            }
        });
        self.files.said.notify_waiters();
    }
}

impl Table {
    /// Removes a file of which nothing is to be known. Returns true if something is to be said.
    fn sweep(&mut self, file: FileHandle) -> bool {
        let Some(state) = self.files.get(&file) else { return false };
        if state.is_ending {
            return false;
        }
        let is_due = state.is_to_be_released() || self.is_kept && state.is_to_be_closed();
        if !is_due && !state.is_used() && !state.may_be_written() {
            self.files.remove(&file);
        }
        is_due
    }
}

impl Files {
    fn with<R>(&self, file: FileHandle, f: impl FnOnce(&mut FileState) -> R) -> R {
        self.table.with(|table| f(table.files.entry(file).or_default()))
    }

    fn end(&self, file: FileHandle, f: impl FnOnce(&mut FileState)) {
        let is_due = self.table.with(|table| {
            if let Some(state) = table.files.get_mut(&file) {
                f(state);
            }
            table.sweep(file)
        });
        if is_due {
            self.due.notify_one();
        }
    }

    /// From now on somebody says what has ended.
    pub(crate) fn keep(&self) {
        self.table.with(|table| table.is_kept = true);
    }

    /// A file was opened, of which this is known.
    pub(crate) fn opened(&self, file: FileHandle, told: (Content, Access), layout: &Layout, this_client: u128) {
        let (content, access) = told;
        self.table.with(|table| {
            let state = table.files.entry(file).or_default();
            state.open += 1;
            state.access = state.access.and(access);
            match content {
                Content::Recorded(size) => state.note(size),
                Content::Shared if !state.is_ending => state.right = Right::Shared,
                // That this client writes is believed only if it is known here: it may have ended.
                Content::Written { client, .. } if client == this_client && state.right == Right::Unsaid => {
                    state.is_doubtful |= table.creating > 0 && !state.is_ending;
                }
                _ => {}
            }
            if layout.limit().is_none() || state.layout.is_none() {
                state.layout = Some(layout.clone());
            }
        });
    }

    /// The manager has told what this client may do with a file that it uses.
    pub(crate) fn granted(&self, file: FileHandle, access: Access) {
        self.table.with(|table| {
            table.files.get_mut(&file).into_iter().for_each(|state| state.access = state.access.and(access));
        });
    }

    /// Returns what this client may do with a file that it has open.
    pub(crate) fn access(&self, file: FileHandle) -> Access {
        self.table.with(|table| table.files.get(&file).map_or(Access::NONE, |state| state.access))
    }

    /// A small file has grown.
    pub(crate) fn has_grown(&self, file: FileHandle, layout: &Layout) {
        self.with(file, |state| state.layout = Some(layout.clone()));
    }

    /// Returns the layout of a file that was told last.
    pub(crate) fn layout(&self, file: FileHandle) -> Option<Layout> {
        self.table.with(|table| table.files.get(&file)?.layout.clone())
    }

    /// A file is being created.
    pub(crate) fn creating(&self) -> Creating<'_> {
        self.table.with(|table| table.creating += 1);
        Creating(self)
    }

    /// A file that was opened is no longer used. Returns true if there is another
    /// [`File`](crate::File).
    pub(crate) fn closed(&self, file: FileHandle) -> bool {
        let mut is_open = false;
        self.end(file, |state| {
            state.open -= 1;
            is_open = state.open > 0;
        });
        is_open
    }

    /// Counts a hold. Returns false if the end of another one is being said.
    pub(crate) fn hold(&self, file: FileHandle) -> bool {
        self.with(file, |state| {
            if !state.is_ending {
                state.holds += 1;
                state.is_held = true;
            }
            !state.is_ending
        })
    }

    /// Counts the end of a hold.
    pub(crate) fn hold_ended(&self, file: FileHandle) {
        self.end(file, |state| state.holds -= 1);
    }

    /// Begins a write, if the manager knows that this client writes, or learns it by the write
    /// itself.
    pub(crate) fn begin_write(&self, file: FileHandle, says_it: bool) -> Beginning {
        self.with(file, |state| match state.right {
            _ if !state.access.has(Access::WRITE) => Beginning::Denied,
            _ if state.is_ending => Beginning::Ending,
            Right::Unsaid if !says_it => Beginning::Unsaid,
            _ => {
                state.writing += 1;
                Beginning::Begun
            }
        })
    }

    /// A write has ended, and nothing of it is under way.
    pub(crate) fn write_ended(&self, file: FileHandle) {
        self.end(file, |state| state.writing -= 1);
    }

    /// Returns the recorded size of a file, as far as it is known here, and how many were noted.
    pub(crate) fn recorded_size(&self, file: FileHandle) -> (Option<u64>, u64) {
        self.table.with(|table| table.files.get(&file).map_or((None, 0), |state| (state.recorded_size, state.noted)))
    }

    /// Notes a size before it is recorded, so that a write from now on withdraws it. Returns false
    /// if it must not be recorded, because a write may be under way.
    pub(crate) fn note_size(&self, file: FileHandle, size: u64) -> bool {
        self.with(file, |state| {
            let is_settled = state.is_settled();
            if is_settled {
                state.note(size);
            }
            is_settled
        })
    }

    /// Takes what the manager has answered to a question or a change that began when `noted` sizes
    /// had been noted. With a right, this client has said that it writes.
    pub(crate) fn learn(&self, file: FileHandle, noted: u64, size: Option<u64>, right: Option<Right>) {
        self.table.with(|table| {
            let state = table.files.get_mut(&file).filter(|state| state.noted == noted && !state.is_ending);
            state.into_iter().for_each(|state| {
                state.recorded_size = size;
                state.right = right.unwrap_or(state.right);
            });
        });
    }

    /// Begins to say what has ended, of as many files as fit into a request. What was not written
    /// comes first: it waits for no I/O server.
    pub(crate) fn ending(&self) -> Ending<'_> {
        let ended = self.table.with(|table| {
            let is_kept = table.is_kept;
            let mut begin = |is_written: bool, most: usize| -> Vec<Ended> {
                let due = table.files.iter_mut().filter(|(_, state)| {
                    let is_to_be_closed = is_kept && state.is_to_be_closed();
                    !state.is_ending && is_to_be_closed == is_written && (is_written || state.is_to_be_released())
                });
                due.take(most)
                    .map(|(file, state)| {
                        state.is_ending = true;
                        let written = state.layout.clone().filter(|_| is_written);
                        Ended { file: *file, is_held: state.is_to_be_released(), written }
                    })
                    .collect()
            };
            match begin(false, MAX_RELEASED) {
                none if none.is_empty() => begin(true, MAX_CLOSED),
                released => released,
            }
        });
        Ending { files: self, ended, is_done: false }
    }

    /// Returns what is held.
    pub(crate) fn held(&self) -> Vec<FileHandle> {
        self.table.with(|table| table.files.iter().filter(|(_, state)| state.is_held).map(|(file, _)| *file).collect())
    }
}

#[cfg(test)]
mod tests {
    use fs_proto::{DatafileHandle, Distribution};

    use super::*;

    const FILE: FileHandle = FileHandle(6);

    /// The answer to a create came after the file had been found by its name, written and closed:
    /// it was then written without a word.
    #[test]
    fn what_is_being_created_is_not_closed_before_the_answer() {
        let files = Files::default();
        files.keep();
        let layout = Layout::new(Distribution::simple_stripe(4096, 1).unwrap(), vec![(0, DatafileHandle(7))]).unwrap();
        let written = (Content::Written { client: 1, starts: 0 }, Access::BOTH);
        let write = || {
            files.opened(FILE, written, &layout, 1);
            if matches!(files.begin_write(FILE, false), Beginning::Unsaid) {
                files.learn(FILE, 0, None, Some(Right::Said));
                assert!(matches!(files.begin_write(FILE, false), Beginning::Begun));
            }
            files.write_ended(FILE);
            files.closed(FILE);
        };
        let creating = files.creating();
        write();
        assert!(files.ending().ended.is_empty());
        files.opened(FILE, written, &layout, 1);
        assert!(creating.created(FILE, true));
        assert!(matches!(files.begin_write(FILE, false), Beginning::Begun), "the answer says so");
        files.write_ended(FILE);
        files.closed(FILE);
        files.hold_ended(FILE);
        let ending = files.ending();
        assert!(ending.ended.iter().all(|ended| ended.is_held && ended.written.is_some()));
        assert_eq!(ending.ended.len(), 1);
        drop(ending);
        write();
        assert_eq!(files.ending().ended.len(), 1, "nothing is being created");
    }
}
