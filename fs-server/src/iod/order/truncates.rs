//! Prepared changes of size, in the order in which the manager has decided them.
//!
//! **Why.** The manager may give up a request to prepare that is still on its way, for instance
//! because this server was suspended, and cancel it over another connection. If the request were
//! then served, the datafile would stay prepared for ever. So a request that was cancelled before
//! it came is refused. In turn, a cancellation may come after a request to prepare that the manager
//! sent later. It does not concern that one: the manager counts on it. The numbers tell the order.
//! A request to carry out may be given up and come later, too, when another change is prepared. It
//! does not concern that one either.
//!
//! **Invariants**
//! 1. One request at a time.
//! 2. After a cancellation, no datafile is prepared but those that it excepts and those with later
//!    numbers.
//! 3. A datafile is not prepared by a request with a smaller number than an earlier one of it.
//! 4. The event loops of a server share the order. Requests wait for each other without blocking a
//!    thread, and the state is never locked while the store works.

use std::collections::{BTreeMap, BTreeSet};

use bmi::hooks::{step, steps};
use fs_proto::limits::MAX_OFFSET;
use fs_proto::{DatafileHandle, ErrorCode, FsError};
use tokio::sync::Mutex;

use crate::lock::lock;
use crate::store::DataStore;

/// The order of the requests about prepared changes.
#[derive(Debug, Default)]
pub(in crate::iod) struct Truncates {
    one: Mutex<()>,
    state: std::sync::Mutex<State>,
}

/// What this start of the server has seen. Requests over connections of earlier starts do not
/// arrive.
#[derive(Debug, Default)]
struct State {
    /// The number of the last cancellation.
    before: u64,
    /// The datafiles that it excepted, and that are not carried out yet.
    except: BTreeSet<DatafileHandle>,
    /// The numbers of the prepared changes.
    prepared: BTreeMap<DatafileHandle, u64>,
}

impl State {
    /// Returns true if a change was given up before it came.
    fn is_late(&self, datafile: DatafileHandle, number: u64) -> bool {
        let is_cancelled = number < self.before && !self.except.contains(&datafile);
        is_cancelled || self.prepared.get(&datafile).is_some_and(|prepared| number < *prepared)
    }
}

impl Truncates {
    pub(in crate::iod) async fn prepare(
        &self,
        store: &(impl DataStore + ?Sized),
        datafile: DatafileHandle,
        size: u64,
        number: u64,
    ) -> Result<(), FsError> {
        if size > MAX_OFFSET {
            return Err(FsError::new(ErrorCode::TooLarge, format!("a datafile of {size} bytes")));
        }
        let _one = self.one.lock().await;
        if lock(&self.state).is_late(datafile, number) {
            return Err(FsError::new(ErrorCode::Stale, format!("change {number} of a size was cancelled before")));
        }
        lock(&self.state).prepared.insert(datafile, number);
        store.prepare_truncate(datafile, size).await
    }

    /// Carries out a change that was prepared with a number below `before`.
    pub(in crate::iod) async fn commit(
        &self,
        store: &(impl DataStore + ?Sized),
        (datafile, cut, size): (DatafileHandle, u64, u64),
        before: u64,
    ) -> Result<(), FsError> {
        let _one = self.one.lock().await;
        if lock(&self.state).prepared.get(&datafile).is_some_and(|number| *number >= before) {
            return Err(FsError::new(ErrorCode::Stale, "another change of this size was prepared since"));
        }
        match store.commit_truncate(datafile, cut, size).await {
            Err(error) if error.code == ErrorCode::Lost => {
                tracing::warn!(%error, "a size cannot be changed any more");
            }
            result => result?,
        }
        let mut state = lock(&self.state);
        state.prepared.remove(&datafile);
        // A request to prepare it that comes now was given up before.
        state.except.remove(&datafile);
        Ok(())
    }

    pub(in crate::iod) async fn cancel(
        &self,
        store: &(impl DataStore + ?Sized),
        before: u64,
        except: Vec<DatafileHandle>,
    ) -> Result<(), FsError> {
        let _one = self.one.lock().await;
        let except: BTreeSet<DatafileHandle> = except.into_iter().collect();
        let mut kept = except.clone();
        let is_later = |(datafile, number): (&DatafileHandle, &u64)| (*number >= before).then_some(*datafile);
        kept.extend(lock(&self.state).prepared.iter().inspect(|_| step()).filter_map(is_later));
        store.cancel_truncates(&kept.iter().copied().collect::<Vec<_>>()).await?;
        let mut state = lock(&self.state);
        steps(state.prepared.len());
        state.prepared.retain(|datafile, _| kept.contains(datafile));
        if before >= state.before {
            (state.before, state.except) = (before, except);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::store::{FileStore, MemDisk};

    const FILE: DatafileHandle = DatafileHandle(1);
    const OTHER: DatafileHandle = DatafileHandle(2);

    /// Runs `test` on a store in memory with both datafiles, which never waits.
    fn with_store(test: impl AsyncFnOnce(FileStore, Truncates)) {
        let work = async {
            let store = FileStore::in_memory(&MemDisk::default());
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
            let early = truncates.commit(&store, (FILE, 10, 10), 5).await.unwrap_err();
            assert_eq!(early.code, ErrorCode::Stale, "a request that was given up before it was prepared");
            truncates.commit(&store, (FILE, 10, 10), 6).await.unwrap();
            assert_eq!(store.size(FILE).await, Ok(10));
            // The next one is cancelled as usual.
            truncates.prepare(&store, FILE, 20, 6).await.unwrap();
            truncates.cancel(&store, 7, Vec::new()).await.unwrap();
            truncates.commit(&store, (FILE, 20, 20), 7).await.unwrap();
            assert_eq!(store.size(FILE).await, Ok(10));
        });
    }
}
