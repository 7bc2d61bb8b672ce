//! The bytes that members send each other.
//!
//! **Layout.** All integers are little-endian.
//!
//! *Greetings* are unexpected messages with the tag [`GREETING`]. A newcomer sends one first:
//!
//! | offset | field | join: to the place of the meeting | hello: to another member |
//! |---|---|---|---|
//! | 0 | version u8, kind u8 | kind 1 | kind 2 |
//! | 2 | name u8, zero u8 | length of the name | 0 |
//! | 4 | rank u32 | of the sender | of the sender |
//! | 8 | u64 | the size of the group | the id of the group |
//! | 16 | | the name, then the address where the sender listens | |
//!
//! *Notices* are expected messages with the tag [`NOTICE`]:
//!
//! | offset | field | held | failed | mismatch |
//! |---|---|---|---|---|
//! | 0 | version u8, kind u8 | kind 1 | kind 2 | kind 3 |
//! | 2 | code u8, zero u8 | 0 | kind of the error | 0 |
//! | 4 | rank u32 | for which the sender waits | that has failed | of one member |
//! | 8 | number u64 | of the operation | 0 | of the operation |
//! | 16 | | | the reason in words | two calls, and the rank u32 of the other between |
//!
//! *Messages* of an operation have its number for a tag, and begin with 16 bytes:
//!
//! | offset | field | |
//! |---|---|---|
//! | 0 | version u8, call u8 | [`Collective`] |
//! | 2 | round u8, zero u8 | of a dissemination |
//! | 4 | root u32 | of a broadcast, else 0 |
//! | 8 | length u64 | of the payload |
//!
//! A payload of at most [`ATTACHED`] bytes follows at once. A longer one is the next message.

use std::str::from_utf8;

use bytes::{Bytes, BytesMut};

use super::error::{Collective, GroupError};
use crate::rpc::{code_of, kind_of};
use crate::{Addr, Tag};

/// The version of this layout.
const VERSION: u8 = 1;
/// The tag of greetings.
pub(super) const GREETING: Tag = 0x67_726f_7570;
/// The tag of notices. Operations are numbered from 1.
pub(super) const NOTICE: Tag = 0;
/// Length of the longest notice.
pub(super) const LONGEST_NOTICE: usize = 256;
/// Length of what is in front of a payload.
pub(super) const HEAD: usize = 16;
/// Length of the longest payload that is in the same message as its head.
pub(super) const ATTACHED: usize = 1024;
/// Length of the longest address.
const LONGEST_ADDR: usize = 512;

/// What a newcomer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Greeting {
    Join { rank: u32, size: u64, name: String, addr: Addr },
    Hello { rank: u32, group: u64 },
}

/// What a member says about an operation, or about the group.
#[derive(Clone, Debug)]
pub(super) enum Notice {
    /// The sender waits for the member `by` in an operation.
    Held { number: u64, by: u32 },
    /// The group has failed.
    Failed(GroupError),
}

/// What is in front of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) call: Collective,
    pub(super) round: u8,
    pub(super) len: u64,
}

/// Takes fields from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(field)
    }
}

fn front(kind: u8, small: u8, rank: u32, number: u64) -> Vec<u8> {
    let mut wire = vec![VERSION, kind, small, 0];
    wire.extend(rank.to_le_bytes());
    wire.extend(number.to_le_bytes());
    wire
}

/// Returns kind, small field, rank, number and what is behind them.
fn split_front(wire: &[u8]) -> Option<(u8, u8, u32, u64, Fields<'_>)> {
    let mut fields = Fields(wire);
    let [VERSION, kind, small, 0] = fields.take()? else { return None };
    Some((kind, small, fields.u32()?, fields.u64()?, fields))
}

fn code_of_call(call: Collective) -> (u8, u32) {
    match call {
        Collective::Meet => (1, 0),
        Collective::Barrier => (2, 0),
        Collective::AllGather => (3, 0),
        Collective::Broadcast { root } => (4, root),
        Collective::AllToAll => (5, 0),
        Collective::Exchange => (6, 0),
        Collective::Leave => (7, 0),
    }
}

fn call_of_code(code: u8, root: u32) -> Option<Collective> {
    Some(match (code, root) {
        (1, 0) => Collective::Meet,
        (2, 0) => Collective::Barrier,
        (3, 0) => Collective::AllGather,
        (4, root) => Collective::Broadcast { root },
        (5, 0) => Collective::AllToAll,
        (6, 0) => Collective::Exchange,
        (7, 0) => Collective::Leave,
        _ => return None,
    })
}

impl Greeting {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Greeting::Join { rank, size, name, addr } => {
                let mut wire = front(1, name.len() as u8, *rank, *size);
                wire.extend(name.as_bytes());
                wire.extend(addr.to_string().into_bytes());
                wire
            }
            Greeting::Hello { rank, group } => front(2, 0, *rank, *group),
        }
    }

    pub(super) fn decode(wire: &[u8]) -> Option<Greeting> {
        let (kind, name, rank, number, mut rest) = split_front(wire)?;
        match kind {
            1 => {
                let name = from_utf8(rest.bytes(name.into())?).ok()?.to_owned();
                Some(Greeting::Join { rank, size: number, name, addr: addr_of(rest.0)? })
            }
            2 if name == 0 && rest.0.is_empty() => Some(Greeting::Hello { rank, group: number }),
            _ => None,
        }
    }
}

impl Notice {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Notice::Held { number, by } => front(1, 0, *by, *number),
            Notice::Failed(GroupError::Member { rank, error }) => {
                let mut wire = front(2, code_of(error.kind()), *rank, 0);
                let text = error.detail();
                wire.extend(&text.as_bytes()[..text.floor_char_boundary(LONGEST_NOTICE - HEAD)]);
                wire
            }
            Notice::Failed(GroupError::Mismatch { number, members: [(rank, call), (other, does)] }) => {
                let mut wire = front(3, 0, *rank, *number);
                wire.extend(Head { call: *call, round: 0, len: u64::from(*other) }.encode());
                wire.extend(Head { call: *does, round: 0, len: 0 }.encode());
                wire
            }
        }
    }

    pub(super) fn decode(wire: &[u8]) -> Option<Notice> {
        let (kind, small, rank, number, rest) = split_front(wire)?;
        match (kind, small) {
            (1, 0) => Some(Notice::Held { number, by: rank }),
            (2, code) => {
                let text = from_utf8(rest.0).ok()?.replace(char::is_control, " ");
                Some(Notice::Failed(GroupError::member(rank, kind_of(code)?, text)))
            }
            (3, 0) => {
                let (first, second) = (Head::decode(rest.0)?, Head::decode(rest.0.get(HEAD..)?)?);
                let members = [(rank, first.call), (u32::try_from(first.len).ok()?, second.call)];
                Some(Notice::Failed(GroupError::Mismatch { number, members }))
            }
            _ => None,
        }
    }
}

impl Head {
    pub(super) fn encode(self) -> Vec<u8> {
        let (code, root) = code_of_call(self.call);
        front(code, self.round, root, self.len)
    }

    pub(super) fn decode(wire: &[u8]) -> Option<Head> {
        let (code, round, root, len, _) = split_front(wire)?;
        Some(Head { call: call_of_code(code, root)?, round, len })
    }
}

fn addr_of(wire: &[u8]) -> Option<Addr> {
    let text = Some(wire).filter(|wire| wire.len() <= LONGEST_ADDR)?;
    from_utf8(text).ok()?.parse().ok()
}

/// Encodes the id of a group and the addresses of its members, in the order of their ranks.
pub(super) fn encode_table(group: u64, addrs: &[Addr]) -> Vec<u8> {
    let addrs: Vec<Bytes> = addrs.iter().map(|addr| Bytes::from(addr.to_string().into_bytes())).collect();
    let mut wire = group.to_le_bytes().to_vec();
    wire.extend(encode_values(&addrs));
    wire
}

/// Length of the longest table.
pub(super) fn longest_table(size: u32) -> u64 {
    8 + u64::from(size) * (4 + LONGEST_ADDR as u64)
}

/// Decodes a table with `size` addresses.
pub(super) fn decode_table(mut wire: Bytes, size: u32) -> Option<(u64, Vec<Addr>)> {
    let group = Fields(&wire).u64()?;
    let values = decode_values(wire.split_off(8), size as usize, LONGEST_ADDR)?;
    Some((group, values.iter().map(|text| addr_of(text)).collect::<Option<_>>()?))
}

/// Encodes values, each behind its length.
pub(super) fn encode_values(values: &[Bytes]) -> Bytes {
    let mut wire = BytesMut::with_capacity(values.iter().map(|value| 4 + value.len()).sum());
    for value in values {
        wire.extend_from_slice(&(value.len() as u32).to_le_bytes());
        wire.extend_from_slice(value);
    }
    wire.freeze()
}

/// Decodes `count` values, none of which is longer than `longest`.
pub(super) fn decode_values(mut wire: Bytes, count: usize, longest: usize) -> Option<Vec<Bytes>> {
    let mut values = Vec::new();
    for _ in 0..count {
        let len = Fields(&wire).u32()? as usize;
        if len > longest || len > wire.len() - 4 {
            return None;
        }
        let rest = wire.split_off(4 + len);
        values.push(wire.split_off(4));
        wire = rest;
    }
    wire.is_empty().then_some(values)
}

/// A greeting, a notice, a head, a table, and values. The first byte is the number of values and of
/// members.
///
/// What decodes comes back from its encoding, but for the text of an error. That has no control
/// character, because it goes to logs, and no value is longer than its bound.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let Some((count, bytes)) = bytes.split_first() else { return };
    if let Some(greeting) = Greeting::decode(bytes) {
        assert_eq!(Greeting::decode(&greeting.encode()), Some(greeting));
    }
    if let Some(notice) = Notice::decode(bytes) {
        let wire = notice.encode();
        assert!(wire.len() <= LONGEST_NOTICE);
        assert!(!notice_text(&notice).contains(char::is_control));
        assert!(Notice::decode(&wire).is_some());
    }
    if let Some(head) = Head::decode(bytes) {
        assert_eq!(head.encode(), bytes[..HEAD]);
    }
    let (wire, count) = (Bytes::copy_from_slice(bytes), *count);
    if let Some(values) = decode_values(wire.clone(), count.into(), 100) {
        assert!(values.len() == usize::from(count) && values.iter().all(|value| value.len() <= 100));
        assert_eq!(encode_values(&values), wire);
    }
    if let Some((id, addrs)) = decode_table(wire, count.into()) {
        assert_eq!(decode_table(encode_table(id, &addrs).into(), count.into()), Some((id, addrs)));
    }
}

#[cfg(any(test, fuzzing))]
fn notice_text(notice: &Notice) -> String {
    match notice {
        Notice::Held { .. } => String::new(),
        Notice::Failed(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ErrorKind;

    fn call() -> impl Strategy<Value = Collective> {
        (1..8u8, any::<u32>()).prop_map(|(code, root)| call_of_code(code, if code == 4 { root } else { 0 }).unwrap())
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            (rank, other, number) in any::<(u32, u32, u64)>(), (a, b) in (call(), call()), round: u8,
            name in "[a-zä]{0,100}", detail in "[a-zä ]{0,300}",
            values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..9),
        ) {
            let join = Greeting::Join { rank, size: number, name, addr: Addr::tcp("host", 7) };
            for greeting in [join, Greeting::Hello { rank, group: number }] {
                prop_assert_eq!(Greeting::decode(&greeting.encode()), Some(greeting));
            }
            let head = Head { call: a, round, len: number };
            prop_assert_eq!(Head::decode(&head.encode()), Some(head));
            let failed = GroupError::member(rank, ErrorKind::Refused, &detail[..detail.floor_char_boundary(240)]);
            let mismatch = GroupError::Mismatch { number, members: [(rank, a), (other, b)] };
            for notice in [Notice::Held { number, by: rank }, Notice::Failed(failed), Notice::Failed(mismatch)] {
                let wire = notice.encode();
                prop_assert!(wire.len() <= LONGEST_NOTICE);
                prop_assert_eq!(format!("{:?}", Notice::decode(&wire).unwrap()), format!("{notice:?}"));
            }
            let long = Notice::Failed(GroupError::member(rank, ErrorKind::Refused, detail)).encode();
            prop_assert!(long.len() <= LONGEST_NOTICE && Notice::decode(&long).is_some());
            let values: Vec<Bytes> = values.into_iter().map(Bytes::from).collect();
            prop_assert_eq!(decode_values(encode_values(&values), values.len(), 50), Some(values));
            let addrs = vec![Addr::tcp("a", 1), Addr::shm("/b")];
            prop_assert_eq!(decode_table(encode_table(number, &addrs).into(), 2), Some((number, addrs)));
        }

        /// Any bytes, and those that begin as they should.
        #[test]
        fn any_bytes_are_decoded_or_not(
            mut bytes in prop::collection::vec(any::<u8>(), 0..80), begins: bool, count in 0..4u8, kind in 0..9u8,
        ) {
            if begins {
                bytes.splice(..bytes.len().min(5), [count, VERSION, kind, 0, 0]);
            }
            fuzz(&bytes);
        }
    }
}
