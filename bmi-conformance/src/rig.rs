//! The step loop of the transport level: a few adapters, polled in turn, and the events that each
//! reported.
//!
//! **Why.** The contract defines what an adapter reports and when memory is touched. So its tests
//! see every event, in order, and decide when each adapter is polled. Nothing here sleeps. Waiting
//! is a loop that polls, lets time pass, and fails by name when the backend's patience is over.

use std::collections::VecDeque;

use bmi_core::transport::{
    ConnId, Event, InlineReceiver, Payload, PostError, WorkCompletion, WorkId, WorkKind, WorkOptions, WorkStatus,
    WriteTarget,
};
use bmi_core::{Access, Addr, AnyTransport, Error, Memory, MemoryRegion, RemoteSlice, Segment, Time, Transport};

use crate::backend::Backend;

/// The first adapter, by convention the one that connects.
pub const A: usize = 0;
/// The second adapter, by convention the one that listens.
pub const B: usize = 1;
/// The third adapter.
pub const C: usize = 2;

/// Turns without an event after which a queue that reports full is considered full for good.
const RETRIES: usize = 64;

/// An adapter and the events that it reported.
struct Side {
    node: &'static str,
    transport: Option<AnyTransport>,
    paused: bool,
    receiver: Option<Box<dyn InlineReceiver>>,
    events: VecDeque<Event>,
}

impl Side {
    fn new(node: &'static str, transport: AnyTransport) -> Side {
        Side { node, transport: Some(transport), paused: false, receiver: None, events: VecDeque::new() }
    }

    /// Polls the adapter once. Returns `None` if it was dropped.
    fn poll(&mut self, now: Time, scratch: &mut Vec<Event>) -> Option<bool> {
        let transport = self.transport.as_mut()?;
        let busy = match &mut self.receiver {
            Some(receiver) => transport.poll_inline(now, scratch, &mut **receiver),
            None => transport.poll(now, scratch),
        };
        self.events.extend(scratch.drain(..));
        Some(busy)
    }

    /// Takes out the first unread event for which `wanted` returns true.
    fn take(&mut self, wanted: impl FnMut(&Event) -> bool) -> Option<Event> {
        let at = self.events.iter().position(wanted)?;
        self.events.remove(at)
    }
}

/// A few adapters of one backend.
pub struct Rig<'b> {
    backend: &'b dyn Backend,
    sides: Vec<Side>,
    scratch: Vec<Event>,
    turns: u64,
}

/// The two names of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// The name at the connecting side.
    pub near: ConnId,
    /// The name at the accepting side.
    pub far: ConnId,
}

impl<'b> Rig<'b> {
    /// Creates an adapter for each of the nodes `a`, `b` and `c`.
    pub fn new(backend: &'b dyn Backend) -> Rig<'b> {
        let sides = ["a", "b", "c"].map(|node| Side::new(node, backend.transport(node)));
        Rig { backend, sides: sides.into(), scratch: Vec::new(), turns: 0 }
    }

    /// Creates an adapter for the node `a`, and `count` adapters for the node `b` that share their
    /// listening addresses. These are the sides from 1 on.
    pub fn with_shards(backend: &'b dyn Backend, count: usize) -> Rig<'b> {
        let mut sides = vec![Side::new("a", backend.transport("a"))];
        sides.extend(backend.shards("b", count).into_iter().map(|member| Side::new("b", member)));
        assert_eq!(sides.len(), 1 + count, "the members of the group");
        Rig { backend, sides, scratch: Vec::new(), turns: 0 }
    }

    /// Returns the adapter of a side.
    pub fn adapter(&mut self, side: usize) -> &mut AnyTransport {
        self.sides[side].transport.as_mut().expect("the adapter was not dropped")
    }

    /// Drops the adapter of a side, as when its process dies.
    pub fn drop_adapter(&mut self, side: usize) {
        self.sides[side].transport = None;
    }

    /// Stops or resumes polling the adapter of a side.
    pub fn pause(&mut self, side: usize, paused: bool) {
        self.sides[side].paused = paused;
    }

    /// Returns the current time.
    pub fn now(&self) -> Time {
        self.backend.now()
    }

    /// Returns a deadline that only a failing test reaches.
    pub fn far_off(&self) -> Time {
        self.now() + self.backend.patience()
    }

    /// Polls every adapter once. Lets time pass if no adapter had anything to do.
    pub fn turn(&mut self) {
        let now = self.backend.now();
        let mut busy = false;
        let mut until: Option<Time> = None;
        for side in &mut self.sides {
            if side.paused {
                continue;
            }
            busy |= side.poll(now, &mut self.scratch).unwrap_or(false);
            let deadline = side.transport.as_ref().and_then(Transport::next_deadline);
            until = [until, deadline].into_iter().flatten().min();
        }
        self.turns += 1;
        // An adapter that always claims to be busy must not stop the clock.
        if !busy || self.turns.is_multiple_of(64) {
            self.backend.pass(until);
        }
    }

    /// Polls one adapter once, paused or not. Returns whether it had anything to do.
    pub fn poll_once(&mut self, side: usize) -> bool {
        let now = self.backend.now();
        self.sides[side].poll(now, &mut self.scratch).expect("the adapter was not dropped")
    }

    /// Sets the receiver (C16) with which the adapter of a side is polled from now on. Taken
    /// messages and reported events are in order if the test reads all events after each turn.
    pub fn set_inline_receiver(&mut self, side: usize, receiver: impl InlineReceiver + 'static) {
        self.sides[side].receiver = Some(Box::new(receiver));
    }

    /// Turns until `found` returns a value.
    ///
    /// # Panics
    /// When the patience is over, naming `what` and all unread events.
    pub fn wait<R>(&mut self, what: &str, mut found: impl FnMut(&mut Self) -> Option<R>) -> R {
        let give_up = self.far_off();
        loop {
            if let Some(result) = found(self) {
                return result;
            }
            if self.now() >= give_up {
                let events: Vec<_> = self.sides.iter().map(|side| (side.node, &side.events)).collect();
                panic!("waited for {:?} in vain for: {what}; unread events: {events:?}", self.backend.patience());
            }
            self.turn();
        }
    }

    /// Returns the next event of a side.
    pub fn next(&mut self, side: usize, what: &str) -> Event {
        self.wait(what, |rig| rig.sides[side].events.pop_front())
    }

    /// Returns the next event of a side that concerns this connection. Other events stay in the
    /// queue.
    pub fn next_of(&mut self, side: usize, conn: ConnId, what: &str) -> Event {
        self.wait(what, |rig| rig.sides[side].take(|event| conn_of(event) == conn))
    }

    /// Returns the events that a side has reported and the test has not read.
    pub fn unread(&self, side: usize) -> &VecDeque<Event> {
        &self.sides[side].events
    }

    /// Takes out the oldest unread event of a side.
    pub fn take_unread(&mut self, side: usize) -> Option<Event> {
        self.sides[side].events.pop_front()
    }

    /// Returns the next event of the connection, which must be a completion.
    pub fn completion(&mut self, side: usize, conn: ConnId, what: &str) -> WorkCompletion {
        match self.next_of(side, conn, what) {
            Event::Work(completion) => completion,
            other => panic!("{what}: expected a completion, got {other:?}"),
        }
    }

    /// Returns the next event of the connection, which must be the success of this request.
    pub fn done(&mut self, side: usize, conn: ConnId, work: u64, kind: WorkKind, what: &str) -> WorkCompletion {
        let completion = self.completion(side, conn, what);
        assert_eq!(
            (completion.work, completion.kind, completion.status),
            (WorkId(work), kind, WorkStatus::Ok),
            "{what}: {completion:?}"
        );
        completion
    }

    /// Returns everything that a connection still reports, until its end: completions, then the
    /// reason.
    pub fn end_of(&mut self, side: usize, conn: ConnId, what: &str) -> (Vec<WorkCompletion>, Error) {
        let mut completions = Vec::new();
        loop {
            match self.next_of(side, conn, what) {
                Event::Work(completion) => completions.push(completion),
                Event::Disconnected { reason, .. } => return (completions, reason),
                Event::Established { .. } => {}
                other => panic!("{what}: {other:?}"),
            }
        }
    }

    /// Checks that a side reports nothing more about a connection that ended. A ping over another
    /// connection shows that it had time to.
    pub fn nothing_more(&mut self, side: usize, conn: ConnId, what: &str) {
        let other = (0..self.sides.len()).find(|s| *s != side && self.sides[*s].transport.is_some());
        let other = other.expect("a rig has three sides");
        let link = self.link(side, other);
        self.ping(side, other, link, what);
        let more: Vec<_> = self.sides[side].events.iter().filter(|event| conn_of(event) == conn).collect();
        assert!(more.is_empty(), "{what}: after its end the connection reported {more:?}");
        self.adapter(side).disconnect(link.near, Time::ZERO);
        self.end_of(side, link.near, "end of the connection for proof");
        self.end_of(other, link.far, "end of the connection for proof");
    }

    // ---- connections ----------------------------------------------------------------------------

    /// Lets a side listen at a free address.
    pub fn listen(&mut self, side: usize) -> Addr {
        let addr = self.backend.listen_addr(self.sides[side].node);
        self.adapter(side).listen(&addr).expect("listen at a free address")
    }

    /// Returns an address of the side's node without a listener.
    pub fn vacant(&self, side: usize) -> Addr {
        self.backend.vacant_addr(self.sides[side].node)
    }

    /// Connects `from` to `to`. Both sides are then established.
    pub fn link(&mut self, from: usize, to: usize) -> Link {
        let addr = self.listen(to);
        self.link_at(from, to, &addr)
    }

    /// Works as [`Rig::link`], at an address where `to` already listens.
    pub fn link_at(&mut self, from: usize, to: usize, addr: &Addr) -> Link {
        let deadline = self.far_off();
        let near = self.adapter(from).connect(addr, b"near", deadline).expect("connect");
        let far = self.request(to, "a connection request");
        self.adapter(to).accept(far, b"far").expect("accept");
        for (side, conn) in [(from, near), (to, far)] {
            match self.next_of(side, conn, "both sides established") {
                Event::Established { .. } => {}
                other => panic!("expected Established, got {other:?}"),
            }
        }
        Link { near, far }
    }

    /// Returns the next connection request at a side.
    pub fn request(&mut self, side: usize, what: &str) -> ConnId {
        let asks = |event: &Event| matches!(event, Event::ConnectRequest { .. });
        self.wait(what, |rig| rig.sides[side].take(asks).map(|event| conn_of(&event)))
    }

    /// Takes out the first unread connection request of a side that has this private data.
    pub fn take_request(&mut self, side: usize, wanted: &[u8]) -> Option<ConnId> {
        let is_wanted = |event: &Event| matches!(event, Event::ConnectRequest { private, .. } if **private == *wanted);
        self.sides[side].take(is_wanted).map(|event| conn_of(&event))
    }

    /// Sends one message each way. Everything that was in flight before has then arrived, and the
    /// connection works.
    pub fn ping(&mut self, from: usize, to: usize, link: Link, what: &str) {
        const PING: u64 = u64::MAX;
        let near = self.sides[from].events.len();
        for (side, other, conn, peer) in [(from, to, link.near, link.far), (to, from, link.far, link.near)] {
            let region = self.register(other, &crate::data::memory(8));
            self.recv(other, peer, PING, &[region.segment(0, 8)]).expect("post a receive for a ping");
            self.send(side, conn, PING, b"ping", Payload::EMPTY, WorkOptions::SIGNALLED).expect("post a ping");
            let arrived = self.wait(what, |rig| rig.take_work(other, peer, WorkKind::Recv, PING));
            assert_eq!((arrived.status, arrived.len), (WorkStatus::Ok, 4), "{what}: ping: {arrived:?}");
            let sent = self.wait(what, |rig| rig.take_work(side, conn, WorkKind::Send, PING));
            assert_eq!(sent.status, WorkStatus::Ok, "{what}: ping: {sent:?}");
        }
        debug_assert!(self.sides[from].events.len() >= near);
    }

    fn take_work(&mut self, side: usize, conn: ConnId, kind: WorkKind, work: u64) -> Option<WorkCompletion> {
        let is_wanted = |event: &Event| matches!(event, Event::Work(c) if c.conn == conn && c.kind == kind && c.work == WorkId(work));
        match self.sides[side].take(is_wanted) {
            Some(Event::Work(completion)) => Some(completion),
            _ => None,
        }
    }

    // ---- memory ---------------------------------------------------------------------------------

    /// Registers memory.
    pub fn register(&mut self, side: usize, memory: &Memory) -> MemoryRegion {
        self.adapter(side).register(memory).expect("register")
    }

    /// Exposes a whole memory. Also returns the region, because the test decides when to drop it.
    pub fn expose(
        &mut self,
        side: usize,
        conn: ConnId,
        memory: &Memory,
        access: Access,
    ) -> (MemoryRegion, RemoteSlice) {
        let region = self.register(side, memory);
        let segment = region.segment(0, memory.len());
        let slice = self.adapter(side).expose(conn, &segment, access).expect("expose");
        (region, slice)
    }

    // ---- posting, repeated while the queue is full ----------------------------------------------

    fn retry(
        &mut self,
        mut post: impl FnMut(&mut AnyTransport) -> Result<(), PostError>,
        side: usize,
    ) -> Result<(), PostError> {
        let give_up = self.far_off();
        loop {
            match post(self.adapter(side)) {
                Err(PostError::QueueFull) if self.now() < give_up => self.turn(),
                result => return result,
            }
        }
    }

    /// Posts a send.
    ///
    /// # Errors
    /// The adapter's error, except `QueueFull`, after which the post is repeated.
    pub fn send(
        &mut self,
        side: usize,
        conn: ConnId,
        work: u64,
        head: &[u8],
        payload: Payload<'_>,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        self.retry(|t| t.post_send(conn, WorkId(work), head, payload, options), side)
    }

    /// Posts a receive. Errors as [`Rig::send`].
    ///
    /// # Errors
    /// As [`Rig::send`].
    pub fn recv(&mut self, side: usize, conn: ConnId, work: u64, segments: &[Segment]) -> Result<(), PostError> {
        self.retry(|t| t.post_recv(conn, WorkId(work), segments), side)
    }

    /// Posts a signalled write.
    ///
    /// # Errors
    /// As [`Rig::send`].
    pub fn write(
        &mut self,
        side: usize,
        conn: ConnId,
        work: u64,
        segments: &[Segment],
        target: impl Into<WriteTarget>,
    ) -> Result<(), PostError> {
        let target = target.into();
        self.retry(|t| t.post_write(conn, WorkId(work), &[], segments, target, WorkOptions::SIGNALLED), side)
    }

    /// Posts a read.
    ///
    /// # Errors
    /// As [`Rig::send`].
    pub fn read(
        &mut self,
        side: usize,
        conn: ConnId,
        work: u64,
        segments: &[Segment],
        remote: RemoteSlice,
    ) -> Result<(), PostError> {
        self.read_with(side, conn, work, segments, remote, WorkOptions::SIGNALLED)
    }

    /// Posts a read, signalled or not.
    ///
    /// # Errors
    /// As [`Rig::send`].
    pub fn read_with(
        &mut self,
        side: usize,
        conn: ConnId,
        work: u64,
        segments: &[Segment],
        remote: RemoteSlice,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        self.retry(|t| t.post_read(conn, WorkId(work), segments, remote, options), side)
    }

    /// Posts without polling in between. Returns whether the post was accepted. A queue that
    /// reports full several times in a row is full.
    ///
    /// # Panics
    /// On any other refusal.
    pub fn try_post(&mut self, side: usize, mut post: impl FnMut(&mut AnyTransport) -> Result<(), PostError>) -> bool {
        for _ in 0..RETRIES {
            match post(self.adapter(side)) {
                Ok(()) => return true,
                Err(PostError::QueueFull) => {}
                Err(other) => panic!("the post was refused: {other:?}"),
            }
        }
        false
    }

    /// Turns until `memory` has no other handle.
    pub fn released(&mut self, memory: &mut Memory, what: &str) {
        self.wait(what, |_| crate::data::is_sole(memory).then_some(()));
    }
}

/// Returns the connection of an event.
pub fn conn_of(event: &Event) -> ConnId {
    match event {
        Event::Work(completion) => completion.conn,
        Event::ConnectRequest { conn, .. }
        | Event::Established { conn, .. }
        | Event::Rejected { conn, .. }
        | Event::Disconnected { conn, .. } => *conn,
    }
}
