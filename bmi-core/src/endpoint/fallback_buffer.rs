//! FallbackBuffers: registered memory of the endpoint's own that stands in for memory that cannot
//! be registered.
//!
//! **Why.** An adapter may refuse a registration: its table is full, the system allows no more
//! pinned pages, or the memory is of a kind that it cannot pin. The pin-down cache has made room
//! then and tried again. What is left is to copy, which works for everything but what the program
//! exposes itself (see `exposure`).
//!
//! **Protocol**
//!
//! ```text
//!   direct write               list ──copy──> spare ══════> the offered receive
//!   announced send             list ──copy──> spare of the whole length, which the peer reads
//!   wanted receive             spare of the whole length, which the peer writes ──copy──> list
//!   pull, push, receive        have packing buffers (`packing`), a unit at a time
//!   eager, fast                have slots of their own (`bounce`, `staging`)
//! ```
//!
//! **Where they come from.** First a fresh piece is registered, as long as the unit: one short
//! registration may pass where a list of long ones did not. If that is refused too, one of the
//! [`RESERVE`] that were registered when the endpoint was made.
//!
//! **No deadlock.** A direct write gives its fallback buffer back when the adapter is done with it,
//! or with its connection; so those that wait get one. An announced send is given back by the
//! peer's program, perhaps never, so it may not take the last.
//!
//! **Source.** [PVFS-IB §3.3.3], leaves failure open; unit-wise copying is its section 4.2.
//! **Tests** `bmi-sim/tests/pin_cache.rs`.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Endpoint, send};
use crate::config::Config;
use crate::error::Error;
use crate::mem::{MemList, Memory, MemoryRegion, PinCache, Segment};
use crate::op::{OpId, PeerId};
use crate::transport::{HostWork, Transport};

/// FallbackBuffers that are registered ahead: one that an announced send may take, and one that
/// always comes back.
const RESERVE: usize = 2;
/// Longest unit of a fallback buffer, in bytes; shorter if transfers are cut shorter.
const LONGEST: usize = 256 << 10;

/// Numbers of the reserve's pieces that are free.
type Free = Arc<Mutex<Vec<usize>>>;

/// The fallback buffers of an endpoint.
pub(super) struct FallbackBuffers {
    unit: usize,
    reserve: MemoryRegion,
    free: Free,
}

/// A stretch of registered memory; it goes back when it is dropped.
#[derive(Debug)]
pub(super) struct FallbackBuffer {
    region: MemoryRegion,
    offset: usize,
    len: usize,
    /// For a piece of the reserve: its number, and where it goes back to.
    back: Option<(usize, Free)>,
}

impl FallbackBuffers {
    pub(super) fn new<T: Transport>(transport: &mut T, config: &Config) -> Result<FallbackBuffers, Error> {
        let unit = config.limits.transfer_unit.min(LONGEST);
        let reserve = transport.register(&Memory::zeroed(RESERVE * unit)?)?;
        Ok(FallbackBuffers { unit, reserve, free: Arc::new(Mutex::new((0..RESERVE).collect())) })
    }

    /// A fallback buffer of `len` bytes, fresh or from the reserve, of which it leaves `leave`.
    /// `None` if there is none of that length.
    pub(super) fn take<T: Transport>(
        &self,
        transport: &mut T,
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

    /// Pieces of the reserve that stand in for something.
    pub(super) fn in_use(&self) -> usize {
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
    /// Its first `len` bytes.
    pub(super) fn segment(&self, len: usize) -> Segment {
        self.region.segment(self.offset, len.min(self.len))
    }

    /// Copies its first `len` bytes to a list; says to how many pieces.
    pub(super) fn spill(&self, list: &MemList, len: usize) -> u64 {
        let (mut done, mut pieces) = (0, 0);
        for piece in list.range(0, len.min(self.len)) {
            done += piece.copy_from_slice_of(&self.region.memory().slice(self.offset + done, piece.len()));
            pieces += 1;
        }
        pieces
    }

    /// Copies a list that fits.
    pub(super) fn fill(&self, list: &MemList) {
        let mut done = 0;
        for piece in list.pieces() {
            done += self.region.memory().slice(self.offset + done, piece.len()).copy_from_slice_of(piece);
        }
    }
}

impl<T: Transport> Endpoint<T> {
    /// Copies the list of a direct write to a fallback buffer; says what to write then.
    pub(super) fn stand_in_for(&mut self, id: OpId, list: &MemList) -> Option<Segment> {
        let fallback = self.fallback_buffers.take(&mut self.transport, &mut self.registry, list.len(), 0)?;
        fallback.fill(list);
        self.transport.charge(HostWork::copy(list.len(), list));
        let segment = fallback.segment(list.len());
        self.ops.get_mut(id.0)?.fallback = Some(Box::new(fallback));
        Some(segment)
    }

    /// Counts a message that went by way of a copy, if it did.
    pub(super) fn count_stand_in(&mut self, id: OpId) {
        self.counters.bounced += u64::from(self.ops.get(id.0).is_some_and(|op| op.fallback.is_some()));
    }

    /// A message could not leave after all: it is copied again when it can.
    pub(super) fn forget_stand_in(&mut self, id: OpId) {
        if let Some(op) = self.ops.get_mut(id.0) {
            op.fallback = None;
        }
    }

    /// What a direct write does that has neither registration nor spare.
    pub(super) fn without_fallback_buffer(&mut self, peer: PeerId, len: usize, error: &Error) -> send::Attempt {
        if len > self.fallback_buffers.unit {
            return send::Attempt::Failed(error.kind());
        }
        // FallbackBuffers come back by way of the adapter.
        self.block(peer);
        send::Attempt::Blocked
    }
}
