//! Prepared changes of size, in the order in which the manager has decided them.
//!
//! **Why.** The manager may give up a request to prepare that is still on its way, for instance
//! because this server was suspended, and cancel it over another connection. If the request were
//! then served, the datafile would stay prepared for ever. So a request that was cancelled before
//! it came is refused.
//!
//! **Invariants**
//! 1. One request at a time.
//! 2. After a cancellation, no datafile is prepared but those that it excepts and those of later
//!    requests.

use std::cell::RefCell;

use fs_proto::{DatafileHandle, ErrorCode, FsError};
use tokio::sync::Mutex;

use crate::store::DataStore;

/// The order of the requests about prepared changes.
#[derive(Debug, Default)]
pub(super) struct Truncates {
    one: Mutex<()>,
    cancelled: RefCell<Cancelled>,
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
        store.prepare_truncate(datafile, size).await
    }

    pub(super) async fn commit<S: DataStore>(&self, store: &S, datafile: DatafileHandle) -> Result<(), FsError> {
        let _one = self.one.lock().await;
        match store.commit_truncate(datafile).await {
            Err(error) if error.code == ErrorCode::Lost => {
                tracing::warn!(%error, "a size cannot be changed any more");
                Ok(())
            }
            result => result,
        }
    }

    pub(super) async fn cancel<S: DataStore>(
        &self,
        store: &S,
        before: u64,
        except: Vec<DatafileHandle>,
    ) -> Result<(), FsError> {
        let _one = self.one.lock().await;
        store.cancel_truncates(&except).await?;
        *self.cancelled.borrow_mut() = Cancelled { before, except };
        Ok(())
    }
}
