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
//!
//! **Protocol.** See [`fs_proto`]: each request is a call of [`bmi_core::comm`], whose tag is the
//! request's sequence number.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use bmi_core::comm::{Body, Caller, Path, Reply};
use bmi_core::mutated;
use bmi_core::{Addr, AsyncEndpoint, ErrorKind, Lists, Options, PeerId, Time, Transport};
use fs_proto::{ErrorCode, FsError, ReplyBody, Request, RequestBody, RequestId, codec};
use futures_util::future::{Either, FutureExt, LocalBoxFuture, Shared, select};

use crate::error::{Failure, ServerName};
use crate::route::{Endpoints, Preference, Route, Via, leave, reach};

/// Most late replies on one connection: replies that no caller waits for any more. Each one stays
/// queued until the connection ends, and holds the credits that the server sent it with. So the
/// connection is ended before the credits run out.
const MOST_LATE: u32 = 32;
/// First pause before retrying a server that was lost. It is doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

type Connecting = Shared<LocalBoxFuture<'static, Result<(Via, Rc<Route>), bmi_core::Error>>>;

/// How to proceed when the connection is lost before the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resend {
    /// Fail: the request must not arrive twice.
    Never,
    /// Reconnect and repeat once: repeating the request changes nothing.
    Once,
    /// Retry until the deadline. The client does not know whether the change was made, but the
    /// server recognises the request by its id.
    UntilDeadline,
}

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
    /// Bytes of data that came with the reply.
    pub(crate) carried: u64,
    /// The path that the data took.
    pub(crate) path: Option<Path>,
}

enum Peer {
    Connecting(u64, Connecting),
    Connected { via: Via, route: Rc<Route>, late: u32 },
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
}

impl<T: Transport + 'static> Connections<T> {
    pub(crate) fn new(endpoints: Endpoints<T>, preference: Preference) -> Connections<T> {
        Connections {
            callers: endpoints.endpoints().map(|endpoint| Caller::new(endpoint.clone())).collect(),
            endpoints: Rc::new(endpoints),
            preference: Rc::new(preference),
            next_seq: Cell::new(1),
            next_attempt: Cell::new(0),
            unanswered: RefCell::default(),
            peers: RefCell::default(),
            resent: Cell::new(0),
        }
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

    /// Returns the connection to a server. Connects first if necessary.
    pub(crate) async fn peer(&self, server: &ServerName, deadline: Time) -> Result<Via, bmi_core::Error> {
        let addr = &server.addr;
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
                let late = bmi_core::Error::new(ErrorKind::TimedOut, "no connection within the time limit");
                return Err(late.during("connect").with_peer(addr));
            }
        };
        // The first of the tasks that waited for this attempt records its result.
        let mut peers = self.peers.borrow_mut();
        if matches!(peers.get(addr), Some(Peer::Connecting(current, _)) if *current == attempt) {
            match &result {
                Ok((via, route)) => {
                    peers.insert(addr.clone(), Peer::Connected { via: *via, route: route.clone(), late: 0 })
                }
                Err(_) => peers.remove(addr),
            };
        }
        result.map(|(via, _)| via)
    }

    fn start_connecting(&self, server: &ServerName, attempt: u64) -> Connecting {
        self.next_attempt.set(attempt + 1);
        let (endpoints, preference, target) = (self.endpoints.clone(), self.preference.clone(), server.clone());
        let connect = async move {
            let (via, route) = reach(&endpoints, &preference, &target).await?;
            tracing::debug!(%route, "connected");
            Ok((via, Rc::new(route)))
        };
        let connecting = connect.boxed_local().shared();
        self.peers.borrow_mut().insert(server.addr.clone(), Peer::Connecting(attempt, connecting.clone()));
        connecting
    }

    /// Sends a request to a server and returns the reply. Sends it again as `resend` allows.
    pub(crate) async fn call(
        &self,
        server: &ServerName,
        deadline: Time,
        resend: Resend,
        outgoing: &Outgoing,
    ) -> Result<Answer, Failure> {
        let ticket = Ticket::new(self, resend == Resend::UntilDeadline);
        let mut pause = FIRST_PAUSE;
        let mut lost = false;
        loop {
            let mut sent = false;
            let seq =
                if lost && mutated("client/sent-again-under-a-new-number") { self.next_number() } else { ticket.seq };
            let error = match self.attempt(server, deadline, seq, outgoing, &mut sent).await {
                Ok(reply) => return interpret(server, reply),
                Err(error) => error,
            };
            let gone = error.kind() == ErrorKind::PeerLost || (lost && error.kind() == ErrorKind::Refused);
            let again = match resend {
                // The connection was found dead before anything was sent, so the request is sent
                // for the first time.
                Resend::Never => gone && !lost && !sent,
                Resend::Once => gone && !lost,
                Resend::UntilDeadline => gone && self.endpoint().now() + pause < deadline,
            };
            if !again {
                return Err(Failure::transport(server.clone(), error));
            }
            tracing::debug!(%server, %error, "sending again");
            if lost {
                self.endpoint().sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            lost = true;
            self.resent.set(self.resent.get() + 1);
        }
    }

    async fn attempt(
        &self,
        server: &ServerName,
        deadline: Time,
        seq: u64,
        outgoing: &Outgoing,
        sent: &mut bool,
    ) -> Result<Reply, bmi_core::Error> {
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
        result
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
        let call = caller.call(via.peer, seq, &request, outgoing.data.clone(), outgoing.path, options)?;
        *sent = true;
        let mut awaited = Awaited { connections: self, addr: &server.addr, via, here: false };
        let reply = call.reply().await?;
        awaited.here = true;
        Ok(reply)
    }
}

/// A reply that is being waited for. The wait may end without it, because of the deadline or
/// because the future was dropped. The reply may then still arrive.
struct Awaited<'a, T: Transport> {
    connections: &'a Connections<T>,
    addr: &'a Addr,
    via: Via,
    here: bool,
}

impl<T: Transport> Drop for Awaited<'_, T> {
    fn drop(&mut self) {
        if self.here {
            return;
        }
        let mut peers = self.connections.peers.borrow_mut();
        let Some(Peer::Connected { via, late, .. }) = peers.get_mut(self.addr) else { return };
        if *via != self.via {
            return;
        }
        *late += 1;
        if *late >= MOST_LATE {
            peers.remove(self.addr);
            leave(self.connections.endpoints.at(self.via.endpoint_index), self.via.peer);
        }
    }
}

fn interpret(server: &ServerName, reply: Reply) -> Result<Answer, Failure> {
    let decoded = codec::decode_reply(&reply.bytes)
        .map_err(|error| Failure::at(server.clone(), ErrorCode::Protocol, error.to_string()))?;
    match decoded.result {
        Ok(body) => Ok(Answer { body, carried: reply.carried, path: reply.choice.map(|choice| choice.path) }),
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
        ReplyBody::Identity(_) => "an answer to a question that was not asked",
    };
    Failure::at(server.clone(), ErrorCode::Protocol, text)
}
