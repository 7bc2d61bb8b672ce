//! Programs on a mount: a cluster of processes, and `pvfs-mount`.
//!
//! The tests need root and `/dev/fuse`, and fail without. So `cargo test` runs them only by name
//! (`--test mount`), and `cargo xtask test` in its step `fuse`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod accidents;
mod bench;
mod coherence;
mod exclusive;
mod listing;
mod posix;
mod programs;
mod support;
