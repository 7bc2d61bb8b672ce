//! Fallback buffers: registered memory of the endpoint that is used when user memory cannot be
//! registered.
//!
//! **Why.** An adapter may refuse a registration: its table is full, the system allows no more
//! pinned pages, or it cannot pin this kind of memory. The pin-down cache has then already made
//! room and tried again. The only way left is to copy, which works for everything except memory
//! that the program itself exposes (see `engine::adapter::exposure`).
//!
//! **Protocol**
//!
//! ```text
//!   offered receive            list ──copy──> fallback buffer ══════> the receive
//!   announced send             list ──copy──> fallback buffer of the whole length, which the peer reads
//!   write rendezvous           fallback buffer of the whole length, which the peer writes ──copy──> list
//!   pull, push, receive        packing buffers (`packing`), a unit at a time
//!   eager, fast RDMA           bounce buffers and staging buffers (`bounce`, `staging`)
//! ```
//!
//! **Allocation.** First a new buffer of the required length is registered, because one short
//! registration may succeed after a list of long ones failed. If that is refused too, one of the
//! [`RESERVE`] buffers is used, which were registered when the endpoint was made. They are as long
//! as a unit.
//!
//! **Nothing of others.** A buffer that is sent is filled first. A reserved buffer that a peer
//! writes to is zeroed first, because the peer may write less than it says.
//!
//! **No deadlock.** A write into an offered receive returns its fallback buffer when the adapter is
//! done with it, or with its connection. So every write that waits for a buffer gets one. The
//! buffer of an announced send is returned by the peer's program, perhaps never, so such a send may
//! not take the last one.
//!
//! **Source.** [PVFS-IB §3.3.3] leaves this failure open. Copying by units is from [PVFS-IB §4.2].
//! **Tests** `bmi-sim/tests/it/endpoints/pin_cache.rs`.

use std::sync::{Arc, Mutex, PoisonError};

use crate::config::Config;
use crate::engine::buffers::PinCache;
use crate::error::Error;
use crate::mem::{MemList, Memory, MemoryRegion, Segment};
use crate::transport::Transport;

/// Number of fallback buffers registered ahead: one that an announced send may take, and one that
/// always comes back.
const RESERVE: usize = 2;
/// Longest reserved buffer, in bytes. It is shorter if the transfer unit is.
const LONGEST: usize = 256 << 10;

/// Numbers of the free reserved buffers.
type Free = Arc<Mutex<Vec<usize>>>;

/// The fallback buffers of an endpoint.
pub(in crate::engine) struct FallbackBuffers {
    pub(in crate::engine) unit: usize,
    reserve: MemoryRegion,
    free: Free,
}

/// A range of registered memory. It is returned when it is dropped.
#[derive(Debug)]
pub(in crate::engine) struct FallbackBuffer {
    region: MemoryRegion,
    offset: usize,
    len: usize,
    /// For a reserved buffer: its number, and the list that it returns to.
    back: Option<(usize, Free)>,
}

impl FallbackBuffers {
    pub(in crate::engine) fn new(transport: &mut dyn Transport, config: &Config) -> Result<FallbackBuffers, Error> {
        let unit = config.tuning.transfer_unit.min(LONGEST);
        let reserve = transport.register(&Memory::zeroed(RESERVE * unit)?)?;
        Ok(FallbackBuffers { unit, reserve, free: Arc::new(Mutex::new((0..RESERVE).collect())) })
    }

    /// Takes a fallback buffer of `len` bytes, either new or from the reserve, of which it leaves
    /// `leave` buffers. Returns `None` if there is none of that length.
    pub(in crate::engine) fn take(
        &self,
        transport: &mut dyn Transport,
        registry: &mut PinCache,
        len: usize,
        leave: usize,
    ) -> Option<FallbackBuffer> {
        let fresh = Memory::zeroed(len).and_then(|memory| registry.register_own(|| transport.register(&memory)));
        match fresh {
            Ok(region) => Some(FallbackBuffer { region, offset: 0, len, back: None }),
            Err(_) => self.take_reserved(len, leave),
        }
    }

    fn take_reserved(&self, len: usize, leave: usize) -> Option<FallbackBuffer> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if len > self.unit || free.len() <= leave {
            return None;
        }
        let number = free.pop()?;
        let back = Some((number, Arc::clone(&self.free)));
        Some(FallbackBuffer { region: self.reserve.clone(), offset: number * self.unit, len, back })
    }

    /// Returns the number of reserved buffers in use.
    pub(in crate::engine) fn in_use(&self) -> usize {
        RESERVE - self.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Drop for FallbackBuffer {
    fn drop(&mut self) {
        if let Some((number, free)) = self.back.take() {
            free.lock().unwrap_or_else(PoisonError::into_inner).push(number);
        }
    }
}

impl FallbackBuffer {
    /// Returns its first `len` bytes.
    pub(in crate::engine) fn segment(&self, len: usize) -> Segment {
        self.region.segment(self.offset, len.min(self.len))
    }

    /// Zeroes its first `len` bytes, which may have been those of another peer, before this peer
    /// writes to them. A new buffer is zero.
    pub(in crate::engine) fn clear(&self, len: usize) {
        if self.back.is_some() {
            self.region.memory().slice(self.offset, len.min(self.len)).zero();
        }
    }

    /// Copies its first `len` bytes to a list. Returns the number of pieces written.
    pub(in crate::engine) fn spill(&self, list: &MemList, len: usize) -> u64 {
        let (mut done, mut pieces) = (0, 0);
        for piece in list.range(0, len.min(self.len)) {
            done += piece.copy_from_slice_of(&self.region.memory().slice(self.offset + done, piece.len()));
            pieces += 1;
        }
        pieces
    }

    /// Copies a list into the buffer. The list must fit.
    pub(in crate::engine) fn fill(&self, list: &MemList) {
        let mut done = 0;
        for piece in list.pieces() {
            done += self.region.memory().slice(self.offset + done, piece.len()).copy_from_slice_of(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{LocalKey, ReleaseQueue};

    #[test]
    fn a_reserved_buffer_holds_nothing_of_the_peer_before() {
        const UNIT: usize = 4096;
        let memory = Memory::zeroed(RESERVE * UNIT).unwrap();
        let reserve = MemoryRegion::new(memory, LocalKey(1), Arc::new(ReleaseQueue::default()));
        let buffers = FallbackBuffers { unit: UNIT, reserve, free: Arc::new(Mutex::new((0..RESERVE).collect())) };
        let taken: Vec<_> = (0..RESERVE).map(|_| buffers.take_reserved(UNIT, 0).unwrap()).collect();
        taken.iter().for_each(|buffer| buffer.fill(&MemList::from(vec![0xa5; UNIT])));
        drop(taken);
        let target = Memory::zeroed(UNIT).unwrap();
        for _ in 0..RESERVE {
            let buffer = buffers.take_reserved(UNIT, 0).unwrap();
            buffer.clear(1000);
            buffer.spill(&MemList::from(&target), 1000);
            assert!(!target.to_vec().contains(&0xa5));
            buffers.free.lock().unwrap().rotate_left(1);
        }
        assert_eq!(buffers.in_use(), 0);
    }
}
