//! A wrapper around any transport that injects faults, by a seeded plan.
//!
//! **Why.** A healthy backend seldom shows a full queue, a late event or a failed registration, and
//! never at every place in the protocol. The wrapper does, in the same way each time for the same
//! seed. Its faults are of two kinds, and both keep the contract:
//!
//! | kind | faults | effect |
//! |---|---|---|
//! | mild | full queues, events held back for some polls, short batches, | none: the whole suite must pass |
//! | | messages shown to a receiver or not | |
//! | rough | registrations refused, connections cut | operations fail: each must end, nothing may leak |
//!
//! **Invariants**
//! 1. Events keep their order, across connections too.
//! 2. While an event is held back, or a queue has just reported that it is full, `poll` returns
//!    true and `arm` returns `Busy`. So no caller sleeps while the wrapper holds something for it.
//! 3. A message is shown to a receiver only when all earlier messages and events of its connection
//!    have been let through by earlier polls, or taken (C16).
//! 4. A receive within `recv_queue_depth` is never refused: the depth is a promise (see
//!    [`Plan::queue_full`]).

mod inline_receive;
mod names;
mod plan;

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Deref;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use bmi_core::mem::{RemotePages, RemoteView};
use bmi_core::transport::{
    Armed, BulkWay, ConnId, Event, IdleMemory, InlineReceiver, Payload, PostError, WorkCompletion, WorkId, WorkKind,
    WorkOptions, WorkStatus, WriteTarget,
};
use bmi_core::{
    Access, Addr, AnyTransport, Capabilities, Clock, Error, ErrorKind, MemSlice, Memory, MemoryRegion, PeerIdentity,
    RemoteKey, RemoteSlice, Segment, Time, Transport, forward_transport,
};

pub use plan::Plan;

use inline_receive::{Receives, Through};
use names::Names;

use crate::backend::Backend;
use crate::rig::conn_of;
use crate::rng::Rng;

/// A transport that injects faults (see the [module](self)).
pub struct Faulty {
    inner: AnyTransport,
    plan: Plan,
    rng: Rng,
    /// Events that the inner transport reported and the caller has not seen yet, in order.
    held: VecDeque<Event>,
    /// Number of polls until the first of them is let through.
    delay: u32,
    /// Set when a queue reported that it is full since the last poll.
    said_full: bool,
    /// Established connections that the caller knows and that may be cut.
    live: Vec<ConnId>,
    names: Names,
    receives: Receives,
    /// Connections for which this poll has reported an event.
    reported: Vec<ConnId>,
    /// The bytes of the message that is being shown.
    shown: Vec<u8>,
    scratch: Vec<Event>,
}

impl Faulty {
    /// Wraps `inner`. `name` makes the faults of several adapters under one seed differ.
    pub fn new(inner: AnyTransport, plan: Plan, name: &str) -> Faulty {
        let rng = Rng::named(plan.seed, name);
        Faulty {
            inner,
            plan,
            rng,
            held: VecDeque::new(),
            delay: 0,
            said_full: false,
            live: Vec::new(),
            names: Names::default(),
            receives: Receives::default(),
            reported: Vec::new(),
            shown: Vec::new(),
            scratch: Vec::new(),
        }
    }

    fn is_full(&mut self) -> Result<(), PostError> {
        if self.rng.chance(self.plan.queue_full) {
            self.said_full = true;
            return Err(PostError::QueueFull);
        }
        Ok(())
    }

    /// Cuts one connection, if the plan says so.
    fn cut(&mut self) {
        if !self.live.is_empty() && self.rng.chance(self.plan.cut) {
            let victim = self.live.swap_remove(self.rng.index(self.live.len()));
            self.inner.disconnect(self.names.inward(victim), Time::ZERO);
        }
    }

    /// Lets events through, as many as the plan allows. The receiver may take messages among them.
    fn let_through(&mut self, events: &mut Vec<Event>, mut receiver: Option<&mut dyn InlineReceiver>) {
        if self.delay > 0 {
            self.delay -= 1;
            return;
        }
        let batch = match self.plan.batch {
            0 => self.held.len(),
            most => 1 + self.rng.index(most),
        };
        self.reported.clear();
        for _ in 0..batch {
            let Some(event) = self.held.pop_front() else { break };
            if let Some(receiver) = receiver.as_deref_mut()
                && self.is_taken(&event, receiver)
            {
                continue;
            }
            match &event {
                Event::Work(done) if done.kind == WorkKind::Recv => {
                    self.receives.completed(done.conn, done.work);
                }
                Event::Established { conn, .. } => self.live.push(*conn),
                Event::Disconnected { conn, .. } | Event::Rejected { conn, .. } => {
                    self.live.retain(|other| other != conn);
                    self.names.end(*conn);
                    self.receives.ended(*conn);
                }
                _ => {}
            }
            self.reported.push(conn_of(&event));
            events.push(event);
        }
        if !self.held.is_empty() && self.rng.chance(self.plan.late) {
            self.delay = 1 + self.rng.below(self.plan.late_polls.into()) as u32;
        }
    }

    /// Shows a message that has arrived in a receive, if the plan says so. Posts the receive again
    /// if the message was taken.
    fn is_taken(&mut self, event: &Event, receiver: &mut dyn InlineReceiver) -> bool {
        let Some(&WorkCompletion { conn, work, len, .. }) = inline_receive::message(event) else { return false };
        let within = self.receives.count(conn) <= self.inner.capabilities().recv_queue_depth;
        let may = within && !self.reported.contains(&conn) && self.rng.chance(self.plan.inline);
        if !may
            || !self.receives.read(conn, work, len, &mut self.shown)
            || !inline_receive::show(receiver, conn, &mut self.shown)
        {
            return false;
        }
        let segments = self.receives.completed(conn, work).expect("it was read a moment ago");
        self.receives.posted(conn, work, &segments);
        if self.inner.post_recv(self.names.inward(conn), work, &segments).is_err() {
            self.flush(conn, work);
        }
        true
    }

    /// Flushes a receive that could not be posted again: its connection has ended, or is about to.
    fn flush(&mut self, conn: ConnId, work: WorkId) {
        let (kind, status) = (WorkKind::Recv, WorkStatus::Flushed);
        let flushed = WorkCompletion { conn, work, kind, status, len: 0, immediate: None };
        let ends = |event: &Event| matches!(event, Event::Disconnected { conn: ended, .. } if *ended == conn);
        let at = self.held.iter().position(ends).unwrap_or(self.held.len());
        self.held.insert(at, Event::Work(flushed));
    }

    fn poll_with(&mut self, now: Time, events: &mut Vec<Event>, mut receiver: Option<&mut dyn InlineReceiver>) -> bool {
        self.cut();
        let busy = match &mut receiver {
            Some(receiver) => {
                let (names, held, rng, chance) = (&mut self.names, &self.held, &mut self.rng, self.plan.inline);
                let mut through = Through { receiver: &mut **receiver, names, held, rng, chance, busy: false };
                self.inner.poll_inline(now, &mut self.scratch, &mut through) | through.busy
            }
            None => self.inner.poll(now, &mut self.scratch),
        };
        if self.held.is_empty() && !self.scratch.is_empty() && self.rng.chance(self.plan.late) {
            self.delay = 1 + self.rng.below(self.plan.late_polls.into()) as u32;
        }
        for mut event in self.scratch.drain(..) {
            let conn = conn_of_mut(&mut event);
            *conn = self.names.outward(*conn);
            self.held.push_back(event);
        }
        let waiting = !self.held.is_empty() || self.said_full;
        self.said_full = false;
        self.let_through(events, receiver);
        busy || waiting
    }
}

#[deny(clippy::missing_trait_methods)]
impl Transport for Faulty {
    forward_transport!(self => self.inner;
        capabilities, listen, retired_memory, charge, spread, next_deadline, event_fd, bed, waker);

    fn connect(&mut self, addr: &Addr, private: &[u8], deadline: Time) -> Result<ConnId, Error> {
        let conn = self.inner.connect(addr, private, deadline)?;
        Ok(self.names.outward(conn))
    }

    fn accept(&mut self, conn: ConnId, private: &[u8]) -> Result<(), Error> {
        self.inner.accept(self.names.inward(conn), private)
    }

    fn reject(&mut self, conn: ConnId, private: &[u8]) {
        self.inner.reject(self.names.inward(conn), private);
    }

    fn disconnect(&mut self, conn: ConnId, deadline: Time) {
        self.inner.disconnect(self.names.inward(conn), deadline);
    }

    fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error> {
        if self.rng.chance(self.plan.register) {
            return Err(Error::new(ErrorKind::Exhausted, "registrations are refused at random by the plan of faults"));
        }
        self.inner.register(memory)
    }

    fn expose(&mut self, conn: ConnId, segment: &Segment, access: Access) -> Result<RemoteSlice, Error> {
        if self.rng.chance(self.plan.register) {
            return Err(Error::new(ErrorKind::Exhausted, "exposures are refused at random by the plan of faults"));
        }
        self.inner.expose(self.names.inward(conn), segment, access)
    }

    fn revoke(&mut self, conn: ConnId, key: RemoteKey) {
        self.inner.revoke(self.names.inward(conn), key);
    }

    /// Returns nothing, because events that are made late belong to receives that were consumed.
    fn release_idle(&mut self, _: ConnId) -> IdleMemory {
        IdleMemory::Nothing
    }

    fn post_recv(&mut self, conn: ConnId, work: WorkId, segments: &[Segment]) -> Result<(), PostError> {
        self.inner.post_recv(self.names.inward(conn), work, segments)?;
        self.receives.posted(conn, work, segments);
        Ok(())
    }

    /// Posts it in order, because the receives that were posted are repeated in order.
    fn post_alike(&mut self, conn: ConnId, work: WorkId, segments: &[Segment]) -> Result<(), PostError> {
        self.post_recv(conn, work, segments)
    }

    fn post_send(
        &mut self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        payload: Payload<'_>,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        self.is_full()?;
        self.inner.post_send(self.names.inward(conn), work, head, payload, options)
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
        self.is_full()?;
        self.inner.post_write(self.names.inward(conn), work, head, segments, target, options)
    }

    fn post_read(
        &mut self,
        conn: ConnId,
        work: WorkId,
        segments: &[Segment],
        remote: RemoteSlice,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        self.is_full()?;
        self.inner.post_read(self.names.inward(conn), work, segments, remote, options)
    }

    // These operations queue nothing, so they report no full queue: they return false, and the
    // caller posts instead.
    fn write_now(&mut self, conn: ConnId, from: &[MemSlice], remote: RemoteSlice) -> bool {
        !self.rng.chance(self.plan.queue_full) && self.inner.write_now(self.names.inward(conn), from, remote)
    }

    fn read_now(&mut self, conn: ConnId, into: &[MemSlice], remote: RemoteSlice) -> bool {
        !self.rng.chance(self.plan.queue_full) && self.inner.read_now(self.names.inward(conn), into, remote)
    }

    fn bulk_ways(&mut self, conn: ConnId) -> Vec<BulkWay> {
        self.inner.bulk_ways(self.names.inward(conn))
    }

    fn moved_bytes(&self, conn: ConnId) -> u64 {
        self.inner.moved_bytes(self.names.inward(conn))
    }

    fn map_remote(&mut self, conn: ConnId, remote: RemoteSlice, access: Access) -> Option<RemotePages> {
        self.inner.map_remote(self.names.inward(conn), remote, access)
    }

    fn view_remote(&mut self, conn: ConnId, remote: RemoteSlice) -> Option<RemoteView> {
        self.inner.view_remote(self.names.inward(conn), remote)
    }

    fn poll(&mut self, now: Time, events: &mut Vec<Event>) -> bool {
        self.poll_with(now, events, None)
    }

    fn poll_inline(&mut self, now: Time, events: &mut Vec<Event>, receiver: &mut dyn InlineReceiver) -> bool {
        self.poll_with(now, events, Some(receiver))
    }

    fn flush(&mut self, now: Time, events: &mut Vec<Event>) -> bool {
        self.poll(now, events)
    }

    fn arm(&mut self, waker: &Waker) -> Armed {
        if !self.held.is_empty() || self.said_full {
            return Armed::Busy;
        }
        self.inner.arm(waker)
    }
}

/// Returns the connection's name in an event.
fn conn_of_mut(event: &mut Event) -> &mut ConnId {
    match event {
        Event::Work(completion) => &mut completion.conn,
        Event::ConnectRequest { conn, .. }
        | Event::Established { conn, .. }
        | Event::Rejected { conn, .. }
        | Event::Disconnected { conn, .. } => conn,
    }
}

/// A backend whose adapters are all [`Faulty`].
pub struct FaultyBackend<K> {
    inner: K,
    plan: Plan,
    /// Number of adapters made so far. Each has its own sequence of faults.
    made: Cell<u64>,
}

impl<K: Deref<Target: Backend>> FaultyBackend<K> {
    /// Wraps a backend, in a box or by reference.
    pub fn new(inner: K, plan: Plan) -> FaultyBackend<K> {
        FaultyBackend { inner, plan, made: Cell::new(0) }
    }

    fn wrap(&self, inner: AnyTransport, node: &str) -> AnyTransport {
        let number = self.made.get();
        self.made.set(number + 1);
        let plan = Plan { seed: self.plan.seed.wrapping_mul(0x1_0000).wrapping_add(number), ..self.plan.clone() };
        Box::new(Faulty::new(inner, plan, node))
    }
}

impl<K: Deref<Target: Backend>> Backend for FaultyBackend<K> {
    fn name(&self) -> String {
        format!("{} with faults ({:?})", self.inner.name(), self.plan)
    }

    fn expected_capabilities(&self) -> Capabilities {
        self.inner.expected_capabilities()
    }

    fn has_inline_receives(&self) -> bool {
        self.plan.inline > 0
    }

    fn identity(&self, node: &str) -> PeerIdentity {
        self.inner.identity(node)
    }

    fn has_shards(&self) -> bool {
        self.inner.has_shards()
    }

    fn transport(&self, node: &str) -> AnyTransport {
        self.wrap(self.inner.transport(node), node)
    }

    fn shards(&self, node: &str, count: usize) -> Vec<AnyTransport> {
        self.inner.shards(node, count).into_iter().map(|inner| self.wrap(inner, node)).collect()
    }

    fn listen_addr(&self, node: &str) -> Addr {
        self.inner.listen_addr(node)
    }

    fn vacant_addr(&self, node: &str) -> Addr {
        self.inner.vacant_addr(node)
    }

    fn clock(&self) -> Rc<dyn Clock> {
        self.inner.clock()
    }

    fn pass(&self, until: Option<Time>) {
        self.inner.pass(until);
    }

    fn patience(&self) -> Duration {
        self.inner.patience()
    }

    fn property_cases(&self) -> u32 {
        self.inner.property_cases().div_ceil(2)
    }
}
