//! The steps that a store of files takes on its disk: opening, writing, syncing, removing,
//! renaming.
//!
//! **Why.** All of them go through here, so that a test can make each one fail, one after the other
//! (`failures.rs`). In programs this is the step and nothing else.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Takes a step, unless a test makes it fail.
#[cfg(not(test))]
#[inline]
pub(crate) fn step<R>(take: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    take()
}

#[cfg(test)]
pub(crate) use injected::step;

/// Writes all bytes at `offset`.
pub(in crate::store) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    #[cfg(test)]
    if injected::fails_next() {
        // The first half is written.
        file.write_all_at(&bytes[..bytes.len() / 2], offset)?;
    }
    step(|| file.write_all_at(bytes, offset))
}

/// Makes the data of a file durable.
pub(crate) fn sync_data(file: &File) -> io::Result<()> {
    synced(file, step(|| on_disk(file, File::sync_data)))
}

/// Makes a file or a directory durable.
pub(crate) fn sync_all(file: &File) -> io::Result<()> {
    synced(file, step(|| on_disk(file, File::sync_all)))
}

/// Syncs a file, unless a test takes down what is durable. Then that is the disk, and the real one
/// need not be waited for.
fn on_disk(file: &File, sync: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    #[cfg(test)]
    if injected::is_observed() {
        return Ok(());
    }
    sync(file)
}

/// Returns the result of a sync. Tests take down what is durable now.
fn synced(file: &File, result: io::Result<()>) -> io::Result<()> {
    #[cfg(test)]
    if result.is_ok() {
        injected::note_synced(file);
    }
    let _ = file;
    result
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
