//! What a handler gets and gives: a request's [`Context`], the [`Answer`], and what a server is
//! told once ([`Limits`], [`Standing`]).

use std::any::Any;
use std::collections::BTreeSet;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bmi::config::ServiceClass;
use bmi::stats::Kept;
use bmi::{Incoming, MemList, PeerId, Time};
use fs_proto::codec::{self};
use fs_proto::{Caller, ErrorCode, FsError, Hello, Identity, Reply, ReplyBody, Request, RequestBody, Role, Sender};

use super::party::{Party, Rights};
use crate::lock::lock;

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
    pub(super) session: Arc<Session>,
}

/// The state of a connection, kept as long as a request of it is in progress. The event loop of the
/// connection writes it, and the first event loop of the server counts the drafts.
#[derive(Debug, Default)]
pub(crate) struct Session {
    pub(super) gone: AtomicBool,
    /// The host of its peer, as it is seen.
    host: OnceLock<String>,
    /// The id of its client.
    client: OnceLock<u128>,
    /// The Hello that the server has accepted.
    pub(super) hello: OnceLock<Hello>,
    /// Who its peer is. Set before the Hello.
    pub(super) party: OnceLock<Party>,
    /// What it has shown tickets for.
    pub(crate) rights: Rights,
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
    pub(super) fn hears(&self, hello: &Hello) -> Result<bool, FsError> {
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
    pub(super) fn keep_while_drafting(&self, keep: impl FnOnce() -> Option<Kept>) {
        let mut kept = lock(&self.kept);
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
pub(super) fn allowance(timeout: Duration) -> Duration {
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

    /// Returns who the peer is, once it has said Hello.
    pub(crate) fn party(&self) -> Option<&Party> {
        self.session.party.get()
    }

    /// Returns for whom a request is made.
    pub(crate) fn caller(&self, request: &Request) -> Caller {
        let hello = || self.hello().map(|hello| &hello.caller);
        match (self.session.party.get(), request.caller.as_ref().or_else(hello)) {
            (Some(party), Some(asserted)) => party.speaker.caller(asserted),
            _ => Caller::NOBODY,
        }
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
        if client == 0 {
            return Err(FsError::new(ErrorCode::Invalid, "no client has the number 0"));
        }
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
#[expect(clippy::large_enum_variant, reason = "almost all are replies")]
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
