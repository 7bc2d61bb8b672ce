//! The end of a store that cannot keep its promises any more.

use std::sync::OnceLock;

use fs_proto::FsError;
use tokio::sync::Notify;

/// The reason why a store has failed for good, if it has. Worker threads use it too.
#[derive(Debug, Default)]
pub(in crate::store) struct Failure {
    reason: OnceLock<FsError>,
    noted: Notify,
}

impl Failure {
    /// Notes that the store has failed. Only the first reason counts.
    pub(in crate::store) fn note(&self, error: FsError) {
        tracing::error!(%error, "the store has failed");
        let _ = self.reason.set(error);
        self.noted.notify_waiters();
    }

    /// Fails if the store has failed.
    pub(in crate::store) fn check(&self) -> Result<(), FsError> {
        self.reason.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Waits until the store has failed, and returns the reason.
    pub(in crate::store) async fn wait(&self) -> FsError {
        loop {
            let noted = self.noted.notified();
            if let Some(error) = self.reason.get() {
                return error.clone();
            }
            noted.await;
        }
    }
}
