//! Sends requests to servers and returns their replies. Connections are made when they are needed,
//! and made again after a loss.
//!
//! **Why.** A caller should not have to manage connections, tags and buffers, or handle a server's
//! restart. It passes a request and gets a reply within the deadline, or a failure that names the
//! server.
//!
//! **Invariants**
//! 1. There is at most one connection to a server, over the transport that [`crate::route`] chose.
//!    If requests need a connection while it is being made, they wait for the same attempt.
//! 2. A request that changes the namespace keeps its id when it is sent again, so the manager
//!    executes it once.
//! 3. A write is never sent twice. The first one might still be on its way to the disk and
//!    overwrite what is written there next.
//! 4. Every wait has a deadline.
//! 5. Every connection begins with a Hello that names the expected server: the cluster of the first
//!    manager that answered, or the one that was asked for; the store that the manager names; and
//!    the newest start that this client has seen.
//!
//! **Protocol.** See [`fs_proto`]: each request is a call of [`bmi_core::comm`].

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use bmi_core::comm::{Body, Caller, Path, Reply};
use bmi_core::mutated;
use bmi_core::{Addr, AsyncEndpoint, ErrorKind, Lists, Options, PeerId, Time, Transport};
use fs_proto::limits::MAX_SERVERS;
use fs_proto::{
    ClusterId, ErrorCode, FsError, Hello, ManagerReply, ManagerRequest, ReplyBody, Request, RequestBody, RequestId,
    Role, Sender, Start, StoreId, codec,
};
use futures_util::future::{Either, FutureExt, LocalBoxFuture, Shared, select};

use crate::error::{Failure, ServerName};
use crate::route::{Endpoints, Preference, Route, Via, reach};

/// First pause before retrying a server that was lost. It is doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

/// After this long, a caller is told that a server is waited for.
const NOTICE: Duration = Duration::from_secs(1);

/// After this long without a request, a connection is looked at before it is used. The server may
/// have closed it, because it was idle and others needed the place.
const FRESH: Duration = Duration::from_secs(1);
/// Polls of such a look. Adapters read what is left of a connection before they report its end.
const LOOKS: usize = 4;

/// How long a client avoids an I/O server for new files after it could not reach it.
const AVOIDED: Duration = Duration::from_secs(30);

type Connecting = Shared<LocalBoxFuture<'static, Result<Connected, Failure>>>;

/// A new connection.
#[derive(Clone)]
struct Connected {
    via: Via,
    route: Rc<Route>,
    cluster: ClusterId,
    store: StoreId,
    start: Start,
}

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
    /// The server has answered that it did nothing, because it, or another one, is not ready.
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
        let lost = kind == Some(ErrorKind::PeerLost);
        let setback = Setback { busy, lost, unknown: sent && !busy };
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
    /// The last of them.
    last: Failure,
}

/// A function that is told which server is waited for, how long in all, and why.
pub(crate) type Waiting = Box<dyn Fn(&ServerName, Duration, &str)>;

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

enum Peer {
    Connecting(u64, Connecting),
    /// `used` is the time of the last request or reply.
    Connected {
        via: Via,
        route: Rc<Route>,
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

/// All of a client's connections.
pub(crate) struct Connections<T: Transport> {
    endpoints: Rc<Endpoints<T>>,
    preference: Rc<Preference>,
    next_seq: Cell<u64>,
    next_attempt: Cell<u64>,
    unanswered: RefCell<BTreeSet<u64>>,
    peers: RefCell<BTreeMap<Addr, Peer>>,
    /// One caller for each of the endpoints.
    callers: Vec<Caller<T>>,
    resent: Cell<u64>,
    cluster: Cell<Option<ClusterId>>,
    manager: ServerName,
    iods: RefCell<Vec<ServerName>>,
    expected: RefCell<BTreeMap<Addr, Expected>>,
    /// When an I/O server could not be reached.
    unreachable: RefCell<BTreeMap<u32, Time>>,
    /// How long a server that cannot be reached is waited for.
    retry_for: Duration,
    waiting: Waiting,
    /// Servers that `waiting` was called for, and that have not answered since.
    awaited: RefCell<BTreeSet<Addr>>,
    /// Servers that were waited for in vain, and that have not answered since. They are not waited
    /// for again: else each of many requests would wait as long.
    given_up: RefCell<BTreeSet<Addr>>,
}

impl<T: Transport + 'static> Connections<T> {
    pub(crate) fn new(
        endpoints: Endpoints<T>,
        preference: Preference,
        manager: ServerName,
        cluster: Option<ClusterId>,
        retry_for: Duration,
        waiting: Waiting,
    ) -> Connections<T> {
        Connections {
            callers: endpoints.endpoints().map(|endpoint| Caller::new(endpoint.clone())).collect(),
            endpoints: Rc::new(endpoints),
            preference: Rc::new(preference),
            next_seq: Cell::new(1),
            next_attempt: Cell::new(0),
            unanswered: RefCell::default(),
            peers: RefCell::default(),
            resent: Cell::new(0),
            cluster: Cell::new(cluster),
            manager,
            iods: RefCell::default(),
            expected: RefCell::default(),
            unreachable: RefCell::default(),
            retry_for,
            waiting,
            awaited: RefCell::default(),
            given_up: RefCell::default(),
        }
    }

    /// Returns the cluster, once it is known.
    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        self.cluster.get()
    }

    /// Returns the manager.
    pub(crate) fn manager(&self) -> &ServerName {
        &self.manager
    }

    /// Returns the I/O servers.
    pub(crate) fn iods(&self) -> std::cell::Ref<'_, Vec<ServerName>> {
        self.iods.borrow()
    }

    /// Returns the numbers of the I/O servers that could not be reached lately.
    pub(crate) fn avoided(&self) -> Vec<u32> {
        let now = self.endpoint().now();
        let recent = |(iod, at): (&u32, &Time)| (now.since(*at) < AVOIDED).then_some(*iod);
        self.unreachable.borrow().iter().filter_map(recent).collect()
    }

    /// Asks the manager for the I/O servers and their stores.
    pub(crate) async fn learn_cluster(&self, deadline: Time) -> Result<(), Failure> {
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
        let mut expected = self.expected.borrow_mut();
        for (addr, store) in stores {
            let known = expected.entry(addr).or_default();
            if known.store != store {
                // A start of another store says nothing about this one.
                *known = Expected { store, seen: None };
            }
        }
        *self.iods.borrow_mut() = iods;
        Ok(())
    }

    /// Returns the Hello to a server.
    fn hello(&self, server: &ServerName) -> Hello {
        let Expected { store, seen } = self.expected.borrow().get(&server.addr).copied().unwrap_or_default();
        let role = server.iod.map_or(Role::Manager, Role::Iod);
        Hello { cluster: self.cluster.get(), role, store, seen, sender: Sender::Client }
    }

    /// Returns the first endpoint. All endpoints share its clock.
    pub(crate) fn endpoint(&self) -> &AsyncEndpoint<T> {
        self.endpoints.at(0)
    }

    /// Returns all endpoints.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = &AsyncEndpoint<T>> {
        self.endpoints.endpoints()
    }

    /// Returns true if data is best allocated in memory that can be shared with another process.
    pub(crate) fn shares_memory(&self) -> bool {
        self.endpoints.shares_memory()
    }

    /// Returns the endpoint through which a server was reached.
    fn through(&self, via: Via) -> &AsyncEndpoint<T> {
        self.endpoints.at(via.endpoint_index)
    }

    /// Returns the route to a server, or `None` while it is not connected.
    pub(crate) fn route(&self, addr: &Addr) -> Option<Rc<Route>> {
        match self.peers.borrow().get(addr) {
            Some(Peer::Connected { route, .. }) => Some(route.clone()),
            _ => None,
        }
    }

    /// Returns the number of requests that were sent again.
    pub(crate) fn resent(&self) -> u64 {
        self.resent.get()
    }

    /// Returns the endpoint through which a server is reached and the server's peer id there, or
    /// `None` while it is not connected.
    pub(crate) fn connected(&self, addr: &Addr) -> Option<(&AsyncEndpoint<T>, PeerId)> {
        match self.peers.borrow().get(addr) {
            Some(Peer::Connected { via, .. }) => {
                let endpoint = self.through(*via);
                endpoint.limits(via.peer).map(|_| (endpoint, via.peer))
            }
            _ => None,
        }
    }

    /// Returns how many bytes a request to a server may have, including the description of its
    /// memory. Returns `None` while the server is not connected.
    pub(crate) fn room(&self, addr: &Addr) -> Option<usize> {
        match self.peers.borrow().get(addr) {
            Some(Peer::Connected { via, .. }) => {
                Some(self.callers[via.endpoint_index].room(via.peer)).filter(|room| *room > 0)
            }
            _ => None,
        }
    }

    /// Learns whether the server has closed a connection that was not used for a while. A client
    /// that was not driven meanwhile does not know.
    async fn look_at_idle(&self, addr: &Addr) {
        let now = self.endpoint().now();
        let idle = match self.peers.borrow().get(addr) {
            Some(Peer::Connected { via, used, .. }) if now.since(*used) >= FRESH => *via,
            _ => return,
        };
        // Each timer ends with a poll, after that poll has taken what the adapter reports.
        for _ in 0..LOOKS {
            self.through(idle).sleep(Duration::ZERO).await;
        }
    }

    /// Returns the connection to a server. Connects first if necessary.
    pub(crate) async fn peer(&self, server: &ServerName, deadline: Time) -> Result<Via, Failure> {
        let addr = &server.addr;
        self.look_at_idle(addr).await;
        let (attempt, connecting) = match self.peers.borrow().get(addr) {
            Some(Peer::Connected { via, .. }) if self.through(*via).limits(via.peer).is_some() => return Ok(*via),
            Some(Peer::Connecting(attempt, connecting)) => (*attempt, Some(connecting.clone())),
            _ => (self.next_attempt.get(), None),
        };
        let connecting = connecting.unwrap_or_else(|| self.start_connecting(server, attempt));
        let late = std::pin::pin!(self.endpoint().sleep_until(deadline));
        let result = match select(connecting, late).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => {
                self.note_reached(server, false);
                let late = bmi_core::Error::new(ErrorKind::TimedOut, "no connection within the time limit");
                return Err(Failure::transport(server.clone(), late.during("connect").with_peer(addr)));
            }
        };
        // The first of the tasks that waited for this attempt records its result.
        let mut peers = self.peers.borrow_mut();
        if matches!(peers.get(addr), Some(Peer::Connecting(current, _)) if *current == attempt) {
            self.note_reached(server, result.is_ok());
            match &result {
                Ok(Connected { via, route, cluster, store, start }) => {
                    self.cluster.set(Some(*cluster));
                    let known = Expected { store: Some(*store), seen: Some(*start) };
                    self.expected.borrow_mut().insert(addr.clone(), known);
                    peers.insert(addr.clone(), self.new_peer(*via, route))
                }
                Err(_) => peers.remove(addr),
            };
        }
        result.map(|connected| connected.via)
    }

    fn new_peer(&self, via: Via, route: &Rc<Route>) -> Peer {
        Peer::Connected { via, route: route.clone(), used: self.endpoint().now() }
    }

    /// Records that a request or a reply has gone over a connection.
    fn note_used(&self, addr: &Addr, by: Via) {
        if let Some(Peer::Connected { via, used, .. }) = self.peers.borrow_mut().get_mut(addr)
            && *via == by
        {
            *used = self.endpoint().now();
        }
    }

    /// Records whether a server could be reached.
    fn note_reached(&self, server: &ServerName, reached: bool) {
        let Some(iod) = server.iod else { return };
        if reached {
            self.unreachable.borrow_mut().remove(&iod);
        } else {
            self.unreachable.borrow_mut().insert(iod, self.endpoint().now());
        }
    }

    fn start_connecting(&self, server: &ServerName, attempt: u64) -> Connecting {
        self.next_attempt.set(attempt + 1);
        let (endpoints, preference, target) = (self.endpoints.clone(), self.preference.clone(), server.clone());
        let hello = self.hello(server);
        let connect = async move {
            let (via, route, identity) = reach(&endpoints, &preference, &target, &hello).await?;
            tracing::debug!(%route, "connected");
            let fs_proto::Identity { cluster, store, start, .. } = identity;
            Ok(Connected { via, route: Rc::new(route), cluster, store, start })
        };
        let connecting = connect.boxed_local().shared();
        self.peers.borrow_mut().insert(server.addr.clone(), Peer::Connecting(attempt, connecting.clone()));
        connecting
    }

    /// Sends a request to a server and returns the reply. Tries again as `resend` allows.
    pub(crate) async fn call(
        &self,
        server: &ServerName,
        deadline: Time,
        resend: Resend,
        outgoing: &Outgoing,
    ) -> Result<Answer, Failure> {
        let mut ticket = Ticket::new(self, resend == Resend::UntilDeadline);
        let (mut trouble, mut asked) = (None::<Trouble>, false);
        loop {
            let again = trouble.is_some();
            let seq =
                if again && mutated("client/sent-again-under-a-new-number") { self.next_number() } else { ticket.seq };
            let mut sent = false;
            let failure = match self.attempt(server, deadline, seq, outgoing, &mut sent).await.and_then(|reply| {
                self.awaited.borrow_mut().remove(&server.addr);
                self.given_up.borrow_mut().remove(&server.addr);
                interpret(server, reply)
            }) {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            if failure.code == ErrorCode::WrongServer && server.iod.is_some() && !asked && !sent {
                // The store may have been replaced.
                asked = true;
                let before = self.hello(server).store;
                Box::pin(self.learn_cluster(deadline)).await?;
                if self.hello(server).store != before {
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
            if failure.source.is_none() {
                // This number has its answer.
                ticket = Ticket::new(self, resend == Resend::UntilDeadline);
            }
            self.resent.set(self.resent.get() + 1);
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
        let fresh = || Trouble { since: now, unknown: false, pause: FIRST_PAUSE, last: failure.clone() };
        let trouble = trouble.get_or_insert_with(fresh);
        trouble.last = failure.clone();
        trouble.unknown |= setback.unknown;
        if first && setback.lost {
            // A connection that was not used for a while may be dead. The next one is made at once.
            return true;
        }
        let resolves = trouble.unknown && resend == Resend::UntilDeadline;
        if !resolves && !setback.busy && self.given_up.borrow().contains(&server.addr) {
            return false;
        }
        let until = if resolves { deadline } else { deadline.min(trouble.since + self.retry_for) };
        if now + trouble.pause >= until {
            if !setback.busy {
                self.given_up.borrow_mut().insert(server.addr.clone());
            }
            return false;
        }
        if now.since(trouble.since) >= NOTICE && self.awaited.borrow_mut().insert(server.addr.clone()) {
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
        let via = self.peer(server, deadline).await?;
        let result = self.exchange(server, via, deadline, seq, outgoing, sent).await;
        if matches!(&result, Err(error) if error.kind() == ErrorKind::PeerLost) {
            // The adapter may know of the loss before the endpoint does. Make sure that the next
            // attempt uses a new connection.
            let mut peers = self.peers.borrow_mut();
            if matches!(peers.get(&server.addr), Some(Peer::Connected { via: current, .. }) if *current == via) {
                peers.remove(&server.addr);
            }
        }
        result.map_err(|error| Failure::transport(server.clone(), error))
    }

    async fn exchange(
        &self,
        server: &ServerName,
        via: Via,
        deadline: Time,
        seq: u64,
        outgoing: &Outgoing,
        sent: &mut bool,
    ) -> Result<Reply, bmi_core::Error> {
        let left = deadline.since(self.through(via).now()).as_millis().max(1);
        let request = codec::encode_request(&Request {
            id: RequestId { client: self.preference.client, seq },
            unanswered: self.unanswered.borrow().first().copied().unwrap_or(seq),
            timeout_ms: u32::try_from(left).unwrap_or(u32::MAX),
            body: outgoing.body.clone(),
        });
        let options = Options::by(deadline).lists(outgoing.lists);
        let caller = &self.callers[via.endpoint_index];
        let call = caller.call(via.peer, &request, outgoing.data.clone(), outgoing.path, options)?;
        *sent = true;
        self.note_used(&server.addr, via);
        let reply = call.reply().await?;
        self.note_used(&server.addr, via);
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
struct Ticket<'a, T: Transport> {
    connections: &'a Connections<T>,
    seq: u64,
}

impl<T: Transport> Connections<T> {
    /// Returns a number that no earlier request had.
    fn next_number(&self) -> u64 {
        self.next_seq.replace(self.next_seq.get() + 1)
    }
}

impl<'a, T: Transport> Ticket<'a, T> {
    fn new(connections: &'a Connections<T>, change: bool) -> Ticket<'a, T> {
        let seq = connections.next_number();
        if change {
            connections.unanswered.borrow_mut().insert(seq);
        }
        Ticket { connections, seq }
    }
}

impl<T: Transport> Drop for Ticket<'_, T> {
    /// Also runs when the caller drops its future: the request will not be sent again.
    fn drop(&mut self) {
        self.connections.unanswered.borrow_mut().remove(&self.seq);
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
