//! What a handler has of a call.
//!
//! | the client | what the handler has |
//! |---|---|
//! | calls, without data or with | [`Call::data`] once, and [`Call::reply`] |
//! | opens a stream | [`Call::next`] and [`Call::send`] until it replies |

use std::fmt;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use bmi_core::runtime::Instant;
use bmi_core::{PeerIdentity, SharedPeer};
use futures_util::future::select;

use super::answers::{acknowledge, detach, fail};
use super::arrival::data_len;
use super::held::Held;
use super::reply::{Answers, Replying, answer};
use super::streams::Stream;
use crate::rpc::Trace;
use crate::rpc::wire::REPLY_HEAD;
use crate::{Addr, Bytes, Error, ErrorKind, MemList, Memory};

/// A call that a client has made. The handler answers it with [`Call::reply`], by an error that it
/// returns, or with [`Call::refuse`].
pub struct Call {
    held: Held,
    request: Bytes,
    peer: SharedPeer,
    /// Length of the data that the client sends.
    data: u64,
    trace: Option<Trace>,
    /// [`Call::next`] has returned the data.
    taken: AtomicBool,
}

impl Call {
    pub(super) fn new(held: &Held, request: Range<usize>, trace: Option<Trace>) -> Call {
        held.look(|call| {
            let request = call.request_bytes().slice(request);
            let taken = AtomicBool::new(false);
            Call { held: held.clone(), request, peer: call.peer().clone(), data: data_len(call), trace, taken }
        })
    }

    /// Returns the request.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Returns the request, to be kept without a copy.
    pub fn request_bytes(&self) -> Bytes {
        self.request.clone()
    }

    /// Returns the length of the data that came with the request, in bytes. It is known before any
    /// memory is taken.
    pub fn data_len(&self) -> u64 {
        self.data
    }

    /// Returns the data that came with the request, in memory of its own.
    ///
    /// # Errors
    /// `TimedOut`, `PeerLost`, or `Invalid` if the call was answered.
    pub async fn data(&self) -> Result<Bytes, Error> {
        if self.data == 0 {
            return Ok(Bytes::new());
        }
        self.held.reserve(self.data).await?;
        let memory = Memory::zeroed(usize::try_from(self.data).expect("within the limit of a call"))?;
        self.data_into(&memory).await?;
        Ok(memory.into_bytes())
    }

    /// Copies the data that came with the request into memory of the program's own, until that is
    /// full. Over verbs and shared memory it goes there directly.
    ///
    /// # Errors
    /// As [`Call::data`]. `Invalid` if the memory is longer than the data, or read-only.
    pub async fn data_into(&self, memory: impl Into<MemList>) -> Result<(), Error> {
        let call = self.held.use_it()?;
        call.fetch(0, memory, self.held.options()).await
    }

    /// Returns the next part that the client sends, and `None` behind the last one. The client's
    /// memory for a part is free when it was taken here, so a handler that is slow slows its
    /// client. The data of a call that is no stream is its only part.
    ///
    /// It may be dropped, and called again. A part that was being fetched is then fetched again.
    ///
    /// # Errors
    /// `Cancelled` if the client has dropped the stream; `TimedOut`, `PeerLost`; `Invalid` if the
    /// call was answered.
    pub async fn next(&self) -> Result<Option<Bytes>, Error> {
        let Some(stream) = self.held.stream() else {
            if self.data == 0 || self.taken.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let data = self.data().await?;
            self.taken.store(true, Ordering::Relaxed);
            return Ok(Some(data));
        };
        let _in_turn = stream.taking.lock().await;
        loop {
            // What waits for the memory of others does not keep some of its own.
            self.held.release();
            if let Some(bytes) = stream.take_fetched() {
                return Ok(Some(bytes));
            }
            let Some(part) = stream.part().await? else { return Ok(None) };
            let (call, options) = (part.call(), self.held.options());
            let len = data_len(call);
            self.held.reserve(len).await?;
            let memory = Memory::zeroed(usize::try_from(len).expect("within the limit of a call"))?;
            if len > 0 {
                call.fetch(0, &memory, options).await?;
            }
            self.held.shared().metrics.received(len);
            // It is not lost if this is dropped now.
            stream.keep_fetched(memory.into_bytes());
            detach(acknowledge(part.take(), options));
        }
    }

    /// Sends a part to the client: `Bytes`, a `Vec`, [`Memory`] or a list of pieces, of any length
    /// up to what the client takes. It waits until the client asks for one, and has been received
    /// when this returns. So a client that is slow slows its handler. If it is dropped before, the
    /// stream is broken: no further part can be sent, and the client gets an error.
    ///
    /// # Errors
    /// `Cancelled` if the client has dropped the stream; `TimedOut`, `PeerLost`; `TooLarge`;
    /// `Invalid` if the client has not opened a [stream](super::super::Request::stream), or the
    /// call was answered.
    pub async fn send(&self, part: impl Into<MemList>) -> Result<(), Error> {
        let part = part.into();
        let Some(stream) = self.held.stream() else {
            let text = "the client takes no parts: it has to open a stream (Request::stream)";
            return Err(Error::new(ErrorKind::Invalid, text).during("send"));
        };
        let demand = stream.demand().await?.take();
        let unfinished = stream.broken_unless_done();
        answer(&self.held, demand, vec![0; REPLY_HEAD], Some(part), Answers::Demand).await?;
        unfinished.done();
        Ok(())
    }

    /// Returns the trace that the client's call belongs to, with the client's span.
    pub fn trace(&self) -> Option<Trace> {
        self.trace
    }

    /// Returns the address of the client.
    pub fn peer(&self) -> Option<Addr> {
        self.peer.addr()
    }

    /// Returns who the client is, as far as the transport has proved it. Nobody after its
    /// connection is gone.
    pub fn identity(&self) -> PeerIdentity {
        self.peer.identity()
    }

    /// Returns when the server's part of the call ends. The handler is dropped then.
    pub fn deadline(&self) -> Instant {
        self.held.deadline().into()
    }

    /// Waits until the client is gone: its connection is down, or it has dropped the stream, so
    /// nobody waits for the reply. The handler may go on, or stop.
    pub async fn client_gone(&self) {
        let gone = self.held.shared().watch.gone(&self.peer);
        match self.held.stream() {
            None => gone.await,
            Some(stream) => {
                select(pin!(gone), pin!(stream.dropped())).await;
            }
        }
    }

    /// Returns true if the client is gone.
    pub fn is_client_gone(&self) -> bool {
        self.peer.limits().is_none() || self.held.stream().is_some_and(Stream::is_dropped)
    }

    /// Replies. Add data with [`Replying::data`], and await the result.
    pub fn reply(self, bytes: impl AsRef<[u8]>) -> Replying {
        Replying::new(self.held, bytes.as_ref())
    }

    /// Replies that the request is wrong: the client's call ends with [`ErrorKind::Invalid`] and
    /// this text. For an error of another kind, return it from the handler.
    ///
    /// # Errors
    /// Those of sending the reply.
    pub async fn refuse(self, text: impl Into<String>) -> Result<(), Error> {
        let call = self.held.take()?;
        self.held.refuse();
        Box::pin(fail(call, Error::new(ErrorKind::Invalid, text), false)).await;
        Ok(())
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("request", &self.request).field("data", &self.data).finish_non_exhaustive()
    }
}
