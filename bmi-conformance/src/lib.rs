//! One test per behaviour of a backend; every backend runs them all.
//!
//! **Why.** The protocol above is written against the contract in [`bmi_core::transport`], not
//! against a backend. The tests of the contract are here, once, so that every backend keeps all of
//! it. A new backend implements [`Backend`], pins its capability set, and has a test program with
//! `harness = false`:
//!
//! ```text
//! fn main() -> std::process::ExitCode {
//!     Suite::new("mine").over("plain", || MyBackend::new()).run()
//! }
//! ```
//!
//! | level | what is tested | where |
//! |---|---|---|
//! | transport | the contract C1 to C18, adapter against adapter | [`transport`] |
//! | transport | several adapters behind one address (C17), if [`Backend::has_shards`] | [`transport::shards`] |
//! | message | the message interface of [`bmi_core::Endpoint`] over the backend | [`message`] |
//! | handle | threads that share a [`bmi_core::Handle`], a suite of its own: [`handle_suite!`] | [`handle`] |
//!
//! A backend may need tests of properties that the suite does not know; [`world`] has helpers for
//! them. [`allocation`] tests that operations do not allocate, [`log`] captures log lines, and
//! [`certificates`] issues some.
//! [`Local`] is the [`Backend`] for adapters that are all in this process.
//!
//! **Configurations.** A backend has several: with the defaults, with small limits, with faults.
//! `suite/table.rs` says which behaviours run over which of them, and why. With `BMI_FULL=1` all
//! run over all.
//!
//! **Invariants**
//! 1. No test depends on how long something takes. Waiting is a loop with a bound. Reaching the
//!    bound fails with the name of what was awaited.
//! 2. No test skips silently. If the backend's pinned set lacks a capability that a test needs, the
//!    test checks that the backend refuses.
//! 3. A behaviour that is not in the list of `suite` makes `every_behaviour_is_listed` fail, and
//!    a part without a row of the table makes `every_part_has_a_row` fail.
//!
//! **Faults.** [`FaultyBackend`] wraps any backend. It wraps each of its adapters in a [`Faulty`]
//! that makes queues full, events late and batches small, as the contract allows. A wrapped backend
//! must pass the whole suite too.
//!
//! **Source.** The form follows the suites of opendal (`core/tests/behavior`), rustls
//! (`rustls-test`) and object_store (its module `integration`).

// This crate runs inside the simulator: see clippy.toml.
#![warn(clippy::disallowed_types)]

pub mod allocation;
mod backend;
pub mod certificates;
pub mod data;
pub mod faulty;
pub mod handle;
pub mod idle_memory;
mod local;
pub mod log;
pub mod message;
pub mod net;
pub mod rig;
mod rng;
mod suite;
pub mod transport;
pub mod world;

pub use backend::Backend;
pub use faulty::{Faulty, FaultyBackend, Plan};
pub use local::{Local, software_capabilities};
pub use rng::Rng;
pub use suite::{Suite, run};
