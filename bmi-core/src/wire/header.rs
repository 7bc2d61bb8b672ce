//! The header at the front of every message between two endpoints.
//!
//! **Layout**, little-endian. The header has 32 bytes, and the payload follows it.
//!
//! ```text
//!  0               1             2                4              8        16       24        32
//!  +------+--------+-------------+----------------+--------------+--------+--------+---------+
//!  | kind | control| fast slots, | message credit | byte credit  | tag    | length | op      |
//!  | 4 bit| 4 bit  | a bit each  | u16            | u32          | u64    | u64    | u64     |
//!  +------+--------+-------------+----------------+--------------+--------+--------+---------+
//!  credits and slots are returned to the receiver of the message, on any message that is sent
//!
//!  kind             payload                        tag               length             op
//!   1 Eager         the message                    tag               of the payload     0
//!   2 Unexpected    the message                    tag               of the payload     0
//!   3 Announce      24 bytes for each remote piece tag               of the message     sender's operation
//!   4 Finish        none                           status            bytes transferred  sender's operation
//!   5 Cancel        none                           0                 0                  sender's operation
//!   6 Credit        none                           0                 0                  0
//!   7 Ready         24 bytes: the receive's memory tag               messages seen      receiver's operation
//!   8 Written       none                           0                 bytes written      receiver's operation
//!   9 Withdraw      none                           0                 0                  receiver's operation
//!  10 Withdrawn     none                           0                 0                  receiver's operation
//!  11 FastSlots     24 bytes: the slots' memory    0                 of one slot        number of slots
//!  12 ClearToWrite  24 bytes for each remote piece receiver's oper.  of the message     sender's operation
//!  13 GoAway        none                           0                 0                  0
//!  15 Probe         any, or 24 bytes: memory       asker's oper.     of the payload     purpose: see `message::probe`
//! ```
//!
//! - **Rendezvous**: Announce, the receiver's RDMA reads, Finish.
//! - **Write rendezvous**, without RDMA read: Announce, ClearToWrite, the sender's RDMA writes,
//!   Written. See `engine::message::write_rendezvous`.
//! - **Offered receive**: Ready, the sender's RDMA write, Written. See
//!   `engine::message::offered_receive`.
//! - **Fast RDMA**: FastSlots describes the fast-RDMA slots. An Eager message, an Unexpected
//!   message or an echo Probe may be written into a slot. See `engine::message::fast_rdma`.
//! - **Eviction**: GoAway is the last message of a side that accepted the connection. See
//!   `engine::life::idle_eviction`.
//!
//! Every field that is zero in the table must be zero on the wire.
//!
//! **Source.** [PVFS-IB, Table 1] (request, reply, control, data). [PVFS-IB §3.3.1] (credits
//! piggybacked, or in a message of their own).

/// Length of a header on the wire, in bytes.
pub(crate) const HEADER_LEN: usize = 32;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Eager = 1,
    Unexpected = 2,
    Announce = 3,
    Finish = 4,
    Cancel = 5,
    Credit = 6,
    Ready = 7,
    Written = 8,
    Withdraw = 9,
    Withdrawn = 10,
    FastSlots = 11,
    ClearToWrite = 12,
    GoAway = 13,
    Probe = 15,
}

/// The outcome of a rendezvous, as the receiver reports it to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinishStatus {
    Ok = 0,
    TooLong = 1,
    Cancelled = 2,
    Exhausted = 3,
}

impl FinishStatus {
    pub(crate) fn from_wire(word: u64) -> Option<FinishStatus> {
        [FinishStatus::Ok, FinishStatus::TooLong, FinishStatus::Cancelled, FinishStatus::Exhausted]
            .into_iter()
            .find(|status| *status as u64 == word)
    }
}

/// Credits on their way back to the side that spent them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Returned {
    /// At most [`MAX_CONTROL`].
    pub(crate) control: u8,
    pub(crate) messages: u16,
    pub(crate) bytes: u32,
    /// Fast-RDMA slots. The bit with a slot's number is set for each slot that is returned.
    pub(crate) slots: u8,
}

/// The largest number of control credits that a header can return.
pub(crate) const MAX_CONTROL: u8 = 15;

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) returned: Returned,
    pub(crate) tag: u64,
    pub(crate) len: u64,
    pub(crate) op: u64,
}

impl Header {
    #[inline]
    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut wire = [0; HEADER_LEN];
        debug_assert!(self.returned.control <= MAX_CONTROL, "{} control credits", self.returned.control);
        wire[0] = self.kind as u8 | self.returned.control << 4;
        wire[1] = self.returned.slots;
        wire[2..4].copy_from_slice(&self.returned.messages.to_le_bytes());
        wire[4..8].copy_from_slice(&self.returned.bytes.to_le_bytes());
        wire[8..16].copy_from_slice(&self.tag.to_le_bytes());
        wire[16..24].copy_from_slice(&self.len.to_le_bytes());
        wire[24..32].copy_from_slice(&self.op.to_le_bytes());
        wire
    }

    /// Splits a message into header and payload, and checks everything that does not depend on the
    /// connection.
    ///
    /// # Errors
    /// Returns a description of what is wrong with the message.
    #[inline]
    pub(crate) fn decode(message: &[u8]) -> Result<(Header, &[u8]), &'static str> {
        let (wire, payload) = message.split_first_chunk::<HEADER_LEN>().ok_or("a message shorter than its header")?;
        Header::decode_head(wire, payload.len()).map(|header| (header, payload))
    }

    /// Returns the tag of an Eager message with a payload of `payload_len` bytes, and the credits
    /// that it returns, if any. Returns `None` for anything else.
    ///
    /// The result is that of [`Header::decode_head`], in fewer steps.
    #[inline(always)]
    pub(crate) fn decode_eager(wire: &[u8; HEADER_LEN], payload_len: usize) -> Option<(u64, Option<Returned>)> {
        let word = |at: usize| u64::from_le_bytes(wire[at..at + 8].try_into().expect("eight bytes"));
        let first = word(0);
        let returned = Returned {
            control: first as u8 >> 4,
            slots: (first >> 8) as u8,
            messages: (first >> 16) as u16,
            bytes: (first >> 32) as u32,
        };
        let eager = first & 15 == Kind::Eager as u64 && word(16) == payload_len as u64 && word(24) == 0;
        eager.then(|| (word(8), (first >> 4 != 0).then_some(returned)))
    }

    /// Decodes the header of a message with a payload of `payload_len` bytes, and checks everything
    /// that does not depend on the connection.
    ///
    /// # Errors
    /// Returns a description of what is wrong with the header.
    #[inline]
    pub(crate) fn decode_head(wire: &[u8; HEADER_LEN], payload_len: usize) -> Result<Header, &'static str> {
        let word = |at: usize| u64::from_le_bytes(wire[at..at + 8].try_into().expect("eight bytes"));
        let kind = match wire[0] & 15 {
            1 => Kind::Eager,
            2 => Kind::Unexpected,
            3 => Kind::Announce,
            4 => Kind::Finish,
            5 => Kind::Cancel,
            6 => Kind::Credit,
            7 => Kind::Ready,
            8 => Kind::Written,
            9 => Kind::Withdraw,
            10 => Kind::Withdrawn,
            11 => Kind::FastSlots,
            12 => Kind::ClearToWrite,
            13 => Kind::GoAway,
            15 => Kind::Probe,
            _ => return Err("a message of unknown kind"),
        };
        let returned = Returned {
            control: wire[0] >> 4,
            slots: wire[1],
            messages: u16::from_le_bytes([wire[2], wire[3]]),
            bytes: u32::from_le_bytes([wire[4], wire[5], wire[6], wire[7]]),
        };
        let header = Header { kind, returned, tag: word(8), len: word(16), op: word(24) };
        header.check(payload_len).map(|()| header)
    }

    /// Decodes the header of a message in a fast-RDMA slot that has room for `room` bytes of
    /// payload.
    ///
    /// # Errors
    /// Returns a description of what is wrong with the header.
    pub(crate) fn decode_in_slot(wire: &[u8; HEADER_LEN], room: usize) -> Result<Header, &'static str> {
        let len = u64::from_le_bytes(wire[16..24].try_into().expect("eight bytes"));
        let len = usize::try_from(len).ok().filter(|len| *len <= room).ok_or("a message longer than its slot")?;
        let header = Header::decode_head(wire, len)?;
        match header.kind {
            Kind::Eager | Kind::Unexpected => Ok(header),
            Kind::Probe if header.op == 0 => Ok(header),
            _ => Err("a message in a fast-RDMA slot that does not belong there"),
        }
    }

    #[inline]
    fn check(&self, payload_len: usize) -> Result<(), &'static str> {
        let right = match self.kind {
            Kind::Eager | Kind::Unexpected => self.len == payload_len as u64 && self.op == 0,
            Kind::Probe => self.len == payload_len as u64,
            Kind::Announce | Kind::ClearToWrite => payload_len.is_multiple_of(crate::RemoteSlice::WIRE_LEN),
            Kind::Ready => payload_len == crate::RemoteSlice::WIRE_LEN,
            Kind::FastSlots => payload_len == crate::RemoteSlice::WIRE_LEN && self.tag == 0,
            Kind::Finish => payload_len == 0,
            Kind::Written => payload_len == 0 && self.tag == 0,
            Kind::Cancel | Kind::Withdraw | Kind::Withdrawn => payload_len == 0 && self.tag == 0 && self.len == 0,
            Kind::Credit | Kind::GoAway => payload_len == 0 && self.tag == 0 && self.len == 0 && self.op == 0,
        };
        if right { Ok(()) } else { Err("a header that contradicts its message") }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn round_trip() {
        let returned = Returned { control: MAX_CONTROL, messages: 2, bytes: 3, slots: 0x81 };
        let header = Header { kind: Kind::Announce, returned, tag: u64::MAX, len: 5, op: 6 };
        let mut message = header.encode().to_vec();
        message.extend([9; 48]);
        let (back, payload) = Header::decode(&message).unwrap();
        assert_eq!((back, payload.len()), (header, 48));
    }

    #[test]
    fn eager_headers_decode_by_fewer_steps() {
        let returned = Returned { control: 3, messages: u16::MAX, bytes: 1 << 31, slots: 0x81 };
        let header = Header { kind: Kind::Eager, returned, tag: u64::MAX, len: 5, op: 0 };
        assert_eq!(Header::decode_eager(&header.encode(), 5), Some((u64::MAX, Some(returned))));
        let nothing = Header { returned: Returned::default(), ..header };
        assert_eq!(Header::decode_eager(&nothing.encode(), 5), Some((u64::MAX, None)));
        assert_eq!(Header::decode_eager(&header.encode(), 6), None);
        assert_eq!(Header::decode_eager(&Header { op: 1, ..header }.encode(), 5), None);
        assert_eq!(Header::decode_eager(&Header { kind: Kind::Unexpected, ..header }.encode(), 5), None);
    }

    proptest! {
        /// Random bytes are hardly ever an Eager message. Most of the bytes generated here are.
        #[test]
        fn fewer_steps_say_the_same(
            first: u64, tag: u64, len in 0usize..3, told in 0u64..3, op in 0u64..2, eager in 0u8..4, credits in 0u8..2,
        ) {
            let kind = if eager > 0 { Kind::Eager as u64 } else { first & 15 };
            let first = ((first & !15) * u64::from(credits)) | kind;
            let words = [first, tag, told, op].map(u64::to_le_bytes);
            let wire: [u8; HEADER_LEN] = words.as_flattened().try_into().expect("four words");
            let some = |returned| (returned != Returned::default()).then_some(returned);
            let whole = Header::decode_head(&wire, len).ok().filter(|header| header.kind == Kind::Eager);
            let expected = whole.map(|header| (header.tag, some(header.returned)));
            prop_assert_eq!(Header::decode_eager(&wire, len), expected);
        }

        #[test]
        fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok((header, payload)) = Header::decode(&bytes) {
                prop_assert_eq!(&header.encode()[..], &bytes[..HEADER_LEN]);
                prop_assert_eq!(payload, &bytes[HEADER_LEN..]);
            }
        }
    }
}
