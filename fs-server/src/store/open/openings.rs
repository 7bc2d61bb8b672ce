//! Datafiles that worker threads are opening.
//!
//! **Why.** Opening may wait for the disk, and meanwhile other requests for the same datafile come,
//! or it is removed.
//!
//! **Invariants**
//! 1. A datafile is opened once at a time. Others wait until that is over, and look again.
//! 2. If a datafile was removed while it was being opened, what was opened is not used.
//! 3. Whoever waits is woken, also if it begins to wait while another thread ends the opening.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use fs_proto::DatafileHandle;
use tokio::sync::Notify;

use crate::lock::lock;

/// The datafiles that are being opened.
#[derive(Debug, Default)]
pub(in crate::store) struct Openings(Mutex<BTreeMap<DatafileHandle, Arc<Opening>>>);

#[derive(Debug, Default)]
struct Opening {
    over: Notify,
    removed: AtomicBool,
}

/// The right to open a datafile, until it is dropped.
pub(in crate::store) struct Begun<'a> {
    openings: &'a Openings,
    datafile: DatafileHandle,
    opening: Arc<Opening>,
}

impl Openings {
    /// Begins to open a datafile. `None` if it is being opened already: wait for that. Otherwise
    /// look again whether it is open, because another thread may have opened it meanwhile.
    pub(in crate::store) fn begin(&self, datafile: DatafileHandle) -> Option<Begun<'_>> {
        let mut openings = lock(&self.0);
        if openings.contains_key(&datafile) {
            return None;
        }
        let opening = Arc::<Opening>::default();
        openings.insert(datafile, opening.clone());
        Some(Begun { openings: self, datafile, opening })
    }

    /// Waits until a datafile is not being opened.
    pub(in crate::store) async fn wait(&self, datafile: DatafileHandle) {
        let find = || lock(&self.0).get(&datafile).cloned();
        let Some(opening) = find() else { return };
        let over = opening.over.notified();
        // Look again. If it is over by now, nobody wakes this task. Otherwise its end will.
        if find().is_some_and(|found| Arc::ptr_eq(&found, &opening)) {
            over.await;
        }
    }

    /// Notes that a datafile was removed.
    pub(in crate::store) fn removed(&self, datafile: DatafileHandle) {
        if let Some(opening) = lock(&self.0).get(&datafile) {
            opening.removed.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the number of datafiles that are being opened.
    pub(in crate::store) fn count(&self) -> usize {
        lock(&self.0).len()
    }
}

impl Begun<'_> {
    /// Returns true if the datafile was removed meanwhile.
    pub(in crate::store) fn was_removed(&self) -> bool {
        self.opening.removed.load(Ordering::Relaxed)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        lock(&self.openings.0).remove(&self.datafile);
        self.opening.over.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

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

    /// A wake-up was lost if the opening ended between the look at the table and the wait.
    #[test]
    fn who_waits_is_woken_by_another_thread() {
        const ROUNDS: u64 = 5000;
        let openings = Openings::default();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    runtime.block_on(async {
                        for round in 0..ROUNDS {
                            let datafile = DatafileHandle(round / 8);
                            let begun = loop {
                                match openings.begin(datafile) {
                                    Some(begun) => break begun,
                                    None => openings.wait(datafile).await,
                                }
                            };
                            if round % 2 == 0 {
                                thread::yield_now();
                            }
                            drop(begun);
                        }
                    });
                });
            }
        });
        assert_eq!(openings.count(), 0);
    }
}
