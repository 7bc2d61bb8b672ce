//! What the benchmarks share: statistics, tables, units, processor time, time limits, the progress of a run; the [workloads](workload)
//! of the papers and their [reproduction](paper).
//!
//! The programs are in `src/bin`: `ab` (the main job: a file system over TCP and in the simulator, side by side), `micro` (the
//! transport against plain sockets), `sim_rate` (events a second in the simulator, and the same digest twice), `calibrate` (a profile of the
//! simulator from a few measurements), `message_cost` (instructions and system calls of a message,
//! counted by callgrind).

pub mod cpu;
pub mod limit;
pub mod net;
pub mod paper;
pub mod sample;
pub mod stats;
pub mod table;
pub mod units;
pub mod workload;
