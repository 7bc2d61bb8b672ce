//! The headers before the request of a call, and before its reply.
//!
//! **Layout**, little-endian:
//!
//! ```text
//!  call     0       1      2           3      4         8            12    16          24
//!           +-------+------+-----------+------+---------+------------+-----+-----------+---------+------------+------+
//!           | 'C'   | path | direction | form | request | descriptor |  0  | data      | request | descriptor | data |
//!           | u8    | u8   | u8        | u8   | u32     | u32        | u32 | u64       |         |            |      |
//!           +-------+------+-----------+------+---------+------------+-----+-----------+---------+------------+------+
//!           path: 0 none, 1 with the message, 2 server-based, 3 client-based; direction: 0 none, 1 write, 2 read;
//!           form: bit 1: the message with the data (request or reply) goes into a slot if one is free;
//!                 bit 0: the receive for the reply has a head of 128 bytes, followed by the memory for the data
//!
//!  reply    0       1      4         8           16
//!           +-------+------+---------+-----------+-------+------+
//!           | kind  |  0   | bytes   | data, at  | bytes | data |
//!           | u8    | u24  | u32     | u64       |       |      |
//!           +-------+------+---------+-----------+-------+------+
//!           kind 0: the reply; 1: a grant, 2: an offer: of the memory described in the bytes, for the data from `at`;
//!           3: as 0, but the bytes of the reply are in the next message, because they do not fit a head;
//!           4: the server gave the request up, and there is no reply
//!           data: the length of the data that the server moved, on any path
//! ```

use crate::error::{Error, ErrorKind};
use crate::paths::{Direction, Path};
use crate::wire::BulkDescriptor;

/// Bytes before the request.
pub(crate) const CALL_HEAD: usize = 24;
/// Bytes before the bytes of a reply.
pub(crate) const REPLY_HEADER: usize = 16;
/// Bytes before the data of a reply: its header and room for its bytes.
pub(crate) const REPLY_HEAD: usize = 128;

const MAGIC: u8 = b'C';

/// How the data travels, as far as the two sides must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// There is no data.
    None = 0,
    /// With the request or the reply. If there is a descriptor, written ahead of the reply.
    Message = 1,
    ServerBased = 2,
    ClientBased = 3,
}

impl Way {
    pub(crate) fn of(path: Path) -> Way {
        match path {
            Path::Inline | Path::FastRdma => Way::Message,
            Path::ServerBased => Way::ServerBased,
            Path::ClientBased | Path::Hybrid => Way::ClientBased,
        }
    }
}

/// The header before a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallHead {
    pub(crate) way: Way,
    pub(crate) direction: Option<Direction>,
    /// The reply's receive has a head of [`REPLY_HEAD`] bytes, followed by the user's memory.
    pub(crate) narrow: bool,
    /// The data uses fast RDMA, even if it fits an eager message.
    pub(crate) slot: bool,
    pub(crate) request: u32,
    pub(crate) descriptor: u32,
    pub(crate) data: u64,
}

impl CallHead {
    pub(crate) fn encode(&self) -> [u8; CALL_HEAD] {
        let mut wire = [0; CALL_HEAD];
        let direction = match self.direction {
            None => 0,
            Some(Direction::Write) => 1,
            Some(Direction::Read) => 2,
        };
        wire[..4].copy_from_slice(&[
            MAGIC,
            self.way as u8,
            direction,
            u8::from(self.narrow) | u8::from(self.slot) << 1,
        ]);
        wire[4..8].copy_from_slice(&self.request.to_le_bytes());
        wire[8..12].copy_from_slice(&self.descriptor.to_le_bytes());
        wire[16..24].copy_from_slice(&self.data.to_le_bytes());
        wire
    }

    /// Decodes the header of a message of `len` bytes and checks that it is consistent.
    ///
    /// # Errors
    /// A description of the problem.
    pub(crate) fn decode(wire: &[u8; CALL_HEAD], len: usize) -> Result<CallHead, &'static str> {
        let word = |at: usize| u32::from_le_bytes(wire[at..at + 4].try_into().expect("four bytes"));
        if wire[0] != MAGIC || wire[3] > 3 || word(12) != 0 {
            return Err("is no call");
        }
        let way = [Way::None, Way::Message, Way::ServerBased, Way::ClientBased];
        let way = way.into_iter().find(|way| *way as u8 == wire[1]).ok_or("has an unknown path")?;
        let direction = match wire[2] {
            0 => None,
            1 => Some(Direction::Write),
            2 => Some(Direction::Read),
            _ => return Err("has an unknown direction"),
        };
        let data = u64::from_le_bytes(wire[16..24].try_into().expect("eight bytes"));
        let head = CallHead {
            way,
            direction,
            narrow: wire[3] & 1 == 1,
            slot: wire[3] & 2 == 2,
            request: word(4),
            descriptor: word(8),
            data,
        };
        if head.adds_up(len) { Ok(head) } else { Err("contradicts itself") }
    }

    fn adds_up(&self, len: usize) -> bool {
        let with_it = if self.carries_data() { self.data } else { 0 };
        let parts = [CALL_HEAD as u64, self.request.into(), self.descriptor.into(), with_it];
        let whole = parts.into_iter().try_fold(0u64, u64::checked_add) == Some(len as u64);
        let described = self.descriptor > 0;
        let fits = match (self.way, self.direction) {
            (Way::None, None) => !described && self.data == 0,
            (Way::Message, Some(Direction::Write)) => !described,
            (Way::Message, Some(Direction::Read)) => self.narrow != described,
            (Way::ServerBased, Some(_)) => described,
            (Way::ClientBased, Some(_)) => !described,
            _ => false,
        };
        let narrow = !self.narrow || (self.way == Way::Message && self.direction == Some(Direction::Read));
        whole && fits && narrow && (!self.slot || self.way == Way::Message)
    }

    /// Returns true if the data follows the request in the same message.
    pub(crate) fn carries_data(&self) -> bool {
        self.way == Way::Message && self.direction == Some(Direction::Write)
    }
}

/// The kind of a message from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyKind {
    Reply = 0,
    Grant = 1,
    Offer = 2,
    Continued = 3,
    Unanswered = 4,
}

/// The header before a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyHeader {
    pub(crate) kind: ReplyKind,
    pub(crate) bytes: u32,
    /// For a reply, the length of the data that was moved. For a grant or an offer, its offset in
    /// the request's data.
    pub(crate) at: u64,
}

impl ReplyHeader {
    pub(crate) fn encode(&self) -> [u8; REPLY_HEADER] {
        let mut wire = [0; REPLY_HEADER];
        wire[0] = self.kind as u8;
        wire[4..8].copy_from_slice(&self.bytes.to_le_bytes());
        wire[8..16].copy_from_slice(&self.at.to_le_bytes());
        wire
    }

    pub(crate) fn decode(wire: &[u8; REPLY_HEADER]) -> Result<ReplyHeader, Error> {
        let kinds = [ReplyKind::Reply, ReplyKind::Grant, ReplyKind::Offer, ReplyKind::Continued, ReplyKind::Unanswered];
        let kind = kinds.into_iter().find(|kind| *kind as u8 == wire[0] && wire[1..4] == [0; 3]);
        let kind = kind.ok_or_else(|| bad_reply("of unknown kind"))?;
        let bytes = u32::from_le_bytes(wire[4..8].try_into().expect("four bytes"));
        Ok(ReplyHeader { kind, bytes, at: u64::from_le_bytes(wire[8..16].try_into().expect("eight bytes")) })
    }
}

/// Returns the error for an invalid reply.
pub(crate) fn bad_reply(what: &str) -> Error {
    Error::new(ErrorKind::Protocol, format!("a reply {what}"))
}

/// Appends a descriptor.
pub(crate) fn put_descriptor(wire: &mut Vec<u8>, descriptor: &BulkDescriptor) {
    *wire = descriptor.encode(std::mem::take(wire));
}

/// Decodes a descriptor of at most `max` pieces.
pub(crate) fn descriptor(wire: &[u8], max: usize) -> Result<BulkDescriptor, Error> {
    BulkDescriptor::decode(wire, max).map_err(|error| Error::new(ErrorKind::Protocol, error.to_string()))
}

/// Checks that a call's head and a reply's header have one encoding, for the fuzz target
/// `message`.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_heads(bytes: &[u8]) {
    if let Some(wire) = bytes.first_chunk::<CALL_HEAD>()
        && let Ok(head) = CallHead::decode(wire, bytes.len())
    {
        assert_eq!(head.encode(), *wire);
        assert!(u64::from(head.request) + u64::from(head.descriptor) <= bytes.len() as u64);
        assert!(!head.carries_data() || head.data <= bytes.len() as u64);
    }
    if let Some(wire) = bytes.first_chunk::<REPLY_HEADER>()
        && let Ok(header) = ReplyHeader::decode(wire)
    {
        assert_eq!(header.encode(), *wire);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn heads_round_trip() {
        let head = CallHead {
            way: Way::ServerBased,
            direction: Some(Direction::Read),
            narrow: false,
            slot: false,
            request: 30,
            descriptor: 48,
            data: 1 << 40,
        };
        assert_eq!(CallHead::decode(&head.encode(), CALL_HEAD + 78), Ok(head));
        assert!(CallHead::decode(&head.encode(), CALL_HEAD + 77).is_err());
        let reply = ReplyHeader { kind: ReplyKind::Offer, bytes: 7, at: u64::MAX };
        assert_eq!(ReplyHeader::decode(&reply.encode()).unwrap(), reply);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(wire in proptest::array::uniform24(any::<u8>()), call in any::<bool>(), len in 0usize..1000) {
            let mut wire = wire;
            if call {
                (wire[0], wire[3]) = (MAGIC, wire[3] % 4);
                wire[12..16].fill(0);
            }
            if let Ok(head) = CallHead::decode(&wire, len) {
                prop_assert_eq!(head.encode(), wire);
            }
            let _ = ReplyHeader::decode(wire[..REPLY_HEADER].try_into().expect("16 bytes"));
            let _ = descriptor(&wire, 8);
        }
    }
}
