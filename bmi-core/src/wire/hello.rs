//! The versioned hello that both sides exchange while they connect. It is the private data of
//! `connect`, `accept` and `reject`.
//!
//! **Why.** Before the first message, both sides learn whether they understand each other, how much
//! each may send, and how long a message may be. Receives are posted before the hello is answered,
//! so the first message finds one.
//!
//! **Layout.** `docs/design/protocol.md`, section 2, has the fields.

use crate::config::Config;
use crate::error::{Error, ErrorKind};
use crate::transport::MAX_PRIVATE_DATA;
use crate::wire::header::MAX_CONTROL;

/// The newest version of the protocol that this build speaks.
pub(crate) const VERSION: u16 = 2;
/// The oldest version of the protocol that this build speaks.
pub(crate) const OLDEST: u16 = 2;

/// Receives reserved for Credit messages (see [`super::credit`]).
pub(crate) const CONTROL_CREDITS: u8 = 4;

const HELLO: &[u8; 4] = b"BMIh";
const REFUSAL: &[u8; 4] = b"BMIr";
const HELLO_LEN: usize = 53;
const REFUSAL_LEN: usize = 17;

/// The features: the bit of each, and its name.
const FEATURES: [(u64, &str); 7] = [
    (1, "rendezvous"),
    (2, "bulk"),
    (4, "byte credits"),
    (8, "ready receives"),
    (FAST_SLOTS, "fast-RDMA slots"),
    (PROBES, "probes"),
    (WRITE_RENDEZVOUS, "write rendezvous"),
];
/// The side writes into fast-RDMA slots, and returns those of its own.
pub(crate) const FAST_SLOTS: u64 = 16;
/// The side answers probes.
pub(crate) const PROBES: u64 = 32;
/// The side writes an announced message to its receiver, if the receiver has no RDMA read and asks
/// for it.
pub(crate) const WRITE_RENDEZVOUS: u64 = 64;
/// The features of this build, and those that it requires of a peer.
const SUPPORTED: u64 = 127;
const REQUIRED: u64 = 15;

/// A side's description of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    version: u16,
    oldest: u16,
    features: u64,
    required: u64,
    /// Longest payload that its receives have room for, in bytes.
    pub(crate) eager: u32,
    /// Number of receives that it has posted for messages.
    pub(crate) messages: u16,
    /// Number of receives that it has posted for Credit messages.
    pub(crate) control: u8,
    /// Bytes that may be parked with it.
    pub(crate) bytes: u32,
    /// Number of pieces that it accepts in a list.
    pub(crate) pieces: u32,
    /// Longest message that it accepts, in bytes.
    pub(crate) message: u64,
    /// The version of the program's own protocol.
    program: u32,
    /// Its name, for logs.
    pub(crate) name: String,
}

impl Hello {
    pub(crate) fn of(config: &Config) -> Hello {
        Hello {
            version: VERSION,
            oldest: OLDEST,
            features: SUPPORTED,
            required: REQUIRED,
            eager: u32::try_from(config.credits.eager_limit).expect("validated"),
            messages: config.credits.messages,
            control: CONTROL_CREDITS,
            bytes: config.credits.bytes,
            pieces: u32::try_from(config.tuning.max_pieces).expect("validated"),
            message: config.limits.max_message,
            program: config.protocol,
            name: config.name.clone(),
        }
    }

    /// Returns true if the side has a feature.
    pub(crate) fn has(&self, feature: u64) -> bool {
        self.features & feature == feature
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut wire = Vec::with_capacity(MAX_PRIVATE_DATA);
        wire.extend_from_slice(HELLO);
        wire.extend_from_slice(&self.version.to_le_bytes());
        wire.extend_from_slice(&self.oldest.to_le_bytes());
        wire.extend_from_slice(&self.features.to_le_bytes());
        wire.extend_from_slice(&self.required.to_le_bytes());
        wire.extend_from_slice(&self.eager.to_le_bytes());
        wire.extend_from_slice(&self.messages.to_le_bytes());
        wire.extend_from_slice(&[self.control, 0]);
        wire.extend_from_slice(&self.bytes.to_le_bytes());
        wire.extend_from_slice(&self.pieces.to_le_bytes());
        wire.extend_from_slice(&self.message.to_le_bytes());
        wire.extend_from_slice(&self.program.to_le_bytes());
        put_text(&mut wire, &self.name);
        wire
    }

    /// Decodes a peer's hello and checks that it fits this side, whose program speaks version
    /// `protocol` of its own protocol.
    ///
    /// # Errors
    /// `Protocol` for bytes that are not a hello. `Incompatible` if the sides do not fit, naming
    /// what is missing.
    pub(crate) fn decode_for(wire: &[u8], protocol: u32) -> Result<Hello, Error> {
        let hello = Hello::decode(wire)?;
        if hello.program != protocol {
            let text =
                format!("the peer's program speaks version {} of its protocol, this side {protocol}", hello.program);
            return Err(Error::new(ErrorKind::Incompatible, text));
        }
        Ok(hello)
    }

    /// Decodes a peer's hello and checks that the two builds are compatible.
    ///
    /// # Errors
    /// As [`Hello::decode_for`].
    pub(crate) fn decode(wire: &[u8]) -> Result<Hello, Error> {
        let protocol = |what: &str| Error::new(ErrorKind::Protocol, format!("the peer's hello {what}"));
        if wire.len() < HELLO_LEN || wire[..4] != *HELLO {
            return Err(protocol("is none: it speaks another protocol"));
        }
        let hello = Hello {
            version: u16_at(wire, 4),
            oldest: u16_at(wire, 6),
            features: u64_at(wire, 8),
            required: u64_at(wire, 16),
            eager: u32_at(wire, 24),
            messages: u16_at(wire, 28),
            control: wire[30],
            bytes: u32_at(wire, 32),
            pieces: u32_at(wire, 36),
            message: u64_at(wire, 40),
            program: u32_at(wire, 48),
            name: text_at(wire, 52).ok_or_else(|| protocol("has a name that is cut off"))?,
        };
        hello.check_fit()?;
        let sane = hello.eager >= 256
            && hello.messages >= 4
            && (2..=MAX_CONTROL).contains(&hello.control)
            && u64::from(hello.bytes) >= 4 * (u64::from(hello.eager) + 64)
            && hello.pieces >= 1
            && hello.message >= 1;
        if sane { Ok(hello) } else { Err(protocol("offers less than the protocol needs")) }
    }

    fn check_fit(&self) -> Result<(), Error> {
        let incompatible = |text: String| Err(Error::new(ErrorKind::Incompatible, text));
        if self.oldest > VERSION || self.version < OLDEST {
            return incompatible(format!(
                "no protocol version in common: the peer speaks {} to {}, this side {OLDEST} to {VERSION}",
                self.oldest, self.version
            ));
        }
        let (we_miss, it_misses) = (self.required & !SUPPORTED, REQUIRED & !self.features);
        if we_miss != 0 {
            return incompatible(format!("this side lacks {}, which the peer requires", names(we_miss)));
        }
        if it_misses != 0 {
            return incompatible(format!("the peer lacks {}, which this side requires", names(it_misses)));
        }
        Ok(())
    }
}

/// Encodes the private data of a `reject`.
pub(crate) fn encode_refusal(error: &Error) -> Vec<u8> {
    let mut wire = Vec::with_capacity(MAX_PRIVATE_DATA);
    wire.extend_from_slice(REFUSAL);
    wire.extend_from_slice(&VERSION.to_le_bytes());
    wire.extend_from_slice(&OLDEST.to_le_bytes());
    let kind: u64 = match error.kind() {
        ErrorKind::Incompatible => 1,
        ErrorKind::Denied => 2,
        _ => 0,
    };
    wire.extend_from_slice(&kind.to_le_bytes());
    put_text(&mut wire, error.detail());
    wire
}

/// Decodes the error that a refused side reports.
pub(crate) fn decode_refusal(wire: &[u8]) -> Error {
    if wire.len() < REFUSAL_LEN || wire[..4] != *REFUSAL {
        return Error::new(ErrorKind::Refused, "the peer gave no reason");
    }
    let kind = match u64_at(wire, 8) {
        0 => ErrorKind::Refused,
        2 => ErrorKind::Denied,
        _ => ErrorKind::Incompatible,
    };
    let text = text_at(wire, 16).unwrap_or_default();
    Error::new(kind, format!("the peer (protocol {} to {}) says: {text}", u16_at(wire, 6), u16_at(wire, 4)))
}

/// Returns the names of the features in `bits`. Unknown ones are given by number.
fn names(bits: u64) -> String {
    let known = FEATURES.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| format!("\"{name}\""));
    let rest = bits & !SUPPORTED;
    let unknown = (rest != 0).then(|| format!("unknown features {rest:#x}"));
    known.chain(unknown).collect::<Vec<_>>().join(", ")
}

fn put_text(wire: &mut Vec<u8>, text: &str) {
    let room = MAX_PRIVATE_DATA - wire.len() - 1;
    let mut end = text.len().min(room).min(255);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    wire.push(u8::try_from(end).expect("at most 255"));
    wire.extend_from_slice(&text.as_bytes()[..end]);
}

/// Returns the text at `at`, which has its length in front of it. Control characters are replaced,
/// because the text goes to logs.
fn text_at(wire: &[u8], at: usize) -> Option<String> {
    let len = usize::from(*wire.get(at)?);
    let text = String::from_utf8_lossy(wire.get(at + 1..at + 1 + len)?);
    Some(text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect())
}

fn u16_at(wire: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(wire[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(wire: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(wire[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(wire: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(wire[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn round_trip() {
        let hello = Hello::of(&Config::named("iod 3"));
        let wire = hello.encode();
        assert!(wire.len() <= MAX_PRIVATE_DATA);
        assert_eq!(Hello::decode(&wire).unwrap(), hello);
    }

    #[test]
    fn a_mismatch_names_what_is_missing() {
        let mut other = Hello::of(&Config::default());
        (other.version, other.oldest) = (9, 8);
        let error = Hello::decode(&other.encode()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        assert!(error.detail().contains("the peer speaks 8 to 9, this side 2 to 2"), "{error}");

        let error = Hello::decode_for(&Hello::of(&Config::default()).encode(), 7).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        assert!(error.detail().contains("speaks version 0 of its protocol, this side 7"), "{error}");

        let mut other = Hello::of(&Config::default());
        other.features &= !2;
        assert!(Hello::decode(&other.encode()).unwrap_err().detail().contains("the peer lacks \"bulk\""));

        let mut other = Hello::of(&Config::default());
        other.required |= 1 << 40;
        let refusal = decode_refusal(&encode_refusal(&Hello::decode(&other.encode()).unwrap_err()));
        assert_eq!(refusal.kind(), ErrorKind::Incompatible);
        assert!(refusal.detail().contains("lacks unknown features 0x10000000000"), "{refusal}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..=MAX_PRIVATE_DATA), magic in any::<bool>()) {
            let mut bytes = bytes;
            if magic && bytes.len() >= 4 {
                bytes[..4].copy_from_slice(HELLO);
            }
            let _ = Hello::decode(&bytes);
            let _ = decode_refusal(&bytes);
        }

        #[test]
        fn any_text_fits(name in ".{0,300}") {
            let error = Error::new(ErrorKind::Incompatible, name);
            prop_assert!(encode_refusal(&error).len() <= MAX_PRIVATE_DATA);
        }
    }
}
