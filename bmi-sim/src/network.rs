//! The network: adapters that are busy while bytes pass, links with latency, packets that stay in order.
//!
//! **Model.** Each node has one adapter; all transports of the node share it. It is two resources, one for sending and one for receiving, each busy for a
//! price per message and a price per byte. A packet's first byte reaches the other adapter one link latency after it left; its last byte is there
//! when the receiving side has had time for all of them, so an idle path costs the bytes once (cut-through), and two senders to one receiver share
//! its bandwidth. Acknowledgements take the link's latency and nobody's time.
//!
//! **Invariants**
//! 1. Packets from one connection arrive in the order in which they were sent, whatever the jitter; so do its answers.
//! 2. A packet for a connection that is gone is dropped; its sender has been told otherwise, or is being told.
//! 3. While a link is down packets wait at its far end, in order. After the detection time its connections end.

use crate::events::{ConnRef, Event};
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
}

impl Packet {
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
            Packet::Nak { to, number, why } => (10, to, *number << 2 | *why as u64),
            Packet::Close { to } => (11, to, 0),
        };
        let conn = u64::from(conn.adapter) << 40 | u64::from(conn.slot) << 16 | u64::from(conn.generation);
        (conn << 4 | kind) ^ rest.rotate_right(20)
    }
}

/// The adapter of a node: when its two sides are free again, in ns.
#[derive(Debug, Default)]
pub(crate) struct Port {
    transmit_free: u64,
    receive_free: u64,
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
}

/// The key of a link: its nodes in order.
pub(crate) fn link_key(a: u32, b: u32) -> (u32, u32) {
    (a.min(b), a.max(b))
}

impl Core {
    fn latency(&mut self, from: u32, to: u32) -> u64 {
        let profile = &self.config.profile;
        let base = if from == to { profile.loopback_latency_ns } else { profile.link_latency_ns };
        match self.config.jitter_ns {
            0 => base,
            jitter => base + self.jitter.below(jitter + 1),
        }
    }

    fn adapter_time(&self, len: u64) -> u64 {
        let profile = &self.config.profile;
        profile.adapter_message_ns + per_bytes(len.saturating_add(profile.wire_header_bytes), profile.adapter_byte_ps)
    }

    /// Sends `packet` with `len` bytes behind its header from one node's adapter to another's, not before `ready`, arriving at least `extra` after it left.
    pub(crate) fn transmit(
        &mut self,
        route: (u32, u32),
        len: u64,
        ready: u64,
        extra: u64,
        order: &mut InOrder,
        packet: Packet,
    ) {
        let (from, to) = route;
        let busy = self.adapter_time(len);
        let latency = self.latency(from, to);
        let now = self.queue.now;
        let port = &mut self.nodes[from as usize].port;
        let start = ready.max(now).max(port.transmit_free);
        port.transmit_free = start.saturating_add(busy);
        let first_byte = start.saturating_add(self.config.profile.adapter_message_ns + latency + extra);
        order.arrival = order.arrival.max(first_byte);
        if let Packet::Close { .. } = packet {
            order.arrival = order.arrival.max(order.answer);
        }
        self.queue.schedule(order.arrival, Event::Arrive { from, to, len, packet });
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

    /// The first byte of a packet, or an answer, is at the receiving adapter.
    pub(crate) fn arrive(&mut self, event: Event) {
        let (Event::Arrive { from, to, .. } | Event::Answer { from, to, .. }) = event else {
            unreachable!("only packets arrive");
        };
        match if self.links.is_empty() { Some(event) } else { self.hold(from, to, event) } {
            Some(Event::Arrive { to, len, packet, .. }) => {
                let busy = self.adapter_time(len) - self.config.profile.adapter_message_ns;
                let message = self.config.profile.adapter_message_ns;
                let port = &mut self.nodes[to as usize].port;
                let start = self.queue.now.max(port.receive_free);
                port.receive_free = start.saturating_add(busy + message);
                let done = port.receive_free;
                self.queue.schedule(done, Event::Deliver { node: to, len, packet });
            }
            Some(Event::Answer { packet, .. }) => self.deliver_answer(packet),
            _ => {}
        }
    }

    /// The last byte of a packet is there.
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
