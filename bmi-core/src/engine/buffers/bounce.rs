//! Bounce buffers: registered memory that small messages are copied to if the adapter cannot send
//! them in place.
//!
//! **Why.** Registering a page costs more than copying it ([PVFS-IB §4.1.1]: inline transfer).
//! Also, a list may have more pieces than a work request has entries.
//!
//! **Size.** A slot comes back when the adapter has sent it, which needs nothing but the adapter.
//! So any number above zero is free of deadlock. 64 slots are half of a connection's credits, and
//! half a MiB for each endpoint.

use crate::error::Error;
use crate::mem::{MemList, Memory, Segment};
use crate::transport::Transport;

const SLOTS: usize = 64;

/// The bounce buffers of an endpoint.
pub(in crate::engine) struct Bounce {
    memory: Memory,
    segments: Vec<Segment>,
    free: Vec<u32>,
}

impl Bounce {
    pub(in crate::engine) fn new(transport: &mut dyn Transport, slot_len: usize) -> Result<Bounce, Error> {
        let memory = Memory::zeroed(SLOTS * slot_len)?;
        let region = transport.register(&memory)?;
        let segments = (0..SLOTS).map(|slot| region.segment(slot * slot_len, slot_len)).collect();
        Ok(Bounce { memory, segments, free: (0..u32::try_from(SLOTS).expect("few")).rev().collect() })
    }

    /// Copies a message into a free slot. Returns `None` if there is none.
    pub(in crate::engine) fn fill(&mut self, list: &MemList) -> Option<(u32, Segment)> {
        let slot = self.free.pop()?;
        let segment = self.segments[slot as usize].slice(0, list.len());
        let mut at = segment.offset();
        for piece in list.pieces() {
            self.memory.slice(at, piece.len()).copy_from_slice_of(piece);
            at += piece.len();
        }
        Some((slot, segment))
    }

    pub(in crate::engine) fn free(&mut self, slot: u32) {
        debug_assert!(!self.free.contains(&slot), "bounce buffer {slot} freed twice");
        self.free.push(slot);
    }

    /// Returns the number of slots with the adapter.
    pub(in crate::engine) fn in_use(&self) -> usize {
        SLOTS - self.free.len()
    }
}
