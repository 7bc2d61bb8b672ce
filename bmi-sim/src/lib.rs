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
//! | [`adversary`] | a node that replays, forges, truncates and reorders what the others say |
//! | [`fit()`], [`Measurements`] | fits a profile to a few measurements |
//! | [`Usage`], [`Load`], [`Trace`] | where processor time went; how busy each resource was; a timeline of the run, for a browser |
//!
//! Inside, each room uses those below it:
//!
//! | room | contents |
//! |---|---|
//! | `check`, `fit` | tests under faults; micro-benchmarks, and prices that explain measurements |
//! | `adversary` | a node that attacks the others |
//! | `world` | the loop, handles for tests and tasks, drivers; applies faults |
//! | `adapter` | the transport: the calls of the contract |
//! | `model` | what the world consists of: processors, network, connections, disks |
//! | `engine` | time and order: the event queue with the digest, packets, the executor |
//! | `config`, `faults`, `prices` | settings; faults as data; the price of each operation |

// This crate runs inside the simulator: see clippy.toml.
#![warn(clippy::disallowed_types)]

mod adapter;
pub mod adversary;
pub mod check;
mod config;
mod engine;
mod error;
pub mod faults;
mod fit;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod model;
mod prices;
mod rng;
mod world;

pub use adapter::SimTransport;
pub use check::test;
pub use config::{SimConfig, TraceOptions};
pub use error::{StallKind, Stalled};
pub use faults::loss::DiskFault;
pub use fit::{CopyRate, Fit, Measurements, RegisterTime, Residual, fit};
pub use model::processor::{Load, Usage};
pub use model::{Node, Sim};
pub use prices::{DiskProfile, Profile, ProfileError};
pub use rng::Rng;
pub use world::{JoinHandle, Killed, SimClock, SimDisk, Sleep, Trace, World, drive, drive_with};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
