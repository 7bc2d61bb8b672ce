//! Tests of the transport between endpoints of one process.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod calls;
mod common;
mod connection;
mod crowd;
mod descriptors;
mod footprint;
mod handle;
mod inline_receive;
mod pages;
mod process_death;
mod retired;
mod views;
