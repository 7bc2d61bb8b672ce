//! Timelines of real runs: what an endpoint did and when, from both sides of a connection, in a
//! format that browsers show.
//!
//! **Why.** A number shows that an exchange was slow; a timeline shows where the time went. The
//! simulator draws its own ([`chrome`] is the writer of both). On a real machine each side sees
//! only half of an exchange, by a clock of its own. So each side records, one side fetches the
//! other's [`Timeline`], and [`merge`] draws both in one picture.
//!
//! **Invariants**
//! 1. *Off costs nothing but a branch.* While nothing is recorded, a place that could record tests
//!    one word.
//! 2. *Bounded.* A recording has room for a number of entries, which is allocated when it begins.
//!    Recording allocates nothing. The newest entry takes the place of the oldest, and the lost
//!    ones are counted.
//! 3. *It changes nothing.* Recording sends nothing and draws no number. In the simulator a run
//!    with recording has the same digest as one without.
//! 4. *No clock of its own.* Stamps come from the [`Clock`](crate::Clock) that the program hands
//!    in: virtual time in the simulator.
//!
//! **Protocol.**
//!
//! ```text
//!   program A   Engine::record(options, clock) … Engine::timeline() ──────────────┐
//!   program B   Engine::record(options, clock) … Engine::timeline().encode() ──> decode
//!                                                                                     │
//!                       merge(&a, &b) ──> align the clocks ──> Merged::write_chrome <─┘
//! ```
//!
//! ```no_run
//! # use bmi_core::driver::MonotonicClock;
//! # use bmi_core::{Endpoint, Timeline, TimelineOptions, Transport};
//! # fn example(endpoint: Endpoint, fetched: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
//! endpoint.with(|engine| engine.record(TimelineOptions::default(), MonotonicClock::new()))?;
//! // … what is to be seen …
//! let mine = endpoint.with(|engine| engine.timeline()).unwrap_or_default();
//! let theirs = Timeline::decode(fetched)?;
//! bmi_core::timeline::merge(&mine, &theirs).write_chrome(std::fs::File::create("timeline.json")?)?;
//! # Ok(())
//! # }
//! ```
//!
//! **Layout.** An [`Entry`] says what happened ([`What`]), with which peer, and when. The messages
//! of a connection have numbers, and both sides know them: the n-th expected message in a
//! direction, or the n-th unexpected one, because messages of a connection arrive in order (C3 of
//! [`crate::transport`]). They are counted whether or not anyone records. `align` finds the pairs,
//! `trace` draws the rows, `wire` has the bytes.
//!
//! **Limits.** One offset is computed for the whole recording, so the clocks must run at the same
//! rate as far as the picture is to be exact. Two quartz clocks drift apart by some 10 µs in a
//! second. The bytes of fast-RDMA slots and of offered receives are part of their message, and not
//! transfer units.
//!
//! **Source.** Cristian, *Probabilistic clock synchronization*, and NTP (RFC 5905), for the
//! offset. The rest is ours.
//!
//! **Tests.** Below each module; `bmi-sim/tests/it/endpoints/timeline.rs` with a known skew in
//! virtual time; `bmi-core/tests/it/timeline.rs` over TCP.

mod align;
pub mod chrome;
mod recorder;
mod trace;
mod wire;

pub use align::{Alignment, align};
pub(crate) use recorder::Recorder;
pub use trace::{Merged, merge};

use crate::ids::Key;
use crate::op::{OpKind, PeerId, Tag};
use crate::paths::Path;
use crate::time::Time;

/// The options of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimelineOptions {
    /// Number of entries that are kept, the newest ones. Each takes 56 bytes.
    pub events: usize,
}

impl Default for TimelineOptions {
    /// 65,536 entries, which take 3.5 MiB.
    fn default() -> TimelineOptions {
        TimelineOptions { events: 1 << 16 }
    }
}

/// The class of a message. Each is numbered by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// It goes into a posted receive.
    Expected,
    /// It needs no receive.
    Unexpected,
}

/// How a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In one message, into a receive slot.
    Eager,
    /// Written into a fast-RDMA slot.
    Slot,
    /// Written into the receive that the peer had offered.
    Offered,
    /// Announced. Its bytes move later, in transfer units: a rendezvous.
    Announced,
}

/// The direction of a transfer unit, as the adapter sees it that moves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// An RDMA read.
    Read,
    /// An RDMA write.
    Write,
}

/// What an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// The program posted a message that could not leave at once. A message that could has only a
    /// [`What::Send`], which begins when it was posted.
    Queue(Class),
    /// A message was handed to the adapter, or announced. The span is the attempt.
    Send(Class, Way),
    /// A message arrived, or its announcement.
    Arrive(Class, Way),
    /// The program has a message: its receive has ended, or an unexpected one was taken.
    Deliver(Class),
    /// A transfer unit, from its first request to its completion.
    Unit(Direction),
    /// Memory was found in the pin-down cache (a hit), or registered.
    Register {
        /// It was registered already.
        hit: bool,
    },
    /// The driver slept, from when it armed the adapter until it polled again.
    Sleep,
    /// A call was posted. `None` is a call without data.
    Call(Option<Path>),
    /// The call with this tag is over.
    CallEnd,
    /// An operation ended that is not a receive.
    End {
        /// Its kind.
        op: OpKind,
        /// It succeeded.
        ok: bool,
    },
}

/// One entry of a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What happened.
    pub what: What,
    /// The peer, as in [`Timeline::peers`]; [`Entry::NO_PEER`] for none.
    pub peer: u64,
    /// The tag of a message, or the id of a call.
    pub tag: Tag,
    /// The number of a message among those of its class, direction and connection, from 0.
    pub number: u64,
    /// Bytes of the message, of the transfer unit or of the memory.
    pub bytes: u64,
    /// When it began, by the clock of the recording.
    pub start: Time,
    /// How long it took, in nanoseconds; 0 for a point in time.
    pub duration_ns: u64,
}

impl Entry {
    /// The peer of what concerns none.
    pub const NO_PEER: u64 = u64::MAX;

    /// Makes an entry without peer, message and bytes. Whoever records it adds the time.
    #[inline]
    pub(crate) fn of(what: What) -> Entry {
        Entry { what, peer: Entry::NO_PEER, tag: 0, number: 0, bytes: 0, start: Time::ZERO, duration_ns: 0 }
    }

    /// Returns the end.
    pub fn end(&self) -> Time {
        Time::from_nanos(self.start.as_nanos().saturating_add(self.duration_ns))
    }
}

/// Returns the name of a peer in entries.
#[inline]
pub(crate) fn name_of(PeerId(key): PeerId) -> u64 {
    u64::from(key.generation) << 32 | u64::from(key.slot)
}

/// Returns the peer of a name.
pub(crate) fn peer_of(name: u64) -> Option<PeerId> {
    let (slot, generation) = (u32::try_from(name & u64::from(u32::MAX)).ok()?, u32::try_from(name >> 32).ok()?);
    (name != Entry::NO_PEER).then_some(PeerId(Key { slot, generation }))
}

/// A peer of a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelinePeer {
    /// Its name in entries.
    pub peer: u64,
    /// Its address, as the recording side knows it.
    pub addr: String,
}

/// A snapshot of a recording: plain data, which can be sent to the other side
/// ([`Timeline::encode`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The entries, in the order in which they were recorded, which is that of their ends.
    pub entries: Vec<Entry>,
    /// Number of older entries that had no room.
    pub lost: u64,
    /// The peers of the entries, as far as their addresses are still known.
    pub peers: Vec<TimelinePeer>,
}
