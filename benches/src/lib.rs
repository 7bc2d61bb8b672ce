//! The common parts of the benchmarks: samples, processor time, time limits,
//! [sandboxes](sandbox) and [servers as processes](processes). Also the [workloads](workload) of
//! the papers and their [reproduction](paper), and an I/O server on [several cores](cores).
//!
//! The programs are in `src/bin`:
//!
//! | program | what it measures |
//! |---|---|
//! | `ab` | the main job: a file system over TCP and in the simulator, side by side |
//! | `micro` | the transport against plain sockets |
//! | `paths` | the four paths of a request's data, and the path that the plan chooses |
//! | `shm_bench` | shared memory, the limits of the machine, UCX and libfabric |
//! | `fs_bench` | operations of the file system, over TCP and shared memory, with servers as processes |
//! | `handle` | the ways to use an endpoint from several threads |
//! | `honest` | no benchmark: the honest client beside the attackers of `cargo xtask hostile` |
//! | `sim_rate` | events per second in the simulator, and whether a seed gives the same digest twice |
//! | `calibrate` | a profile of the simulator, fitted to a few measurements |
//! | `message_cost` | instructions and system calls of a message, counted under callgrind |

pub mod cores;
pub mod cpu;
pub mod limit;
pub mod lines;
pub mod memory_limit;
pub mod net;
pub mod paper;
pub mod processes;
pub mod progress;
pub mod report;
pub mod sample;
pub mod sandbox;
pub mod tasks;
pub mod workload;
