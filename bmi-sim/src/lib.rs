//! The simulated backend: adapters, nodes and disks in virtual time, on one thread, from one seed.
//!
//! The *real* protocol, server and client code runs in a [`World`]; only transport, clock, disk and random numbers are the simulator's. Time is
//! in whole nanoseconds and moves only when no task is ready. The same seed gives the same run: [`Sim::digest`] says so.
//!
//! ```
//! use std::time::Duration;
//! let world = bmi_sim::World::new(1);
//! let (server, client) = (world.node("server"), world.node("client"));
//! let task = server.spawn({
//!     let server = server.clone();
//!     async move { server.sleep(Duration::from_millis(5)).await; server.now() }
//! });
//! let ended = world.block_on(task)?;
//! assert_eq!(ended.as_nanos(), 5_000_000);
//! assert!(client.is_alive());
//! # Ok::<(), bmi_sim::Killed>(())
//! ```
//!
//! | where | what |
//! |---|---|
//! | [`World`], [`Sim`], [`Node`] | what a test makes, and handles for its tasks |
//! | [`SimTransport`], [`drive`] | the backend, and what drives an endpoint over it |
//! | [`SimConfig`], [`Profile`] | seed and limits; what things cost, each price with its source |
//! | [`SimDisk`] | a disk's time and failures |
//!
//! Inside: `events` (queue and digest), `executor`, `network` (adapters, links, order), `connect` and `queue_pair` (the contract's connections), `memory`
//! (exposures, copies), `cpu`, `fault`.

mod adapter;
mod clock;
mod config;
mod connect;
mod cpu;
mod disk;
mod driver;
mod error;
mod events;
mod executor;
mod fault;
mod memory;
mod network;
mod node;
mod profile;
mod queue_pair;
mod rng;
mod world;

pub use adapter::SimTransport;
pub use clock::SimClock;
pub use config::SimConfig;
pub use disk::{DiskFault, SimDisk};
pub use driver::drive;
pub use error::{StallKind, Stalled};
pub use executor::{JoinHandle, Killed};
pub use node::Node;
pub use profile::Profile;
pub use rng::Rng;
pub use world::{Sim, Sleep, World};
