//! A connection: its parts, and the fast paths while it is calm.
//!
//! **Invariants**
//! 1. A calm connection (one whose [`Activity`] is not `Busy`) is established and has a link and
//!    queues. Its queues hold only receives, reads that the peer was asked for, and requests that
//!    have gone.
//! 2. Whatever gives it other work calls [`Connection::wake`].
//!
//! **Tests**: those of the folder and `progress`; `tests/it/inline_receive.rs`.

use std::os::fd::{AsFd, OwnedFd};

use bmi_backend::software::{Exposures, slot_of};
use bmi_core::mem::{MemSlice, SharedPages};
use bmi_core::transport::{ConnId, WorkId};
use bmi_core::{Access, Addr, Error, PeerIdentity, Segment, Time};

use super::packet::{Hello, Packet};
use crate::error::Fault;
use crate::os::socket;
use crate::os::sys::Credentials;
use crate::records::{Inbound, Link, Pass, leave_now, send_now};
use crate::shared::{Advice, Area, Place};
use crate::work::QueuePair;

/// The phase of a connection (see the folder).
pub(crate) enum Phase {
    Dialing {
        private: Box<[u8]>,
        deadline: Time,
        retry_at: Time,
    },
    Greeting {
        deadline: Time,
    },
    /// `origin` is the number of the peer's process. What it says is read from `heard_at` on.
    HalfOpen {
        deadline: Time,
        origin: i32,
        heard_at: Option<Time>,
    },
    Requested,
    Established,
    Closing {
        reason: Error,
        deadline: Time,
    },
}

impl Phase {
    pub(crate) fn takes_receives(&self) -> bool {
        !matches!(self, Phase::HalfOpen { .. } | Phase::Closing { .. })
    }
}

/// The peer's end was seen; the rest of its ring is still being read.
pub(crate) struct Draining {
    pub(crate) fault: Fault,
    /// Polls left. The limit is needed because a hostile peer may go on writing after its end.
    pub(crate) polls: u32,
}

/// A connection.
pub(crate) struct Connection {
    pub(crate) id: ConnId,
    pub(crate) peer: Addr,
    pub(crate) phase: Phase,
    /// Dropped before the socket. The drop announces that this side has ended and acknowledges what
    /// it has copied, before the peer sees the end of the socket.
    pub(crate) link: Option<Box<Link>>,
    pub(crate) socket: Option<OwnedFd>,
    /// This side's area, and its descriptor until the peer has it.
    pub(crate) own: Option<Area>,
    pub(super) own_fd: Option<OwnedFd>,
    /// The peer's area and hello, until the link is made.
    pub(crate) theirs: Option<(Area, Hello)>,
    pub(crate) queues: Option<Box<QueuePair>>,
    pub(crate) inbound: Inbound,
    pub(crate) exposures: Exposures,
    /// Set if the kernel may copy between the two processes.
    pub(crate) crosses: bool,
    /// The process at the other end, once there is a socket.
    pub(crate) process: Option<Credentials>,
    pub(crate) draining: Option<Draining>,
    /// Set if there is work that only waits for its turn.
    pub(crate) more: bool,
    pub(crate) activity: Activity,
    /// Polls since something moved; `RESTS` if the connection rests (see `poll_schedule`).
    idle: u32,
    _place: bmi_backend::Place,
}

/// The work that the last poll has left on a connection, or that came up since (see `progress`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    /// There may be any kind of work.
    Busy,
    /// The peer must be told how far its ring was read, or be woken if it sleeps. Nothing waits in
    /// the queues.
    Owing,
    /// There is nothing to do.
    Quiet,
}

/// Polls without movement after which a connection rests: some 20 µs.
const RESTS: u32 = 1024;

impl Connection {
    pub(crate) fn new(id: ConnId, peer: Addr, phase: Phase, place: bmi_backend::Place) -> Connection {
        Connection {
            id,
            peer,
            phase,
            socket: None,
            own: None,
            own_fd: None,
            theirs: None,
            link: None,
            queues: None,
            inbound: Inbound::default(),
            exposures: Exposures::default(),
            crosses: false,
            process: None,
            draining: None,
            more: false,
            activity: Activity::Busy,
            idle: 0,
            _place: place,
        }
    }

    /// Returns who is at the other end.
    pub(crate) fn identity(&self) -> PeerIdentity {
        self.process.map(PeerIdentity::from).unwrap_or_default()
    }

    /// Notes that the connection has work. Returns whether it was at rest.
    #[inline]
    pub(crate) fn wake(&mut self) -> bool {
        self.activity = Activity::Busy;
        std::mem::take(&mut self.idle) == RESTS
    }

    /// Notes that something has moved.
    #[inline]
    pub(crate) fn has_moved(&mut self) {
        self.idle = 0;
    }

    /// Returns true if a poll has nothing to do for this connection.
    #[inline]
    pub(crate) fn is_quiet(&mut self) -> bool {
        if self.activity == Activity::Busy {
            return false;
        }
        let nothing = self.link.as_deref().is_some_and(|link| !link.reader.has_next());
        nothing && (self.activity == Activity::Quiet || !self.pause())
    }

    /// Tells the peer how far its ring was read, and looks whether it has copied the in-place
    /// messages. Called when nothing has come. Returns whether there is anything more to do.
    #[inline(never)]
    fn pause(&mut self) -> bool {
        self.inbound.pause();
        let (Some(link), Some(queues)) = (self.link.as_deref_mut(), self.queues.as_deref()) else { return true };
        link.tell();
        link.say_taken();
        let sleeps = link.finds_sleeper();
        if queues.has_gone() {
            return link.has_taken() || sleeps;
        }
        self.activity = Activity::Quiet; // what was owed is done, except to wake the peer
        sleeps
    }

    /// Sends a message of `len` bytes in place, if nothing is queued before it and the peer has its
    /// memory mapped. Returns whether it did.
    pub(crate) fn leave_in_place(
        &mut self,
        work: WorkId,
        head: &[u8],
        (segments, len): (&[Segment], u64),
        signalled: bool,
        share_pages: bool,
    ) -> bool {
        let (Some(link), Some(queues)) = (self.link.as_deref_mut(), self.queues.as_deref_mut()) else { return false };
        if self.activity == Activity::Busy || self.idle == RESTS || !queues.may_leave() {
            return false;
        }
        let Some(number) = link.number_of(segments, share_pages) else { return false };
        if !leave_now(link, head, segments, number, len) {
            return false;
        }
        queues.leave_in_place(work, segments, len, signalled, link.in_place);
        (self.activity, self.idle) = (Activity::Owing, 0);
        true
    }

    /// Receives the messages of a calm connection, if that is all there is to do. Returns whether
    /// it was.
    #[inline]
    pub(crate) fn take_in(&mut self, pass: &mut Pass<'_>) -> bool {
        if self.activity == Activity::Busy {
            return false;
        }
        let (Some(link), Some(queues)) = (self.link.as_deref_mut(), self.queues.as_deref_mut()) else { return false };
        // Acknowledges what the previous poll copied. This is done only now, after the reply to
        // that message was sent. A store to this word waits until the peer gives up its cache line,
        // and the reply would have waited with it.
        link.say_taken();
        let all = self.inbound.take_in(link, queues, pass);
        let lied = queues.has_gone() && link.has_taken() && link.refresh_taken().is_err();
        if queues.has_gone() {
            queues.complete_gone(link.in_place_copied, pass.events);
        }
        if !all || lied || link.must_tell() || link.finds_sleeper() {
            pass.early.end = pass.events.len(); // it gets another turn
            return false;
        }
        (self.activity, self.idle) = (Activity::Owing, 0);
        true
    }

    /// Sends a short message at once, without a completion, if nothing is queued before it and
    /// there is room. Returns whether it did.
    #[inline]
    pub(crate) fn send_immediately(&mut self, head: &[u8], slices: &[MemSlice]) -> bool {
        // A calm connection is established and has nothing to send in its queues. An immediate send
        // takes no place there.
        let Some(link) = self.link.as_deref_mut().filter(|_| self.activity != Activity::Busy) else { return false };
        if self.idle == RESTS || !send_now(link, head, slices) {
            return false;
        }
        (self.activity, self.idle) = (Activity::Owing, 0);
        true
    }

    /// Counts a poll in which nothing has moved. Returns whether the connection goes to rest,
    /// because it is time and there is nothing left to do.
    #[inline]
    pub(crate) fn tires(&mut self) -> bool {
        if self.idle >= RESTS - 1 {
            return self.rests();
        }
        self.idle += 1;
        false
    }

    #[cold]
    fn rests(&mut self) -> bool {
        let (Some(link), Some(queues)) = (&self.link, &self.queues) else { return false };
        let waits = queues.needs_polls() || queues.has_gone() || link.owes();
        let busy = self.more || self.draining.is_some() || waits;
        if busy || self.idle == RESTS || !matches!(self.phase, Phase::Established) {
            return false;
        }
        self.idle = RESTS;
        true
    }

    /// Returns whether there is something to do as soon as the peer has read: queued work, or the
    /// CLOSE record of a connection that closes and has sent everything.
    pub(crate) fn waits_for_room(&self) -> bool {
        let closing = matches!(self.phase, Phase::Closing { .. });
        self.queues.as_deref().is_some_and(|queues| queues.has_outgoing() || closing && !queues.has_requests())
    }

    /// Returns the connection's time limit, if it has one.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Dialing { deadline, retry_at, .. } => Some(*deadline.min(retry_at)),
            Phase::HalfOpen { deadline, heard_at: Some(heard_at), .. } => Some(*deadline.min(heard_at)),
            Phase::Greeting { deadline } | Phase::HalfOpen { deadline, .. } | Phase::Closing { deadline, .. } => {
                Some(*deadline)
            }
            Phase::Requested | Phase::Established => None,
        }
    }

    pub(crate) fn say(&self, packet: &Packet) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket::send(socket, packet.encode().bytes(), None).is_ok())
    }

    /// Tells the peer where exposed memory is, if the peer can reach it.
    pub(crate) fn advertise(&mut self, key: u64, segment: &Segment, access: Access, share_pages: bool) {
        let place = self.place(segment, share_pages);
        if let (Some(place), Some(own)) = (place, &self.own) {
            own.advertise(slot_of(key), key, Advice { place, access, len: segment.len() as u64 });
        }
    }

    /// Returns the location to advertise for a segment, if there is one. Passes the segment's pages
    /// first if they can be passed and were not.
    fn place(&mut self, segment: &Segment, share_pages: bool) -> Option<Place> {
        let memory = segment.region().memory();
        let offset = segment.offset() as u64;
        if share_pages
            && let (Some(pages), Some(link), Some(socket)) = (memory.shared_pages(), &mut self.link, &self.socket)
        {
            let number = link
                .passed
                .number(memory)
                .or_else(|| link.passed.pass(memory, pages, |id| pass_pages(socket, id, pages)));
            if let Some(id) = number {
                return Some(Place::Pages { id, offset });
            }
        }
        // Without a link this side would not see the peer's claims.
        (self.crosses && self.link.is_some()).then(|| Place::Address(segment.as_ptr() as u64))
    }
}

/// Passes pages to the peer. Returns false if the socket is too full, or if the pages are for
/// another peer only.
pub(crate) fn pass_pages(socket: &OwnedFd, id: u32, pages: &SharedPages) -> bool {
    let packet = Packet::Pages { id, len: pages.len() as u64 }.encode();
    let descriptor = pages.descriptor();
    descriptor.is_some_and(|fd| socket::send(socket, packet.bytes(), Some(fd.as_fd())).is_ok())
}
