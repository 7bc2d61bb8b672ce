//! The buffers of an endpoint that stand in for memory of the program. They know adapter and
//! memory, and neither peers nor operations. Each kind is a type: `Bounce`, `Staging`, `Packing`,
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
