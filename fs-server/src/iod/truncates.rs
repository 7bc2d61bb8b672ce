//! Prepared changes of size, in the order in which the manager has decided them.
//!
//! **Why.** The manager may give up a request to prepare that is still on its way, for instance
//! because this server was suspended, and cancel it over another connection. If the request were
//! then served, the datafile would stay prepared for ever. So a request that was cancelled before
//! it came is refused. In turn, a cancellation may come after a request to prepare that the manager
//! sent later. It does not concern that one: the manager counts on it. The numbers tell the order.
//!
//! **Invariants**
//! 1. One request at a time.
//! 2. After a cancellation, no datafile is prepared but those that it excepts and those of requests
//!    with its number or a higher one.

use std::cell::RefCell;
use std::collections::BTreeMap;

use fs_proto::{DatafileHandle, ErrorCode, FsError};
use tokio::sync::Mutex;

use crate::store::DataStore;

/// The order of the requests about prepared changes.
#[derive(Debug, Default)]
pub(super) struct Truncates {
    one: Mutex<()>,
    cancelled: RefCell<Cancelled>,
    /// The numbers of the requests that this start of the server has served, until they end. What
    /// an earlier start has served has a lower number than any cancellation from now on.
    prepared: RefCell<BTreeMap<DatafileHandle, u64>>,
}

/// The last cancellation.
#[derive(Debug, Default)]
struct Cancelled {
    before: u64,
    except: Vec<DatafileHandle>,
}

impl Truncates {
    pub(super) async fn prepare<S: DataStore>(
        &self,
        store: &S,
        datafile: DatafileHandle,
        size: u64,
        number: u64,
    ) -> Result<(), FsError> {
        let _one = self.one.lock().await;
        let is_late = {
            let cancelled = self.cancelled.borrow();
            number < cancelled.before && !cancelled.except.contains(&datafile)
        };
        if is_late {
            return Err(FsError::new(ErrorCode::Stale, format!("change {number} of a size was cancelled before")));
        }
        store.prepare_truncate(datafile, size).await?;
        self.prepared.borrow_mut().insert(datafile, number);
        Ok(())
    }

    pub(super) async fn commit<S: DataStore>(&self, store: &S, datafile: DatafileHandle) -> Result<(), FsError> {
        let _one = self.one.lock().await;
        match store.commit_truncate(datafile).await {
            Err(error) if error.code == ErrorCode::Lost => {
                tracing::warn!(%error, "a size cannot be changed any more");
            }
            result => result?,
        }
        self.prepared.borrow_mut().remove(&datafile);
        Ok(())
    }

    pub(super) async fn cancel<S: DataStore>(
        &self,
        store: &S,
        before: u64,
        except: Vec<DatafileHandle>,
    ) -> Result<(), FsError> {
        let _one = self.one.lock().await;
        let mut kept = except.clone();
        kept.extend(
            self.prepared.borrow().iter().filter(|(_, number)| **number >= before).map(|(datafile, _)| datafile),
        );
        store.cancel_truncates(&kept).await?;
        self.prepared.borrow_mut().retain(|datafile, _| kept.contains(datafile));
        *self.cancelled.borrow_mut() = Cancelled { before, except };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::store::MemStore;

    const FILE: DatafileHandle = DatafileHandle(1);
    const OTHER: DatafileHandle = DatafileHandle(2);

    /// Runs `test` on a store in memory with both datafiles, which never waits.
    fn with_store(test: impl AsyncFnOnce(MemStore, Truncates)) {
        let work = async {
            let store = MemStore::new(1 << 20);
            store.create(FILE, 2).await.unwrap();
            test(store, Truncates::default()).await;
        };
        work.now_or_never().unwrap();
    }

    #[test]
    fn a_request_that_was_cancelled_before_it_came_is_refused() {
        with_store(async |store, truncates| {
            truncates.cancel(&store, 5, vec![OTHER]).await.unwrap();
            assert_eq!(truncates.prepare(&store, FILE, 10, 4).await.unwrap_err().code, ErrorCode::Stale);
            truncates.prepare(&store, OTHER, 10, 4).await.unwrap();
            truncates.prepare(&store, FILE, 10, 5).await.unwrap();
        });
    }

    /// Replays a bug: requests to prepare and to cancel come over two connections. A cancellation
    /// that came after a later request to prepare cancelled that as well, although it was
    /// acknowledged. The manager then decided it. This server had nothing prepared and confirmed
    /// it, and the file was cut off at its other servers only.
    #[test]
    fn a_cancellation_spares_what_was_prepared_by_a_later_request() {
        with_store(async |store, truncates| {
            truncates.prepare(&store, OTHER, 10, 4).await.unwrap();
            truncates.prepare(&store, FILE, 10, 5).await.unwrap();
            truncates.cancel(&store, 5, Vec::new()).await.unwrap();
            assert_eq!(store.held(FILE).await.unwrap_err().code, ErrorCode::Busy, "still prepared");
            assert_eq!(store.size(OTHER).await, Ok(0), "cancelled");
            truncates.commit(&store, FILE).await.unwrap();
            assert_eq!(store.size(FILE).await, Ok(10));
            // The next one is cancelled as usual.
            truncates.prepare(&store, FILE, 20, 6).await.unwrap();
            truncates.cancel(&store, 7, Vec::new()).await.unwrap();
            truncates.commit(&store, FILE).await.unwrap();
            assert_eq!(store.size(FILE).await, Ok(10));
        });
    }
}
