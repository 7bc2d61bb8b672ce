//! Bulk transfers. One side exposes a list of memory pieces and sends a short descriptor of it with
//! a request. The other side then pulls or pushes data between that list and a list of its own.
//!
//! **Layout** of a descriptor on the wire:
//!
//! ```text
//!   number of keys   varint
//!   keys             8 bytes each, little-endian
//!   then one group for each run of pieces with the same key:
//!     key            varint: its index in the table of keys
//!     length         varint: bytes of the ranges that follow
//!     ranges         encoded as in crate::extents
//! ```
//!
//! A list of many pieces in few allocations takes a few bytes for each piece. A regular list takes
//! a few bytes in total.
//!
//! **Invariants**
//! 1. A descriptor that came from a peer is an unverified claim. The peer's own adapter checks it
//!    when it is used. A false descriptor ends the connection of the peer that sent it.
//! 2. Decoding produces no more pieces than the caller allows. It allocates nothing before that
//!    bound has been checked.
//!
//! **Source.** Server-based RDMA of [PVFS-IB §3.2.3, Figure 3]: the client provides the buffers
//! with the request, and the server moves the bytes when it can. A pull serves a PVFS write, a push
//! serves a PVFS read. Lists of pieces on both sides: [Quadrics-PVFS2 §3].

use std::fmt;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, ErrorKind};
use crate::mem::{MAX_PIECES, OneOrMany, RemoteKey, RemoteSlice};
use crate::wire::extents;
use crate::wire::extents::{put_varint, take_u64};

/// Length of a key on the wire, in bytes.
const KEY: usize = 8;

/// Describes memory exposed to a peer. It travels inside a request. A clone shares the list.
#[derive(Clone)]
pub struct BulkDescriptor {
    pieces: OneOrMany<RemoteSlice>,
    len: u64,
}

impl BulkDescriptor {
    /// Largest number of pieces in a descriptor that is deserialized with `serde`. Equal to the
    /// default of [`Config::max_pieces`](crate::Config::max_pieces).
    pub const MAX_PIECES: usize = MAX_PIECES;

    /// Returns the pieces in order.
    pub fn pieces(&self) -> &[RemoteSlice] {
        self.pieces.as_slice()
    }

    /// Returns the total length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the descriptor covers no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a shared handle to the pieces.
    pub(crate) fn shared(&self) -> OneOrMany<RemoteSlice> {
        self.pieces.clone()
    }

    /// Takes the pieces out.
    pub(crate) fn take(&mut self) -> OneOrMany<RemoteSlice> {
        std::mem::replace(&mut self.pieces, OneOrMany::None)
    }

    /// Appends the encoded descriptor to `bytes`, in the layout of the module docs.
    pub fn encode(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let mut keys: Vec<RemoteKey> = Vec::new();
        let mut places = std::collections::BTreeMap::new();
        for piece in self.pieces() {
            places.entry(piece.key.0).or_insert_with(|| {
                keys.push(piece.key);
                keys.len() - 1
            });
        }
        put_varint(&mut bytes, keys.len() as u128);
        keys.iter().for_each(|key| bytes.extend_from_slice(&key.0.to_le_bytes()));
        for group in self.pieces().chunk_by(|a, b| a.key == b.key) {
            let ranges = extents::encode(Vec::new(), group.iter().map(|piece| (piece.addr, piece.len)));
            put_varint(&mut bytes, places[&group[0].key.0] as u128);
            put_varint(&mut bytes, ranges.len() as u128);
            bytes.extend_from_slice(&ranges);
        }
        bytes
    }

    /// Decodes a descriptor of at most `max` pieces. It must occupy all of `bytes`.
    ///
    /// # Errors
    /// `Protocol` if the bytes are not a descriptor, or if it has more than `max` pieces.
    pub fn decode(mut bytes: &[u8], max: usize) -> Result<BulkDescriptor, Error> {
        let malformed = || Error::new(ErrorKind::Protocol, "malformed bulk descriptor");
        let keys = usize::try_from(take_u64(&mut bytes)?).map_err(|_| malformed())?;
        let table = keys.checked_mul(KEY).filter(|len| *len <= bytes.len()).ok_or_else(malformed)?;
        let (table, mut groups) = bytes.split_at(table);
        let mut pieces: Vec<RemoteSlice> = Vec::new();
        while !groups.is_empty() {
            let place = usize::try_from(take_u64(&mut groups)?).map_err(|_| malformed())?;
            let key = table.chunks_exact(KEY).nth(place).ok_or_else(malformed)?;
            let key = RemoteKey(u64::from_le_bytes(key.try_into().expect("exact chunks")));
            let len = usize::try_from(take_u64(&mut groups)?).map_err(|_| malformed())?;
            let (ranges, rest) = groups.split_at_checked(len).filter(|_| len > 0).ok_or_else(malformed)?;
            extents::decode(ranges, max - pieces.len(), |(addr, len)| pieces.push(RemoteSlice { key, addr, len }))?;
            groups = rest;
        }
        // These are the peer's words, so an overflow is the peer's fault.
        BulkDescriptor::try_from(pieces).map_err(|_| malformed())
    }
}

impl fmt::Debug for BulkDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BulkDescriptor({} bytes in {} pieces)", self.len, self.pieces().len())
    }
}

impl PartialEq for BulkDescriptor {
    fn eq(&self, other: &BulkDescriptor) -> bool {
        self.pieces() == other.pieces()
    }
}

impl Eq for BulkDescriptor {}

impl TryFrom<OneOrMany<RemoteSlice>> for BulkDescriptor {
    type Error = Error;

    fn try_from(pieces: OneOrMany<RemoteSlice>) -> Result<BulkDescriptor, Error> {
        let sum = pieces.as_slice().iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.len));
        let len = sum.ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "the pieces of a bulk descriptor add up to more than 64 bits")
        })?;
        Ok(BulkDescriptor { pieces, len })
    }
}

impl TryFrom<Vec<RemoteSlice>> for BulkDescriptor {
    type Error = Error;

    /// # Errors
    /// `Invalid` if the total length overflows 64 bits.
    fn try_from(pieces: Vec<RemoteSlice>) -> Result<BulkDescriptor, Error> {
        BulkDescriptor::try_from(pieces.into_iter().collect::<OneOrMany<_>>())
    }
}

impl From<BulkDescriptor> for Vec<RemoteSlice> {
    fn from(descriptor: BulkDescriptor) -> Vec<RemoteSlice> {
        descriptor.pieces().to_vec()
    }
}

impl Serialize for BulkDescriptor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.encode(Vec::new()))
    }
}

impl<'de> Deserialize<'de> for BulkDescriptor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BulkDescriptor, D::Error> {
        /// Accepts the encoded bytes in place, or as a list of numbers (text formats).
        struct Encoded;

        impl<'de> Visitor<'de> for Encoded {
            type Value = BulkDescriptor;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a bulk descriptor")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<BulkDescriptor, E> {
                BulkDescriptor::decode(bytes, BulkDescriptor::MAX_PIECES).map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<BulkDescriptor, A::Error> {
                const MOST: usize = BulkDescriptor::MAX_PIECES * (KEY + extents::MAX_ENCODED + 20) + 10;
                let mut bytes = Vec::new();
                while let Some(byte) = numbers.next_element()? {
                    if bytes.len() == MOST {
                        return Err(A::Error::custom("a descriptor without end"));
                    }
                    bytes.push(byte);
                }
                self.visit_bytes(&bytes)
            }
        }

        deserializer.deserialize_bytes(Encoded)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn slice(key: u64, addr: u64, len: u64) -> RemoteSlice {
        RemoteSlice { key: RemoteKey(key), addr, len }
    }

    /// A regression test. Such a descriptor was reported as a mistake of this side.
    #[test]
    fn a_descriptor_whose_pieces_overflow_is_the_fault_of_its_sender() {
        let ranges = extents::encode(Vec::new(), [(0, 1 << 63), (0, 1 << 63)]);
        let mut bytes = vec![1];
        bytes.extend(7u64.to_le_bytes());
        bytes.extend([0, ranges.len() as u8]);
        bytes.extend(ranges);
        assert_eq!(BulkDescriptor::decode(&bytes, 8).unwrap_err().kind(), ErrorKind::Protocol);
    }

    proptest! {
        #[test]
        fn any_descriptor_travels(raw in vec((0..5u64, any::<u64>(), 0..1u64 << 50), 0..60)) {
            let pieces: Vec<_> = raw.into_iter().map(|(key, addr, len)| slice(key << 60 | 77, addr, len)).collect();
            let sent = BulkDescriptor::try_from(pieces.clone()).unwrap();
            let bytes = sent.encode(Vec::new());
            let received = BulkDescriptor::decode(&bytes, pieces.len()).unwrap();
            prop_assert_eq!(&received, &sent);
            prop_assert_eq!(received.len(), sent.len());
            if let Some(fewer) = pieces.len().checked_sub(1) {
                prop_assert!(BulkDescriptor::decode(&bytes, fewer).is_err());
            }
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..80)) {
            if let Ok(descriptor) = BulkDescriptor::decode(&bytes, 100) {
                prop_assert!(descriptor.pieces().len() <= 100);
            }
        }
    }

    #[test]
    fn many_pieces_of_one_allocation_are_small() {
        let pieces: Vec<_> = (0..4000u64).map(|n| slice(u64::MAX, n * 9000 + n * n % 4001, 512 + n % 63)).collect();
        let bytes = BulkDescriptor::try_from(pieces).unwrap().encode(Vec::new());
        assert!(bytes.len() < 6 * 4000, "{} bytes", bytes.len());
        let rows: Vec<_> = (0..768u64).map(|row| slice(7, row * 2048 * 64, 1024 * 64)).collect();
        let bytes = BulkDescriptor::try_from(rows).unwrap().encode(Vec::new());
        assert!(bytes.len() < 30, "{} bytes for the rows of a tile", bytes.len());
    }
}
