//! The message interface: an endpoint, its peers, and the operations between them.
//!
//! An endpoint is driven: operations are posted, [`Endpoint::poll`] makes progress, completions are taken out. It does no I/O of its own,
//! reads no clock, starts no thread; time comes in with each poll. `&mut self` throughout: one owner, no locks.
//!
//! ```text
//!  post_send, post_recv, post_send_unexpected, post_pull, post_push, connect …      -> Posted::{Done, Pending(op)}
//!  poll(now)                         moves the transport, the protocol, the deadlines
//!  poll_op(op), poll_some(ops), poll_all()      -> completions
//!  poll_unexpected(), poll_event()              -> messages nobody asked for; peers that came and went
//!  next_deadline(), arm(waker), event_fd()      -> how long, and on what, to sleep
//! ```
//!
//! **Source.** BMI (Carns, PVFS2): `BMI_post_send`, `post_recv`, `post_sendunexpected`, their `_list` forms, `test`, `testsome`,
//! `testcontext`, `testunexpected`, `cancel`, `memalloc`, `set_info`, `addr_lookup`, `addr_rev_lookup`. Where we differ: ids are checked, memory is owned by
//! the operation, every operation can have a deadline, and bulk transfer is part of the interface.

use std::os::fd::BorrowedFd;
use std::task::Waker;

use crate::addr::Addr;
use crate::bulk::{BulkDescriptor, Exposure};
use crate::capability::Capabilities;
use crate::config::Config;
use crate::error::Error;
use crate::mem::{Access, MemList, Memory, MemoryRegion};
use crate::op::{Completion, OpId, Options, PeerId, Posted, Tag};
use crate::time::Time;
use crate::transport::{Armed, Transport};

/// A message that needed no receive. It lies where it arrived; dropping it gives the space, and with it the credit, back to the peer.
#[derive(Debug)]
pub struct Unexpected {
    peer: PeerId,
    tag: Tag,
    bytes: Vec<u8>,
}

impl Unexpected {
    /// Who sent it.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// The tag that it was sent with.
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// Its bytes, in place.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A peer came or went.
#[derive(Clone, Debug)]
pub enum PeerEvent {
    /// A connection stands, the peer's version and features fit.
    Connected {
        /// The peer.
        peer: PeerId,
        /// Where it is: for a peer that connected to us, where it says it is.
        addr: Addr,
        /// Whether this side connected.
        outgoing: bool,
    },
    /// A connection is gone, every operation on it has ended, and the `PeerId` is no longer valid.
    Lost {
        /// The peer it was.
        peer: PeerId,
        /// Why.
        reason: Error,
    },
}

/// What was agreed with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLimits {
    /// Longest unexpected message that it takes, and longest expected one that is sent eagerly, in bytes.
    pub eager: usize,
    /// Longest message or bulk transfer, in bytes.
    pub message: u64,
    /// Pieces of a list or descriptor.
    pub pieces: usize,
}

/// What an endpoint did so far. All counts, none ever goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Expected messages sent eagerly.
    pub eager: u64,
    /// Expected messages sent by rendezvous.
    pub rendezvous: u64,
    /// Unexpected messages sent.
    pub unexpected: u64,
    /// Bulk transfers pulled.
    pub pulls: u64,
    /// Bulk transfers pushed.
    pub pushes: u64,
    /// Bytes sent in messages, eager and rendezvous.
    pub bytes_sent: u64,
    /// Bytes received in messages.
    pub bytes_received: u64,
    /// Bytes pulled.
    pub bytes_pulled: u64,
    /// Bytes pushed.
    pub bytes_pushed: u64,
    /// Messages that had to wait for a credit.
    pub credit_waits: u64,
    /// Credit messages sent on their own.
    pub credit_messages: u64,
    /// Eager messages that arrived before their receive and were parked.
    pub unmatched: u64,
    /// Peers cut off for breaking the protocol.
    pub violations: u64,
}

/// What an endpoint holds right now; all zero but `peers` when idle, so a leak shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Connections, in any state.
    pub peers: usize,
    /// Operations not yet ended, or ended and not yet collected.
    pub operations: usize,
    /// Receive slots that hold a message.
    pub slots: usize,
    /// Messages parked because nobody has received them.
    pub parked: usize,
    /// Exposures not yet revoked.
    pub exposures: usize,
    /// Work requests handed to the adapter and not completed, posted receives aside.
    pub work: usize,
}

/// One attach point to a network: a transport and the protocol over it.
pub struct Endpoint<T: Transport> {
    transport: T,
}

#[expect(clippy::todo, unused_variables, missing_docs, reason = "signatures first")]
impl<T: Transport> Endpoint<T> {
    /// An endpoint over `transport`. `now` is the time at the driver's clock.
    ///
    /// # Errors
    /// `Invalid` for settings out of bounds (see [`Config::validate`]).
    pub fn new(transport: T, config: Config, now: Time) -> Result<Endpoint<T>, Error> {
        todo!()
    }

    // ---- getters ----------------------------------------------------------------------------------------------------------
    pub fn config(&self) -> &Config {
        todo!()
    }
    pub fn capabilities(&self) -> &Capabilities {
        self.transport.capabilities()
    }
    pub fn transport(&self) -> &T {
        &self.transport
    }
    pub fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }
    pub fn counters(&self) -> Counters {
        todo!()
    }
    pub fn holdings(&self) -> Holdings {
        todo!()
    }
    /// Address of a peer (BMI's reverse look-up); also of one lost a short while ago.
    pub fn peer_addr(&self, peer: PeerId) -> Option<Addr> {
        todo!()
    }
    /// `None` until the peer is connected and once it is lost.
    pub fn limits(&self, peer: PeerId) -> Option<PeerLimits> {
        todo!()
    }
    /// The error behind a failed completion, naming peer and operation; `None` for success.
    pub fn explain(&self, completion: &Completion) -> Option<Error> {
        todo!()
    }

    // ---- connections ------------------------------------------------------------------------------------------------------
    pub fn listen(&mut self, addr: &Addr) -> Result<Addr, Error> {
        todo!()
    }
    /// Starts to connect. The operation (`OpKind::Connect`) ends when the peer is connected, or cannot be. Work may be posted to the peer at once; it
    /// waits for the connection.
    pub fn connect(&mut self, addr: &Addr, options: Options) -> Result<(PeerId, OpId), Error> {
        todo!()
    }
    /// Ends a connection, after what was posted before has been sent; ends (`OpKind::Disconnect`) when it is gone.
    pub fn disconnect(&mut self, peer: PeerId, options: Options) -> Result<OpId, Error> {
        todo!()
    }

    // ---- memory -----------------------------------------------------------------------------------------------------------
    /// Registers memory ahead of use, for as long as the region is held. Memory that was not registered ahead is registered when an operation needs it.
    pub fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error> {
        todo!()
    }
    pub fn expose(&mut self, peer: PeerId, list: impl Into<MemList>, access: Access) -> Result<Exposure, Error> {
        todo!()
    }

    // ---- operations -------------------------------------------------------------------------------------------------------
    pub fn post_send(
        &mut self,
        peer: PeerId,
        tag: Tag,
        list: impl Into<MemList>,
        options: Options,
    ) -> Result<Posted, Error> {
        todo!()
    }
    pub fn post_send_unexpected(
        &mut self,
        peer: PeerId,
        tag: Tag,
        list: impl Into<MemList>,
        options: Options,
    ) -> Result<Posted, Error> {
        todo!()
    }
    pub fn post_recv(
        &mut self,
        peer: PeerId,
        tag: Tag,
        list: impl Into<MemList>,
        options: Options,
    ) -> Result<Posted, Error> {
        todo!()
    }
    pub fn post_pull(
        &mut self,
        peer: PeerId,
        remote: &BulkDescriptor,
        at: u64,
        local: impl Into<MemList>,
        options: Options,
    ) -> Result<Posted, Error> {
        todo!()
    }
    pub fn post_push(
        &mut self,
        peer: PeerId,
        remote: &BulkDescriptor,
        at: u64,
        local: impl Into<MemList>,
        options: Options,
    ) -> Result<Posted, Error> {
        todo!()
    }
    pub fn post_timer(&mut self, at: Time, user: u64) -> OpId {
        todo!()
    }
    /// Asks an operation to end early. It still completes, `Cancelled` or, if it was faster, as it would have.
    pub fn cancel(&mut self, op: OpId) {
        todo!()
    }
    /// Cancels, and throws the completion away when it comes: for a caller that has lost interest.
    pub fn abandon(&mut self, op: OpId) {
        todo!()
    }

    // ---- progress and completions -----------------------------------------------------------------------------------------
    pub fn poll(&mut self, now: Time) -> bool {
        todo!()
    }
    pub fn poll_op(&mut self, op: OpId) -> Option<Completion> {
        todo!()
    }
    pub fn poll_some(&mut self, ops: &[OpId], into: &mut Vec<Completion>) -> usize {
        todo!()
    }
    pub fn poll_all(&mut self, into: &mut Vec<Completion>) -> usize {
        todo!()
    }
    pub fn poll_unexpected(&mut self) -> Option<Unexpected> {
        todo!()
    }
    pub fn poll_event(&mut self) -> Option<PeerEvent> {
        todo!()
    }

    // ---- waiting ----------------------------------------------------------------------------------------------------------
    pub fn next_deadline(&self) -> Option<Time> {
        todo!()
    }
    pub fn arm(&mut self, waker: &Waker) -> Armed {
        todo!()
    }
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.transport.event_fd()
    }
}
