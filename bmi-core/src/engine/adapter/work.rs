//! The ids of work requests, which the adapter returns in a completion, and their meaning.
//!
//! **Layout** of the 64 bits: `kind (2) | generation (30) | slot (32)`.

use crate::ids::{GENERATIONS, Key};
use crate::op::OpId;
use crate::transport::WorkId;

/// The object that a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Work {
    /// An operation: its eager send, its write, or a unit of its transfer.
    Op(OpId),
    /// A receive slot of the connection.
    Slot(u32),
    /// A bounce buffer of the endpoint.
    Bounce(u32),
    /// A staging buffer of the endpoint.
    Staged(u32),
    /// A message that is reported only if it fails.
    Silent,
}

impl Work {
    #[inline]
    pub(in crate::engine) fn to_id(self) -> WorkId {
        let (kind, generation, slot) = match self {
            Work::Op(op) => (0, op.0.generation, op.0.slot),
            Work::Slot(slot) => (1, 0, slot),
            Work::Bounce(slot) => (2, 0, slot),
            Work::Staged(buffer) => (2, 1, buffer),
            Work::Silent => (3, 0, 0),
        };
        debug_assert!(generation < GENERATIONS, "generation {generation}");
        WorkId(kind << 62 | u64::from(generation) << 32 | u64::from(slot))
    }

    #[inline]
    pub(in crate::engine) fn from_id(id: WorkId) -> Work {
        let slot = u32::try_from(id.0 & u64::from(u32::MAX)).expect("masked");
        let generation = u32::try_from(id.0 >> 32).expect("shifted") & (GENERATIONS - 1);
        match id.0 >> 62 {
            0 => Work::Op(OpId(Key { slot, generation })),
            1 => Work::Slot(slot),
            2 if generation == 1 => Work::Staged(slot),
            2 => Work::Bounce(slot),
            _ => Work::Silent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let op = OpId(Key { slot: u32::MAX, generation: GENERATIONS - 1 });
        for work in [Work::Op(op), Work::Slot(7), Work::Bounce(u32::MAX), Work::Staged(3), Work::Silent] {
            assert_eq!(Work::from_id(work.to_id()), work);
        }
    }
}
