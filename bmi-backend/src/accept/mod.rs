//! Before there is a connection: listening sockets, accepted sockets that have not introduced
//! themselves, and which of several transports gets one.

mod half_open;
mod listeners;
mod shards;

pub use half_open::HalfOpen;
pub use listeners::{Listeners, Round};
pub use shards::{Limits, Place, Shard};
