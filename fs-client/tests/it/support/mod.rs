//! What the tests share: bodies that run over any transport, a cluster of processes, and a relay
//! in the simulator.

pub mod bodies;
pub mod cluster;
pub mod recycled;
pub mod relay;
pub mod together;
pub mod typed;
