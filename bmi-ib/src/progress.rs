//! The poll loop: the work of one poll.
//!
//! **Protocol** of one poll:
//!
//! ```text
//!   waiting events -> deadlines -> hand over -> look (epoll, now and then)
//!     -> side channels -> completions -> hand over -> ends
//! ```
//!
//! **Waiting.** One epoll descriptor watches the completion channel, the device's asynchronous
//! events, the side channels and the waker. [`IbTransport::arm`] first arms every completion queue,
//! and only then polls it. A completion that came before is found by polling; one that comes later
//! causes the event. The completions that it finds are kept for the next poll.
//!
//! **Invariants**
//! 1. An idle poll makes no system call, except one look at epoll in [`LOOK_EVERY`] polls. It
//!    allocates nothing.
//! 2. The work of a poll is bounded: a batch of events, and a few messages of each side channel.

use std::io;
use std::task::Waker;
use std::time::Duration;

use bmi_core::transport::{Armed, Event, WorkKind, WorkStatus};
use bmi_core::{ErrorKind, Time};

use crate::IbTransport;
use crate::error::{BAD_ACCESS, Bye, Fault, TOO_LONG, Violation, adapter_failed};
use crate::lifecycle::{Connection, Phase};
use crate::queue_pair::{Flushed, parse_name, tag};
use crate::verbs::{AsyncEvent, Outcome, WorkEnd};

/// Most events that one poll reports.
const BATCH: usize = 256;
/// Polls between two looks at epoll, unless the caller slept on it or a handshake is in progress.
const LOOK_EVERY: u32 = 32;
/// Most messages of a side channel that one poll handles.
const MESSAGES: usize = 16;
/// After the peer was asked something, the number of polls that look at epoll every time.
const ATTENTIVE: u32 = 4096;

impl IbTransport {
    pub(crate) fn poll(&mut self, now: Time, events: &mut Vec<Event>) -> bool {
        self.now = now;
        let before = events.len();
        let limit = before + BATCH;
        self.forget_released();
        if self.pending.is_empty() {
            self.slots.recycle(); // earlier polls have reported every end
        }
        self.expire(now);
        if !self.pending.report_to(events, limit) {
            return true;
        }
        let mut moved = self.hand_over();
        self.look();
        moved |= self.accept_sockets();
        for answer in self.resolver.answers() {
            moved = true;
            self.handle_answer(answer);
        }
        for connected in self.helpers.outcomes() {
            moved = true;
            self.handle_route(connected);
        }
        moved |= self.read_side_channels();
        // The event that a connection is established comes before its first completion.
        self.pending.report_to(events, usize::MAX);
        moved |= self.take_completions(events, limit);
        moved |= self.hand_over();
        moved |= self.finish_ending();
        self.pending.report_to(events, limit);
        self.deadlines.renew(|| {
            let connections = self.slots.iter().filter_map(Connection::deadline);
            connections.chain(self.listeners.deadline()).chain(self.port_down_until)
        });
        moved || events.len() > before
    }

    /// Deregisters the regions that were released.
    pub(crate) fn forget_released(&mut self) {
        let slots = &mut self.slots;
        self.regions.collect(|region, slot| {
            if let Some(queues) = slots.at_mut(slot).and_then(|connection| connection.queues.as_mut()) {
                queues.forget(region);
            }
        });
    }

    // ---- waiting --------------------------------------------------------------------------------

    fn has_work(&self) -> bool {
        !self.pending.is_empty()
            || !self.dirty.is_empty()
            || !self.ready.is_empty()
            || !self.early.is_empty()
            || self.resolver.has_answers()
            || self.helpers.has_outcomes()
            || self.listeners.any_ready()
            || self.shard.has_waiting()
    }

    pub(crate) fn arm(&mut self, _waker: &Waker) -> Armed {
        if self.has_work() {
            return Armed::Busy;
        }
        for index in 0..self.adapter.queues.len() {
            let completions = &mut self.adapter.queues[index];
            if !completions.armed && !self.gone {
                if let Err(error) = completions.queue.arm() {
                    tracing::error!(%error, "cannot ask for a completion event");
                    self.lose_device();
                    return Armed::Busy;
                }
                completions.armed = true;
            }
            self.poll_queue(index);
        }
        let seen = self.ask_epoll();
        if seen > 0 || self.has_work() {
            return Armed::Busy;
        }
        self.slept = true;
        Armed::Waiting
    }

    fn look(&mut self) {
        self.unasked += 1;
        self.attentive = self.attentive.saturating_sub(1);
        if self.slept || self.unsettled || self.attentive > 0 || self.unasked >= LOOK_EVERY {
            self.ask_epoll();
            let settled = |connection: &Connection| matches!(connection.phase, Phase::Established);
            self.unsettled = self.unsettled && !self.slots.iter().all(settled);
        }
    }

    /// Reads the events that epoll has. Returns how many there were.
    fn ask_epoll(&mut self) -> usize {
        (self.slept, self.unasked) = (false, 0);
        if let Err(error) = self.poll.poll(&mut self.epoll_events, Some(Duration::ZERO)) {
            if error.kind() != io::ErrorKind::Interrupted {
                tracing::error!(%error, "cannot ask for readiness");
            }
            return 0;
        }
        let epoll_events = std::mem::replace(&mut self.epoll_events, mio::Events::with_capacity(0));
        let mut count = 0;
        for event in &epoll_events {
            count += 1;
            let index = event.token().0 >> super::TOKEN_BITS;
            match event.token().0 & super::TOKEN_MASK {
                super::TOKEN_CONNECTION => self.handle_readiness(index as u32, event),
                super::TOKEN_LISTENER => self.listeners.set_ready(index),
                super::TOKEN_OTHER if index == super::OTHER_CHANNEL => {
                    self.adapter.channel.drain();
                    self.adapter.queues.iter_mut().for_each(|completions| completions.armed = false);
                }
                super::TOKEN_OTHER if index == super::OTHER_DEVICE => self.take_async_events(),
                _ => {} // the waker: the event alone was needed
            }
        }
        self.epoll_events = epoll_events;
        count
    }

    fn handle_readiness(&mut self, slot: u32, event: &mio::event::Event) {
        let Some(connection) = self.slots.at_mut(slot) else { return };
        if let Phase::Dialing { .. } = connection.phase {
            return self.handle_dialed(slot);
        }
        if let (true, Some(side)) = (event.is_writable(), &mut connection.side) {
            side.push();
        }
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            self.ready.add(slot);
        }
    }

    fn take_async_events(&mut self) {
        let context = self.adapter.context.clone();
        while let Some(event) = context.next_async() {
            tracing::info!(device = context.name(), ?event, "the adapter reports");
            match event {
                AsyncEvent::PortDown(port) if port == self.adapter.port => {
                    let until = self.now + self.config.port_down_grace;
                    self.port_down_until = Some(until);
                    self.deadlines.add(Some(until));
                }
                AsyncEvent::PortUp(port) if port == self.adapter.port => {
                    self.port_down_until = None;
                    self.deadlines.refresh();
                    self.adapter.refresh();
                }
                AsyncEvent::Addresses(port) if port == self.adapter.port => self.adapter.refresh(),
                AsyncEvent::QueuePair { number, access } => self.handle_failed_queue_pair(number, access),
                AsyncEvent::Fatal | AsyncEvent::Overrun => self.lose_device(),
                AsyncEvent::PortDown(_) | AsyncEvent::PortUp(_) | AsyncEvent::Addresses(_) | AsyncEvent::Other => {}
            }
        }
    }

    /// Handles a device that is gone or unusable. It reports nothing any more, so connections end
    /// at the time limit of their drain, and the device is not asked again.
    fn lose_device(&mut self) {
        if !std::mem::replace(&mut self.gone, true) {
            let name = self.adapter.context.name().to_owned();
            self.end_all(|| Fault::other(ErrorKind::Io, format!("the adapter {name} is gone")));
        }
    }

    fn handle_failed_queue_pair(&mut self, number: u32, access: bool) {
        let owner =
            |connection: &&Connection| connection.queues.as_ref().is_some_and(|queues| queues.verbs.number() == number);
        let Some(id) = self.slots.iter().find(owner).map(|connection| connection.id) else { return };
        let fault = if access { BAD_ACCESS.into() } else { Fault::Unexplained };
        self.end(id.slot, id, fault);
    }

    // ---- side channels --------------------------------------------------------------------------

    fn read_side_channels(&mut self) -> bool {
        let mut moved = false;
        let mut turn = self.ready.turn();
        while let Some(slot) = self.ready.next(&mut turn) {
            moved |= self.read_side_channel(slot);
        }
        moved
    }

    fn read_side_channel(&mut self, slot: u32) -> bool {
        let mut moved = false;
        for _ in 0..MESSAGES {
            let Some(connection) = self.slots.at_mut(slot) else { return moved };
            let (id, Some(side)) = (connection.id, &mut connection.side) else { return moved };
            let handled = match side.receive() {
                Ok(None) => return moved,
                Ok(Some((message, private))) => self.handle_message(slot, message, private),
                Err(fault) => Err(fault),
            };
            moved = true;
            if let Err(fault) = handled {
                self.handle_side_fault(slot, id, fault);
                return true;
            }
        }
        self.ready.add(slot);
        true
    }

    fn handle_side_fault(&mut self, slot: u32, id: bmi_core::transport::ConnId, fault: Fault) {
        let Some(connection) = self.slots.find_mut(id) else { return };
        if let Phase::Draining { fault: why, .. } = &mut connection.phase {
            // Nothing more will come from it.
            connection.side = None;
            if matches!(why, Fault::Unexplained) {
                *why = fault;
            }
            return;
        }
        self.end(slot, id, fault);
    }

    // ---- handing over ---------------------------------------------------------------------------

    fn hand_over(&mut self) -> bool {
        let mut moved = false;
        let mut turn = self.dirty.turn();
        while let Some(slot) = self.dirty.next(&mut turn) {
            let Some(connection) = self.slots.at_mut(slot) else { continue };
            if let Some(queues) = &mut connection.queues {
                queues.begin_poll();
                moved |= queues.has_waiting();
            }
            self.flush_posts(slot);
        }
        moved
    }

    /// Hands over a connection's requests.
    pub(crate) fn flush_posts(&mut self, slot: u32) {
        let Some(connection) = self.slots.at_mut(slot) else { return };
        let id = connection.id;
        let Some(queues) = &mut connection.queues else { return };
        if !matches!(connection.phase, Phase::Established | Phase::Closing { .. }) {
            return;
        }
        let result = match queues.flush(&mut self.chain) {
            Ok(Flushed::Done) => Ok(()),
            Ok(Flushed::Ask(question)) => {
                self.attentive = ATTENTIVE;
                connection.say(question, &[])
            }
            Err(error) => {
                self.chain.clear();
                Err(adapter_failed(error))
            }
        };
        if let Err(fault) = result {
            self.end(slot, id, fault);
        }
    }

    // ---- completions ----------------------------------------------------------------------------

    /// Takes a batch from a completion queue into `early`. Returns whether the queue may have more.
    fn poll_queue(&mut self, index: usize) -> bool {
        let mut ends = std::mem::take(&mut self.ends);
        let taken = match self.adapter.queues[index].queue.poll(&mut ends) {
            Ok(taken) => taken,
            Err(error) => {
                if !self.gone {
                    tracing::error!(%error, "the completion queue is broken");
                    self.lose_device();
                }
                0
            }
        };
        self.early.extend(ends[..taken].iter().copied());
        let full = taken == ends.len();
        self.ends = ends;
        full
    }

    fn take_completions(&mut self, events: &mut Vec<Event>, limit: usize) -> bool {
        let mut moved = false;
        for index in 0..self.adapter.queues.len() {
            loop {
                let more = self.poll_queue(index);
                while events.len() < limit
                    && let Some(end) = self.early.pop_front()
                {
                    moved = true;
                    self.handle_completion(&end, events);
                }
                if !more || events.len() >= limit {
                    break;
                }
            }
        }
        moved
    }

    fn handle_completion(&mut self, end: &WorkEnd, events: &mut Vec<Event>) {
        let (slot, name, is_recv, number) = parse_name(end.id());
        let Some(connection) = self.slots.at_mut(slot).filter(|connection| tag(connection.id) == name) else { return };
        let id = connection.id;
        let ok = end.outcome() == Outcome::Ok;
        if let (true, true, Phase::Accepted { .. }) = (ok, is_recv, &connection.phase) {
            // The peer sends, so it is ready; its READY message is still in flight.
            self.establish(slot);
            self.pending.report_to(events, usize::MAX);
        }
        let Some(connection) = self.slots.at_mut(slot) else { return };
        let Some(queues) = &mut connection.queues else { return };
        let early = matches!(connection.phase, Phase::Routing { .. });
        let fault = if early {
            // Nothing was sent yet, and an honest peer sends nothing before this side is ready.
            if is_recv {
                queues.complete_recv(WorkStatus::Flushed, 0, None, events);
            }
            Some(Violation::Order.into())
        } else if is_recv {
            let immediate = if ok { end.immediate() } else { None };
            let len = if ok && immediate.is_none() { u64::from(end.byte_len()) } else { 0 };
            let (status, fault) = received(end.outcome());
            queues.complete_recv(status, len, immediate, events);
            fault
        } else {
            let kind = queues.complete_send(number, |kind| sent(end.outcome(), kind).0, events);
            let more = queues.has_waiting();
            let fault = kind.and_then(|kind| sent(end.outcome(), kind).1);
            if more {
                self.dirty.add(slot);
            }
            fault
        };
        if let Some(fault) = fault {
            self.end(slot, id, fault);
        }
    }
}

/// Translates the outcome of a receive.
fn received(outcome: Outcome) -> (WorkStatus, Option<Fault>) {
    match outcome {
        Outcome::Ok => (WorkStatus::Ok, None),
        Outcome::Flushed => (WorkStatus::Flushed, Some(Fault::Unexplained)),
        // The memory of a receive is registered, so the only possible error is that it is too
        // short. Soft-RoCE reports that as `LocalOperation`.
        Outcome::Length | Outcome::LocalOperation => (WorkStatus::TooLong, Some(TOO_LONG.into())),
        other => (WorkStatus::Failed, Some(adapter_failed(format_args!("{other:?}")))),
    }
}

/// Translates the outcome of any other request.
fn sent(outcome: Outcome, kind: WorkKind) -> (WorkStatus, Option<Fault>) {
    match (outcome, kind) {
        (Outcome::Ok, _) => (WorkStatus::Ok, None),
        (Outcome::Flushed, _) => (WorkStatus::Flushed, Some(Fault::Unexplained)),
        (Outcome::RemoteAccess, _) => (WorkStatus::RemoteAccess, Some(Fault::Refused(Bye::RemoteAccess))),
        (Outcome::NotReady, _) => (WorkStatus::ReceiverNotReady, Some(Fault::Refused(Bye::NotReady))),
        (Outcome::RemoteInvalid | Outcome::RemoteOperation, WorkKind::Send) => {
            (WorkStatus::TooLong, Some(Fault::Refused(Bye::TooLong)))
        }
        (Outcome::NoAnswer, _) => {
            (WorkStatus::Failed, Some(Fault::other(ErrorKind::PeerLost, "the peer's adapter does not answer")))
        }
        (other, _) => (WorkStatus::Failed, Some(adapter_failed(format_args!("{other:?}")))),
    }
}
