//! Creation and phases of connections: their sockets, the handshake, the end.
//!
//! **Protocol** of a connection's phases; `!` marks the end.
//!
//! ```text
//!   connect() -> Dialing --socket connected--> Greeting --accept--> Established --disconnect()--> Ending --> !
//!                   |                              '--reject--> !        |  '--violation----------> Ending --> !
//!                   '--refused, deadline--> !                            '--peer closed, socket failed--> !
//!
//!   listener  -> HalfOpen --preamble--> Requested --accept()--> Established
//!                   |                       '--reject(), peer gone--> !
//!                   |--token--> a stream of a connection ([`crate::streams`])
//!                   '--garbage, other version, handshake_timeout, newcomer--> !   (never reported)
//! ```
//!
//! **Invariants**
//! 1. A half-open socket owns a buffer for one preamble and nothing more. There are at most
//!    `max_half_open` such sockets.
//! 2. A newcomer always gets a place among the half-open sockets. If they are all taken, another
//!    one goes ([`bmi_backend::HalfOpen`]), but only after its bytes were read: a preamble that has
//!    arrived is not lost.
//! 3. The deadline of a half-open socket counts from its arrival, at whatever member of the group
//!    ([`bmi_backend::Shard`]). Bytes do not move it.
//! 4. With a certificate ([`crate::line`]), a handshake comes before the preamble, in the phases
//!    HalfOpen and Greeting. A poll makes a bounded number of its steps, whose price is a
//!    signature.
//! 5. Queues exist from `connect` on, or from the moment when a complete valid preamble has
//!    arrived.
//!
//! **Tests.** `tests/it/connection.rs`, `tests/it/hostile.rs`, `tests/it/streams`.

mod ending;
mod handshake;
mod join;
mod sockets;

use std::net::{IpAddr, SocketAddr};

use bmi_backend::Place;
use bmi_backend::software::Exposures;
use bmi_core::transport::{ConnId, MAX_PRIVATE_DATA};
use bmi_core::{Addr, Error, Time};

pub(crate) use self::ending::Lingering;
use self::join::{JoinToken, TOKEN};
pub(crate) use self::sockets::Newcomer;
use crate::frame::{Frame, PREAMBLE};
use crate::line::Line;
use crate::queue_pair::QueuePair;
use crate::receive::Inbound;
use crate::silence::Silence;
use crate::streams::Streams;

/// The phase of a connection (see the module).
pub(crate) enum Phase {
    Dialing {
        candidates: Vec<SocketAddr>,
        private: Box<[u8]>,
        deadline: Time,
    },
    Greeting {
        deadline: Time,
    },
    /// `unsorted` is the time of arrival if another member of the group may serve it, which its
    /// first bytes tell.
    HalfOpen {
        deadline: Time,
        origin: IpAddr,
        unsorted: Option<Time>,
    },
    Requested,
    Established,
    Ending(Ending),
}

/// The state of a connection that is being ended.
pub(crate) struct Ending {
    pub(crate) reason: Error,
    pub(crate) deadline: Time,
    /// If true, waiting requests are still sent, and this side waits for the peer to end the
    /// stream. If false, only the last frame is sent.
    pub(crate) graceful: bool,
    /// CLOSE or ERROR, until it is on the wire.
    pub(crate) last: Option<Frame>,
    /// All bytes are handed over, and the peer knows that no more will come.
    pub(crate) shut: bool,
}

/// Bytes of the longest greeting.
const LONGEST_GREETING: usize = PREAMBLE + MAX_PRIVATE_DATA + TOKEN;

/// A connection.
pub(crate) struct Connection {
    pub(crate) id: ConnId,
    pub(crate) peer: Addr,
    pub(crate) phase: Phase,
    pub(crate) line: Option<Line>,
    pub(crate) queues: Option<Box<QueuePair>>,
    pub(crate) inbound: Inbound,
    pub(crate) exposures: Exposures,
    /// The further streams, if any were agreed.
    pub(crate) streams: Option<Box<Streams>>,
    /// Number of further streams that the peer asks for.
    further: u8,
    /// What this side joins further streams with.
    token: Option<JoinToken>,
    /// The kernel takes no more bytes until it reports room.
    pub(crate) blocked: bool,
    /// The socket reported its end.
    pub(crate) hangup: bool,
    /// The connection is in the transport's list of sockets that are read without asking epoll.
    pub(crate) in_hot: bool,
    /// Number of consecutive reads that found nothing.
    pub(crate) misses: u32,
    /// The peer's host may owe an answer: bytes were sent since a check found none outstanding.
    pub(crate) unsettled: bool,
    silence: Silence,
    /// Counts the connection, once it is assigned to this member of the group.
    _place: Option<Place>,
}

impl Connection {
    fn new(id: ConnId, peer: Addr, phase: Phase, place: Option<Place>) -> Connection {
        Connection {
            id,
            peer,
            phase,
            line: None,
            queues: None,
            inbound: Inbound::new(LONGEST_GREETING),
            exposures: Exposures::default(),
            streams: None,
            further: 0,
            token: None,
            blocked: false,
            hangup: false,
            in_hot: false,
            misses: 0,
            unsettled: false,
            silence: Silence::default(),
            _place: place,
        }
    }

    /// Gives back the pages of empty buffers. Returns true if nothing is arriving. All that arrives
    /// is placed by polls, and a poll reports what it has completed.
    pub(crate) fn release_idle(&mut self) -> bool {
        self.queues.iter_mut().for_each(|queues| queues.wire.release());
        let idle = self.streams.iter_mut().all(|streams| streams.release());
        let idle = idle && self.queues.as_ref().is_none_or(|queues| queues.has_no_open_write());
        let idle = self.line.iter_mut().all(|line| line.release()) && idle;
        self.inbound.release() && idle
    }

    /// Returns the deadline of the current phase, if it has one.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Dialing { deadline, .. } | Phase::Greeting { deadline } | Phase::HalfOpen { deadline, .. } => {
                Some(*deadline)
            }
            Phase::Ending(ending) => Some(ending.deadline),
            Phase::Established => join::deadline(self),
            Phase::Requested => None,
        }
    }
}
