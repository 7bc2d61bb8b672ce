//! Tests of the client and its commands, over the simulator, and against real clusters of threads
//! and of processes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod accidents;
mod bench;
#[allow(dead_code, unreachable_pub, reason = "helpers of the tests")]
mod bodies;
mod caches;
mod cli;
#[allow(dead_code, unreachable_pub, reason = "helpers of the tests")]
mod cluster;
mod control;
mod crowd;
mod descriptors;
mod faults;
mod lists;
mod loops;
mod put;
#[allow(dead_code, unreachable_pub, reason = "helpers of the tests")]
mod recycled;
#[allow(dead_code, unreachable_pub, reason = "helpers of the tests")]
mod relay;
mod restore;
mod routes;
mod sim;
mod sim_shared;
mod tcp;
mod threads;
mod unifier;
#[cfg(target_os = "linux")]
mod views;
mod whose_bytes;
