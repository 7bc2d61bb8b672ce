//! Sends requests to servers and returns their replies. Connections are made when they are needed,
//! and made again after a loss.
//!
//! **Why.** A caller should not have to manage connections, tags and buffers, or handle a server's
//! restart. It passes a request and gets a reply within the deadline, or a failure that names the
//! server.
//!
//! **Invariants**
//! 1. There is at most one connection to a server, over the transport that [`super::route`] chose.
//!    If requests need a connection while it is being made, they wait for the same attempt. One of
//!    them carries it out. If that takes longer than [`TURN`], the others begin a new attempt.
//! 2. A request that changes the namespace keeps its id whenever it is sent again, so the manager
//!    executes it once.
//! 3. A write is never sent twice, unless the server says that it has not handled it. The first one
//!    might still be on its way to the disk and overwrite what is written there next.
//! 4. Every wait has a deadline.
//! 5. Every connection begins with a Hello that names the expected server: the cluster of the first
//!    manager that answered, or the one that was asked for; the store that the manager names; and
//!    the newest start that this client has seen.
//! 6. Any thread may use the connections, and drop a request at any time. The table of servers and
//!    the numbers of requests have a lock each. Neither is held while an endpoint is used.
//!
//! **Protocol.** See [`fs_proto`]: each request is a call of [`bmi::calls`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bmi::config::Lists;
use bmi::hooks::mutated;
use bmi::paths::Path;
use bmi::threading::Threading;
use bmi::{Addr, Body, Endpoint, ErrorKind, Options, Peer, Reply, Time};
use fs_proto::limits::MAX_SERVERS;
use fs_proto::{
    ClusterId, ErrorCode, FsError, ManagerReply, ManagerRequest, ReplyBody, Request, RequestBody, RequestId, codec,
};
use futures_util::future::{Either, select};

use super::route::{Endpoints, Preference, Route, leave, reach};
use super::servers::{Attempt, Link, Servers};
use crate::error::{Failure, ServerName};
use crate::locked::Locked;

/// First pause before retrying a server that was lost. It is doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

/// After this long, a caller is told that a server is waited for.
const NOTICE: Duration = Duration::from_secs(1);

/// Polls of a look at an idle connection. Adapters read what is left of a connection before they
/// report its end.
const LOOKS: usize = 4;

/// How long a task waits for another task that connects the same server, before it connects itself.
/// The program may hold the other task's future without polling it.
const TURN: Duration = Duration::from_secs(5);

/// Whether a request is sent again if its connection is lost before the reply. A request that was
/// not sent, and one that the server was not ready for, is tried again in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resend {
    /// Fail: the request must not arrive twice.
    Never,
    /// Send it again: repeating it changes nothing.
    Repeat,
    /// Send it again until the deadline. The client does not know whether the change was made, but
    /// the server recognises the request by its id.
    UntilDeadline,
}

/// Why a request was not answered, if it may be tried again.
#[derive(Clone, Copy)]
struct Setback {
    /// The server has answered that it, or another one, is not ready. It did nothing, or it is the
    /// manager, which knows the request again by its id.
    busy: bool,
    /// The connection was lost.
    lost: bool,
    /// The request may have arrived.
    unknown: bool,
}

impl Setback {
    fn of(failure: &Failure, sent: bool) -> Option<Setback> {
        let kind = failure.source.as_ref().map(|error| error.kind());
        let busy = kind.is_none() && matches!(failure.code, ErrorCode::Busy | ErrorCode::Unreachable);
        // A server that refuses what was sent has closed an idle connection, and has done nothing.
        let refused = kind == Some(ErrorKind::Refused);
        let lost = kind == Some(ErrorKind::PeerLost) || refused && sent;
        let setback = Setback { busy, lost, unknown: sent && !busy && !refused };
        let waits = matches!(kind, Some(ErrorKind::Refused | ErrorKind::Cancelled));
        (busy || lost || waits).then_some(setback)
    }

    /// Returns true if the request may be sent again, given that it may have arrived.
    fn may_repeat(self, resend: Resend, data: &Body) -> bool {
        !self.unknown || (resend != Resend::Never && !may_still_be_written(data))
    }
}

/// The troubles of a request that is tried again.
struct Trouble {
    /// When the first of them was.
    since: Time,
    /// The request may have arrived, and its reply was lost.
    unknown: bool,
    pause: Duration,
    /// The user was told about it.
    told: bool,
    /// The last of them.
    last: Failure,
}

/// A function that is told which server is waited for, how long in all, and why.
pub(crate) type Waiting = Box<dyn Fn(&ServerName, Duration, &str) + Send + Sync>;

/// A request and the data that belongs to it.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) body: RequestBody,
    pub(crate) data: Body,
    /// The path for the data. `None` leaves it to the endpoint's policy.
    pub(crate) path: Option<Path>,
    /// How the request's list of memory is moved.
    pub(crate) lists: Lists,
}

impl Outgoing {
    pub(crate) fn plain(body: impl Into<RequestBody>) -> Outgoing {
        Outgoing { body: body.into(), data: Body::None, path: None, lists: Lists::Auto }
    }
}

/// A server's reply, with the result of the data transfer.
pub(crate) struct Answer {
    pub(crate) body: ReplyBody,
    /// Bytes of data that the server moved for a read.
    pub(crate) data: u64,
}

/// All of a client's connections.
pub(crate) struct Connections<S: Threading> {
    endpoints: Endpoints<S>,
    preference: Preference,
    numbers: Locked<Numbers>,
    servers: Locked<Servers<S>>,
    resent: AtomicU64,
    manager: ServerName,
    /// How long a server that cannot be reached is waited for.
    retry_for: Duration,
    waiting: Waiting,
}

/// The numbers of requests. A request says below which number the client has all replies, and the
/// manager forgets the replies to these. So a number is drawn and entered in one step: no request
/// can name a limit above the number of a change that is about to be sent.
struct Numbers {
    next: u64,
    /// The changes whose reply has not arrived.
    unanswered: BTreeSet<u64>,
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
            numbers: Locked::new(Numbers { next: 1, unanswered: BTreeSet::new() }),
            servers: Locked::new(Servers::of(cluster)),
            resent: AtomicU64::new(0),
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

    /// Returns the I/O servers.
    pub(crate) fn iods(&self) -> Arc<Vec<ServerName>> {
        self.servers.with(|servers| servers.iods())
    }

    /// Returns the numbers of the I/O servers that could not be reached lately.
    pub(crate) fn avoided(&self) -> Vec<u32> {
        let now = self.endpoint().now();
        self.servers.with(|servers| servers.avoided(now))
    }

    /// Asks the manager for the I/O servers and their stores.
    pub(crate) async fn learn_cluster(&self, deadline: Time) -> Result<(), Failure> {
        let number = self.servers.with(|servers| servers.ask());
        let mut iods = Vec::new();
        let mut stores = Vec::new();
        loop {
            let first = u32::try_from(iods.len()).unwrap_or(u32::MAX);
            let request = Outgoing::plain(ManagerRequest::Cluster { first });
            let reply = self.call(&self.manager, deadline, Resend::Repeat, &request).await?.body;
            let ReplyBody::Manager(ManagerReply::Cluster(info)) = reply else {
                return Err(unexpected(&self.manager, &reply));
            };
            let news = info.iods.len();
            if iods.len() + news > MAX_SERVERS {
                let text = format!("more than {MAX_SERVERS} I/O servers");
                return Err(Failure::at(self.manager.clone(), ErrorCode::Protocol, text));
            }
            for iod in info.iods {
                let number = u32::try_from(iods.len()).unwrap_or(u32::MAX);
                stores.push((iod.addr.clone(), iod.store));
                iods.push(ServerName { addr: iod.addr, iod: Some(number) });
            }
            if news == 0 || iods.len() >= info.total as usize {
                break;
            }
        }
        self.servers.with(|servers| servers.learn(number, iods, stores));
        Ok(())
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
        let hello = self.servers.with(|servers| servers.hello(server));
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
    fn note_used(&self, addr: &Addr, by: &Peer<S>) {
        let now = self.endpoint().now();
        self.servers.with(|servers| servers.note_used(addr, by, now));
    }

    /// Sends a request to a server and returns the reply. Tries again as `resend` allows.
    pub(crate) async fn call(
        &self,
        server: &ServerName,
        deadline: Time,
        resend: Resend,
        outgoing: &Outgoing,
    ) -> Result<Answer, Failure> {
        let ticket = Ticket::new(self, resend == Resend::UntilDeadline);
        let (mut trouble, mut asked) = (None::<Trouble>, false);
        loop {
            let again = trouble.is_some();
            let seq = if again && mutated("client/sent-again-under-a-new-number") {
                self.numbers.with(|numbers| numbers.draw(false))
            } else {
                ticket.seq
            };
            let mut sent = false;
            let failure = match self.attempt(server, deadline, seq, outgoing, &mut sent).await.and_then(|reply| {
                self.servers.with(|servers| servers.answered(&server.addr));
                interpret(server, reply)
            }) {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            if failure.code == ErrorCode::WrongServer && server.iod.is_some() && !asked && !sent {
                // The store may have been replaced.
                asked = true;
                let before = self.servers.with(|servers| servers.hello(server).store);
                Box::pin(self.learn_cluster(deadline)).await?;
                if self.servers.with(|servers| servers.hello(server).store) != before {
                    continue;
                }
            }
            let setback = Setback::of(&failure, sent).filter(|setback| setback.may_repeat(resend, &outgoing.data));
            let again = match setback {
                Some(setback) => self.try_again(server, deadline, resend, setback, &failure, &mut trouble).await,
                None => false,
            };
            if !again {
                // What kept the server from answering says more than that the time is over.
                let earlier = trouble.filter(|_| failure.code == ErrorCode::Timeout && !sent);
                return Err(earlier.map_or(failure, |trouble| trouble.last));
            }
            self.resent.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until a request may be tried again. Returns false if it may not.
    async fn try_again(
        &self,
        server: &ServerName,
        deadline: Time,
        resend: Resend,
        setback: Setback,
        failure: &Failure,
        trouble: &mut Option<Trouble>,
    ) -> bool {
        let now = self.endpoint().now();
        let first = trouble.is_none();
        let fresh = || Trouble { since: now, unknown: false, pause: FIRST_PAUSE, told: false, last: failure.clone() };
        let trouble = trouble.get_or_insert_with(fresh);
        trouble.last = failure.clone();
        trouble.unknown |= setback.unknown;
        if first && setback.lost {
            // A connection that was not used for a while may be dead. The next one is made at once.
            return true;
        }
        let resolves = trouble.unknown && resend == Resend::UntilDeadline;
        if !resolves && !setback.busy && self.servers.with(|servers| servers.is_given_up(&server.addr)) {
            return false;
        }
        let until = if resolves { deadline } else { deadline.min(trouble.since + self.retry_for) };
        if now + trouble.pause >= until {
            if !setback.busy {
                self.servers.with(|servers| servers.give_up(&server.addr));
            }
            return false;
        }
        let is_due = now.since(trouble.since) >= NOTICE && !trouble.told;
        // A server that is busy has answered, and is told about once for each request.
        if is_due && self.servers.with(|servers| servers.await_server(&server.addr)) {
            trouble.told = true;
            (self.waiting)(server, until.since(trouble.since), &failure.detail);
        }
        tracing::debug!(%server, failure.detail, "trying again");
        self.endpoint().sleep(trouble.pause).await;
        trouble.pause = (trouble.pause * 2).min(LONGEST_PAUSE);
        true
    }

    async fn attempt(
        &self,
        server: &ServerName,
        deadline: Time,
        seq: u64,
        outgoing: &Outgoing,
        sent: &mut bool,
    ) -> Result<Reply, Failure> {
        let peer = self.peer(server, deadline).await?;
        let result = self.exchange(server, &peer, deadline, seq, outgoing, sent).await;
        if matches!(&result, Err(error) if matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Refused)) {
            // The adapter may know of the loss before the endpoint does. Make sure that the next
            // attempt uses a new connection.
            self.servers.with(|servers| servers.lost(&server.addr, &peer));
        }
        result.map_err(|error| Failure::transport(server.clone(), error))
    }

    async fn exchange(
        &self,
        server: &ServerName,
        peer: &Peer<S>,
        deadline: Time,
        seq: u64,
        outgoing: &Outgoing,
        sent: &mut bool,
    ) -> Result<Reply, bmi::Error> {
        let left = deadline.since(peer.endpoint().now()).as_millis().max(1);
        let request = codec::encode_request(&Request {
            id: RequestId { client: self.preference.client, seq },
            unanswered: self.numbers.with(|numbers| numbers.unanswered.first().copied()).unwrap_or(seq),
            timeout_ms: u32::try_from(left).unwrap_or(u32::MAX),
            body: outgoing.body.clone(),
        });
        let options = Options::by(deadline).lists(outgoing.lists).path(outgoing.path);
        let call = peer.call(&request, outgoing.data.clone(), options)?;
        *sent = true;
        self.note_used(&server.addr, peer);
        let reply = call.reply().await?;
        self.note_used(&server.addr, peer);
        Ok(reply)
    }
}

/// Returns true if a lost server's kernel may still write into the memory of a read. A second read
/// into it could be overwritten after its reply.
fn may_still_be_written(data: &Body) -> bool {
    matches!(data, Body::In(memory) if memory.pieces().iter().any(|piece| piece.memory().is_retired()))
}

fn interpret(server: &ServerName, reply: Reply) -> Result<Answer, Failure> {
    let decoded = codec::decode_reply(&reply.bytes)
        .map_err(|error| Failure::at(server.clone(), ErrorCode::Protocol, error.to_string()))?;
    match decoded.result {
        Ok(body) => Ok(Answer { body, data: reply.data }),
        Err(FsError { code, detail, ranges, .. }) => {
            let mut failure = Failure::at(server.clone(), code, detail);
            failure.physical = ranges;
            Err(failure)
        }
    }
}

/// The sequence number of a request. The number of a change is in the set of unanswered requests
/// until its reply arrives. Other requests are not in the set, because the manager keeps only the
/// replies to changes. A slow read or write must not make the manager keep all later replies.
struct Ticket<'a, S: Threading> {
    connections: &'a Connections<S>,
    seq: u64,
}

impl Numbers {
    /// Returns a number that no earlier request had.
    fn draw(&mut self, change: bool) -> u64 {
        let seq = self.next;
        self.next += 1;
        if change {
            self.unanswered.insert(seq);
        }
        seq
    }
}

impl<'a, S: Threading> Ticket<'a, S> {
    fn new(connections: &'a Connections<S>, change: bool) -> Ticket<'a, S> {
        let seq = connections.numbers.with(|numbers| numbers.draw(change));
        Ticket { connections, seq }
    }
}

impl<S: Threading> Drop for Ticket<'_, S> {
    /// Also runs when the caller drops its future: the request will not be sent again.
    fn drop(&mut self) {
        self.connections.numbers.with(|numbers| numbers.unanswered.remove(&self.seq));
    }
}

/// Returns the failure for a reply of a kind that does not match the request.
pub(crate) fn unexpected(server: &ServerName, reply: &ReplyBody) -> Failure {
    let text = match reply {
        ReplyBody::Manager(_) => "a manager's reply that does not fit the request",
        ReplyBody::Iod(_) => "an I/O server's reply that does not fit the request",
        ReplyBody::Identity(_) => "an answer to a Hello that was not sent",
    };
    Failure::at(server.clone(), ErrorCode::Protocol, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write that crossed the eviction of its idle connection failed.
    #[test]
    fn a_write_is_sent_again_if_the_server_says_that_it_has_done_nothing() {
        let server = ServerName { addr: Addr::tcp("10.0.0.3", 7001), iod: Some(1) };
        for (kind, again) in [(ErrorKind::Refused, true), (ErrorKind::PeerLost, false)] {
            let failure = Failure::transport(server.clone(), bmi::Error::new(kind, ""));
            let setback = Setback::of(&failure, true).expect("such a request may be tried again");
            assert!(setback.lost && setback.may_repeat(Resend::Never, &Body::None) == again, "{kind:?}");
        }
    }
}
