//! The wire format: a preamble in each direction, then frames.
//!
//! **Why.** Every field has a fixed width and place, so that a frame can be checked before it is
//! acted on. Long messages are cut by a fixed rule, never by the sender's choice. So replies to the
//! peer's reads pass between the pieces of this side's own bulk data, and the receiver knows the
//! length of every piece in advance.
//!
//! **Protocol.** `docs/design/protocol.md`, section 12, has the layout of the preamble and of the
//! frames.
//!
//! **Tests.** `every_frame_round_trips`, `any_bytes_decode_or_are_refused`, and
//! `tests/it/hostile.rs` with raw sockets.

use bmi_backend::Violation;
use bmi_backend::software::Refusal;
use bmi_core::transport::MAX_PRIVATE_DATA;

/// Begins every connection, in both directions.
pub(crate) const MAGIC: [u8; 8] = *b"BMI-TCP\n";
/// Version of the frames. Incremented with any change to them.
const VERSION: u16 = 1;
/// The breaches of a peer whose bytes are no preamble, and no frame.
pub(crate) const BAD_PREAMBLE: Violation = Violation::Malformed("preamble");
pub(crate) const BAD_HEADER: Violation = Violation::Malformed("frame header");
/// Length of a preamble without its private data, in bytes.
pub(crate) const PREAMBLE: usize = 16;
/// Length of a short header, in bytes.
pub(crate) const HEADER: usize = 16;
/// Length of the header of WRITE and READ, in bytes.
pub(crate) const LONG_HEADER: usize = 40;
/// Longest payload of a frame, in bytes. It takes about 50 µs on a fast loopback, so no frame waits
/// long behind another.
pub(crate) const PIECE: u64 = 256 << 10;

/// Returns the payload length of the next frame when `left` bytes remain.
pub(crate) fn piece(left: u64) -> u32 {
    left.min(PIECE) as u32
}

/// The kind of a preamble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    Connect,
    Accept,
    Reject,
    /// The socket is a further stream of a connection; a token in the private data says of which.
    Join,
    /// In the clear, from a side that takes nothing in the clear.
    Secure,
}

/// The first bytes of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preamble {
    pub(crate) version: u16,
    pub(crate) greeting: Greeting,
    /// Number of further streams: asked for in `Connect`, agreed in `Accept`, else 0.
    pub(crate) further: u8,
    /// Length of the private data that follows, checked against [`MAX_PRIVATE_DATA`].
    pub(crate) private_len: usize,
}

impl Preamble {
    /// Encodes a preamble of this version. `private_len` is at most [`MAX_PRIVATE_DATA`].
    pub(crate) fn encode(greeting: Greeting, further: u8, private_len: usize) -> [u8; PREAMBLE] {
        debug_assert!(private_len <= MAX_PRIVATE_DATA);
        let mut wire = [0; PREAMBLE];
        wire[..8].copy_from_slice(&MAGIC);
        wire[8..10].copy_from_slice(&VERSION.to_le_bytes());
        wire[10] = match greeting {
            Greeting::Connect => 1,
            Greeting::Accept => 2,
            Greeting::Reject => 3,
            Greeting::Join => 4,
            Greeting::Secure => 5,
        };
        wire[11] = further;
        wire[12..14].copy_from_slice(&(private_len as u16).to_le_bytes());
        wire
    }

    /// Decodes a preamble. Returns `None` while `bytes` may still become one. Wrong bytes are
    /// refused as soon as they arrive.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Preamble>, Violation> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(Violation::Magic);
        }
        let Some(wire) = bytes.first_chunk::<PREAMBLE>() else { return Ok(None) };
        let version = u16::from_le_bytes([wire[8], wire[9]]);
        if version != VERSION {
            return Err(Violation::Version { theirs: version, ours: VERSION });
        }
        let greeting = match wire[10] {
            1 => Greeting::Connect,
            2 => Greeting::Accept,
            3 => Greeting::Reject,
            4 => Greeting::Join,
            5 => Greeting::Secure,
            _ => return Err(BAD_PREAMBLE),
        };
        let (further, private_len) = (wire[11], usize::from(u16::from_le_bytes([wire[12], wire[13]])));
        let agrees = matches!(greeting, Greeting::Connect | Greeting::Accept);
        if private_len > MAX_PRIVATE_DATA || further != 0 && !agrees || wire[14..] != [0, 0] {
            return Err(BAD_PREAMBLE);
        }
        Ok(Some(Preamble { version, greeting, further, private_len }))
    }
}

/// Encodes a refusal as the word of an ERROR frame: status, kind of work, two zero bytes, the
/// number of the read.
fn refusal_to_wire(refusal: Refusal) -> u64 {
    let [status, work] = [refusal.status_to_wire(), refusal.work_to_wire()];
    u64::from(status) | u64::from(work) << 8 | u64::from(refusal.id) << 32
}

fn refusal_from_wire(wire: u64) -> Option<Refusal> {
    let [status, work, 0, 0, id @ ..] = wire.to_le_bytes() else { return None };
    Refusal::from_wire(status, work, u32::from_le_bytes(id))
}

/// What the bytes of a PART belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    /// The answer to the read with this number.
    Reply(u32),
    /// The write that the BULK with this number, counted from 0, has announced.
    Write(u32),
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Send { len: u64 },
    Write { len: u64, key: u64, addr: u64, immediate: Option<u32> },
    Data { here: u32 },
    Read { len: u64, key: u64, addr: u64, id: u32 },
    Reply { here: u32, id: u32 },
    Close,
    Error(Refusal),
    Bulk { len: u64, key: u64, addr: u64 },
    Part { here: u32, offset: u64, whole: Whole },
}

const SEND: u8 = 1;
const WRITE: u8 = 2;
const DATA: u8 = 3;
const READ: u8 = 4;
const REPLY: u8 = 5;
const CLOSE: u8 = 6;
const ERROR: u8 = 7;
const BULK: u8 = 8;
const PART: u8 = 9;

impl Frame {
    /// Returns the header's bytes and its length.
    pub(crate) fn encode(&self) -> ([u8; LONG_HEADER], usize) {
        let mut wire = [0; LONG_HEADER];
        let (kind, here, value) = match *self {
            Frame::Send { len } => (SEND, piece(len), len),
            Frame::Write { len, .. } => (WRITE, piece(len), len),
            Frame::Data { here } => (DATA, here, 0),
            Frame::Read { len, .. } => (READ, 0, len),
            Frame::Reply { here, id } => (REPLY, here, u64::from(id)),
            Frame::Close => (CLOSE, 0, 0),
            Frame::Error(refusal) => (ERROR, 0, refusal_to_wire(refusal)),
            Frame::Bulk { len, .. } => (BULK, 0, len),
            Frame::Part { here, offset, .. } => (PART, here, offset),
        };
        wire[0] = kind;
        wire[4..8].copy_from_slice(&here.to_le_bytes());
        wire[8..16].copy_from_slice(&value.to_le_bytes());
        let (key, addr, detail) = match *self {
            Frame::Write { key, addr, immediate, .. } => {
                wire[1] = u8::from(immediate.is_some());
                (key, addr, immediate.unwrap_or(0))
            }
            Frame::Read { key, addr, id, .. } => (key, addr, id),
            Frame::Bulk { key, addr, .. } => (key, addr, 0),
            Frame::Part { whole: Whole::Reply(id), .. } => (0, 0, id),
            Frame::Part { whole: Whole::Write(number), .. } => {
                wire[1] = 1;
                (0, 0, number)
            }
            _ => return (wire, HEADER),
        };
        wire[16..24].copy_from_slice(&key.to_le_bytes());
        wire[24..32].copy_from_slice(&addr.to_le_bytes());
        wire[32..36].copy_from_slice(&detail.to_le_bytes());
        (wire, LONG_HEADER)
    }

    /// Returns the frame at the beginning of `bytes` and the length of its header, or `None` if
    /// there are too few bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Frame, usize)>, Violation> {
        let Some(short) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
        let (kind, flags) = (short[0], short[1]);
        let here = u32::from_le_bytes([short[4], short[5], short[6], short[7]]);
        let value = u64_at(bytes, 8);
        if flags != 0 && (!matches!(kind, WRITE | PART) || flags != 1)
            || short[2..4] != [0, 0]
            || u64::from(here) > PIECE
        {
            return Err(BAD_HEADER);
        }
        let frame = match kind {
            SEND if here == piece(value) => Frame::Send { len: value },
            DATA if value == 0 => Frame::Data { here },
            REPLY => Frame::Reply { here, id: u32::try_from(value).map_err(|_| BAD_HEADER)? },
            CLOSE if here == 0 && value == 0 => Frame::Close,
            ERROR if here == 0 => Frame::Error(refusal_from_wire(value).ok_or(BAD_HEADER)?),
            WRITE | READ | BULK | PART => return Frame::decode_long(bytes, kind, flags, here, value),
            _ => return Err(BAD_HEADER),
        };
        Ok(Some((frame, HEADER)))
    }

    fn decode_long(
        bytes: &[u8],
        kind: u8,
        flags: u8,
        here: u32,
        len: u64,
    ) -> Result<Option<(Frame, usize)>, Violation> {
        let Some(long) = bytes.first_chunk::<LONG_HEADER>() else { return Ok(None) };
        let (key, addr) = (u64_at(long, 16), u64_at(long, 24));
        let detail = u32::from_le_bytes([long[32], long[33], long[34], long[35]]);
        if long[36..] != [0; 4] {
            return Err(BAD_HEADER);
        }
        let frame = match kind {
            WRITE if here == piece(len) && (flags == 1 || detail == 0) => {
                Frame::Write { len, key, addr, immediate: (flags == 1).then_some(detail) }
            }
            READ if here == 0 => Frame::Read { len, key, addr, id: detail },
            BULK if here == 0 && len > 0 && detail == 0 => Frame::Bulk { len, key, addr },
            PART if (key, addr) == (0, 0) => {
                let whole = if flags == 1 { Whole::Write(detail) } else { Whole::Reply(detail) };
                Frame::Part { here, offset: len, whole }
            }
            _ => return Err(BAD_HEADER),
        };
        Ok(Some((frame, LONG_HEADER)))
    }
}

/// Returns the length of the message that is first in `bytes`, if it is there as a whole.
#[inline]
pub(crate) fn whole_message(bytes: &[u8]) -> Option<usize> {
    let header = bytes.first_chunk::<HEADER>()?;
    let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    let here = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    let is_whole = kind == SEND.into() && u64_at(header, 8) == here.into() && here as usize <= bytes.len() - HEADER;
    is_whole.then_some(here as usize)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refusal() -> impl Strategy<Value = Refusal> {
        (1..=4u8, 0..=3u8, any::<u32>()).prop_map(|(status, work, id)| Refusal::from_wire(status, work, id).unwrap())
    }

    fn frame() -> impl Strategy<Value = Frame> {
        let here = 0..=PIECE as u32;
        prop_oneof![
            any::<u64>().prop_map(|len| Frame::Send { len }),
            (any::<u64>(), any::<u64>(), any::<u64>(), any::<Option<u32>>())
                .prop_map(|(len, key, addr, immediate)| Frame::Write { len, key, addr, immediate }),
            here.clone().prop_map(|here| Frame::Data { here }),
            (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>()).prop_map(|(len, key, addr, id)| Frame::Read {
                len,
                key,
                addr,
                id
            }),
            (here.clone(), any::<u32>()).prop_map(|(here, id)| Frame::Reply { here, id }),
            Just(Frame::Close),
            refusal().prop_map(Frame::Error),
            (1..=u64::MAX, any::<u64>(), any::<u64>()).prop_map(|(len, key, addr)| Frame::Bulk { len, key, addr }),
            (here, any::<u64>(), any::<bool>(), any::<u32>()).prop_map(|(here, offset, write, number)| Frame::Part {
                here,
                offset,
                whole: if write { Whole::Write(number) } else { Whole::Reply(number) },
            }),
        ]
    }

    proptest! {
        #[test]
        fn every_frame_round_trips(frame in frame(), rest in proptest::collection::vec(any::<u8>(), 0..20)) {
            let (wire, len) = frame.encode();
            let mut bytes = wire[..len].to_vec();
            for cut in 0..len {
                prop_assert_eq!(Frame::decode(&bytes[..cut]), Ok(None));
            }
            bytes.extend(rest);
            prop_assert_eq!(Frame::decode(&bytes), Ok(Some((frame, len))));
        }

        #[test]
        fn any_bytes_decode_or_are_refused(kind in 0u8..12, tail in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..60)) {
            let bytes: Vec<u8> = std::iter::once(kind).chain(tail).collect();
            if let Some(len) = whole_message(&bytes) {
                prop_assert_eq!(Frame::decode(&bytes), Ok(Some((Frame::Send { len: len as u64 }, HEADER))));
            }
            if let Ok(Some((frame, len))) = Frame::decode(&bytes) {
                let (wire, again) = frame.encode();
                prop_assert_eq!((again, &wire[..again]), (len, &bytes[..len]), "one encoding for each frame");
            }
        }

        #[test]
        fn any_preamble_decodes_or_is_refused(good in 0usize..17, tail in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut bytes = Preamble::encode(Greeting::Connect, 3, 7)[..good.min(16)].to_vec();
            bytes.extend(tail);
            if let Ok(Some(preamble)) = Preamble::decode(&bytes) {
                prop_assert_eq!(&Preamble::encode(preamble.greeting, preamble.further, preamble.private_len)[..], &bytes[..PREAMBLE]);
            }
        }
    }

    #[test]
    fn a_preamble_is_known_by_its_first_wrong_byte() {
        assert_eq!(Preamble::decode(b"G"), Err(Violation::Magic));
        let mut wire = Preamble::encode(Greeting::Connect, 15, 256);
        assert_eq!(Preamble::decode(&wire[..15]), Ok(None));
        assert_eq!(
            Preamble::decode(&wire),
            Ok(Some(Preamble { version: VERSION, greeting: Greeting::Connect, further: 15, private_len: 256 }))
        );
        wire[13] = 2;
        assert_eq!(Preamble::decode(&wire), Err(BAD_PREAMBLE));
        wire[8] = 9;
        assert_eq!(Preamble::decode(&wire), Err(Violation::Version { theirs: 9, ours: VERSION }));
    }
}
