//! `workload`: the programs of the papers over any transport, simulated or real.

use crate::job::Failed;

/// Runs a program of the papers over a transport of this machine, or in the simulator.
#[derive(clap::Args)]
pub(crate) struct Run {}

impl Run {
    pub(crate) fn run(&self) -> Result<bool, Failed> {
        Err("not yet".into())
    }
}
