//! The message interface: an endpoint, its peers, and the operations between them.
//!
//! A driver drives the endpoint: it posts operations, calls [`Endpoint::poll`] to make progress,
//! and takes the completions. The endpoint does no I/O of its own, reads no clock, and starts no
//! thread. Each poll passes the time in. All methods take `&mut self`, so there is one owner and no
//! lock.
//!
//! ```text
//!  post_send, post_recv, post_send_unexpected, post_pull, post_push, connect …      -> Posted::{Done, Pending(op)}
//!  poll(now)                         makes progress: transport, protocol, deadlines
//!  poll_op(op), poll_some(ops), poll_all()      -> completions
//!  poll_unexpected(), poll_event()              -> unexpected messages; peers that came and went
//!  next_deadline(), arm(waker), event_fd()      -> how long to sleep, and on what
//! ```
//!
//! **Invariants**
//! 1. Every posted operation ends exactly once. The id of an operation that has ended and was
//!    collected finds nothing.
//! 2. When an operation ends, its resources (memory, exposures, credits, slots) are back, or belong
//!    to the peer.
//! 3. Messages to one peer leave in the order in which they were posted. Messages of one tag match
//!    the receives of that tag in order.
//!
//! **Source.** BMI (Carns, PVFS2): `BMI_post_send`, `post_recv`, `post_sendunexpected`, their
//! `_list` forms, `test`, `testsome`, `testcontext`, `testunexpected`, `cancel`, `memalloc`,
//! `set_info`, `addr_lookup`, `addr_rev_lookup`. There are four differences. Ids are checked. The
//! operation owns its memory. Every operation can have a deadline. Bulk transfer is part of the
//! interface.

mod bounce;
mod calls;
mod choice;
mod connection;
mod exposure;
mod fallback_buffer;
mod fast_rdma;
mod grant;
mod idle;
mod idle_memory;
mod immediate;
mod inline_receive;
mod offered_receive;
mod op;
mod pacing;
mod packing;
mod peer;
mod probe;
mod progress;
mod receive;
mod records;
mod report;
mod send;
mod send_path;
mod staging;
mod timing;
mod transfer;
mod unit;
mod waiting;
mod work;
mod write_rendezvous;

pub use calls::MAX_TAG;
pub(crate) use calls::{CallPart, is_call};
pub use grant::Grant;
pub use idle::Kept;
pub(crate) use probe::{AREA, ProbePath};
pub use report::{Counters, PeerEvent, PeerLimits, Pinned, ResourceUsage, Unexpected};

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bounce::Bounce;
use fallback_buffer::FallbackBuffers;
use op::State;
use pacing::Turns;
use packing::Packing;
use peer::Peer;
use records::{Left, Records};
use staging::Staging;
use unit::Transfers;

use crate::addr::Addr;
use crate::bulk::{BulkDescriptor, Exposure};
use crate::capability::{Capabilities, Registration};
use crate::comm::{PathCounters, Policy};
use crate::config::Config;
use crate::error::{Error, ErrorKind};
use crate::log_limit::LogLimit;
use crate::mem::{Access, Limits, MemList, Memory, MemoryRegion, PinCache, PinCounts, RemoteKey, RemoteSlice, Segment};
use crate::mutated;
use crate::op::{Completion, OpId, OpKind, Options, PeerId, Posted, Tag};
use crate::proto::credit;
use crate::proto::header::{HEADER_LEN, Kind};
use crate::proto::table::Table;
use crate::returns::Returns;
use crate::time::Time;
use crate::transport::{Armed, ConnId, Event, Transport};

/// Most events about peers that are kept until the program takes them. The oldest are dropped
/// first.
const KEPT_EVENTS: usize = 1024;

/// An endpoint: a transport and the protocol over it.
pub struct Endpoint<T: Transport> {
    // The first field, so that it is dropped first. After that no adapter accesses memory of the
    // fields below.
    transport: T,
    config: Config,
    now: Time,
    ops: Records,
    transfers: Transfers,
    /// Operations that were asked to end early, and that have no fence yet. The next poll sets it,
    /// because only the poll knows the time.
    fences: Vec<OpId>,
    peers: Table<Peer>,
    /// The peer of each connection, by the connection's slot.
    by_conn: Vec<Option<(ConnId, PeerId)>>,
    /// Peers with something to send.
    dirty: Vec<PeerId>,
    /// Peers whose queue was full. They become dirty again when the adapter has made progress.
    blocked: Vec<PeerId>,
    /// Number of messages posted.
    transmitted: u64,
    peer_events: VecDeque<PeerEvent>,
    /// Peers that were lost recently, for errors.
    lost: VecDeque<(PeerId, Addr, Error)>,
    unexpected: VecDeque<Unexpected>,
    /// The turns of the peers that have bytes to move.
    turns: Turns,
    /// Number of work requests of operations with the adapter.
    work: usize,
    registry: PinCache,
    bounce: Bounce,
    staging: Staging,
    /// The packing buffers for small pieces of transfers.
    packing: Packing,
    /// The buffers that are used when memory cannot be registered.
    fallback_buffers: FallbackBuffers,
    revoked: Arc<Returns<(PeerId, RemoteKey)>>,
    released: Arc<Returns<report::Release>>,
    counters: Counters,
    idle: idle::Search,
    log: LogLimit,
    policy: Policy,
    /// [`Capabilities::max_inline`], stored because each message needs it.
    max_inline: usize,
    paths: PathCounters,
    /// When to look for idle peers, and whether the last look was not finished (`idle_memory`).
    next_sweep: Option<Time>,
    sweeping: bool,
    /// Number of peers lost since the allocator was asked to return pages.
    lost_since_trim: usize,
    // Scratch buffers, kept for their capacity.
    events: Vec<Event>,
    segments: Vec<Segment>,
    release_notes: Vec<report::Release>,
    revoke_notes: Vec<(PeerId, RemoteKey)>,
}

impl<T: Transport> Endpoint<T> {
    /// Creates an endpoint over `transport`. `now` is the time of the driver's clock.
    ///
    /// # Errors
    /// `Invalid` for settings out of bounds (see [`Config::validate`]), or beyond the queue depth
    /// of the transport; `Unsupported` if the heads of the transport are too short for the
    /// protocol; `Exhausted` if there is no memory.
    pub fn new(mut transport: T, config: Config, now: Time) -> Result<Endpoint<T>, Error> {
        config.validate()?;
        let receives = usize::from(config.credits.messages) + usize::from(crate::proto::hello::CONTROL_CREDITS);
        let depth = transport.capabilities().recv_queue_depth;
        if receives > depth {
            let text = format!(
                "credit_messages asks for {receives} receives on a connection; the transport has room for {depth}"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let head = transport.capabilities().max_head;
        if head < HEADER_LEN + RemoteSlice::WIRE_LEN {
            let text = format!(
                "the transport takes heads of {head} bytes; the protocol's are up to {}",
                HEADER_LEN + RemoteSlice::WIRE_LEN
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let pins = pin_limits(&config, transport.capabilities());
        let bounce = Bounce::new(&mut transport, config.credits.eager_limit)?;
        let fallback_buffers = FallbackBuffers::new(&mut transport, &config)?;
        let staging = Staging::new(config.credits.fast_slot_bytes);
        let packing = Packing::new(&mut transport, config.limits.transfer_unit)?;
        let max_inline = transport.capabilities().max_inline;
        Ok(Endpoint {
            transport,
            config,
            now,
            ops: Records::new(),
            transfers: Transfers::default(),
            fences: Vec::new(),
            peers: Table::new(),
            by_conn: Vec::new(),
            dirty: Vec::new(),
            blocked: Vec::new(),
            transmitted: 0,
            peer_events: VecDeque::new(),
            lost: VecDeque::new(),
            unexpected: VecDeque::new(),
            turns: Turns::default(),
            work: 0,
            registry: PinCache::new(pins),
            bounce,
            staging,
            packing,
            fallback_buffers,
            revoked: Arc::default(),
            released: Arc::default(),
            counters: Counters::default(),
            idle: idle::Search::default(),
            log: LogLimit::default(),
            policy: Policy::default(),
            max_inline,
            paths: PathCounters::default(),
            next_sweep: None,
            sweeping: false,
            lost_since_trim: 0,
            events: Vec::new(),
            segments: Vec::new(),
            release_notes: Vec::new(),
            revoke_notes: Vec::new(),
        })
    }

    // ---- getters --------------------------------------------------------------------------------

    /// Returns the settings of the endpoint.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the capabilities of the adapter.
    pub fn capabilities(&self) -> &Capabilities {
        self.transport.capabilities()
    }

    /// Returns the transport.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// Returns the transport, for settings that only the backend has. The caller must not post work
    /// on it, because the endpoint does not expect that.
    pub fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Returns the time of the last poll.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Returns the counters of everything that the endpoint has done.
    pub fn counters(&self) -> Counters {
        let PinCounts { hits, misses, evictions, failures, batches } = self.registry.counts();
        Counters {
            pin_hits: hits,
            pin_misses: misses,
            pin_evictions: evictions,
            pin_failures: failures,
            pin_batches: batches,
            ..self.counters
        }
    }

    /// Returns the contents of the pin-down cache. Checks every entry.
    pub fn pinned(&self) -> Pinned {
        let (entries, bytes) = self.registry.held();
        Pinned { entries, bytes, in_use: self.registry.in_use() }
    }

    /// Returns the resources that the endpoint holds.
    pub fn resource_usage(&self) -> ResourceUsage {
        let peers = || self.peers.iter().map(|(_, peer)| peer);
        let retired = self.transport.retired_memory();
        ResourceUsage {
            peers: self.peers.len(),
            operations: self.ops.len(),
            slots: peers().map(|peer| peer.held).sum(),
            fast_slots: peers().map(|peer| peer.grant.slots_in_use()).sum(),
            parked: peers().map(|peer| peer.parked.len()).sum(),
            parked_bytes: peers().map(|peer| peer.parked_bytes).sum(),
            exposures: peers().map(|peer| peer.exposures).sum(),
            work: self.work + self.bounce.in_use() + self.staging.in_use() + self.packing.in_use(),
            fallback_buffers: self.fallback_buffers.in_use(),
            retired: retired.exposures,
            retired_bytes: retired.bytes,
        }
    }

    /// Returns the resources of work that must end at some time. This is
    /// [`Endpoint::resource_usage`] without connections, timers and retired memory.
    pub fn unfinished(&self) -> ResourceUsage {
        let timers = self.ops.iter().filter(|(_, op)| op.kind == OpKind::Timer).count();
        let held = self.resource_usage();
        ResourceUsage { peers: 0, operations: held.operations - timers, retired: 0, retired_bytes: 0, ..held }
    }

    /// Returns true if the adapter has work of this side: sends, reads and writes that have not
    /// completed.
    pub fn is_sending(&self) -> bool {
        self.work > 0 || self.bounce.in_use() > 0
    }

    /// Returns the address of a peer (BMI's reverse look-up). Peers that were lost recently also
    /// have one.
    pub fn peer_addr(&self, peer: PeerId) -> Option<Addr> {
        let known = self.peers.get(peer.0).map(|peer| &peer.addr);
        known.or_else(|| self.lost.iter().find(|(id, ..)| *id == peer).map(|(_, addr, _)| addr)).cloned()
    }

    /// Returns the limits agreed with a peer. `None` until the peer is connected, and after it is
    /// lost.
    pub fn limits(&self, peer: PeerId) -> Option<PeerLimits> {
        self.peers.get(peer.0).filter(|peer| peer.is_up()).map(|peer| peer.limits)
    }

    /// Returns the error of a failed completion, with operation, peer and reason. Returns `None` on
    /// success.
    pub fn explain(&self, completion: &Completion) -> Option<Error> {
        let kind = completion.status.err()?;
        let reason =
            completion.peer.and_then(|id| self.lost.iter().find(|(lost, ..)| *lost == id)).map(|(_, _, reason)| reason);
        let error = match (kind, reason) {
            (ErrorKind::TimedOut, _) if self.lacks_credit(completion) => Error::new(
                kind,
                "the deadline passed, and the peer has given no credit back: it does not take its messages",
            ),
            (ErrorKind::TimedOut, _) => Error::new(kind, "the deadline passed"),
            (_, Some(reason)) => Error::because(kind, reason),
            (ErrorKind::Cancelled, None) => Error::new(kind, "by this side or the peer"),
            (ErrorKind::TooLong, None) => Error::new(kind, format!("{} bytes are more than fit", completion.len)),
            _ => Error::new(kind, ""),
        };
        let error = error.during(completion.kind.as_str());
        Some(match completion.peer.and_then(|peer| self.peer_addr(peer)) {
            Some(addr) => error.with_peer(addr),
            None => error,
        })
    }

    /// Returns true if the operation is a send, and there is no credit for a message of full length
    /// now.
    fn lacks_credit(&self, completion: &Completion) -> bool {
        let peer = completion.peer.and_then(|peer| self.peers.get(peer.0));
        matches!(completion.kind, OpKind::Send | OpKind::SendUnexpected)
            && peer.is_some_and(|peer| {
                let cost = credit::cost(self.eager_limit(peer));
                peer.credit.as_ref().is_some_and(|credit| !credit.can_spend(cost))
            })
    }

    /// Returns whether the program should write a log line of this kind about a peer. The endpoint
    /// counts the lines that are not written, and reports their number ([`LogLimit`]).
    pub fn admits_log_line(&mut self, kind: &'static str, peer: PeerId) -> bool {
        match self.peer_addr(peer) {
            Some(addr) => self.log.admits(kind, addr.host(), self.now),
            None => self.log.admits(kind, "lost peers", self.now),
        }
    }

    // ---- connections ----------------------------------------------------------------------------

    /// Accepts connections at `addr`. Returns the address with the port that was taken.
    ///
    /// # Errors
    /// Those of [`Transport::listen`].
    pub fn listen(&mut self, addr: &Addr) -> Result<Addr, Error> {
        self.transport.listen(addr).map_err(|error| error.during("listen"))
    }

    /// Starts to connect. The operation (`OpKind::Connect`) ends when the peer is connected, or
    /// cannot be. The default deadline is [`Config::connect_timeout`]. Work may be posted to the
    /// peer at once, and waits for the connection.
    ///
    /// # Errors
    /// `Invalid` for an address that is not the transport's, `Exhausted`.
    pub fn connect(&mut self, addr: &Addr, options: Options) -> Result<(PeerId, OpId), Error> {
        self.start_connect(addr, options).map_err(|error| error.during("connect").with_peer(addr))
    }

    /// Ends a connection after everything that was posted before has been sent. The operation
    /// (`OpKind::Disconnect`) ends when the connection is gone. The default deadline is
    /// [`Config::fence_grace`].
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

    // ---- memory ---------------------------------------------------------------------------------

    /// Registers memory ahead of use, for as long as the region is held. After that, the pin-down
    /// cache may keep the registration. Other memory is registered when an operation needs it.
    ///
    /// # Errors
    /// Those of [`Transport::register`].
    pub fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error> {
        self.registry.register(&mut self.transport, memory).map_err(|error| error.during("register"))
    }

    /// Returns true if memory is already registered, so that work on it needs no registration. This
    /// is the paper's `check_if_registered`.
    pub fn is_registered(&self, memory: &Memory) -> bool {
        self.registry.is_registered(memory)
    }

    /// Exposes a list of memory to one peer with the rights `access`, until the exposure is dropped
    /// or the peer is lost.
    ///
    /// If registration costs time, pieces of one [`Memory`] become one exposure that includes the
    /// gaps between them. [`Config::expose_groups`] turns this off.
    ///
    /// Memory that cannot be registered cannot be exposed, because a copy would not show what the
    /// program and the peer write. The caller may expose memory of [`Memory::zeroed`] instead, and
    /// copy.
    ///
    /// # Errors
    /// `PeerLost`, `Exhausted`; `Invalid` for more than [`Config::max_pieces`] pieces.
    pub fn expose(&mut self, peer: PeerId, list: impl Into<MemList>, access: Access) -> Result<Exposure, Error> {
        let list = list.into();
        let checked = if access.remote_write { self.check_target(peer, &list) } else { self.check_list(peer, &list) };
        checked.map_err(|error| error.during("expose"))?;
        let remote = self.expose_list(peer, &list, access).map_err(|error| error.during("expose"))?;
        let descriptor = BulkDescriptor::try_from(remote)?;
        Ok(Exposure { peer, descriptor, revoked: Arc::clone(&self.revoked) })
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
    /// # Errors
    /// `PeerLost`, `Invalid` for too many pieces or a tag above [`MAX_TAG`], `TooLong` beyond the
    /// limit of a message. Nothing was posted then. An answer to a peer's call may have the tag of
    /// the call.
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
    /// has at most [`PeerLimits::eager`] or [`PeerLimits::fast`] bytes, whichever is more. If it is
    /// longer than `eager`, it waits for a free fast-RDMA slot.
    ///
    /// # Errors
    /// As [`Endpoint::post_send`].
    pub fn post_send_unexpected(
        &mut self,
        peer: PeerId,
        tag: Tag,
        list: impl Into<MemList>,
        options: Options,
    ) -> Result<Posted, Error> {
        if is_call(tag) {
            return Err(calls::reserved_tag(tag).during("send unexpected"));
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
    /// As [`Endpoint::post_pull`].
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
        self.insert_op(OpKind::Timer, None, 0, None, options, State::Waiting)
    }

    /// Asks an operation to end early. It still completes, with `Cancelled`, or with its usual
    /// status if that came first.
    pub fn cancel(&mut self, op: OpId) {
        self.end_early(op, ErrorKind::Cancelled);
    }

    /// Cancels an operation and drops its completion, for a caller that is no longer interested in
    /// it.
    pub fn abandon(&mut self, op: OpId) {
        let Some(record) = self.ops.get_mut(op.0) else { return };
        if record.is_done() {
            let done = self.ops.collect(op);
            // The connection is not wanted any more.
            if let Some(Completion { kind: OpKind::Connect, peer: Some(peer), status: Ok(()), .. }) = done
                && let Some(record) = self.peers.get(peer.0)
            {
                self.transport.disconnect(record.conn, self.now);
            }
        } else {
            record.abandoned = true;
            let waker = record.waker.take();
            waker.into_iter().for_each(|waker| self.ops.keep_waker(waker));
            self.end_early(op, ErrorKind::Cancelled);
        }
    }

    // ---- progress and completions ---------------------------------------------------------------

    /// Makes progress at the time `now`, which must not go back. Returns whether there was anything
    /// to do.
    pub fn poll(&mut self, now: Time) -> bool {
        self.progress(now)
    }

    /// Returns the completion of `op` if it has ended. Its id is free then.
    pub fn poll_op(&mut self, op: OpId) -> Option<Completion> {
        self.ops.collect(op)
    }

    /// Adds an operation, and its peer, to an error.
    pub(crate) fn during(&self, op: OpId, error: Error) -> Error {
        let Some(record) = self.ops.get(op.0) else { return error };
        let error = error.during(record.kind.as_str());
        match record.peer.and_then(|peer| self.peer_addr(peer)) {
            Some(addr) => error.with_peer(addr),
            None => error,
        }
    }

    /// Returns whether there is such an operation: under way, or ended and not yet collected.
    pub fn is_known(&self, op: OpId) -> bool {
        self.ops.get(op.0).is_some()
    }

    /// Appends the completions of those of `ops` that have ended. Returns how many there were.
    pub fn poll_some(&mut self, ops: &[OpId], into: &mut Vec<Completion>) -> usize {
        let before = into.len();
        into.extend(ops.iter().filter_map(|op| self.poll_op(*op)));
        into.len() - before
    }

    /// Appends all completions, in the order in which the operations ended. Returns how many there
    /// were.
    #[inline]
    pub fn poll_all(&mut self, into: &mut Vec<Completion>) -> usize {
        self.ops.collect_all(into)
    }

    /// Returns the next unexpected message.
    pub fn poll_unexpected(&mut self) -> Option<Unexpected> {
        self.unexpected.pop_front()
    }

    /// Returns the next event about a peer. If the program does not take them, the oldest events
    /// beyond 1024 are lost.
    pub fn poll_event(&mut self) -> Option<PeerEvent> {
        self.peer_events.pop_front()
    }

    // ---- waiting --------------------------------------------------------------------------------

    /// Returns the time at which to poll though nothing arrives.
    pub fn next_deadline(&self) -> Option<Time> {
        let fences = (!self.fences.is_empty()).then_some(self.now);
        let all = [
            fences,
            self.ops.next_timer().filter(|_| !mutated("wait/forgets-deadlines")),
            self.next_turn(),
            self.registry.next_deadline(),
            self.log.next_deadline(),
            self.next_sweep,
            self.transport.next_deadline(),
        ];
        let mut earliest = None;
        for deadline in all {
            if deadline.is_some() && (earliest.is_none() || deadline < earliest) {
                earliest = deadline;
            }
        }
        earliest
    }

    /// Gets ready to sleep (see [`Transport::arm`]). `waker` is also woken when an unexpected
    /// message or an exposure is dropped, whether or not there is an event fd.
    pub fn arm(&mut self, waker: &Waker) -> Armed {
        // Transfers and peers that wait for the adapter are resumed by its progress, which wakes
        // the waiter.
        let idle =
            self.dirty.is_empty() && self.fences.is_empty() && self.released.is_empty() && self.revoked.is_empty();
        if !idle {
            return Armed::Busy;
        }
        let armed = self.transport.arm(waker);
        let quiet = armed == Armed::Waiting
            && (mutated("wait/dropped-messages-wake-nobody") || self.released.wake_at_next(waker))
            && self.revoked.wake_at_next(waker)
            && self.registry.arm(waker);
        if quiet { Armed::Waiting } else { Armed::Busy }
    }

    /// Returns the transport's descriptor to sleep on, if it has one.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.transport.event_fd()
    }

    // ---- for the async interface ----------------------------------------------------------------

    /// Returns the completion of `op`, or `None` after arranging to wake `waker` when there is one.
    /// `Some(None)` means that there is no such operation.
    pub(crate) fn poll_op_or_wake(&mut self, op: OpId, waker: &Waker) -> Option<Option<Completion>> {
        let Some(record) = self.ops.get_mut(op.0) else { return Some(None) };
        if record.is_done() {
            return Some(self.ops.collect(op));
        }
        if record.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            return None;
        }
        // The old waker is dropped where wakers are woken, and not here within the caller's borrow.
        let old = record.waker.replace(waker.clone());
        old.into_iter().for_each(|old| self.ops.keep_waker(old));
        None
    }

    /// Appends the wakers of operations that ended since the last call.
    pub(crate) fn take_wakes(&mut self, into: &mut Vec<Waker>) {
        self.ops.take_wakes(into);
    }

    pub(crate) fn has_unexpected(&self) -> bool {
        !self.unexpected.is_empty()
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.peer_events.is_empty()
    }

    // ---- records --------------------------------------------------------------------------------

    /// Inserts a record and sets its timer.
    #[inline]
    fn insert_op(
        &mut self,
        kind: OpKind,
        peer: Option<PeerId>,
        tag: Tag,
        list: Option<MemList>,
        options: Options,
        state: State,
    ) -> OpId {
        self.ops.insert(kind, peer, tag, list, options, |_| state)
    }

    /// Ends an operation: returns all that it held and makes its completion.
    fn finish(&mut self, id: OpId, status: Result<(), ErrorKind>, len: u64) {
        let Some(Left { staged, transfer, offer, peer }) = self.ops.finish(id, status, len) else { return };
        if let Some(buffer) = staged {
            self.staging.free(buffer);
        }
        if let Some(transfer) = transfer {
            self.transfers.retire(transfer);
        }
        if let (op::Offer::Made(memory) | op::Offer::Used(memory), Some(peer)) = (offer, peer) {
            self.offer_ended(peer, memory, matches!(offer, op::Offer::Used(_)) || status.is_err());
        }
    }

    /// Returns the result of a post with the operation `id`.
    fn posted(&mut self, id: OpId) -> Posted {
        self.poll_op(id).map_or(Posted::Pending(id), Posted::Done)
    }

    /// Checks a list against the settings, and that the peer is connected or connecting.
    #[inline]
    fn check_list(&self, peer: PeerId, list: &MemList) -> Result<(), Error> {
        let known = self.peers.get(peer.0).filter(|record| record.is_open());
        if known.is_some() && list.pieces().len() <= self.config.limits.max_pieces {
            Ok(())
        } else {
            self.refuse_list(peer, list)
        }
    }

    /// As [`Endpoint::check_list`], for a list that is written to.
    #[inline]
    fn check_target(&self, peer: PeerId, list: &MemList) -> Result<(), Error> {
        self.check_list(peer, list)?;
        if list.is_read_only() { Err(read_only()) } else { Ok(()) }
    }

    /// Returns the error of a list, or of its peer.
    #[cold]
    fn refuse_list(&self, peer: PeerId, list: &MemList) -> Result<(), Error> {
        let record = self.peers.get(peer.0).filter(|record| record.is_open()).ok_or_else(|| self.lost_error(peer))?;
        let (pieces, limit) = (list.pieces().len(), self.config.limits.max_pieces);
        let text = format!("a list of {pieces} pieces; at most {limit} are allowed (Config::max_pieces sets it)");
        Err(Error::new(ErrorKind::Invalid, text).with_peer(&record.addr))
    }

    /// Returns the error for a peer that is gone.
    fn lost_error(&self, peer: PeerId) -> Error {
        let lost = self.lost.iter().find(|(id, ..)| *id == peer);
        let error = match lost {
            Some((_, _, reason)) => Error::because(ErrorKind::PeerLost, reason),
            None => Error::new(ErrorKind::PeerLost, "not connected"),
        };
        match self.peer_addr(peer) {
            Some(addr) => error.with_peer(addr),
            None => error.with_peer(format_args!("{peer:?}")),
        }
    }

    /// Puts a peer on the list of those with something to send, if it has something. Called after
    /// every change that may have given it something.
    #[inline]
    fn mark_dirty(&mut self, peer: PeerId) {
        if let Some(record) = self.peers.get_mut(peer.0)
            && !record.dirty
            && record.wants_turn()
        {
            record.dirty = true;
            self.dirty.push(peer);
        }
    }

    /// Returns the length of the longest payload of an eager message to a peer.
    #[inline]
    fn eager_limit(&self, peer: &Peer) -> usize {
        peer.limits.eager.min(self.config.credits.eager_limit)
    }
}

/// The error for read-only memory that is to be written.
#[cold]
pub(crate) fn read_only() -> Error {
    Error::new(ErrorKind::Invalid, "the memory is read-only, because it was made of `Bytes`")
}

/// Returns the bounds of the pin-down cache. If registration pins nothing, no registration waits to
/// be dropped.
fn pin_limits(config: &Config, capabilities: &Capabilities) -> Limits {
    let free = capabilities.registration == Registration::Free;
    let linger = if free { Duration::ZERO } else { config.memory.pin_linger };
    Limits { entries: config.memory.pin_cache_entries, bytes: config.memory.pin_cache_bytes, linger }
}

/// Returns the number of pieces of a rendezvous that fit into the head of a work request.
fn pieces_in_head(capabilities: &Capabilities) -> usize {
    capabilities.max_head.saturating_sub(HEADER_LEN) / RemoteSlice::WIRE_LEN
}
