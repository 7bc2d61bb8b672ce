//! A peer of an endpoint, for `async` code: what goes to one peer stands on it.

use std::fmt;
use std::time::Duration;

use super::{Endpoint, Operation};
use crate::addr::Addr;
use crate::endpoint::threading::{AnyThread, OneThread, Threading};
use crate::engine::{CallPart, Engine, Exposure, Grant, PeerLimits, Unexpected};
use crate::error::{Error, ErrorKind};
use crate::identity::PeerIdentity;
use crate::mem::{Access, MemList};
use crate::op::{Options, PeerId, Posted, Tag};
use crate::wire::BulkDescriptor;

/// A peer: one connection of an endpoint. A clone is another handle to the same connection, and
/// costs a count.
///
/// [`Endpoint::connect`] and [`Handle::connect`](crate::Handle::connect) return one. A message and
/// a call know theirs, and [`Endpoint::peer`] makes one of an id. Dropping it does not end the
/// connection: it ends with [`Peer::disconnect`], or with its endpoint, which lives as long as a
/// handle to it or to one of its peers. Afterwards all operations end with `PeerLost`.
///
/// Operations, calls and exposures are refused with `Exhausted` while as many as the settings of a
/// handle allow are in flight ([`HandleConfig::max_operations`](crate::HandleConfig)). An endpoint
/// by itself has no such bound.
pub struct Peer<S: Threading = OneThread> {
    pub(crate) endpoint: Endpoint<S>,
    id: PeerId,
}

/// A peer that any thread can use.
pub type SharedPeer = Peer<AnyThread>;

/// An unexpected message, with its peer. Dropping it returns its space to the peer, and with it the
/// credit. The rest is in [`Unexpected`]. As a [`Bytes`](bytes::Bytes) it does not keep its
/// endpoint.
pub struct Message<S: Threading = OneThread> {
    peer: Peer<S>,
    message: Unexpected,
}

impl<S: Threading> Clone for Peer<S> {
    fn clone(&self) -> Self {
        Peer { endpoint: self.endpoint.clone(), id: self.id }
    }
}

/// Two handles are equal if they lead to the same connection of the same endpoint.
impl<S: Threading> PartialEq for Peer<S> {
    fn eq(&self, other: &Peer<S>) -> bool {
        self.id == other.id && std::ptr::eq(&raw const *self.endpoint.inner, &raw const *other.endpoint.inner)
    }
}

impl<S: Threading> Eq for Peer<S> {}

impl<S: Threading> fmt::Debug for Peer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

impl<S: Threading> Endpoint<S> {
    /// Returns the peer with this id, for instance of a completion. If there is no such peer, its
    /// operations end with `PeerLost`.
    pub fn peer(&self, id: PeerId) -> Peer<S> {
        Peer { endpoint: self.clone(), id }
    }
}

impl<S: Threading> Peer<S> {
    // ---- getters --------------------------------------------------------------------------------

    /// Returns the id of the peer, which no other peer of the endpoint ever has.
    pub fn id(&self) -> PeerId {
        self.id
    }

    /// Returns the endpoint.
    pub fn endpoint(&self) -> &Endpoint<S> {
        &self.endpoint
    }

    /// Returns options whose deadline is `timeout` from now.
    pub fn within(&self, timeout: Duration) -> Options {
        self.endpoint.within(timeout)
    }

    /// See [`Engine::peer_addr`].
    pub fn addr(&self) -> Option<Addr> {
        self.endpoint.look(|engine| engine.peer_addr(self.id))
    }

    /// See [`Engine::peer_identity`].
    pub fn identity(&self) -> PeerIdentity {
        self.endpoint.look(|engine| engine.peer_identity(self.id))
    }

    /// Returns what the peer agreed to when the connection was made, or `None` if the connection is
    /// not up; see [`Engine::limits`].
    pub fn limits(&self) -> Option<PeerLimits> {
        self.endpoint.look(|engine| engine.limits(self.id))
    }

    // ---- connection and memory ------------------------------------------------------------------

    /// Ends the connection after everything posted before has been sent; see
    /// [`Engine::disconnect`]. If the future is dropped after its first poll, the connection ends
    /// all the same.
    ///
    /// # Errors
    /// `PeerLost` if the connection is gone already.
    pub async fn disconnect(&self, options: Options) -> Result<(), Error> {
        let grace = self.endpoint.look(|engine| engine.config().timeouts.fence_grace);
        let options = Options { deadline: options.deadline.or_else(|| Some(self.endpoint.now() + grace)), ..options };
        let op = self.endpoint.with(|engine| engine.disconnect(self.id, options))?;
        self.endpoint.operation(Ok(Posted::Pending(op))).await.map(|_| ())
    }

    /// See [`Engine::cut`].
    pub fn cut(&self, reason: Error) {
        self.endpoint.with(|engine| engine.cut(self.id, reason));
    }

    /// See [`Engine::expose`].
    ///
    /// # Errors
    /// As there. `Exhausted` if as many ranges are exposed to the peer as there may be operations.
    pub fn expose(&self, list: impl Into<MemList>, access: Access) -> Result<Exposure, Error> {
        self.exposing(|engine| engine.expose(self.id, list, access))
    }

    /// See [`Engine::expose_standing`].
    ///
    /// # Errors
    /// As [`Peer::expose`].
    pub fn expose_standing(&self, list: impl Into<MemList>, access: Access) -> Result<Exposure, Error> {
        self.exposing(|engine| engine.expose_standing(self.id, list, access))
    }

    /// Exposes memory, if one more range may be exposed to the peer.
    fn exposing(&self, expose: impl FnOnce(&mut Engine) -> Result<Exposure, Error>) -> Result<Exposure, Error> {
        self.endpoint.with_state(|state| {
            let most = state.max_operations;
            if most < usize::MAX && state.engine.exposures_of(self.id) >= most {
                let text = format!("{most} ranges are exposed to the peer; drop one before");
                return Err(Error::new(ErrorKind::Exhausted, text).during("expose"));
            }
            expose(&mut state.engine)
        })
    }

    // ---- messages and bulk data -----------------------------------------------------------------

    /// Sends an expected message; see [`Engine::post_send`].
    pub fn send(&self, tag: Tag, list: impl Into<MemList>, options: Options) -> Operation<S> {
        self.post(|engine| engine.post_send(self.id, tag, list, options))
    }

    /// Sends an unexpected message, which needs no receive; see [`Engine::post_send_unexpected`].
    pub fn send_unexpected(&self, tag: Tag, list: impl Into<MemList>, options: Options) -> Operation<S> {
        self.post(|engine| engine.post_send_unexpected(self.id, tag, list, options))
    }

    /// Receives an expected message; see [`Engine::post_recv`].
    pub fn recv(&self, tag: Tag, list: impl Into<MemList>, options: Options) -> Operation<S> {
        self.post(|engine| engine.post_recv(self.id, tag, list, options))
    }

    /// Drops the next expected message with this tag; see [`Engine::post_discard`].
    pub fn discard(&self, tag: Tag, options: Options) -> Operation<S> {
        self.post(|engine| engine.post_discard(self.id, tag, options))
    }

    /// Reads `local.len()` bytes at `at` of the memory that `remote` describes; see
    /// [`Engine::post_pull`].
    pub fn pull(&self, remote: &BulkDescriptor, at: u64, local: impl Into<MemList>, options: Options) -> Operation<S> {
        self.post(|engine| engine.post_pull(self.id, remote, at, local, options))
    }

    /// Writes `local` to `at` of the memory that `remote` describes; see [`Engine::post_push`].
    pub fn push(&self, remote: &BulkDescriptor, at: u64, local: impl Into<MemList>, options: Options) -> Operation<S> {
        self.post(|engine| engine.post_push(self.id, remote, at, local, options))
    }

    /// Lets the peer write `list` once; see [`Engine::post_grant`].
    ///
    /// # Errors
    /// As there. `Exhausted` if too many operations are in flight.
    pub fn grant(&self, list: impl Into<MemList>, options: Options) -> Result<(Grant, Operation<S>), Error> {
        let (grant, op) = self.endpoint.with_room(|engine| engine.post_grant(self.id, list, options))?;
        Ok((grant, self.endpoint.operation(Ok(Posted::Pending(op)))))
    }

    /// Writes `local` into the memory that the peer has granted, and notifies the peer; see
    /// [`Engine::post_push_granted`].
    pub fn push_granted(&self, grant: &Grant, local: impl Into<MemList>, options: Options) -> Operation<S> {
        self.post(|engine| engine.post_push_granted(self.id, grant, local, options))
    }

    /// Posts an operation, if there is room.
    fn post(&self, post: impl FnOnce(&mut Engine) -> Result<Posted, Error>) -> Operation<S> {
        self.endpoint.operation(self.endpoint.with_room(post))
    }

    // ---- for calls ------------------------------------------------------------------------------

    /// Posts an operation that a call needs. Room is not asked for: who starts and takes calls
    /// bounds it.
    pub(crate) fn post_for_call(&self, post: impl FnOnce(&mut Engine) -> Result<Posted, Error>) -> Operation<S> {
        self.endpoint.operation(self.endpoint.with(post))
    }

    /// Sends a message of a call.
    pub(crate) fn send_in_call(&self, id: Tag, list: impl Into<MemList>, options: Options) -> Operation<S> {
        self.post_for_call(|engine| engine.post_in_call(CallPart::Send, self.id, id, list.into(), options))
    }

    /// Receives a message of a call.
    pub(crate) fn recv_in_call(&self, id: Tag, list: impl Into<MemList>, options: Options) -> Operation<S> {
        self.post_for_call(|engine| engine.post_in_call(CallPart::Receive, self.id, id, list.into(), options))
    }

    /// Returns whether a line about this peer may be logged; see [`Engine::admits_log_line`].
    pub(crate) fn admits_log_line(&self, what: &'static str) -> bool {
        self.endpoint.look(|engine| engine.admits_log_line(what, self.id))
    }
}

impl<S: Threading> Message<S> {
    pub(super) fn new(endpoint: &Endpoint<S>, message: Unexpected) -> Message<S> {
        Message { peer: endpoint.peer(message.peer()), message }
    }

    /// Returns the peer that sent the message.
    pub fn peer(&self) -> &Peer<S> {
        &self.peer
    }

    pub(crate) fn into_parts(self) -> (Peer<S>, Unexpected) {
        (self.peer, self.message)
    }
}

impl<S: Threading> std::ops::Deref for Message<S> {
    type Target = Unexpected;

    fn deref(&self) -> &Unexpected {
        &self.message
    }
}

impl<S: Threading> fmt::Debug for Message<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message.fmt(f)
    }
}

impl<S: Threading> From<Message<S>> for bytes::Bytes {
    /// As for [`Unexpected`].
    fn from(message: Message<S>) -> bytes::Bytes {
        message.message.into()
    }
}
