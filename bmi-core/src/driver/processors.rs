//! Which drivers of the process may poll for a while: as many as leave a processor to the rest.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of drivers that poll.
static POLLING: AtomicUsize = AtomicUsize::new(0);

/// The right of a driver to poll, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn(());

impl Turn {
    /// Returns the right to poll, if there is a processor for that.
    pub(super) fn take() -> Option<Turn> {
        static MOST: OnceLock<usize> = OnceLock::new();
        let most = *MOST.get_or_init(|| std::thread::available_parallelism().map_or(0, |count| count.get() - 1));
        Turn::of(most)
    }

    /// Returns one of `most` rights.
    pub(super) fn of(most: usize) -> Option<Turn> {
        let more = |polling| (polling < most).then_some(polling + 1);
        POLLING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Turn(()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        POLLING.fetch_sub(1, Ordering::Relaxed);
    }
}
