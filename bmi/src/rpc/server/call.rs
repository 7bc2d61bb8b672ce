//! What a handler has of a call.

use std::fmt;

use bmi_core::SharedPeer;
use bmi_core::runtime::Instant;

use super::answers::fail;
use super::calls::data_len;
use super::held::Held;
use super::reply::Replying;
use crate::rpc::wire::REQUEST_HEAD;
use crate::{Addr, Bytes, Error, ErrorKind, MemList, Memory};

/// A call that a client has made. The handler answers it with [`Call::reply`], by an error that it
/// returns, or with [`Call::refuse`].
pub struct Call {
    held: Held,
    request: Bytes,
    peer: SharedPeer,
    /// Length of the data that the client sends.
    data: u64,
}

impl Call {
    pub(super) fn new(held: &Held) -> Call {
        held.look(|call| {
            let request = call.request_bytes().slice(REQUEST_HEAD..);
            Call { held: held.clone(), request, peer: call.peer().clone(), data: data_len(call) }
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

    /// Returns the address of the client.
    pub fn peer(&self) -> Option<Addr> {
        self.peer.addr()
    }

    /// Returns when the server's part of the call ends. The handler is dropped then.
    pub fn deadline(&self) -> Instant {
        self.held.deadline().into()
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
