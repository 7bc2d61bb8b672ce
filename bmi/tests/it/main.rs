//! Calls of the root of `bmi`: over TCP, over shared memory, and in a simulated world.

mod bed;
mod limits;
mod links;
#[cfg(feature = "metrics")]
mod metrics;
mod misuse;
mod outcomes;
mod processes;
mod runtime;
mod streams;
#[cfg(feature = "tower")]
mod tower;
mod traces;
mod transfers;
#[cfg(feature = "typed")]
mod typed;
