//! Tests of the client and its commands, over the simulator, against mock servers, and against real
//! clusters.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod accidents;
#[allow(dead_code, unreachable_pub, reason = "helpers of the tests")]
mod alias;
mod bench;
#[allow(dead_code, unreachable_pub, reason = "helpers of the tests")]
mod bodies;
mod caches;
mod cli;
#[allow(dead_code, unreachable_pub, reason = "helpers of the tests")]
mod cluster;
mod control;
mod crowd;
mod log;
mod mock;
mod put;
#[allow(dead_code, unreachable_pub, reason = "helpers of the tests")]
mod recycled;
mod restore;
mod routes;
#[allow(dead_code, unreachable_pub, reason = "helpers of the tests")]
mod servers;
mod sim;
mod sim_shared;
mod stalled;
mod tcp;
mod threads;
mod unifier;
mod versions;
mod whose_bytes;
