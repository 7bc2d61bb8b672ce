//! Tests of the programs that measure.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod commands;
mod cores;
mod noncontiguous;
mod paper;
mod reports;
mod waiting;
