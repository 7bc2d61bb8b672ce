//! The servers of the file system: the manager and the I/O servers.
//!
//! | module | contents |
//! |---|---|
//! | [`service`] | the request loop that both kinds of server run, with bounded concurrency |
//! | [`manager`] | the namespace, with changes executed once; removal of orphaned datafiles |
//! | [`iod`] | reads and writes of datafiles, staged and pipelined |
//! | [`store`] | storage of metadata and data, in files or in memory |
//! | `authority` | certificates for servers and users: what they say, and who issues them |
//! | [`config`], [`cli`] | configuration and command line of `pvfsd` |
//! | `descriptors` | the file descriptors of a server, and how they are divided |
//! | [`scratch`] | a cluster that lasts as long as a command |
//! | `control` | the servers of a machine as a whole: in the background, in one process or several |
//! | `host` | the time of day and random numbers |
//! | `lock` | locks that outlive a panic |
//! | `metrics` | what the servers count, and how it is served |
//! | `workers` | threads that do what may wait for a disk |
//! | [`embedded`] | a whole cluster in one process, for tests and demonstrations |
//!
//! The servers take endpoints. Only [`cli`] and [`embedded`] know which backend is used.

// Runs inside the simulator: see clippy.toml.
#![warn(clippy::disallowed_types)]

mod authority;
mod call;
pub mod cli;
pub mod config;
mod control;
mod descriptors;
pub mod embedded;
#[cfg(any(test, all(fuzzing, feature = "sim")))]
#[doc(hidden)]
pub mod fuzz;
mod host;
pub mod iod;
mod lock;
pub mod manager;
mod metrics;
pub mod scratch;
pub mod service;
pub mod store;
mod workers;
