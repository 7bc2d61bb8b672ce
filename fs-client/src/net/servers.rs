//! What a client knows about the servers of its cluster: which there are, which are connected, and
//! which could not be reached.
//!
//! **Why one table.** All of this is one value behind one lock. What belongs together changes
//! together, so no thread sees a connection without the identity that its server gave.
//!
//! **Invariants**
//! 1. A server has at most one entry. An attempt to connect is joined, not repeated, unless it
//!    takes longer than a joining task waits for it.
//! 2. If two attempts succeed, the first one that ends has the entry. The other one is closed.
//! 3. An entry is removed only by a task that knows that this very connection or attempt is over.
//! 4. The list of I/O servers never becomes older.
//!
//! The table calls nothing. Its user asks the endpoints for the time and for the state of
//! connections before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bmi::threading::Threading;
use bmi::{Addr, Peer, Time};
use fs_proto::{Caller, ClusterId, Hello, Identity, Role, Sender, Start, StoreId};
use tokio::sync::OnceCell;

use super::route::Route;
use crate::error::{Failure, ServerName};

/// After this long without a request, a connection is looked at before it is used. The server may
/// have closed it, because it was idle and others needed the place.
const FRESH: Duration = Duration::from_secs(1);

/// How long a client avoids an I/O server for new files after it could not reach it.
const AVOIDED: Duration = Duration::from_secs(30);

/// An attempt to connect to a server. Several tasks may wait for it, and one of them carries it
/// out. If that task is dropped, another one carries it out from the beginning.
pub(crate) type Attempt<S> = Arc<OnceCell<Result<Peer<S>, Failure>>>;

/// A server that is connected or is being connected.
pub(crate) enum Link<S: Threading> {
    /// It is being connected.
    Connecting(Attempt<S>),
    /// It is connected.
    Connected(Peer<S>),
}

enum Entry<S: Threading> {
    Connecting(Attempt<S>),
    /// `used` is the time of the last request or reply.
    Connected {
        peer: Peer<S>,
        route: Arc<Route>,
        used: Time,
    },
}

/// What a client expects of a server.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    /// The store that the server must have.
    store: Option<StoreId>,
    /// The newest start that was seen.
    seen: Option<Start>,
}

/// The table.
pub(crate) struct Servers<S: Threading> {
    cluster: Option<ClusterId>,
    iods: Arc<Vec<ServerName>>,
    /// Number of times that the manager was asked for the list of I/O servers.
    asked: u64,
    /// Which of them brought the list that is stored.
    learned: u64,
    entries: BTreeMap<Addr, Entry<S>>,
    expected: BTreeMap<Addr, Expected>,
    /// When an I/O server could not be reached.
    unreachable: BTreeMap<u32, Time>,
    /// Servers that a user was told about, and that have not answered since.
    awaited: BTreeSet<Addr>,
    /// Servers that were waited for in vain, and that have not answered since. They are not waited
    /// for again: else each of many requests would wait as long.
    given_up: BTreeSet<Addr>,
}

impl<S: Threading> Servers<S> {
    pub(crate) fn of(cluster: Option<ClusterId>) -> Servers<S> {
        Servers {
            cluster,
            iods: Arc::default(),
            asked: 0,
            learned: 0,
            entries: BTreeMap::new(),
            expected: BTreeMap::new(),
            unreachable: BTreeMap::new(),
            awaited: BTreeSet::new(),
            given_up: BTreeSet::new(),
        }
    }

    /// Returns the cluster, once it is known.
    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        self.cluster
    }

    /// Returns the I/O servers.
    pub(crate) fn iods(&self) -> Arc<Vec<ServerName>> {
        self.iods.clone()
    }

    /// Begins to ask the manager for the I/O servers. Returns the number of the question.
    pub(crate) fn ask(&mut self) -> u64 {
        self.asked += 1;
        self.asked
    }

    /// Takes the I/O servers and their stores, as the answer to question `number`. An answer is
    /// dropped if there is one to a later question already, because that one is newer.
    pub(super) fn learn(&mut self, number: u64, iods: Vec<ServerName>, stores: Vec<(Addr, Option<StoreId>)>) {
        if number < self.learned {
            return;
        }
        self.learned = number;
        for (addr, store) in stores {
            let known = self.expected.entry(addr).or_default();
            if known.store != store {
                // A start of another store says nothing about this one.
                *known = Expected { store, seen: None };
            }
        }
        self.iods = Arc::new(iods);
    }

    /// Returns the newest start of a server that was seen.
    pub(crate) fn start_of(&self, server: &ServerName) -> Option<Start> {
        self.expected.get(&server.addr)?.seen
    }

    /// Returns the Hello to a server.
    pub(crate) fn hello(&self, server: &ServerName, caller: &Caller) -> Hello {
        let Expected { store, seen } = self.expected.get(&server.addr).copied().unwrap_or_default();
        let role = server.iod.map_or(Role::Manager, Role::Iod);
        Hello { cluster: self.cluster, role, store, seen, sender: Sender::Client, caller: caller.clone() }
    }

    /// Returns the store that a server is expected to have, if it is known.
    pub(crate) fn store_of(&self, server: &ServerName) -> Option<StoreId> {
        self.expected.get(&server.addr).and_then(|expected| expected.store)
    }

    // ---- connections ----------------------------------------------------------------------------

    /// Returns the connection to a server, if there is one.
    pub(crate) fn peer(&self, addr: &Addr) -> Option<Peer<S>> {
        match self.entries.get(addr) {
            Some(Entry::Connected { peer, .. }) => Some(peer.clone()),
            _ => None,
        }
    }

    /// Returns the connection to a server if nothing has gone over it lately.
    pub(crate) fn idle(&self, addr: &Addr, now: Time) -> Option<Peer<S>> {
        match self.entries.get(addr) {
            Some(Entry::Connected { peer, used, .. }) if now.since(*used) >= FRESH => Some(peer.clone()),
            _ => None,
        }
    }

    /// Returns the route to a server, or `None` while it is not connected.
    pub(crate) fn route(&self, addr: &Addr) -> Option<Arc<Route>> {
        match self.entries.get(addr) {
            Some(Entry::Connected { route, .. }) => Some(route.clone()),
            _ => None,
        }
    }

    /// Returns the connection to a server, or the attempt to make one. If there is neither, an
    /// attempt is entered.
    pub(crate) fn link(&mut self, addr: &Addr) -> Link<S> {
        match self.entries.get(addr) {
            Some(Entry::Connected { peer, .. }) => Link::Connected(peer.clone()),
            Some(Entry::Connecting(attempt)) => Link::Connecting(attempt.clone()),
            None => {
                let attempt = Attempt::default();
                self.entries.insert(addr.clone(), Entry::Connecting(attempt.clone()));
                Link::Connecting(attempt)
            }
        }
    }

    /// Records that an attempt has made a connection. Returns the connection to use: the one of
    /// another attempt, if that one was faster.
    pub(crate) fn connected(
        &mut self,
        server: &ServerName,
        peer: Peer<S>,
        route: Route,
        who: &Identity,
        now: Time,
    ) -> Peer<S> {
        if let Some(first) = self.peer(&server.addr) {
            return first;
        }
        self.cluster = Some(who.cluster);
        let known = Expected { store: Some(who.store), seen: Some(who.start) };
        self.expected.insert(server.addr.clone(), known);
        if let Some(iod) = server.iod {
            self.unreachable.remove(&iod);
        }
        self.entries
            .insert(server.addr.clone(), Entry::Connected { peer: peer.clone(), route: Arc::new(route), used: now });
        peer
    }

    /// Records that an attempt has failed.
    pub(crate) fn failed(&mut self, server: &ServerName, attempt: &Attempt<S>, now: Time) {
        if self.end_attempt(&server.addr, attempt) {
            self.unreachable.extend(server.iod.map(|iod| (iod, now)));
        }
    }

    /// Records that a task has waited for an attempt until its deadline. Others may wait on.
    pub(crate) fn late(&mut self, server: &ServerName, now: Time) {
        if self.peer(&server.addr).is_none() {
            self.unreachable.extend(server.iod.map(|iod| (iod, now)));
        }
    }

    /// Ends an attempt that is still in the table. The next task begins another one. Returns
    /// whether it was there.
    pub(super) fn end_attempt(&mut self, addr: &Addr, attempt: &Attempt<S>) -> bool {
        let is_current =
            matches!(self.entries.get(addr), Some(Entry::Connecting(entry)) if Arc::ptr_eq(entry, attempt));
        if is_current {
            self.entries.remove(addr);
        }
        is_current
    }

    /// Removes a connection that is over, unless there is another one already.
    pub(crate) fn lost(&mut self, addr: &Addr, peer: &Peer<S>) {
        if self.peer(addr).as_ref() == Some(peer) {
            self.entries.remove(addr);
        }
    }

    /// Records that a request or a reply has gone over a connection.
    pub(super) fn note_used(&mut self, addr: &Addr, by: &Peer<S>, now: Time) {
        if let Some(Entry::Connected { peer, used, .. }) = self.entries.get_mut(addr)
            && peer == by
        {
            *used = now.max(*used);
        }
    }

    // ---- servers that are waited for ------------------------------------------------------------

    /// Returns the numbers of the I/O servers that could not be reached lately.
    pub(crate) fn avoided(&self, now: Time) -> Vec<u32> {
        let recent = |(iod, at): (&u32, &Time)| (now.since(*at) < AVOIDED).then_some(*iod);
        self.unreachable.iter().filter_map(recent).collect()
    }

    /// Records that a server has answered.
    pub(crate) fn answered(&mut self, addr: &Addr) {
        self.awaited.remove(addr);
        self.given_up.remove(addr);
    }

    /// Records that a user is told about a server. Returns false if one was told already.
    pub(super) fn await_server(&mut self, addr: &Addr) -> bool {
        self.awaited.insert(addr.clone())
    }

    /// Records that a server was waited for in vain.
    pub(crate) fn give_up(&mut self, addr: &Addr) {
        self.given_up.insert(addr.clone());
    }

    /// Returns true if a server was waited for in vain.
    pub(super) fn is_given_up(&self, addr: &Addr) -> bool {
        self.given_up.contains(addr)
    }
}
