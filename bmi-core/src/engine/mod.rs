//! The message interface: an endpoint, its peers, and the operations between them.
//!
//! A driver drives the endpoint: it posts operations, calls [`Engine::poll`] to make progress,
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
//! **Parts.** [`adapter_side::AdapterSide`] has the transport and all memory that is registered
//! with it, [`operations::Operations`] the records of operations, and [`peers::Peers`] the
//! connections. The endpoint itself only looks up who is concerned. The protocols are functions of
//! these parts ([`effect`] says how), one file each. `docs/engine.md` follows three messages
//! through them.
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

mod adapter_side;
mod awaited_peers;
mod bounce_buffers;
mod bulk;
mod call_ids;
mod call_path;
mod calls;
mod closing;
mod connection;
mod deadlines;
mod dropped_calls;
mod eager;
mod early_end;
mod effect;
mod events;
mod exposure;
mod fallback_buffers;
mod fast_rdma;
mod fast_slots;
mod grant;
mod idle_eviction;
mod idle_memory;
mod immediate_completion;
mod inbox;
mod inline_receive;
mod lent;
mod offered_receive;
mod offers;
mod op;
mod operations;
mod pacing;
mod packing_buffers;
mod parked;
mod peer;
mod peers;
mod probe;
mod progress;
mod receive;
mod record;
mod rendezvous;
mod report;
mod send;
mod send_path;
mod settlement;
mod short_paths;
mod staging_buffers;
mod transfer;
mod turns;
mod unit;
mod work;
mod write_rendezvous;

pub use call_ids::MAX_TAG;
pub(crate) use call_ids::is_call;
pub(crate) use calls::CallPart;
pub(crate) use dropped_calls::DroppedCall;
pub use grant::Grant;
pub use idle_eviction::Kept;
pub(crate) use probe::{AREA, ProbePath};
pub use report::{Counters, PeerEvent, PeerLimits, Pinned, ResourceUsage, Unexpected};

use std::os::fd::BorrowedFd;
use std::task::Waker;

use adapter_side::AdapterSide;
pub(crate) use adapter_side::read_only;
use call_path::Choices;
pub(crate) use closing::closed;
use exposure::Exposures;
use idle_memory::Sweeps;
use inbox::Inbox;
use op::State;
use operations::Operations;
use peers::Peers;

use crate::addr::Addr;
use crate::bulk::{BulkDescriptor, Exposure};
use crate::capability::Capabilities;
use crate::config::Config;
use crate::error::{Error, ErrorKind};
use crate::mem::{Access, MemList, Memory, MemoryRegion, PinCounts};
use crate::mutated;
use crate::op::{Completion, OpId, OpKind, Options, PeerId, Posted, Tag};
use crate::proto::credit;
use crate::proto::header::Kind;
use crate::time::Time;
use crate::transport::{AnyTransport, Armed, Event, Transport};

/// An endpoint: a transport and the protocol over it.
pub struct Engine {
    // The first field, so that it is dropped first. After that no adapter accesses memory of the
    // fields below.
    adapter: AdapterSide,
    ops: Operations,
    peers: Peers,
    inbox: Inbox,
    exposures: Exposures,
    choices: Choices,
    sweeps: Sweeps,
    /// The events of a poll, kept for their capacity.
    events: Vec<Event>,
    /// No new peers come, and nothing more is posted.
    closing: bool,
}

impl Engine {
    /// Creates an endpoint over `transport`. `now` is the time of the driver's clock.
    ///
    /// # Errors
    /// `Invalid` for settings out of bounds (see [`Config::validate`]), or beyond the queue depth
    /// of the transport; `Unsupported` if the heads of the transport are too short for the
    /// protocol; `Exhausted` if there is no memory.
    pub fn new(transport: AnyTransport, config: Config, now: Time) -> Result<Engine, Error> {
        Ok(Engine {
            adapter: AdapterSide::new(transport, config, now)?,
            ops: Operations::new(),
            peers: Peers::new(),
            inbox: Inbox::default(),
            exposures: Exposures::default(),
            choices: Choices::default(),
            sweeps: Sweeps::default(),
            events: Vec::new(),
            closing: false,
        })
    }

    /// Gives the endpoint a number among those of one program. The ids of its peers contain it
    /// ([`PeerId::endpoint`]), so no two endpoints have an id in common.
    #[must_use]
    pub fn numbered(mut self, number: u8) -> Engine {
        self.peers.number(number);
        self
    }

    // ---- getters --------------------------------------------------------------------------------

    /// Returns the settings of the endpoint.
    pub fn config(&self) -> &Config {
        &self.adapter.config
    }

    /// Returns the capabilities of the adapter.
    pub fn capabilities(&self) -> &Capabilities {
        self.adapter.transport.capabilities()
    }

    /// Returns the transport.
    pub fn transport(&self) -> &dyn Transport {
        &*self.adapter.transport
    }

    /// Returns the transport, for settings that only the backend has. The caller must not post work
    /// on it, because the endpoint does not expect that.
    pub fn transport_mut(&mut self) -> &mut dyn Transport {
        &mut *self.adapter.transport
    }

    /// Returns the time of the last poll.
    pub fn now(&self) -> Time {
        self.adapter.now
    }

    /// Returns the counters of everything that the endpoint has done.
    pub fn counters(&self) -> Counters {
        let PinCounts { hits, misses, evictions, failures, batches } = self.adapter.registry.counts();
        Counters {
            pin_hits: hits,
            pin_misses: misses,
            pin_evictions: evictions,
            pin_failures: failures,
            pin_batches: batches,
            ..self.adapter.counters
        }
    }

    /// Returns the contents of the pin-down cache. Checks every entry.
    pub fn pinned(&self) -> Pinned {
        let (entries, bytes) = self.adapter.registry.held();
        Pinned { entries, bytes, in_use: self.adapter.registry.in_use() }
    }

    /// Returns the resources that the endpoint holds.
    pub fn resource_usage(&self) -> ResourceUsage {
        let peers = || self.peers.iter();
        let adapter = &self.adapter;
        let retired = adapter.transport.retired_memory();
        ResourceUsage {
            peers: self.peers.len(),
            operations: self.ops.len(),
            slots: peers().map(|peer| peer.held).sum(),
            fast_slots: peers().map(|peer| peer.account.slots_in_use()).sum(),
            parked: peers().map(|peer| peer.parked.len()).sum(),
            parked_bytes: peers().map(|peer| peer.parked_bytes).sum(),
            exposures: peers().map(|peer| peer.exposures).sum(),
            work: adapter.work + adapter.bounce.in_use() + adapter.staging.in_use() + adapter.packing.in_use(),
            fallback_buffers: adapter.fallback_buffers.in_use(),
            retired: retired.exposures,
            retired_bytes: retired.bytes,
        }
    }

    /// Returns the resources of work that must end at some time. This is
    /// [`Engine::resource_usage`] without connections, timers and retired memory.
    pub fn unfinished(&self) -> ResourceUsage {
        let timers = self.ops.iter().filter(|(_, op)| op.kind == OpKind::Timer).count();
        let held = self.resource_usage();
        ResourceUsage { peers: 0, operations: held.operations - timers, retired: 0, retired_bytes: 0, ..held }
    }

    /// Returns true if the adapter has work of this side: sends, reads and writes that have not
    /// completed.
    pub fn is_sending(&self) -> bool {
        self.adapter.work > 0 || self.adapter.bounce.in_use() > 0
    }

    /// Returns the address of a peer (BMI's reverse look-up). Peers that were lost recently also
    /// have one.
    pub fn peer_addr(&self, peer: PeerId) -> Option<Addr> {
        self.peers.addr(peer).cloned()
    }

    /// Returns the limits agreed with a peer. `None` until the peer is connected, and after it is
    /// lost.
    pub fn limits(&self, peer: PeerId) -> Option<PeerLimits> {
        self.peers.get(peer).filter(|peer| peer.is_up()).map(|peer| peer.limits)
    }

    /// Returns the error of a failed completion, with operation, peer and reason. Returns `None` on
    /// success.
    pub fn explain(&self, completion: &Completion) -> Option<Error> {
        let kind = completion.status.err()?;
        let reason = completion.peer.and_then(|peer| self.peers.reason_of_loss(peer));
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
        let peer = completion.peer.and_then(|peer| self.peers.get(peer));
        matches!(completion.kind, OpKind::Send | OpKind::SendUnexpected)
            && peer.is_some_and(|peer| {
                let cost = credit::cost(self.adapter.eager_limit(peer));
                peer.credit.as_ref().is_some_and(|credit| !credit.can_spend(cost))
            })
    }

    /// Returns whether the program should write a log line of this kind about a peer. The endpoint
    /// counts the lines that are not written, and reports their number
    /// ([`LogLimit`](crate::LogLimit)).
    pub fn admits_log_line(&mut self, kind: &'static str, peer: PeerId) -> bool {
        let host = self.peers.addr(peer).map_or("lost peers", Addr::host);
        self.adapter.log.admits(kind, host, self.adapter.now)
    }

    // ---- connections ----------------------------------------------------------------------------

    /// Accepts connections at `addr`. Returns the address with the port that was taken.
    ///
    /// # Errors
    /// Those of [`Transport::listen`].
    pub fn listen(&mut self, addr: &Addr) -> Result<Addr, Error> {
        self.adapter.transport.listen(addr).map_err(|error| error.during("listen"))
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

    /// Ends a connection at once, without sending what is queued. Its operations end with
    /// `PeerLost`, and [`PeerEvent::Lost`] has the reason. The call is ignored for a peer that is
    /// gone.
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
    /// gaps between them. [`Config::expose_groups`] turns this off.
    ///
    /// Memory that cannot be registered cannot be exposed, because a copy would not show what the
    /// program and the peer write. The caller may expose memory of [`Memory::zeroed`] instead, and
    /// copy.
    ///
    /// # Errors
    /// `PeerLost`, `Exhausted`; `Invalid` for more than [`Config::max_pieces`] pieces.
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
    /// As [`Engine::post_send`].
    pub fn post_send_unexpected(
        &mut self,
        peer: PeerId,
        tag: Tag,
        list: impl Into<MemList>,
        options: Options,
    ) -> Result<Posted, Error> {
        if is_call(tag) {
            return Err(call_ids::reserved_tag(tag).during("send unexpected"));
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
    /// it.
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
            waker.into_iter().for_each(|waker| self.ops.keep_waker(waker));
            self.end_operation(op, ErrorKind::Cancelled);
        }
    }

    // ---- progress and completions ---------------------------------------------------------------

    /// Makes progress at the time `now`, which must not go back. Returns whether there was anything
    /// to do.
    #[inline]
    pub fn poll(&mut self, now: Time) -> bool {
        self.progress(now)
    }

    /// Returns the completion of `op` if it has ended. Its id is free then.
    pub fn poll_op(&mut self, op: OpId) -> Option<Completion> {
        self.ops.collect(op)
    }

    /// Adds an operation, and its peer, to an error.
    pub(crate) fn during(&self, op: OpId, error: Error) -> Error {
        let Some(record) = self.ops.get(op) else { return error };
        let error = error.during(record.kind.as_str());
        match record.peer.and_then(|peer| self.peer_addr(peer)) {
            Some(addr) => error.with_peer(addr),
            None => error,
        }
    }

    /// Returns whether there is such an operation: under way, or ended and not yet collected.
    pub fn is_known(&self, op: OpId) -> bool {
        self.ops.get(op).is_some()
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
        let message = self.inbox.pop()?;
        record::taken(&self.adapter.recorder, &message);
        Some(message)
    }

    /// Returns the next event about a peer. If the program does not take them, the oldest events
    /// beyond 1024 are lost.
    pub fn poll_event(&mut self) -> Option<PeerEvent> {
        self.peers.next_event()
    }

    // ---- waiting --------------------------------------------------------------------------------

    /// Returns the time at which to poll though nothing arrives.
    pub fn next_deadline(&self) -> Option<Time> {
        let fences = (!self.ops.fences.is_empty()).then_some(self.adapter.now);
        let all = [
            fences,
            self.ops.next_timer().filter(|_| !mutated("wait/forgets-deadlines")),
            self.adapter.turns.next_check(),
            self.adapter.registry.next_deadline(),
            self.adapter.log.next_deadline(),
            self.sweeps.next(),
            self.adapter.transport.next_deadline(),
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
    #[inline]
    pub fn arm(&mut self, waker: &Waker) -> Armed {
        // Transfers and peers that wait for the adapter are resumed by its progress, which wakes
        // the waiter.
        if self.peers.has_dirty() || !self.ops.fences.is_empty() || self.has_returns() {
            return Armed::Busy;
        }
        let armed = self.adapter.transport.arm(waker);
        let quiet = armed == Armed::Waiting
            && (mutated("wait/dropped-messages-wake-nobody") || self.inbox.released.wake_at_next(waker))
            && self.exposures.revoked.wake_at_next(waker)
            && self.adapter.registry.arm(waker);
        if quiet { Armed::Waiting } else { Armed::Busy }
    }

    /// Returns the transport's descriptor to sleep on, if it has one.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.adapter.transport.event_fd()
    }

    // ---- for the async interface ----------------------------------------------------------------

    /// Returns the number of operations that are under way, or have ended and are not collected.
    #[inline]
    pub(crate) fn operations(&self) -> usize {
        self.ops.len()
    }

    /// Returns the completion of `op`, or `None` after arranging to wake `waker` when there is one.
    /// `Some(None)` means that there is no such operation.
    pub(crate) fn poll_op_or_wake(&mut self, op: OpId, waker: &Waker) -> Option<Option<Completion>> {
        let Some(record) = self.ops.get_mut(op) else { return Some(None) };
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

    /// Returns true if an operation has ended, or is not known.
    pub(crate) fn has_ended(&self, op: OpId) -> bool {
        self.ops.get(op).is_none_or(|record| record.is_done())
    }

    /// Wakes the task of one operation that is under way, if there is one.
    pub(crate) fn wake_a_waiter(&mut self) {
        self.ops.wake_a_waiter();
    }

    /// Returns true if there are wakers to take.
    pub(crate) fn has_wakers(&self) -> bool {
        self.ops.has_wakers()
    }

    /// Keeps wakers with those of the operations that ended.
    pub(crate) fn keep_wakers(&mut self, wakers: &mut Vec<Waker>) {
        self.ops.keep_wakers(wakers);
    }

    /// Takes the oldest waker of the operations that ended, and of those that were kept with them.
    #[inline]
    pub(crate) fn take_waker(&mut self) -> Option<Waker> {
        self.ops.take_waker()
    }

    pub(crate) fn has_unexpected(&self) -> bool {
        !self.inbox.is_empty()
    }

    pub(crate) fn has_events(&self) -> bool {
        self.peers.has_events()
    }
}
