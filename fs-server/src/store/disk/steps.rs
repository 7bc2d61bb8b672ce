//! The steps that a store of files takes on its disk: opening, writing, syncing, removing,
//! renaming.
//!
//! **Why.** All of them go through here, so that a test can make each one fail, one after the other
//! (`failures.rs`). In programs this is the step and nothing else.

use std::fs::File;
use std::io;

use super::{DiskDir, DiskFile};

/// Takes a step, unless a test makes it fail.
#[cfg(not(test))]
#[inline]
pub(crate) fn step<R>(take: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    take()
}

#[cfg(test)]
pub(crate) use injected::step;

/// Writes all bytes at `offset`.
pub(in crate::store) fn write_all_at(file: &dyn DiskFile, bytes: &[u8], offset: u64) -> io::Result<()> {
    #[cfg(test)]
    if injected::fails_next() {
        // The first half is written.
        file.write_record(offset, &bytes[..bytes.len() / 2])?;
    }
    step(|| file.write_record(offset, bytes))
}

/// Makes a file durable, as [`DiskFile::sync`].
pub(in crate::store) fn sync_file(file: &dyn DiskFile, whole: bool) -> io::Result<()> {
    synced(file.system(), || file.sync(whole))
}

/// Makes the names in a directory durable.
pub(in crate::store) fn sync_dir(dir: &dyn DiskDir) -> io::Result<()> {
    synced(dir.system(), || dir.sync())
}

/// Syncs a file or a directory, unless a test takes down what is durable. Then that is the disk,
/// and the real one need not be waited for.
fn synced(descriptor: Option<&File>, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    #[cfg(test)]
    if let Some(file) = descriptor.filter(|_| injected::is_observed()) {
        return step(|| Ok(())).inspect(|()| injected::note_synced(file));
    }
    let _ = descriptor;
    step(sync)
}

/// Counts the steps, and makes some of them fail. Each thread has its own count: without a tokio
/// runtime a store does all its work on the thread of its caller.
#[cfg(test)]
pub(crate) mod injected {
    use std::cell::{Cell, RefCell};
    use std::fs::File;
    use std::io;

    /// The steps that fail.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Failing {
        /// The number of the first one, from 1 on.
        pub(crate) first: u64,
        /// How many fail.
        pub(crate) count: u64,
        /// The number of the system's error.
        pub(crate) error: i32,
    }

    /// In place of an error: the process ends at this step, by a panic.
    pub(crate) const END: i32 = -1;

    type Observer = Box<dyn Fn(&File)>;

    thread_local! {
        static COUNT: Cell<u64> = const { Cell::new(0) };
        static FAILING: Cell<Option<Failing>> = const { Cell::new(None) };
        static OBSERVER: RefCell<Option<Observer>> = const { RefCell::new(None) };
    }

    /// Makes steps from now on fail. `None` makes none fail.
    pub(crate) fn fail(failing: Option<Failing>) {
        COUNT.set(0);
        FAILING.set(failing);
    }

    /// Returns the number of steps since [`fail`].
    pub(crate) fn count() -> u64 {
        COUNT.get()
    }

    /// Calls `observer` with each file and directory that is synced.
    pub(crate) fn observe(observer: Option<Observer>) {
        OBSERVER.set(observer);
    }

    pub(super) fn is_observed() -> bool {
        OBSERVER.with_borrow(Option::is_some)
    }

    pub(super) fn note_synced(file: &File) {
        OBSERVER.with_borrow(|observer| observer.iter().for_each(|observer| observer(file)));
    }

    /// Returns true if the next step fails.
    pub(super) fn fails_next() -> bool {
        let next = COUNT.get() + 1;
        FAILING.get().is_some_and(|failing| (failing.first..failing.first + failing.count).contains(&next))
    }

    pub(crate) fn step<R>(take: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        let fails = fails_next();
        COUNT.set(COUNT.get() + 1);
        match FAILING.get() {
            Some(Failing { error: END, .. }) if fails => panic!("the process ends"),
            Some(failing) if fails => Err(io::Error::from_raw_os_error(failing.error)),
            _ => take(),
        }
    }
}
