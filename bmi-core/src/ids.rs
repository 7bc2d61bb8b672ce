//! The ids of operations and peers: checked keys of tables. And tags, which a program draws.

use std::fmt;

/// Generations are below this number, so that slot, generation and a kind of two bits share a
/// 64-bit word (see `engine::adapter`).
pub(crate) const GENERATIONS: u32 = 1 << 30;

/// Names an entry of a [`Table`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Matches a send with a receive of the same peer. A program may use the tags up to
/// [`MAX_TAG`](crate::MAX_TAG). Larger ones are the ids of calls ([`crate::comm`]), which the
/// endpoint draws.
pub type Tag = u64;

/// Identifies a posted operation. It has a slot and a generation, so that a stale id is detected
/// and never reaches another operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub(crate) Key);

impl OpId {
    /// The id of an operation that completed when it was posted. It names no operation.
    pub(crate) const NONE: OpId = OpId(Key { slot: u32::MAX, generation: 0 });
}

impl fmt::Debug for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "op{}.{}", self.0.slot, self.0.generation)
    }
}

/// Identifies a peer of one endpoint. A stale id is detected, as for an [`OpId`].
///
/// The upper 8 bits of the slot are the number of the endpoint
/// ([`Engine::numbered`](crate::Engine::numbered)), 0 for an endpoint by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub(crate) Key);

impl PeerId {
    /// The place of the endpoint's number in a slot.
    pub(crate) const ENDPOINT_SHIFT: u32 = 24;

    /// Makes the id of the peer at `key`. `origin` is the endpoint's number, in its place.
    #[inline]
    pub(crate) fn new(key: Key, origin: u32) -> PeerId {
        debug_assert!(key.slot < 1 << PeerId::ENDPOINT_SHIFT, "slot {}", key.slot);
        PeerId(Key { slot: key.slot | origin, ..key })
    }

    /// Returns the key in the endpoint with this number. The key of another endpoint's peer is
    /// beyond any table.
    #[inline]
    pub(crate) fn in_endpoint(self, origin: u32) -> Key {
        Key { slot: self.0.slot ^ origin, ..self.0 }
    }

    /// Returns the number of the endpoint that the peer belongs to.
    #[inline]
    pub fn endpoint(self) -> u8 {
        (self.0.slot >> PeerId::ENDPOINT_SHIFT) as u8
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer{}.{}", self.0.slot, self.0.generation)
    }
}
