//! The fast-RDMA slots of a connection, on both sides ([`crate::engine::message::fast_rdma`]).

use crate::mem::{MemSlice, Memory, MemoryRegion, RemoteSlice};
use crate::wire::header::HEADER_LEN;

/// The slots of this side, which the peer writes into.
pub(in crate::engine) struct FastSlots {
    pub(in crate::engine) memory: Memory,
    // The exposure holds the region too, until the connection ends.
    pub(in crate::engine) region: MemoryRegion,
    pub(in crate::engine) slot_len: usize,
}

impl FastSlots {
    /// Gives the pages of the slots back to the system, if the peer has not mapped them.
    pub(in crate::engine) fn discard(&self) {
        self.memory.discard();
    }

    pub(in crate::engine) fn slice(&self, slot: u8, offset: usize, len: usize) -> MemSlice {
        self.memory.slice(usize::from(slot) * self.slot_len + offset, len)
    }
}

/// The description of the peer's slots.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct TheirSlots {
    pub(in crate::engine) remote: RemoteSlice,
    pub(in crate::engine) slot_len: u64,
}

impl TheirSlots {
    /// Returns the length of the longest payload.
    pub(in crate::engine) fn payload(&self) -> usize {
        usize::try_from(self.slot_len).map_or(usize::MAX, |len| len - HEADER_LEN)
    }

    pub(in crate::engine) fn target(&self, slot: u8, len: u64) -> Option<RemoteSlice> {
        self.remote.slice(u64::from(slot) * self.slot_len, len)
    }
}
