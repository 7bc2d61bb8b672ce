//! The messages of the side channel: how two adapters find each other, and what they cannot tell
//! each other with verbs.
//!
//! **Why.** To connect queue pairs, each side needs numbers and addresses of the other. A TCP
//! connection carries them, as in most programs that use verbs without a connection manager. It
//! stays open, because the kernel closes it when a process dies, which no queue pair reports.
//!
//! **Layout.** `docs/design/protocol.md`, section 13, has the messages and their fields.
//!
//! **Tests** below: any bytes decode to a message or to a [`Violation`], and an encoded message
//! decodes to itself.

use bmi_core::transport::MAX_PRIVATE_DATA;

use crate::error::{BAD_GREETING, Bye, Violation};

/// The version of this layout.
const VERSION: u16 = 1;
/// Bytes of a message, without private data.
pub(crate) const MESSAGE: usize = 64;
const MAGIC: [u8; 8] = *b"bmi-ib\r\n";

/// One side's queue pair, as the other side needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) queue_pair: u32,
    pub(crate) first_packet: u32,
    pub(crate) lid: u16,
    pub(crate) mtu: u8,
    pub(crate) ethernet: bool,
    pub(crate) reads_answered: u8,
    pub(crate) reads_begun: u8,
    pub(crate) gid: [u8; 16],
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Connect(Port),
    Accept(Port),
    Reject,
    Ready,
    /// The reason, and whether a request of the sender's own failed.
    Bye(Bye, bool),
    Check {
        key: u64,
        addr: u64,
        write: bool,
    },
    Checked,
}

impl Message {
    /// Returns the bytes of the message, announcing `private` bytes of private data.
    pub(crate) fn encode(&self, private: usize) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..14].copy_from_slice(&(private as u16).to_le_bytes());
        bytes[10] = match self {
            Message::Connect(_) => 1,
            Message::Accept(_) => 2,
            Message::Reject => 3,
            Message::Ready => 4,
            Message::Bye(..) => 5,
            Message::Check { .. } => 6,
            Message::Checked => 7,
        };
        match self {
            Message::Connect(port) | Message::Accept(port) => {
                bytes[16..20].copy_from_slice(&port.queue_pair.to_le_bytes());
                bytes[20..24].copy_from_slice(&port.first_packet.to_le_bytes());
                bytes[24..26].copy_from_slice(&port.lid.to_le_bytes());
                (bytes[26], bytes[27]) = (port.mtu, port.ethernet.into());
                (bytes[28], bytes[29]) = (port.reads_answered, port.reads_begun);
                bytes[32..48].copy_from_slice(&port.gid);
            }
            Message::Bye(bye, own) => (bytes[11], bytes[14]) = (*bye as u8, (*own).into()),
            Message::Check { key, addr, write } => {
                bytes[16..24].copy_from_slice(&addr.to_le_bytes());
                bytes[48..56].copy_from_slice(&key.to_le_bytes());
                bytes[56] = (*write).into();
            }
            Message::Reject | Message::Ready | Message::Checked => {}
        }
        bytes
    }

    /// Decodes the message at the beginning of `bytes`. Also returns how much private data follows
    /// it. Returns `None` if there are too few bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Message, usize)>, Violation> {
        let magic = bytes.len().min(MAGIC.len());
        if bytes[..magic] != MAGIC[..magic] {
            return Err(Violation::Magic);
        }
        let half = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"));
        if bytes.len() >= 10 && half(8) != VERSION {
            return Err(Violation::Version { theirs: half(8), ours: VERSION });
        }
        if bytes.len() < MESSAGE {
            return Ok(None);
        }
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let private = usize::from(half(12));
        let greets = matches!(bytes[10], 1..=3);
        if private > if greets { MAX_PRIVATE_DATA } else { 0 } {
            return Err(BAD_GREETING);
        }
        let port = || {
            let port = Port {
                queue_pair: word(16),
                first_packet: word(20),
                lid: half(24),
                mtu: bytes[26],
                ethernet: bytes[27] != 0,
                reads_answered: bytes[28],
                reads_begun: bytes[29],
                gid: bytes[32..48].try_into().expect("sixteen bytes"),
            };
            let fits = port.queue_pair < 1 << 24 && port.first_packet < 1 << 24 && (1..=5).contains(&port.mtu);
            if fits { Ok(port) } else { Err(BAD_GREETING) }
        };
        let message = match bytes[10] {
            1 => Message::Connect(port()?),
            2 => Message::Accept(port()?),
            3 => Message::Reject,
            4 => Message::Ready,
            5 => Message::Bye(Bye::from_wire(bytes[11]), bytes[14] != 0),
            6 => {
                let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
                Message::Check { key: long(48), addr: long(16), write: bytes[56] != 0 }
            }
            7 => Message::Checked,
            _ => return Err(BAD_GREETING),
        };
        Ok(Some((message, private)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_encoded_decodes() {
        let port = Port {
            queue_pair: 77,
            first_packet: 0xabcdef,
            lid: 9,
            mtu: 5,
            ethernet: true,
            reads_answered: 16,
            reads_begun: 4,
            gid: *b"0123456789abcdef",
        };
        for (message, private) in [
            (Message::Connect(port), 256),
            (Message::Accept(port), 0),
            (Message::Reject, 17),
            (Message::Ready, 0),
            (Message::Bye(Bye::TooLong, true), 0),
            (Message::Check { key: u64::MAX - 1, addr: 5 << 33, write: true }, 0),
            (Message::Checked, 0),
        ] {
            let bytes = message.encode(private);
            assert_eq!(Message::decode(&bytes), Ok(Some((message, private))));
            assert_eq!(Message::decode(&bytes[..MESSAGE - 1]), Ok(None));
        }
        let mut other = Message::Ready.encode(0);
        other[8] = 9;
        assert_eq!(Message::decode(&other), Err(Violation::Version { theirs: 9, ours: VERSION }));
        assert_eq!(Message::decode(b"GET / HTTP/1.1"), Err(Violation::Magic));
        assert_eq!(Message::decode(&Message::Ready.encode(1)), Err(BAD_GREETING));
        assert_eq!(Message::decode(&Message::Reject.encode(257)), Err(BAD_GREETING));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_something(bytes in proptest::collection::vec(any::<u8>(), 0..80), right in 0usize..12) {
            let mut bytes = bytes;
            let good = Message::Ready.encode(0);
            let right = right.min(bytes.len());
            bytes[..right].copy_from_slice(&good[..right]);
            if let Ok(Some((_, private))) = Message::decode(&bytes) {
                prop_assert!(private <= MAX_PRIVATE_DATA);
            }
        }
    }
}
