//! A storage server's cache whose buffers are its communication buffers.

#![warn(clippy::disallowed_types)]

mod ahead;
mod arena;
mod background;
mod cache;
mod claims;
mod disk;
mod extent;
mod policy;
mod pool;
mod query;
mod ready;
mod settings;
mod state;
#[cfg(test)]
mod tests;

pub use arena::{Arena, ArenaSettings, BLOCK, FRAME, Frames, Place, Ranges, Record, Recovered};
pub use cache::{Cache, Hold, Reading, Writing};
pub use disk::{CacheError, Disk};
pub use extent::Extent;
pub use policy::Policy;
pub use query::{Counters, Coverage, FileCounters, FileStatistics, Statistics};
pub use ready::ReadyRegions;
pub use settings::{Hints, Pattern, Settings};
