//! Tests of the simulator, and of the protocol in it. Each folder is about one subject, and its
//! `mod.rs` says which.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod calls;
mod endpoints;
mod peers;
mod profiles;
mod simulator;
mod support;
