//! The common parts of the benchmarks: samples, processor time and time limits. Also the
//! [workloads](workload) of the papers and their [reproduction](paper), patterns of noncontiguous
//! access, and an I/O server on [several cores](cores).
//!
//! The programs. Their code is in modules here, so that their tests are in one program:
//!
//! | program | what it measures |
//! |---|---|
//! | `benches` | the papers' programs and experiments, datatypes, and what caches and cores give an I/O server |
//! | `honest` | no benchmark: the honest client beside the attackers of `cargo xtask hostile` |
//! | `sim_rate` | events per second in the simulator, and whether a seed gives the same digest twice |
//! | `message_cost` | instructions and system calls of a message, counted under callgrind |

mod commands;
pub mod cores;
pub mod cpu;
mod honest;
pub mod limit;
pub mod memory_limit;
mod message_cost;
pub mod net;
pub mod paper;
pub mod report;
pub mod sample;
mod sim_rate;
pub mod tasks;
pub mod workload;

pub use self::commands::main as run_benches;
pub use self::honest::main as run_honest;
pub use self::message_cost::main as run_message_cost;
pub use self::sim_rate::main as run_sim_rate;
