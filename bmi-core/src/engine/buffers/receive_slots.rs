//! The receive slots of one connection: registered memory that is cut into equal parts, with one
//! receive for each.
//!
//! **Layout**
//!
//! ```text
//!   | slot 0: header, payload up to the eager limit | slot 1 | … | slot messages + control - 1 |
//! ```
//!
//! **Invariant.** A slot is either *posted*, and belongs to the adapter, or *here*, and belongs to
//! this side. Between the completion of a slot and its next post, nothing else accesses it. There
//! may be a reference to its bytes only then. The memory is never exposed to the peer.

use crate::error::Error;
use crate::mem::{Memory, Segment};
use crate::transport::Transport;
use crate::wire::header::HEADER_LEN;

/// The slots of one connection.
pub(in crate::engine) struct ReceiveSlots {
    memory: Memory,
    segments: Vec<Segment>,
    slot_len: usize,
}

impl ReceiveSlots {
    /// Allocates and registers `count` slots for payloads of up to `eager` bytes.
    pub(in crate::engine) fn new(
        transport: &mut dyn Transport,
        count: usize,
        eager: usize,
    ) -> Result<ReceiveSlots, Error> {
        let slot_len = (HEADER_LEN + eager).next_multiple_of(64);
        let memory = Memory::sparse(count * slot_len)?;
        let region = transport.register(&memory)?;
        let segments = (0..count).map(|slot| region.segment(slot * slot_len, HEADER_LEN + eager)).collect();
        Ok(ReceiveSlots { memory, segments, slot_len })
    }

    pub(in crate::engine) fn count(&self) -> usize {
        self.segments.len()
    }

    /// Returns the slot as the only segment of a receive.
    #[inline]
    pub(in crate::engine) fn segment(&self, slot: usize) -> &[Segment] {
        std::slice::from_ref(&self.segments[slot])
    }

    /// Returns the bytes that arrived in a slot.
    ///
    /// # Safety
    /// The slot must be *here*, and must stay here while the reference lives.
    #[inline]
    pub(in crate::engine) unsafe fn bytes(&self, slot: usize, len: usize) -> &[u8] {
        let len = len.min(self.segments[slot].len());
        // SAFETY: the range is within the slot. The caller guarantees that no adapter writes to it,
        // and nothing else has its address.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(slot * self.slot_len), len) }
    }

    /// Returns the memory, for a message that stays in its slot.
    pub(in crate::engine) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the offset of the slot's payload in the memory.
    pub(in crate::engine) fn payload_offset(&self, slot: usize) -> usize {
        slot * self.slot_len + HEADER_LEN
    }
}
