//! Tests of the backend over real verbs. Each needs an RDMA device, and is ignored without one:
//! `cargo xtask rxe` runs them in a machine that has one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod calls;
mod crowd;
mod faults;
mod fork;
mod handle;
mod memory;
mod side_channel;
mod support;
