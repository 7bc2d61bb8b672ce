//! The contract of a backend: an adapter with reliable connected queue pairs, nothing more.
//!
//! **Why so little.** Matching, eager and rendezvous, credits, bulk, paths, deadlines stand once,
//! above this trait, and are tested once, in the simulator, for every backend. A backend moves
//! bytes and reports what became of them. `ARCHITECTURE.md` tries the trait on four backends (TCP
//! in software, verbs, shared memory, simulated) and gives the reason for each decision.
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
//! **The contract.** C-numbers are cited by the tests of `bmi-conformance`.
//!
//! - **C1 non-blocking.** No method blocks, sleeps or waits for a peer. Names that need a look-up
//!   are resolved elsewhere and the result is an event.
//! - **C2 progress.** Work advances inside [`Transport::poll`] (an adapter in hardware may also
//!   advance by itself). Posting may do work at once, but must not need to: small requests posted
//!   between two polls may be handed over together by the second.
//! - **C3 order.** Sends and writes of one connection take effect at the peer in the order in which
//!   they were posted: a send, or the immediate data of a write, is delivered after the bytes of
//!   every write posted before it are in place. Reads are ordered with nothing; wait for their
//!   completion.
//! - **C4 completions.** Every request posted with success completes exactly once, unless it was
//!   posted unsignalled and succeeds. Signalled completions of sends and writes come in posting
//!   order, and so do those of reads, among themselves: a chain of requests of which only the last
//!   is signalled is done when that one is. An unsuccessful one comes always. A receive completes
//!   when a send, or a write with immediate data, has consumed it, in the order of posting.
//! - **C5 memory.** From a successful post until its completion (for an unsignalled request: until
//!   a later signalled one of the same connection and kind has completed, or `Disconnected`), the
//!   backend holds the regions of the request's segments. A failed post has touched nothing and
//!   holds nothing.
//! - **C6 end.** When a connection ends, for whatever reason, its outstanding requests complete
//!   with [`WorkStatus::Flushed`], and then exactly one [`Event::Disconnected`] is reported. After
//!   that event the backend touches no memory on behalf of the connection, and its `ConnId` is
//!   never used again, nor is its slot before the next poll. A post to an ended or unknown
//!   connection is [`PostError::NotConnected`].
//! - **C7 remote access.** A peer reaches only what [`Transport::expose`] gave to its own
//!   connection: right key, right connection, within bounds, with the right granted, not yet
//!   revoked. Anything else ends the peer's connection, changes no byte and delivers none. A
//!   zero-length access is checked like any other.
//! - **C8 bad bytes.** Whatever arrives, a backend neither panics, nor allocates by a size it has
//!   not checked, nor stalls other connections. It ends that connection with
//!   [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) and a reason in words.
//! - **C9 receiver not ready.** A send that finds no posted receive ends the connection: flow
//!   control is the caller's duty, and the protocol above has credits for it.
//! - **C10 short and long receives.** A receive longer than the message keeps the rest of its
//!   memory untouched; a shorter one completes [`WorkStatus::TooLong`] and ends the connection.
//! - **C11 waiting.** After [`Transport::arm`] said [`Armed::Waiting`], anything that gives `poll`
//!   something to do wakes the waiter. Waking too often is allowed.
//! - **C12 deadlines.** [`Transport::next_deadline`] is the earliest time at which `poll` has
//!   something to do though nothing arrives: a handshake that must be dropped, a retry.
//! - **C13 release.** A region whose last handle is gone is deregistered at the next poll, or by a
//!   registration that would fail for want of its room; its memory may be gone before. A transport
//!   holds no [`Memory`] for a registration, only for exposures and work (its [`MemoryRegion`]s
//!   do). Dropping the transport ends every connection and frees everything.
//! - **C14 idle.** With nothing to do, `poll` makes at most a constant number of system calls and
//!   allocates nothing; in the steady state no method of the data path (`post_*`, `write_now`,
//!   `read_now`, `poll`, `poll_inline`) allocates.
//! - **C15 full queues.** After a post was refused with [`PostError::QueueFull`], the first poll
//!   that makes room in that queue returns `true`, whether or not it reports an event; and C11
//!   covers it. So a caller that was refused need not try again before.
//! - **C16 inline receives.** [`Transport::poll_inline`] may show a message to its
//!   [`InlineReceiver`] where it stands, before a receive takes it in: only while that poll has
//!   reported no event of the connection, whose `Established` an earlier one has reported, and only
//!   a message that the receive at the front has room for. A message that is taken is done with,
//!   and that receive stays posted (behind the others, where an adapter cannot leave it in its
//!   place); one that is not goes the usual way. So the order of C3 and C4 holds for whoever takes
//!   what it is shown and then handles the events.

use std::os::fd::BorrowedFd;
use std::task::Waker;

use crate::addr::Addr;
use crate::capability::Capabilities;
use crate::error::{Error, ErrorKind};
pub use crate::inline_receive::{InlineMessage, InlineReceiver};
use crate::mem::{Access, MemList, MemSlice, Memory, MemoryRegion, RemoteKey, RemotePages, RemoteSlice, Segment};
use crate::time::Time;

/// Longest private data that travels with a connection request, an acceptance or a rejection, in
/// bytes.
pub const MAX_PRIVATE_DATA: usize = 256;

/// Names a connection of one transport: a slot and how often the slot was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    /// Small and dense: the caller may index a table by it.
    pub slot: u32,
    /// Differs each time the slot is used again.
    pub generation: u32,
}

/// What the caller calls a work request; the transport only hands it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId(pub u64);

/// How urgent a work request is. Backends map it to what they have: a service level, a traffic
/// class, a queue, or nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceClass {
    /// Flow control and small messages, ahead of everything.
    Control,
    /// Requests and replies.
    #[default]
    Message,
    /// Bulk data.
    Bulk,
}

/// How a work request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkOptions {
    /// Report success as a completion (failure is always reported).
    pub signalled: bool,
    /// Its service class.
    pub class: ServiceClass,
}

impl WorkOptions {
    /// Signalled, of class `Message`.
    pub const SIGNALLED: WorkOptions = WorkOptions { signalled: true, class: ServiceClass::Message };
    /// Unsignalled, of class `Message`.
    pub const UNSIGNALLED: WorkOptions = WorkOptions { signalled: false, class: ServiceClass::Message };
}

/// The payload of a send, behind its head.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Copied before the call returns; needs no registration. Head and payload together are at most
    /// [`Capabilities::max_inline`] bytes.
    Inline(&'a [MemSlice]),
    /// Gathered by the adapter, any time until the completion.
    Gather(&'a [Segment]),
}

impl Payload<'_> {
    /// No payload.
    pub const EMPTY: Payload<'static> = Payload::Inline(&[]);

    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Payload::Inline(slices) => slices.iter().map(MemSlice::len).sum(),
            Payload::Gather(segments) => segments.iter().map(Segment::len).sum(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where an RDMA write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteTarget {
    /// The peer's memory.
    pub remote: RemoteSlice,
    /// If there, the write also consumes a receive at the peer and hands it these 32 bits.
    pub immediate: Option<u32>,
}

impl From<RemoteSlice> for WriteTarget {
    /// A write that the peer's program does not notice.
    fn from(remote: RemoteSlice) -> WriteTarget {
        WriteTarget { remote, immediate: None }
    }
}

/// Work of the processor that is not the adapter's (see [`Transport::charge`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostWork {
    /// A copy from memory to memory.
    Copy {
        /// Bytes.
        bytes: u64,
        /// Contiguous pieces that they stand in.
        pieces: u64,
    },
}

impl HostWork {
    /// A copy of `bytes` from or to the front of a list.
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

/// Why a work request was not accepted. Nothing was touched; the caller still has all it passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// The queue is full; poll, then try again.
    QueueFull,
    /// The connection is not, or no longer, one that takes this request.
    NotConnected,
    /// A limit of [`Capabilities`] was not kept, or a segment belongs to another transport. A bug
    /// of the caller.
    Invalid(&'static str),
}

/// Checks that memory may be written, for backends: every `post_recv` and `post_read` calls it.
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

/// Checks that an exposure is allowed, for backends: every `expose` calls it.
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

/// What kind of request completed.
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

/// What became of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkStatus {
    /// Done. For a send or a write: the memory may be used again (the peer's adapter, not its
    /// program, has the bytes, or will have them unless the connection ends). For a read or
    /// receive: the bytes are there.
    Ok,
    /// The connection ended first.
    Flushed,
    /// The peer's adapter refused key, bounds or rights. The connection ends.
    RemoteAccess,
    /// The peer had no receive posted. The connection ends.
    ReceiverNotReady,
    /// The message was longer than the receive. The connection ends.
    TooLong,
    /// The adapter failed in some other way. The connection ends.
    Failed,
}

/// A work request's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The connection.
    pub conn: ConnId,
    /// The caller's name for the request.
    pub work: WorkId,
    /// What it was.
    pub kind: WorkKind,
    /// What became of it.
    pub status: WorkStatus,
    /// Receive: bytes delivered into it (0 for a write with immediate data, whose bytes went
    /// elsewhere). Otherwise the request's length.
    pub len: u64,
    /// Receive: the immediate data of the write that consumed it.
    pub immediate: Option<u32>,
}

/// What [`Transport::poll`] reports, in order of occurrence. An [`Event::Established`] precedes the
/// connection's first completion, [`Event::Disconnected`] follows its last.
#[derive(Debug)]
pub enum Event {
    /// A work request ended.
    Work(WorkCompletion),
    /// A peer wants to connect: post receives, then `accept` or `reject`. Until then receives are
    /// the only work it takes.
    ConnectRequest {
        /// The connection to be.
        conn: ConnId,
        /// Where the peer says or is seen to be; for logs.
        from: Addr,
        /// What the peer passed to `connect`, at most [`MAX_PRIVATE_DATA`] bytes, unchecked.
        private: Box<[u8]>,
    },
    /// Work can be posted. Reported to both sides.
    Established {
        /// The connection.
        conn: ConnId,
        /// On the connecting side what the peer passed to `accept`, unchecked; empty on the
        /// accepting side.
        private: Box<[u8]>,
    },
    /// The peer said no; the `ConnId` is gone.
    Rejected {
        /// The connection that did not come to be.
        conn: ConnId,
        /// What the peer passed to `reject`, unchecked.
        private: Box<[u8]>,
    },
    /// The connection ended, or never came to be; the `ConnId` is gone.
    Disconnected {
        /// The connection.
        conn: ConnId,
        /// Why; `Cancelled` if this side asked for it.
        reason: Error,
    },
}

/// Whether it is safe to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Whatever comes will wake the waiter.
    Waiting,
    /// There is something to do already: poll again.
    Busy,
}

/// How the bytes of one-sided work travel for one kind of memory (see [`Transport::bulk_ways`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkWay {
    /// Which memory.
    pub memory: &'static str,
    /// The way.
    pub way: &'static str,
    /// Why this one.
    pub why: &'static str,
}

/// An adapter (see the [module](self) for the contract). Object-safe, single-threaded: one owner
/// drives it.
pub trait Transport {
    // ---- what it is -----------------------------------------------------------------------------

    /// What it can do; the same for its whole life.
    fn capabilities(&self) -> &Capabilities;

    // ---- connections ----------------------------------------------------------------------------

    /// Starts to accept connections at `addr`; returns the address with the port that was taken.
    /// May be called several times.
    ///
    /// # Errors
    /// `Invalid` for an address of another scheme or one in use, `Exhausted`, `Io`.
    fn listen(&mut self, addr: &Addr) -> Result<Addr, Error>;

    /// Starts to connect to `addr`. Ends in `Established`, `Rejected` or `Disconnected`, not before
    /// the next poll and not after `deadline`. Receives may be posted at once.
    ///
    /// # Errors
    /// `Invalid` for an address of another scheme or for private data over [`MAX_PRIVATE_DATA`];
    /// `Exhausted`.
    fn connect(&mut self, addr: &Addr, private: &[u8], deadline: Time) -> Result<ConnId, Error>;

    /// Says yes to a `ConnectRequest`; `Established` or `Disconnected` follows.
    ///
    /// # Errors
    /// `PeerLost` if the request is no longer there; `Invalid` for private data over
    /// [`MAX_PRIVATE_DATA`].
    fn accept(&mut self, conn: ConnId, private: &[u8]) -> Result<(), Error>;

    /// Says no to a `ConnectRequest`, with a reason for the peer. The `ConnId` is gone at once: its
    /// receives complete `Flushed`, no `Disconnected` follows. Unknown connections and private data
    /// over the limit are ignored.
    fn reject(&mut self, conn: ConnId, private: &[u8]);

    /// Ends a connection. What was posted before is still handed to the network, as far as that is
    /// possible until `deadline`; requests that wait for the peer (reads, receives) are flushed.
    /// `Disconnected` follows by `deadline`. Called again, the earlier deadline counts; a deadline
    /// that has passed cuts at once. Unknown connections are ignored.
    fn disconnect(&mut self, conn: ConnId, deadline: Time);

    // ---- memory ---------------------------------------------------------------------------------

    /// Registers `memory`, so that its pieces may stand in work requests. Deregistered when the
    /// last handle of the region is gone.
    ///
    /// # Errors
    /// `Exhausted` if the adapter or a limit of the system refuses though everything released was
    /// deregistered (C13); the text says which limit.
    fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error>;

    /// Lets the peer of `conn`, and nobody else, reach `segment` as `access` says, until `revoke`
    /// or the connection's end. Holds the region.
    ///
    /// # Errors
    /// `PeerLost` for an ended connection, `Exhausted`.
    fn expose(&mut self, conn: ConnId, segment: &Segment, access: Access) -> Result<RemoteSlice, Error>;

    /// Ends an exposure. When the call returns no new access begins; one that is under way in an
    /// emulated adapter ends the connection rather than go on. Unknown keys are ignored.
    fn revoke(&mut self, conn: ConnId, key: RemoteKey);

    // ---- the data path --------------------------------------------------------------------------

    /// Posts a receive: the next message that is not preceded by an earlier receive is scattered
    /// over `segments`, at most [`Capabilities::max_segments`] of them (none for a receive that
    /// only takes immediate data).
    ///
    /// # Errors
    /// See [`PostError`].
    fn post_recv(&mut self, conn: ConnId, work: WorkId, segments: &[Segment]) -> Result<(), PostError>;

    /// Sends `head` and behind it `payload` as one message. `head`, at most
    /// [`Capabilities::max_head`] bytes, is copied before the call returns, so a protocol header
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

    /// Writes `head` and behind it `segments` to the beginning of the target. `head` is copied as
    /// in `post_send`.
    ///
    /// # Errors
    /// See [`PostError`]; `Invalid` if the bytes are more than the target has.
    fn post_write(
        &mut self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        segments: &[Segment],
        target: WriteTarget,
        options: WorkOptions,
    ) -> Result<(), PostError>;

    /// Reads the beginning of `remote`, scattered over `segments`, as many bytes as these hold.
    ///
    /// # Errors
    /// See [`PostError`]; `Invalid` if the segments hold more than `remote.len`.
    fn post_read(
        &mut self,
        conn: ConnId,
        work: WorkId,
        segments: &[Segment],
        remote: RemoteSlice,
        options: WorkOptions,
    ) -> Result<(), PostError>;

    /// Writes `from` to the beginning of `remote` while it is posted, as an inline send is copied
    /// while it is posted: `true` says that the bytes are in place, behind everything that was
    /// posted before (C3), that the memory is free again, and that no completion follows. It needs
    /// no registration. `false` says that nothing has happened, because the transport cannot,
    /// something waits before it, it is too long or in too many pieces for a call that returns
    /// soon, or something is wrong: post it, which tells. What C7 does not plainly allow, without
    /// bytes too, is such a no, and costs the connection nothing.
    fn write_now(&mut self, conn: ConnId, from: &[MemSlice], remote: RemoteSlice) -> bool {
        let _ = (conn, from, remote);
        false
    }

    /// Reads the beginning of `remote` while it is posted, scattered over `into`, as many bytes as
    /// these hold: as [`Transport::write_now`]. It is ordered with no write that waits, as no read
    /// is.
    fn read_now(&mut self, conn: ConnId, into: &[MemSlice], remote: RemoteSlice) -> bool {
        let _ = (conn, into, remote);
        false
    }

    /// The peer's memory itself, where it stands in this process too, for the kernel to read from
    /// (`access.remote_read`) or write to (`access.remote_write`) without a copy: page sharing.
    /// `None` where the transport cannot, where the memory is not of that kind, or where key,
    /// bounds or rights do not allow it; then read or write it as ever, which says what is wrong.
    /// While the answer lives the peer cannot end the exposure in peace: a `revoke` there ends the
    /// connection, as it does in the middle of any access.
    fn map_remote(&mut self, conn: ConnId, remote: RemoteSlice, access: Access) -> Option<RemotePages> {
        let _ = (conn, remote, access);
        None
    }

    /// For people, in the plan: how bytes get to and from the peer's memory on this connection, by
    /// the kind of memory, and why so. Empty where there is one way for all.
    fn bulk_ways(&mut self, conn: ConnId) -> Vec<BulkWay> {
        let _ = conn;
        Vec::new()
    }

    /// Makes progress and appends what happened to `events`. Bounded: with many events pending it
    /// returns after a batch of a few hundred, for the caller to call again. Returns whether there
    /// was anything to do: bytes moved or events reported.
    fn poll(&mut self, now: Time, events: &mut Vec<Event>) -> bool;

    /// [`Transport::poll`], with a receiver for messages that are at hand (C16). A transport that
    /// has none at hand, an adapter that scatters them into receives by itself, just polls.
    fn poll_inline(&mut self, now: Time, events: &mut Vec<Event>, receiver: &mut dyn InlineReceiver) -> bool {
        let _ = receiver;
        self.poll(now, events)
    }

    /// The protocol above has made the processor do `work` for the data path. An adapter of a real
    /// host has nothing to do: the time has passed already. A simulated host charges its processor,
    /// so that copies cost because the protocol makes them.
    fn charge(&mut self, work: HostWork) {
        let _ = work;
    }

    // ---- waiting --------------------------------------------------------------------------------

    /// See C12.
    fn next_deadline(&self) -> Option<Time>;

    /// Gets ready to sleep. If `Waiting`, then from now until the next poll whatever gives `poll`
    /// something to do makes [`Transport::event_fd`] readable, or, where there is none, wakes
    /// `waker` once.
    fn arm(&mut self, waker: &Waker) -> Armed;

    /// A descriptor that becomes readable (see `arm`). Polling, not reading, makes it unreadable
    /// again.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Wakes whoever waits on this transport, from any thread.
    fn waker(&self) -> Waker;
}

/// A transport that was chosen at run time. Every method is forwarded.
#[deny(clippy::missing_trait_methods)]
impl<T: Transport + ?Sized> Transport for Box<T> {
    crate::forward_transport!(self => (**self); ..);
}
