//! Memory of an endpoint that the adapter uses: receive slots, registrations kept for later, and
//! the buffers that stand in for memory of the program. They know neither peers nor operations.
//! Each kind is a type: `ReceiveSlots`, `PinCache`, `Bounce`, `Staging`, `Packing`,
//! `FallbackBuffers`.

mod bounce;
mod fallback;
pub(in crate::engine) mod packing;
mod pin_cache;
mod receive_slots;
mod staging;

pub(in crate::engine) use bounce::Bounce;
pub(in crate::engine) use fallback::{FallbackBuffer, FallbackBuffers};
pub(in crate::engine) use packing::{Copying, Cursor, Packing};
pub(in crate::engine) use pin_cache::{Limits, PinCache, PinCounts};
pub(in crate::engine) use receive_slots::ReceiveSlots;
pub(in crate::engine) use staging::{Filling, Staging};
