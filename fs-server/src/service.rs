//! The loop that every server runs: take requests, decode them, work at several at a time, reply.
//!
//! A server that listens on several transports runs it once for each ([`serve_all`]), over one
//! store: what a client does is the same whichever way it comes, and no transport waits for
//! another.
//!
//! **Invariants**
//! 1. Bounded: at most [`Limits::requests`] requests are worked at, [`Limits::per_peer`] for one
//!    peer. What is above waits as it came and holds its sender's credits, so the sender stops.
//!    Peers whose requests wait take turns.
//! 2. Requests that move much data ([`Handler::class`]) are counted apart from all others, with the
//!    same limits: a small request begins at once, however many long ones are under way or wait.
//! 3. A request's future is run to its end and never dropped, so that no buffer goes back to its
//!    pool while a disk or an adapter is still at it. It ends in time because everything that it
//!    waits for has a deadline or fails when the peer is lost.
//! 4. A request whose time is over when its turn comes is answered `Timeout` and not begun: its
//!    client has given up, and what it does next must not be undone by it.
//! 5. Nobody pays for another's mistake: a malformed request costs its sender the connection, a
//!    logged reason, and nothing else.
//!
//! **Protocol.** See `fs_proto` for requests and replies, and [`bmi_core::comm`] for the calls that
//! carry them and their data.

use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::{Future, pending};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use bmi_core::comm::{Incoming, announced};
use bmi_core::{AsyncEndpoint, MemList, PeerEvent, PeerId, ServiceClass, Time, Transport, Unexpected};
use fs_proto::codec::{self, CodecError};
use fs_proto::limits::REPLY_ROOM;
use fs_proto::{ErrorCode, FsError, Identity, Reply, ReplyBody, Request, RequestBody};
use futures_util::FutureExt;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};

/// What a server takes on, over each of its transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests worked at, at a time; those that move much data and all others are counted apart.
    pub requests: usize,
    /// Of one peer.
    pub per_peer: usize,
    /// Longest time for one request, whatever its client allows.
    pub request_timeout: Duration,
    /// How long a client may take over receiving its reply, and how long a stopping server waits
    /// for what is under way.
    pub reply_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            requests: 256,
            per_peer: 32,
            request_timeout: Duration::from_secs(60),
            reply_timeout: Duration::from_secs(10),
        }
    }
}

/// What a handler knows of a request beside its content.
#[derive(Clone, Debug)]
pub struct Context {
    /// Who asks.
    pub peer: PeerId,
    /// When the request must have ended.
    pub deadline: Time,
    /// Longest reply that the peer takes, in bytes, data aside.
    pub room: usize,
    session: Rc<Session>,
}

/// What is known of a connection, for as long as anybody works for it.
#[derive(Debug, Default)]
pub(crate) struct Session {
    gone: Cell<bool>,
    /// The number that its client goes by.
    client: Cell<Option<u128>>,
}

impl Session {
    /// Whether the connection stands.
    pub(crate) fn is_open(&self) -> bool {
        !self.gone.get()
    }
}

/// How much sooner than its client a server gives a request up: an eighth of the time, but not more
/// than this. So the answer that says so is there before the client has taken its memory back; a
/// transfer that meets memory that was taken back costs the connection.
const SOONER: Duration = Duration::from_millis(500);

/// How long a server works at a request whose client waits for `timeout`.
fn allowance(timeout: Duration) -> Duration {
    timeout - (timeout / 8).min(SOONER)
}

impl Context {
    /// Says no when there is no point in going on: the client is gone, or its time has passed.
    ///
    /// # Errors
    /// `Unreachable`, `Timeout`.
    pub fn check(&self, now: Time) -> Result<(), FsError> {
        if !self.session.is_open() {
            return Err(FsError::new(ErrorCode::Unreachable, "the client is gone"));
        }
        if now >= self.deadline {
            return Err(FsError::new(ErrorCode::Timeout, "the request's time limit passed"));
        }
        Ok(())
    }

    /// Takes `client` for the one at the other end of the connection. The first that is named there
    /// is; a connection has one.
    ///
    /// # Errors
    /// `Invalid` for another one.
    pub(crate) fn speaks_for(&self, client: u128) -> Result<&Rc<Session>, FsError> {
        let known = self.session.client.get().unwrap_or(client);
        if known != client {
            return Err(FsError::new(ErrorCode::Invalid, "changes in the name of several clients over one connection"));
        }
        self.session.client.set(Some(client));
        Ok(&self.session)
    }
}

/// The data that goes with a reply, and what keeps its buffer until then.
#[derive(Debug)]
pub struct ReadData {
    /// The bytes.
    pub list: MemList,
    /// Dropped when the reply has been sent.
    pub keep: Option<Box<dyn Any>>,
}

/// A handler's answer.
#[derive(Debug)]
pub enum Answer {
    /// A reply, and the data that goes with it.
    Reply(Reply, Option<ReadData>),
    /// A reply that is encoded already.
    Encoded(Vec<u8>),
}

impl Answer {
    /// An error.
    pub fn error(error: FsError) -> Answer {
        Answer::Reply(Reply { result: Err(error) }, None)
    }
}

impl From<Result<ReplyBody, FsError>> for Answer {
    fn from(result: Result<ReplyBody, FsError>) -> Answer {
        Answer::Reply(Reply { result }, None)
    }
}

/// What makes a server of the loop.
#[async_trait(?Send)]
pub trait Handler<T: Transport> {
    /// Answers a request, and moves its data by `call`. Must end soon after [`Context::deadline`]
    /// or the loss of the peer.
    async fn handle(&self, context: &Context, request: Request, call: &Incoming<T>) -> Answer;

    /// How urgent a request with `data` bytes of data is: `Bulk` if it moves so much that others
    /// are not to wait for it.
    fn class(&self, data: u64) -> ServiceClass {
        let _ = data;
        ServiceClass::Message
    }

    /// A peer is gone; what it has under way ends by itself.
    fn departed(&self, peer: PeerId) {
        let _ = peer;
    }

    /// Work that goes on beside the requests, once for a server however many transports it has.
    /// Never ends.
    async fn background(&self);
}

/// Requests that are counted together: those that move much data, and all others, so that neither
/// wait for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Small,
    Bulk,
}

/// A request that can begin.
struct Job {
    message: Unexpected,
    arrived: Time,
    lane: Lane,
    /// Its sender's.
    session: Rc<Session>,
}

/// One peer's requests, in each lane.
#[derive(Default)]
struct PeerState {
    running: [usize; 2],
    /// Messages that wait, and when they came.
    parked: [VecDeque<(Unexpected, Time)>; 2],
    session: Rc<Session>,
}

/// The peers and what they have under way.
struct Desk {
    limits: Limits,
    peers: BTreeMap<PeerId, PeerState>,
    running: [usize; 2],
    /// Peers with parked requests, the next to be looked at first.
    turns: [VecDeque<PeerId>; 2],
}

impl Desk {
    fn new(limits: Limits) -> Desk {
        Desk { limits, peers: BTreeMap::new(), running: [0; 2], turns: Default::default() }
    }

    /// Peers that come and go; returns the one that went.
    fn note(&mut self, event: &PeerEvent) -> Option<PeerId> {
        match event {
            PeerEvent::Connected { peer, addr, outgoing: false } => {
                tracing::info!(?peer, %addr, "connected");
                self.peers.entry(*peer).or_default();
                None
            }
            PeerEvent::Connected { .. } => None,
            PeerEvent::Lost { peer, reason } => {
                self.turns.iter_mut().for_each(|turns| turns.retain(|other| other != peer));
                // One that this side connected to is of no interest here.
                let state = self.peers.get_mut(peer)?;
                tracing::info!(?peer, %reason, "lost");
                state.session.gone.set(true);
                state.parked = Default::default();
                if state.running == [0; 2] {
                    self.peers.remove(peer);
                }
                Some(*peer)
            }
        }
    }

    /// Takes a message on that arrives now, or parks it; returns it if work at it can begin.
    fn admit(&mut self, message: Unexpected, lane: Lane, now: Time) -> Option<Job> {
        let (peer, index) = (message.peer(), lane as usize);
        let state = self.peers.entry(peer).or_default();
        if self.running[index] < self.limits.requests
            && state.running[index] < self.limits.per_peer
            && state.parked[index].is_empty()
        {
            state.running[index] += 1;
            self.running[index] += 1;
            return Some(Job { message, arrived: now, lane, session: state.session.clone() });
        }
        if state.parked[index].is_empty() {
            self.turns[index].push_back(peer);
        }
        state.parked[index].push_back((message, now));
        None
    }

    /// A request of `peer` has ended; returns a parked one that can begin now: of the peer whose
    /// turn it is.
    fn finished(&mut self, peer: PeerId, lane: Lane) -> Option<Job> {
        let index = lane as usize;
        self.running[index] -= 1;
        if let Some(state) = self.peers.get_mut(&peer) {
            state.running[index] -= 1;
            if state.session.gone.get() && state.running == [0; 2] {
                self.peers.remove(&peer);
            }
        }
        let may_begin = |peer: &PeerId| self.peers[peer].running[index] < self.limits.per_peer;
        let at = self.turns[index].iter().position(may_begin)?;
        let peer = self.turns[index].remove(at)?;
        let state = self.peers.get_mut(&peer)?;
        let (message, arrived) = state.parked[index].pop_front()?;
        if !state.parked[index].is_empty() {
            self.turns[index].push_back(peer);
        }
        state.running[index] += 1;
        self.running[index] += 1;
        Some(Job { message, arrived, lane, session: state.session.clone() })
    }
}

/// Serves until `stop` ends; then takes no more requests, ends those under way, and closes its
/// connections. `identity` is what the server says to those who ask who it is.
pub async fn serve<T: Transport, H: Handler<T>>(
    endpoint: &AsyncEndpoint<T>,
    handler: &H,
    identity: &Identity,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    beside(handler, attend(endpoint, handler, identity, limits, stop)).await;
}

/// As [`serve`], over several endpoints at once, each with the handler that belongs to it. The
/// handlers share one store, so the first one's work in the background is everybody's. Ends when
/// the last loop has ended.
pub async fn serve_all<T: Transport, H: Handler<T>>(
    fronts: &[(AsyncEndpoint<T>, &H)],
    identity: &Identity,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let stop = stop.shared();
    // Each is polled only when it has been woken.
    let mut loops = FuturesUnordered::new();
    for (endpoint, handler) in fronts {
        loops.push(attend(endpoint, *handler, identity, limits, stop.clone()));
    }
    let all = async { while loops.next().await.is_some() {} };
    match fronts.first() {
        Some((_, handler)) => beside(*handler, all).await,
        None => all.await,
    }
}

/// Runs `work` to its end, with the handler's background beside it.
async fn beside<T: Transport, H: Handler<T>>(handler: &H, work: impl Future<Output = ()>) {
    let background = async {
        handler.background().await;
        pending().await
    };
    tokio::select! {
        biased;
        () = work => {}
        () = background => {}
    }
}

/// The loop.
async fn attend<T: Transport, H: Handler<T>>(
    endpoint: &AsyncEndpoint<T>,
    handler: &H,
    identity: &Identity,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let mut desk = Desk::new(limits);
    let mut requests = FuturesUnordered::new();
    let begin = |job| answer(endpoint, handler, identity, limits, job);
    let mut stop = pin!(stop.fuse());
    loop {
        tokio::select! {
            biased;
            () = &mut stop => break,
            event = endpoint.next_event() => if let Some(peer) = desk.note(&event) {
                handler.departed(peer);
            },
            Some((peer, lane)) = requests.next() => requests.extend(desk.finished(peer, lane).map(begin)),
            message = endpoint.next_unexpected() => {
                let mut next = Some(message);
                // What has arrived together is worked at together.
                while let Some(message) = next.take() {
                    // Nobody waits for the reply to a peer that is lost, and no event will come any
                    // more to forget it.
                    if endpoint.limits(message.peer()).is_some() {
                        let bulk = handler.class(announced(&message)) == ServiceClass::Bulk;
                        let lane = if bulk { Lane::Bulk } else { Lane::Small };
                        requests.extend(desk.admit(message, lane, endpoint.now()).map(begin));
                    }
                    next = endpoint.next_unexpected().now_or_never();
                }
            }
        }
    }
    tracing::info!(under_way = requests.len(), "stopping");
    let patience = endpoint.sleep(limits.reply_timeout);
    let rest = async { while requests.next().await.is_some() {} };
    tokio::select! {
        biased;
        () = rest => {}
        () = patience => tracing::warn!("requests under way did not end in time"),
    }
    let options = endpoint.within(limits.reply_timeout);
    // A connection that is gone already is closed as well.
    join_all(desk.peers.keys().map(|peer| endpoint.disconnect(*peer, options))).await;
}

/// One request, from its bytes to its reply; returns whose it was.
async fn answer<T: Transport, H: Handler<T>>(
    endpoint: &AsyncEndpoint<T>,
    handler: &H,
    identity: &Identity,
    limits: Limits,
    job: Job,
) -> (PeerId, Lane) {
    let Job { message, arrived, lane, session } = job;
    let peer = message.peer();
    // Its receive slot, and with it the credit, goes back to the client at once.
    let call = match Incoming::new(endpoint, message) {
        Ok(call) => call,
        Err(error) => {
            cut(endpoint, limits, peer, &error).await;
            return (peer, lane);
        }
    };
    let answer = match codec::decode_request(call.request()) {
        Ok(request) => {
            // Counted from when it came, not from when its turn came: its client has been waiting
            // since.
            let timeout = allowance(Duration::from_millis(request.timeout_ms.into())).min(limits.request_timeout);
            let context = Context { peer, deadline: arrived + timeout, room: call.room(), session };
            if let RequestBody::Identify = request.body {
                Answer::from(Ok(identity.within(context.room.saturating_sub(REPLY_ROOM)).into()))
            } else {
                match context.check(endpoint.now()) {
                    Ok(()) => handler.handle(&context, request, &call).await,
                    Err(late) => Answer::error(late),
                }
            }
        }
        Err(error @ CodecError::Version(_)) => Answer::error(FsError::new(ErrorCode::Protocol, error.to_string())),
        Err(error) => {
            cut(endpoint, limits, peer, &error).await;
            return (peer, lane);
        }
    };
    let (bytes, data) = match answer {
        Answer::Encoded(bytes) => (bytes, None),
        Answer::Reply(reply, data) => (codec::encode_reply(&reply), data),
    };
    let (tag, list) = (call.tag(), data.as_ref().map(|data| data.list.clone()));
    if let Err(error) = call.reply(&bytes, list, endpoint.within(limits.reply_timeout)).await {
        tracing::debug!(?peer, tag, %error, "reply not delivered");
    }
    (peer, lane)
}

/// Ends the connection to a peer that sends what makes no sense.
async fn cut<T: Transport>(endpoint: &AsyncEndpoint<T>, limits: Limits, peer: PeerId, error: &impl fmt::Display) {
    tracing::warn!(?peer, from = ?endpoint.peer_addr(peer), %error, "malformed request; connection closed");
    // It may be gone already, which is as good.
    let _ = endpoint.disconnect(peer, endpoint.within(limits.reply_timeout)).await;
}
