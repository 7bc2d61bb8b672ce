//! What a handle does with its endpoints: it connects by one of them, and takes what any has.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use super::Handle;
use crate::addr::Addr;
use crate::comm::Incoming;
use crate::endpoint::threading::AnyThread;
use crate::endpoint::{Message, SharedEndpoint, SharedPeer};
use crate::engine::{PeerEvent, closed};
use crate::error::Error;
use crate::op::{Options, PeerId, Posted};
use crate::time::Time;

impl Handle {
    /// Accepts connections at `addr`, for all endpoints whose transports are of one group. Returns
    /// the address with the port that was taken.
    ///
    /// # Errors
    /// Those of [`Transport::listen`](crate::Transport::listen).
    pub fn listen(&self, addr: &Addr) -> Result<Addr, Error> {
        self.first().listen(addr)
    }

    /// Connects to `addr`, by the endpoint whose turn it is. Dropping the future abandons the
    /// attempt.
    ///
    /// # Errors
    /// As [`Endpoint::connect`](crate::Endpoint::connect). `Exhausted` if too many operations are
    /// in flight in that endpoint.
    pub async fn connect(&self, addr: &Addr, options: Options) -> Result<SharedPeer, Error> {
        self.shared.endpoints[self.next_turn()].connect(addr, options).await
    }

    /// Returns the peer with this id; see [`Endpoint::peer`](crate::Endpoint::peer). An id of
    /// another handle may have none here.
    pub fn peer(&self, id: PeerId) -> Option<SharedPeer> {
        Some(self.shared.endpoints.get(usize::from(id.endpoint()))?.peer(id))
    }

    /// Waits for `duration`, or until the handle is closed.
    ///
    /// # Errors
    /// `Exhausted` if too many operations are in flight in the first endpoint.
    pub async fn sleep(&self, duration: Duration) -> Result<(), Error> {
        self.sleep_until(self.now() + duration).await
    }

    /// Waits until `at`, or until the handle is closed.
    ///
    /// # Errors
    /// As [`Handle::sleep`].
    pub async fn sleep_until(&self, at: Time) -> Result<(), Error> {
        let op = self.first().with_room(|engine| Ok(engine.post_timer(at, 0)))?;
        // A timer ends at its time, or with the handle.
        let _ = self.first().operation(Ok(Posted::Pending(op))).await;
        Ok(())
    }

    /// Returns the next unexpected message of any peer. Several tasks may wait; each message goes
    /// to one of them. The endpoints have turns.
    ///
    /// # Errors
    /// `Cancelled` if the handle was closed.
    pub async fn next_unexpected(&self) -> Result<Message<AnyThread>, Error> {
        self.next(SharedEndpoint::poll_unexpected).await
    }

    /// Returns the next call of any peer, as [`Handle::next_unexpected`] does for messages. A
    /// message that is not a call costs its sender the connection.
    ///
    /// A server gives each call to a task or a thread. The number of those should be bounded: what
    /// is not taken stays in its slot, and its sender stops.
    ///
    /// # Errors
    /// `Cancelled` if the handle was closed.
    pub async fn next_call(&self) -> Result<Incoming<AnyThread>, Error> {
        loop {
            if let Some(call) = self.next_unexpected().await?.into_call() {
                return Ok(call);
            }
        }
    }

    /// Returns the next event of a peer that came or went. Several tasks may wait; each event goes
    /// to one of them.
    ///
    /// # Errors
    /// `Cancelled` if the handle was closed.
    pub async fn next_event(&self) -> Result<PeerEvent<SharedPeer>, Error> {
        self.next(SharedEndpoint::poll_event).await
    }

    /// Returns what the first endpoint has for which `poll` is ready.
    async fn next<V>(&self, poll: impl Fn(&SharedEndpoint, &Context<'_>) -> Poll<V>) -> Result<V, Error> {
        let first = self.next_turn();
        poll_fn(|cx| {
            let count = self.shared.endpoints.len();
            let mut closing = false;
            for at in first..first + count {
                let endpoint = &self.shared.endpoints[at % count];
                if let Poll::Ready(found) = poll(endpoint, cx) {
                    return Poll::Ready(Ok(found));
                }
                closing |= endpoint.is_closing();
            }
            if closing { Poll::Ready(Err(closed())) } else { Poll::Pending }
        })
        .await
    }
}
