//! The sending side of adapters, and the switch.

use super::port::{Outgoing, link_key};
use crate::engine::{ConnRef, Event, Flow, Packet, Sending, Side, Unit};
use crate::faults::link::Trouble;
use crate::model::Core;
use crate::model::processor::Work;
use crate::prices::per_bytes;

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

impl Core {
    /// Returns how long a packet takes from one node to another. `waits` is the connection that
    /// gives up if it never arrives.
    pub(super) fn latency(&mut self, from: u32, to: u32, waits: ConnRef) -> u64 {
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

    /// Returns the connections whose ends a node was about to tell their peers.
    pub(crate) fn untold_ends(&self, node: u32) -> Vec<ConnRef> {
        let queues = self.nodes[node as usize].port.transmit.turns.flows.iter().flat_map(|(_, queue)| queue);
        let told = queues.filter_map(|out| if let Some(Packet::Close { to }) = out.packet { Some(to) } else { None });
        told.collect()
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
    pub(super) fn bus_of(&self, side: Side) -> usize {
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

    pub(crate) fn trouble(&mut self, a: u32, b: u32, act: impl FnOnce(&mut Trouble)) {
        act(&mut self.links.entry(link_key(a, b)).or_default().trouble);
    }

    /// Returns the delay that faults add to a packet from one node to another.
    pub(crate) fn lateness(&mut self, from: u32, to: u32, waits: ConnRef) -> u64 {
        let now = self.queue.now;
        let Some(link) = self.links.get_mut(&link_key(from, to)) else { return 0 };
        let (late, never) = link.trouble.lateness(now);
        if never {
            self.queue.schedule(now + late, Event::GivenUp { conn: waits });
        }
        late
    }
}
