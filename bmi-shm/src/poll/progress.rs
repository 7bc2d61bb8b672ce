//! The poll loop: reads rings and sockets, sends queued work, and wakes peers ([`super::sleep`]).
//!
//! **Why.** While messages are exchanged no system call is made: each poll looks at one line of
//! each ring. The descriptors are asked for new connections and dead peers. That happens when
//! nothing has come for a while, otherwise once a millisecond, and before sleeping.
//!
//! **Quiet connections.** Most polls find nothing. So each poll notes what it leaves to do
//! ([`Activity`]). While nothing waits in a connection's queues, a poll looks at one word only.
//! Short messages are sent and complete messages are received without further checks. When nothing
//! has come, the poll only does what it owes to the peer.
//!
//! ```text
//!            serve: nothing waits in the queues            pause: nothing is owed
//!   Busy ──────────────────────────────────────> Owing ─────────────────────────────> Quiet
//!    ^                                            │ ^                                   │
//!    └──── wake: posted, heard from the socket ───┘ └───── a message sent or received ──┘
//! ```
//!
//! **Invariants**
//! 1. For everything that was published before a poll or in it, that poll rings the bell of a peer
//!    that sleeps, also if it does not come to serve the connection. So it does for room.
//! 2. A calm connection is established. Its only work is to look at its ring, to tell the peer how
//!    far it has read, and to ring its bell. Whatever gives it other work calls
//!    [`Connection::wake`].

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use bmi_core::Time;
use bmi_core::transport::{Event, InlineReceiver, ReceivesNothing};
use rustix::event::epoll;

use crate::error::Fault;
use crate::life::{Activity, Connection, Packet, Phase, pass_pages};
use crate::passed::release_orphans;
use crate::records::{BUDGET, Context, Link, Outbound, Pass};
use crate::{EPOLL_EVENTS, ShmTransport};

/// Most events that one poll reports.
const BATCH: usize = 256;
/// Most polls for nothing between two looks at the descriptors.
const LOOK_EVERY: u32 = 256;
/// Resting connections that one poll looks at.
const LOOKS_AT_REST: usize = 4;
/// Longest time between two looks at the descriptors while nothing comes.
const LOOK_INTERVAL: Duration = Duration::from_micros(50);
/// Longest time between two looks while messages come. New connections wait that long. Dead peers
/// need no faster look, because they send nothing.
const BUSY_LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// How often to look for memory that was passed and is gone.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

impl ShmTransport {
    /// Notes that messages move, so the descriptors are not looked at for a while. If the peer has
    /// died, a sender soon has no room, and nothing moves any more.
    #[inline]
    pub(crate) fn has_moved(&mut self) {
        (self.unasked, self.look_at) = (0, self.now + LOOK_INTERVAL);
    }

    /// Does one poll. If `shows`, messages are shown to the receiver (C16).
    #[inline]
    pub(crate) fn make_progress(
        &mut self,
        now: Time,
        events: &mut Vec<Event>,
        shows: bool,
        receiver: &mut dyn InlineReceiver,
    ) -> bool {
        (self.now, self.looked) = (now, false);
        let before = events.len();
        let (limit, early) = (before + BATCH, before..before);
        let has_chores = self.has_chores();
        if has_chores || self.schedule.resting() > 0 {
            let mut pass = Pass { events, limit, early, shows, receiver, moved: false };
            return self.make_all_progress(has_chores, &mut pass);
        }
        let Some((step, slot)) = self.find_busy(0) else {
            self.unasked += 1;
            return false;
        };
        let mut pass = Pass { events, limit, early, shows, receiver, moved: false };
        self.serve_from(step, slot, &mut pass);
        self.conclude(&mut pass)
    }

    /// Serves the connections that have something to do, and rings the bells of their peers. Leaves
    /// the descriptors, and the announcement that this side sleeps.
    pub(crate) fn flush(&mut self, now: Time, events: &mut Vec<Event>) -> bool {
        self.now = now;
        let before = events.len();
        let (limit, early) = (before + BATCH, before..before);
        let receiver = &mut ReceivesNothing;
        let mut pass = Pass { events, limit, early, shows: false, receiver, moved: false };
        if !self.pending.is_idle() {
            self.report_pending(&mut pass);
            if !self.pending.is_empty() {
                return true;
            }
        }
        if let Some((step, slot)) = self.find_busy(0) {
            self.serve_from(step, slot, &mut pass);
        }
        self.conclude(&mut pass)
    }

    /// Does one poll with all work that may be due.
    #[inline(never)]
    fn make_all_progress(&mut self, has_chores: bool, pass: &mut Pass<'_>) -> bool {
        if has_chores && !self.do_chores(pass) {
            self.ring_bells();
            return true;
        }
        self.serve_resting(pass);
        if let Some((step, slot)) = self.find_busy(0) {
            self.serve_from(step, slot, pass);
        }
        self.conclude(pass)
    }

    /// Returns whether there is anything to do besides looking at the rings.
    #[inline]
    fn has_chores(&self) -> bool {
        // The caller may read the clock rarely, so polls for nothing count as well.
        let looks = self.unasked >= LOOK_EVERY || self.now >= self.look_at || self.now >= self.look_at_latest;
        let flags = self.vacated | self.asleep | self.accept_ready | self.retired.is_eager(self.now);
        let queued = !self.pending.is_idle() | !self.ready.is_empty();
        looks || flags || queued || self.deadlines.due(self.now) || self.regions.has_released()
    }

    /// Does the work that comes before the rings. Returns false if there were more events than one
    /// poll may report.
    fn do_chores(&mut self, pass: &mut Pass<'_>) -> bool {
        self.regions.collect(drop);
        self.rouse();
        if self.pending.is_empty() && std::mem::take(&mut self.vacated) {
            self.slots.recycle(); // earlier polls have reported every end
        }
        if !self.pending.is_idle() {
            self.report_pending(pass);
            if !self.pending.is_empty() {
                return false;
            }
        }
        self.expire(self.now);
        self.look_at_retired();
        let heard = self.look(pass.events);
        pass.early.end = pass.events.len();
        self.heard |= heard;
        true
    }

    /// Reports the events that came up during the poll, and finds the earliest deadline if it may
    /// have changed. Returns whether there was anything to do in this poll.
    #[inline]
    fn conclude(&mut self, pass: &mut Pass<'_>) -> bool {
        if pass.moved {
            self.has_moved();
        } else {
            self.unasked += 1;
        }
        if !self.pending.is_empty() {
            self.report_pending(pass);
        }
        if self.deadlines.is_stale() {
            self.renew_deadlines();
        }
        let before = pass.limit - BATCH;
        std::mem::take(&mut self.heard) | pass.moved || pass.events.len() > before
    }

    #[cold]
    fn renew_deadlines(&mut self) {
        let retired = self.retired.look_at();
        self.deadlines.renew(|| {
            let connections = self.slots.iter().filter_map(Connection::deadline);
            connections.chain(self.listeners.deadline()).chain(retired)
        });
    }

    fn report_pending(&mut self, pass: &mut Pass<'_>) {
        let room = pass.limit.saturating_sub(pass.events.len());
        self.pending.report_to(pass.events, room);
    }

    // ---- descriptors ----------------------------------------------------------------------------

    /// Looks at the descriptors if it is time, and handles what they report.
    fn look(&mut self, events: &mut Vec<Event>) -> bool {
        if self.unasked >= LOOK_EVERY || self.now >= self.look_at.min(self.look_at_latest) {
            self.ask_epoll();
        }
        if self.ready.is_empty() && !self.accept_ready {
            return false;
        }
        self.accept_ready = false;
        // Reading comes first, because a newcomer may take the place of a half-open socket whose
        // hello has arrived.
        let read = self.read_sockets(events);
        let accepted = self.accept_sockets();
        self.accept_ready |= self.listeners.any_ready() || self.shard.has_waiting();
        if accepted {
            self.read_sockets(events);
        }
        read | accepted
    }

    /// Reads the events that epoll has.
    pub(super) fn ask_epoll(&mut self) {
        (self.unasked, self.look_at) = (0, self.now + LOOK_INTERVAL);
        self.look_at_latest = self.now + BUSY_LOOK_INTERVAL;
        self.calls += 1;
        self.scratch.events.clear();
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let spare = rustix::buffer::spare_capacity(&mut self.scratch.events);
        if let Err(error) = epoll::wait(&self.epoll, spare, Some(&none)) {
            self.looked = error != rustix::io::Errno::INTR;
            if self.looked {
                tracing::error!(%error, "cannot ask for readiness");
            }
            return;
        }
        self.looked = self.scratch.events.len() < EPOLL_EVENTS;
        for at in 0..self.scratch.events.len() {
            let token = self.scratch.events[at].data.u64() as usize;
            let index = token >> crate::TOKEN_BITS;
            match token & crate::TOKEN_MASK {
                crate::TOKEN_CONNECTION => self.mark_ready(index as u32),
                crate::TOKEN_LISTENER => {
                    self.listeners.set_ready(index);
                    self.accept_ready = true;
                }
                _ => {} // the waker: the event alone was needed
            }
        }
        // The waker reports what another member of the group has accepted for this transport. So a
        // poll without a look need not ask.
        self.accept_ready |= self.shard.has_waiting();
        if self.now >= self.sweep_at {
            self.sweep();
        }
    }

    /// Tells peers of memory that is gone.
    fn sweep(&mut self) {
        self.sweep_at = self.now + SWEEP_INTERVAL;
        release_orphans();
        for slot in self.schedule.all() {
            let Some(Connection { link: Some(link), socket: Some(socket), .. }) = self.slots.at_mut(slot) else {
                continue;
            };
            link.passed.sweep(|id| {
                crate::os::socket::send(socket.as_fd(), Packet::Drop { id }.encode().bytes(), None).is_ok()
            });
        }
    }

    // ---- rings ----------------------------------------------------------------------------------

    /// Serves some of the resting connections. They come before the others, so that busy
    /// connections cannot keep them from being found.
    fn serve_resting(&mut self, pass: &mut Pass<'_>) {
        for _ in 0..self.schedule.resting().min(LOOKS_AT_REST) {
            let Some(slot) = self.schedule.take_turn() else { break };
            let quiet = self.slots.at_mut(slot).is_none_or(Connection::is_quiet);
            if !quiet && self.serve(slot, pass) {
                self.schedule.wake(slot);
            }
        }
        pass.early.end = pass.events.len(); // a connection that rested may get a second turn
    }

    /// Serves the connections that are awake and have something to do. The first of them is at
    /// `step`, in `slot`.
    #[inline]
    fn serve_from(&mut self, step: usize, slot: u32, pass: &mut Pass<'_>) {
        let (mut found, count) = (Some((step, slot)), self.schedule.awake().len());
        while let Some((step, slot)) = found {
            if self.schedule.awake().len() != count {
                // When one has ended or gone to rest, another takes its place in the list and may
                // get a second turn.
                pass.early.end = pass.events.len();
            }
            if pass.events.len() >= pass.limit {
                // The rest are served first next time.
                self.first += step;
                pass.moved = true;
                return self.ring_bells();
            }
            let served = self.slots.at_mut(slot).is_some_and(|connection| connection.take_in(pass));
            if !served {
                self.serve(slot, pass);
            }
            found = self.find_busy(step + 1);
        }
    }

    /// Returns the next awake connection that has something to do, counted from `first` and from
    /// `step` on. Those that it skips have nothing to do.
    #[inline]
    fn find_busy(&mut self, step: usize) -> Option<(usize, u32)> {
        let mut step = step;
        while step < self.schedule.awake().len() {
            let slot = self.schedule.awake_from(self.first, step);
            let connection = self.slots.at_mut(slot)?;
            if !connection.is_quiet() {
                return Some((step, slot));
            }
            if connection.tires() {
                self.schedule.rest(slot);
            }
            step += 1;
        }
        None
    }

    /// Serves one connection. Returns whether anything has moved.
    fn serve(&mut self, slot: u32, pass: &mut Pass<'_>) -> bool {
        let Some(connection) = self.slots.at_mut(slot) else { return false };
        let id = connection.id;
        let before = pass.events.len();
        let served = serve(connection, pass, &mut self.scratch.pieces);
        match served {
            Ok(Served { moved, woke, over: None }) => {
                self.wakes += u64::from(woke);
                let moved = moved || pass.events.len() > before;
                if moved {
                    connection.has_moved();
                }
                pass.moved |= moved;
                return moved;
            }
            Ok(Served { over: Some(fault), .. }) => self.end(slot, id, fault),
            Err(Fault::Violation(violation)) => self.cut(slot, violation),
            Err(fault) => self.end(slot, id, fault),
        }
        pass.moved = true;
        true
    }
}

struct Served {
    moved: bool,
    /// Set if the peer slept and was sent a wake-up.
    woke: bool,
    over: Option<Fault>,
}

fn serve(connection: &mut Connection, pass: &mut Pass<'_>, pieces: &mut Vec<libc::iovec>) -> Result<Served, Fault> {
    let mut served = Served { moved: false, woke: false, over: None };
    let (Some(link), Some(queues)) = (connection.link.as_deref_mut(), connection.queues.as_deref_mut()) else {
        return Ok(served);
    };
    let closing = matches!(connection.phase, Phase::Closing { .. });
    queues.begin_poll();
    link.say_taken();
    connection.more = false;
    if !closing {
        let exposures = &connection.exposures;
        let mut context = Context { link: &mut *link, queues: &mut *queues, exposures, pass: &mut *pass };
        let received = connection.inbound.receive(&mut context)?;
        served.moved = received.moved;
        connection.more = received.spent;
        if let Some(draining) = &mut connection.draining {
            draining.polls -= 1;
            if !received.more || draining.polls == 0 {
                served.over = connection.draining.take().map(|draining| draining.fault);
                return Ok(served);
            }
        }
    }
    let events = &mut *pass.events;
    if queues.has_gone() {
        link.refresh_taken()?;
        served.moved |= queues.complete_gone(link.in_place_copied, events);
    }
    if queues.has_outgoing() {
        let mut outbound = Outbound { link: &mut *link, queues: &mut *queues, pieces, budget: BUDGET };
        let turn = outbound.turn(closing, events)?;
        served.moved |= turn.moved;
        connection.more |= turn.more;
    }
    served.moved |= queues.has_made_room();
    if closing && !queues.has_requests() {
        let mut outbound = Outbound { link: &mut *link, queues: &mut *queues, pieces, budget: 0 };
        if outbound.close()? {
            served.over = Some(Fault::Cancelled);
        }
    }
    if (link.mapped.has_asks() || link.passed.owes() || link.to_pass.is_some())
        && let Some(socket) = &connection.socket
    {
        connection.more |= !say_of_pages(link, socket);
    }
    if link.ring_bell(served.moved) {
        served.woke = true;
        connection.socket.iter().for_each(wake_peer);
    }
    let busy = closing || connection.more || connection.draining.is_some() || queues.needs_polls();
    connection.activity = if busy { Activity::Busy } else { Activity::Owing };
    Ok(served)
}

/// Wakes the peer. A socket too full for a wake-up holds packets that wake it.
pub(super) fn wake_peer(socket: &OwnedFd) {
    let _ = crate::os::socket::send(socket, Packet::Wake.encode().bytes(), None);
}

/// Asks for memory and passes memory. Returns false if the socket is too full, so that it must be
/// tried again.
#[cold]
fn say_of_pages(link: &mut Link, socket: &OwnedFd) -> bool {
    let asked =
        link.mapped.send_asks(|id| crate::os::socket::send(socket, Packet::Ask { id }.encode().bytes(), None).is_ok());
    let answered = link.passed.answer(|id, pages| pages.descriptor().is_none() || pass_pages(socket, id, pages));
    if let Some(memory) = link.to_pass.take()
        && let Some(pages) = memory.shared_pages()
    {
        // If the socket is full, the next message from this memory tries again.
        link.passed.pass(&memory, pages, |id| pass_pages(socket, id, pages));
    }
    asked && answered
}
