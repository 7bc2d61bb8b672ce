//! Requests to servers and their replies: connections by server, made when needed and again when lost.
//!
//! **Why.** Whoever asks a server something should not have to think about connections, tags, buffers or what to do when the server has been
//! restarted meanwhile. Here a request goes in and a reply or a failure that names the server comes out, within the deadline.
//!
//! **Invariants**
//! 1. At most one connection to a server, over the transport that [`crate::route`] chose; requests that need it while it is being made wait for the same
//!    attempt.
//! 2. A receive is posted before the request that provokes its message is sent.
//! 3. A request that changes the namespace keeps its id when it is sent again, so the manager executes it once.
//! 4. A write is never sent again: the first one might still be on its way to the disk, and overtake what is written there next.
//! 5. Every wait has a deadline.
//!
//! **Protocol.** See [`fs_proto`]; the tag is the request's sequence number.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use bmi_core::{Access, Addr, AsyncEndpoint, ErrorKind, Exposure, MemList, Memory, Options, Time, Transport};
use fs_proto::{ErrorCode, FsError, Reply, ReplyBody, Request, RequestBody, RequestId, codec};
use futures_util::future::{Either, FutureExt, LocalBoxFuture, Shared, select};

use crate::error::{Failure, ServerName};
use crate::route::{Outlets, Preference, Route, Via, leave, reach};

/// Reply buffers that are kept for the next requests.
const SPARE_BUFFERS: usize = 256;
/// Replies that may come when nobody waits for them any more, on one connection. Each lies about until the connection ends, and keeps
/// the credits that the server sent it with, so the connection is ended before they run out.
const MOST_LATE: u32 = 32;
/// First pause before a server that has gone away is tried again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

type Connecting = Shared<LocalBoxFuture<'static, Result<(Via, Rc<Route>), bmi_core::Error>>>;

/// What to do when the connection is lost before the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resend {
    /// Fail: the request must not arrive twice.
    Never,
    /// Connect again and repeat, once: nothing is changed by asking twice.
    Once,
    /// Try until the deadline: whether the change was made is not known, and the server can tell by the request's id.
    UntilDeadline,
}

/// A request as it goes out to one peer.
pub(crate) struct Outgoing {
    /// What is asked.
    pub(crate) body: RequestBody,
    /// Data that travels behind it.
    pub(crate) inline: Option<MemList>,
    /// Memory that the server may reach until the reply.
    pub(crate) exposure: Option<Exposure>,
}

impl Outgoing {
    pub(crate) fn plain(body: impl Into<RequestBody>) -> Outgoing {
        Outgoing { body: body.into(), inline: None, exposure: None }
    }
}

enum Peer {
    Connecting(u64, Connecting),
    Connected { via: Via, route: Rc<Route>, late: u32 },
}

/// All of a client's connections.
pub(crate) struct Connections<T: Transport> {
    outlets: Rc<Outlets<T>>,
    preference: Rc<Preference>,
    next_seq: Cell<u64>,
    next_attempt: Cell<u64>,
    unanswered: RefCell<BTreeSet<u64>>,
    peers: RefCell<BTreeMap<Addr, Peer>>,
    spare: RefCell<Vec<Memory>>,
    resent: Cell<u64>,
}

impl<T: Transport + 'static> Connections<T> {
    pub(crate) fn new(outlets: Outlets<T>, preference: Preference) -> Connections<T> {
        Connections {
            outlets: Rc::new(outlets),
            preference: Rc::new(preference),
            next_seq: Cell::new(1),
            next_attempt: Cell::new(0),
            unanswered: RefCell::default(),
            peers: RefCell::default(),
            spare: RefCell::default(),
            resent: Cell::new(0),
        }
    }

    /// The first endpoint; its clock is that of all.
    pub(crate) fn endpoint(&self) -> &AsyncEndpoint<T> {
        self.outlets.at(0)
    }

    /// All endpoints.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = &AsyncEndpoint<T>> {
        self.outlets.endpoints()
    }

    /// The endpoint through which a server was reached.
    fn through(&self, via: Via) -> &AsyncEndpoint<T> {
        self.outlets.at(via.outlet)
    }

    /// Lets a server reach a list of memory; see [`AsyncEndpoint::expose`].
    pub(crate) fn expose(&self, via: Via, list: MemList, access: Access) -> Result<Exposure, bmi_core::Error> {
        self.through(via).expose(via.peer, list, access)
    }

    /// The way to a server, while it is connected.
    pub(crate) fn route(&self, addr: &Addr) -> Option<Rc<Route>> {
        match self.peers.borrow().get(addr) {
            Some(Peer::Connected { route, .. }) => Some(route.clone()),
            _ => None,
        }
    }

    /// Requests that were sent again.
    pub(crate) fn resent(&self) -> u64 {
        self.resent.get()
    }

    /// The longest eager message to a server; `None` while it is not connected.
    pub(crate) fn eager(&self, addr: &Addr) -> Option<usize> {
        match self.peers.borrow().get(addr) {
            Some(Peer::Connected { via, .. }) => self.through(*via).limits(via.peer).map(|limits| limits.eager),
            _ => None,
        }
    }

    /// A server, connected if it is not yet.
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
        // The first of those who waited for this attempt writes down how it ended.
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
        let (outlets, preference, target) = (self.outlets.clone(), self.preference.clone(), server.clone());
        let connect = async move {
            let (via, route) = reach(&outlets, &preference, &target).await?;
            tracing::debug!(%route, "connected");
            Ok((via, Rc::new(route)))
        };
        let connecting = connect.boxed_local().shared();
        self.peers.borrow_mut().insert(server.addr.clone(), Peer::Connecting(attempt, connecting.clone()));
        connecting
    }

    /// Sends what `make` makes for the peer and returns the reply, with the data behind it. `make` is called again for each attempt: what a
    /// request says of the client's memory holds for one connection only.
    pub(crate) async fn call(
        &self,
        server: &ServerName,
        deadline: Time,
        resend: Resend,
        mut make: impl FnMut(Via) -> Result<Outgoing, bmi_core::Error>,
    ) -> Result<(ReplyBody, Vec<u8>), Failure> {
        let ticket = Ticket::new(self, resend == Resend::UntilDeadline);
        let mut pause = FIRST_PAUSE;
        let mut lost = false;
        loop {
            let mut sent = false;
            let error = match self.attempt(server, deadline, ticket.seq, &mut make, &mut sent).await {
                Ok(reply) => return interpret(server, reply),
                Err(error) => error,
            };
            let gone = error.kind() == ErrorKind::PeerLost || (lost && error.kind() == ErrorKind::Refused);
            let again = match resend {
                // The connection was found dead before anything went out: this is the first time that the request is sent.
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
        make: &mut impl FnMut(Via) -> Result<Outgoing, bmi_core::Error>,
        sent: &mut bool,
    ) -> Result<Vec<u8>, bmi_core::Error> {
        let via = self.peer(server, deadline).await?;
        let result = self.exchange(server, via, deadline, seq, make, sent).await;
        if matches!(&result, Err(error) if error.kind() == ErrorKind::PeerLost) {
            // The adapter may know of the loss before the endpoint does; the next attempt is to have a new connection.
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
        make: &mut impl FnMut(Via) -> Result<Outgoing, bmi_core::Error>,
        sent: &mut bool,
    ) -> Result<Vec<u8>, bmi_core::Error> {
        let (endpoint, peer) = (self.through(via), via.peer);
        let Outgoing { body, inline, exposure } = make(via)?;
        let left = deadline.since(endpoint.now()).as_millis().max(1);
        let request = Request {
            id: RequestId { client: self.preference.client, seq },
            unanswered: self.unanswered.borrow().first().copied().unwrap_or(seq),
            timeout_ms: u32::try_from(left).unwrap_or(u32::MAX),
            body,
        };
        let message = message(&request, inline.as_ref());
        let buffer = self.buffer(via)?;
        let options = Options::by(deadline);
        let reply = endpoint.recv(peer, seq, &buffer, options);
        *sent = true;
        let mut awaited = Awaited { connections: self, addr: &server.addr, via, here: false };
        endpoint.send_unexpected(peer, seq, message, options).await?;
        let len = reply.await?.len;
        awaited.here = true;
        // The reply is here, so the server is through with the client's memory.
        drop(exposure);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX).min(buffer.len())];
        buffer.copy_to(0, &mut bytes);
        if self.spare.borrow().len() < SPARE_BUFFERS {
            self.spare.borrow_mut().push(buffer);
        }
        Ok(bytes)
    }

    /// Memory for a reply, as long as the peer's longest eager message.
    fn buffer(&self, via: Via) -> Result<Memory, bmi_core::Error> {
        let eager = self.through(via).limits(via.peer).map_or(0, |limits| limits.eager);
        match self.spare.borrow_mut().pop() {
            Some(buffer) if buffer.len() >= eager => Ok(buffer),
            _ => Memory::zeroed(eager),
        }
    }
}

/// A reply that is waited for. If the wait ends without it, because of the deadline or because the future was dropped, it may still come.
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
            leave(self.connections.outlets.at(self.via.outlet), self.via.peer);
        }
    }
}

/// The encoded request, and the data behind it where they stand.
fn message(request: &Request, inline: Option<&MemList>) -> MemList {
    let head = MemList::from(codec::encode_request(request));
    match inline {
        None => head,
        Some(data) => head.pieces().iter().chain(data.pieces()).cloned().collect(),
    }
}

fn interpret(server: &ServerName, bytes: Vec<u8>) -> Result<(ReplyBody, Vec<u8>), Failure> {
    let (reply, data) = codec::decode_reply(&bytes)
        .map_err(|error| Failure::at(server.clone(), ErrorCode::Protocol, error.to_string()))?;
    let data = data.to_vec();
    let Reply { result } = reply;
    match result {
        Ok(body) => Ok((body, data)),
        Err(FsError { code, detail, ranges, .. }) => {
            let mut failure = Failure::at(server.clone(), code, detail);
            failure.physical = ranges;
            Err(failure)
        }
    }
}

/// A request's number; that of a change stands among those that have no reply yet. Others do not: the manager keeps the replies to changes only,
/// and a read or write that takes its time must not have it keep all that came since.
struct Ticket<'a, T: Transport> {
    connections: &'a Connections<T>,
    seq: u64,
}

impl<'a, T: Transport> Ticket<'a, T> {
    fn new(connections: &'a Connections<T>, change: bool) -> Ticket<'a, T> {
        let seq = connections.next_seq.get();
        connections.next_seq.set(seq + 1);
        if change {
            connections.unanswered.borrow_mut().insert(seq);
        }
        Ticket { connections, seq }
    }
}

impl<T: Transport> Drop for Ticket<'_, T> {
    /// Also when the caller has lost interest: the request will not be sent again.
    fn drop(&mut self) {
        self.connections.unanswered.borrow_mut().remove(&self.seq);
    }
}

/// A reply of a shape that the request cannot have.
pub(crate) fn unexpected(server: &ServerName, reply: &ReplyBody) -> Failure {
    let text = match reply {
        ReplyBody::Manager(_) => "a manager's reply that does not fit the request",
        ReplyBody::Iod(_) => "an I/O server's reply that does not fit the request",
        ReplyBody::Identity(_) => "an answer to a question that was not asked",
    };
    Failure::at(server.clone(), ErrorCode::Protocol, text)
}
