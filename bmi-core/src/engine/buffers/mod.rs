//! The buffers of an endpoint that stand in for memory of the program. They know adapter and
//! memory, and neither peers nor operations. Each kind is a type: `Bounce`, `Staging`, `Packing`,
//! `FallbackBuffers`.

mod bounce;
mod fallback;
pub(in crate::engine) mod packing;
mod staging;

pub(in crate::engine) use bounce::Bounce;
pub(in crate::engine) use fallback::{FallbackBuffer, FallbackBuffers};
pub(in crate::engine) use packing::{Copying, Cursor, Packing};
pub(in crate::engine) use staging::{Filling, Staging};
