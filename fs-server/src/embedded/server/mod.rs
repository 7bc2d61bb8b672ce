//! A complete server: its store, and an endpoint and a request loop for each transport that it
//! listens on.
//!
//! **Why several endpoints and not one over several transports.** An endpoint's protocol is tuned
//! to one adapter: its limits, its registrations, its event fd. Separate endpoints share only the
//! store. If one transport is missing or fails, the others are not affected.
//!
//! **Invariants**
//! 1. Storage comes first: a server does not listen if it cannot store data or if its directory is
//!    not its own. An I/O server listens before the manager has confirmed its store, but serves
//!    nothing.
//! 2. The address that the server is known by is required, because clients connect to it first. All
//!    other unavailable addresses are named in one warning, and the server runs without them.
//! 3. All loops stop together.
//! 4. A server may have several threads, each with an endpoint and a request loop for each
//!    transport (`loops.rs`). The first thread does what a server does once: it listens. That of an
//!    I/O server registers with the manager and watches the store, that of a manager makes the
//!    changes.

mod iod;
mod manager;
mod transports;

use std::path::PathBuf;
use std::time::Duration;

use bmi::driver::{MonotonicClock, Waiting, event};
use bmi::{Addr, OpenOptions, Scheme};
use fs_proto::{FsError, Identity};

use self::iod::Home;
use self::transports::OpenEndpoint;
use super::directory::open_manager_directory;
use super::loops::{Before, LoopSettings};
use crate::descriptors::{self, Division};
use crate::iod::IodSettings;
use crate::manager::ManagerSettings;
use crate::service::{Balance, Limits};
use crate::store::{Directory, Label, Service};

/// The role of a server.
pub(crate) enum Role {
    Manager {
        dir: PathBuf,
        /// The addresses of the I/O servers are filled in when they are known.
        settings: ManagerSettings,
        /// If set, the metadata was restored: all I/O servers are asked first how far they have
        /// come. Called with lines about the progress.
        restored: Option<fn(&str)>,
        /// Who opens a file gets tickets for the I/O servers.
        tickets: bool,
    },
    Iod {
        index: u32,
        dir: PathBuf,
        settings: IodSettings,
        offload: u64,
        heartbeat: Duration,
        service: Service,
        /// The store keeps checksums.
        checksums: bool,
        /// The directory of the caches of killed servers, and of this one.
        cache_dir: PathBuf,
        /// If true, the store replaces the one that the server had.
        replace: bool,
        /// If set, a cache of a killed server that cannot be taken over is discarded. Called with
        /// lines about what is lost.
        discard_cache: Option<fn(&str)>,
        /// If set, datafiles are used with tickets, and for so long without the manager.
        tickets: Option<Duration>,
    },
}

/// The addresses of the servers that a server works with: the I/O servers of a manager, the manager
/// of an I/O server.
pub(crate) type Neighbours = Vec<Addr>;

/// Everything that a server needs to start.
pub(crate) struct Server {
    pub(crate) role: Role,
    /// The addresses to listen on. The first is the one that the server is known by.
    pub(crate) listen: Vec<Addr>,
    /// The schemes over which it reaches its neighbours.
    pub(crate) connects: Vec<Scheme>,
    /// The server's name for the machine that it runs on.
    pub(crate) host: String,
    pub(crate) transports: OpenOptions,
    pub(crate) endpoint: bmi::Config,
    pub(crate) limits: Limits,
    /// Number of event loops, each on a thread of its own.
    pub(crate) threads: usize,
    /// They take part as they are needed.
    pub(crate) balance: bool,
    /// How the server waits for requests.
    pub(crate) waiting: Waiting,
    /// Number of servers that share the process's limit of file descriptors, with this one.
    pub(crate) sharers: usize,
}

impl Server {
    /// Runs the server on this thread until `stop` ends. Calls `ready` with the addresses once it
    /// listens on all of them. `ready` returns its neighbours. Calls `serving` once it serves.
    pub(crate) fn run(
        mut self,
        ready: impl FnOnce(&[Addr]) -> Result<Neighbours, FsError>,
        serving: impl FnOnce(),
        stop: impl Future<Output = ()>,
    ) -> Result<(), FsError> {
        let descriptors = self.divide_descriptors();
        self.divide_limits();
        match &self.role {
            Role::Manager { dir, .. } => {
                let directory = open_manager_directory(dir)?;
                self.run_manager(&directory, ready, serving, stop)
            }
            Role::Iod { index, dir, service, .. } => {
                self.listen.iter().try_for_each(|addr| service.check_over(addr.scheme()))?;
                let directory = Directory::open(dir, fs_proto::Role::Iod(*index))?;
                let home = Home { directory, open_files: descriptors.datafiles() };
                self.run_iod(home, ready, serving, stop)
            }
        }
    }

    /// Raises the process's limit of file descriptors as far as it may, and divides this server's
    /// part of it. Lowers the numbers of connections that the transports allow, if there are too
    /// few.
    fn divide_descriptors(&mut self) -> Division {
        let limit = descriptors::raise() / self.sharers.max(1);
        let schemes: Vec<Scheme> = self.listen.iter().map(Addr::scheme).chain(self.connects.iter().copied()).collect();
        let stores = matches!(self.role, Role::Iod { .. });
        let division = Division::settle(limit, self.threads, stores, &schemes, &mut self.transports);
        if division.is_short() {
            let transports = &self.transports;
            for scheme in schemes {
                let limits = match scheme {
                    Scheme::Tcp => &transports.tcp.limits,
                    Scheme::Ib => &transports.ib.limits,
                    Scheme::Shm => &transports.shm.limits,
                    _ => continue,
                };
                let most = &mut self.endpoint.limits.max_peers;
                *most = Division::established(limits.max_connections, limits.max_half_open).min(*most);
            }
        }
        division.log(self.sharers);
        division
    }

    /// Divides the limits by the number of loops. Each loop gets as many connections. The loops of
    /// a manager keep their numbers of requests: its changes share one queue, whose limit then
    /// leaves room on every loop (`manager::changes`).
    fn divide_limits(&mut self) {
        let loops = self.threads.max(1);
        if loops == 1 {
            return;
        }
        if let Role::Iod { .. } = self.role {
            self.limits = self.limits.divided(loops);
        }
        let peers = &mut self.endpoint.limits.max_peers;
        *peers = peers.div_ceil(loops);
        let OpenOptions { tcp, ib, shm, .. } = &mut self.transports;
        for limits in [&mut tcp.limits, &mut ib.limits, &mut shm.limits] {
            limits.max_connections = (limits.max_connections / loops).max(1);
            // One is being made, and one waits for the loop.
            limits.max_half_open = limits.max_half_open.div_ceil(loops).max(2);
        }
    }

    fn loop_settings(&self, server: String, before: Before, clock: MonotonicClock) -> LoopSettings {
        let (endpoint, limits, waiting) = (self.endpoint.clone(), self.limits, self.waiting);
        let balance = self.is_balanced().then(|| Balance::new(self.threads));
        LoopSettings { server, before, endpoint, limits, waiting, clock, balance }
    }

    /// Returns true if loops take part as they are needed. Loops that poll without end have
    /// processors of their own.
    fn is_balanced(&self) -> bool {
        self.balance && self.threads > 1 && self.waiting != Waiting::Busy
    }

    fn identity(&self, label: &Label, start: fs_proto::Start, addrs: Vec<Addr>) -> Identity {
        let Label { cluster, role, store, .. } = *label;
        Identity { cluster, role, store, start, host: self.host.clone(), addrs }
    }

    /// Runs `work` with all endpoints.
    fn block_on<R>(&self, opened: &[OpenEndpoint], work: impl Future<Output = R>) -> Result<R, FsError> {
        let endpoints: Vec<_> = opened.iter().map(|open| open.endpoint.clone()).collect();
        Ok(event::block_on_all_with(&endpoints, self.waiting, work)?)
    }
}
