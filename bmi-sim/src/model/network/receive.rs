//! The receiving side of adapters: units, answers, and packets that are complete.

use super::port::{InOrder, link_key};
use crate::engine::{Event, Packet, Refusal, Side, Unit};
use crate::model::Core;
use crate::model::processor::Work;
use crate::prices::per_bytes;

impl Core {
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

    pub(super) fn go_on_receiving(&mut self, node: u32) {
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
            Packet::Refused { to } => self.handle_refusal(to, Refusal::NobodyListens),
            other => unreachable!("{other:?} is not an answer"),
        }
    }
}
