//! What events carry: the names of connections, and the packets between them.

use bmi_core::ServiceClass;
use bmi_core::transport::ConnId;

/// Names a connection of the world: adapter, slot, and how often the slot was used before. A name
/// is never used for two connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnRef {
    pub(crate) adapter: u32,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl ConnRef {
    pub(crate) fn id(self) -> ConnId {
        ConnId { slot: self.slot, generation: self.generation }
    }
}

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
    pub(crate) fn is_work(&self) -> bool {
        matches!(self, Packet::Message { .. } | Packet::ReadRequest { .. } | Packet::ReadReply { .. })
    }

    /// Returns the connection that waits for the packet, if it is an answer.
    pub(crate) fn waited_for_by(&self) -> ConnRef {
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
    pub(crate) fn name(&self) -> &'static str {
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

/// A piece of a packet in flight.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) flow: Flow,
    pub(crate) class: ServiceClass,
    pub(crate) len: u64,
    /// How long it keeps the receiving adapter busy.
    pub(crate) busy: u64,
    /// The packet, in its last unit.
    pub(crate) packet: Option<Packet>,
    /// Pairs the two ends of a message in the timeline; 0 for none.
    pub(crate) trace: u64,
}

impl Unit {
    /// Returns a word that distinguishes this unit from others in the digest.
    pub(crate) fn word(&self) -> u64 {
        let from = self.flow.from;
        let flow = u64::from(from.adapter) << 40 | u64::from(from.slot) << 16 | u64::from(from.generation);
        self.packet.as_ref().map_or(flow << 1 | u64::from(self.flow.replies), Packet::word)
    }
}
