//! The clients that have files without a name, and when each of them had a connection last.
//!
//! **Why.** A client that fails leaves its nameless files behind. A client that has only lost its
//! connection goes on with them. The manager cannot tell the two apart, so it waits.
//!
//! **Invariants**
//! 1. Every client with nameless files is listed. Times are not stored: after a start of the
//!    manager each client has the whole time again.
//! 2. The files of a client that has a connection stay.

use std::collections::BTreeMap;
use std::time::Duration;

use bmi_core::{Time, mutated, step};
use fs_proto::FsError;
use redb::WriteTransaction;

use super::namespace::{self, Change};
use super::{Fault, Manager};
use crate::store::MetaStore;

/// Most files that are removed in one transaction.
const STEP: usize = 256;

/// Clients with nameless files.
#[derive(Debug, Default)]
pub(super) struct Owners(BTreeMap<u128, Time>);

impl Owners {
    /// Reads the clients that earlier starts have left.
    pub(super) fn begin(store: &MetaStore, now: Time) -> Result<Owners, Fault> {
        let mut owners = namespace::owners(&store.read()?)?;
        if mutated("manager/nameless-files-forgotten-at-a-restart") {
            owners.clear();
        }
        Ok(Owners(owners.into_iter().map(|client| (client, now)).collect()))
    }

    /// A client has created a nameless file.
    pub(super) fn note(&mut self, client: u128, now: Time) {
        self.0.insert(client, now);
    }

    /// Returns true if the client may have nameless files.
    pub(super) fn has(&self, client: u128) -> bool {
        self.0.contains_key(&client)
    }

    /// A client has no nameless files any more.
    pub(super) fn forget(&mut self, client: u128) {
        self.0.remove(&client);
    }

    /// Returns the clients that have had no connection for `grace`.
    pub(super) fn gone(&mut self, now: Time, grace: Duration, is_connected: impl Fn(u128) -> bool) -> Vec<u128> {
        let mut gone = Vec::new();
        for (client, seen) in &mut self.0 {
            step();
            if is_connected(*client) {
                *seen = now;
            } else if now.since(*seen) >= grace || mutated("manager/nameless-files-removed-without-grace") {
                gone.push(*client);
            }
        }
        gone
    }
}

impl Manager {
    /// Removes the nameless files of clients that have had no connection for a long time, in an
    /// endless loop.
    pub(super) async fn watch_nameless(&self) {
        loop {
            self.endpoint.sleep(self.settings.heartbeat).await;
            if let Err(error) = self.sweep_nameless().await {
                tracing::warn!(%error, "files without a name are removed later");
            }
        }
    }

    async fn sweep_nameless(&self) -> Result<(), FsError> {
        for client in self.clients.gone(self.endpoint.now(), self.settings.nameless_grace) {
            let (now_ns, clients) = ((self.wall)(), self.clients.clone());
            let abandon =
                move |transaction: &WriteTransaction| Change::open(transaction, now_ns)?.abandon_all(client, STEP);
            let note = move |removed| {
                if removed < STEP {
                    clients.owns_none(client);
                }
                Ok(removed)
            };
            let removed = self.transact_then(abandon, note).await?;
            if removed > 0 {
                tracing::info!(files = removed, "removed files without a name whose client is gone");
                self.maintenance.notify_waiters();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_gone_after_a_time_without_a_connection() {
        let at = |seconds: u64| Time::from_nanos(seconds * 1_000_000_000);
        let grace = Duration::from_secs(600);
        let mut owners = Owners::default();
        owners.note(1, at(0));
        owners.note(2, at(0));
        assert!(owners.gone(at(599), grace, |client| client == 2).is_empty());
        assert_eq!(owners.gone(at(600), grace, |_| false), [1]);
        assert_eq!(owners.gone(at(1200), grace, |_| false), [1, 2]);
        assert!(owners.has(1) && !owners.has(3));
    }
}
