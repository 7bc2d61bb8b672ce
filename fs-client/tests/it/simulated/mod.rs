//! The client and real servers in the simulator, also behind a relay that misbehaves.

mod atomic;
mod caches;
mod faults;
mod file_system;
mod lists;
mod routes;
mod shared;
mod small;
mod tickets;
mod together;
