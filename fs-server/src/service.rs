//! The loop that every server runs: take requests, decode them, work at several at a time, reply.
//!
//! A server that listens on several transports runs it once for each ([`serve_all`]), over one store: what a client does is the same whichever way it
//! comes, and no transport waits for another.
//!
//! **Invariants**
//! 1. Bounded: at most [`Limits::requests`] requests are worked at, [`Limits::per_peer`] for one peer. What is above waits undecoded and holds its
//!    sender's credits, so the sender stops.
//! 2. A request's future is run to its end and never dropped, so that no buffer goes back to its pool while a disk or an adapter is still
//!    at it. It ends in time because everything that it waits for has a deadline or fails when the peer is lost.
//! 3. Nobody pays for another's mistake: a malformed request costs its sender the connection, a logged reason, and nothing else.
//!
//! **Protocol.** See `fs_proto`: the request is an unexpected message, the reply an expected one with the same tag.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, pending};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use bmi_core::{AsyncEndpoint, MemList, MemSlice, Memory, PeerEvent, PeerId, Tag, Time, Transport, Unexpected};
use fs_proto::codec::{self, CodecError};
use fs_proto::limits::REPLY_ROOM;
use fs_proto::{ErrorCode, FsError, Identity, Reply, ReplyBody, Request, RequestBody};
use futures_util::FutureExt;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};

/// What a server takes on, over each of its transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests worked at, at a time.
    pub requests: usize,
    /// Of one peer.
    pub per_peer: usize,
    /// Longest time for one request, whatever its client allows.
    pub request_timeout: Duration,
    /// How long a client may take over receiving its reply, and how long a stopping server waits for what is under way.
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
    /// Longest message that the peer takes at once, in bytes.
    pub eager: usize,
    gone: Rc<Cell<bool>>,
}

impl Context {
    /// Says no when there is no point in going on: the client is gone, or its time has passed.
    ///
    /// # Errors
    /// `Unreachable`, `Timeout`.
    pub fn check(&self, now: Time) -> Result<(), FsError> {
        if self.gone.get() {
            return Err(FsError::new(ErrorCode::Unreachable, "the client is gone"));
        }
        if now >= self.deadline {
            return Err(FsError::new(ErrorCode::Timeout, "the request's time limit passed"));
        }
        Ok(())
    }
}

/// A handler's answer.
#[derive(Debug)]
pub enum Answer {
    /// A reply, and the inline data behind it.
    Reply(Reply, Option<MemList>),
    /// A reply that is encoded already.
    Encoded(Vec<u8>),
}

impl Answer {
    /// An error.
    pub fn error(error: FsError) -> Answer {
        Answer::Reply(Reply { result: Err(error) }, None)
    }

    /// The message for the wire.
    fn into_list(self) -> MemList {
        let whole = |bytes: Vec<u8>| Memory::from(bytes).all();
        match self {
            Answer::Encoded(bytes) => bytes.into(),
            Answer::Reply(reply, None) => codec::encode_reply(&reply).into(),
            Answer::Reply(reply, Some(data)) => {
                let head: MemSlice = whole(codec::encode_reply(&reply));
                std::iter::once(head).chain(data.pieces().iter().cloned()).collect()
            }
        }
    }
}

impl From<Result<ReplyBody, FsError>> for Answer {
    fn from(result: Result<ReplyBody, FsError>) -> Answer {
        Answer::Reply(Reply { result }, None)
    }
}

/// What makes a server of the loop.
#[async_trait(?Send)]
pub trait Handler {
    /// Answers a request; `data` is its inline data. Must end soon after [`Context::deadline`] or the loss of the peer.
    async fn handle(&self, context: &Context, request: Request, data: &[u8]) -> Answer;

    /// Work that goes on beside the requests, once for a server however many transports it has. Never ends.
    async fn background(&self);
}

/// One peer's requests.
#[derive(Default)]
struct PeerState {
    running: usize,
    parked: VecDeque<Unexpected>,
    gone: Rc<Cell<bool>>,
}

/// The peers and what they have under way.
#[derive(Default)]
struct Desk {
    peers: BTreeMap<PeerId, PeerState>,
    running: usize,
}

impl Desk {
    /// Peers that come and go.
    fn note(&mut self, event: &PeerEvent) {
        match event {
            PeerEvent::Connected { peer, addr, outgoing: false } => {
                tracing::info!(?peer, %addr, "connected");
                self.peers.entry(*peer).or_default();
            }
            PeerEvent::Connected { .. } => {}
            PeerEvent::Lost { peer, reason } => {
                tracing::info!(?peer, %reason, "lost");
                if let Some(state) = self.peers.get_mut(peer) {
                    state.gone.set(true);
                    state.parked.clear();
                    if state.running == 0 {
                        self.peers.remove(peer);
                    }
                }
            }
        }
    }

    /// Takes a message on, or parks it; returns it if work at it can begin, with the flag that says when its sender is gone.
    fn admit(&mut self, message: Unexpected, per_peer: usize) -> Option<(Unexpected, Rc<Cell<bool>>)> {
        let state = self.peers.entry(message.peer()).or_default();
        if state.running >= per_peer {
            state.parked.push_back(message);
            return None;
        }
        state.running += 1;
        self.running += 1;
        Some((message, state.gone.clone()))
    }

    /// A request of `peer` has ended; returns the one of its that can begin now.
    fn finished(&mut self, peer: PeerId) -> Option<(Unexpected, Rc<Cell<bool>>)> {
        self.running -= 1;
        let state = self.peers.get_mut(&peer)?;
        state.running -= 1;
        if let Some(message) = state.parked.pop_front() {
            state.running += 1;
            self.running += 1;
            return Some((message, state.gone.clone()));
        }
        if state.gone.get() && state.running == 0 {
            self.peers.remove(&peer);
        }
        None
    }
}

/// Serves until `stop` ends; then takes no more requests, ends those under way, and closes its connections. `identity` is what the server says
/// to those who ask who it is.
pub async fn serve<T: Transport, H: Handler>(
    endpoint: &AsyncEndpoint<T>,
    handler: &H,
    identity: &Identity,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    beside(handler, attend(endpoint, handler, identity, limits, stop)).await;
}

/// As [`serve`], over several endpoints at once, each with the handler that belongs to it. The handlers share one store, so the first one's work
/// in the background is everybody's. Ends when the last loop has ended.
pub async fn serve_all<T: Transport, H: Handler>(
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
async fn beside<H: Handler>(handler: &H, work: impl Future<Output = ()>) {
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
async fn attend<T: Transport, H: Handler>(
    endpoint: &AsyncEndpoint<T>,
    handler: &H,
    identity: &Identity,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let mut desk = Desk::default();
    let mut requests = FuturesUnordered::new();
    let begin = |(message, gone)| answer(endpoint, handler, identity, limits, message, gone);
    let mut stop = pin!(stop.fuse());
    loop {
        tokio::select! {
            biased;
            () = &mut stop => break,
            event = endpoint.next_event() => desk.note(&event),
            Some(peer) = requests.next() => requests.extend(desk.finished(peer).map(begin)),
            message = endpoint.next_unexpected(), if desk.running < limits.requests => {
                let mut next = Some(message);
                // What has arrived together is worked at together.
                while let Some(message) = next.take() {
                    // Nobody waits for the reply to a peer that is lost, and no event will come any more to forget it.
                    if endpoint.limits(message.peer()).is_some() {
                        requests.extend(desk.admit(message, limits.per_peer).map(begin));
                    }
                    if desk.running < limits.requests {
                        next = endpoint.next_unexpected().now_or_never();
                    }
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
async fn answer<T: Transport, H: Handler>(
    endpoint: &AsyncEndpoint<T>,
    handler: &H,
    identity: &Identity,
    limits: Limits,
    message: Unexpected,
    gone: Rc<Cell<bool>>,
) -> PeerId {
    let (peer, tag) = (message.peer(), message.tag());
    let answer = match codec::decode_request(message.bytes()) {
        Ok((request, data)) => {
            let timeout = Duration::from_millis(request.timeout_ms.into()).min(limits.request_timeout);
            let eager = endpoint.limits(peer).map_or(0, |limits| limits.eager);
            let context = Context { peer, deadline: endpoint.now() + timeout, eager, gone };
            if let RequestBody::Identify = request.body {
                drop(message);
                Answer::from(Ok(identity.within(context.eager.saturating_sub(REPLY_ROOM)).into()))
            } else if data.is_empty() {
                // The message's place, and with it the credit, goes back to the client at once.
                drop(message);
                handler.handle(&context, request, &[]).await
            } else {
                handler.handle(&context, request, data).await
            }
        }
        Err(error @ CodecError::Version(_)) => Answer::error(FsError::new(ErrorCode::Protocol, error.to_string())),
        Err(error) => {
            tracing::warn!(?peer, from = ?endpoint.peer_addr(peer), %error, "malformed request; connection closed");
            drop(message);
            // It may be gone already, which is as good.
            let _ = endpoint.disconnect(peer, endpoint.within(limits.reply_timeout)).await;
            return peer;
        }
    };
    reply(endpoint, limits, peer, tag, answer).await;
    peer
}

async fn reply<T: Transport>(endpoint: &AsyncEndpoint<T>, limits: Limits, peer: PeerId, tag: Tag, answer: Answer) {
    let options = endpoint.within(limits.reply_timeout);
    if let Err(error) = endpoint.send(peer, tag, answer.into_list(), options).await {
        tracing::debug!(?peer, tag, %error, "reply not delivered");
    }
}
