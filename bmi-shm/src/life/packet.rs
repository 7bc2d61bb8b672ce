//! The packets of the Unix socket: the handshake, descriptors, wake-ups, and why a connection is
//! cut.
//!
//! **Protocol.** `docs/design/shared-memory.md` has the packets and their layout. Packets keep
//! their bounds (`SOCK_SEQPACKET`).
//!
//! **Why wake over the socket** and not by an event fd that both sides hold? An event fd is one
//! open file, so both sides share its flags and its counter, whichever side made it. A hostile
//! sleeper could fill the counter and clear `O_NONBLOCK`. The next write to it, which is the
//! wake-up, would then block forever. An event fd does not support `RWF_NOWAIT` and cannot be
//! opened a second time. A send on this side's own end of a socket cannot be made to block.
//!
//! **Invariants.** Decoding allocates only private data, at most [`MAX_PRIVATE_DATA`] bytes.
//!
//! **Tests** are here. Random packets are sent in `hostile`.

use bmi_core::transport::MAX_PRIVATE_DATA;

use crate::ShmConfig;
use crate::error::{BAD_PACKET, Refusal, Violation};
use crate::shared::Geometry;

const MAGIC: u32 = 0x424d_4953;
/// The version of the rings, areas and packets together.
const VERSION: u16 = 2;
const HELLO_LEN: usize = 48;
/// Longest packet in bytes.
pub(crate) const MAX_PACKET: usize = HELLO_LEN + MAX_PRIVATE_DATA;

/// The kind of a handshake packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    Connect = 1,
    Accept = 2,
    Reject = 3,
}

/// A handshake packet without its private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) greeting: Greeting,
    pub(crate) geometry: Geometry,
    /// A word of the sender, and its address there. A process that can read it can reach the
    /// sender's memory through the kernel. Behind it is a secret word, which serves as the proof.
    pub(crate) cookie: u64,
    pub(crate) address: u64,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    Hello(Hello, Box<[u8]>),
    Pages { id: u32, len: u64 },
    Drop { id: u32 },
    Ask { id: u32 },
    Have { id: u32 },
    Proof { secret: u64 },
    Wake,
    Refusal(Refusal),
}

const HELLO: u8 = 1;
const PAGES: u8 = 2;
const DROP: u8 = 3;
const ASK: u8 = 4;
const WAKE: u8 = 5;
const REFUSAL: u8 = 6;
const HAVE: u8 = 7;
const PROOF: u8 = 8;

/// An encoded packet.
pub(crate) struct Encoded {
    bytes: [u8; MAX_PACKET],
    len: usize,
}

impl Encoded {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Encodes a handshake packet. The caller has checked that `private` is short enough.
pub(crate) fn encode_hello(hello: &Hello, private: &[u8]) -> Encoded {
    let mut packet = Encoded { bytes: [0; MAX_PACKET], len: 0 };
    packet.push(&[HELLO, hello.greeting as u8]);
    packet.push(&VERSION.to_le_bytes());
    packet.push(&MAGIC.to_le_bytes());
    packet.push(&(private.len() as u64).to_le_bytes());
    packet.push(&(hello.geometry.ring_len as u64).to_le_bytes());
    packet.push(&(hello.geometry.exposures as u64).to_le_bytes());
    packet.push(&hello.cookie.to_le_bytes());
    packet.push(&hello.address.to_le_bytes());
    packet.push(private);
    packet
}

impl Packet {
    pub(crate) fn encode(&self) -> Encoded {
        let mut packet = Encoded { bytes: [0; MAX_PACKET], len: 0 };
        match self {
            Packet::Hello(hello, private) => return encode_hello(hello, private),
            Packet::Pages { id, len } => {
                packet.push(&[PAGES]);
                packet.push(&id.to_le_bytes());
                packet.push(&len.to_le_bytes());
            }
            Packet::Drop { id } => {
                packet.push(&[DROP]);
                packet.push(&id.to_le_bytes());
            }
            Packet::Ask { id } => {
                packet.push(&[ASK]);
                packet.push(&id.to_le_bytes());
            }
            Packet::Have { id } => {
                packet.push(&[HAVE]);
                packet.push(&id.to_le_bytes());
            }
            Packet::Proof { secret } => {
                packet.push(&[PROOF]);
                packet.push(&secret.to_le_bytes());
            }
            Packet::Wake => packet.push(&[WAKE]),
            Packet::Refusal(refusal) => {
                packet.push(&[REFUSAL, refusal.status_to_wire(), refusal.work_to_wire()]);
                packet.push(&refusal.id.to_le_bytes());
            }
        }
        packet
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Packet, Violation> {
        let (kind, body) = bytes.split_first().ok_or(BAD_PACKET)?;
        let word32 = |at: usize| body.get(at..at + 4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")));
        let word64 = |at: usize| body.get(at..at + 8).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")));
        let exactly = |len: usize| if body.len() == len { Ok(()) } else { Err(BAD_PACKET) };
        let id = || word32(0).ok_or(BAD_PACKET);
        match *kind {
            HELLO => decode_hello(bytes),
            PAGES => {
                exactly(12)?;
                Ok(Packet::Pages { id: id()?, len: word64(4).ok_or(BAD_PACKET)? })
            }
            DROP => exactly(4).and_then(|()| Ok(Packet::Drop { id: id()? })),
            ASK => exactly(4).and_then(|()| Ok(Packet::Ask { id: id()? })),
            HAVE => exactly(4).and_then(|()| Ok(Packet::Have { id: id()? })),
            PROOF => exactly(8).and_then(|()| Ok(Packet::Proof { secret: word64(0).ok_or(BAD_PACKET)? })),
            WAKE => exactly(0).map(|()| Packet::Wake),
            REFUSAL => {
                exactly(6)?;
                let refusal = Refusal::from_wire(body[0], body[1], word32(2).ok_or(BAD_PACKET)?);
                refusal.map(Packet::Refusal).ok_or(BAD_PACKET)
            }
            _ => Err(BAD_PACKET),
        }
    }
}

fn decode_hello(bytes: &[u8]) -> Result<Packet, Violation> {
    let word = |at: usize| {
        bytes.get(at..at + 8).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes"))).ok_or(BAD_PACKET)
    };
    let first = word(0)?.to_le_bytes();
    if first[4..] != MAGIC.to_le_bytes() {
        return Err(Violation::Magic);
    }
    let theirs = u16::from_le_bytes([first[2], first[3]]);
    if theirs != VERSION {
        return Err(Violation::Version { theirs, ours: VERSION });
    }
    let greeting = match first[1] {
        1 => Greeting::Connect,
        2 => Greeting::Accept,
        3 => Greeting::Reject,
        _ => return Err(BAD_PACKET),
    };
    let private = bytes.get(HELLO_LEN..).ok_or(BAD_PACKET)?;
    if private.len() > MAX_PRIVATE_DATA || word(8)? != private.len() as u64 {
        return Err(BAD_PACKET);
    }
    let small = |word: u64| usize::try_from(word).map_err(|_| BAD_PACKET);
    let geometry = Geometry { ring_len: small(word(16)?)?, exposures: small(word(24)?)? };
    if greeting != Greeting::Reject && !geometry.is_sane() {
        return Err(BAD_PACKET);
    }
    Ok(Packet::Hello(Hello { greeting, geometry, cookie: word(32)?, address: word(40)? }, private.into()))
}

/// Returns this side's hello. It contains the address of this side's memory only for a peer that
/// may reach the memory through the kernel.
pub(super) fn hello(config: &ShmConfig, cookie: &[u64; 2], greeting: Greeting, crosses: bool) -> Hello {
    let (cookie, address) = if crosses { (cookie[0], std::ptr::from_ref(cookie) as u64) } else { (0, 0) };
    Hello { greeting, geometry: config.geometry(), cookie, address }
}

#[cfg(test)]
mod tests {
    use bmi_core::transport::{WorkKind, WorkStatus};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn packets_round_trip() {
        let geometry = Geometry { ring_len: 64 << 10, exposures: 100 };
        let hello = Hello { greeting: Greeting::Accept, geometry, cookie: 7, address: u64::MAX };
        let refusal = Refusal { status: WorkStatus::TooLong, work: Some(WorkKind::Send), id: 9 };
        for packet in [
            Packet::Hello(hello, vec![3; MAX_PRIVATE_DATA].into()),
            Packet::Hello(hello, Box::default()),
            Packet::Pages { id: 1, len: 1 << 40 },
            Packet::Drop { id: 2 },
            Packet::Ask { id: 3 },
            Packet::Have { id: 4 },
            Packet::Proof { secret: u64::MAX - 1 },
            Packet::Wake,
            Packet::Refusal(refusal),
        ] {
            assert_eq!(Packet::decode(packet.encode().bytes()), Ok(packet));
        }
    }

    #[test]
    fn another_version_is_named() {
        let geometry = Geometry { ring_len: 64 << 10, exposures: 100 };
        let hello = Hello { greeting: Greeting::Connect, geometry, cookie: 0, address: 0 };
        let mut bytes = encode_hello(&hello, b"x").bytes().to_vec();
        bytes[2] = 9;
        assert_eq!(Packet::decode(&bytes), Err(Violation::Version { theirs: 9, ours: VERSION }));
        bytes[4] ^= 1;
        assert_eq!(Packet::decode(&bytes), Err(Violation::Magic));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_decode_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..400), kind in 0u8..10) {
            let _ = Packet::decode(&bytes);
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            let _ = Packet::decode(&bytes);
        }
    }
}
