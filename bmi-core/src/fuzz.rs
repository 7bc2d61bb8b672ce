//! Bodies of the fuzz targets of this crate: the decoders of a peer's bytes.
//!
//! The programs in `fuzz/` call them with the fuzzer's bytes, the tests below with the committed
//! corpora (`fuzz/corpus`). A body panics if a decoder breaks one of its rules.

use crate::error::{Error, ErrorKind};
use crate::timeline::{Timeline, merge};
use crate::transport::MAX_PRIVATE_DATA;
use crate::wire::describe::describe_message;
use crate::wire::header::{HEADER_LEN, Header, Kind};
use crate::wire::hello::{Hello, decode_refusal, encode_refusal};
use crate::wire::{BulkDescriptor, extents};
use crate::{Addr, Scheme};

/// A message: the protocol's header, and the headers of calls and replies.
///
/// A header that decodes has one encoding. The fast decoder of Eager messages agrees with the
/// general one. A message in a slot is no longer than the slot.
pub fn message(bytes: &[u8]) {
    crate::wire::call::fuzz_heads(bytes);
    if let Ok((header, payload)) = Header::decode(bytes) {
        assert_eq!(header.encode()[..], bytes[..HEADER_LEN]);
        assert_eq!(payload, &bytes[HEADER_LEN..]);
        assert!(describe_message(bytes, bytes.len() as u64).is_some());
    }
    let Some((wire, payload)) = bytes.split_first_chunk::<HEADER_LEN>() else { return };
    let whole = Header::decode_head(wire, payload.len()).ok().filter(|header| header.kind == Kind::Eager);
    let eager = Header::decode_eager(wire, payload.len());
    let returned = eager.map(|(_, returned)| returned.unwrap_or_default());
    assert_eq!(
        (whole.map(|header| header.tag), whole.map(|header| header.returned)),
        (eager.map(|(tag, _)| tag), returned)
    );
    if let Ok(header) = Header::decode_in_slot(wire, payload.len()) {
        assert!(header.len <= payload.len() as u64);
        assert_eq!(header.encode(), *wire);
    }
}

/// The private data of a handshake: a hello and a refusal.
///
/// A hello comes back from its encoding, except that a name with invalid text may become longer,
/// and is cut then. No text has a control character, because it goes to logs.
pub fn hello(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(MAX_PRIVATE_DATA)];
    let refusal = decode_refusal(bytes);
    assert!(!refusal.detail().contains(char::is_control));
    match Hello::decode(bytes) {
        Ok(hello) => {
            assert!(!hello.name.contains(char::is_control));
            let wire = hello.encode();
            assert!(wire.len() <= MAX_PRIVATE_DATA);
            let again = Hello::decode(&wire).expect("its own encoding");
            assert!(hello.name.starts_with(&again.name));
            let mut expected = hello;
            expected.name.clone_from(&again.name);
            assert_eq!(again, expected);
        }
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Incompatible), "{error}");
            let wire = encode_refusal(&error);
            assert!(wire.len() <= MAX_PRIVATE_DATA);
            assert!(decode_refusal(&wire).detail().contains("says: "));
        }
    }
}

/// A bulk descriptor, and a list of ranges. The first byte is the number of pieces that are
/// allowed.
///
/// No list is longer than that, also while it is being decoded. What decodes comes back from its
/// encoding, which is not longer than the bytes allow.
pub fn descriptor(bytes: &[u8]) {
    let Some((max, bytes)) = bytes.split_first() else { return };
    let max = usize::from(*max);
    let is_refusal = |error: &Error| error.kind() == ErrorKind::Protocol;
    let mut ranges = Vec::new();
    match extents::decode(bytes, max, |range| ranges.push(range)) {
        Ok(()) => {
            let wire = extents::encode(Vec::new(), ranges.iter().copied());
            assert!(wire.len() <= ranges.len() * extents::MAX_ENCODED);
            let mut again = Vec::new();
            extents::decode(&wire, max, |range| again.push(range)).expect("its own encoding");
            assert_eq!(again, ranges);
        }
        Err(error) => assert!(is_refusal(&error), "{error}"),
    }
    assert!(ranges.len() <= max);
    match BulkDescriptor::decode(bytes, max) {
        Ok(descriptor) => {
            assert!(descriptor.pieces().len() <= max);
            assert_eq!(descriptor.pieces().iter().map(|piece| piece.len).sum::<u64>(), descriptor.len());
            let again = BulkDescriptor::decode(&descriptor.encode(Vec::new()), max).expect("its own encoding");
            assert_eq!(again, descriptor);
        }
        Err(error) => assert!(is_refusal(&error), "{error}"),
    }
}

/// An address as text, from a peer or a configuration.
///
/// An address that is valid comes back from its text, and keeps its port and host.
pub fn address(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(scheme) = text.parse::<Scheme>() {
        assert_eq!(scheme.to_string().parse::<Scheme>().expect("its own text"), scheme);
    }
    let Ok(addr) = text.parse::<Addr>() else { return };
    let again: Addr = addr.to_string().parse().expect("its own text");
    assert_eq!(again, addr);
    assert_eq!((again.host(), again.port()), (addr.host(), addr.port()));
    assert!(addr.to_string().len() <= text.len() + 16, "{addr}");
    assert!(addr.without_device().device().is_none());
}

/// A timeline that a peer has recorded.
///
/// What is decoded encodes to the same bytes, and can be aligned with itself and drawn.
pub fn timeline(bytes: &[u8]) {
    match Timeline::decode(bytes) {
        Ok(timeline) => {
            assert_eq!(timeline.encode(), bytes);
            let merged = merge(&timeline, &timeline);
            merged.write_chrome(std::io::sink()).expect("a sink takes everything");
        }
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Incompatible), "{error}");
        }
    }
}

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn corpora_are_replayed() {
        replay("message", super::message);
        replay("hello", super::hello);
        replay("descriptor", super::descriptor);
        replay("address", super::address);
        replay("timeline", super::timeline);
    }
}
