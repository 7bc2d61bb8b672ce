//! The connections to servers: made when they are needed, and made again after a loss.
//!
//! **Invariants**
//! 1. There is at most one connection to a server, over the transport that [`super::route`] chose.
//!    If requests need a connection while it is being made, they wait for the same attempt. One of
//!    them carries it out. If that takes longer than [`TURN`], the others begin a new attempt.
//! 2. Every wait has a deadline.
//! 3. Every connection begins with a Hello that names the expected server: the cluster of the first
//!    manager that answered, or the one that was asked for; the store that the manager names; and
//!    the newest start that this client has seen.
//! 4. Any thread may use the connections. The table of servers and the numbers of requests have a
//!    lock each. Neither is held while an endpoint is used.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bmi::threading::Threading;
use bmi::{Addr, Endpoint, ErrorKind, Peer, Time};
use fs_proto::{ClusterId, Start};
use futures_util::future::{Either, select};

use super::numbers::Numbers;
use super::route::{Endpoints, Preference, Route, leave, reach};
use super::servers::{Attempt, Link, Servers};
use super::tickets::Tickets;
use crate::error::{Failure, ServerName};
use crate::locked::Locked;

/// Polls of a look at an idle connection. Adapters read what is left of a connection before they
/// report its end.
const LOOKS: usize = 4;

/// How long a task waits for another task that connects the same server, before it connects itself.
/// The program may hold the other task's future without polling it.
const TURN: Duration = Duration::from_secs(5);

/// A function that is told which server is waited for, how long in all, and why.
pub(crate) type Waiting = Box<dyn Fn(&ServerName, Duration, &str) + Send + Sync>;

/// All of a client's connections.
pub(crate) struct Connections<S: Threading> {
    endpoints: Endpoints<S>,
    pub(super) preference: Preference,
    pub(super) numbers: Locked<Numbers>,
    pub(super) servers: Locked<Servers<S>>,
    pub(super) resent: AtomicU64,
    pub(crate) tickets: Tickets,
    pub(super) manager: ServerName,
    /// How long a server that cannot be reached is waited for.
    pub(super) retry_for: Duration,
    pub(super) waiting: Waiting,
}

impl<S: Threading> Connections<S> {
    pub(crate) fn new(
        endpoints: Endpoints<S>,
        preference: Preference,
        manager: ServerName,
        cluster: Option<ClusterId>,
        retry_for: Duration,
        waiting: Waiting,
    ) -> Connections<S> {
        Connections {
            endpoints,
            preference,
            numbers: Locked::default(),
            servers: Locked::new(Servers::of(cluster)),
            resent: AtomicU64::new(0),
            tickets: Tickets::default(),
            manager,
            retry_for,
            waiting,
        }
    }

    /// Returns the cluster, once it is known.
    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        self.servers.with(|servers| servers.cluster())
    }

    /// Returns the manager.
    pub(crate) fn manager(&self) -> &ServerName {
        &self.manager
    }

    /// Returns the newest start of a server that was seen.
    pub(crate) fn start_of(&self, server: &ServerName) -> Option<Start> {
        self.servers.with(|servers| servers.start_of(server))
    }

    /// Returns the I/O servers.
    pub(crate) fn iods(&self) -> Arc<Vec<ServerName>> {
        self.servers.with(|servers| servers.iods())
    }

    /// Returns the numbers of the I/O servers that could not be reached lately.
    pub(crate) fn avoided(&self) -> Vec<u32> {
        let now = self.endpoint().now();
        self.servers.with(|servers| servers.avoided(now))
    }

    /// Returns a number that no request and no lock of this client has.
    pub(crate) fn draw_number(&self) -> u64 {
        self.numbers.with(|numbers| numbers.draw(false))
    }

    /// Returns the first endpoint. All endpoints share its clock.
    pub(crate) fn endpoint(&self) -> &Endpoint<S> {
        self.endpoints.first()
    }

    /// Returns all endpoints.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = &Endpoint<S>> {
        self.endpoints.endpoints()
    }

    /// Returns true if data is best allocated in memory that can be shared with another process.
    pub(crate) fn shares_memory(&self) -> bool {
        self.endpoints.shares_memory()
    }

    /// Returns the route to a server, or `None` while it is not connected.
    pub(crate) fn route(&self, addr: &Addr) -> Option<Arc<Route>> {
        self.servers.with(|servers| servers.route(addr))
    }

    /// Returns the number of requests that were sent again.
    pub(crate) fn resent(&self) -> u64 {
        self.resent.load(Ordering::Relaxed)
    }

    /// Returns the connection to a server, or `None` while there is none.
    pub(crate) fn connected(&self, addr: &Addr) -> Option<Peer<S>> {
        self.servers.with(|servers| servers.peer(addr)).filter(|peer| peer.limits().is_some())
    }

    /// Returns how many bytes a request to a server may have, including the description of its
    /// memory. Returns `None` while the server is not connected.
    pub(crate) fn room(&self, addr: &Addr) -> Option<usize> {
        let peer = self.servers.with(|servers| servers.peer(addr))?;
        Some(peer.request_room()).filter(|room| *room > 0)
    }

    /// Learns whether the server has closed a connection that was not used for a while. A client
    /// that was not driven meanwhile does not know.
    async fn look_at_idle(&self, addr: &Addr) {
        let now = self.endpoint().now();
        let Some(idle) = self.servers.with(|servers| servers.idle(addr, now)) else { return };
        // Each timer ends with a poll, after that poll has taken what the adapter reports.
        for _ in 0..LOOKS {
            idle.endpoint().sleep(Duration::ZERO).await;
        }
    }

    /// Returns the connection to a server. Connects first if necessary.
    pub(crate) async fn peer(&self, server: &ServerName, deadline: Time) -> Result<Peer<S>, Failure> {
        let addr = &server.addr;
        self.look_at_idle(addr).await;
        loop {
            match self.servers.with(|servers| servers.link(addr)) {
                Link::Connected(peer) if peer.limits().is_some() => return Ok(peer),
                Link::Connected(peer) => self.servers.with(|servers| servers.lost(addr, &peer)),
                Link::Connecting(attempt) => {
                    // In a box of its own, so that a request over a connection has a small future.
                    if let Some(result) = Box::pin(self.join(server, &attempt, deadline)).await {
                        return result;
                    }
                }
            }
        }
    }

    /// Waits for an attempt to connect a server, and carries it out if no other task does. Returns
    /// `None` if it is another task's turn and that takes too long. The next attempt is then a new
    /// one.
    async fn join(
        &self,
        server: &ServerName,
        attempt: &Attempt<S>,
        deadline: Time,
    ) -> Option<Result<Peer<S>, Failure>> {
        let leads = AtomicBool::new(false);
        let mut joined = std::pin::pin!(attempt.get_or_init(async || {
            leads.store(true, Ordering::Relaxed);
            self.connect(server, attempt).await
        }));
        let turn = self.endpoint().now() + TURN;
        let mut until = turn.min(deadline);
        loop {
            let late = std::pin::pin!(self.endpoint().sleep_until(until));
            match select(joined.as_mut(), late).await {
                Either::Left((result, _)) => return Some(result.clone()),
                Either::Right(_) if until == deadline => break,
                Either::Right(_) if leads.load(Ordering::Relaxed) => until = deadline,
                Either::Right(_) => {
                    self.servers.with(|servers| servers.end_attempt(&server.addr, attempt));
                    return None;
                }
            }
        }
        let now = self.endpoint().now();
        self.servers.with(|servers| servers.late(server, now));
        let late = bmi::Error::new(ErrorKind::TimedOut, "no connection within the time limit");
        Some(Err(Failure::transport(server.clone(), late.during("connect").with_peer(&server.addr))))
    }

    /// Carries out an attempt to connect a server, and records the result.
    async fn connect(&self, server: &ServerName, attempt: &Attempt<S>) -> Result<Peer<S>, Failure> {
        let hello = self.servers.with(|servers| servers.hello(server, &self.preference.caller));
        let reached = reach(&self.endpoints, &self.preference, server, &hello).await;
        let now = self.endpoint().now();
        match reached {
            Ok((peer, route, identity)) => {
                tracing::debug!(%route, "connected");
                let used = self.servers.with(|servers| servers.connected(server, peer.clone(), route, &identity, now));
                if used != peer {
                    leave(&peer);
                }
                Ok(used)
            }
            Err(failure) => {
                self.servers.with(|servers| servers.failed(server, attempt, now));
                Err(failure)
            }
        }
    }

    /// Records that a request or a reply has gone over a connection.
    pub(super) fn note_used(&self, addr: &Addr, by: &Peer<S>) {
        let now = self.endpoint().now();
        self.servers.with(|servers| servers.note_used(addr, by, now));
    }
}
