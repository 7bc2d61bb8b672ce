//! Datafiles that worker threads are opening.
//!
//! **Why.** Opening may wait for the disk, and meanwhile other requests for the same datafile come,
//! or it is removed.
//!
//! **Invariants**
//! 1. A datafile is opened once at a time. Others wait until that is over, and look again.
//! 2. If a datafile was removed while it was being opened, what was opened is not used.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fs_proto::DatafileHandle;
use tokio::sync::Notify;

/// The datafiles that are being opened.
#[derive(Debug, Default)]
pub(super) struct Openings(RefCell<BTreeMap<DatafileHandle, Arc<Opening>>>);

#[derive(Debug, Default)]
struct Opening {
    over: Notify,
    removed: AtomicBool,
}

/// The right to open a datafile, until it is dropped.
pub(super) struct Begun<'a> {
    openings: &'a Openings,
    datafile: DatafileHandle,
    opening: Arc<Opening>,
}

impl Openings {
    /// Begins to open a datafile. `None` if it is being opened already: wait for that.
    pub(super) fn begin(&self, datafile: DatafileHandle) -> Option<Begun<'_>> {
        let mut openings = self.0.borrow_mut();
        if openings.contains_key(&datafile) {
            return None;
        }
        let opening = Arc::<Opening>::default();
        openings.insert(datafile, opening.clone());
        Some(Begun { openings: self, datafile, opening })
    }

    /// Waits until a datafile is not being opened.
    pub(super) async fn wait(&self, datafile: DatafileHandle) {
        let opening = self.0.borrow().get(&datafile).cloned();
        if let Some(opening) = opening {
            opening.over.notified().await;
        }
    }

    /// Notes that a datafile was removed.
    pub(super) fn removed(&self, datafile: DatafileHandle) {
        if let Some(opening) = self.0.borrow().get(&datafile) {
            opening.removed.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the number of datafiles that are being opened.
    pub(super) fn count(&self) -> usize {
        self.0.borrow().len()
    }
}

impl Begun<'_> {
    /// Returns true if the datafile was removed meanwhile.
    pub(super) fn was_removed(&self) -> bool {
        self.opening.removed.load(Ordering::Relaxed)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.openings.0.borrow_mut().remove(&self.datafile);
        self.opening.over.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const FILE: DatafileHandle = DatafileHandle(1);

    #[test]
    fn a_datafile_is_opened_once_at_a_time() {
        let openings = Openings::default();
        let begun = openings.begin(FILE).unwrap();
        assert!(openings.begin(FILE).is_none() && openings.begin(DatafileHandle(2)).is_some());
        let mut waits = [Box::pin(openings.wait(FILE)), Box::pin(openings.wait(FILE))];
        assert!(waits.iter_mut().all(|waits| waits.as_mut().now_or_never().is_none()));
        openings.removed(FILE);
        assert!(begun.was_removed());
        drop(begun);
        assert!(waits.iter_mut().all(|waits| waits.as_mut().now_or_never().is_some()));
        assert_eq!(openings.wait(FILE).now_or_never(), Some(()));
        assert!(!openings.begin(FILE).unwrap().was_removed());
        assert_eq!(openings.count(), 0);
    }
}
