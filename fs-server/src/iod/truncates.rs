//! Prepared changes of size, in the order in which the manager has decided them.
//!
//! **Why.** The manager may give up a request to prepare that is still on its way, for instance
//! because this server was suspended, and cancel it over another connection. If the request were
//! then served, the datafile would stay prepared for ever. So a request that was cancelled before
//! it came is refused.
//!
//! Its connections are independent of each other. So a cancellation may also arrive after a later
//! change was prepared, and must leave that one alone.
//!
//! **Invariants**
//! 1. One request at a time.
//! 2. After a cancellation, no datafile is prepared but those that it excepts and those with later
//!    numbers.
//! 3. A datafile is not prepared by a request with a smaller number than an earlier one of it.

use std::cell::RefCell;
use std::collections::BTreeMap;

use fs_proto::{DatafileHandle, ErrorCode, FsError};
use tokio::sync::Mutex;

use crate::store::DataStore;

/// The order of the requests about prepared changes.
#[derive(Debug, Default)]
pub(super) struct Truncates {
    one: Mutex<()>,
    state: RefCell<State>,
}

/// What this start of the server has seen. Requests over connections of earlier starts do not
/// arrive.
#[derive(Debug, Default)]
struct State {
    /// The number of the last cancellation.
    before: u64,
    /// The datafiles that it excepted, and that are not carried out yet.
    except: Vec<DatafileHandle>,
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
    pub(super) async fn prepare<S: DataStore>(
        &self,
        store: &S,
        datafile: DatafileHandle,
        size: u64,
        number: u64,
    ) -> Result<(), FsError> {
        let _one = self.one.lock().await;
        if self.state.borrow().is_late(datafile, number) {
            return Err(FsError::new(ErrorCode::Stale, format!("change {number} of a size was cancelled before")));
        }
        self.state.borrow_mut().prepared.insert(datafile, number);
        store.prepare_truncate(datafile, size).await
    }

    pub(super) async fn commit<S: DataStore>(&self, store: &S, datafile: DatafileHandle) -> Result<(), FsError> {
        let _one = self.one.lock().await;
        match store.commit_truncate(datafile).await {
            Err(error) if error.code == ErrorCode::Lost => {
                tracing::warn!(%error, "a size cannot be changed any more");
            }
            result => result?,
        }
        let mut state = self.state.borrow_mut();
        state.prepared.remove(&datafile);
        // A request to prepare it that comes now was given up before.
        state.except.retain(|except| *except != datafile);
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
        let is_later = |(datafile, number): (&DatafileHandle, &u64)| (*number >= before).then_some(*datafile);
        kept.extend(self.state.borrow().prepared.iter().filter_map(is_later));
        store.cancel_truncates(&kept).await?;
        let mut state = self.state.borrow_mut();
        state.prepared.retain(|datafile, _| kept.contains(datafile));
        if before >= state.before {
            (state.before, state.except) = (before, except);
        }
        Ok(())
    }
}
