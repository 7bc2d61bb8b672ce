//! The operations of a handle. Each goes to the endpoint of its peer.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use super::{Handle, no_such_peer};
use crate::addr::Addr;
use crate::bulk::{BulkDescriptor, Exposure};
use crate::comm::{Body, Call, Incoming, Path};
use crate::endpoint::{Operation, SharedEndpoint};
use crate::engine::{Engine, Grant, PeerEvent, Unexpected, closed};
use crate::error::{Error, ErrorKind};
use crate::mem::{Access, MemList};
use crate::op::{Options, PeerId, Posted, Tag};
use crate::threading::AnyThread;
use crate::time::Time;

impl Handle {
    // ---- connections and memory -----------------------------------------------------------------

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
    /// As [`Endpoint::connect`](crate::Endpoint::connect). `Exhausted` if too many
    /// operations are under way in that endpoint.
    pub async fn connect(&self, addr: &Addr, options: Options) -> Result<PeerId, Error> {
        self.shared.callers[self.next_turn()].endpoint().connect(addr, options).await
    }

    /// Ends a connection after everything posted before has been sent; see
    /// [`Engine::disconnect`].
    ///
    /// # Errors
    /// `PeerLost` if the connection is gone already.
    pub async fn disconnect(&self, peer: PeerId, options: Options) -> Result<(), Error> {
        self.of(peer).ok_or_else(no_such_peer)?.disconnect(peer, options).await
    }

    /// See [`Engine::cut`].
    pub fn cut(&self, peer: PeerId, reason: Error) {
        if let Some(endpoint) = self.of(peer) {
            endpoint.cut(peer, reason);
        }
    }

    /// See [`Engine::expose`].
    ///
    /// # Errors
    /// As there. `Exhausted` if as many ranges are exposed to the peer as there may be operations.
    pub fn expose(&self, peer: PeerId, list: impl Into<MemList>, access: Access) -> Result<Exposure, Error> {
        let most = self.shared.config.max_operations.max(1);
        self.of(peer).ok_or_else(no_such_peer)?.with(|endpoint| {
            if endpoint.exposures_of(peer) >= most {
                let text = format!("{most} ranges are exposed to the peer; drop one before");
                return Err(Error::new(ErrorKind::Exhausted, text).during("expose"));
            }
            endpoint.expose(peer, list, access)
        })
    }

    // ---- messages and bulk data -----------------------------------------------------------------

    /// Sends an expected message; see [`Engine::post_send`].
    pub fn send(&self, peer: PeerId, tag: Tag, list: impl Into<MemList>, options: Options) -> Operation<AnyThread> {
        self.post(peer, |endpoint| endpoint.post_send(peer, tag, list, options))
    }

    /// Sends an unexpected message, which needs no receive; see [`Engine::post_send_unexpected`].
    pub fn send_unexpected(
        &self,
        peer: PeerId,
        tag: Tag,
        list: impl Into<MemList>,
        options: Options,
    ) -> Operation<AnyThread> {
        self.post(peer, |endpoint| endpoint.post_send_unexpected(peer, tag, list, options))
    }

    /// Receives an expected message; see [`Engine::post_recv`].
    pub fn recv(&self, peer: PeerId, tag: Tag, list: impl Into<MemList>, options: Options) -> Operation<AnyThread> {
        self.post(peer, |endpoint| endpoint.post_recv(peer, tag, list, options))
    }

    /// Drops the next expected message with this tag; see [`Engine::post_discard`].
    pub fn discard(&self, peer: PeerId, tag: Tag, options: Options) -> Operation<AnyThread> {
        self.post(peer, |endpoint| endpoint.post_discard(peer, tag, options))
    }

    /// Reads `local.len()` bytes at `at` of the memory that `remote` describes; see
    /// [`Engine::post_pull`].
    pub fn pull(
        &self,
        peer: PeerId,
        remote: &BulkDescriptor,
        at: u64,
        local: impl Into<MemList>,
        options: Options,
    ) -> Operation<AnyThread> {
        self.post(peer, |endpoint| endpoint.post_pull(peer, remote, at, local, options))
    }

    /// Writes `local` to `at` of the memory that `remote` describes; see [`Engine::post_push`].
    pub fn push(
        &self,
        peer: PeerId,
        remote: &BulkDescriptor,
        at: u64,
        local: impl Into<MemList>,
        options: Options,
    ) -> Operation<AnyThread> {
        self.post(peer, |endpoint| endpoint.post_push(peer, remote, at, local, options))
    }

    /// Lets the peer write `list` once; see [`Engine::post_grant`].
    ///
    /// # Errors
    /// As there. `Exhausted` if too many operations are under way.
    pub fn grant(
        &self,
        peer: PeerId,
        list: impl Into<MemList>,
        options: Options,
    ) -> Result<(Grant, Operation<AnyThread>), Error> {
        let endpoint = self.of(peer).ok_or_else(no_such_peer)?;
        let (grant, op) = endpoint.with_room(|engine| engine.post_grant(peer, list, options))?;
        Ok((grant, endpoint.operation(Ok(Posted::Pending(op)))))
    }

    /// Writes `local` into the memory that the peer has granted, and notifies the peer; see
    /// [`Engine::post_push_granted`].
    pub fn push_granted(
        &self,
        peer: PeerId,
        grant: &Grant,
        local: impl Into<MemList>,
        options: Options,
    ) -> Operation<AnyThread> {
        self.post(peer, |endpoint| endpoint.post_push_granted(peer, grant, local, options))
    }

    /// Waits until the endpoint of `peer` has room for one more operation.
    pub async fn room(&self, peer: PeerId) {
        if let Some(endpoint) = self.of(peer) {
            endpoint.room().await;
        }
    }

    /// Waits for `duration`, or until the handle is closed.
    ///
    /// # Errors
    /// `Exhausted` if too many operations are under way in the first endpoint.
    pub async fn sleep(&self, duration: Duration) -> Result<(), Error> {
        self.sleep_until(self.now() + duration).await
    }

    /// Waits until `at`, or until the handle is closed.
    ///
    /// # Errors
    /// As [`Handle::sleep`].
    pub async fn sleep_until(&self, at: Time) -> Result<(), Error> {
        let op = self.first().with_room(|endpoint| Ok(endpoint.post_timer(at, 0)))?;
        // A timer ends at its time, or with the handle.
        let _ = self.first().operation(Ok(Posted::Pending(op))).await;
        Ok(())
    }

    fn post(&self, peer: PeerId, post: impl FnOnce(&mut Engine) -> Result<Posted, Error>) -> Operation<AnyThread> {
        match self.of(peer) {
            Some(endpoint) => endpoint.post(post),
            None => self.first().operation(Err(no_such_peer())),
        }
    }

    // ---- calls ----------------------------------------------------------------------------------

    /// Sends `request` with `body` and prepares for the reply; see
    /// [`Caller::call`](crate::comm::Caller::call).
    ///
    /// # Errors
    /// As there. `Exhausted` if too many operations are under way: wait for [`Handle::room`].
    pub fn call(
        &self,
        peer: PeerId,
        request: &[u8],
        body: Body,
        forced: Option<Path>,
        options: Options,
    ) -> Result<Call<AnyThread>, Error> {
        let caller = self.caller_of(peer).ok_or_else(no_such_peer)?;
        caller.endpoint().check_room()?;
        caller.call(peer, request, body, forced, options)
    }

    /// Returns the largest length of a request to `peer`; see
    /// [`Caller::room`](crate::comm::Caller::room).
    pub fn request_room(&self, peer: PeerId) -> usize {
        self.caller_of(peer).map_or(0, |caller| caller.room(peer))
    }

    // ---- what peers send ------------------------------------------------------------------------

    /// Returns the next unexpected message of any peer. Several tasks may wait; each message goes
    /// to one of them. The endpoints have turns.
    ///
    /// # Errors
    /// `Cancelled` if the handle was closed.
    pub async fn next_unexpected(&self) -> Result<Unexpected, Error> {
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
            let message = self.next_unexpected().await?;
            let peer = message.peer();
            let Some(endpoint) = self.of(peer) else { continue };
            match Incoming::new(endpoint, message) {
                Ok(call) => return Ok(call),
                Err(error) => {
                    if endpoint.look(|engine| engine.admits_log_line("cut off", peer)) {
                        tracing::warn!(?peer, %error, "cut off");
                    }
                    endpoint.cut(peer, error);
                }
            }
        }
    }

    /// Returns the next event of a peer that came or went. Several tasks may wait; each event goes
    /// to one of them.
    ///
    /// # Errors
    /// `Cancelled` if the handle was closed.
    pub async fn next_event(&self) -> Result<PeerEvent, Error> {
        self.next(SharedEndpoint::poll_event).await
    }

    /// Returns what the first endpoint has for which `poll` is ready.
    async fn next<V>(&self, poll: impl Fn(&SharedEndpoint, &Context<'_>) -> Poll<V>) -> Result<V, Error> {
        let first = self.next_turn();
        poll_fn(|cx| {
            let count = self.shared.callers.len();
            let mut closing = false;
            for at in first..first + count {
                let endpoint = self.shared.callers[at % count].endpoint();
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
