//! What a node stores: a disk, which outlives it; the log on the disk; and the state in memory.

mod disk;
mod log;
mod state;

pub use disk::{Bug, Disk};
pub use log::LogStore;
pub use state::{Observer, StateMachine};
