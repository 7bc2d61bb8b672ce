//! Calls and groups of `bmi`: over TCP, over shared memory, and in a simulated world.

mod bed;
mod features;
mod group;
mod limits;
mod links;
mod misuse;
mod outcomes;
mod processes;
mod runtime;
mod streams;
mod traces;
mod transfers;
