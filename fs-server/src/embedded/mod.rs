//! A whole cluster in one process, for tests, demonstrations and the A/B run.
//!
//! | type | servers | data |
//! |---|---|---|
//! | [`EmbeddedCluster`] over TCP, verbs, shared memory | threads, an endpoint per transport | files |
//! | `SimCluster` (feature `sim`) | tasks on simulated nodes | memory that outlives its server, like a disk |
//!
//! Each thread has its own runtime. The files are under one directory. Both types run the real
//! servers; only the transport, the clock and the store differ.

mod directory;
mod loops;
mod processors;
mod server;
#[cfg(feature = "sim")]
mod sim;
mod threads;
mod waiting_room;

use std::time::Duration;

use bmi::driver::Waiting;
use bmi::{Addr, Scheme};
use fs_proto::limits::DEFAULT_STRIP;

use crate::config::{DEFAULT_IDLE, DEFAULT_OFFLOAD};
use crate::iod::IodSettings;
use crate::manager::{HEARTBEAT, ManagerSettings};
use crate::service::Limits;
use crate::store::Service;

pub(crate) use directory::format_manager_directory;
pub(crate) use server::{Neighbours, Role, Server};
#[cfg(feature = "sim")]
pub use sim::{Free, Medium, PageCacheOptions, SIM_CLUSTER, SimCluster, SimStore, datafiles};
pub use threads::EmbeddedCluster;
pub(crate) use threads::{Event, ServerThread};

/// The shape and settings of an embedded cluster. `ClusterOptions::default()` has four I/O servers.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Number of I/O servers.
    pub iods: usize,
    /// The transports that each server listens on, with one address per scheme. The server is known
    /// by the first. Not used in the simulator.
    pub over: Vec<Scheme>,
    /// Strip size of files for which the client requests no other, in bytes.
    pub strip_size: u64,
    /// Settings of each server's endpoint. The name is filled in.
    pub endpoint: bmi::Config,
    /// Limits of each server.
    pub limits: Limits,
    /// Number of event loops of each server, each on a thread of its own. In the simulator, that of
    /// the manager: the I/O servers have those of `SimCluster::start_on_cores`.
    pub threads: usize,
    /// Event loops take part as they are needed. Otherwise all do from the beginning. Not used in
    /// the simulator.
    pub balance: bool,
    /// How each server waits for requests. Not used in the simulator.
    pub waiting: Waiting,
    /// Memory settings of the I/O servers.
    pub iod: IodSettings,
    /// How the I/O servers move data between disk and network.
    pub service: Service,
    /// The I/O servers keep checksums of what they store.
    pub checksums: bool,
    /// I/O servers let clients use only what the manager has opened for them.
    pub tickets: bool,
    /// Transfers of this many bytes or more go to storage threads. Not used in the simulator.
    pub offload: u64,
    /// How often each I/O server confirms to the manager that it is up.
    pub heartbeat: Duration,
    /// Number of datafiles that each I/O server creates in advance at a time.
    pub pool: u32,
    /// Simulator only: capacity of each I/O server's disk, in bytes.
    pub disk_capacity: u64,
    /// Simulator only: if true, disks take time (by the node's disk profile).
    pub disk_costs: bool,
    /// See [`ManagerSettings::nameless_grace`].
    pub nameless_grace: Duration,
    /// Simulator only: how long each piece of the manager's work on its database takes, a commit
    /// for instance. It is on the disk after half of that time.
    pub commit_time: Duration,
    /// Simulator only: if true, the I/O servers' disks have a cache, which is lost in a power
    /// failure. The manager's unsynced data is always lost.
    pub disk_cache: bool,
}

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        ClusterOptions {
            iods: 4,
            over: vec![Scheme::Tcp],
            strip_size: DEFAULT_STRIP,
            endpoint: bmi::Config::default().evict_idle_after(Some(DEFAULT_IDLE)),
            limits: Limits::default(),
            threads: 1,
            balance: true,
            waiting: Waiting::default(),
            iod: IodSettings::default(),
            service: Service::Normal,
            checksums: false,
            tickets: false,
            offload: DEFAULT_OFFLOAD,
            heartbeat: HEARTBEAT,
            pool: ManagerSettings::new(Vec::new()).pool,
            nameless_grace: ManagerSettings::new(Vec::new()).nameless_grace,
            disk_capacity: 16 << 30,
            disk_costs: false,
            commit_time: Duration::ZERO,
            disk_cache: false,
        }
    }
}

impl ClusterOptions {
    /// Returns the default options with this number of I/O servers.
    pub fn with_iods(iods: usize) -> ClusterOptions {
        ClusterOptions { iods, ..ClusterOptions::default() }
    }

    /// Returns the manager's settings for these I/O servers.
    fn manager(&self, iods: Vec<Addr>) -> ManagerSettings {
        let ClusterOptions { strip_size, heartbeat, pool, nameless_grace, .. } = *self;
        ManagerSettings { strip_size, heartbeat, pool, nameless_grace, ..ManagerSettings::new(iods) }
    }

    fn endpoint(&self, name: &str) -> bmi::Config {
        self.endpoint.clone().name(name.to_owned())
    }
}
