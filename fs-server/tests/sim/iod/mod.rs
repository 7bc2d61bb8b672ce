//! I/O servers: reading and writing datafiles, caches, disks that fail or stall, and the shares of
//! many clients.

use super::*;

mod cache_faults;
mod caches;
mod data;
mod disk_stall;
mod fairness;
mod joins;
mod lending;
mod loops;
mod page_cache;
mod server;
mod stalled;
