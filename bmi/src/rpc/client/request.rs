//! A call of a client, from its preparation to its reply.

use std::fmt;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bmi_core::runtime::{Instant, host};
use bmi_core::{SharedPeer, Time};

use super::Inner;
use super::link::Link;
use crate::rpc::permits;
use crate::rpc::wire::{Place, REPLY_HEAD, REQUEST_HEAD, ReplyHead, RequestHead, RequestKind};
use crate::{Body, Bytes, Error, ErrorKind, MemList, Memory, Options};

/// Pause before a call is made again, at first and at most. Without one it is made again once, when
/// a connection is lost.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
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

/// Why a call has no reply.
struct Failure {
    error: Error,
    from: From,
}

/// Where the error of a call comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// This side: nothing was sent.
    Unsent,
    /// The connection, after the request was sent.
    Connection,
    /// The server, before the handler has begun.
    Server,
    /// The handler. Its kind is about what the handler did, not about this connection.
    Handler,
}

impl Failure {
    /// Returns true if the handler has not begun, and another attempt may succeed.
    fn may_be_repeated(&self) -> bool {
        match (self.from, self.error.kind()) {
            (From::Unsent, ErrorKind::PeerLost) => true,
            // It goes down, or has closed the connection because it was idle.
            (From::Unsent | From::Connection | From::Server, ErrorKind::Refused) => true,
            _ => false,
        }
    }
}

impl Request {
    pub(super) fn new(client: Arc<Inner>, request: &[u8]) -> Request {
        let mut message = Vec::with_capacity(REQUEST_HEAD + request.len());
        message.resize(REQUEST_HEAD, 0);
        message.extend_from_slice(request);
        let timeout = client.settings.timeout;
        Request { client, message, data: None, into: None, timeout, idempotent: false }
    }

    /// Adds data for the server: `Bytes`, a `Vec`, [`Memory`] or a list of pieces. Over verbs and
    /// shared memory it goes there without a copy. It must not change until the reply.
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

    async fn make(self) -> Result<Reply, Error> {
        let client = Arc::clone(&self.client);
        let in_flight = client.metrics.begin();
        let made = self.attempt().await;
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
            let (link, peer) = client.peer(deadline).await?;
            let replies = link.replies();
            let failure = match self.once(link, &peer, deadline).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            let (kind, idempotent) = (failure.error.kind(), self.idempotent);
            match (failure.from, kind) {
                (From::Unsent | From::Connection, ErrorKind::PeerLost | ErrorKind::Refused) => {
                    link.lost(&peer, &failure.error);
                }
                (From::Connection, ErrorKind::TimedOut) => link.timed_out(replies),
                (From::Server, ErrorKind::Refused) => client.pass_on(link),
                _ => {}
            }
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
    async fn once(&mut self, link: &Link, peer: &SharedPeer, deadline: Time) -> Result<Reply, Failure> {
        let unsent = |error| Failure { error, from: From::Unsent };
        let settings = &self.client.settings;
        let max_reply = self.into.as_ref().map_or(settings.max_reply, |into| into.len() as u64);
        let time_us = deadline.since(peer.endpoint().now()).as_micros() as u64;
        let head = RequestHead { kind: RequestKind::Call { max_reply }, time_us };
        self.message[..REQUEST_HEAD].copy_from_slice(&head.encode());
        // Memory for the reply, unless the call has data: it goes in one direction.
        let buffer = match (&self.data, &self.into) {
            (None, None) if settings.offer > 0 => Some(link.buffers.take().map_err(unsent)?),
            _ => None,
        };
        let body = match (&self.data, &self.into, &buffer) {
            (Some(data), ..) => Body::Out(data.clone()),
            (None, Some(into), _) => Body::In(into.clone()),
            (None, None, Some(buffer)) => Body::In(buffer.into()),
            (None, None, None) => Body::None,
        };
        let call = peer.call(&self.message, body, Options::by(deadline)).map_err(unsent)?;
        self.client.metrics.sent(self.message.len() - REQUEST_HEAD, self.data.as_ref().map_or(0, MemList::len));
        let sent = |error| Failure { error, from: From::Connection };
        let reply = call.reply().await.map_err(sent)?;
        link.replied();
        let bytes = reply.bytes;
        let head = ReplyHead::decode(&bytes).map_err(sent)?;
        let end = REPLY_HEAD + head.len as usize;
        if let Some(kind) = head.error {
            buffer.into_iter().for_each(|buffer| link.buffers.keep(buffer));
            let text = String::from_utf8_lossy(&bytes[REPLY_HEAD..end]).into_owned();
            let error = Error::new(kind, text).during("call");
            let error = match peer.addr() {
                Some(addr) => error.with_peer(addr),
                None => error,
            };
            return Err(Failure { error, from: if head.not_begun { From::Server } else { From::Handler } });
        }
        let data = match head.place {
            Place::Behind => {
                buffer.into_iter().for_each(|buffer| link.buffers.keep(buffer));
                self.copied(bytes.slice(end..)).map_err(sent)?
            }
            Place::InMemory if head.data != reply.data => return Err(sent(short(head.data, reply.data))),
            Place::InMemory => match buffer {
                Some(buffer) => link.buffers.contents(buffer, reply.data as usize),
                None => Bytes::new(),
            },
            Place::Kept { number } => {
                buffer.into_iter().for_each(|buffer| link.buffers.keep(buffer));
                Box::pin(self.fetch(peer, number, head.data, deadline)).await.map_err(sent)?
            }
        };
        self.client.metrics.received(end - REPLY_HEAD, head.data);
        Ok(Reply { bytes: bytes.slice(REPLY_HEAD..end), data, data_len: head.data })
    }

    /// Returns data that came with the reply's bytes, or copies it to the program's memory.
    fn copied(&self, data: Bytes) -> Result<Bytes, Error> {
        match &self.into {
            None => Ok(data),
            Some(into) if into.len() < data.len() => Err(too_large(data.len() as u64, into.len() as u64)),
            Some(into) => {
                into.copy_from(0, &data);
                Ok(Bytes::new())
            }
        }
    }

    /// Asks for the data of a reply, with memory of its length.
    async fn fetch(&self, peer: &SharedPeer, number: u64, len: u64, deadline: Time) -> Result<Bytes, Error> {
        let client = &self.client;
        let most = self.into.as_ref().map_or(client.settings.max_reply, |into| into.len() as u64);
        if len > most.min(client.settings.max_bytes) && self.into.is_none() || len > most {
            return Err(too_large(len, most));
        }
        let whole = usize::try_from(len).expect("within the limit of a reply");
        let (into, memory, _permit) = match &self.into {
            Some(into) => (into.range(0, whole).collect(), None, None),
            None => {
                let permit = client.permits(&client.bytes, permits(len), deadline).await?;
                let memory = Memory::zeroed(whole)?;
                (MemList::from(&memory), Some(memory), Some(permit))
            }
        };
        let time_us = deadline.since(peer.endpoint().now()).as_micros() as u64;
        let request = RequestHead { kind: RequestKind::Fetch { number }, time_us }.encode();
        let reply = peer.call(&request, Body::In(into), Options::by(deadline))?.reply().await?;
        let head = ReplyHead::decode(&reply.bytes)?;
        if let Some(kind) = head.error {
            return Err(Error::new(kind, String::from_utf8_lossy(&reply.bytes[REPLY_HEAD..])).during("call"));
        }
        if reply.data != len {
            return Err(short(len, reply.data));
        }
        Ok(memory.map_or_else(Bytes::new, Memory::into_bytes))
    }
}

fn too_large(len: u64, most: u64) -> Error {
    let text = format!("a reply with {len} bytes of data, and this side takes {most} (max_reply)");
    Error::new(ErrorKind::TooLarge, text).during("call")
}

fn short(said: u64, came: u64) -> Error {
    Error::new(ErrorKind::Protocol, format!("a reply with {said} bytes of data, of which {came} came")).during("call")
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
