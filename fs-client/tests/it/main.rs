//! Tests of the client and its commands, over the simulator, and against real clusters of threads
//! and of processes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod bench;
mod commands;
mod simulated;
#[allow(dead_code, unreachable_pub, reason = "helpers of the tests")]
mod support;
mod transports;
