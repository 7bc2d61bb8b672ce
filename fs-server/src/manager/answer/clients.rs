//! The clients of a manager: their connections, on whichever event loop, and who has files without
//! a name.
//!
//! **Why.** A client that fails leaves its nameless files behind. A client that has only lost its
//! connection goes on with them. The manager cannot tell the two apart, so it waits.
//!
//! **Invariants**
//! 1. Every client with nameless files is listed. Times are not stored: after a start of the
//!    manager each client has the whole time again.
//! 2. The files of a client that has a connection stay.
//! 3. The lock is held for a look or for one change, never across an await, and nobody takes
//!    another lock meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bmi::Time;
use bmi::hooks::{mutated, step, steps};
use fs_proto::FsError;
use redb::WriteTransaction;

use crate::lock::lock;
use crate::manager::tables::{Change, NOBODY, names};
use crate::manager::{Fault, Manager, is_open};
use crate::service::Session;
use crate::store::MetaStore;

/// Most files that are removed in one transaction.
const STEP: usize = 256;

/// The clients of all event loops.
#[derive(Default)]
pub(in crate::manager) struct Clients(Mutex<State>);

#[derive(Default)]
struct State {
    /// Clients that made changes over a connection that may still exist.
    connected: BTreeMap<u128, Weak<Session>>,
    /// Clients with nameless files, and when each of them had a connection last.
    owners: BTreeMap<u128, Time>,
}

impl Clients {
    /// Reads the clients with nameless files that earlier starts have left.
    /// `holders` had files open.
    pub(in crate::manager) fn begin(store: &MetaStore, holders: BTreeSet<u128>, now: Time) -> Result<Clients, Fault> {
        let mut owners = names::owners(&store.read()?)?;
        if mutated("manager/nameless-files-forgotten-at-a-restart") {
            owners.clear();
        }
        let owners = owners.into_iter().filter(|client| *client != NOBODY).chain(holders);
        let owners = owners.map(|client| (client, now)).collect();
        Ok(Clients(Mutex::new(State { owners, ..State::default() })))
    }

    /// Records that a client makes changes over a connection.
    pub(in crate::manager) fn connected(&self, client: u128, session: &Arc<Session>) {
        lock(&self.0).connected(client, session);
    }

    /// Records that a client uses a connection. Only those with nameless files are listed.
    pub(in crate::manager) fn uses(&self, client: u128, session: &Arc<Session>) {
        let mut state = lock(&self.0);
        if state.owners.contains_key(&client) {
            state.connected(client, session);
        }
    }

    /// Returns the connection over which a client makes changes.
    pub(in crate::manager) fn session_of(&self, client: u128) -> Option<Arc<Session>> {
        lock(&self.0).connected.get(&client).and_then(Weak::upgrade)
    }

    /// Returns the clients with a connection.
    pub(in crate::manager) fn with_connection(&self) -> BTreeSet<u128> {
        let state = lock(&self.0);
        steps(state.connected.len());
        state.connected.iter().filter(|(_, session)| is_open(session)).map(|(client, _)| *client).collect()
    }

    /// A client has created a nameless file.
    pub(in crate::manager) fn owns_nameless(&self, client: u128, now: Time) {
        lock(&self.0).owners.insert(client, now);
    }

    /// A client has no nameless files any more.
    pub(super) fn owns_none(&self, client: u128) {
        lock(&self.0).owners.remove(&client);
    }

    /// Returns the clients with nameless files that have had no connection for `grace`.
    pub(in crate::manager) fn gone(&self, now: Time, grace: Duration) -> Vec<u128> {
        let State { connected, owners } = &mut *lock(&self.0);
        let mut gone = Vec::new();
        for (client, seen) in owners {
            step();
            let is_connected = connected.get(client).is_some_and(is_open);
            if is_connected && !mutated("manager/nameless-files-of-the-living-removed") {
                *seen = now;
            } else if now.since(*seen) >= grace || mutated("manager/nameless-files-removed-without-grace") {
                gone.push(*client);
            }
        }
        gone
    }
}

impl State {
    fn connected(&mut self, client: u128, session: &Arc<Session>) {
        let connected = &mut self.connected;
        // Sweep each time the table has doubled.
        let full = connected.len() >= 64 && connected.len().is_power_of_two();
        if full && !connected.contains_key(&client) {
            steps(connected.len());
            connected.retain(|_, session| is_open(session));
        }
        connected.insert(client, Arc::downgrade(session));
    }
}

impl Manager {
    /// Removes the nameless files of clients that have had no connection for a long time, in an
    /// endless loop.
    pub(in crate::manager) async fn watch_nameless(&self) {
        loop {
            self.endpoint.sleep(self.settings.heartbeat).await;
            if let Err(error) = self.sweep_nameless().await {
                tracing::warn!(%error, "files without a name are removed later");
            }
        }
    }

    async fn sweep_nameless(&self) -> Result<(), FsError> {
        let (now, holds) = (self.endpoint.now(), &self.lookups.holds);
        let nobody = holds.is_over(now).then_some(NOBODY);
        for client in nobody.into_iter().chain(self.clients.gone(now, self.settings.nameless_grace)) {
            holds.release_all(client);
            let (now_ns, clients, holds) = ((self.wall)(), self.clients.clone(), holds.clone());
            let abandon = move |transaction: &WriteTransaction| {
                let mut change = Change::open(transaction, now_ns)?;
                change.forget_holder(client)?;
                change.abandon_all(client, STEP)
            };
            let note = move |removed| {
                match client {
                    _ if removed == STEP => {}
                    NOBODY => holds.given_up(),
                    client => clients.owns_none(client),
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
        let (clients, grace, session) = (Clients::default(), Duration::from_secs(600), Arc::new(Session::default()));
        clients.owns_nameless(1, at(0));
        clients.owns_nameless(2, at(0));
        clients.connected(2, &session);
        assert!(clients.gone(at(599), grace).is_empty());
        drop(session);
        assert_eq!(clients.gone(at(600), grace), [1]);
        assert_eq!(clients.gone(at(1200), grace), [1, 2]);
        clients.owns_none(1);
        assert_eq!(clients.gone(at(1200), grace), [2]);
    }
}
