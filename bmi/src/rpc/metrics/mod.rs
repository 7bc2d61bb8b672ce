//! Counters of servers, clients and endpoints, through the facade `metrics` (feature `metrics`).
//!
//! The facade does nothing until the program installs a recorder, for instance that of
//! `metrics-exporter-prometheus`. Install it first: servers and clients obtain their counters when
//! they are made. Several of them in a process add to the same counters.
//! `docs/embedding.md` has the table of names.
//!
//! **Cost.** A call adds to a few atomic numbers. Nothing is looked up, allocated or locked for it
//! on this side of the recorder. Without the feature nothing is left of it.
//!
//! **Endpoints** count by themselves, whether anybody reads it or not. [`Server::sample`],
//! [`Client::sample`] and [`EngineMetrics::sample`] bring that to the facade: call them before the
//! values are read, or every few seconds.
//!
//! [`Server::sample`]: crate::Server::sample
//! [`Client::sample`]: crate::Client::sample

mod calls;
#[cfg(feature = "metrics")]
mod engine;
mod facade;
#[cfg(feature = "metrics")]
mod names;

pub(super) use self::calls::{ClientMetrics, LinkMetrics, ServerMetrics};
#[cfg(feature = "metrics")]
pub use self::engine::EngineMetrics;
#[cfg(feature = "metrics")]
use self::engine::Engines;
#[cfg(feature = "metrics")]
use self::names::describe;
