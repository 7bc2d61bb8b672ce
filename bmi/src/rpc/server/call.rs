//! What a handler has of a call.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bmi_core::runtime::Instant;
use bmi_core::{AnyThread, SharedPeer, Time};
use tokio::sync::SemaphorePermit;

use super::Shared;
use super::reply::{Replying, refuse};
use crate::paths::Direction;
use crate::rpc::permits;
use crate::rpc::wire::REQUEST_HEAD;
use crate::{Addr, Bytes, Error, ErrorKind, Incoming, MemList, Memory, Options};

/// A call that a client has made. The handler answers it with [`Call::reply`], by an error that it
/// returns, or with [`Call::refuse`].
pub struct Call {
    held: Held,
    request: Bytes,
    peer: SharedPeer,
    /// Length of the data that the client sends.
    data: u64,
}

/// A call, held by its handler and by what runs the handler: if the handler ends without a reply,
/// the other one replies.
#[derive(Clone)]
pub(super) struct Held(Arc<Inner>);

struct Inner {
    /// `None` once it was answered, and while it is being used.
    call: Mutex<Option<Incoming<AnyThread>>>,
    shared: Arc<Shared>,
    deadline: Time,
    /// Length of the longest data that the client takes.
    max_reply: u64,
    /// Permits for the data that the handler has taken.
    permits: Mutex<usize>,
}

impl Held {
    pub(super) fn new(call: Incoming<AnyThread>, shared: Arc<Shared>, deadline: Time, max_reply: u64) -> Held {
        let (call, permits) = (Mutex::new(Some(call)), Mutex::new(0));
        Held(Arc::new(Inner { call, shared, deadline, max_reply, permits }))
    }

    fn slot(&self) -> MutexGuard<'_, Option<Incoming<AnyThread>>> {
        self.0.call.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the call, to answer it.
    ///
    /// # Errors
    /// `Invalid` if it was answered.
    pub(super) fn take(&self) -> Result<Incoming<AnyThread>, Error> {
        self.slot().take().ok_or_else(|| Error::new(ErrorKind::Invalid, "the call was answered"))
    }

    /// Answers the call with an error, unless its handler has answered it.
    pub(super) async fn end(&self, error: Error) {
        let call = self.slot().take();
        if let Some(call) = call {
            // It is rare, and its future is large.
            Box::pin(refuse(call, error)).await;
        }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.0.shared
    }

    pub(super) fn options(&self) -> Options {
        Options::by(self.0.deadline)
    }

    pub(super) fn max_reply(&self) -> u64 {
        self.0.max_reply
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let taken = *self.permits.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.shared.bytes.add_permits(taken);
    }
}

/// The call while it is used. It goes back when this is dropped.
struct InUse<'a> {
    held: &'a Held,
    call: Option<Incoming<AnyThread>>,
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        *self.held.slot() = self.call.take();
    }
}

impl Call {
    pub(super) fn new(held: &Held) -> Call {
        let call = held.slot();
        let call = call.as_ref().expect("it is new");
        let request = call.request_bytes().slice(REQUEST_HEAD..);
        let data = if call.direction() == Some(Direction::Write) { call.len() } else { 0 };
        Call { held: held.clone(), request, peer: call.peer().clone(), data }
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
        self.reserve().await?;
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
        let in_use = InUse { held: &self.held, call: Some(self.held.take()?) };
        let call = in_use.call.as_ref().expect("just taken");
        call.fetch(0, memory, self.held.options()).await
    }

    /// Waits until the data may be taken, by the limit for all calls.
    async fn reserve(&self) -> Result<(), Error> {
        let most = u32::try_from(permits(self.data)).expect("within the limit of a call");
        let acquired = self.held.shared().bytes.acquire_many(most).await;
        acquired.map_err(|_| Error::new(ErrorKind::Cancelled, "the server was closed"))?.forget_into(&self.held);
        Ok(())
    }

    /// Returns the address of the client.
    pub fn peer(&self) -> Option<Addr> {
        self.peer.addr()
    }

    /// Returns when the server's part of the call ends. The handler is dropped then.
    pub fn deadline(&self) -> Instant {
        self.held.0.deadline.into()
    }

    /// Waits until the client is gone: its connection is down, so nobody waits for the reply. The
    /// handler may go on, or stop.
    pub async fn client_gone(&self) {
        self.held.shared().watch.gone(&self.peer).await;
    }

    /// Returns true if the client is gone.
    pub fn is_client_gone(&self) -> bool {
        self.peer.limits().is_none()
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
        Box::pin(refuse(call, Error::new(ErrorKind::Invalid, text))).await;
        Ok(())
    }
}

/// Gives permits to a call, until it ends.
trait ForgetInto {
    fn forget_into(self, held: &Held);
}

impl ForgetInto for SemaphorePermit<'_> {
    fn forget_into(self, held: &Held) {
        *held.0.permits.lock().unwrap_or_else(PoisonError::into_inner) += self.num_permits();
        self.forget();
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("request", &self.request).field("data", &self.data).finish_non_exhaustive()
    }
}
