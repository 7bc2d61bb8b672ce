//! The contract of a backend: an adapter with reliable connected queue pairs, and nothing more.
//!
//! **Why so little.** Matching, eager and rendezvous, credits, bulk, paths and deadlines are above
//! this trait. They exist once, and are tested once, in the simulator, for every backend. A backend
//! moves bytes and reports the result. `docs/design/transport.md` tries the trait on four backends
//! (TCP in software, verbs, shared memory, simulated) and gives the reason for each decision.
//!
//! **Life of a connection**
//!
//! ```text
//!   this side                                      the peer
//!   connect(addr, private) -> conn                 Event::ConnectRequest { conn, private }
//!     post_recv(conn, …) × credits                   post_recv(conn, …) × credits
//!                                                    accept(conn, private)   or   reject(conn, private)
//!   Event::Established { private }                 Event::Established
//!     …work both ways…
//!   disconnect(conn)                               every outstanding work request completes, Flushed,
//!     Event::Disconnected                            then Event::Disconnected { reason }
//! ```
//!
//! **The contract.** The tests of `bmi-conformance` cite the C-numbers. A backend that passes that
//! suite keeps the contract as far as tests can show.
//!
//! - **C1 non-blocking.** No method blocks, sleeps or waits for a peer. A name that needs a look-up
//!   is resolved elsewhere, and the result is an event.
//!
//! - **C2 progress.** Work advances inside [`Transport::poll`]. An adapter in hardware also
//!   advances between polls. Posting may do work at once, but need not. Small requests that are
//!   posted between two polls may be handed over together by the second poll.
//!
//! - **C3 order.** Sends and writes of one connection take effect at the peer in the order in which
//!   they were posted. A send, or the immediate data of a write, is delivered after the bytes of
//!   every write posted before it are in place. Reads are ordered neither with sends and writes nor
//!   with the peer's work: wait for their completion.
//!
//! - **C4 completions.** Every request that was posted with success completes exactly once, unless
//!   it was posted unsignalled and succeeds. A failure is always reported. Signalled completions of
//!   sends and writes come in posting order. So do those of reads, among themselves. So a chain of
//!   requests of which only the last is signalled is done when that one is. A receive completes, in
//!   the order of posting, when a send or a write with immediate data has consumed it. Receives of
//!   [`Transport::post_alike`] complete in any order.
//!   - *Success of a send or a write* means only that its memory may be used again. The request may
//!     be in a buffer of the system or of the adapter. It may not have reached the peer. The peer
//!     may still refuse it (C7, C9, C10). TCP and shared memory complete a send before its receiver
//!     can refuse it; verbs and the simulator complete it afterwards. Wait for a message from the
//!     peer's program to know that a send arrived.
//!   - *Success of a read or a receive* means that the bytes are in place.
//!   - *Failure.* After the first send or write that failed, no later one of the connection
//!     succeeds. At most one request has the reason as its status: [`WorkStatus::RemoteAccess`],
//!     [`WorkStatus::ReceiverNotReady`] or [`WorkStatus::TooLong`]. All others are
//!     [`WorkStatus::Flushed`]. If the refused request had already succeeded, a later request of
//!     its kind may have the reason, or none. A flushed send or write may have taken effect at the
//!     peer.
//!   - *No bytes.* A send of no bytes consumes a receive. Writes and reads of no bytes complete
//!     like others and are checked like others (C7). A segment of no bytes may be anywhere in a
//!     list, and counts as a segment. A receive may have no segments.
//!   - *Queues.* The send queue takes at least [`Capabilities::send_queue_depth`] sends, writes and
//!     reads together, the receive queue [`Capabilities::recv_queue_depth`] receives. The backend
//!     queues reads beyond [`Capabilities::max_outstanding_reads`] itself.
//!
//! - **C5 memory.** The backend holds the regions of a request's segments from the successful post
//!   until a poll has reported the completion, even if it has copied the bytes while posting. It
//!   releases them in that poll, so the caller that learns of the completion has its memory back.
//!   For an unsignalled request it holds them until a later signalled request of the same
//!   connection and kind has completed, or until `Disconnected`. A failed post has touched nothing
//!   and holds nothing.
//!   - *Read-only memory* ([`Memory::is_read_only`]) may be sent, written from and exposed for
//!     reading. Every `post_recv` and `post_read` calls [`check_writable`], and every `expose`
//!     calls [`check_exposure`].
//!
//! - **C6 end.** When a connection ends, for whatever reason, its outstanding requests complete
//!   with [`WorkStatus::Flushed`], except one that has the reason (C4). Then exactly one
//!   [`Event::Disconnected`] is reported, as the last event of the connection. After that event the
//!   backend touches no memory on behalf of the connection. Its `ConnId` is never used again. Its
//!   slot is not used again before the next poll.
//!   - *Order.* Receives are flushed in posting order. So are sends and writes, and so are reads.
//!     There is no order between these three.
//!   - *Rejection.* At the connecting side [`Event::Rejected`] is the last event, in place of
//!     `Disconnected`. At the rejecting side only the flushed receives are reported.
//!   - *Reasons*, as the kind of the error in `Disconnected`:
//!
//!     | what happened | kind |
//!     |---|---|
//!     | this side called `disconnect` | `Cancelled` |
//!     | this side ended the connection because of what the peer did (C7, C8, C9, C10) | `Protocol` |
//!     | the peer called `disconnect`, died, dropped its transport, or ended it for such a reason | `PeerLost` |
//!     | there is no listener at the address | `Refused`, without waiting for the deadline |
//!     | the listener died before it answered | `PeerLost` or `Refused` |
//!     | the deadline of `connect` passed | `TimedOut`, never before the deadline |
//!     | the peer speaks another version of the backend's protocol | `Incompatible` |
//!
//!     A [`Event::ConnectRequest`] whose peer is gone before the answer ends in `Disconnected` with
//!     `PeerLost` like a connection, and `accept` then fails with `PeerLost`.
//!   - *Phases.* These posts are legal:
//!
//!     | phase | receives, `expose` | sends, writes, reads |
//!     |---|---|---|
//!     | after `connect`, before `Established` | yes | [`PostError::NotConnected`] |
//!     | after `ConnectRequest`, before `accept` | yes | `NotConnected` |
//!     | after `accept`, before `Established` | yes | accepted or `NotConnected`; a caller waits |
//!     | after `Established` | yes | yes |
//!     | after `disconnect` was called on this side | `NotConnected`; `PeerLost` from `expose` | `NotConnected` |
//!     | ended, rejected, or an unknown `ConnId` | `NotConnected`; `PeerLost` from `expose` | `NotConnected` |
//!
//!     Receives and exposures of the first phases stay valid after `Established`. A connection that
//!     ends for another reason may refuse posts with `NotConnected` before the poll that reports
//!     its `Disconnected`.
//!   - *Unknown names.* `disconnect`, `reject` and `revoke` ignore a `ConnId` or a key that they do
//!     not know. `accept` fails with `PeerLost`.
//!
//! - **C7 remote access.** A peer reaches only what [`Transport::expose`] gave to its own
//!   connection: with the right key, on the right connection, within bounds, with the right
//!   granted, not yet revoked. Any other access ends the connection. It changes no byte at the
//!   target and delivers none to the initiator. Other connections go on.
//!   - *No bytes.* An access of no bytes needs a valid key and the right too. Its address must be
//!     within the exposure or at its end.
//!   - *At the initiator*, a refused read completes `RemoteAccess` or `Flushed`, never `Ok`. A
//!     refused write completes `RemoteAccess`, `Flushed`, or `Ok` if it succeeded before (C4). Then
//!     comes `Disconnected` with `PeerLost`.
//!   - *At the target*, no event tells of the access itself. Nothing that the peer posted behind it
//!     is delivered. Outstanding work is flushed. Then comes `Disconnected` with `Protocol` and a
//!     reason in words.
//!   - *Keys.* Each exposure has a key of its own, even if two are of the same segment. A key
//!     cannot be guessed from others. [`RemoteSlice::len`] is the length of the segment. The
//!     adapter chooses the address.
//!   - *Revoking.* When [`Transport::revoke`] returns, no new access by that key begins: a later
//!     one is refused as above. An adapter that copies by the processor ends the connection if an
//!     access by that key is in flight: `Cancelled` at this side, `PeerLost` at the peer. An
//!     adapter in hardware refuses the rest of such an access. The backend holds the region until
//!     no access can be in flight, however long that is. Such memory is *retired*
//!     ([`Transport::retired_memory`]). No work waits for it, and its amount is bounded.
//!
//! - **C8 bad bytes.** Whatever bytes arrive, a backend does not panic, does not allocate by a size
//!   that it has not checked, and does not stall other connections. It ends the connection that
//!   they came from with [`ErrorKind::Protocol`] and a reason in words.
//!
//! - **C9 receiver not ready.** A send that finds no posted receive ends the connection. Flow
//!   control is the caller's duty, and the protocol above has credits for it. Verbs may try such a
//!   send again for a short time first.
//!   - *At the sender*, the send completes [`WorkStatus::ReceiverNotReady`], `Flushed`, or `Ok` if
//!     it succeeded before (C4). Then comes `Disconnected` with `PeerLost`.
//!   - *At the receiver*, the message is not reported. Nothing that was posted behind it is
//!     delivered. Then comes `Disconnected` with `Protocol` and a reason in words.
//!   - *A write with immediate data* that finds no receive ends the connection in the same way. Its
//!     bytes may be in place.
//!
//! - **C10 short and long receives.** A receive that is longer than the message keeps the rest of
//!   its memory untouched. A receive that is shorter completes [`WorkStatus::TooLong`] with length
//!   0, and the connection ends. The bytes of that receive are then undefined; no other byte is
//!   touched. Both sides report the rest as in C9, with `TooLong` as the status of the send.
//!
//! - **C11 waiting.** After [`Transport::arm`] has returned [`Armed::Waiting`], everything that
//!   gives `poll` something to do wakes the waiter: a message, a connection request, the end of a
//!   peer, room in a queue (C15), and [`Transport::waker`] on any thread. Waking too often is
//!   allowed. After [`Armed::Busy`] nothing need wake: poll again.
//!   - *One poll is enough* at the side that posts. What a poll has handed over wakes the peer's
//!     waiter, even if this side never polls again.
//!   - *With an event fd* ([`Capabilities::event_fd`]), the descriptor becomes readable and stays
//!     so until the next poll. It is waited on and never read. The backend may ignore the waker
//!     that was passed to `arm`, and need not look in `arm` for what makes the descriptor
//!     readable. A waiter that is told of edges forgets them before it polls, not afterwards.
//!   - *Without one*, the backend wakes the waker that was passed to `arm`.
//!   - *Deadlines* do not wake: a waiter sleeps until [`Transport::next_deadline`] at the latest.
//!
//! - **C12 deadlines.** [`Transport::next_deadline`] is the earliest time at which `poll` has
//!   something to do even if nothing arrives, such as a handshake to drop or a retry. While a
//!   connection is being made, it is at most the deadline of its `connect`. An adapter with
//!   established connections and no work has no deadline, or one that is not near.
//!   - *A deadline in the past* is allowed. `connect` still returns a `ConnId`, whose attempt ends
//!     `TimedOut` at the next polls. `disconnect` cuts at once, and the next poll reports it. The
//!     backend compares deadlines with the time of its latest poll.
//!
//! - **C13 release.** A region whose last handle is gone is deregistered at the next poll, or
//!   earlier by a registration that would fail for lack of its room. Its memory may be gone before.
//!   A transport holds no [`Memory`] for a registration, only for exposures and work, by their
//!   [`MemoryRegion`]s. Dropping the transport ends every connection and frees everything
//!   except retired memory (C7).
//!
//! - **C14 idle.** With nothing to do, `poll` makes at most a constant number of system calls and
//!   allocates nothing. In the steady state no method of the data path (`post_*`, `write_now`,
//!   `read_now`, `poll`, `poll_inline`) allocates.
//!
//! - **C15 full queues.** After a post was refused with [`PostError::QueueFull`], the first poll
//!   that makes room in that queue returns `true`, whether or not it reports an event, and C11
//!   covers it. So a caller that was refused need not try again before.
//!
//! - **C16 inline receives.** [`Transport::poll_inline`] may show a message to its
//!   [`InlineReceiver`] in the adapter's own buffer, before a receive consumes it. It shows a
//!   message only if this poll has reported no event of the connection, an earlier poll has
//!   reported its `Established`, and the receive at the front has room for the message. Immediate
//!   data is never shown. If the receiver takes the message, the message is done, and the receive
//!   stays posted. An adapter that cannot leave the receive in its place may put it behind the
//!   others. If the receiver does not take it, the message goes the usual way. So the order of C3
//!   and C4 holds for a caller that first takes the messages it is shown and then handles the
//!   events.
//!
//! - **C17 shards.** A backend may open several transports as the *members* of a group that share
//!   their listening addresses. Each may be driven by a thread of its own. Their times come from
//!   copies of one clock. This trait has no method for it: each backend has a constructor.
//!   - *Listening.* Any member may listen. An address at which one of them listens serves all. The
//!     member that listens accepts the connections, so it must be polled.
//!   - *Spreading.* Each new connection goes to the member that has fewest, of all kinds. Where
//!     members have the same number, the one that listens has precedence. After
//!     [`Transport::spread`] only the first members get any, and the others what finds no room
//!     there. The member that gets the connection is woken (C11). From then on the connection is
//!     that member's alone: its name, its memory, its keys and its events.
//!   - *Independence.* A member that is not polled delays no other. Connections wait for it, in
//!     bounded number, until it is polled or their peers give up. More than these are not assigned
//!     to it.
//!   - *Limits* hold for each member as for a transport that is alone. What waits for a member
//!     counts as its own, and the time limit of a handshake counts from the arrival.
//!   - *End.* When a member is dropped, the connections that wait for it go to the others, or end
//!     if the others have no room. If it was listening, its addresses are free. What it handed over
//!     before is served.
//!
//! - **C18 identity.** [`Event::ConnectRequest`] and [`Event::Established`] tell who the peer is
//!   ([`PeerIdentity`]), as far as the backend has proved it, and not as the peer says. Both events
//!   of an accepted connection tell the same. Nothing that the peer does later changes it. What is
//!   proved at one side need not be at the other.

pub(crate) mod bed;
pub(crate) mod capability;
mod forward;
mod inline_receive;

use std::os::fd::BorrowedFd;
use std::task::Waker;

use crate::addr::Addr;
pub use crate::class::ServiceClass;
use crate::error::{Error, ErrorKind};
use crate::identity::PeerIdentity;
use crate::mem::{
    Access, MemList, MemSlice, Memory, MemoryRegion, RemoteKey, RemotePages, RemoteSlice, RemoteView, Segment,
};
use crate::time::Time;
use crate::transport::capability::Capabilities;
pub use bed::Bed;
pub use inline_receive::{InlineMessage, InlineReceiver, ReceivesNothing};

/// Longest private data that travels with a connection request, an acceptance or a rejection, in
/// bytes.
pub const MAX_PRIVATE_DATA: usize = 256;

/// The name of a connection of one transport: a slot and a number that differs for each use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    /// The slot. Slots are small and dense, so the caller may index a table by them.
    pub slot: u32,
    /// Differs each time the slot is used again.
    pub generation: u32,
}

/// The caller's name for a work request. The transport only hands it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId(pub u64);

/// Options of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkOptions {
    /// If true, success is reported as a completion. Failure is always reported.
    pub signalled: bool,
    /// The service class.
    pub class: ServiceClass,
}

impl WorkOptions {
    /// Signalled, of class `Message`.
    pub const SIGNALLED: WorkOptions = WorkOptions { signalled: true, class: ServiceClass::Message };
    /// Unsignalled, of class `Message`.
    pub const UNSIGNALLED: WorkOptions = WorkOptions { signalled: false, class: ServiceClass::Message };
}

/// The payload of a send, which follows its head.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Copied before the call returns. It needs no registration. Head and payload together have at
    /// most [`Capabilities::max_inline`] bytes.
    Inline(&'a [MemSlice]),
    /// Gathered by the adapter, at any time until the completion.
    Gather(&'a [Segment]),
}

impl Payload<'_> {
    /// The empty payload.
    pub const EMPTY: Payload<'static> = Payload::Inline(&[]);

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Payload::Inline(slices) => slices.iter().map(MemSlice::len).sum(),
            Payload::Gather(segments) => segments.iter().map(Segment::len).sum(),
        }
    }

    /// Returns true if the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The target of an RDMA write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteTarget {
    /// The peer's memory.
    pub remote: RemoteSlice,
    /// If set, the write also consumes a receive at the peer, whose completion reports these 32
    /// bits. Needs [`Capabilities::write_with_immediate`].
    pub immediate: Option<u32>,
}

impl From<RemoteSlice> for WriteTarget {
    /// Makes the target of a write that the peer's program does not notice.
    fn from(remote: RemoteSlice) -> WriteTarget {
        WriteTarget { remote, immediate: None }
    }
}

/// Work that the protocol makes the processor do (see [`Transport::charge`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostWork {
    /// A copy from memory to memory.
    Copy {
        /// Number of bytes.
        bytes: u64,
        /// Number of contiguous pieces.
        pieces: u64,
    },
}

impl HostWork {
    /// Describes a copy of `bytes` from or to the front of a list.
    #[inline]
    pub fn copy(bytes: usize, list: &MemList) -> HostWork {
        let mut left = bytes;
        let reached = list.pieces().iter().take_while(|piece| {
            let reached = left > 0;
            left = left.saturating_sub(piece.len());
            reached
        });
        HostWork::Copy { bytes: bytes as u64, pieces: reached.count() as u64 }
    }
}

/// The reason that a work request was not accepted. Nothing was touched, and nothing is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// The queue is full. Poll until there is room (C15), then try again.
    QueueFull,
    /// The connection is unknown, has ended, or does not take this request in its phase (C6).
    NotConnected,
    /// A bug of the caller: a limit of [`Capabilities`] was not kept, the adapter lacks the
    /// capability, a segment belongs to another transport, memory that is to be written is
    /// read-only, or there are more bytes than the remote slice has. The connection stays as it
    /// was.
    Invalid(&'static str),
}

/// Checks that the memory of segments may be written. Every backend calls it in `post_recv` and
/// `post_read` (C5).
///
/// # Errors
/// `Invalid` for a segment of read-only memory ([`Memory::is_read_only`]).
#[inline]
pub fn check_writable(segments: &[Segment]) -> Result<(), PostError> {
    if segments.iter().any(Segment::is_read_only) {
        return Err(PostError::Invalid("a segment of read-only memory, which work would write to"));
    }
    Ok(())
}

/// Checks that an exposure is allowed. Every backend calls it in `expose` (C5).
///
/// # Errors
/// `Invalid` for an exposure of read-only memory that the peer may write to.
pub fn check_exposure(segment: &Segment, access: Access) -> Result<(), Error> {
    if access.remote_write && segment.is_read_only() {
        let text = "read-only memory cannot be exposed for writing";
        return Err(Error::new(ErrorKind::Invalid, text).during("expose"));
    }
    Ok(())
}

/// The kind of a request that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkKind {
    /// [`Transport::post_send`]
    Send,
    /// [`Transport::post_recv`]
    Recv,
    /// [`Transport::post_write`]
    Write,
    /// [`Transport::post_read`]
    Read,
}

/// The result of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkStatus {
    /// Success. For a send or a write, the memory may be used again. The bytes may still be on
    /// their way, and the peer may still refuse them (C4). For a read or a receive, the bytes are
    /// in place.
    Ok,
    /// The connection ended first. A flushed send or write may have taken effect.
    Flushed,
    /// The peer's adapter refused key, bounds or rights (C7). The connection ends.
    RemoteAccess,
    /// The peer had no receive posted (C9). The connection ends.
    ReceiverNotReady,
    /// The message was longer than the receive (C10). The connection ends.
    TooLong,
    /// The adapter failed in some other way. The connection ends.
    Failed,
}

/// The completion of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The connection.
    pub conn: ConnId,
    /// The caller's name for the request.
    pub work: WorkId,
    /// The kind of the request.
    pub kind: WorkKind,
    /// The result.
    pub status: WorkStatus,
    /// For a receive, the number of bytes that were delivered into it: 0 unless it succeeded, and 0
    /// for a write with immediate data, whose bytes went elsewhere. Otherwise the length of the
    /// request, head included.
    pub len: u64,
    /// For a receive, the immediate data of the write that consumed it.
    pub immediate: Option<u32>,
}

/// An event that [`Transport::poll`] reports. Events come in order of occurrence. A connection's
/// [`Event::Established`] precedes its first successful completion. Its [`Event::Disconnected`] or
/// [`Event::Rejected`] follows its last completion.
#[derive(Debug)]
pub enum Event {
    /// A work request completed.
    Work(WorkCompletion),
    /// A peer wants to connect. Post receives, then call `accept` or `reject`. Until `accept` the
    /// connection takes only receives and exposures (C6).
    ConnectRequest {
        /// The connection.
        conn: ConnId,
        /// The address of the peer as it says or as it is seen. For logs only.
        from: Box<Addr>,
        /// Who the peer is (C18).
        identity: PeerIdentity,
        /// The bytes that the peer passed to `connect`, at most [`MAX_PRIVATE_DATA`]. Their content
        /// is not checked.
        private: Box<[u8]>,
    },
    /// The connection is established, and any work can be posted. Reported to both sides.
    Established {
        /// The connection.
        conn: ConnId,
        /// Who the peer is (C18).
        identity: PeerIdentity,
        /// At the connecting side, the bytes that the peer passed to `accept`. Their content is not
        /// checked. Empty at the accepting side.
        private: Box<[u8]>,
    },
    /// The peer rejected the connection. The `ConnId` is gone, and no `Disconnected` follows.
    Rejected {
        /// The connection.
        conn: ConnId,
        /// The bytes that the peer passed to `reject`. Their content is not checked.
        private: Box<[u8]>,
    },
    /// The connection ended, or was never established. The `ConnId` is gone.
    Disconnected {
        /// The connection.
        conn: ConnId,
        /// The reason. C6 has the error kinds.
        reason: Error,
    },
}

// Each completion is one, and several are moved for each message: they stay in a cache line.
const _: () = assert!(size_of::<Event>() <= 64);

/// The result of [`Transport::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// It is safe to sleep: everything that gives `poll` something to do wakes the waiter (C11).
    Waiting,
    /// There is something to do already, or there may be. Poll again.
    Busy,
}

/// Memory that a backend still holds although its exposure has ended, because the peer's access to
/// it has not (see [`Transport::retired_memory`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetiredMemory {
    /// Exposures whose memory is held.
    pub exposures: usize,
    /// Bytes of the memories that they hold. Each memory counts once, with its whole length.
    pub bytes: u64,
}

/// The memory of an idle connection whose contents the endpoint may discard (see
/// [`Transport::release_idle`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdleMemory {
    /// None.
    #[default]
    Nothing,
    /// Posted receives.
    Receives,
    /// Posted receives, and memory that is exposed to the peer.
    ReceivesAndExposures,
}

/// How the bytes of one-sided work travel for one kind of memory (see [`Transport::bulk_ways`]).
/// The texts are for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkWay {
    /// The kind of memory.
    pub memory: &'static str,
    /// The way of the bytes.
    pub way: &'static str,
    /// The reason for this way.
    pub why: &'static str,
}

/// An adapter. The [module](self) has the contract. The trait is object-safe. One owner drives an
/// adapter, from one thread at a time.
pub trait Transport {
    // ---- what it is -----------------------------------------------------------------------------

    /// Returns the capabilities. They never change.
    fn capabilities(&self) -> &Capabilities;

    // ---- connections ----------------------------------------------------------------------------

    /// Starts to listen at `addr`. Returns the address with the port that was taken. A transport
    /// may listen at several addresses.
    ///
    /// # Errors
    /// `Invalid` for an address of another scheme, or one that is in use, by this transport too.
    /// `Exhausted`, `Io`.
    fn listen(&mut self, addr: &Addr) -> Result<Addr, Error>;

    /// Starts to connect to `addr`. The attempt ends in `Established`, `Rejected` or
    /// `Disconnected`: not before the next poll, and not after the first poll at or behind
    /// `deadline`. Receives and exposures may be made at once (C6).
    ///
    /// # Errors
    /// `Invalid` for an address of another scheme, or for private data over [`MAX_PRIVATE_DATA`].
    /// `Exhausted`.
    fn connect(&mut self, addr: &Addr, private: &[u8], deadline: Time) -> Result<ConnId, Error>;

    /// Accepts a `ConnectRequest`. `Established` or `Disconnected` follows. Wait for `Established`
    /// before sending (C6).
    ///
    /// # Errors
    /// `PeerLost` if there is no such request, or no longer. `Invalid` for private data over
    /// [`MAX_PRIVATE_DATA`]; the request can still be answered.
    fn accept(&mut self, conn: ConnId, private: &[u8]) -> Result<(), Error>;

    /// Rejects a `ConnectRequest`, with a reason for the peer. The `ConnId` is gone at once. Its
    /// receives complete `Flushed`, and no `Disconnected` follows. The call is ignored for an
    /// unknown connection. It is also ignored if the private data is over the limit; the request
    /// can then still be answered.
    fn reject(&mut self, conn: ConnId, private: &[u8]);

    /// Ends a connection. Sends and writes that were posted before are still handed to the network,
    /// as far as that is possible until `deadline`. Requests that wait for the peer (reads and
    /// receives) are flushed. No more work is accepted (C6).
    ///
    /// `Disconnected` follows, with `Cancelled` as its reason: at the deadline at the latest, even
    /// if the peer does not poll. An adapter in hardware may need a little longer, to flush its
    /// queue pair. A deadline that has passed cuts at once. If the call is repeated, the earlier
    /// deadline counts. Unknown connections are ignored.
    fn disconnect(&mut self, conn: ConnId, deadline: Time);

    // ---- memory ---------------------------------------------------------------------------------

    /// Registers `memory`, so that its pieces may be segments of work requests. It is deregistered
    /// after the last handle of the region is gone (C13).
    ///
    /// # Errors
    /// `Exhausted` if the adapter or a limit of the system refuses, although everything released
    /// was deregistered. The text names the limit.
    fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error>;

    /// Lets the peer of `conn`, and no other peer, reach `segment` with the rights of `access`,
    /// until `revoke` or the end of the connection. The exposure holds the region.
    ///
    /// # Errors
    /// `PeerLost` for a connection that is unknown or has ended. `Invalid` for a segment of another
    /// transport, and for read-only memory that the peer may write to ([`check_exposure`]).
    /// `Exhausted`.
    fn expose(&mut self, conn: ConnId, segment: &Segment, access: Access) -> Result<RemoteSlice, Error>;

    /// Ends an exposure. When the call returns, no new access begins. In an emulated adapter an
    /// access that is in flight ends the connection (C7). Unknown keys are ignored.
    fn revoke(&mut self, conn: ConnId, key: RemoteKey);

    // ---- the data path --------------------------------------------------------------------------

    /// Posts a receive. Receives are consumed in the order of posting. The message is scattered
    /// over `segments`, at most [`Capabilities::max_segments`] of them. A receive that only takes
    /// immediate data or messages of no bytes needs none.
    ///
    /// # Errors
    /// See [`PostError`]. `Invalid` for read-only memory ([`check_writable`]).
    fn post_recv(&mut self, conn: ConnId, work: WorkId, segments: &[Segment]) -> Result<(), PostError>;

    /// Posts a receive as [`Transport::post_recv`] does, for a caller that does not mind which of
    /// its receives takes a message, because all of the connection are alike and posted in this
    /// way. An adapter in software may take the last one first. Then few of them are touched, and
    /// stay in the processor's cache. Others take them in the order of posting.
    ///
    /// # Errors
    /// As [`Transport::post_recv`].
    fn post_alike(&mut self, conn: ConnId, work: WorkId, segments: &[Segment]) -> Result<(), PostError> {
        self.post_recv(conn, work, segments)
    }

    /// Sends `head` followed by `payload` as one message. `head` has at most
    /// [`Capabilities::max_head`] bytes. It is copied before the call returns, so a protocol header
    /// needs no buffer of its own.
    ///
    /// # Errors
    /// See [`PostError`].
    fn post_send(
        &mut self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        payload: Payload<'_>,
        options: WorkOptions,
    ) -> Result<(), PostError>;

    /// Writes `head` followed by `segments` to the beginning of the target. `head` is copied as in
    /// `post_send`.
    ///
    /// # Errors
    /// See [`PostError`]. `Invalid` if there are more bytes than the target has, and for immediate
    /// data without [`Capabilities::write_with_immediate`].
    fn post_write(
        &mut self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        segments: &[Segment],
        target: WriteTarget,
        options: WorkOptions,
    ) -> Result<(), PostError>;

    /// Reads the beginning of `remote`, as many bytes as `segments` hold, and scatters them.
    ///
    /// # Errors
    /// See [`PostError`]. `Invalid` if the segments hold more than `remote.len`, for read-only
    /// memory ([`check_writable`]), and without [`Capabilities::rdma_read`].
    fn post_read(
        &mut self,
        conn: ConnId,
        work: WorkId,
        segments: &[Segment],
        remote: RemoteSlice,
        options: WorkOptions,
    ) -> Result<(), PostError>;

    /// Writes `from` to the beginning of `remote` during the call, if that is possible. The memory
    /// needs no registration.
    ///
    /// `true` means that the bytes are in place, after everything that was posted before (C3), that
    /// the memory is free again, and that no completion follows. `false` means that nothing has
    /// happened: the transport cannot do it, earlier work is waiting, the write is too long or in
    /// too many pieces for a call that returns soon, or something is wrong with it. Post it then;
    /// that reports the error. For an access that C7 refuses, with bytes or without, the call
    /// returns `false` and the connection stays.
    fn write_now(&mut self, conn: ConnId, from: &[MemSlice], remote: RemoteSlice) -> bool {
        let _ = (conn, from, remote);
        false
    }

    /// Reads the beginning of `remote` during the call, as many bytes as `into` holds, and scatters
    /// them. The result means the same as that of [`Transport::write_now`]. Like any read, it is
    /// not ordered with writes that wait. For read-only memory it returns `false`.
    fn read_now(&mut self, conn: ConnId, into: &[MemSlice], remote: RemoteSlice) -> bool {
        let _ = (conn, into, remote);
        false
    }

    /// Returns the peer's memory itself, if it is mapped in this process too. The kernel can then
    /// read from it (`access.remote_read`) or write to it (`access.remote_write`) without a copy.
    ///
    /// Returns `None` if the transport cannot do this, if the memory is not shareable, or if key,
    /// bounds or rights do not allow it. Post a read or a write then; that reports the error. While
    /// the returned value lives, an access is in flight: a `revoke` by the peer ends the connection
    /// (C7).
    fn map_remote(&mut self, conn: ConnId, remote: RemoteSlice, access: Access) -> Option<RemotePages> {
        let _ = (conn, remote, access);
        None
    }

    /// Returns the peer's memory as it is mapped in this process, for reading only.
    ///
    /// This is not an access in flight (C7). The peer may change or revoke the memory, reuse it or
    /// end the connection at any time; the view stays mapped, and its bytes may then be anything.
    /// The caller decides by its own means whether what it has read is valid, by words in the
    /// memory for instance ([`crate::mem::PublishedPages`]).
    ///
    /// Returns `None` if the transport cannot do this, if the memory is not shareable or not mapped
    /// yet, if key, bounds or rights do not allow it, or if this side could not learn of the death
    /// of the peer's process. If the memory is only not mapped yet, the call asks for it, and a
    /// later one succeeds. The number and the bytes of what is mapped are bounded.
    fn view_remote(&mut self, conn: ConnId, remote: RemoteSlice) -> Option<RemoteView> {
        let _ = (conn, remote);
        None
    }

    /// Describes how bytes travel to and from the peer's memory on this connection, for each kind
    /// of memory, and why. A plan of the paths shows it to people. Empty if there is one way for
    /// all memory.
    fn bulk_ways(&mut self, conn: ConnId) -> Vec<BulkWay> {
        let _ = conn;
        Vec::new()
    }

    /// Returns the memory that this side holds because a peer may still access it by an exposure
    /// that has ended (C7). It is zero unless a peer's access outlasts its operation. An adapter in
    /// hardware ends such an access itself and holds nothing.
    fn retired_memory(&self) -> RetiredMemory {
        RetiredMemory::default()
    }

    /// Returns how many bytes of a connection have moved so far, in both directions, as far as this
    /// side knows. The count includes the bytes of requests that have not completed, so it tells a
    /// slow peer from one that has stopped. Returns 0 for an unknown connection, and for an adapter
    /// that does not count.
    fn moved_bytes(&self, conn: ConnId) -> u64 {
        let _ = conn;
        0
    }

    /// Gives back the memory that the adapter itself keeps for a connection on which nothing has
    /// happened for a while, as far as it holds nothing.
    ///
    /// Returns the memory whose contents the caller may discard. It is memory into which no byte of
    /// the peer is on its way, of which no completion is unreported, and in which only `poll` will
    /// place further bytes. An adapter in hardware places bytes at any time and has pinned the
    /// pages, so it returns [`IdleMemory::Nothing`].
    fn release_idle(&mut self, conn: ConnId) -> IdleMemory {
        let _ = conn;
        IdleMemory::Nothing
    }

    /// Makes progress and appends the events to `events`. Returns whether there was anything to do:
    /// bytes moved, events were reported, or a full queue has room again (C15). The work of a call
    /// is bounded. If many events are pending, it returns after a few hundred, and the caller calls
    /// again.
    fn poll(&mut self, now: Time, events: &mut Vec<Event>) -> bool;

    /// Polls as [`Transport::poll`], with a receiver for messages that are in the adapter's own
    /// buffer (C16). A transport without inline receives just polls.
    fn poll_inline(&mut self, now: Time, events: &mut Vec<Event>, receiver: &mut dyn InlineReceiver) -> bool {
        let _ = receiver;
        self.poll(now, events)
    }

    /// Sends what was posted, and does not look for what arrives: the part of a poll that another
    /// thread does for an owner that sleeps. It reports what completes. Returns true if there was
    /// anything to do. Then [`Transport::arm`] again, before the sleep goes on. The default polls,
    /// and an adapter that sends while work is posted needs nothing else.
    fn flush(&mut self, now: Time, events: &mut Vec<Event>) -> bool {
        self.poll(now, events)
    }

    /// Notes that the protocol above has made the processor do `work` for the data path. An adapter
    /// of a real host ignores it, because the time has passed already. A simulated host charges its
    /// processor, so that the protocol's copies have a cost.
    fn charge(&mut self, work: HostWork) {
        let _ = work;
    }

    /// From now on gives new connections to the first `members` of this transport's group only, in
    /// the order in which they were opened (C17). A transport that is alone ignores it.
    fn spread(&mut self, members: usize) {
        let _ = members;
    }

    // ---- waiting --------------------------------------------------------------------------------

    /// Returns the earliest time at which `poll` has something to do even if nothing arrives (C12).
    fn next_deadline(&self) -> Option<Time>;

    /// Prepares to sleep. After [`Armed::Waiting`], and until the next poll, everything that gives
    /// `poll` something to do makes [`Transport::event_fd`] readable. If there is none, it wakes
    /// `waker` once (C11).
    fn arm(&mut self, waker: &Waker) -> Armed;

    /// Returns a descriptor that becomes readable (see `arm`), exactly if
    /// [`Capabilities::event_fd`] is set. It is never read: calling `poll` makes it unreadable
    /// again.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Returns a place to sleep for the thread that drives this transport, if it is better than the
    /// descriptor. The thread sleeps there in place of waiting for the descriptor.
    ///
    /// # Errors
    /// `Io` if the system has no descriptor for it.
    fn bed(&self) -> Result<Option<Box<dyn Bed>>, Error> {
        Ok(None)
    }

    /// Returns a waker that wakes the waiter of this transport, from any thread.
    fn waker(&self) -> Waker;
}

/// A transport that is chosen at run time, which is what an endpoint owns.
pub type AnyTransport = Box<dyn Transport + Send>;

/// Forwards every method, so that a wrapper can own any transport.
#[deny(clippy::missing_trait_methods)]
impl<T: Transport + ?Sized> Transport for Box<T> {
    crate::forward_transport!(self => (**self); ..);
}
