//! The bytes of a timeline, to send it to the other side, or to keep it in a file.
//!
//! **Layout.** All integers are little-endian.
//!
//! ```text
//!   timeline   | "BMITL" | 0 | version u16 | lost u64 | peers u32 | entries u32 | peers … | entries … |
//!   peer       | name u64 | length of the address u16 | address, UTF-8 |
//!   entry      | what u8 | detail u8 | 0 u48 | peer | tag | number | bytes | start | duration, all u64 |
//! ```
//!
//! **Invariant.** The bytes may come from anyone. Nothing is allocated for a count that the bytes
//! behind it do not cover, and nothing panics. Bytes that decode are those that encode again.

use super::{Class, Direction, Entry, Timeline, TimelinePeer, Way, What};
use crate::error::{Error, ErrorKind};
use crate::op::OpKind;
use crate::paths::Path;
use crate::time::Time;

const MAGIC: [u8; 6] = *b"BMITL\0";
const VERSION: u16 = 1;
/// Length of an entry, in bytes.
const ENTRY_LEN: usize = 56;
/// Length of a peer with an empty address.
const PEER_LEN: usize = 10;
/// Longest address that is encoded. A longer one is cut.
const MAX_ADDR: usize = 1024;

const CLASSES: [Class; 2] = [Class::Expected, Class::Unexpected];
const WAYS: [Way; 4] = [Way::Eager, Way::Slot, Way::Offered, Way::Announced];
const KINDS: [OpKind; 11] = [
    OpKind::Send,
    OpKind::SendUnexpected,
    OpKind::Recv,
    OpKind::Discard,
    OpKind::Pull,
    OpKind::Push,
    OpKind::Grant,
    OpKind::Connect,
    OpKind::Disconnect,
    OpKind::Timer,
    OpKind::Probe,
];

/// Returns the place of a value in its table.
fn place<V: PartialEq>(table: &[V], value: &V) -> u8 {
    let place = table.iter().position(|known| known == value);
    place.and_then(|place| u8::try_from(place).ok()).unwrap_or(u8::MAX)
}

/// Packs the place of a value in a short table, and a bit below it.
const fn pair(high: u8, low: bool) -> u8 {
    high << 1 | low as u8
}

impl What {
    /// Returns the two bytes that stand for it.
    fn to_wire(self) -> [u8; 2] {
        let message = |class, way| pair(place(&WAYS, &way), class == Class::Unexpected);
        match self {
            What::Queue(class) => [0, place(&CLASSES, &class)],
            What::Send(class, way) => [1, message(class, way)],
            What::Arrive(class, way) => [2, message(class, way)],
            What::Deliver(class) => [3, place(&CLASSES, &class)],
            What::Unit(direction) => [4, u8::from(direction == Direction::Write)],
            What::Register { hit } => [5, u8::from(hit)],
            What::Sleep => [6, 0],
            What::Call(path) => [7, path.map_or(0, |path| 1 + place(&Path::TAKEN, &path))],
            What::CallEnd => [8, 0],
            What::End { op, ok } => [9, pair(place(&KINDS, &op), ok)],
        }
    }

    fn from_wire([kind, detail]: [u8; 2]) -> Option<What> {
        let (high, low) = (usize::from(detail >> 1), detail & 1 == 1);
        let class = || CLASSES.get(usize::from(detail)).copied();
        let message = || Some((if low { Class::Unexpected } else { Class::Expected }, *WAYS.get(high)?));
        Some(match kind {
            0 => What::Queue(class()?),
            1 => message().map(|(class, way)| What::Send(class, way))?,
            2 => message().map(|(class, way)| What::Arrive(class, way))?,
            3 => What::Deliver(class()?),
            4 if high == 0 => What::Unit(if low { Direction::Write } else { Direction::Read }),
            5 if high == 0 => What::Register { hit: low },
            6 if detail == 0 => What::Sleep,
            7 if detail == 0 => What::Call(None),
            7 => What::Call(Some(*Path::TAKEN.get(usize::from(detail) - 1)?)),
            8 if detail == 0 => What::CallEnd,
            9 => What::End { op: *KINDS.get(high)?, ok: low },
            _ => return None,
        })
    }
}

/// The error for bytes that are no timeline.
fn invalid(text: &'static str) -> Error {
    Error::new(ErrorKind::Protocol, text).during("decode a timeline")
}

/// The bytes that are not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or_else(|| invalid("it is too short"))?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or_else(|| invalid("it is too short"))?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a count of things that take at least `len` bytes each.
    fn count(&mut self, len: usize) -> Result<usize, Error> {
        let count = usize::try_from(u32::from_le_bytes(self.array()?)).map_err(|_| invalid("it is too long"))?;
        if count > self.0.len() / len {
            return Err(invalid("a count is larger than the rest"));
        }
        Ok(count)
    }
}

impl Timeline {
    /// Returns the timeline as bytes. Beyond 2^32 − 1 entries, the newest are left out.
    pub fn encode(&self) -> Vec<u8> {
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let mut out = Vec::with_capacity(24 + self.entries.len() * ENTRY_LEN + self.peers.len() * 40);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(self.lost.to_le_bytes());
        out.extend(count(self.peers.len()).to_le_bytes());
        out.extend(count(self.entries.len()).to_le_bytes());
        for TimelinePeer { peer, addr } in self.peers.iter().take(u32::MAX as usize) {
            let addr = &addr[..addr.floor_char_boundary(MAX_ADDR)];
            out.extend(peer.to_le_bytes());
            out.extend(u16::try_from(addr.len()).unwrap_or(0).to_le_bytes());
            out.extend(addr.as_bytes());
        }
        for entry in self.entries.iter().take(u32::MAX as usize) {
            out.extend(entry.to_wire());
        }
        out
    }

    /// Reads a timeline.
    ///
    /// # Errors
    /// `Incompatible` for another version; `Protocol` for bytes that [`Timeline::encode`] does not
    /// return.
    pub fn decode(bytes: &[u8]) -> Result<Timeline, Error> {
        let mut from = Reader(bytes);
        if from.array()? != MAGIC {
            return Err(invalid("it does not begin as one"));
        }
        let version = u16::from_le_bytes(from.array()?);
        if version != VERSION {
            let text = format!("a timeline of version {version}; this side reads version {VERSION}");
            return Err(Error::new(ErrorKind::Incompatible, text));
        }
        let lost = from.u64()?;
        let peer_count = from.count(PEER_LEN)?;
        let entry_count = from.count(ENTRY_LEN)?;
        // The counts are bounded by the bytes that are there.
        let peers = (0..peer_count).map(|_| read_peer(&mut from)).collect::<Result<Vec<_>, _>>()?;
        if from.0.len() != entry_count * ENTRY_LEN {
            return Err(invalid("the entries are not as many as it says"));
        }
        let mut entries = Vec::with_capacity(entry_count);
        while !from.0.is_empty() {
            entries.push(Entry::from_wire(from.array()?).ok_or_else(|| invalid("an entry is of no known kind"))?);
        }
        Ok(Timeline { entries, lost, peers })
    }
}

fn read_peer(from: &mut Reader<'_>) -> Result<TimelinePeer, Error> {
    let peer = from.u64()?;
    let len = usize::from(u16::from_le_bytes(from.array()?));
    if len > MAX_ADDR {
        return Err(invalid("an address is too long"));
    }
    let addr = std::str::from_utf8(from.bytes(len)?).map_err(|_| invalid("an address is no text"))?;
    Ok(TimelinePeer { peer, addr: addr.to_owned() })
}

impl Entry {
    fn to_wire(self) -> [u8; ENTRY_LEN] {
        let Entry { what, peer, tag, number, bytes, start, duration_ns } = self;
        let mut wire = [0; ENTRY_LEN];
        wire[..2].copy_from_slice(&what.to_wire());
        let words = [peer, tag, number, bytes, start.as_nanos(), duration_ns];
        for (place, word) in wire[8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        wire
    }

    fn from_wire(wire: [u8; ENTRY_LEN]) -> Option<Entry> {
        let mut words =
            wire[8..].chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("exact chunks")));
        let mut word = || words.next().expect("six words behind the first");
        let what = What::from_wire([wire[0], wire[1]])?;
        if wire[2..8] != [0; 6] {
            return None;
        }
        Some(Entry {
            what,
            peer: word(),
            tag: word(),
            number: word(),
            bytes: word(),
            start: Time::from_nanos(word()),
            duration_ns: word(),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_what() -> impl Strategy<Value = What> {
        let all: Vec<What> = (0..=u8::MAX)
            .flat_map(|kind| (0..=u8::MAX).filter_map(move |detail| What::from_wire([kind, detail])))
            .collect();
        prop::sample::select(all)
    }

    prop_compose! {
        fn any_entry()(what in any_what(), words in any::<[u64; 6]>()) -> Entry {
            let [peer, tag, number, bytes, start, duration_ns] = words;
            Entry { what, peer, tag, number, bytes, start: Time::from_nanos(start), duration_ns }
        }
    }

    prop_compose! {
        pub(in crate::timeline) fn any_timeline()(
            entries in prop::collection::vec(any_entry(), 0..20),
            lost in any::<u64>(),
            peers in prop::collection::vec((any::<u64>(), "\\PC{0,40}"), 0..4),
        ) -> Timeline {
            let peers = peers.into_iter().map(|(peer, addr)| TimelinePeer { peer, addr }).collect();
            Timeline { entries, lost, peers }
        }
    }

    proptest! {
        #[test]
        fn a_timeline_comes_back_from_its_bytes(timeline in any_timeline()) {
            prop_assert_eq!(Timeline::decode(&timeline.encode()).unwrap(), timeline);
        }

        #[test]
        fn hostile_bytes_are_an_error_or_encode_again(
            timeline in any_timeline(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in any::<prop::sample::Index>(),
            cuts in any::<bool>(),
        ) {
            let mut bytes = timeline.encode();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if cuts {
                bytes.truncate(cut.index(bytes.len() + 1));
            }
            if let Ok(decoded) = Timeline::decode(&bytes) {
                prop_assert_eq!(decoded.encode(), bytes);
            }
        }

        #[test]
        fn garbage_is_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Timeline::decode(&bytes).is_err());
        }
    }

    #[test]
    fn every_kind_of_entry_has_bytes_of_its_own() {
        let classes = CLASSES.map(|class| [What::Queue(class), What::Deliver(class)]).concat();
        let messages = CLASSES
            .into_iter()
            .flat_map(|class| WAYS.into_iter().flat_map(move |way| [What::Send(class, way), What::Arrive(class, way)]));
        let ends = KINDS.into_iter().flat_map(|op| [true, false].map(|ok| What::End { op, ok }));
        let calls = Path::TAKEN.into_iter().map(|path| What::Call(Some(path)));
        let others = [
            What::Unit(Direction::Read),
            What::Unit(Direction::Write),
            What::Register { hit: true },
            What::Register { hit: false },
            What::Sleep,
            What::Call(None),
            What::CallEnd,
        ];
        let all: Vec<What> = classes.into_iter().chain(messages).chain(ends).chain(calls).chain(others).collect();
        for what in &all {
            assert_eq!(What::from_wire(what.to_wire()), Some(*what));
        }
        let known = (0..=u16::MAX).filter(|wire| What::from_wire(wire.to_le_bytes()).is_some()).count();
        assert_eq!(known, all.len(), "bytes that no entry has are refused");
    }

    #[test]
    fn counts_that_the_bytes_do_not_cover_are_refused_before_anything_is_allocated() {
        let mut bytes = Timeline::default().encode();
        for at in [16, 20] {
            bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            assert_eq!(Timeline::decode(&bytes).unwrap_err().kind(), ErrorKind::Protocol);
            bytes[at..at + 4].copy_from_slice(&[0; 4]);
        }
        bytes[6] = 2;
        assert_eq!(Timeline::decode(&bytes).unwrap_err().kind(), ErrorKind::Incompatible);
    }
}
