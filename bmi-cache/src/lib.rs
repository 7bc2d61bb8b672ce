//! A storage server's cache whose buffers are its communication buffers.

#![warn(clippy::disallowed_types)]

mod arena;
mod policy;

pub use arena::{Arena, ArenaSettings, Frames, Place, Record, Recovered};
pub use policy::Policy;
