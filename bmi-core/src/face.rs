//! The `async` face of an endpoint. A future may be dropped at any time: its operation is abandoned, and the endpoint keeps the
//! memory until no adapter can touch it.
//!
//! Operations are posted when the method is *called*, not when the future is first polled, so a receive can be posted before the
//! request that provokes its message:
//!
//! ```text
//! let reply = endpoint.recv(server, tag, &buffer, options);     // posted here
//! endpoint.send_unexpected(server, tag, request, options).await?;
//! let len = reply.await?.len;
//! ```
//!
//! A clone is another handle to the same endpoint. Single-threaded: runs on any executor that takes `!Send` futures, and something
//! must drive it (see [`crate::driver`]).

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::addr::Addr;
use crate::bulk::{BulkDescriptor, Exposure};
use crate::endpoint::{Counters, Endpoint, PeerEvent, PeerLimits, Unexpected};
use crate::error::Error;
use crate::mem::{Access, MemList};
use crate::op::{Completion, Options, PeerId, Tag};
use crate::time::{Clock, Time};
use crate::transport::{Armed, Transport};

/// A handle to an endpoint, for `async` code.
pub struct AsyncEndpoint<T: Transport> {
    _t: PhantomData<T>,
}

impl<T: Transport> Clone for AsyncEndpoint<T> {
    fn clone(&self) -> Self {
        AsyncEndpoint { _t: PhantomData }
    }
}

/// An operation under way; ends in its completion, or in an error that names operation and peer.
#[must_use = "dropping it abandons the operation"]
pub struct Operation<T: Transport> {
    _endpoint: AsyncEndpoint<T>,
}

impl<T: Transport> Future for Operation<T> {
    type Output = Result<Completion, Error>;

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        todo!()
    }
}

#[expect(clippy::todo, unused_variables, missing_docs, clippy::unused_async, reason = "signatures first")]
impl<T: Transport> AsyncEndpoint<T> {
    pub fn new(endpoint: Endpoint<T>, clock: impl Clock + 'static) -> AsyncEndpoint<T> {
        todo!()
    }
    /// Runs `f` on the endpoint itself.
    pub fn with<R>(&self, f: impl FnOnce(&mut Endpoint<T>) -> R) -> R {
        todo!()
    }
    pub fn now(&self) -> Time {
        todo!()
    }
    /// Options whose deadline is `timeout` from now.
    pub fn within(&self, timeout: Duration) -> Options {
        Options::within(self.now(), timeout)
    }
    pub fn listen(&self, addr: &Addr) -> Result<Addr, Error> {
        todo!()
    }
    pub async fn connect(&self, addr: &Addr, options: Options) -> Result<PeerId, Error> {
        todo!()
    }
    pub async fn disconnect(&self, peer: PeerId, options: Options) -> Result<(), Error> {
        todo!()
    }
    pub fn peer_addr(&self, peer: PeerId) -> Option<Addr> {
        todo!()
    }
    pub fn limits(&self, peer: PeerId) -> Option<PeerLimits> {
        todo!()
    }
    pub fn counters(&self) -> Counters {
        todo!()
    }
    pub fn expose(&self, peer: PeerId, list: impl Into<MemList>, access: Access) -> Result<Exposure, Error> {
        todo!()
    }
    pub fn send(&self, peer: PeerId, tag: Tag, list: impl Into<MemList>, options: Options) -> Operation<T> {
        todo!()
    }
    pub fn send_unexpected(&self, peer: PeerId, tag: Tag, list: impl Into<MemList>, options: Options) -> Operation<T> {
        todo!()
    }
    pub fn recv(&self, peer: PeerId, tag: Tag, list: impl Into<MemList>, options: Options) -> Operation<T> {
        todo!()
    }
    /// Reads `local.len()` bytes from `at` of what the peer described.
    pub fn pull(
        &self,
        peer: PeerId,
        remote: &BulkDescriptor,
        at: u64,
        local: impl Into<MemList>,
        options: Options,
    ) -> Operation<T> {
        todo!()
    }
    /// Writes `local` to `at` of what the peer described.
    pub fn push(
        &self,
        peer: PeerId,
        remote: &BulkDescriptor,
        at: u64,
        local: impl Into<MemList>,
        options: Options,
    ) -> Operation<T> {
        todo!()
    }
    pub async fn sleep(&self, duration: Duration) {
        todo!()
    }
    pub async fn sleep_until(&self, at: Time) {
        todo!()
    }
    /// The next message that needed no receive. Several tasks may wait.
    pub async fn next_unexpected(&self) -> Unexpected {
        todo!()
    }
    /// The next peer that came or went.
    pub async fn next_event(&self) -> PeerEvent {
        todo!()
    }

    // ---- for drivers ------------------------------------------------------------------------------------------------------
    /// Polls the endpoint once at the clock's time and wakes the futures that can go on; returns whether there was anything to do.
    pub fn progress(&self) -> bool {
        todo!()
    }
    pub fn next_deadline(&self) -> Option<Time> {
        todo!()
    }
    /// Gets ready to sleep: `waker` is woken when the transport has something to do (unless it has an event fd to say so), and when a task posts an
    /// operation or asks for one to be cancelled.
    pub fn arm(&self, waker: &Waker) -> Armed {
        todo!()
    }
}
