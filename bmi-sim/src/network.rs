//! The network: adapters that are busy while bytes pass, links with latency, and packets that stay
//! in order.
//!
//! **Adapters.** Each node has one adapter, which all transports of the node share. It is two
//! resources, one for sending and one for receiving. Each is busy for a price per message and a
//! price per byte. A message is cut into units, and after each unit the adapter chooses again, at
//! both ends. It takes the lowest service class that is ready first (control, messages, bulk).
//! Within a class it takes one unit from each queue pair in turn. So a small message waits for one
//! unit of another connection's bulk data, and two bulk transfers share the bandwidth.
//!
//! Within a connection nothing overtakes: its class is that of the message at its front. The
//! replies to a peer's reads have a queue of their own, because reads are not ordered with anything
//! (C3).
//!
//! **Latency.** A unit's first byte reaches the other adapter one link latency after it left. Its
//! last byte is there when the receiving side has had time for all bytes. So an idle path costs the
//! bytes once (cut-through), and two senders to one receiver share its bandwidth. Acknowledgements
//! take the link's latency and no adapter time.
//!
//! **Events.** A unit that finds its sending side idle books it and is under way at once. Its one
//! event is at the time at which its last byte would arrive if the receiving side had been idle
//! since the first byte. If that side was busy, the unit waits for its turn. So a short message
//! between idle adapters is one event, and its acknowledgement is another.
//!
//! **Bus and switch.** The host's bus is booked together with the adapter: one for both directions
//! ([`Profile::bus_half_duplex`](crate::Profile::bus_half_duplex)) or one for each. A copy that a
//! processor makes meanwhile takes longer, since both need the host's memory
//! ([`Profile::memory_ps_per_byte`](crate::Profile::memory_ps_per_byte)). The switch has a port for
//! each adapter. The bytes that wait there are computed from the units that were sent to it. A unit
//! that would find the port full waits at its sender, where units of other connections pass it.
//! Alternatively it is lost and sent again later
//! ([`Profile::switch_port_drops`](crate::Profile::switch_port_drops)).
//!
//! **Software.** With an adapter in software ([`Profile::software`](crate::Profile::software)),
//! threads of the node's kernel process each unit: before it leaves, and after it has arrived. A
//! message of a program that is bound to a core ([`crate::Node::shards`]) is processed by that core
//! as a whole before its first unit leaves, because the program's call does it.
//!
//! **Invariants**
//! 1. Packets from one connection arrive in the order in which they were sent, whatever the jitter.
//!    So do its answers.
//! 2. A packet for a connection that is gone is dropped. Its sender has been told that the
//!    connection ended, or is being told. Packets that a connection had not sent when it ended are
//!    dropped too, except for its `Close`.
//! 3. While a link is down, packets wait at its far end, in order. After the detection time its
//!    connections end.
//!
//! Tested by `tests/it/classes.rs`, `tests/it/model.rs`, `tests/it/table2.rs`.

use std::collections::VecDeque;

use bmi_core::ServiceClass;

use crate::cpu::Work;
use crate::events::{ConnRef, Event};
use crate::faults::link::Trouble;
use crate::load::{Load, over};
use crate::profile::per_bytes;
use crate::world::Core;

/// A packet between two connections.
#[derive(Debug)]
pub(crate) enum Packet {
    /// A connection request from `from` for a port of the node it arrives at.
    Request { from: ConnRef, port: u16, private: Box<[u8]> },
    /// The request was accepted.
    Accepted { to: ConnRef, private: Box<[u8]> },
    /// The request was rejected.
    Rejected { to: ConnRef, private: Box<[u8]> },
    /// No transport listens on the port.
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

/// Why the receiving adapter refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nak {
    /// The key, bounds or rights of a write were wrong.
    WriteAccess,
    /// The key, bounds or rights of a read were wrong.
    ReadAccess,
    /// No receive was posted.
    NotReady,
    /// The receive was too short.
    TooLong,
    /// The message was damaged on the way.
    Damaged,
    /// The request of a read was damaged on the way.
    DamagedRead,
}

impl Packet {
    /// Returns whether the packet is a request or a reply to one. No peer waits for such a packet
    /// once its connection is gone.
    fn is_work(&self) -> bool {
        matches!(self, Packet::Message { .. } | Packet::ReadRequest { .. } | Packet::ReadReply { .. })
    }

    /// Returns the connection that waits for the packet, if it is an answer.
    fn waited_for_by(&self) -> ConnRef {
        match self {
            Packet::Request { from, .. } => *from,
            Packet::Accepted { to, .. }
            | Packet::Rejected { to, .. }
            | Packet::Refused { to }
            | Packet::Ready { to }
            | Packet::Message { to, .. }
            | Packet::ReadRequest { to, .. }
            | Packet::ReadReply { to, .. }
            | Packet::Ack { to, .. }
            | Packet::Nak { to, .. }
            | Packet::Close { to } => *to,
        }
    }

    /// Returns the packet's name in a timeline.
    fn name(&self) -> &'static str {
        match self {
            Packet::Message { .. } => "message",
            Packet::ReadRequest { .. } => "read request",
            Packet::ReadReply { .. } => "read reply",
            _ => "connection",
        }
    }

    /// Returns a word that distinguishes this packet from others in the digest.
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

/// A sequence of packets that keeps its order: a connection's requests, or its replies to reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) from: ConnRef,
    pub(crate) replies: bool,
}

/// A packet with its costs.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) packet: Packet,
    pub(crate) class: ServiceClass,
    /// Number of bytes behind the packet's header.
    pub(crate) len: u64,
    /// Number of pieces that the bytes are gathered from.
    pub(crate) segments: u64,
    /// The packet does not leave before this time.
    pub(crate) ready: u64,
    /// Minimum additional delay of its arrival.
    pub(crate) extra: u64,
    /// Additional time, in ns, for which it keeps the receiving adapter busy.
    pub(crate) tail: u64,
}

impl Sending {
    /// Returns a packet that manages connections, to be sent at once.
    pub(crate) fn control(packet: Packet, len: u64) -> Sending {
        Sending { packet, class: ServiceClass::Control, len, segments: 1, ready: 0, extra: 0, tail: 0 }
    }
}

/// A piece of a packet that is under way.
#[derive(Debug)]
pub(crate) struct Unit {
    flow: Flow,
    class: ServiceClass,
    pub(crate) len: u64,
    /// How long it keeps the receiving adapter busy.
    busy: u64,
    /// The packet, in its last unit.
    packet: Option<Packet>,
    /// Pairs the two ends of a message in the timeline; 0 for none.
    trace: u64,
}

impl Unit {
    /// Returns a word that distinguishes this unit from others in the digest.
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
    /// The packet, until its last unit has left.
    packet: Option<Packet>,
    class: ServiceClass,
    ready: u64,
    extra: u64,
    tail: u64,
    segments: u64,
    /// Number of its bytes that have not left.
    left: u64,
    begun: bool,
    /// Its next unit has its place at the port of the switch.
    admitted: bool,
    /// Minimum arrival time, used when its connection is gone and no longer keeps its order.
    floor: u64,
}

trait Waiting {
    fn class(&self) -> ServiceClass;
    fn ready(&self) -> u64;
}

impl Waiting for Outgoing {
    fn class(&self) -> ServiceClass {
        self.class
    }

    fn ready(&self) -> u64 {
        self.ready
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

/// Queues that take turns, one for each flow.
#[derive(Debug)]
struct Turns<W> {
    flows: VecDeque<(Flow, VecDeque<W>)>,
    /// Emptied queues, kept for their capacity.
    spare: Vec<VecDeque<W>>,
}

impl<W> Default for Turns<W> {
    fn default() -> Turns<W> {
        Turns { flows: VecDeque::new(), spare: Vec::new() }
    }
}

impl<W: Waiting> Turns<W> {
    /// Number of empty queues to keep.
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

    /// Takes out the queue whose turn it is among those that are ready at `now`. Otherwise the
    /// error is the time at which the first one will be ready.
    fn next(&mut self, now: u64) -> Result<(Flow, VecDeque<W>), Option<u64>> {
        let fronts = || self.flows.iter().enumerate().filter_map(|(at, (_, queue))| Some((at, queue.front()?)));
        // The first of equals: the queue that was served last is at the end.
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
    /// When this side is free again, in ns.
    free: u64,
    /// An event at this time will let this side go on; `u64::MAX` for none.
    wake: u64,
    turns: Turns<W>,
}

impl<W> Default for Half<W> {
    fn default() -> Half<W> {
        Half { free: 0, wake: u64::MAX, turns: Turns::default() }
    }
}

/// The adapter of a node, its bus, and the port of the switch that leads to it.
#[derive(Debug, Default)]
pub(crate) struct Port {
    /// When everything that was given to the line has left it.
    line_free: u64,
    transmit: Half<Outgoing>,
    receive: Half<Unit>,
    /// When the bus is free, for each direction. A shared bus is the first entry.
    bus: [u64; 2],
    /// When everything that was sent to this port of the switch will have left it.
    drained: u64,
    /// Number of units that were lost because the port was full.
    lost: u64,
    /// How long each side was busy, in ns.
    busy: [u64; 2],
    /// How long the bus was busy in each direction; a shared bus is the first entry.
    bus_busy: [u64; 2],
}

impl Port {
    /// Returns the number of units that were lost in the switch on the way to this adapter.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Adds how long adapter and bus were occupied up to `now`.
    pub(crate) fn add_load(&self, now: u64, load: &mut Load) {
        load.sending = over(self.busy[0], self.line_free, now);
        load.receiving = over(self.busy[1], self.receive.free, now);
        let bus = [0, 1].map(|direction| over(self.bus_busy[direction], self.bus[direction], now));
        load.bus = bus[0].max(bus[1]);
    }
}

/// For one direction of a connection: the earliest times at which the next packet may arrive or be
/// answered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InOrder {
    arrival: u64,
    answer: u64,
}

/// The resources that a unit keeps busy, and for how long.
struct Cost {
    len: u64,
    last: bool,
    /// Time of an adapter before the bytes.
    gap: u64,
    bytes: u64,
    bus: u64,
    /// Time for gathering.
    pieces: u64,
}

/// The outcome of an attempt to send a unit.
#[derive(PartialEq, Eq)]
enum Sent {
    /// It was the message's last unit, or there is no point in sending it.
    Last,
    /// There are more units.
    More,
    /// The unit has to wait until its message is ready again.
    Later,
}

/// A link between two nodes that is down, or was, or has faults.
#[derive(Debug, Default)]
pub(crate) struct LinkState {
    /// Counts how often it went down.
    pub(crate) epoch: u64,
    pub(crate) down: bool,
    pub(crate) held: Vec<Event>,
    /// The effects of a plan of faults on its packets.
    pub(crate) trouble: Trouble,
}

/// Returns the key of a link: its nodes in ascending order.
pub(crate) fn link_key(a: u32, b: u32) -> (u32, u32) {
    (a.min(b), a.max(b))
}

impl Core {
    /// Returns how long a packet takes from one node to another. `waits` is the connection that
    /// gives up if it never arrives.
    fn latency(&mut self, from: u32, to: u32, waits: ConnRef) -> u64 {
        let profile = &self.config.profile;
        let base = if from == to { profile.loopback_latency_ns } else { profile.link_latency_ns };
        let late = if self.links.is_empty() { 0 } else { self.lateness(from, to, waits) };
        match self.config.jitter_ns {
            0 => base + late,
            jitter => base + late + self.jitter.below(jitter + 1),
        }
    }

    /// Sends a packet of `flow` from one node's adapter to another's: at once if the way is free,
    /// otherwise it is queued.
    pub(crate) fn transmit(&mut self, route: (u32, u32), flow: Flow, sending: Sending) {
        self.note_sent(route, flow.from, &sending);
        let (from, to) = route;
        let Sending { packet, class, len, segments, ready, extra, tail } = sending;
        let order = self.conn(flow.from).map(|conn| conn.order).unwrap_or_default();
        let floor = match packet {
            Packet::Close { .. } => order.arrival.max(order.answer),
            _ => order.arrival,
        };
        let ready = match self.core_of(flow) {
            Some(core) if self.config.profile.software && self.nodes[from as usize].alive => {
                let works = self.sending_works(len);
                self.charge_kernel_on(from, core, ready.max(self.queue.now), &works)
            }
            _ => ready,
        };
        let packet = Some(packet);
        let mut outgoing = Outgoing {
            to,
            packet,
            class,
            ready,
            extra,
            tail,
            segments,
            left: len,
            begun: false,
            admitted: false,
            floor,
        };
        let half = &self.nodes[from as usize].port.transmit;
        let at = ready.max(self.queue.now);
        // No other message can get ahead of it: the line is idle by then, and a message that is
        // posted later is ready later. This is not so where several cores post.
        let alone = self.core_of(flow).is_none() || at == self.queue.now;
        if alone
            && half.turns.flows.is_empty()
            && half.free <= at
            && self.send_unit(from, flow, &mut outgoing, at) == Sent::Last
        {
            return;
        }
        self.nodes[from as usize].port.transmit.turns.push(flow, outgoing);
        self.go_on(from, Side::Transmit);
    }

    /// Lets a side of an adapter do what it can do now, and schedules its next step.
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
                    if let Some(front) = queue.front_mut()
                        && self.send_unit(node, flow, front, now) == Sent::Last
                    {
                        queue.pop_front();
                    }
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

    /// Returns the costs of the next unit of a message.
    fn unit_cost(&self, flow: Flow, out: &Outgoing) -> Cost {
        let profile = &self.config.profile;
        let ps = if flow.replies { profile.read_ps_per_byte } else { profile.adapter_ps_per_byte };
        let len = out.left.min(profile.wire_unit_bytes.max(1));
        let (gap, header) = if out.begun { (0, 0) } else { (profile.adapter_message_ns, profile.wire_header_bytes) };
        let bus = per_bytes(len, profile.bus_ps_per_byte);
        let bytes = per_bytes(len + header, ps).max(bus);
        let pieces = if out.begun { 0 } else { out.segments.saturating_sub(1) * profile.adapter_segment_ns };
        Cost { len, last: len == out.left, gap, bytes, bus, pieces }
    }

    /// Returns the index into `Port::bus` for a side.
    fn bus_of(&self, side: Side) -> usize {
        if self.config.profile.bus_half_duplex { 0 } else { side as usize }
    }

    /// Sends the next unit of a message at `at`, which is now or, if nothing else waits, later.
    fn send_unit(&mut self, node: u32, flow: Flow, out: &mut Outgoing, at: u64) -> Sent {
        let is_work = out.packet.as_ref().is_some_and(Packet::is_work);
        if (is_work && self.conn(flow.from).is_none()) || !self.nodes[node as usize].alive {
            return Sent::Last;
        }
        let cost = self.unit_cost(flow, out);
        let latency = self.latency(node, out.to, flow.from);
        if let Some(later) = self.full_port(node, out, at, latency, cost.len) {
            out.ready = later;
            out.admitted = true;
            return Sent::Later;
        }
        let software = self.config.profile.software && self.core_of(flow).is_none();
        let given =
            if software { self.charge_kernel(node, Side::Transmit, at, &self.sending_works(cost.len)) } else { at };
        let bus = self.bus_of(Side::Transmit);
        let port = &mut self.nodes[node as usize].port;
        let mut start = given.max(port.line_free);
        if cost.bus > 0 {
            start = start.max(port.bus[bus]);
            port.bus[bus] = start + cost.bus;
            port.bus_busy[bus] += cost.bus;
        }
        port.busy[Side::Transmit as usize] += cost.gap + cost.pieces + cost.bytes;
        port.line_free = start.saturating_add(cost.gap + cost.pieces + cost.bytes);
        let line_free = port.line_free;
        // The processor prepares the next unit while this one is on the line.
        port.transmit.free = if software { start } else { line_free };
        self.dma(node, start, cost.len);
        let tail = if cost.last { out.tail } else { 0 };
        let busy = cost.gap + cost.bytes + tail;
        let arrival = start.saturating_add(cost.gap + cost.pieces + latency + out.extra);
        let trace = self.trace_sent(node, out, &cost, start, arrival);
        if self.port_loses(node, out, arrival, busy) {
            out.ready = line_free.saturating_add(self.config.profile.retransmit_ns);
            return Sent::Later;
        }
        out.begun = true;
        out.admitted = false;
        out.left -= cost.len;
        let there = match self.conn_mut(flow.from) {
            Some(conn) => {
                conn.order.arrival = conn.order.arrival.max(arrival.saturating_add(busy));
                conn.order.arrival
            }
            None => out.floor.max(arrival.saturating_add(busy)),
        };
        let packet = if cost.last { out.packet.take() } else { None };
        let unit = Unit { flow, class: out.class, len: cost.len, busy, packet, trace };
        self.queue.schedule(there, Event::Arrive { from: node, to: out.to, unit });
        if cost.last { Sent::Last } else { Sent::More }
    }

    /// Returns the core that the program at a flow's beginning is bound to, if any.
    fn core_of(&self, flow: Flow) -> Option<usize> {
        self.adapters[flow.from.adapter as usize].core
    }

    /// Returns the work of giving `len` bytes to an adapter in software.
    fn sending_works(&self, len: u64) -> [(Work, u64); 2] {
        let profile = &self.config.profile;
        let packets = len.div_ceil(profile.packet_bytes.max(1)).max(1);
        let copy = (Work::Copying, per_bytes(len, profile.cpu_send_ps_per_byte));
        let packets = (Work::Protocol, packets.saturating_mul(profile.cpu_send_packet_ns));
        [copy, packets]
    }

    fn trace_sent(&mut self, node: u32, out: &Outgoing, cost: &Cost, start: u64, arrival: u64) -> u64 {
        let Some(timeline) = &mut self.timeline else { return 0 };
        let name = out.packet.as_ref().map_or("unit", Packet::name);
        let flow = if cost.last { timeline.flow() } else { 0 };
        timeline.unit(node, Side::Transmit, name, (start, start + cost.gap + cost.pieces + cost.bytes), cost.len, flow);
        timeline.link(node, name, (start, arrival), cost.len);
        flow
    }

    // ---- the switch -----------------------------------------------------------------------------

    /// Returns when a unit may leave whose switch port would be full, in a switch where such a unit
    /// waits. The unit then has its place at the port.
    fn full_port(&self, node: u32, out: &Outgoing, at: u64, latency: u64, len: u64) -> Option<u64> {
        let profile = &self.config.profile;
        let free = profile.switch_port_bytes == 0 || profile.switch_port_drops || out.admitted;
        if free || len == 0 || node == out.to {
            return None;
        }
        let room = per_bytes(profile.switch_port_bytes, profile.adapter_ps_per_byte);
        let later = self.nodes[out.to as usize].port.drained.saturating_sub(room + latency);
        (later > at).then_some(later)
    }

    /// Passes a unit through the port of the switch that leads to its target. Returns whether the
    /// unit is lost there.
    fn port_loses(&mut self, node: u32, out: &Outgoing, arrival: u64, busy: u64) -> bool {
        let profile = &self.config.profile;
        if profile.switch_port_bytes == 0 || node == out.to {
            return false;
        }
        let room = per_bytes(profile.switch_port_bytes, profile.adapter_ps_per_byte);
        let port = &mut self.nodes[out.to as usize].port;
        let waits = port.drained.saturating_sub(arrival);
        if profile.switch_port_drops && waits > room {
            port.lost += 1;
            return true;
        }
        port.drained = port.drained.max(arrival).saturating_add(busy);
        if let Some(timeline) = &mut self.timeline {
            let bytes = waits.saturating_mul(1_000) / profile.adapter_ps_per_byte.max(1);
            timeline.waiting(out.to, arrival, arrival + waits, bytes);
        }
        false
    }

    // ---- the receiving side ---------------------------------------------------------------------

    /// Receives a unit. Its last byte would be there now, if the adapter had been idle since the
    /// first byte.
    fn take_unit(&mut self, node: u32, unit: Unit) {
        let now = self.queue.now;
        let half = &mut self.nodes[node as usize].port.receive;
        let idle = half.free <= now && half.wake == u64::MAX && half.turns.flows.is_empty();
        if !idle {
            half.turns.push(unit.flow, unit);
            return self.go_on(node, Side::Receive);
        }
        let begin = half.free.max(now.saturating_sub(unit.busy));
        self.begin_unit(node, unit, begin);
    }

    /// Keeps the receiving adapter busy with a unit from `begin` on.
    fn begin_unit(&mut self, node: u32, unit: Unit, mut begin: u64) {
        let now = self.queue.now;
        let bus_time = per_bytes(unit.len, self.config.profile.bus_ps_per_byte);
        let bus = self.bus_of(Side::Receive);
        let port = &mut self.nodes[node as usize].port;
        if bus_time > 0 {
            begin = begin.max(port.bus[bus]);
            port.bus[bus] = begin + bus_time;
            port.bus_busy[bus] += bus_time;
        }
        port.busy[Side::Receive as usize] += unit.busy;
        let done = begin.saturating_add(unit.busy);
        port.receive.free = done;
        port.drained = port.drained.max(done);
        self.dma(node, begin, unit.len);
        if let Some(timeline) = &mut self.timeline {
            let name = unit.packet.as_ref().map_or("unit", Packet::name);
            timeline.unit(node, Side::Receive, name, (begin, done), unit.len, unit.trace);
        }
        if done <= now {
            self.take_in(node, unit.len, unit.packet);
        } else if unit.packet.is_some() || self.config.profile.software {
            // This event also lets the receiving side go on.
            self.nodes[node as usize].port.receive.wake = done;
            self.queue.schedule(done, Event::Deliver { node, len: unit.len, packet: unit.packet });
        }
    }

    fn go_on_receiving(&mut self, node: u32) {
        let now = self.queue.now;
        loop {
            let half = &mut self.nodes[node as usize].port.receive;
            if half.free > now || half.wake <= now {
                break;
            }
            let Ok((flow, mut queue)) = half.turns.next(now) else { return };
            let unit = queue.pop_front();
            half.turns.put_back(flow, queue);
            let Some(unit) = unit else { return };
            self.begin_unit(node, unit, now);
        }
        let half = &mut self.nodes[node as usize].port.receive;
        if half.free < half.wake && !half.turns.flows.is_empty() {
            half.wake = half.free;
            let at = half.free;
            self.queue.schedule(at, Event::Port { node, side: Side::Receive });
        }
    }

    /// Sends an answer, which takes only the link's latency.
    pub(crate) fn answer(&mut self, route: (u32, u32), order: &mut InOrder, packet: Packet) {
        let (from, to) = route;
        let at = self.queue.now + self.latency(from, to, packet.waited_for_by());
        order.answer = order.answer.max(at);
        self.queue.schedule(order.answer, Event::Answer { from, to, packet });
    }

    /// Holds the event back if the link between the nodes is down. Otherwise returns it.
    fn hold(&mut self, from: u32, to: u32, event: Event) -> Option<Event> {
        match self.links.get_mut(&link_key(from, to)) {
            Some(link) if link.down => {
                link.held.push(event);
                None
            }
            _ => Some(event),
        }
    }

    /// Handles a unit or an answer that is at the receiving adapter.
    pub(crate) fn arrive(&mut self, event: Event) {
        let (Event::Arrive { from, to, .. } | Event::Answer { from, to, .. }) = event else {
            unreachable!("only units and answers arrive");
        };
        match if self.links.is_empty() { Some(event) } else { self.hold(from, to, event) } {
            Some(Event::Arrive { to, unit, .. }) => self.take_unit(to, unit),
            Some(Event::Answer { packet, .. }) => self.deliver_answer(packet),
            _ => {}
        }
    }

    /// Handles the last byte of a unit at the receiving adapter.
    pub(crate) fn take_in(&mut self, node: u32, len: u64, packet: Option<Packet>) {
        let profile = &self.config.profile;
        if !profile.software {
            return packet.into_iter().for_each(|packet| self.deliver(node, packet));
        }
        let packets = len.div_ceil(profile.packet_bytes.max(1)).max(1);
        // A unit that arrives while the kernel is working is found without another interrupt.
        let interrupt = if self.kernel_idle(node, Side::Receive) { profile.interrupt_ns } else { 0 };
        let message = if packet.is_some() { profile.cpu_receive_ns } else { 0 };
        let works = [
            (Work::Interrupt, interrupt),
            (Work::Protocol, message + packets.saturating_mul(profile.cpu_receive_packet_ns)),
            (Work::Copying, per_bytes(len, profile.cpu_receive_ps_per_byte)),
        ];
        let done = self.charge_kernel(node, Side::Receive, self.queue.now, &works);
        if let Some(packet) = packet {
            self.queue.schedule(done, Event::Take { node, packet });
        }
    }

    /// Handles a packet that has arrived completely.
    pub(crate) fn deliver(&mut self, node: u32, packet: Packet) {
        self.note_arrived(&packet);
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
