//! Tests of the transport over real sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod calibration;
mod common;
mod connection;
mod crowd;
mod handle;
mod hostile;
mod remote_access;
mod silence;
mod transfer;
