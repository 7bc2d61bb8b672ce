//! What a program asks of an endpoint: connections, memory, operations. The rooms do it.

use super::Engine;
use crate::addr::Addr;
use crate::engine::books::{Exposure, State, is_call, reserved_tag};
use crate::error::{Error, ErrorKind};
use crate::mem::{Access, MemList, Memory, MemoryRegion};
use crate::op::{Completion, OpId, OpKind, Options, PeerId, Posted, Tag};
use crate::time::Time;
use crate::transport::Transport;
use crate::wire::BulkDescriptor;
use crate::wire::header::Kind;

impl Engine {
    // ---- connections ----------------------------------------------------------------------------

    /// Accepts connections at `addr`. Returns the address with the port that was taken.
    ///
    /// # Errors
    /// Those of [`Transport::listen`].
    pub fn listen(&mut self, addr: &Addr) -> Result<Addr, Error> {
        self.adapter.transport.listen(addr).map_err(|error| error.during("listen"))
    }

    /// Starts to connect. The operation (`OpKind::Connect`) ends when the peer is connected, or
    /// cannot be. The default deadline is
    /// [`Config::connect_timeout`](crate::Config::connect_timeout). Work may be posted to the peer
    /// at once, and waits for the connection.
    ///
    /// # Errors
    /// `Invalid` for an address that is not the transport's, `Exhausted`.
    pub fn connect(&mut self, addr: &Addr, options: Options) -> Result<(PeerId, OpId), Error> {
        self.start_connect(addr, options).map_err(|error| error.during("connect").with_peer(addr))
    }

    /// Ends a connection after everything that was posted before has been sent. The operation
    /// (`OpKind::Disconnect`) ends when the connection is gone. The default deadline is
    /// [`Config::fence_grace`](crate::Config::fence_grace).
    ///
    /// Receives are cancelled. The peer drops unexpected messages that its program has not taken
    /// when the connection ends. A program that must know that a message was handled waits for a
    /// reply.
    ///
    /// # Errors
    /// `PeerLost` if the connection is gone or already ending.
    pub fn disconnect(&mut self, peer: PeerId, options: Options) -> Result<OpId, Error> {
        self.start_disconnect(peer, options)
    }

    /// Ends a connection at once, without sending what is queued. Its operations end with
    /// `PeerLost`, and [`PeerEvent::Lost`](crate::PeerEvent::Lost) has the reason. The call is
    /// ignored for a peer that is gone.
    pub fn cut(&mut self, peer: PeerId, reason: Error) {
        if let Some(peer) = self.peers.get_mut(peer) {
            self.adapter.cut(peer, reason);
        }
    }

    // ---- memory ---------------------------------------------------------------------------------

    /// Registers memory ahead of use, for as long as the region is held. After that, the pin-down
    /// cache may keep the registration. Other memory is registered when an operation needs it.
    ///
    /// # Errors
    /// Those of [`Transport::register`].
    pub fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error> {
        self.adapter.registry.register(&mut self.adapter.transport, memory).map_err(|error| error.during("register"))
    }

    /// Returns true if memory is already registered, so that work on it needs no registration. This
    /// is the paper's `check_if_registered`.
    pub fn is_registered(&self, memory: &Memory) -> bool {
        self.adapter.registry.is_registered(memory)
    }

    /// Exposes a list of memory to one peer with the rights `access`, until the exposure is dropped
    /// or the peer is lost.
    ///
    /// If registration costs time, pieces of one [`Memory`] become one exposure that includes the
    /// gaps between them. [`Config::expose_groups`](crate::Config::expose_groups) turns this off.
    ///
    /// Memory that cannot be registered cannot be exposed, because a copy would not show what the
    /// program and the peer write. The caller may expose memory of [`Memory::zeroed`] instead, and
    /// copy.
    ///
    /// # Errors
    /// `PeerLost`, `Exhausted`; `Invalid` for more than
    /// [`Config::max_pieces`](crate::Config::max_pieces) pieces.
    pub fn expose(&mut self, peer: PeerId, list: impl Into<MemList>, access: Access) -> Result<Exposure, Error> {
        self.start_exposure(peer, &list.into(), access, false).map_err(|error| error.during("expose"))
    }

    /// Like [`Engine::expose`], for memory that the peer may access or not, as it likes, and that
    /// nothing of this side waits for. So the exposure neither makes the peer an awaited one
    /// ([`Engine::awaited_peers`]), nor keeps the connection from being closed when it is idle
    /// ([`LimitConfig::evict_idle_after`](crate::LimitConfig::evict_idle_after)).
    ///
    /// # Errors
    /// As [`Engine::expose`].
    pub fn expose_standing(
        &mut self,
        peer: PeerId,
        list: impl Into<MemList>,
        access: Access,
    ) -> Result<Exposure, Error> {
        self.start_exposure(peer, &list.into(), access, true).map_err(|error| error.during("expose"))
    }

    /// Returns the number of ranges that are exposed to a peer.
    pub(crate) fn exposures_of(&self, peer: PeerId) -> usize {
        self.peers.get(peer).map_or(0, |peer| peer.exposures)
    }

    /// Ends an exposure at once. The peer can no longer reach the memory when this returns, whereas
    /// a dropped exposure ends at the next poll.
    pub(crate) fn withdraw(&mut self, exposure: Exposure) {
        drop(exposure);
        self.take_returns();
    }

    // ---- operations -----------------------------------------------------------------------------

    /// Sends an expected message. It goes into the receive that the peer posts, or has posted, for
    /// this tag.
    ///
    /// Success says that the memory is free again, not that the peer has the message. Only a send
    /// by rendezvous ends after its receive. Wait for a reply to know that a message arrived.
    ///
    /// # Errors
    /// `PeerLost`, `Invalid` for too many pieces or a tag above [`MAX_TAG`](crate::MAX_TAG),
    /// `TooLong` beyond the limit of a message. Nothing was posted then. An answer to a peer's
    /// call may have the tag of the call.
    #[inline]
    pub fn post_send(
        &mut self,
        peer: PeerId,
        tag: Tag,
        list: impl Into<MemList>,
        options: Options,
    ) -> Result<Posted, Error> {
        if is_call(tag) {
            self.check_answer(peer, tag)?;
        }
        self.start_send(peer, Kind::Eager, tag, list.into(), options)
    }

    /// Sends a message that needs no receive. The peer finds it with `poll_unexpected`. The message
    /// has at most [`PeerLimits::eager`](crate::PeerLimits::eager) or
    /// [`PeerLimits::fast`](crate::PeerLimits::fast) bytes, whichever is more. If it is longer than
    /// `eager`, it waits for a free fast-RDMA slot.
    ///
    /// # Errors
    /// As [`Engine::post_send`].
    pub fn post_send_unexpected(
        &mut self,
        peer: PeerId,
        tag: Tag,
        list: impl Into<MemList>,
        options: Options,
    ) -> Result<Posted, Error> {
        if is_call(tag) {
            return Err(reserved_tag(tag).during("send unexpected"));
        }
        self.start_send(peer, Kind::Unexpected, tag, list.into(), options)
    }

    /// Receives the next expected message of `peer` with `tag`. The message may be shorter than the
    /// list. If it is longer, both sides end in `TooLong`, the sender only if it sent by
    /// rendezvous.
    ///
    /// # Errors
    /// `PeerLost`, `Invalid` for too many pieces.
    pub fn post_recv(
        &mut self,
        peer: PeerId,
        tag: Tag,
        list: impl Into<MemList>,
        options: Options,
    ) -> Result<Posted, Error> {
        self.start_recv(peer, tag, list.into(), options)
    }

    /// Drops the next expected message of `peer` with `tag`, whatever its length. Takes the place
    /// of a receive in the order of the tag. If the message comes by rendezvous, its send ends with
    /// `Cancelled`.
    ///
    /// A message that nobody receives stays parked, and its sender's credits with it. So a program
    /// that gives up a receive whose message may still arrive posts this in its stead.
    ///
    /// # Errors
    /// `PeerLost`.
    pub fn post_discard(&mut self, peer: PeerId, tag: Tag, options: Options) -> Result<Posted, Error> {
        self.start_discard(peer, tag, options)
    }

    /// Reads memory that `peer` exposed: as many bytes as `local` holds, starting at `at`.
    ///
    /// # Errors
    /// `PeerLost`; `Invalid` if the range is not within the descriptor; `Unsupported` without RDMA
    /// read, and then the other side has to push.
    pub fn post_pull(
        &mut self,
        peer: PeerId,
        remote: &BulkDescriptor,
        at: u64,
        local: impl Into<MemList>,
        options: Options,
    ) -> Result<Posted, Error> {
        self.start_bulk(OpKind::Pull, peer, remote, at, local.into(), options)
    }

    /// Writes `local` to memory that `peer` exposed, starting at `at`. A message that is sent after
    /// the push has ended arrives after its bytes.
    ///
    /// # Errors
    /// As [`Engine::post_pull`].
    pub fn post_push(
        &mut self,
        peer: PeerId,
        remote: &BulkDescriptor,
        at: u64,
        local: impl Into<MemList>,
        options: Options,
    ) -> Result<Posted, Error> {
        self.start_bulk(OpKind::Push, peer, remote, at, local.into(), options)
    }

    /// Posts an operation that ends at the time `at`.
    pub fn post_timer(&mut self, at: Time, user: u64) -> OpId {
        let options = Options { deadline: Some(at), user, ..Options::default() };
        let op = self.ops.post(OpKind::Timer, None, 0, None, options, State::Waiting);
        if self.closing {
            self.end_operation(op, ErrorKind::Cancelled);
        }
        op
    }

    /// Asks an operation to end early. It still completes, with `Cancelled`, or with its usual
    /// status if that came first.
    pub fn cancel(&mut self, op: OpId) {
        self.end_operation(op, ErrorKind::Cancelled);
    }

    /// Cancels an operation and drops its completion, for a caller that is no longer interested in
    /// it. A connection that is to end in order still does.
    pub fn abandon(&mut self, op: OpId) {
        let Some(record) = self.ops.get_mut(op) else { return };
        if record.is_done() {
            let done = self.ops.collect(op);
            // The connection is not wanted any more.
            if let Some(Completion { kind: OpKind::Connect, peer: Some(peer), status: Ok(()), .. }) = done
                && let Some(record) = self.peers.get(peer)
            {
                self.adapter.transport.disconnect(record.conn, self.adapter.now);
            }
        } else {
            record.abandoned = true;
            let waker = record.waker.take();
            let disconnects = record.kind == OpKind::Disconnect;
            waker.into_iter().for_each(|waker| self.ops.keep_waker(waker));
            if !disconnects {
                self.end_operation(op, ErrorKind::Cancelled);
            }
        }
    }
}
