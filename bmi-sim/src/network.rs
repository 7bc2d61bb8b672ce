//! The network: adapters that are busy while bytes pass, links with latency, packets that stay in order.
//!
//! **Model.** Each node has one adapter; all transports of the node share it. It is two resources, one for sending and one for receiving, each busy for a
//! price per message and a price per byte. A message is cut into units; after each unit the adapter chooses anew, at both ends: the lowest service class
//! that is ready first (control, messages, bulk), and within it one unit from each queue pair in turn. So a small message waits for one unit of
//! somebody else's bulk data, and two bulk transfers share. Within a connection nothing overtakes: its class is that of the message at
//! its front. The replies to a peer's reads are a queue of their own, since reads are ordered with nothing (C3).
//!
//! A unit's first byte reaches the other adapter one link latency after it left; its last byte is there when the receiving side has had time for
//! all of them, so an idle path costs the bytes once (cut-through), and two senders to one receiver share its bandwidth. Acknowledgements take
//! the link's latency and nobody's time.
//!
//! An adapter in software ([`Profile::software`](crate::Profile::software)) has the node's processor send each unit before it leaves and take it in
//! when it has come.
//!
//! **Invariants**
//! 1. Packets from one connection arrive in the order in which they were sent, whatever the jitter; so do its answers.
//! 2. A packet for a connection that is gone is dropped; its sender has been told otherwise, or is being told. So is what a connection that is gone
//!    had still to send, but for its good-bye.
//! 3. While a link is down packets wait at its far end, in order. After the detection time its connections end.
//!
//! Tested by `tests/classes.rs`, `tests/table2.rs`.

use std::collections::VecDeque;

use bmi_core::ServiceClass;

use crate::events::{ConnRef, Event};
use crate::faults::link::Trouble;
use crate::profile::per_bytes;
use crate::world::Core;

/// What travels between two connections.
#[derive(Debug)]
pub(crate) enum Packet {
    /// A connection request from `from` for a port of the node it arrives at.
    Request { from: ConnRef, port: u16, private: Box<[u8]> },
    /// The request was accepted.
    Accepted { to: ConnRef, private: Box<[u8]> },
    /// The request was rejected.
    Rejected { to: ConnRef, private: Box<[u8]> },
    /// Nobody listens.
    Refused { to: ConnRef },
    /// The connecting side has seen the acceptance.
    Ready { to: ConnRef },
    /// A send or write: the sender's request number `number`.
    Message { to: ConnRef, number: u64 },
    /// A read: the reader's request number `number`.
    ReadRequest { to: ConnRef, number: u64 },
    /// The bytes of a read.
    ReadReply { to: ConnRef, number: u64 },
    /// The sender's request was carried out.
    Ack { to: ConnRef, number: u64 },
    /// The sender's request was refused; its connection ends.
    Nak { to: ConnRef, number: u64, why: Nak },
    /// The other side has ended the connection.
    Close { to: ConnRef },
}

/// Why a request was refused by the receiving adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nak {
    /// Key, bounds or rights of a write.
    WriteAccess,
    /// Key, bounds or rights of a read.
    ReadAccess,
    /// No receive was posted.
    NotReady,
    /// The receive was too short.
    TooLong,
    /// The message was damaged on the way.
    Damaged,
}

impl Packet {
    /// Whether it is a request or a reply to one, which nobody waits for once its connection is gone.
    fn is_work(&self) -> bool {
        matches!(self, Packet::Message { .. } | Packet::ReadRequest { .. } | Packet::ReadReply { .. })
    }

    /// Tells this packet from others in the digest.
    pub(crate) fn word(&self) -> u64 {
        let (kind, conn, rest) = match self {
            Packet::Request { from, port, private } => (1, from, u64::from(*port) << 16 | private.len() as u64),
            Packet::Accepted { to, private } => (2, to, private.len() as u64),
            Packet::Rejected { to, private } => (3, to, private.len() as u64),
            Packet::Refused { to } => (4, to, 0),
            Packet::Ready { to } => (5, to, 0),
            Packet::Message { to, number } => (6, to, *number),
            Packet::ReadRequest { to, number } => (7, to, *number),
            Packet::ReadReply { to, number } => (8, to, *number),
            Packet::Ack { to, number } => (9, to, *number),
            Packet::Nak { to, number, why } => (10, to, *number << 3 | *why as u64),
            Packet::Close { to } => (11, to, 0),
        };
        let conn = u64::from(conn.adapter) << 40 | u64::from(conn.slot) << 16 | u64::from(conn.generation);
        (conn << 4 | kind) ^ rest.rotate_right(20)
    }
}

/// A side of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Transmit,
    Receive,
}

/// What keeps its order: a connection's requests, or its replies to reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) from: ConnRef,
    pub(crate) replies: bool,
}

/// A packet and what it costs.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) packet: Packet,
    pub(crate) class: ServiceClass,
    /// Bytes behind the packet's header.
    pub(crate) len: u64,
    /// Not before this time.
    pub(crate) ready: u64,
    /// Arrives at least this much later than it would.
    pub(crate) extra: u64,
    /// Keeps the receiving adapter busy for this long, besides, in ns.
    pub(crate) tail: u64,
}

impl Sending {
    /// A packet that manages connections, to be sent at once.
    pub(crate) fn control(packet: Packet, len: u64) -> Sending {
        Sending { packet, class: ServiceClass::Control, len, ready: 0, extra: 0, tail: 0 }
    }
}

/// A piece of a packet on its way.
#[derive(Debug)]
pub(crate) struct Unit {
    flow: Flow,
    class: ServiceClass,
    pub(crate) len: u64,
    /// How long it keeps the receiving adapter busy.
    busy: u64,
    /// Of the last unit.
    packet: Option<Packet>,
}

impl Unit {
    /// Tells this unit from others in the digest.
    pub(crate) fn word(&self) -> u64 {
        let from = self.flow.from;
        let flow = u64::from(from.adapter) << 40 | u64::from(from.slot) << 16 | u64::from(from.generation);
        self.packet.as_ref().map_or(flow << 1 | u64::from(self.flow.replies), Packet::word)
    }
}

/// A message in the sending side's queue.
#[derive(Debug)]
struct Outgoing {
    to: u32,
    sending: Sending,
    /// Bytes of it that have left.
    left: u64,
    begun: bool,
    /// Arrives after this, if its connection is gone and cannot say.
    floor: u64,
}

trait Waiting {
    fn class(&self) -> ServiceClass;
    fn ready(&self) -> u64;
}

impl Waiting for Outgoing {
    fn class(&self) -> ServiceClass {
        self.sending.class
    }

    fn ready(&self) -> u64 {
        self.sending.ready
    }
}

impl Waiting for Unit {
    fn class(&self) -> ServiceClass {
        self.class
    }

    fn ready(&self) -> u64 {
        0
    }
}

/// Queues, one for each flow, that take turns.
#[derive(Debug)]
struct Turns<W> {
    flows: VecDeque<(Flow, VecDeque<W>)>,
    /// Emptied queues, kept for their room.
    spare: Vec<VecDeque<W>>,
}

impl<W> Default for Turns<W> {
    fn default() -> Turns<W> {
        Turns { flows: VecDeque::new(), spare: Vec::new() }
    }
}

impl<W: Waiting> Turns<W> {
    /// Empty queues that are kept.
    const SPARE: usize = 64;

    fn push(&mut self, flow: Flow, what: W) {
        match self.flows.iter_mut().rev().find(|(known, _)| *known == flow) {
            Some((_, queue)) => queue.push_back(what),
            None => {
                let mut queue = self.spare.pop().unwrap_or_default();
                queue.push_back(what);
                self.flows.push_back((flow, queue));
            }
        }
    }

    /// Takes out the queue whose turn it is among those that are ready at `now`; else says when the first one will be.
    fn next(&mut self, now: u64) -> Result<(Flow, VecDeque<W>), Option<u64>> {
        let fronts = || self.flows.iter().enumerate().filter_map(|(at, (_, queue))| Some((at, queue.front()?)));
        // The first of equals: whoever was served last stands at the end.
        let turn = fronts().filter(|(_, front)| front.ready() <= now).min_by_key(|(at, front)| (front.class(), *at));
        match turn.map(|(at, _)| at) {
            Some(at) => Ok(self.flows.remove(at).expect("just found")),
            None => Err(fronts().map(|(_, front)| front.ready()).min()),
        }
    }

    /// Puts a queue that had its turn behind the others.
    fn put_back(&mut self, flow: Flow, queue: VecDeque<W>) {
        if !queue.is_empty() {
            self.flows.push_back((flow, queue));
        } else if self.spare.len() < Self::SPARE {
            self.spare.push(queue);
        }
    }
}

/// One side of an adapter.
#[derive(Debug)]
struct Half<W> {
    /// When it is free again, in ns.
    free: u64,
    /// An event at this time will let it go on; `u64::MAX` for none.
    wake: u64,
    turns: Turns<W>,
}

impl<W> Default for Half<W> {
    fn default() -> Half<W> {
        Half { free: 0, wake: u64::MAX, turns: Turns::default() }
    }
}

/// The adapter of a node.
#[derive(Debug, Default)]
pub(crate) struct Port {
    /// When everything that was given to the line has left.
    line_free: u64,
    transmit: Half<Outgoing>,
    receive: Half<Unit>,
}

/// Of one direction of a connection: no packet may arrive before these.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InOrder {
    arrival: u64,
    answer: u64,
}

/// A link between two nodes that is not simply up.
#[derive(Debug, Default)]
pub(crate) struct LinkState {
    /// Counts the times it went down.
    pub(crate) epoch: u64,
    pub(crate) down: bool,
    pub(crate) held: Vec<Event>,
    /// What a plan of faults does to its packets.
    pub(crate) trouble: Trouble,
}

/// The key of a link: its nodes in order.
pub(crate) fn link_key(a: u32, b: u32) -> (u32, u32) {
    (a.min(b), a.max(b))
}

impl Core {
    fn latency(&mut self, from: u32, to: u32) -> u64 {
        let profile = &self.config.profile;
        let base = if from == to { profile.loopback_latency_ns } else { profile.link_latency_ns };
        let late = if self.links.is_empty() { 0 } else { self.lateness(from, to) };
        match self.config.jitter_ns {
            0 => base + late,
            jitter => base + late + self.jitter.below(jitter + 1),
        }
    }

    /// Queues a packet of `flow` at one node's adapter for another's.
    pub(crate) fn transmit(&mut self, route: (u32, u32), flow: Flow, sending: Sending) {
        let (from, to) = route;
        let order = self.conn(flow.from).map(|conn| conn.order).unwrap_or_default();
        let floor = match sending.packet {
            Packet::Close { .. } => order.arrival.max(order.answer),
            _ => order.arrival,
        };
        let outgoing = Outgoing { to, left: sending.len, sending, begun: false, floor };
        self.nodes[from as usize].port.transmit.turns.push(flow, outgoing);
        self.go_on(from, Side::Transmit);
    }

    /// Lets a side of an adapter do what it can do now, and sees to it that it goes on when it can do more.
    pub(crate) fn go_on(&mut self, node: u32, side: Side) {
        let now = self.queue.now;
        let port = &mut self.nodes[node as usize].port;
        let wake = match side {
            Side::Transmit => &mut port.transmit.wake,
            Side::Receive => &mut port.receive.wake,
        };
        if *wake <= now {
            *wake = u64::MAX;
        }
        match side {
            Side::Transmit => self.go_on_sending(node),
            Side::Receive => self.go_on_receiving(node),
        }
    }

    fn go_on_sending(&mut self, node: u32) {
        let now = self.queue.now;
        let again = loop {
            let half = &mut self.nodes[node as usize].port.transmit;
            if half.free > now {
                if half.turns.flows.is_empty() {
                    return;
                }
                break half.free;
            }
            match half.turns.next(now) {
                Ok((flow, mut queue)) => {
                    self.send_unit(node, flow, &mut queue);
                    self.nodes[node as usize].port.transmit.turns.put_back(flow, queue);
                }
                Err(Some(ready)) => break ready,
                Err(None) => return,
            }
        };
        let wake = &mut self.nodes[node as usize].port.transmit.wake;
        if again < *wake {
            *wake = again;
            self.queue.schedule(again, Event::Port { node, side: Side::Transmit });
        }
    }

    /// Sends the next unit of the message at the front of a flow's queue.
    fn send_unit(&mut self, node: u32, flow: Flow, queue: &mut VecDeque<Outgoing>) {
        let profile = &self.config.profile;
        let (message_ns, header, limit) =
            (profile.adapter_message_ns, profile.wire_header_bytes, profile.wire_unit_bytes);
        let byte_ps = if flow.replies { profile.read_byte_ps } else { profile.adapter_byte_ps };
        let (software, host_ps) = (profile.software, profile.cpu_send_byte_ps);
        let Some(front) = queue.front_mut() else { return };
        let gone = self.conn(flow.from).is_none() && front.sending.packet.is_work();
        if gone || !self.nodes[node as usize].alive {
            queue.pop_front();
            return;
        }
        let now = self.queue.now;
        let begins = !std::mem::replace(&mut front.begun, true);
        let len = front.left.min(limit.max(1));
        front.left -= len;
        let last = front.left == 0;
        let per_message = if begins { message_ns } else { 0 };
        let bytes = per_bytes(len.saturating_add(if begins { header } else { 0 }), byte_ps);
        let tail = if last { front.sending.tail } else { 0 };
        let (to, class, extra, floor) = (front.to, front.sending.class, front.sending.extra, front.floor);
        let packet = if last { queue.pop_front().map(|outgoing| outgoing.sending.packet) } else { None };
        let state = &mut self.nodes[node as usize];
        let given = if software { state.cpu.charge(now, per_bytes(len, host_ps)) } else { now };
        let start = given.max(state.port.line_free);
        state.port.line_free = start.saturating_add(per_message + bytes);
        // The processor gives the next unit while this one is on the line.
        state.port.transmit.free = if software { start } else { state.port.line_free };
        let first_byte = start.saturating_add(per_message + self.latency(node, to) + extra);
        let arrival = match self.conn_mut(flow.from) {
            Some(conn) => {
                conn.order.arrival = conn.order.arrival.max(first_byte);
                conn.order.arrival
            }
            None => floor.max(first_byte),
        };
        let unit = Unit { flow, class, len, busy: per_message + bytes + tail, packet };
        self.queue.schedule(arrival, Event::Arrive { from: node, to, unit });
    }

    fn go_on_receiving(&mut self, node: u32) {
        let now = self.queue.now;
        let software = self.config.profile.software;
        let half = &mut self.nodes[node as usize].port.receive;
        while half.free <= now {
            let Ok((flow, mut queue)) = half.turns.next(now) else { return };
            let Some(unit) = queue.pop_front() else { return };
            half.turns.put_back(flow, queue);
            half.free = now.saturating_add(unit.busy);
            if unit.packet.is_some() || software {
                // Which lets it go on, too.
                let (at, len) = (half.free, unit.len);
                half.wake = at;
                self.queue.schedule(at, Event::Deliver { node, len, packet: unit.packet });
                return;
            }
        }
        if half.free < half.wake && !half.turns.flows.is_empty() {
            half.wake = half.free;
            let at = half.free;
            self.queue.schedule(at, Event::Port { node, side: Side::Receive });
        }
    }

    /// Sends an answer, which takes only the link's latency.
    pub(crate) fn answer(&mut self, route: (u32, u32), order: &mut InOrder, packet: Packet) {
        let (from, to) = route;
        let at = self.queue.now + self.latency(from, to);
        order.answer = order.answer.max(at);
        self.queue.schedule(order.answer, Event::Answer { from, to, packet });
    }

    /// Keeps the event back if the link between the nodes is down.
    fn hold(&mut self, from: u32, to: u32, event: Event) -> Option<Event> {
        match self.links.get_mut(&link_key(from, to)) {
            Some(link) if link.down => {
                link.held.push(event);
                None
            }
            _ => Some(event),
        }
    }

    /// The first byte of a unit, or an answer, is at the receiving adapter.
    pub(crate) fn arrive(&mut self, event: Event) {
        let (Event::Arrive { from, to, .. } | Event::Answer { from, to, .. }) = event else {
            unreachable!("only units and answers arrive");
        };
        match if self.links.is_empty() { Some(event) } else { self.hold(from, to, event) } {
            Some(Event::Arrive { to, unit, .. }) => {
                self.nodes[to as usize].port.receive.turns.push(unit.flow, unit);
                self.go_on(to, Side::Receive);
            }
            Some(Event::Answer { packet, .. }) => self.deliver_answer(packet),
            _ => {}
        }
    }

    /// The last byte of a unit is at the receiving adapter.
    pub(crate) fn take_in(&mut self, node: u32, len: u64, packet: Option<Packet>) {
        let profile = &self.config.profile;
        if !profile.software {
            return packet.into_iter().for_each(|packet| self.deliver(node, packet));
        }
        let per_message = if packet.is_some() { profile.cpu_receive_ns } else { 0 };
        let cost = per_message + per_bytes(len, profile.cpu_receive_byte_ps);
        let done = self.nodes[node as usize].cpu.charge(self.queue.now, cost);
        if let Some(packet) = packet {
            self.queue.schedule(done, Event::Take { node, packet });
        }
    }

    /// A packet is there, all of it.
    pub(crate) fn deliver(&mut self, node: u32, packet: Packet) {
        match packet {
            Packet::Request { from, port, private } => self.handle_request(node, from, port, private),
            Packet::Accepted { to, private } => self.handle_accepted(to, private),
            Packet::Rejected { to, private } => self.handle_rejected(to, private),
            Packet::Ready { to } => self.handle_ready(to),
            Packet::Message { to, number } => self.handle_message(to, number),
            Packet::ReadRequest { to, number } => self.handle_read_request(to, number),
            Packet::ReadReply { to, number } => self.handle_read_reply(to, number),
            Packet::Close { to } => self.handle_close(to),
            answer => self.deliver_answer(answer),
        }
    }

    fn deliver_answer(&mut self, packet: Packet) {
        match packet {
            Packet::Ack { to, number } => self.handle_ack(to, number),
            Packet::Nak { to, number, why } => self.handle_nak(to, number, why),
            Packet::Refused { to } => self.handle_refusal(to, crate::events::Refusal::NobodyListens),
            other => unreachable!("{other:?} is not an answer"),
        }
    }
}
