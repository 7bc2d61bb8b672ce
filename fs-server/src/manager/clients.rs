//! The clients of a manager: their connections, on whichever event loop, and their files without a
//! name.
//!
//! **Invariant.** The lock is held for a look or for one change, never across an await, and nobody
//! takes another lock meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bmi_core::{Time, mutated, steps};

use super::is_open;
use super::owners::Owners;
use crate::service::Session;

/// The clients of all event loops.
pub(super) struct Clients(Mutex<State>);

struct State {
    /// Clients that made changes over a connection that may still exist.
    connected: BTreeMap<u128, Weak<Session>>,
    owners: Owners,
}

impl Clients {
    pub(super) fn new(owners: Owners) -> Clients {
        Clients(Mutex::new(State { connected: BTreeMap::new(), owners }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a client makes changes over a connection.
    pub(super) fn connected(&self, client: u128, session: &Arc<Session>) {
        self.state().connected(client, session);
    }

    /// Records that a client uses a connection. Only those with nameless files are listed.
    pub(super) fn uses(&self, client: u128, session: &Arc<Session>) {
        let mut state = self.state();
        if state.owners.has(client) {
            state.connected(client, session);
        }
    }

    /// Returns the connection over which a client makes changes.
    pub(super) fn session_of(&self, client: u128) -> Option<Arc<Session>> {
        self.state().connected.get(&client).and_then(Weak::upgrade)
    }

    /// Returns the clients with a connection.
    pub(super) fn with_connection(&self) -> BTreeSet<u128> {
        let state = self.state();
        steps(state.connected.len());
        state.connected.iter().filter(|(_, session)| is_open(session)).map(|(client, _)| *client).collect()
    }

    /// A client has created a nameless file.
    pub(super) fn owns_nameless(&self, client: u128, now: Time) {
        self.state().owners.note(client, now);
    }

    /// A client has no nameless files any more.
    pub(super) fn owns_none(&self, client: u128) {
        self.state().owners.forget(client);
    }

    /// Returns the clients with nameless files that have had no connection for `grace`.
    pub(super) fn gone(&self, now: Time, grace: Duration) -> Vec<u128> {
        let State { connected, owners } = &mut *self.state();
        let is_connected = |client: u128| {
            connected.get(&client).is_some_and(is_open) && !mutated("manager/nameless-files-of-the-living-removed")
        };
        owners.gone(now, grace, is_connected)
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
