//! A whole cluster in one process: for tests, demonstrations and the A/B run.
//!
//! | where | servers are | data is |
//! |---|---|---|
//! | [`EmbeddedCluster`] over TCP, verbs, shared memory | threads, each with a runtime of its own and an endpoint for each transport | in files under a directory |
//! | `SimCluster` (feature `sim`) | tasks on nodes of a simulated world | in memory that outlives its server, as a disk does |
//!
//! The servers are the real ones in both; what differs is transport, clock and store.

mod register;
mod server;
#[cfg(feature = "sim")]
mod sim;
mod threads;

use bmi_core::Scheme;
use bmi_core::driver::Waiting;
use fs_proto::limits::DEFAULT_STRIP;

use crate::config::DEFAULT_OFFLOAD;
use crate::iod::IodSettings;
use crate::service::Limits;

pub(crate) use server::{Role, Server};
#[cfg(feature = "sim")]
pub use sim::SimCluster;
pub use threads::{EmbeddedCluster, ServerThread};

/// What an embedded cluster looks like. `ClusterOptions::default()` has four I/O servers.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// I/O servers.
    pub iods: usize,
    /// What each server listens on, one address of each scheme; the first is the one that it is
    /// known by. Not in the simulator.
    pub over: Vec<Scheme>,
    /// Strip size of files that ask for no other, in bytes.
    pub strip_size: u64,
    /// Settings of each server's endpoint; the name is filled in.
    pub endpoint: bmi_core::Config,
    /// What each server takes on.
    pub limits: Limits,
    /// How each server waits for requests. Not in the simulator.
    pub waiting: Waiting,
    /// How the I/O servers use their memory.
    pub iod: IodSettings,
    /// Not in the simulator: transfers of this many bytes or more go to storage threads.
    pub offload: u64,
    /// In the simulator: bytes that each I/O server's disk holds.
    pub disk_capacity: u64,
    /// In the simulator: whether disks take time (the node's disk profile) or not.
    pub disk_costs: bool,
    /// In the simulator: whether the I/O servers' disks have a cache that a power failure empties.
    /// What the manager did not sync is always lost.
    pub disk_cache: bool,
}

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        ClusterOptions {
            iods: 4,
            over: vec![Scheme::Tcp],
            strip_size: DEFAULT_STRIP,
            endpoint: bmi_core::Config::default(),
            limits: Limits::default(),
            waiting: Waiting::default(),
            iod: IodSettings::default(),
            offload: DEFAULT_OFFLOAD,
            disk_capacity: 16 << 30,
            disk_costs: false,
            disk_cache: false,
        }
    }
}

impl ClusterOptions {
    /// The default with this many I/O servers.
    pub fn with_iods(iods: usize) -> ClusterOptions {
        ClusterOptions { iods, ..ClusterOptions::default() }
    }

    fn endpoint(&self, name: &str) -> bmi_core::Config {
        self.endpoint.clone().name(name.to_owned())
    }
}
