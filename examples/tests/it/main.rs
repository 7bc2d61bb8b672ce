//! Tests of the examples.

mod hello;
mod program;
mod readme;
mod replicated;
