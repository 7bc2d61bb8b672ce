//! Staging buffers: registered memory in which a message is assembled before it is written into a
//! fast-RDMA slot of the peer.
//!
//! **Why.** [PVFS-IB §4.1.2]: if the user's buffer is not registered, the data is copied into this
//! side's own fast-RDMA buffer. Then request and data leave in one operation.
//!
//! **Size.** A buffer comes back when the adapter has sent it, which needs nothing but the adapter.
//! So any number above zero is free of deadlock. A message that finds no buffer takes another path,
//! or waits for the adapter. Each buffer is made when it is first needed, and kept.

use crate::error::Error;
use crate::mem::{MemSlice, Memory, MemoryRegion, Segment};
use crate::transport::Transport;

/// Most buffers: the slots of two peers, for messages that leave in a few microseconds.
const BUFFERS: usize = 16;

/// The staging buffers of an endpoint.
pub(in crate::engine) struct Staging {
    buffers: Vec<(Memory, MemoryRegion)>,
    free: Vec<u32>,
    len: usize,
}

/// A buffer that is filled from the front.
pub(in crate::engine) struct Filling {
    pub(in crate::engine) buffer: u32,
    filled: usize,
}

impl Staging {
    /// Creates a pool of buffers of `len` bytes.
    pub(in crate::engine) fn new(len: usize) -> Staging {
        Staging { buffers: Vec::new(), free: Vec::new(), len }
    }

    /// Takes an empty buffer. Returns `None` if all are with the adapter.
    ///
    /// # Errors
    /// Those of [`Transport::register`], for a new buffer.
    pub(in crate::engine) fn take(&mut self, transport: &mut dyn Transport) -> Result<Option<Filling>, Error> {
        if let Some(buffer) = self.free.pop() {
            return Ok(Some(Filling { buffer, filled: 0 }));
        }
        if self.buffers.len() == BUFFERS {
            return Ok(None);
        }
        let memory = Memory::zeroed(self.len)?;
        let region = transport.register(&memory)?;
        let buffer = u32::try_from(self.buffers.len()).expect("few");
        self.buffers.push((memory, region));
        Ok(Some(Filling { buffer, filled: 0 }))
    }

    /// Copies `piece` behind the contents of the buffer and returns its segment there. The caller
    /// makes sure that it fits.
    pub(in crate::engine) fn append(&self, filling: &mut Filling, piece: &MemSlice) -> Segment {
        let (memory, region) = &self.buffers[filling.buffer as usize];
        memory.slice(filling.filled, piece.len()).copy_from_slice_of(piece);
        let segment = region.segment(filling.filled, piece.len());
        filling.filled += piece.len();
        segment
    }

    pub(in crate::engine) fn free(&mut self, buffer: u32) {
        debug_assert!(!self.free.contains(&buffer), "staging buffer {buffer} freed twice");
        self.free.push(buffer);
    }

    /// Returns the number of buffers with the adapter.
    pub(in crate::engine) fn in_use(&self) -> usize {
        self.buffers.len() - self.free.len()
    }
}
