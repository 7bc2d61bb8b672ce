//! The InfiniBand and RoCE backend of [`bmi_core`]: real verbs, loaded at run time.
//!
//! **Why.** The contract was modelled on this backend. The adapter moves the bytes, checks the keys
//! and keeps the order; the processor only posts and polls. A program with this backend builds
//! without any package, and starts on a machine without libibverbs. Only [`IbTransport::new`]
//! reports what is missing.
//!
//! | module | contents |
//! |---|---|
//! | `config` | [`IbConfig`], limits |
//! | `adapter` | device, port, addresses, capabilities, completion queues |
//! | `lifecycle` | listening, dialing, handshake, the end of a connection |
//! | `greeting`, `side_channel` | the TCP connection beside each queue pair |
//! | `queue_pair` | posted work |
//! | `staging` | the registered ring for heads and inline payload |
//! | `progress` | the poll loop, completions, waiting |
//! | `memory` | registrations, exposures, limits |
//! | `error` | why connections end |
//! | [`verbs`] | all FFI, with an owner for each object |
//!
//! Connection tables, name resolution and listeners come from [`bmi_backend`].
//!
//! **Invariants**
//! 1. The transport keeps the contract, C1 to C17 of [`bmi_core::transport`].
//! 2. A transport has one owner, which drives it. Other threads reach it only through wakers and
//!    dropped regions, each through a mailbox.
//! 3. Each connection has its own protection domain. A peer's keys are valid on its own queue pair
//!    and nowhere else.
//!
//! **Limits.**
//! - A transport uses one device and port.
//! - Service level and traffic class belong to the connection and come from [`IbConfig`]. The class
//!   of a work request is ignored: a queue pair has one of each, and order binds a connection to
//!   one queue pair.
//! - There is no shared receive queue. It belongs to a protection domain, and every connection has
//!   its own domain.
//! - A region is registered on a connection when a posted request first uses it there. If the
//!   system refuses, the connection ends and reports why.
//! - On RoCE the kernel looks up the peer's hardware address while a queue pair is connected. A
//!   helper thread waits for that, for about a second if no host has the address that the peer
//!   named. A connection that is ended meanwhile reports its end when the thread is done.
//!
//! **Fork.** A child does not share the parent's adapter. Kernels from 5.12 on copy pinned pages
//! for the child at `fork`, so the parent's registrations stay valid. On older kernels
//! `ibv_fork_init` is called before the first registration. The child must not touch transports; it
//! may `exec`. `tests/it/fork.rs` tests it.

mod adapter;
mod config;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod greeting;
mod lifecycle;
mod memory;
mod progress;
mod queue_pair;
mod side_channel;
mod staging;
pub mod verbs;

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::task::Waker;

use bmi_backend::net::Resolver;
use bmi_backend::{
    ConnectionTable, Deadlines, EventQueue, HalfOpen, Helpers, Listeners, Shard, SlotQueue, WorkLimits,
    connection_ended,
};
use bmi_core::transport::{ConnId, Payload, PostError, Transport, WorkId, WorkOptions, WriteTarget};
use bmi_core::{
    Access, Capabilities, Error, Memory, MemoryRegion, RemoteKey, RemoteSlice, Segment, Time, forward_transport,
};
use mio::net::TcpListener;
use mio::unix::SourceFd;
use mio::{Interest, Token};

pub use bmi_tls::Security;
pub use config::IbConfig;

use adapter::Adapter;
use config::MAX_SEGMENTS;
use error::Fault;
use lifecycle::{Connection, Newcomer, Phase};
use memory::Regions;
use queue_pair::QueuePair;
use verbs::{Chain, WorkEnd};

/// A token is a table index; its lowest bits say which table.
const TOKEN_BITS: u32 = 2;
const TOKEN_MASK: usize = 3;
const TOKEN_CONNECTION: usize = 0;
const TOKEN_LISTENER: usize = 1;
const TOKEN_OTHER: usize = 2;
const OTHER_WAKER: usize = 0;
const OTHER_CHANNEL: usize = 1;
const OTHER_DEVICE: usize = 2;

/// The number of readiness events that one look at epoll reports.
const EPOLL_EVENTS: usize = 256;
/// The number of completions that are taken from a queue at a time.
const ENDS: usize = 64;
/// The number of requests that one call hands over.
const CHAIN: usize = 32;

/// An RDMA adapter, over verbs.
pub struct IbTransport {
    config: IbConfig,
    capabilities: Capabilities,
    limits: WorkLimits,
    poll: mio::Poll,
    epoll_events: mio::Events,
    waker: Waker,
    slots: ConnectionTable<Connection>,
    /// Set while a connection may be becoming established or ending. It is cached because each poll
    /// needs it.
    unsettled: bool,
    listeners: Listeners<TcpListener>,
    /// This transport's part of a group that shares listening addresses.
    shard: Shard<Newcomer>,
    resolver: Resolver,
    /// Threads that connect queue pairs.
    helpers: Helpers<()>,
    regions: Regions,
    deadlines: Deadlines,
    pending: EventQueue,
    /// Side channels that may have something to read.
    ready: SlotQueue,
    /// Connections with requests to hand over.
    dirty: SlotQueue,
    /// Connections that are closing or draining.
    ending: Vec<u32>,
    /// Completions that were taken from the queue but not handled yet.
    early: VecDeque<WorkEnd>,
    ends: Vec<WorkEnd>,
    chain: Chain,
    /// Side channels that have not sent their greeting.
    half_open: HalfOpen<IpAddr>,
    /// Polls since epoll was last asked.
    unasked: u32,
    /// The number of polls that still ask epoll every time.
    attentive: u32,
    /// Set if the caller may have slept on the event fd since epoll was last asked.
    slept: bool,
    /// While the port is down: when its connections end.
    port_down_until: Option<Time>,
    /// Set when the device is gone.
    gone: bool,
    secret: RandomState,
    made: u64,
    /// The time of the latest poll.
    now: Time,
    // Declared last, so that it is dropped after everything that was made from it.
    adapter: Adapter,
}

fn other(index: usize) -> Token {
    Token(index << TOKEN_BITS | TOKEN_OTHER)
}

impl IbTransport {
    /// Creates an adapter with no connections.
    ///
    /// # Errors
    /// `Unsupported` if there is no library, no device or no active port: the text says what is
    /// missing and what to install. `Invalid` for settings beyond what the device supports. `Io` or
    /// `Exhausted` if the system has no descriptor or object for it.
    pub fn new(config: IbConfig) -> Result<IbTransport, Error> {
        Ok(IbTransport::shards(config, 1)?.remove(0))
    }

    /// Creates `count` adapters that share their listening addresses (C17), for example one for
    /// each core. Each has the limits of `config` for itself. All are on one device and port.
    ///
    /// # Errors
    /// As [`IbTransport::new`].
    pub fn shards(config: IbConfig, count: usize) -> Result<Vec<IbTransport>, Error> {
        let opened = (0..count).map(|_| open(&config)).collect::<Result<Vec<_>, Error>>()?;
        let wakers = opened.iter().map(|(_, _, waker)| waker.clone()).collect();
        let shards = Shard::group(wakers, config.bounds());
        let member = |((adapter, poll, waker), shard)| IbTransport::with(config.clone(), adapter, poll, waker, shard);
        Ok(opened.into_iter().zip(shards).map(member).collect())
    }

    #[expect(clippy::disallowed_methods, reason = "cookies are not to be guessed")]
    fn with(config: IbConfig, adapter: Adapter, poll: mio::Poll, waker: Waker, shard: Shard<Newcomer>) -> IbTransport {
        let capabilities = adapter.capabilities(&config);
        IbTransport {
            limits: WorkLimits::of(&capabilities),
            capabilities,
            poll,
            epoll_events: mio::Events::with_capacity(EPOLL_EVENTS),
            resolver: Resolver::new("bmi-ib-resolve", waker.clone()),
            helpers: Helpers::new("bmi-ib-connect", config::HELPERS, waker.clone()),
            waker,
            slots: ConnectionTable::new(config.bounds().connections("IbConfig::limits")),
            unsettled: false,
            listeners: Listeners::default(),
            regions: Regions::new(config::REGIONS),
            deadlines: Deadlines::default(),
            pending: EventQueue::default(),
            ready: SlotQueue::default(),
            dirty: SlotQueue::default(),
            ending: Vec::with_capacity(16),
            early: VecDeque::with_capacity(4 * ENDS),
            ends: vec![WorkEnd::empty(); ENDS],
            chain: Chain::new(CHAIN, MAX_SEGMENTS + 1),
            half_open: HalfOpen::new(shard.half_open_places()),
            shard,
            unasked: 0,
            attentive: 0,
            slept: true,
            port_down_until: None,
            gone: false,
            secret: RandomState::new(),
            made: 0,
            now: Time::ZERO,
            config,
            adapter,
        }
    }

    /// Returns the transport's device and port, for example `mlx5_0:1`.
    pub fn device(&self) -> String {
        format!("{}:{}", self.adapter.context.name(), self.adapter.port)
    }

    /// Returns a first packet number that cannot be guessed from others.
    fn next_first_packet(&mut self) -> u32 {
        self.made += 1;
        (self.secret.hash_one(self.made) & 0xff_ffff) as u32
    }

    /// Returns the queues of a connection on which `allowed` work may be posted. Registers all of
    /// `segments` there first. The work was checked ([`WorkLimits`], [`bmi_backend::Regions`]).
    fn queues(
        &mut self,
        conn: ConnId,
        segments: &[Segment],
        allowed: fn(&Phase) -> bool,
    ) -> Result<&mut QueuePair, PostError> {
        let queues = self
            .slots
            .find_mut(conn)
            .filter(|connection| allowed(&connection.phase))
            .and_then(|connection| connection.queues.as_deref_mut())
            .ok_or(PostError::NotConnected)?;
        let mut failed = None;
        while let Some(region) = queues.unregistered(segments) {
            match queues.register(region) {
                Ok(()) => self.regions.note_user(region, conn.slot),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if let Some(error) = failed {
            self.end(conn.slot, conn, Fault::Other(error));
            return Err(PostError::NotConnected);
        }
        let connection = self.slots.find_mut(conn).ok_or(PostError::NotConnected)?;
        connection.queues.as_deref_mut().ok_or(PostError::NotConnected)
    }

    /// Handles a new post. The first one since the last poll is handed over at once; later ones
    /// wait for the next poll.
    fn posted(&mut self, conn: ConnId) {
        let at_once = self
            .slots
            .find_mut(conn)
            .and_then(|connection| connection.queues.as_ref())
            .is_some_and(|queues| queues.rings_at_once());
        if at_once {
            self.flush_posts(conn.slot);
        }
        self.dirty.add(conn.slot);
    }
}

/// Opens the adapter. Returns it with a descriptor to wait on and its waker.
fn open(config: &IbConfig) -> Result<(Adapter, mio::Poll, Waker), Error> {
    let failed = |error| Error::from(error).during("create an InfiniBand transport");
    let adapter = Adapter::open(config)?;
    let poll = mio::Poll::new().map_err(failed)?;
    let waker = mio::Waker::new(poll.registry(), other(OTHER_WAKER)).map_err(failed)?;
    let waker = bmi_backend::waker(move || waker.wake());
    for (fd, index) in [(adapter.channel.as_raw_fd(), OTHER_CHANNEL), (adapter.context.as_raw_fd(), OTHER_DEVICE)] {
        poll.registry().register(&mut SourceFd(&fd), other(index), Interest::READABLE).map_err(failed)?;
    }
    Ok((adapter, poll, waker))
}

fn takes_work(phase: &Phase) -> bool {
    matches!(phase, Phase::Established)
}

fn takes_receives(phase: &Phase) -> bool {
    !matches!(phase, Phase::HalfOpen { .. } | Phase::Closing { .. } | Phase::Draining { .. })
}

impl Transport for IbTransport {
    // Methods of the same names in `lifecycle` and `progress`.
    forward_transport!(self => self; listen, connect, accept, reject, disconnect, poll, arm);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error> {
        self.forget_released();
        self.regions.register(memory)
    }

    fn expose(&mut self, conn: ConnId, segment: &Segment, access: Access) -> Result<RemoteSlice, Error> {
        self.regions.registered.check_exposure(segment, access)?;
        let limit = config::EXPOSURES;
        let queues = self
            .slots
            .find_mut(conn)
            .filter(|connection| takes_receives(&connection.phase))
            .and_then(|connection| connection.queues.as_deref_mut())
            .ok_or_else(connection_ended)?;
        let domain = queues.domain().clone();
        queues.exposures.add(&domain, segment, access, limit)
    }

    fn revoke(&mut self, conn: ConnId, key: RemoteKey) {
        if let Some(queues) = self.slots.find_mut(conn).and_then(|connection| connection.queues.as_deref_mut()) {
            queues.exposures.remove(key.0);
        }
    }

    fn post_recv(&mut self, conn: ConnId, work: WorkId, segments: &[Segment]) -> Result<(), PostError> {
        self.regions.registered.check_targets(segments)?;
        self.limits.check_recv(segments)?;
        self.queues(conn, segments, takes_receives)?.post_recv(work, segments)
    }

    fn post_send(
        &mut self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        payload: Payload<'_>,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        self.limits.check_send(head, payload)?;
        let segments = if let Payload::Gather(segments) = payload { segments } else { &[] };
        self.regions.registered.check(segments)?;
        self.queues(conn, segments, takes_work)?.post_send(work, head, payload, options)?;
        self.posted(conn);
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
        self.limits.check_write(head, segments, &target)?;
        self.regions.registered.check(segments)?;
        self.queues(conn, segments, takes_work)?.post_write(work, head, segments, target, options)?;
        self.posted(conn);
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
        self.regions.registered.check_targets(segments)?;
        self.limits.check_read(segments, &remote)?;
        self.queues(conn, segments, takes_work)?.post_read(work, segments, remote, options)?;
        self.posted(conn);
        Ok(())
    }

    fn next_deadline(&self) -> Option<Time> {
        self.deadlines.earliest()
    }

    fn spread(&mut self, members: usize) {
        self.shard.spread(members);
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor belongs to `self.poll`, which lives as long as the borrow of
        // `self`.
        Some(unsafe { BorrowedFd::borrow_raw(self.poll.as_raw_fd()) })
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
