//! The fast-RDMA slots of a connection, on both sides ([`super::fast_rdma`]).

use crate::mem::{MemSlice, Memory, MemoryRegion, RemoteSlice};
use crate::proto::header::HEADER_LEN;

/// The slots of this side, which the peer writes into.
pub(super) struct FastSlots {
    pub(super) memory: Memory,
    // The exposure holds the region too, until the connection ends.
    pub(super) region: MemoryRegion,
    pub(super) slot_len: usize,
}

impl FastSlots {
    /// Gives the pages of the slots back to the system, if the peer has not mapped them.
    pub(super) fn discard(&self) {
        self.memory.discard();
    }

    pub(super) fn slice(&self, slot: u8, offset: usize, len: usize) -> MemSlice {
        self.memory.slice(usize::from(slot) * self.slot_len + offset, len)
    }
}

/// The description of the peer's slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct TheirSlots {
    pub(super) remote: RemoteSlice,
    pub(super) slot_len: u64,
}

impl TheirSlots {
    /// Returns the length of the longest payload.
    pub(super) fn payload(&self) -> usize {
        usize::try_from(self.slot_len).map_or(usize::MAX, |len| len - HEADER_LEN)
    }

    pub(super) fn target(&self, slot: u8, len: u64) -> Option<RemoteSlice> {
        self.remote.slice(u64::from(slot) * self.slot_len, len)
    }
}
