//! Tests of the transport between endpoints of one process.

mod calls;
mod common;
mod connection;
mod crowd;
mod handle;
mod inline_receive;
mod retired;
mod views;
