//! Tests of the transport over real sockets.

mod calibration;
mod common;
mod connection;
mod crowd;
mod handle;
mod hostile;
mod remote_access;
mod silence;
mod transfer;
