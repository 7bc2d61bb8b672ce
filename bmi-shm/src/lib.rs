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
//! | room | contents; each uses those below it |
//! |---|---|
//! | `adapter` | what the transport does for each call |
//! | `poll` | the poll loop, sleeping and waking; which rings a poll looks at |
//! | `life` | listening, dialing, handshake, exposures, the end of a connection; a connection |
//! | `records` | from the queues to the ring, from the ring to the receives; the link that both share |
//! | `work` | posted work: requests, reads, replies, receives; the memory that it holds; completions |
//! | `passed` | memory that one side has passed to the other; what a peer may still write to |
//! | `shared` | the lock-free ring and the wake-up rule, checked by loom; the area: layout |
//! | `config`, `error` | [`ShmConfig`], limits, capabilities; why connections end |
//! | `os` | memfds, mappings, the memory of another process; the Unix socket |
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

mod adapter;
mod config;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
#[cfg(test)]
mod hostile;
mod life;
mod os;
mod passed;
mod poll;
mod records;
mod shared;
mod work;

use std::hash::{BuildHasher, RandomState};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Waker;

use bmi_backend::software::{self, Keys};
use bmi_backend::{ConnectionTable, Deadlines, HalfOpen, Listeners, Regions, Shard, SlotQueue};
use bmi_core::{Capabilities, Error, Time};
use rustix::event::{EventfdFlags, epoll};

pub use config::ShmConfig;

use crate::life::{Connection, Newcomer, Offenders};
use crate::os::socket::Listening;
use crate::passed::{Retired, Room};
use crate::poll::PollSchedule;
use crate::work::Pending;

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
    offenders: Offenders,
    /// Polls since the descriptors were last asked, and the times by which to ask them again.
    unasked: u32,
    look_at: Time,
    look_at_latest: Time,
    /// The latest poll has read all events of epoll.
    looked: bool,
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

/// Returns the epoll token of a connection.
fn token_of(slot: u32) -> usize {
    (slot as usize) << crate::TOKEN_BITS | crate::TOKEN_CONNECTION
}

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
        Ok(ShmTransport::shards(config, 1)?.remove(0))
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
            slots: ConnectionTable::new(config.limits.connections("ShmConfig::limits")),
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
            offenders: Offenders::default(),
            shard,
            unasked: 0,
            looked: false,
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

    fn mark_ready(&mut self, slot: u32) {
        let Some(connection) = self.slots.at_mut(slot) else { return };
        if self.ready.add(slot) && connection.wake() {
            self.schedule.wake(slot);
        }
    }

    /// Makes epoll watch a descriptor, edge-triggered.
    fn watch(&self, fd: BorrowedFd<'_>, token: usize) -> std::io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token as u64), flags)?)
    }

    /// Returns how many system calls moving messages has cost so far: looks at the descriptors, and
    /// wake-ups of sleeping peers. While both sides are busy there are none except one look per
    /// millisecond.
    pub fn calls(&self) -> ShmCalls {
        ShmCalls { looks: self.calls, wakes: self.wakes }
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

impl Drop for ShmTransport {
    fn drop(&mut self) {
        self.retire_all();
    }
}

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
