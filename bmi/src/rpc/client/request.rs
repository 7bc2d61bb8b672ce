//! A call of a client, from its preparation to its reply.

use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bmi_core::runtime::{Instant, host};
use bmi_core::{SharedPeer, Time};
use tracing::Instrument;

use super::receive::{Failure, From, Receiving};
use super::{FIRST_PAUSE, Inner, Stream};
use crate::rpc::Trace;
use crate::rpc::trace::of_call;
use crate::rpc::wire::{REQUEST_HEAD, RequestHead, RequestKind, append_trace};
use crate::{Body, Bytes, Error, ErrorKind, MemList, Options};

/// Longest pause before a call is made again. Without one it is made again once, when a connection
/// is lost.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// A call that is about to be made. Await it, or [`wait`](Request::wait) for it on a thread.
#[must_use = "a call is made when it is awaited"]
pub struct Request {
    client: Arc<Inner>,
    /// The head, still empty, and the request.
    message: Vec<u8>,
    data: Option<MemList>,
    into: Option<MemList>,
    timeout: Duration,
    idempotent: bool,
    /// It is behind the request in the message.
    trace: Option<Trace>,
}

/// The reply to a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The handler's reply.
    pub bytes: Bytes,
    /// The data. Empty if the call gave it memory of its own ([`Request::data_into`]).
    pub data: Bytes,
    /// Length of the data, in bytes.
    pub data_len: u64,
}

impl Request {
    pub(super) fn new(client: Arc<Inner>, request: &[u8]) -> Request {
        let mut message = Vec::with_capacity(REQUEST_HEAD + request.len());
        message.resize(REQUEST_HEAD, 0);
        message.extend_from_slice(request);
        let timeout = client.settings.timeout;
        Request { client, message, data: None, into: None, timeout, idempotent: false, trace: None }
    }

    /// Adds data for the server: `Bytes`, a `Vec`, [`Memory`](crate::Memory) or a list of pieces.
    /// Over verbs and shared memory it goes there without a copy. It must not change until the
    /// reply.
    pub fn data(mut self, data: impl Into<MemList>) -> Request {
        self.data = Some(data.into());
        self
    }

    /// Receives the data of the reply in memory of the program's own. If it is longer, the call
    /// ends with [`ErrorKind::TooLarge`].
    pub fn data_into(mut self, memory: impl Into<MemList>) -> Request {
        self.into = Some(memory.into());
        self
    }

    /// Sets the time for the call, in place of [`ClientBuilder::timeout`](super::ClientBuilder).
    pub fn timeout(mut self, timeout: Duration) -> Request {
        self.timeout = timeout;
        self
    }

    /// Says that the server may do twice what this call asks for, and it does no harm. The client
    /// then makes it again when it does not know whether the server has done it.
    pub fn idempotent(mut self) -> Request {
        self.idempotent = true;
        self
    }

    /// Makes the call, as one whose request and reply come in parts of any number. The handler uses
    /// [`Call::next`](crate::Call::next) and [`Call::send`](crate::Call::send). The time of the
    /// call is that of the whole stream.
    ///
    /// # Errors
    /// As a call's, before it was sent. `Invalid` if the call has data, or memory for it.
    pub async fn stream(mut self) -> Result<Stream, Error> {
        if self.data.is_some() || self.into.is_some() {
            let text = "a stream has no data but its parts: Stream::send";
            return Err(Error::new(ErrorKind::Invalid, text).during("stream"));
        }
        self.set_trace(Trace::current());
        let deadline = (Instant::now() + self.timeout).time();
        Stream::open(self.client, self.message, self.trace, deadline).await
    }

    fn set_trace(&mut self, trace: Option<Trace>) {
        if self.trace.is_none() {
            self.trace = trace;
            append_trace(trace, &mut self.message);
        }
    }

    /// Makes the call, and blocks the thread until its end. For programs without a runtime.
    ///
    /// # Errors
    /// As if it was awaited.
    pub fn wait(self) -> Result<Reply, Error> {
        if host().is_some() {
            let text = "a world has one thread, which would wait for itself: await the call";
            return Err(Error::new(ErrorKind::Invalid, text).during("wait"));
        }
        let handle = self.client.any_handle()?;
        handle.block_on(self.make())
    }

    async fn make(mut self) -> Result<Reply, Error> {
        let (client, (span, trace)) = (Arc::clone(&self.client), of_call());
        self.set_trace(trace);
        let in_flight = client.metrics.begin();
        let made = self.attempt().instrument(span).await;
        in_flight.end(made.as_ref().err().map(Error::kind));
        made
    }

    /// Makes the call, and makes it again as long as that may help.
    async fn attempt(mut self) -> Result<Reply, Error> {
        if self.into.as_ref().is_some_and(MemList::is_read_only) {
            let text = "the memory for the reply is read-only: use Memory::zeroed";
            return Err(Error::new(ErrorKind::Invalid, text).during("call"));
        }
        let client = Arc::clone(&self.client);
        let deadline = (Instant::now() + self.timeout).time();
        let _permit = client.permits(&client.calls, 1, deadline).await?;
        let mut pause = Duration::ZERO;
        loop {
            let (at, peer) = client.peer(deadline).await?;
            let replies = client.links[at].replies();
            let failure = match self.once(at, &peer, deadline).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            let (kind, idempotent) = (failure.error.kind(), self.idempotent);
            client.failed(at, &peer, &failure, replies);
            let may_succeed = failure.error.is_retryable() || kind == ErrorKind::Abandoned;
            let repeats = failure.may_be_repeated() || idempotent && may_succeed;
            let error = failure.error;
            if !repeats || Instant::now().time() + pause >= deadline {
                return Err(error);
            }
            if kind != ErrorKind::PeerLost || !pause.is_zero() {
                client.any_handle()?.sleep(pause.max(FIRST_PAUSE)).await?;
            }
            pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            client.metrics.repeated();
        }
    }

    /// Makes the call on a connection.
    async fn once(&mut self, link: usize, peer: &SharedPeer, deadline: Time) -> Result<Reply, Failure> {
        let unsent = |error| Failure { error, from: From::Unsent };
        let receiving = Receiving { client: &self.client, link, peer, deadline, into: self.into.as_ref() };
        let head = RequestHead {
            kind: RequestKind::Call { max_reply: receiving.max_reply() },
            time_us: receiving.time_us(),
            trace: self.trace,
        };
        self.message[..REQUEST_HEAD].copy_from_slice(&head.encode());
        // Memory for the reply, unless the call has data: it goes in one direction.
        let buffer = match (&self.data, &self.into) {
            (None, None) => receiving.offer().map_err(unsent)?,
            _ => None,
        };
        let body = match (&self.data, &self.into, &buffer) {
            (Some(data), ..) => Body::Out(data.clone()),
            (None, Some(into), _) => Body::In(into.clone()),
            (None, None, Some(buffer)) => Body::In(buffer.list()),
            (None, None, None) => Body::None,
        };
        let call = peer.call(&self.message, body, Options::by(deadline)).map_err(unsent)?;
        self.client.metrics.sent(self.message.len() - REQUEST_HEAD, self.data.as_ref().map_or(0, MemList::len));
        let reply = call.reply().await.map_err(|error| Failure { error, from: From::Connection })?;
        receiving.take(reply, buffer).await
    }
}

impl IntoFuture for Request {
    type Output = Result<Reply, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Reply, Error>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.make())
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = Bytes::copy_from_slice(&self.message[REQUEST_HEAD..]);
        f.debug_struct("Request").field("request", &request).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
