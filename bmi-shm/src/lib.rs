//! The shared-memory backend of [`bmi_core`]: an RDMA adapter between processes of one host.
//!
//! **Why.** When client and server share a host, a small message deserves one fast copy each way.
//! Bulk deserves one copy, or none ([pNFS-Lustre §3.3]).
//!
//! - A small message goes through a ring in shared memory, without a system call.
//! - A longer message stays in the sender's shareable memory if the peer has that memory mapped.
//!   The receiver copies it from there.
//! - Bulk is copied by the side that asks for it, directly from or to the other side's memory. It
//!   is not copied at all when the other side's pages are handed to the kernel
//!   ([`bmi_core::Transport::map_remote`]), and views of memory that its owner publishes
//!   ([`bmi_core::Transport::view_remote`]).
//!
//! | module | contents |
//! |---|---|
//! | `config` | [`ShmConfig`], limits, capabilities |
//! | `lifecycle` | listening, dialing, handshake, exposures, the end of a connection |
//! | `connection` | a connection and its fast paths: sending and receiving short messages |
//! | `ring` | the lock-free ring and the wake-up rule, checked by loom |
//! | `area` | the memory that one side writes and the other reads: layout |
//! | `link` | the shared half of a connection: rings, ways to the peer's memory |
//! | `completions` | completions that the next poll reports, and the memory of their work |
//! | `queue_pair`, `segments` | posted work: requests, reads, replies, receives; and the memory that it holds |
//! | `outbound`, `inbound` | from the queues to the ring, from the ring to the receives; the records |
//! | `packet`, `socket` | the Unix socket: names, handshake, descriptors, wake-ups |
//! | `pages`, `room`, `unmap` | memory that one side has passed to the other; how much may be mapped |
//! | `retired` | memory whose exposure has ended and to which the peer may still write |
//! | `progress`, `poll_schedule` | the poll loop, sleeping and waking; which rings a poll looks at |
//! | `sys` | memfds, mappings, the memory of another process |
//! | `error` | why connections end |
//!
//! Connection tables, listeners, registrations and keys come from [`bmi_backend`].
//!
//! **Invariants**
//! 1. The transport keeps the contract, C1 to C17 of [`bmi_core::transport`].
//! 2. A transport has one owner, which drives it. Other threads reach it only through wakers,
//!    dropped regions and dropped [`bmi_core::mem::RemotePages`].
//! 3. Nothing in shared memory is trusted: each word is copied, then checked. The peer cannot write
//!    this side's area at all.
//!
//! **Which memory is passed.** Shareable memory is passed to a peer in two cases. Either a piece of
//! it is exposed, or a long message is sent from it and the peer has proved that the kernel lets it
//! reach all memory of this process. The proof is a secret word that it has read from that memory.
//! So passing memory because of a send gives the peer nothing that it could not reach before.
//!
//! **What a peer can do.** A peer runs under this user, under root, or under a user that
//! [`ShmConfig::allowed_users`] names. It can reach all of the memory that was passed to it, for as
//! long as it likes. An honest peer's library respects keys, bounds and rights; a hostile peer may
//! not. The peer reaches nothing else through this library. The kernel may let one process reach
//! the other's memory, but it does so with or without this library. This library uses that only
//! between processes of one user. A peer that does not finish its copies keeps the memory that it
//! was copying to, up to [`ShmConfig::max_retired`]. Nothing that a peer writes or does to shared
//! memory can crash or block this process.
//!
//! **Limits.** The class of a work request is ignored: a ring is one ordered stream, and bulk does
//! not go through it.

mod area;
mod completions;
mod config;
mod connection;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
#[cfg(test)]
mod hostile_tests;
mod inbound;
mod lifecycle;
mod link;
mod outbound;
mod packet;
mod pages;
mod poll_schedule;
mod progress;
mod queue_pair;
mod retired;
mod ring;
mod room;
mod segments;
mod socket;
mod sys;
mod unmap;

use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Waker;

use bmi_backend::software::{self, Keys, Regions};
use bmi_backend::{ConnectionTable, Deadlines, HalfOpen, Listeners, Shard, SlotQueue, foreign_segment};
use bmi_core::mem::{RemotePages, RemoteView};
use bmi_core::transport::{
    Armed, BulkWay, ConnId, Event, IdleMemory, InlineMessage, InlineReceiver, Payload, PostError, RetiredMemory,
    Transport, WorkId, WorkKind, WorkOptions, WriteTarget, check_exposure,
};
use bmi_core::{
    Access, Addr, Capabilities, Error, LogLimit, MemSlice, Memory, MemoryRegion, RemoteKey, RemoteSlice, Segment, Time,
};
use rustix::event::{EventfdFlags, epoll};

pub use config::ShmConfig;

use completions::Pending;
use connection::{Connection, Phase};
use lifecycle::Newcomer;
use link::Link;
use outbound::{LEFT_LEN, Outbound, POST_BUDGET, Ring};
use poll_schedule::PollSchedule;
use queue_pair::QueuePair;
use retired::Retired;
use room::Room;
use socket::Listening;

/// A token is a table index; its lowest bits say which table.
const TOKEN_BITS: u32 = 2;
const TOKEN_MASK: usize = 3;
const TOKEN_CONNECTION: usize = 0;
const TOKEN_LISTENER: usize = 1;
const TOKEN_WAKER: usize = 2;

/// The number of readiness events that one look at epoll reports.
const EPOLL_EVENTS: usize = 256;

/// An RDMA adapter between processes of one host.
///
/// ```
/// use bmi_core::{Addr, Transport};
/// use bmi_shm::{ShmConfig, ShmTransport};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("bmi/iod-0");
/// # let path = path.to_str().expect("text");
/// let mut transport = ShmTransport::new(ShmConfig::default())?;
/// let addr = transport.listen(&Addr::shm(path))?; // as in shm:///run/user/1000/bmi/iod-0
/// assert_eq!(addr.to_string(), format!("shm://{path}"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ShmTransport {
    config: ShmConfig,
    capabilities: Capabilities,
    epoll: OwnedFd,
    scratch: Scratch,
    waker: Waker,
    /// A word that peers are told, together with its address, and behind it a secret word that they
    /// are not told. A peer that can name the secret can reach this process's memory through the
    /// kernel.
    cookie: Box<[u64; 2]>,
    slots: ConnectionTable<Connection>,
    schedule: PollSchedule,
    /// The position in the schedule that is served first.
    first: usize,
    listeners: Listeners<Listening>,
    /// This transport's part of a group that shares listening addresses.
    shard: Shard<Newcomer>,
    /// Set while there may be sockets to accept, at a listener or from another member of the group.
    accept_ready: bool,
    regions: Regions,
    keys: Keys,
    room: Arc<Room>,
    retired: Retired,
    /// Set when this poll has heard something from a descriptor.
    heard: bool,
    /// Set when a slot was given up since the last poll.
    vacated: bool,
    deadlines: Deadlines,
    pending: Pending,
    /// Sockets that may have packets.
    ready: SlotQueue,
    /// Sockets that have not sent their hello, by the number of their process.
    half_open: HalfOpen<i32>,
    log: LogLimit,
    /// Polls since the descriptors were last asked, and the times by which to ask them again.
    unasked: u32,
    look_at: Time,
    look_at_latest: Time,
    /// System calls of the data path: looks at the descriptors, and wake-ups sent.
    calls: u64,
    wakes: u64,
    /// When to look for memory that is gone.
    sweep_at: Time,
    /// The number of naps so far, and whether one is announced.
    nap: u64,
    asleep: bool,
    /// The time of the latest poll.
    now: Time,
}

/// Scratch space for one call.
struct Scratch {
    events: Vec<epoll::Event>,
    /// Left empty by every call.
    pieces: Vec<libc::iovec>,
}

// SAFETY: no pointer moves to another thread. There are no pieces between two calls of the
// transport, and the data of each event that is watched for is a number (`watch`, `new_epoll`).
unsafe impl Send for Scratch {}

/// The counts that [`ShmTransport::calls`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmCalls {
    /// Looks at the descriptors.
    pub looks: u64,
    /// Wake-ups sent to sleeping peers.
    pub wakes: u64,
}

impl ShmTransport {
    /// Creates an adapter with no connections.
    ///
    /// # Errors
    /// `Invalid` if the configuration is out of its bounds; `Io` or `Exhausted` if the system has
    /// no descriptor for it.
    pub fn new(config: ShmConfig) -> Result<ShmTransport, Error> {
        config.validate().map_err(|error| error.during(CREATE))?;
        let (epoll, waker) = new_epoll()?;
        let shard = Shard::alone(waker.clone(), config.limits);
        let room = Room::new(config.max_mapped_in_all);
        Ok(ShmTransport::with(config, epoll, waker, shard, room))
    }

    /// Creates `count` adapters that share their listening addresses (C17), for example one for
    /// each core. Each has the limits of `config` for itself, except
    /// [`ShmConfig::max_mapped_in_all`], which they share.
    ///
    /// # Errors
    /// As [`ShmTransport::new`].
    pub fn shards(config: ShmConfig, count: usize) -> Result<Vec<ShmTransport>, Error> {
        config.validate().map_err(|error| error.during(CREATE))?;
        let epolls = (0..count).map(|_| new_epoll()).collect::<Result<Vec<_>, Error>>()?;
        let wakers = epolls.iter().map(|(_, waker)| waker.clone()).collect();
        let shards = Shard::group(wakers, config.limits);
        let room = Room::new(config.max_mapped_in_all);
        let member = |((epoll, waker), shard)| ShmTransport::with(config.clone(), epoll, waker, shard, room.clone());
        Ok(epolls.into_iter().zip(shards).map(member).collect())
    }

    #[expect(clippy::disallowed_methods, reason = "the cookie is a secret between two processes of one host")]
    fn with(config: ShmConfig, epoll: OwnedFd, waker: Waker, shard: Shard<Newcomer>, room: Arc<Room>) -> ShmTransport {
        ShmTransport {
            capabilities: config.capabilities(),
            epoll,
            scratch: Scratch {
                events: Vec::with_capacity(EPOLL_EVENTS),
                pieces: Vec::with_capacity(config::MAX_SEGMENTS + 2),
            },
            waker,
            cookie: Box::new([0, 1].map(|word: u64| RandomState::new().hash_one(word))),
            slots: ConnectionTable::new(config.connections()),
            schedule: PollSchedule::default(),
            first: 0,
            listeners: Listeners::default(),
            accept_ready: false,
            regions: Regions::new(software::REGIONS),
            keys: Keys::new(software::EXPOSURES),
            room,
            retired: Retired::new(config.max_retired),
            heard: false,
            vacated: false,
            deadlines: Deadlines::default(),
            pending: Pending::new(),
            ready: SlotQueue::default(),
            half_open: HalfOpen::new(shard.half_open_places()),
            shard,
            log: LogLimit::default(),
            unasked: 0,
            look_at: Time::ZERO,
            look_at_latest: Time::ZERO,
            calls: 0,
            wakes: 0,
            sweep_at: Time::ZERO,
            nap: 0,
            asleep: false,
            now: Time::ZERO,
            config,
        }
    }

    /// Returns how many system calls moving messages has cost so far: looks at the descriptors, and
    /// wake-ups of sleeping peers. While both sides are busy there are none except one look per
    /// millisecond.
    pub fn calls(&self) -> ShmCalls {
        ShmCalls { looks: self.calls, wakes: self.wakes }
    }

    /// Posts a send that was not done at once. The caller has checked that its segments belong to
    /// this transport.
    #[inline(never)]
    fn post_any_send(
        &mut self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        payload: Payload<'_>,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let share_pages = self.config.share_pages;
        let working = self.working(conn)?;
        if let Payload::Gather(segments) = payload
            && payload.len() as u64 >= LEFT_LEN
            && let Some(number) = working.link.number_of(segments, share_pages)
        {
            working.queues.leave_send(work, head, segments, number, options)?;
            working.start();
            self.has_moved();
            return Ok(());
        }
        let ring = Ring(working.link);
        working.queues.post_send(work, head, payload, options, ring, working.pending)?;
        if working.queues.has_requests() {
            *working.more = true;
        }
        self.has_moved();
        Ok(())
    }

    /// Returns the queues and the link of a connection on which work may be posted, and the list
    /// for its completions.
    #[inline]
    fn working(&mut self, conn: ConnId) -> Result<Working<'_>, PostError> {
        let connection = self.slots.find_mut(conn).ok_or(PostError::NotConnected)?;
        if !matches!(connection.phase, Phase::Established) {
            return Err(PostError::NotConnected);
        }
        if connection.wake() {
            self.schedule.wake(conn.slot);
        }
        let Connection { link: Some(link), queues: Some(queues), more, .. } = connection else {
            return Err(PostError::NotConnected);
        };
        Ok(Working { link, queues, more, pending: &mut self.pending, pieces: &mut self.scratch.pieces })
    }
}

/// What an error during the creation of a transport says.
const CREATE: &str = "create a shared-memory transport";

/// Returns a descriptor to wait on and its waker.
fn new_epoll() -> Result<(OwnedFd, Waker), Error> {
    let failed = |error: rustix::io::Errno| Error::from(std::io::Error::from(error)).during(CREATE);
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
    let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
    let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&epoll, &event, epoll::EventData::new_u64(TOKEN_WAKER as u64), edges).map_err(failed)?;
    // Each write to this descriptor is an edge for epoll, and it is never read. It is non-blocking
    // and belongs to this process alone.
    let waker = bmi_backend::waker(move || {
        rustix::io::write(&event, &1u64.to_ne_bytes())?;
        Ok(())
    });
    Ok((epoll, waker))
}

struct Working<'a> {
    link: &'a mut Link,
    queues: &'a mut QueuePair,
    more: &'a mut bool,
    pending: &'a mut Pending,
    pieces: &'a mut Vec<libc::iovec>,
}

impl Working<'_> {
    /// Does a write at once if nothing is queued before it and its target is mapped; otherwise
    /// queues it.
    fn write(
        self,
        work: WorkId,
        head: &[u8],
        segments: &[Segment],
        target: WriteTarget,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let len = self.queues.check_write(head, segments, &target)?;
        if len <= POST_BUDGET && outbound::write_now(self.link, self.queues, head, segments, &target, len) {
            self.queues.complete_immediately(work, WorkKind::Write, len, options, self.pending);
            self.pending.hold(segments);
            return Ok(());
        }
        self.queues.add_write(work, head, segments, target, options)?;
        self.start();
        Ok(())
    }

    /// Does a read at once if nothing is queued before it and its source is mapped; otherwise
    /// queues it.
    fn read(
        self,
        work: WorkId,
        segments: &[Segment],
        remote: RemoteSlice,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let len = self.queues.check_read(segments, &remote)?;
        if len <= POST_BUDGET && outbound::read_now(self.link, self.queues, segments, &remote, len) {
            self.queues.complete_immediately(work, WorkKind::Read, len, options, self.pending);
            self.pending.hold(segments);
            return Ok(());
        }
        self.queues.add_read(work, segments, remote, options);
        self.start();
        Ok(())
    }

    /// Does the work that can be done at once. A violation shows again in the next poll.
    fn start(self) {
        let mut outbound = Outbound { link: self.link, queues: self.queues, pieces: self.pieces, budget: POST_BUDGET };
        let turn = outbound.turn(false, self.pending);
        *self.more |= !turn.is_ok_and(|turn| !turn.more);
    }
}

/// The receiver of a poll that was given none; it takes no message.
struct ReceivesNothing;

impl InlineReceiver for ReceivesNothing {
    fn take(&mut self, _: ConnId, _: InlineMessage<'_>) -> bool {
        false
    }
}

fn takes_receives(phase: &Phase) -> bool {
    !matches!(phase, Phase::HalfOpen { .. } | Phase::Closing { .. })
}

impl Drop for ShmTransport {
    fn drop(&mut self) {
        self.retire_all();
    }
}

impl Transport for ShmTransport {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn listen(&mut self, addr: &Addr) -> Result<Addr, Error> {
        self.start_listening(addr)
    }

    fn connect(&mut self, addr: &Addr, private: &[u8], deadline: Time) -> Result<ConnId, Error> {
        self.start_connecting(addr, private, deadline)
    }

    fn accept(&mut self, conn: ConnId, private: &[u8]) -> Result<(), Error> {
        self.accept_request(conn, private)
    }

    fn reject(&mut self, conn: ConnId, private: &[u8]) {
        self.reject_request(conn, private);
    }

    fn disconnect(&mut self, conn: ConnId, deadline: Time) {
        self.close(conn, deadline);
    }

    fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error> {
        self.regions.register(memory)
    }

    fn expose(&mut self, conn: ConnId, segment: &Segment, access: Access) -> Result<RemoteSlice, Error> {
        check_exposure(segment, access)?;
        if !self.regions.own(std::slice::from_ref(segment)) {
            return Err(foreign_segment());
        }
        self.expose_segment(conn, segment, access)
    }

    fn revoke(&mut self, conn: ConnId, key: RemoteKey) {
        self.revoke_key(conn, key.0);
    }

    fn post_recv(&mut self, conn: ConnId, work: WorkId, segments: &[Segment]) -> Result<(), PostError> {
        self.regions.check_targets(segments)?;
        let connection = self.slots.find_mut(conn).filter(|connection| takes_receives(&connection.phase));
        let queues = connection.and_then(|connection| connection.queues.as_deref_mut());
        queues.ok_or(PostError::NotConnected)?.post_recv(work, segments)
    }

    fn post_send(
        &mut self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        payload: Payload<'_>,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        if let (Payload::Inline(slices), false) = (payload, options.signalled)
            && self.slots.find_mut(conn).is_some_and(|connection| connection.send_immediately(head, slices))
        {
            self.has_moved();
            return Ok(());
        }
        if let Payload::Gather(segments) = payload {
            self.regions.check(segments)?;
            let len = (head.len() + payload.len()) as u64;
            let (share_pages, long) = (self.config.share_pages, payload.len() as u64 >= LEFT_LEN);
            let what = (segments, len);
            if long
                && self.slots.find_mut(conn).is_some_and(|connection| {
                    connection.leave_in_place(work, head, what, options.signalled, share_pages)
                })
            {
                self.has_moved();
                return Ok(());
            }
        }
        self.post_any_send(conn, work, head, payload, options)
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
        self.working(conn)?.write(work, head, segments, target, options)
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
        self.working(conn)?.read(work, segments, remote, options)
    }

    fn write_now(&mut self, conn: ConnId, from: &[MemSlice], remote: RemoteSlice) -> bool {
        let Some(len) = outbound::len_now(from, &remote) else { return false };
        let Ok(Working { link, queues, .. }) = self.working(conn) else { return false };
        outbound::write_now(link, queues, &[], from, &remote.into(), len)
    }

    fn read_now(&mut self, conn: ConnId, into: &[MemSlice], remote: RemoteSlice) -> bool {
        let Some(len) = outbound::len_now_into(into, &remote) else { return false };
        let Ok(Working { link, queues, .. }) = self.working(conn) else { return false };
        outbound::read_now(link, queues, into, &remote, len)
    }

    fn map_remote(&mut self, conn: ConnId, remote: RemoteSlice, access: Access) -> Option<RemotePages> {
        self.working(conn).ok()?.link.map_remote(&remote, access)
    }

    fn view_remote(&mut self, conn: ConnId, remote: RemoteSlice) -> Option<RemoteView> {
        let connection = self.slots.find_mut(conn).filter(|found| matches!(found.phase, Phase::Established))?;
        if connection.wake() {
            self.schedule.wake(conn.slot);
        }
        connection.link.as_mut()?.view_remote(&remote, connection.socket.as_ref()?)
    }

    /// The peer may write into exposed memory at any time, without a poll of this side.
    fn release_idle(&mut self, conn: ConnId) -> IdleMemory {
        let established = |connection: &&mut Connection| matches!(connection.phase, Phase::Established);
        let receives =
            self.slots.find_mut(conn).filter(established).is_some_and(|connection| connection.inbound.is_empty());
        if receives { IdleMemory::Receives } else { IdleMemory::Nothing }
    }

    fn retired_memory(&self) -> RetiredMemory {
        self.retired.usage()
    }

    fn bulk_ways(&mut self, conn: ConnId) -> Vec<BulkWay> {
        let shared = self.config.share_pages;
        self.working(conn).map(|working| working.link.ways(shared)).unwrap_or_default()
    }

    fn poll(&mut self, now: Time, events: &mut Vec<Event>) -> bool {
        self.make_progress(now, events, false, &mut ReceivesNothing)
    }

    fn poll_inline(&mut self, now: Time, events: &mut Vec<Event>, receiver: &mut dyn InlineReceiver) -> bool {
        self.make_progress(now, events, true, receiver)
    }

    fn next_deadline(&self) -> Option<Time> {
        self.deadlines.earliest()
    }

    fn arm(&mut self, _waker: &Waker) -> Armed {
        self.prepare_to_sleep()
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

// The transport may move between threads. One thread at a time drives it.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<ShmTransport>();
};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
