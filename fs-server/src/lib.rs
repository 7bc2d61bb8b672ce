//! The servers of the file system: the manager and the I/O daemon.
//!
//! | where | what |
//! |---|---|
//! | [`service`] | the loop that both run: requests in, replies out, bounded |
//! | [`manager`] | namespace, executed once; orphans |
//! | [`iod`] | reads and writes of datafiles, staged and pipelined |
//! | [`store`] | where metadata and data are kept: files, or memory |
//! | [`config`], [`cli`] | what `pvfsd` is told |
//! | [`embedded`] | a whole cluster in one process, for tests and demonstrations |
//!
//! Generic over the transport; nothing here knows which backend it runs over but [`cli`] and
//! [`embedded`].

// Runs inside the simulator: see clippy.toml.
#![warn(clippy::disallowed_types)]

pub mod cli;
pub mod config;
pub mod embedded;
pub mod iod;
pub mod manager;
pub mod service;
pub mod store;
