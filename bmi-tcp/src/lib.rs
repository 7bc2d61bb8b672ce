//! The TCP backend of [`bmi_core`]: an RDMA adapter in software.
//!
//! **Why.** It runs everywhere, and RDMA is measured against it, so it must lose none of TCP's
//! performance. Small messages are combined into few system calls, without delaying a single one.
//! Bulk data goes from the user's memory to the socket, and from the socket to its target, without
//! a copy in between.
//!
//! | where | what |
//! |---|---|
//! | `bed` | where the thread of a driver sleeps |
//! | `config` | [`TcpConfig`], limits, capabilities |
//! | `lifecycle` | listening, dialing, handshake, the end of a connection |
//! | `queue_pair` | posted work: requests, reads, replies, receives |
//! | `frame` | the wire format |
//! | `wire` | outgoing bytes in order: staged bytes, headers, user memory |
//! | `line` | a socket, behind TLS if the transport has a certificate |
//! | `receive` | from the socket to frames and their targets |
//! | `progress` | the poll loop |
//! | `turns` | a connection's turn to send, and to receive from several streams |
//! | `streams` | several TCP connections for one of the transport |
//! | `silence` | when a host counts as dead |
//! | `vectored_io` | the two system calls of the data path, and two socket options |
//!
//! Connection tables, name lookup, listeners, registrations, keys, and the reasons that connections
//! end come from [`bmi_backend`].
//!
//! **Invariants**
//! 1. The transport satisfies the contract, C1 to C18 of [`bmi_core::transport`].
//! 2. One owner drives a transport. Only wakers and dropped regions reach it from other threads,
//!    through a mailbox each.
//!
//! **Limits.** Host names are looked up when connecting, not when listening. The class of a work
//! request is ignored, because a connection is one ordered stream. A send or write completes when
//! the kernel has its bytes. So when the peer refuses one, it has usually completed already, and
//! the refusal appears as the end of the connection. A refused read is reported individually.

mod bed;
mod config;
mod frame;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod lifecycle;
mod line;
mod progress;
mod queue_pair;
mod receive;
mod silence;
mod streams;
mod turns;
mod vectored_io;
mod wire;

use std::hash::RandomState;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::task::Waker;

use bmi_backend::net::Resolver;
use bmi_backend::software::{self, Keys};
use bmi_backend::{
    ConnectionTable, Deadlines, EventQueue, Fault, HalfOpen, Listeners, Regions, Shard, SlotQueue, connection_ended,
};
use bmi_core::transport::{
    Bed, ConnId, Event, IdleMemory, InlineReceiver, Payload, PostError, Transport, WorkId, WorkOptions, WriteTarget,
};
use bmi_core::{
    Access, Capabilities, Error, ErrorKind, Memory, MemoryRegion, RemoteKey, RemoteSlice, Segment, Time,
    forward_transport,
};
use mio::Token;
use mio::net::TcpListener;
use slab::Slab;

pub use bmi_tls::Security;
pub use config::TcpConfig;

use bed::{Seen, TcpBed};
use lifecycle::{Connection, Lingering, Newcomer, Phase};
use queue_pair::QueuePair;
use streams::MAX_STREAMS;
use vectored_io::{EPOLL_EVENTS, MAX_PIECES, Piece};

/// A token is an index with the table's number in its lowest bits.
const TOKEN_BITS: u32 = 3;
const TOKEN_MASK: usize = 7;
const TOKEN_CONNECTION: usize = 0;
const TOKEN_LISTENER: usize = 1;
const TOKEN_LINGERING: usize = 2;
const TOKEN_WAKER: usize = 3;
const TOKEN_STREAM: usize = 4;

/// An RDMA adapter in software, over TCP.
///
/// ```
/// use bmi_core::{Addr, Transport};
/// use bmi_tcp::{TcpConfig, TcpTransport};
///
/// let mut transport = TcpTransport::new(TcpConfig::default())?;
/// let addr = transport.listen(&Addr::tcp("127.0.0.1", 0))?;
/// assert_ne!(addr.port(), 0);
/// # Ok::<(), bmi_core::Error>(())
/// ```
pub struct TcpTransport {
    config: TcpConfig,
    capabilities: Capabilities,
    poll: mio::Poll,
    /// What epoll reported last.
    found: Vec<libc::epoll_event>,
    /// What it reported to a thread that slept.
    seen: Arc<Seen>,
    /// The last poll looked for arrivals.
    looked: bool,
    waker: Waker,
    slots: ConnectionTable<Connection>,
    listeners: Listeners<TcpListener>,
    /// This transport's part of a group that shares listening addresses.
    shard: Shard<Newcomer>,
    lingering: Slab<Lingering>,
    resolver: Resolver,
    regions: Regions,
    keys: Keys,
    /// The secret of the tokens that further streams join with. All members of a group have it.
    tokens: RandomState,
    deadlines: Deadlines,
    pending: EventQueue,
    /// Sockets that may have bytes.
    ready: SlotQueue,
    /// Connections with something to send.
    dirty: SlotQueue,
    hot: Vec<u32>,
    pieces: Vec<Piece>,
    /// Sockets that have not sent their preamble.
    half_open: HalfOpen<IpAddr>,
    /// When to look for hosts that answer nothing, if a connection waits for an answer.
    watch_at: Option<Time>,
    /// Number of connections whose output waits for room in the kernel.
    blocked: usize,
    /// Polls since the last call to epoll.
    unasked: u32,
    /// Bytes that were received since then.
    unasked_bytes: usize,
    /// The time of that call.
    asked: Time,
    /// That call has reported all that there was.
    all_seen: bool,
    /// Steps of handshakes that this poll may still make.
    steps: u32,
    /// Number of polls that are to ask epoll, because the owner may have slept on it.
    to_ask: u32,
    /// The time of the latest poll.
    now: Time,
}

impl TcpTransport {
    /// Returns an adapter with no connections.
    ///
    /// # Errors
    /// `Io` or `Exhausted` if the system has no descriptor for it. `Invalid` for a number of
    /// streams out of bounds.
    pub fn new(config: TcpConfig) -> Result<TcpTransport, Error> {
        Ok(TcpTransport::shards(config, 1)?.remove(0))
    }

    /// Returns `count` adapters that share their listening addresses (C17), for example one for
    /// each core. Each has the limits of `config` for itself.
    ///
    /// ```
    /// use bmi_core::{Addr, Transport};
    /// use bmi_tcp::{TcpConfig, TcpTransport};
    ///
    /// let mut transports = TcpTransport::shards(TcpConfig::default(), 4)?;
    /// // The first one accepts for all four.
    /// let addr = transports[0].listen(&Addr::tcp("127.0.0.1", 0))?;
    /// # Ok::<(), bmi_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpTransport::new`].
    pub fn shards(config: TcpConfig, count: usize) -> Result<Vec<TcpTransport>, Error> {
        if !(1..=MAX_STREAMS).contains(&config.streams.into()) {
            let why = format!("TcpConfig::streams is {}, and must be from 1 to {MAX_STREAMS}", config.streams);
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        #[expect(clippy::disallowed_methods, reason = "tokens are not to be guessed")]
        let tokens = RandomState::new();
        let polls = (0..count).map(|_| new_poll()).collect::<Result<Vec<_>, Error>>()?;
        let wakers = polls.iter().map(|(_, waker)| waker.clone()).collect();
        let shards = Shard::group(wakers, config.limits);
        let member = |((poll, waker), shard)| TcpTransport::with(config.clone(), poll, waker, shard, tokens.clone());
        Ok(polls.into_iter().zip(shards).map(member).collect())
    }

    fn with(
        config: TcpConfig,
        poll: mio::Poll,
        waker: Waker,
        shard: Shard<Newcomer>,
        tokens: RandomState,
    ) -> TcpTransport {
        TcpTransport {
            capabilities: config.capabilities(),
            poll,
            found: Vec::with_capacity(EPOLL_EVENTS),
            seen: Arc::default(),
            looked: true,
            resolver: Resolver::new("bmi-tcp-resolve", waker.clone()),
            waker,
            slots: ConnectionTable::new(config.limits.connections("TcpConfig::limits")),
            listeners: Listeners::default(),
            half_open: HalfOpen::new(shard.half_open_places()),
            shard,
            lingering: Slab::new(),
            regions: Regions::new(software::REGIONS),
            keys: Keys::new(software::EXPOSURES),
            tokens,
            deadlines: Deadlines::default(),
            pending: EventQueue::default(),
            ready: SlotQueue::default(),
            dirty: SlotQueue::default(),
            hot: Vec::with_capacity(8),
            pieces: Vec::with_capacity(MAX_PIECES + 2),
            watch_at: None,
            blocked: 0,
            unasked: 0,
            unasked_bytes: 0,
            asked: Time::ZERO,
            all_seen: false,
            steps: 0,
            to_ask: 1,
            now: Time::ZERO,
            config,
        }
    }

    fn epoll(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the poll, which lives as long as the borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(self.poll.as_raw_fd()) }
    }

    /// Returns the queues of a connection, if its phase is `allowed`.
    fn queues(&mut self, conn: ConnId, allowed: fn(&Phase) -> bool) -> Result<&mut QueuePair, PostError> {
        self.slots
            .find_mut(conn)
            .filter(|connection| allowed(&connection.phase))
            .and_then(|connection| connection.queues.as_deref_mut())
            .ok_or(PostError::NotConnected)
    }
}

/// Returns a descriptor to wait on and its waker.
fn new_poll() -> Result<(mio::Poll, Waker), Error> {
    let failed = |error| Error::from(error).during("create a TCP transport");
    let poll = mio::Poll::new().map_err(failed)?;
    let waker = mio::Waker::new(poll.registry(), Token(TOKEN_WAKER)).map_err(failed)?;
    Ok((poll, bmi_backend::waker(move || waker.wake())))
}

fn takes_work(phase: &Phase) -> bool {
    matches!(phase, Phase::Established)
}

fn takes_receives(phase: &Phase) -> bool {
    !matches!(phase, Phase::HalfOpen { .. } | Phase::Ending(_))
}

impl Transport for TcpTransport {
    // Methods of the same names in `lifecycle` and `progress`.
    forward_transport!(self => self; listen, connect, accept, reject, disconnect, flush, arm);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error> {
        self.regions.collect(drop);
        self.regions.register(memory)
    }

    fn expose(&mut self, conn: ConnId, segment: &Segment, access: Access) -> Result<RemoteSlice, Error> {
        self.regions.check_exposure(segment, access)?;
        let takes = |connection: &&mut Connection| takes_receives(&connection.phase);
        let connection = self.slots.find_mut(conn).filter(takes).ok_or_else(connection_ended)?;
        connection.exposures.add(&mut self.keys, segment, access)
    }

    fn revoke(&mut self, conn: ConnId, key: RemoteKey) {
        let Some(connection) = self.slots.find_mut(conn) else { return };
        if connection.exposures.remove(key.0).is_none() {
            return;
        }
        let under_way =
            connection.queues.as_ref().is_some_and(|queues| queues.replies_with(key.0) || queues.has_open_write(key.0))
                || connection.inbound.writes_with(key.0);
        if under_way {
            self.end(conn.slot, conn, Fault::Revoked);
        }
    }

    fn post_recv(&mut self, conn: ConnId, work: WorkId, segments: &[Segment]) -> Result<(), PostError> {
        self.regions.check_targets(segments)?;
        self.queues(conn, takes_receives)?.post_recv(work, segments)
    }

    fn post_alike(&mut self, conn: ConnId, work: WorkId, segments: &[Segment]) -> Result<(), PostError> {
        self.regions.check_targets(segments)?;
        let takes = |connection: &&mut Connection| takes_receives(&connection.phase);
        let connection = self.slots.find_mut(conn).filter(takes).ok_or(PostError::NotConnected)?;
        let filling = connection.inbound.fills_receive();
        let queues = connection.queues.as_deref_mut().ok_or(PostError::NotConnected)?;
        queues.post_recv_ahead(work, segments, filling)
    }

    fn post_send(
        &mut self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        payload: Payload<'_>,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        if let Payload::Gather(segments) = payload {
            self.regions.check(segments)?;
        }
        self.queues(conn, takes_work)?.post_send(work, head, payload, options)?;
        self.dirty.add(conn.slot);
        Ok(())
    }

    fn post_write(
        &mut self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        segments: &[Segment],
        target: WriteTarget,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        self.regions.check(segments)?;
        self.queues(conn, takes_work)?.post_write(work, head, segments, target, options)?;
        self.dirty.add(conn.slot);
        Ok(())
    }

    fn post_read(
        &mut self,
        conn: ConnId,
        work: WorkId,
        segments: &[Segment],
        remote: RemoteSlice,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        self.regions.check_targets(segments)?;
        self.queues(conn, takes_work)?.post_read(work, segments, remote, options)?;
        self.dirty.add(conn.slot);
        Ok(())
    }

    fn moved_bytes(&self, conn: ConnId) -> u64 {
        let Some(connection) = self.slots.find(conn) else { return 0 };
        let first = connection.queues.as_ref().map_or(0, |queues| queues.wire.sent()) + connection.inbound.received();
        first + connection.streams.as_ref().map_or(0, |streams| streams.moved_bytes())
    }

    fn release_idle(&mut self, conn: ConnId) -> IdleMemory {
        let takes = |connection: &&mut Connection| takes_work(&connection.phase);
        let empty = self.slots.find_mut(conn).filter(takes).is_some_and(Connection::release_idle);
        if empty { IdleMemory::ReceivesAndExposures } else { IdleMemory::Nothing }
    }

    fn poll(&mut self, now: Time, events: &mut Vec<Event>) -> bool {
        self.progress(now, events, None)
    }

    fn poll_inline(&mut self, now: Time, events: &mut Vec<Event>, receiver: &mut dyn InlineReceiver) -> bool {
        self.progress(now, events, Some(receiver))
    }

    fn next_deadline(&self) -> Option<Time> {
        self.deadlines.earliest()
    }

    fn spread(&mut self, members: usize) {
        self.shard.spread(members);
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll())
    }

    fn bed(&self) -> Result<Option<Box<dyn Bed>>, Error> {
        Ok(Some(Box::new(TcpBed::new(self.epoll(), Arc::clone(&self.seen))?)))
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
