//! The simulated backend: adapters, nodes and disks in virtual time, on one thread, from one seed.
//!
//! The real protocol, server and client code runs in a [`World`]. Only the transport, the clock,
//! the disk and the random numbers are the simulator's. Time is in whole nanoseconds and moves only
//! when no task is ready. The same seed gives the same run, which [`Sim::digest`] lets a test
//! check.
//!
//! A test of a protocol of your own, without a network:
//!
//! ```
//! use bmi_core::{Config, Memory, Options};
//! use bmi_sim::World;
//!
//! let world = World::new(1);
//! let (server, client) = (world.node("server"), world.node("client"));
//! let (s, c) = (server.endpoint(Config::default())?, client.endpoint(Config::default())?);
//! let addr = s.listen(&server.addr(0))?;
//! server.spawn(async move {
//!     let request = s.next_unexpected().await;
//!     let shout = request.bytes().to_ascii_uppercase();
//!     request.peer().send(request.tag(), Memory::from(shout), Options::default()).await
//! });
//! let (reply, took) = world.block_on(async {
//!     let server = c.connect(&addr, Options::default()).await?;
//!     let (start, reply) = (client.now(), Memory::zeroed(5)?);
//!     let answer = server.recv(7, reply.clone(), Options::default());
//!     server.send_unexpected(7, Memory::from(b"hello".to_vec()), Options::default()).await?;
//!     answer.await?;
//!     Ok::<_, bmi_core::Error>((reply.to_vec(), client.now() - start))
//! })?;
//! assert_eq!(reply, b"HELLO");
//! // Most of it: the server is still posting the receives of a new connection.
//! assert!(took.as_micros() < 20, "{took:?} of virtual time");
//! # Ok::<(), bmi_core::Error>(())
//! ```
//!
//! | where | what |
//! |---|---|
//! | [`World`], [`Sim`], [`Node`] | what a test makes, and handles for its tasks |
//! | [`SimTransport`], [`drive`], [`drive_with`] | the backend, and the drivers of an endpoint over it |
//! | [`SimConfig`], [`Profile`] | the seed and the limits; the price of each operation, with its source |
//! | [`SimDisk`] | a disk's time and failures |
//! | [`faults`] | faults as data: plans, and how they are drawn |
//! | [`check`] | a test of a protocol under faults: a sweep over seeds, replayed and shrunk |
//! | [`fit()`], [`Measurements`] | fits a profile to a few measurements |
//! | [`Usage`], [`Load`], [`Trace`] | where processor time went; how busy each resource was; a timeline of the run, for a browser |
//!
//! Inside: `events` (queue and digest), `executor`, `network` (adapters, links, order), `connect`
//! and `queue_pair` (the contract's connections), `inline_receive` (messages shown to a receiver),
//! `memory` (exposures, copies), `cpu` (cores and the tasks on them), `locks` and `calendar` (what
//! cores share), `profile_file`, `timeline`.

// This crate runs inside the simulator: see clippy.toml.
#![warn(clippy::disallowed_types)]

mod adapter;
mod calendar;
pub mod check;
mod clock;
mod config;
mod cpu;
mod disk;
mod driver;
mod error;
mod events;
mod executor;
pub mod faults;
mod fit;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod inline_receive;
mod lifecycle;
mod load;
mod locks;
mod memory;
mod micro;
mod network;
mod node;
mod profile;
mod profile_file;
mod queue_pair;
mod rng;
mod timeline;
mod usage;
mod world;

pub use adapter::SimTransport;
pub use clock::SimClock;
pub use config::SimConfig;
pub use disk::{DiskFault, SimDisk};
pub use driver::{drive, drive_with};
pub use error::{StallKind, Stalled};
pub use executor::{JoinHandle, Killed};
pub use fit::{CopyRate, Fit, Measurements, RegisterTime, Residual, fit};
pub use load::Load;
pub use node::Node;
pub use profile::{DiskProfile, Profile};
pub use profile_file::ProfileError;
pub use rng::Rng;
pub use timeline::{Trace, TraceOptions};
pub use usage::Usage;
pub use world::{Sim, Sleep, World};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
