//! The life of a connection: how it begins, what happens when a peer is lost or this side closes,
//! and what becomes of peers and memory that are idle.

mod awaited_peers;
mod closing;
mod connection;
mod idle_eviction;
mod idle_memory;

pub(crate) use closing::closed;
pub use idle_eviction::Kept;
pub(in crate::engine) use idle_eviction::on_go_away;
pub(in crate::engine) use idle_memory::Sweeps;
