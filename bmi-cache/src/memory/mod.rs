//! The memory of a cache: the arena, which outlives the process, with its records for the next one;
//! which frames are in use (`pool`); which chunks stay registered (`ready`).

mod arena;
mod pool;
mod ready;

pub use arena::{Arena, ArenaSettings, BLOCK, FRAME, Frames, Owner, Place, Ranges, Record, Recovered};
pub(crate) use pool::Pool;
pub(crate) use ready::Readiness;
pub use ready::ReadyRegions;
