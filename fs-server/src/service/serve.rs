//! The loop: admits requests, hands them to the handler, and replies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bmi::calls::{Admission, announced, request_of};
use bmi::config::ServiceClass;
use bmi::polled::Unexpected;
use bmi::{Endpoint, ErrorKind, Incoming, Message, Peer, PeerEvent, PeerId, Time};
use fs_proto::codec::{self, CodecError};
use fs_proto::limits::REPLY_ROOM;
use fs_proto::{Claims, ErrorCode, FsError, Hello, ManagerRequest, RequestBody, Sender};
use futures_util::FutureExt;
use futures_util::future::{Fuse, FusedFuture, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::balance::Seat;
use super::context::{Answer, Context, Handler, Limits, Session, Standing, allowance};
use super::party::{Party, audit};
use super::stall::{self, StallWatch};
use crate::metrics::{RequestMetrics, next_sample};

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
    /// Clients that go to another event loop when what is in progress has been answered, and what
    /// they have sent since.
    moving: BTreeMap<PeerId, Vec<Message>>,
}

/// What a client is told that goes to another event loop.
const MOVED: &str = "another event loop of this server has more time for it";

impl Desk {
    fn new(limits: Limits) -> Desk {
        let lane = || Admission::new(limits.requests, limits.per_peer);
        Desk { limits, sessions: BTreeMap::new(), lanes: [lane(), lane(), lane()], moving: BTreeMap::new() }
    }

    /// Lets `count` clients go to another event loop, those in which it does not wait at once.
    /// Returns messages that must be handled after all.
    fn give_away(&mut self, endpoint: &Endpoint, count: usize) -> Vec<Message> {
        if count == 0 {
            return Vec::new();
        }
        let moves = |(_, session): &(&PeerId, &Arc<Session>)| {
            session.hello.get().is_some_and(|hello| hello.sender == Sender::Client)
        };
        let count = count.saturating_sub(self.moving.len());
        let stays = |(peer, _): &(&PeerId, &Arc<Session>)| !self.moving.contains_key(*peer);
        let all = self.sessions.iter().filter(stays).filter(moves).map(|(peer, _)| *peer);
        let chosen: Vec<_> = all.take(count).collect();
        self.moving.extend(chosen.iter().map(|peer| (*peer, Vec::new())));
        chosen.into_iter().flat_map(|peer| self.move_on(endpoint, peer)).collect()
    }

    /// Dismisses a client that is to go, if nothing of it is in progress. Returns the messages that
    /// it has sent meanwhile if its connection cannot be given up: they must be handled.
    fn move_on(&mut self, endpoint: &Endpoint, peer: PeerId) -> Vec<Message> {
        if self.serves(peer) || !self.moving.contains_key(&peer) {
            return Vec::new();
        }
        if endpoint.with(|engine| engine.dismiss(peer, MOVED)) {
            // Until the peer is lost, nothing of it is handled any more.
            self.lanes.iter_mut().for_each(|lane| lane.forget(peer));
            return Vec::new();
        }
        self.moving.remove(&peer).unwrap_or_default()
    }

    /// Records that a peer has connected or was lost. Returns the peer if it was lost.
    fn note(&mut self, event: &PeerEvent<Peer>) -> Option<PeerId> {
        match event {
            PeerEvent::Connected { peer, addr, outgoing: false, .. } => {
                tracing::debug!(?peer, %addr, "connected");
                self.sessions.entry(peer.id()).or_default().seen_at(addr.host());
                None
            }
            PeerEvent::Connected { .. } => None,
            PeerEvent::Lost { peer, reason } => {
                // A peer that this side connected to is ignored here.
                self.moving.remove(&peer.id());
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

    /// Takes a message that has arrived. Returns a job if work on it can begin.
    fn take(&mut self, endpoint: &Endpoint, handler: &dyn Handler, message: Message) -> Option<Job> {
        // A lost peer needs no reply. No further event would remove its state.
        message.peer().limits()?;
        if let Some(held) = self.moving.get_mut(&message.peer().id()) {
            held.push(message);
            return None;
        }
        let bulk = handler.class(announced(&message)) == ServiceClass::Bulk;
        let full = !bulk && self.is_full(message.peer().id(), Lane::Small);
        let lane = match bulk {
            true => Lane::Bulk,
            false if full && is_quick(handler, &message) => Lane::Quick,
            false => Lane::Small,
        };
        self.admit(message, lane, endpoint.now())
    }

    /// Takes messages that were held back.
    fn take_all(
        &mut self,
        endpoint: &Endpoint,
        handler: &dyn Handler,
        messages: Vec<Message>,
    ) -> impl Iterator<Item = Job> {
        messages.into_iter().filter_map(|message| self.take(endpoint, handler, message))
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
    beside(handler, attend(endpoint, handler, standing, limits, None, stop)).await;
}

/// Serves requests like [`serve`], but over several endpoints at once, each with its own handler.
/// The handlers share one store, so only the background work of the first one runs. Returns when
/// the last loop has ended.
pub async fn serve_all(fronts: &[Front<'_>], standing: &Standing, limits: Limits, stop: impl Future<Output = ()>) {
    let all = serve_beside(fronts, standing, limits, None, stop);
    match fronts.first() {
        Some((_, handler)) => beside(*handler, all).await,
        None => all.await,
    }
}

/// Serves requests like [`serve_all`], but without background work: it runs on another event loop
/// of the same server, or beside this. With a seat, the loops share the clients as they are needed.
pub(crate) async fn serve_beside(
    fronts: &[Front<'_>],
    standing: &Standing,
    limits: Limits,
    seat: Option<&Seat>,
    stop: impl Future<Output = ()>,
) {
    let stop = stop.shared();
    // Each future is polled only when it has been woken.
    let mut loops = FuturesUnordered::new();
    for (endpoint, handler) in fronts {
        loops.push(attend(endpoint, *handler, standing, limits, seat, stop.clone()));
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
    seat: Option<&Seat>,
    stop: impl Future<Output = ()>,
) {
    let metrics = RequestMetrics::of(endpoint);
    let mut desk = Desk::new(limits);
    let mut requests = FuturesUnordered::new();
    let begin = |job| answer(endpoint, handler, standing, limits, &metrics, job);
    let mut stop = pin!(stop.fuse());
    let mut sample = pin!(next_sample(endpoint).fuse());
    let (mut watch, mut check) = (StallWatch::default(), pin!(Fuse::terminated()));
    // The number of loops that get new connections, as this endpoint knows it, and the number of
    // its own that its loop has counted.
    let (mut spread, mut counted) = (0, 0);
    loop {
        if check.is_terminated() && !requests.is_empty() {
            check.set(endpoint.sleep(limits.stall_timeout / stall::CHECKS).fuse());
        }
        tokio::select! {
            biased;
            () = &mut stop => break,
            () = &mut check => cut_stalled(endpoint, handler, &desk, &mut watch),
            () = &mut sample => {
                metrics.sample(endpoint);
                sample.set(next_sample(endpoint).fuse());
            }
            event = endpoint.next_event() => {
                if let Some(peer) = desk.note(&event) {
                    handler.departed(peer);
                }
                seat.iter().for_each(|seat| seat.count(&mut counted, desk.sessions.len()));
            },
            Some((peer, lane)) = requests.next() => {
                desk.finished(peer, lane);
                requests.extend(std::iter::from_fn(|| desk.next(lane)).map(begin));
                let stay = desk.move_on(endpoint, peer);
                requests.extend(desk.take_all(endpoint, handler, stay).map(begin));
            }
            message = endpoint.next_unexpected() => {
                let (mut next, mut found) = (Some(message), 0);
                // Messages that arrived together are handled together.
                while let Some(message) = next.take() {
                    found += 1;
                    requests.extend(desk.take(endpoint, handler, message).map(begin));
                    next = endpoint.next_unexpected().now_or_never();
                }
                if let Some(seat) = seat {
                    let fewer = seat.found(found, endpoint.now());
                    let stay = desk.give_away(endpoint, fewer.unwrap_or(0));
                    requests.extend(desk.take_all(endpoint, handler, stay).map(begin));
                    // Other endpoints of the loop may have decided, or other loops meanwhile.
                    if fewer.is_some() || spread != seat.taking() {
                        spread = seat.taking();
                        endpoint.with(|engine| engine.transport_mut().spread(spread));
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
        () = patience => tracing::warn!("requests in flight did not end in time"),
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
    metrics: &RequestMetrics,
    job: Job,
) -> (PeerId, Lane) {
    let Job { message, arrived, lane, session } = job;
    let progress = metrics.begin(endpoint, arrived);
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
            progress.is_about(&request.body);
            // The time counts from the arrival, not from the beginning of the work, because the
            // client has been waiting since then.
            let timeout = allowance(Duration::from_millis(request.timeout_ms.into())).min(limits.request_timeout);
            let share = limits.requests - limits.requests / 4;
            let context = Context { peer: peer.id(), deadline: arrived + timeout, room: call.room(), share, session };
            match (&request.body, context.hello()) {
                (RequestBody::Hello(hello), _) => greet(&peer, handler, standing, &context, hello),
                (_, None) => {
                    let text = "the connection did not begin with a Hello";
                    Answer::error(FsError::new(ErrorCode::Protocol, text))
                }
                _ => match context.check(endpoint.now()).and_then(|()| allowed(&peer, &context, &request.body)) {
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
    if codec::is_error(&bytes) {
        progress.failed();
    }
    let (id, list) = (call.id(), data.as_ref().map(|data| data.list.clone()));
    if let Err(error) = call.reply(&bytes, list, endpoint.within(limits.reply_timeout)).await {
        tracing::debug!(?peer, id, %error, "reply not delivered");
    }
    (peer.id(), lane)
}

/// Answers a Hello: accepts it, or says who this server is. A refused connection stays open, so
/// that the answer arrives. Nothing is served on it.
fn greet(peer: &Peer, handler: &dyn Handler, standing: &Standing, context: &Context, hello: &Hello) -> Answer {
    let endpoint = peer.endpoint();
    // One connection has one sender.
    let party = match context.session.party.get() {
        Some(_) => Ok(()),
        None => Party::of(&peer.identity(), &hello.sender).map(|party| drop(context.session.party.set(party))),
    };
    if let Err(error) = party {
        audit(peer, "refused peer", "hello", Some(&error));
        return Answer::error(error);
    }
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

/// Returns whether the peer may make the request at all. The audit has each refusal and each use of
/// a duty.
fn allowed(peer: &Peer, context: &Context, request: &RequestBody) -> Result<(), FsError> {
    let Some(duty) = request.duty() else { return Ok(()) };
    let identity = peer.identity();
    let allowed = match context.party() {
        Some(party) => party.check_duty(&identity, duty),
        None => Claims::check_duty(&identity, duty),
    };
    let what = match request {
        RequestBody::Manager(ManagerRequest::Revoke { holder, back }) => {
            format!("{} {}", if *back { "let in" } else { "revoke" }, holder.0)
        }
        RequestBody::Manager(request) => request.name().to_owned(),
        RequestBody::Iod(request) => request.name().to_owned(),
        RequestBody::Hello(_) => "hello".to_owned(),
    };
    match &allowed {
        Ok(()) => audit(peer, "duty", &what, None),
        Err(error) => audit(peer, "refused duty", &what, Some(error)),
    }
    allowed
}

/// Ends the connection to a peer that sent a malformed request.
async fn cut(peer: &Peer, limits: Limits, error: &impl fmt::Display) {
    if peer.endpoint().with(|engine| engine.admits_log_line("malformed request", peer.id())) {
        tracing::warn!(?peer, from = ?peer.addr(), %error, "malformed request; connection closed");
    }
    // An error means that the connection has ended already.
    let _ = peer.disconnect(peer.within(limits.reply_timeout)).await;
}
