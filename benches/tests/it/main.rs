//! Tests of the programs that measure.

mod commands;
mod cores;
mod fs_bench;
mod paper;
mod reports;
mod waiting;
