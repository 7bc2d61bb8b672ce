//! Tests of the examples.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod hello;
mod program;
mod readme;
mod replicated;
