//! The request loop of every server: receives requests, decodes them, works on several at the same
//! time and replies.
//!
//! A server that listens on several transports runs one loop for each ([`serve_all`]), over one
//! store. A request has the same effect over each transport, and no transport waits for another. An
//! I/O server may have several threads, each with such loops (`embedded/loops.rs`).
//!
//! **Invariants**
//! 1. Concurrency is bounded: at most [`Limits::requests`] requests are in progress,
//!    [`Limits::per_peer`] of them from one peer, and fewer if many peers have requests
//!    ([`Admission`]). Further messages wait as they arrived and hold their sender's credits, so
//!    the sender stops. Peers whose requests wait take turns.
//! 2. Requests that move much data ([`Handler::class`]) are counted separately from all others,
//!    with the same limits. So a small request begins at once, however many long ones are in
//!    progress or wait.
//!    A request that is answered from memory ([`Handler::never_waits`]) needs no place either. So a
//!    disk that does not answer does not stop what needs no disk.
//! 3. A request's future runs to its end and is never dropped. So no buffer returns to its pool
//!    while a disk or an adapter still uses it. The future ends in time, because everything that it
//!    waits for has a deadline or fails when the peer is lost. The only exception is a stopping
//!    server: it drops the futures that have not ended after [`Limits::reply_timeout`].
//! 4. A request whose time limit has passed when its turn comes is answered with `Timeout` and not
//!    begun. Its client has given up, and the request must not undo what the client does next.
//! 5. A malformed request costs only its sender the connection. The reason is logged, and no other
//!    client is affected.
//! 6. What a stalled client holds is taken back within 1.25 [`Limits::stall_timeout`] while others
//!    wait (`stall.rs`).
//!
//! **Protocol.** See `fs_proto` for requests and replies, and [`bmi::calls`] for the calls that
//! carry them and their data.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bmi::calls::{Admission, announced, request_of};
use bmi::config::ServiceClass;
use bmi::polled::Unexpected;
use bmi::stats::Kept;
use bmi::{Endpoint, ErrorKind, Incoming, MemList, Message, Peer, PeerEvent, PeerId, Time};
use fs_proto::codec::{self, CodecError};
use fs_proto::limits::REPLY_ROOM;
use fs_proto::{ErrorCode, FsError, Hello, Identity, Reply, ReplyBody, Request, RequestBody, Role, Sender};
use futures_util::FutureExt;
use futures_util::future::{Fuse, FusedFuture, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::stall::{self, StallWatch};

/// Limits of a server, for each of its transports. An I/O server with several event loops divides
/// the numbers of requests by their number. A manager does not: its changes share one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most requests in progress at the same time. Requests that move much data and all others are
    /// counted separately.
    pub requests: usize,
    /// Most requests in progress at the same time from one peer.
    pub per_peer: usize,
    /// Time limit of one request, even if its client allows more.
    pub request_timeout: Duration,
    /// How long a client may take to receive its reply, and how long a stopping server waits for
    /// requests in progress.
    pub reply_timeout: Duration,
    /// How long nothing may move on the connection of a client that the server waits for. After
    /// that, the connection is cut if other clients wait (`stall.rs`).
    pub stall_timeout: Duration,
}

impl Limits {
    /// Returns the limits of one of `loops` event loops, which serve the same addresses. The
    /// connections are spread evenly, and a loop has its part of the requests.
    #[must_use]
    pub(crate) fn divided(self, loops: usize) -> Limits {
        let requests = self.requests.div_ceil(loops.max(1));
        Limits { requests, per_peer: self.per_peer.min(requests), ..self }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            requests: 256,
            per_peer: 32,
            request_timeout: Duration::from_secs(60),
            reply_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(2),
        }
    }
}

/// What a handler knows about a request beside its content.
#[derive(Clone, Debug)]
pub struct Context {
    /// The sender of the request.
    pub peer: PeerId,
    /// The time by which the request must end.
    pub deadline: Time,
    /// Longest reply that the peer accepts, in bytes, without data.
    pub room: usize,
    /// Number of requests that may wait for the same thing, a stalled disk for instance, so that
    /// there is room for others: three quarters of those that may be in progress.
    pub share: usize,
    session: Arc<Session>,
}

/// The state of a connection, kept as long as a request of it is in progress. The event loop of the
/// connection writes it, and the first event loop of the server counts the drafts.
#[derive(Debug, Default)]
pub(crate) struct Session {
    gone: AtomicBool,
    /// The host of its peer, as it is seen.
    host: OnceLock<String>,
    /// The id of its client.
    client: OnceLock<u128>,
    /// The Hello that the server has accepted.
    hello: OnceLock<Hello>,
    /// Number of drafts that the client has begun over the connection and not ended.
    drafts: AtomicUsize,
    /// Keeps the connection while there are any.
    kept: Mutex<Option<Kept>>,
}

/// Who a server is, and whether it serves. A clone is another handle to the same, also for another
/// event loop.
#[derive(Clone, Debug)]
pub struct Standing(Arc<State>);

#[derive(Debug)]
enum State {
    Serving(Identity),
    Waiting(String),
    /// As `Waiting`, but servers may report.
    Gathering(Identity, String),
}

impl Standing {
    /// Creates the standing of a server that serves.
    pub fn serving(identity: Identity) -> Standing {
        Standing(Arc::new(State::Serving(identity)))
    }

    /// Creates the standing of a server that does not serve yet. `why` is told to those who ask.
    pub fn waiting(why: impl Into<String>) -> Standing {
        Standing(Arc::new(State::Waiting(why.into())))
    }

    /// Creates the standing of a server that does not serve yet, but handles the requests of other
    /// servers of its cluster, however much they have seen of it. `why` is the answer to every
    /// Hello.
    pub(crate) fn gathering(identity: Identity, why: impl Into<String>) -> Standing {
        Standing(Arc::new(State::Gathering(identity, why.into())))
    }

    /// Returns the identity.
    ///
    /// # Errors
    /// `Busy` if the server does not serve yet.
    pub fn identity(&self) -> Result<Identity, FsError> {
        match &*self.0 {
            State::Serving(identity) => Ok(identity.clone()),
            State::Waiting(why) | State::Gathering(_, why) => Err(FsError::new(ErrorCode::Busy, why)),
        }
    }

    /// Returns whether the sender of this Hello may send requests although the server does not
    /// serve.
    ///
    /// # Errors
    /// `WrongServer`.
    fn hears(&self, hello: &Hello) -> Result<bool, FsError> {
        match &*self.0 {
            State::Gathering(identity, _) => {
                identity.check(&Hello { seen: None, ..hello.clone() })?;
                Ok(matches!(hello.sender, Sender::Server(Role::Iod(_), _)))
            }
            _ => Ok(false),
        }
    }
}

impl Session {
    /// Keeps the connection as long as the client has drafts. While it writes them it may be silent
    /// here. If its connection were closed as idle, they could be taken for those of a client that
    /// is gone.
    fn keep_while_drafting(&self, keep: impl FnOnce() -> Option<Kept>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if self.drafts.load(Ordering::Acquire) == 0 {
            *kept = None;
        } else if kept.is_none() {
            *kept = keep();
        }
    }

    /// The client has begun a draft.
    pub(crate) fn draft_begun(&self) {
        self.drafts.fetch_add(1, Ordering::Release);
    }

    /// The client has published or abandoned a draft, perhaps one that it began over another
    /// connection.
    pub(crate) fn draft_ended(&self) {
        // An error means that there were none.
        let one_less = |drafts: usize| drafts.checked_sub(1);
        let _ = self.drafts.fetch_update(Ordering::Release, Ordering::Relaxed, one_less);
    }

    /// Notes the host of the peer.
    pub(crate) fn seen_at(&self, host: &str) {
        // A connection has one.
        let _ = self.host.set(host.to_owned());
    }

    /// Returns the host of the peer.
    pub(crate) fn host(&self) -> Option<&str> {
        self.host.get().map(String::as_str)
    }

    /// Returns true while the connection exists.
    pub(crate) fn is_open(&self) -> bool {
        !self.gone.load(Ordering::Acquire)
    }
}

/// How much earlier than its client a server gives up a request: an eighth of the time limit, but
/// at most this. So the reply that reports it arrives before the client takes its memory back. A
/// transfer to memory that was taken back would cost the connection.
const SOONER: Duration = Duration::from_millis(500);

/// Returns how long a server works on a request whose client waits for `timeout`.
fn allowance(timeout: Duration) -> Duration {
    timeout - (timeout / 8).min(SOONER)
}

impl Context {
    /// Fails if the request should not continue because the client is gone or its time limit has
    /// passed.
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

    /// Returns the Hello of the connection.
    pub(crate) fn hello(&self) -> Option<&Hello> {
        self.session.hello.get()
    }

    /// Keeps the connection of `call` as long as its client has drafts. Called when a change was
    /// answered, on the event loop of the connection.
    pub(crate) fn keep_while_drafting(&self, call: &Incoming) {
        self.session.keep_while_drafting(|| call.endpoint().with(|engine| engine.keep(call.peer().id())));
    }

    /// Returns the connection.
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Checks that `client` is the client of this connection. A connection has one client: the
    /// first that is named on it.
    ///
    /// # Errors
    /// `Invalid` for another client.
    pub(crate) fn speaks_for(&self, client: u128) -> Result<&Arc<Session>, FsError> {
        if *self.session.client.get_or_init(|| client) != client {
            return Err(FsError::new(ErrorCode::Invalid, "changes in the name of several clients over one connection"));
        }
        Ok(&self.session)
    }
}

/// The data of a reply, and the owner of its buffer.
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
    /// A reply and its data.
    Reply(Reply, Option<ReadData>),
    /// A reply that is already encoded.
    Encoded(Vec<u8>),
}

impl Answer {
    /// Creates an answer that reports an error.
    pub fn error(error: FsError) -> Answer {
        Answer::Reply(Reply { result: Err(error) }, None)
    }

    /// Returns the encoded reply, without data.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        match self {
            Answer::Encoded(bytes) => bytes,
            Answer::Reply(reply, _) => codec::encode_reply(&reply),
        }
    }
}

impl From<Result<ReplyBody, FsError>> for Answer {
    fn from(result: Result<ReplyBody, FsError>) -> Answer {
        Answer::Reply(Reply { result }, None)
    }
}

/// A server's part of the request loop.
#[async_trait(?Send)]
pub trait Handler {
    /// Answers a request and moves its data with `call`. Must end soon after [`Context::deadline`]
    /// or after the loss of the peer.
    async fn handle(&self, context: &Context, request: Request, call: &Incoming) -> Answer;

    /// Returns the class of a request with `data` bytes of data. It is `Bulk` if the request moves
    /// so much that others must not wait for it.
    fn class(&self, data: u64) -> ServiceClass {
        let _ = data;
        ServiceClass::Message
    }

    /// Returns true if a request is answered from memory, so that it needs no place among those
    /// that may wait for a disk.
    fn never_waits(&self, request: &RequestBody) -> bool {
        let _ = request;
        false
    }

    /// Returns true if a client other than `stalled` waits for something that all clients share.
    fn is_awaited(&self, stalled: &BTreeSet<PeerId>) -> bool {
        let _ = stalled;
        false
    }

    /// Called when the server has refused a Hello, because it is not the server that the sender
    /// expects.
    fn refused(&self, hello: &Hello, identity: &Identity) {
        let _ = (hello, identity);
    }

    /// Called when a peer is gone. Its requests in progress end without further action.
    fn departed(&self, peer: PeerId) {
        let _ = peer;
    }

    /// Does the background work of the server, if there is any. It runs once per server, however
    /// many transports there are. It never returns.
    async fn background(&self) {
        pending().await
    }
}

/// An endpoint, and who answers there.
pub type Front<'a> = (Endpoint, &'a dyn Handler);

/// The classes of requests that are counted separately: those that move much data, all others, and
/// those of the others that never wait and find no place. No class waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Small,
    Bulk,
    Quick,
}

/// Number of lanes.
const LANES: usize = 3;

/// Longest message, in bytes, that is looked at to find out whether its request never waits.
const QUICK_MESSAGE: usize = 1024;

/// A request that can begin.
struct Job {
    message: Message,
    arrived: Time,
    lane: Lane,
    /// The session of its sender.
    session: Arc<Session>,
}

/// The peers and their requests.
struct Desk {
    limits: Limits,
    sessions: BTreeMap<PeerId, Arc<Session>>,
    /// The requests of each lane, with their times of arrival.
    lanes: [Admission<(Message, Time)>; LANES],
}

impl Desk {
    fn new(limits: Limits) -> Desk {
        let lane = || Admission::new(limits.requests, limits.per_peer);
        Desk { limits, sessions: BTreeMap::new(), lanes: [lane(), lane(), lane()] }
    }

    /// Records that a peer has connected or was lost. Returns the peer if it was lost.
    fn note(&mut self, event: &PeerEvent<Peer>) -> Option<PeerId> {
        match event {
            PeerEvent::Connected { peer, addr, outgoing: false } => {
                tracing::debug!(?peer, %addr, "connected");
                self.sessions.entry(peer.id()).or_default().seen_at(addr.host());
                None
            }
            PeerEvent::Connected { .. } => None,
            PeerEvent::Lost { peer, reason } => {
                // A peer that this side connected to is ignored here.
                let session = self.sessions.remove(&peer.id())?;
                tracing::debug!(?peer, %reason, "lost");
                session.gone.store(true, Ordering::Release);
                self.lanes.iter_mut().for_each(|lane| lane.forget(peer.id()));
                Some(peer.id())
            }
        }
    }

    /// Returns true if a message would have to wait.
    fn is_full(&self, peer: PeerId, lane: Lane) -> bool {
        !self.lanes[lane as usize].admits(peer)
    }

    /// Admits a message that has just arrived, or lets it wait. Returns a job if work on it can
    /// begin.
    fn admit(&mut self, message: Message, lane: Lane, now: Time) -> Option<Job> {
        let begun = self.lanes[lane as usize].admit(message.peer().id(), (message, now))?;
        Some(self.job(begun, lane))
    }

    /// Records that a request of `peer` has ended.
    fn finished(&mut self, peer: PeerId, lane: Lane) {
        self.lanes[lane as usize].finished(peer);
    }

    /// Returns a waiting request that can begin now, from the peer whose turn it is.
    fn next(&mut self, lane: Lane) -> Option<Job> {
        let (_, begun) = self.lanes[lane as usize].begin_next()?;
        Some(self.job(begun, lane))
    }

    fn job(&mut self, (message, arrived): (Message, Time), lane: Lane) -> Job {
        let session = self.sessions.entry(message.peer().id()).or_default().clone();
        Job { message, arrived, lane, session }
    }

    /// Returns true if a request of `peer` is in progress.
    fn serves(&self, peer: PeerId) -> bool {
        self.lanes.iter().any(|lane| lane.in_progress(peer) > 0)
    }

    /// Returns true if a request of a peer other than `stalled` waits because too many others are
    /// in progress.
    fn is_awaited(&self, stalled: &BTreeSet<PeerId>) -> bool {
        self.lanes.iter().any(|lane| lane.crowded_out().any(|peer| !stalled.contains(&peer)))
    }
}

/// Serves requests until `stop` ends. Then it takes no more requests, ends those in progress, and
/// closes its connections. Serves nothing on a connection before a Hello that fits `standing`.
pub async fn serve(
    endpoint: &Endpoint,
    handler: &dyn Handler,
    standing: &Standing,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    beside(handler, attend(endpoint, handler, standing, limits, stop)).await;
}

/// Serves requests like [`serve`], but over several endpoints at once, each with its own handler.
/// The handlers share one store, so only the background work of the first one runs. Returns when
/// the last loop has ended.
pub async fn serve_all(fronts: &[Front<'_>], standing: &Standing, limits: Limits, stop: impl Future<Output = ()>) {
    let all = serve_beside(fronts, standing, limits, stop);
    match fronts.first() {
        Some((_, handler)) => beside(*handler, all).await,
        None => all.await,
    }
}

/// Serves requests like [`serve_all`], but without background work: it runs on another event loop
/// of the same server.
pub(crate) async fn serve_beside(
    fronts: &[Front<'_>],
    standing: &Standing,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let stop = stop.shared();
    // Each future is polled only when it has been woken.
    let mut loops = FuturesUnordered::new();
    for (endpoint, handler) in fronts {
        loops.push(attend(endpoint, *handler, standing, limits, stop.clone()));
    }
    while loops.next().await.is_some() {}
}

/// Serves requests over each of the endpoints like [`serve_all`], until `work` ends, and returns
/// its result; `None` if `stop` ends first.
pub(crate) async fn serve_until<R>(
    endpoints: &[Endpoint],
    handler: &dyn Handler,
    standing: &Standing,
    limits: Limits,
    work: impl Future<Output = R>,
    stop: impl Future<Output = ()>,
) -> Option<R> {
    let fronts: Vec<Front<'_>> = endpoints.iter().map(|endpoint| (endpoint.clone(), handler)).collect();
    let mut result = None;
    let over = async {
        tokio::select! {
            biased;
            done = work => result = Some(done),
            () = stop => {}
        }
    };
    serve_all(&fronts, standing, limits, over).await;
    result
}

/// Runs `work` to its end, with the handler's background work beside it.
pub(crate) async fn beside(handler: &dyn Handler, work: impl Future<Output = ()>) {
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

/// The loop for one endpoint.
async fn attend(
    endpoint: &Endpoint,
    handler: &dyn Handler,
    standing: &Standing,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let mut desk = Desk::new(limits);
    let mut requests = FuturesUnordered::new();
    let begin = |job| answer(endpoint, handler, standing, limits, job);
    let mut stop = pin!(stop.fuse());
    let (mut watch, mut check) = (StallWatch::default(), pin!(Fuse::terminated()));
    loop {
        if check.is_terminated() && !requests.is_empty() {
            check.set(endpoint.sleep(limits.stall_timeout / stall::CHECKS).fuse());
        }
        tokio::select! {
            biased;
            () = &mut stop => break,
            () = &mut check => cut_stalled(endpoint, handler, &desk, &mut watch),
            event = endpoint.next_event() => if let Some(peer) = desk.note(&event) {
                handler.departed(peer);
            },
            Some((peer, lane)) = requests.next() => {
                desk.finished(peer, lane);
                requests.extend(std::iter::from_fn(|| desk.next(lane)).map(begin));
            }
            message = endpoint.next_unexpected() => {
                let mut next = Some(message);
                // Messages that arrived together are handled together.
                while let Some(message) = next.take() {
                    // A lost peer needs no reply. No further event would remove its state.
                    if message.peer().limits().is_some() {
                        let bulk = handler.class(announced(&message)) == ServiceClass::Bulk;
                        let full = !bulk && desk.is_full(message.peer().id(), Lane::Small);
                        let lane = match bulk {
                            true => Lane::Bulk,
                            false if full && is_quick(handler, &message) => Lane::Quick,
                            false => Lane::Small,
                        };
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
    // An error means that the connection is closed already.
    join_all(desk.sessions.keys().map(async |peer| endpoint.peer(*peer).disconnect(options).await)).await;
}

/// Returns true if the request of a message is answered from memory.
fn is_quick(handler: &dyn Handler, message: &Unexpected) -> bool {
    let request = (message.len() <= QUICK_MESSAGE).then(|| request_of(message)).flatten();
    let request = request.and_then(|bytes| codec::decode_request(&bytes).ok());
    request.is_some_and(|request| matches!(request.body, RequestBody::Hello(_)) || handler.never_waits(&request.body))
}

/// Cuts the connections of stalled clients if others wait.
fn cut_stalled(endpoint: &Endpoint, handler: &dyn Handler, desk: &Desk, watch: &mut StallWatch) {
    let mut awaited = endpoint.awaited_peers();
    awaited.retain(|peer, _| desk.serves(*peer));
    let stalled = watch.check(awaited);
    if stalled.is_empty() || !(desk.is_awaited(&stalled) || handler.is_awaited(&stalled)) {
        return;
    }
    for peer in stalled {
        let text = format!("it has moved nothing for {:?} while others waited", desk.limits.stall_timeout);
        endpoint.peer(peer).cut(bmi::Error::new(ErrorKind::TimedOut, text));
    }
}

/// Handles one request, from its bytes to its reply. Returns its peer and lane.
async fn answer(
    endpoint: &Endpoint,
    handler: &dyn Handler,
    standing: &Standing,
    limits: Limits,
    job: Job,
) -> (PeerId, Lane) {
    let Job { message, arrived, lane, session } = job;
    let peer = message.peer().clone();
    // The receive slot and its credit are returned to the client at once.
    let call = match Incoming::new(message) {
        Ok(call) => call,
        Err(error) => {
            cut(&peer, limits, &error).await;
            return (peer.id(), lane);
        }
    };
    let answer = match codec::decode_request(call.request()) {
        Ok(request) => {
            // The time counts from the arrival, not from the beginning of the work, because the
            // client has been waiting since then.
            let timeout = allowance(Duration::from_millis(request.timeout_ms.into())).min(limits.request_timeout);
            let share = limits.requests - limits.requests / 4;
            let context = Context { peer: peer.id(), deadline: arrived + timeout, room: call.room(), share, session };
            match (&request.body, context.hello()) {
                (RequestBody::Hello(hello), _) => greet(endpoint, handler, standing, &context, hello),
                (_, None) => {
                    let text = "the connection did not begin with a Hello";
                    Answer::error(FsError::new(ErrorCode::Protocol, text))
                }
                _ => match context.check(endpoint.now()) {
                    Ok(()) => handler.handle(&context, request, &call).await,
                    Err(late) => Answer::error(late),
                },
            }
        }
        Err(error @ CodecError::Version(_)) => Answer::error(FsError::new(ErrorCode::Protocol, error.to_string())),
        Err(error) => {
            cut(&peer, limits, &error).await;
            return (peer.id(), lane);
        }
    };
    let (bytes, data) = match answer {
        Answer::Encoded(bytes) => (bytes, None),
        Answer::Reply(reply, data) => (codec::encode_reply(&reply), data),
    };
    let (id, list) = (call.id(), data.as_ref().map(|data| data.list.clone()));
    if let Err(error) = call.reply(&bytes, list, endpoint.within(limits.reply_timeout)).await {
        tracing::debug!(?peer, id, %error, "reply not delivered");
    }
    (peer.id(), lane)
}

/// Answers a Hello: accepts it, or says who this server is. A refused connection stays open, so
/// that the answer arrives. Nothing is served on it.
fn greet(endpoint: &Endpoint, handler: &dyn Handler, standing: &Standing, context: &Context, hello: &Hello) -> Answer {
    let identity = match standing.identity() {
        Ok(identity) => identity,
        Err(waiting) => {
            return match standing.hears(hello) {
                Ok(hears) => {
                    if hears {
                        let _ = context.session.hello.set(hello.clone());
                    }
                    Answer::error(waiting)
                }
                Err(wrong) => Answer::error(wrong),
            };
        }
    };
    if let Err(error) = identity.check(hello) {
        if endpoint.with(|engine| engine.admits_log_line("a connection to the wrong server", context.peer)) {
            tracing::warn!(peer = ?context.peer, %error, "a connection to the wrong server");
        }
        handler.refused(hello, &identity);
        return Answer::error(error);
    }
    // One connection has one sender. A second Hello changes nothing.
    let _ = context.session.hello.set(hello.clone());
    Answer::from(Ok(identity.within(context.room.saturating_sub(REPLY_ROOM)).into()))
}

/// Ends the connection to a peer that sent a malformed request.
async fn cut(peer: &Peer, limits: Limits, error: &impl fmt::Display) {
    if peer.endpoint().with(|engine| engine.admits_log_line("malformed request", peer.id())) {
        tracing::warn!(?peer, from = ?peer.addr(), %error, "malformed request; connection closed");
    }
    // An error means that the connection has ended already.
    let _ = peer.disconnect(peer.within(limits.reply_timeout)).await;
}
