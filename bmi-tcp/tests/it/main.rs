//! Tests of the transport over real sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod allocation;
mod calibration;
mod common;
mod connection;
mod crowd;
mod handle;
mod hostile;
#[cfg(target_os = "linux")]
mod memory;
mod remote_access;
mod secure;
mod silence;
mod streams;
mod transfer;
mod waiting;
