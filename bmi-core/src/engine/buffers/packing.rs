//! Packing buffers: contiguous registered memory that lists of small pieces are packed into and
//! unpacked from.
//!
//! **Why.** A work request has few entries, and a list may have thousands of pieces. Below some
//! size, copying the pieces costs less than further requests ([`crate::lists`]). Also, an adapter
//! may refuse to register the list. Then its bytes move through a buffer, a unit at a time.
//!
//! **Size.** A buffer holds one unit of a transfer. It comes back when the unit has ended, which
//! may need the peer. A unit that finds no free buffer is moved as a chain instead.
//!
//! A unit that cannot do without waits for a buffer of the reserve. The reserve is registered when
//! the endpoint is made, and only such units take from it. Its buffers come back at the end of the
//! unit, by the deadline of its operation at the latest. So any number of buffers is free of
//! deadlock. 16 units are as much as [`Config::in_flight_bytes`](crate::Config::in_flight_bytes) by
//! default. Each buffer is made when it is first needed, and kept.

use crate::error::Error;
use crate::mem::{MemList, MemSlice, Memory, MemoryRegion, Segment};
use crate::transport::Transport;

const BUFFERS: usize = 16;
/// Number of buffers registered ahead, for lists that cannot be registered: double buffering
/// ([PVFS-IB §4.2]).
const RESERVE: usize = 2;
/// Longest buffer, in bytes. It keeps 16 of them affordable, whatever the transfer unit is.
const LONGEST: usize = 1 << 20;

/// A position in a list: a piece, and an offset in it.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct Cursor {
    pub(in crate::engine) piece: usize,
    pub(in crate::engine) offset: u64,
}

/// The packing buffers of an endpoint.
pub(in crate::engine) struct Packing {
    len: usize,
    made: Vec<MemoryRegion>,
    free: Vec<u32>,
    reserve: Vec<u32>,
}

impl Packing {
    /// Registers the reserve.
    ///
    /// # Errors
    /// Those of [`Transport::register`], if the reserve cannot be registered.
    pub(in crate::engine) fn new(transport: &mut dyn Transport, unit: usize) -> Result<Packing, Error> {
        let mut packing = Packing { len: unit.min(LONGEST), made: Vec::new(), free: Vec::new(), reserve: Vec::new() };
        for buffer in 0..RESERVE {
            packing.made.push(transport.register(&Memory::zeroed(packing.len)?)?);
            packing.reserve.push(u32::try_from(buffer).expect("few"));
        }
        Ok(packing)
    }

    /// Returns the length of a buffer, in bytes.
    pub(in crate::engine) fn buffer_len(&self) -> usize {
        self.len
    }

    /// Takes a free buffer. Returns `None` if all are in use, or if a new one cannot be registered.
    pub(in crate::engine) fn take(&mut self, transport: &mut dyn Transport) -> Option<u32> {
        if let Some(free) = self.free.pop() {
            return Some(free);
        }
        if self.made.len() == RESERVE + BUFFERS {
            return None;
        }
        let made: Result<MemoryRegion, Error> = Memory::zeroed(self.len).and_then(|memory| transport.register(&memory));
        match made {
            Ok(region) => {
                self.made.push(region);
                Some(u32::try_from(self.made.len() - 1).expect("few"))
            }
            Err(error) => {
                tracing::debug!(%error, "no packing buffer; the pieces are moved one by one");
                None
            }
        }
    }

    /// Takes a free buffer for a list that cannot be registered. Returns `None` if there is none.
    pub(in crate::engine) fn take_reserved(&mut self, transport: &mut dyn Transport) -> Option<u32> {
        self.reserve.pop().or_else(|| self.take(transport))
    }

    /// Returns `len` bytes at `at` of a buffer, as an entry of a work request.
    pub(in crate::engine) fn segment(&self, buffer: u32, at: usize, len: usize) -> Segment {
        self.made[buffer as usize].segment(at, len)
    }

    /// Returns `len` bytes at `at` of a buffer.
    pub(in crate::engine) fn slice(&self, buffer: u32, at: usize, len: usize) -> MemSlice {
        self.made[buffer as usize].memory().slice(at, len)
    }

    pub(in crate::engine) fn free(&mut self, buffer: u32) {
        let pool = if (buffer as usize) < RESERVE { &mut self.reserve } else { &mut self.free };
        debug_assert!(!pool.contains(&buffer), "packing buffer {buffer} freed twice");
        pool.push(buffer);
    }

    /// Returns the number of buffers in use.
    pub(in crate::engine) fn in_use(&self) -> usize {
        self.made.len() - self.free.len() - self.reserve.len()
    }
}

/// The direction of a copy between a list and contiguous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Copying {
    /// Out of the list.
    Pack,
    /// Into the list.
    Unpack,
    /// No copy. Only advances the position in the list.
    Skip,
}

/// Copies between `packed` and as many bytes of `list`, starting at `at`. Returns the next position
/// in the list and the number of pieces copied.
pub(in crate::engine) fn copy(list: &MemList, mut at: Cursor, packed: &MemSlice, way: Copying) -> (Cursor, u64) {
    let (mut done, mut pieces) = (0, 0);
    while done < packed.len() {
        let piece = &list.pieces()[at.piece];
        let offset = usize::try_from(at.offset).expect("within a memory");
        let len = (piece.len() - offset).min(packed.len() - done);
        if len == 0 {
            at = Cursor { piece: at.piece + 1, offset: 0 };
            continue;
        }
        match way {
            Copying::Pack => packed.slice(done, len).copy_from_slice_of(&piece.slice(offset, len)),
            Copying::Unpack => piece.slice(offset, len).copy_from_slice_of(&packed.slice(done, len)),
            Copying::Skip => 0,
        };
        done += len;
        pieces += 1;
        at.offset += len as u64;
    }
    (at, pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_in_parts_is_unpacked_whole() {
        let memory = Memory::from((0..=255u8).collect::<Vec<_>>());
        let list: MemList = [(200, 3), (10, 0), (20, 50), (100, 1), (0, 7)]
            .into_iter()
            .map(|(offset, len)| memory.slice(offset, len))
            .collect();
        let packed = Memory::zeroed(list.len()).unwrap();
        let (first, pieces) = copy(&list, Cursor::default(), &packed.slice(0, 30), Copying::Pack);
        assert_eq!((first.piece, first.offset, pieces), (2, 27, 2));
        let (end, pieces) = copy(&list, first, &packed.slice(30, list.len() - 30), Copying::Pack);
        assert_eq!((end.piece, end.offset, pieces), (4, 7, 3));
        assert_eq!(packed.to_vec(), list.to_vec());
        let target = Memory::zeroed(256).unwrap();
        let scattered: MemList = list.pieces().iter().map(|piece| target.slice(piece.offset(), piece.len())).collect();
        copy(&scattered, Cursor::default(), &packed.all(), Copying::Unpack);
        assert_eq!(scattered.to_vec(), list.to_vec());
    }
}
