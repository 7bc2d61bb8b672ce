//! The poll loop: the work done when the owner polls.
//!
//! **Protocol** of one poll:
//!
//! ```text
//!   pending events -> deadlines -> send -> look (epoll, or read hot sockets unasked) -> receive
//!                  -> accept, receive from the newcomers -> send
//! ```
//!
//! A poll that has sent does not look, unless the one before it did not look either: an answer
//! takes longer than a poll. Before a sleep, epoll is asked if the last poll has not looked.
//!
//! Accepting comes after receiving, because a newcomer may take the place of a half-open socket
//! whose preamble has arrived.
//!
//! **Why hot sockets.** An owner that polls without pause would pay two system calls each time, one
//! of them only to learn that nothing has happened. A socket that recently had bytes is read
//! directly. Epoll is asked only every few polls, or when the owner may have slept on it or has not
//! polled for a while, or when output waits for room. An owner that sleeps between messages polls
//! at most [`ASKED`] times for each: these ask epoll, so that it can sleep again without another
//! look. A poll of busy sockets takes long, so epoll is also asked after some bytes and after some
//! time: else two of them would hide all others.
//!
//! **Invariants**
//! 1. A connection with something to send that the kernel would take is in `dirty`. One whose
//!    socket may have bytes is in `ready`. So it is safe to sleep when both are empty and epoll
//!    reports nothing (C11). Readiness is edge-triggered: a mark is removed only after the kernel
//!    has reported that nothing is left.
//! 2. The work per connection and poll is bounded in bytes, frames and events. Connections with
//!    remaining work stay in the lists.

use std::task::Waker;
use std::time::Duration;

use bmi_backend::Fault;
use bmi_core::Time;
use bmi_core::transport::{Armed, ConnId, Event, InlineReceiver, ReceivesNothing};

use crate::TcpTransport;
use crate::lifecycle::{Connection, Lingering, Phase};
use crate::line::Line;
use crate::receive::{BYTE_BUDGET, Context, Shows};
use crate::turns::send_all;
use crate::vectored_io::{self, EPOLL_EVENTS};

/// Number of events that one poll reports before it returns.
const BATCH: usize = 256;
/// Number of steps of handshakes that one poll makes. One may take as long as a signature, a
/// quarter of a millisecond, for which all others wait.
const STEPS: u32 = 2;
/// Number of polls between two calls to epoll while hot sockets are read unasked.
const EPOLL_EVERY: u32 = 32;
/// Bytes from sockets that were read unasked, after which epoll is asked. The call costs little
/// beside the copy of so many.
const UNASKED_BYTES: usize = 64 << 10;
/// Time after which epoll is asked. Polls that find nothing are [`EPOLL_EVERY`] in less.
const UNASKED_TIME: Duration = Duration::from_micros(100);
/// After a pause of this length between two polls, epoll is asked: an owner that comes back learns
/// with its first poll which connections have ended.
const PAUSE: Duration = Duration::from_millis(100);
/// Number of polls after a sleep that ask epoll.
const ASKED: u32 = 3;
/// Bytes from sockets since epoll was asked, after which more have probably come.
const MANY_BYTES: usize = 16 << 10;
/// Largest number of hot sockets. Each costs a system call in an idle poll.
const MAX_HOT: usize = 2;
/// Number of consecutive unasked reads without bytes, after which a socket is no longer hot.
const MAX_MISSES: u32 = 4096;

impl TcpTransport {
    pub(crate) fn progress(
        &mut self,
        now: Time,
        events: &mut Vec<Event>,
        receiver: Option<&mut dyn InlineReceiver>,
    ) -> bool {
        if now >= self.now + PAUSE {
            self.to_ask = self.to_ask.max(1);
        }
        (self.now, self.steps) = (now, STEPS);
        let before = events.len();
        let limit = before + BATCH;
        self.regions.collect(drop);
        if self.pending.is_empty() {
            self.slots.recycle(); // the polls before have reported every end
        }
        self.expire(now);
        if !self.pending.report_to(events, limit) {
            return true;
        }
        let mut moved = self.send_dirty(events, limit);
        // An answer takes longer than this poll, and the next one looks.
        self.looked = !(moved && self.looked);
        if self.looked || self.seen.any() {
            self.look();
        }
        moved |= self.take_answers();
        // What waits to be reported may be of a connection whose messages would be shown.
        let before = if receiver.is_some() && self.pending.is_empty() { before } else { usize::MAX };
        let nothing: &mut dyn InlineReceiver = &mut ReceivesNothing;
        let mut shows = Shows { receiver: receiver.unwrap_or(nothing), before };
        if !self.ready.is_empty() {
            moved |= self.receive_ready(events, limit, &mut shows);
        }
        if self.listeners.any_ready() || self.shard.has_waiting() {
            moved |= self.receive_newcomers(events, limit, &mut shows);
        }
        moved |= self.send_dirty(events, limit);
        self.pending.report_to(events, limit);
        self.renew_deadlines();
        moved || events.len() > before
    }

    /// Sends, and does not look (see [`Transport::flush`](bmi_core::Transport::flush)).
    pub(crate) fn flush(&mut self, now: Time, events: &mut Vec<Event>) -> bool {
        self.now = now;
        let before = events.len();
        let limit = before + BATCH;
        if !self.pending.report_to(events, limit) {
            return true;
        }
        let moved = self.send_dirty(events, limit);
        self.pending.report_to(events, limit);
        self.renew_deadlines();
        moved || events.len() > before
    }

    fn renew_deadlines(&mut self) {
        self.deadlines.renew(|| {
            let connections = self.slots.iter().filter_map(Connection::deadline);
            let lingering = self.lingering.iter().map(|(_, lingering)| lingering.deadline);
            connections.chain(lingering).chain(self.listeners.deadline()).chain(self.watch_at)
        });
    }

    pub(crate) fn arm(&mut self, _waker: &Waker) -> Armed {
        // What has arrived since epoll was asked makes the descriptor readable, so it need not be
        // asked again. There are four exceptions. A full result may be incomplete, and the rest
        // causes no new edge for a thread that sleeps on it. A poll that has only sent has not seen
        // what an edge told of before it. What was read unasked has left its event there, for which
        // that thread would wake in vain. And after many bytes there are probably more, which are
        // found here for less than a sleep takes.
        let seen = self.all_seen && self.looked && self.unasked == 0 && self.unasked_bytes < MANY_BYTES;
        if !seen && !self.has_work() {
            self.ask_epoll();
        }
        if self.has_work() || !self.all_seen {
            return Armed::Busy;
        }
        self.to_ask = ASKED;
        Armed::Waiting
    }

    fn has_work(&self) -> bool {
        !self.pending.is_empty()
            || !self.dirty.is_empty()
            || !self.ready.is_empty()
            || self.resolver.has_answers()
            || self.listeners.any_ready()
            || self.shard.has_waiting()
            || self.seen.any()
    }

    #[inline]
    fn take_answers(&mut self) -> bool {
        let any = self.resolver.has_answers();
        if any {
            self.resolver.answers().into_iter().for_each(|answer| self.handle_answer(answer));
        }
        any
    }

    // ---- looking --------------------------------------------------------------------------------

    /// Finds out which sockets may have bytes.
    fn look(&mut self) {
        self.unasked += 1;
        if self.seen.any() {
            self.take_seen();
        } else if self.to_ask > 0 || self.hot.is_empty() || self.blocked > 0 || self.is_long_unasked() {
            self.ask_epoll();
        } else {
            for index in 0..self.hot.len() {
                self.ready.add(self.hot[index]);
            }
        }
    }

    #[inline]
    fn is_long_unasked(&self) -> bool {
        self.unasked >= EPOLL_EVERY || self.unasked_bytes >= UNASKED_BYTES || self.now - self.asked >= UNASKED_TIME
    }

    /// Asks epoll, and handles what it reports.
    fn ask_epoll(&mut self) {
        self.note_asked();
        let mut found = std::mem::take(&mut self.found);
        if let Err(error) = vectored_io::wait(self.epoll(), &mut found, Some(Duration::ZERO)) {
            tracing::error!(%error, "cannot ask for readiness");
        }
        // A call that a signal has ended reports none, and there may be some.
        self.all_seen = found.len() < EPOLL_EVENTS;
        found.iter().for_each(|event| self.handle_event(event));
        self.found = found;
    }

    /// Handles what epoll reported to a thread that slept ([`crate::bed`]).
    fn take_seen(&mut self) {
        self.note_asked();
        let mut found = std::mem::take(&mut self.found);
        self.seen.swap(&mut found);
        self.all_seen = found.len() < EPOLL_EVENTS;
        found.iter().for_each(|event| self.handle_event(event));
        self.found = found;
    }

    fn note_asked(&mut self) {
        self.to_ask = self.to_ask.saturating_sub(1);
        (self.unasked, self.unasked_bytes, self.asked, self.looked) = (0, 0, self.now, true);
    }

    fn handle_event(&mut self, event: &libc::epoll_event) {
        let token = event.u64 as usize;
        let index = token >> super::TOKEN_BITS;
        match token & super::TOKEN_MASK {
            super::TOKEN_CONNECTION => self.handle_readiness(index as u32, event.events as libc::c_int),
            super::TOKEN_STREAM => self.handle_stream_readiness(index, event.events as libc::c_int),
            super::TOKEN_LISTENER => self.listeners.set_ready(index),
            super::TOKEN_LINGERING if self.lingering.get_mut(index).is_some_and(Lingering::drain) => {
                self.lingering.remove(index);
                self.deadlines.refresh();
            }
            _ => {} // a lingering socket that is not at its end, or a waker: being here is all it is for
        }
    }

    /// Notes what a socket is ready for. The event may be of an earlier connection in the slot,
    /// because a sleeper may have seen it long ago. So it says only what to try.
    fn handle_readiness(&mut self, slot: u32, flags: libc::c_int) {
        let Some(connection) = self.slots.at_mut(slot) else { return };
        if let Phase::Dialing { .. } = connection.phase {
            return self.handle_dialed(slot);
        }
        let ended = flags & (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) != 0;
        connection.hangup |= ended;
        if flags & libc::EPOLLOUT != 0 && connection.blocked {
            connection.blocked = false;
            self.blocked -= 1;
            self.dirty.add(slot);
        }
        if ended || flags & libc::EPOLLIN != 0 {
            self.ready.add(slot);
        }
    }

    // ---- receiving ------------------------------------------------------------------------------

    /// Accepts connections and receives from them. Returns whether there were any.
    #[cold]
    fn receive_newcomers(&mut self, events: &mut Vec<Event>, limit: usize, shows: &mut Shows<'_>) -> bool {
        // If the events have reached the limit, some preambles may not have been read.
        let any = events.len() < limit && self.accept_sockets();
        if any {
            self.receive_ready(events, limit, shows);
        }
        any
    }

    fn receive_ready(&mut self, events: &mut Vec<Event>, limit: usize, shows: &mut Shows<'_>) -> bool {
        let mut moved = false;
        let mut turn = self.ready.turn();
        while events.len() < limit
            && let Some(slot) = self.ready.next(&mut turn)
        {
            let Some(connection) = self.slots.at_mut(slot) else { continue };
            moved |= match connection.phase {
                Phase::Dialing { .. } => false,
                Phase::Greeting { .. } | Phase::HalfOpen { .. } | Phase::Requested => {
                    self.receive_greeting(slot, events)
                }
                Phase::Established if connection.streams.is_some() => self.receive_streams(slot, events, limit, shows),
                Phase::Established => self.receive_frames(slot, events, limit, shows),
                Phase::Ending(_) => self.discard(slot),
            };
        }
        moved
    }

    #[inline(always)]
    pub(crate) fn receive_frames(
        &mut self,
        slot: u32,
        events: &mut Vec<Event>,
        limit: usize,
        shows: &mut Shows<'_>,
    ) -> bool {
        let Some(connection) = self.slots.at_mut(slot) else { return false };
        let (Some(line), Some(queues)) = (&mut connection.line, &mut connection.queues) else { return false };
        let (conn, before) = (connection.id, events.len());
        let mut context = Context {
            source: line.source(),
            further: false,
            budget: BYTE_BUDGET,
            hangup: connection.hangup,
            queues,
            exposures: &connection.exposures,
            pieces: &mut self.pieces,
            events,
            limit,
            shows: Some(Shows { receiver: &mut *shows.receiver, before: shows.before }),
        };
        match connection.inbound.receive(&mut context) {
            Ok(received) => {
                let replies = queues.has_uncommitted() || line.has_unsent();
                let moved = received.bytes > 0;
                self.unasked_bytes += received.bytes;
                self.note_activity(slot, moved);
                if received.more {
                    self.ready.add(slot);
                }
                if replies {
                    self.dirty.add(slot);
                }
                moved || events.len() > before
            }
            Err(Fault::Violation(violation)) => {
                self.cut(slot, violation);
                true
            }
            Err(fault) => {
                self.end(slot, conn, fault);
                true
            }
        }
    }

    /// Updates the list of hot sockets.
    #[inline(always)]
    fn note_activity(&mut self, slot: u32, moved: bool) {
        let Some(connection) = self.slots.at_mut(slot) else { return };
        if !moved {
            connection.misses = connection.misses.saturating_add(1);
            if connection.in_hot && connection.misses > MAX_MISSES {
                connection.in_hot = false;
                self.hot.retain(|hot| *hot != slot);
            }
            return;
        }
        connection.misses = 0;
        if connection.in_hot || connection.streams.is_some() {
            return; // further streams are not read unasked
        }
        connection.in_hot = true;
        if self.hot.len() == MAX_HOT {
            let cold = self.hot.remove(0);
            if let Some(connection) = self.slots.at_mut(cold) {
                connection.in_hot = false;
            }
        }
        self.hot.push(slot);
    }

    /// Discards incoming bytes. A connection that is being ended only waits for the peer's end.
    fn discard(&mut self, slot: u32) -> bool {
        let Some(connection) = self.slots.at_mut(slot) else { return false };
        let (id, Some(line)) = (connection.id, &mut connection.line) else { return false };
        let further = connection.streams.as_mut().is_some_and(|streams| streams.discard());
        match connection.inbound.discard(line.source()) {
            Ok((false, more)) => {
                let more = more || further;
                if more {
                    self.ready.add(slot);
                }
                more
            }
            Ok((true, _)) => {
                self.end(slot, id, Fault::Eof);
                true
            }
            Err(fault) => {
                self.end(slot, id, fault);
                true
            }
        }
    }

    // ---- sending --------------------------------------------------------------------------------

    #[inline]
    fn send_dirty(&mut self, events: &mut Vec<Event>, limit: usize) -> bool {
        !self.dirty.is_empty() && self.send_all(events, limit)
    }

    fn send_all(&mut self, events: &mut Vec<Event>, limit: usize) -> bool {
        let mut moved = false;
        let mut turn = self.dirty.turn();
        while events.len() < limit
            && let Some(slot) = self.dirty.next(&mut turn)
        {
            moved |= self.send(slot, events, limit);
        }
        moved
    }

    /// Sends a connection's output, until the kernel takes no more or the budget is used up.
    fn send(&mut self, slot: u32, events: &mut Vec<Event>, limit: usize) -> bool {
        let Some(connection) = self.slots.at_mut(slot) else { return false };
        let id = connection.id;
        let was_blocked = connection.blocked;
        let before = events.len();
        match send_all(connection, &mut self.pieces) {
            Ok(sent) => {
                let reported = connection.queues.as_mut().is_none_or(|queues| queues.complete_sent(events, limit));
                let blocked = connection.blocked;
                // After a passing error, the channel has bytes that the socket has room for.
                let left = !blocked && connection.line.as_ref().is_some_and(Line::has_unsent);
                if blocked && !was_blocked {
                    self.blocked += 1;
                }
                if sent.moved && !connection.unsettled && matches!(connection.phase, Phase::Established) {
                    connection.unsettled = true;
                    self.watch();
                }
                if sent.more || !reported || left {
                    self.dirty.add(slot);
                } else {
                    self.finish_ending(slot, id);
                }
                sent.moved || events.len() > before
            }
            Err(error) => {
                // The peer's last message may still be in the socket. It tells more than this
                // error.
                tracing::debug!(%error, "sending failed; reading what is left");
                // The first stream may have become blocked before another one failed.
                if !was_blocked {
                    connection.blocked = true;
                    self.blocked += 1;
                }
                connection.hangup = true;
                self.ready.add(slot);
                true
            }
        }
    }

    /// Continues the end of a connection, once all its bytes are handed over.
    fn finish_ending(&mut self, slot: u32, id: ConnId) {
        let Some(connection) = self.slots.at_mut(slot) else { return };
        let (Phase::Ending(ending), Some(queues)) = (&mut connection.phase, &connection.queues) else { return };
        let waiting = ending.last.is_some() || queues.wire.backlog() > 0;
        let further = connection.streams.as_ref().is_some_and(|streams| ending.graceful && !streams.have_sent());
        if waiting || further || ending.shut {
            return;
        }
        // The channel ends before the stream. What the kernel does not take now is sent first.
        if let Some(Ok(false)) = connection.line.as_mut().map(Line::close) {
            self.blocked += usize::from(!std::mem::replace(&mut connection.blocked, true));
            return;
        }
        ending.shut = true;
        let graceful = ending.graceful;
        let shut = connection.line.as_ref().map(|line| line.socket.shutdown(std::net::Shutdown::Write));
        if !graceful || !matches!(shut, Some(Ok(()))) {
            self.end(slot, id, Fault::Cancelled);
        }
    }
}
