//! The cluster over TCP on loopback: each server on a thread of its own.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bmi_core::driver::{MonotonicClock, event};
use bmi_core::{Addr, AsyncEndpoint, Clock, Endpoint};
use bmi_tcp::{TcpConfig, TcpTransport};
use fs_proto::{ErrorCode, FsError};
use tokio::sync::oneshot;

use super::ClusterOptions;
use crate::iod::{Iod, IodSettings};
use crate::manager::{Manager, ManagerSettings};
use crate::service::{Limits, serve};
use crate::store::{FileStore, MetaStore, durable_dir};

/// How long a server may take to come up.
const START: Duration = Duration::from_secs(30);

/// The system's time, in nanoseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "attributes show the time of day; servers on a real machine take it from there"
)]
pub(crate) fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// What a server is.
pub(crate) enum Role {
    Manager { dir: PathBuf, settings: ManagerSettings },
    Iod { dir: PathBuf, settings: IodSettings, offload: u64 },
}

/// All that a server needs to begin.
pub(crate) struct Server {
    pub(crate) role: Role,
    pub(crate) listen: Addr,
    pub(crate) endpoint: bmi_core::Config,
    pub(crate) limits: Limits,
}

impl Server {
    /// Runs on this thread until `stop` ends; calls `ready` with the address once it listens.
    pub(crate) fn run(self, ready: impl FnOnce(&Addr), stop: impl Future<Output = ()>) -> Result<(), FsError> {
        let clock = MonotonicClock::new();
        let transport = TcpTransport::new(TcpConfig::default())?;
        let endpoint = AsyncEndpoint::new(Endpoint::new(transport, self.endpoint, clock.now())?, clock);
        // Storage first: a server that cannot keep anything must not listen.
        let served = match self.role {
            Role::Manager { dir, settings } => {
                make_dir(&dir)?;
                let store = MetaStore::open(dir.join("metadata.redb"))?;
                let manager = Manager::new(endpoint.clone(), store, settings, wall_clock)?;
                ready(&endpoint.listen(&self.listen)?);
                event::block_on(endpoint.clone(), serve(&endpoint, &manager, self.limits, stop))
            }
            Role::Iod { dir, settings, offload } => {
                let iod = Iod::new(endpoint.clone(), FileStore::open(dir, offload)?, settings)?;
                ready(&endpoint.listen(&self.listen)?);
                event::block_on(endpoint.clone(), serve(&endpoint, &iod, self.limits, stop))
            }
        };
        Ok(served?)
    }
}

fn make_dir(dir: &Path) -> Result<(), FsError> {
    durable_dir(dir).map_err(|error| FsError::new(ErrorCode::Io, format!("data directory {}: {error}", dir.display())))
}

/// A server on a thread of its own.
pub struct ServerThread {
    addr: Addr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), FsError>>,
}

impl ServerThread {
    fn start(name: &str, server: Server) -> Result<ServerThread, FsError> {
        let (listening, ready) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            server.run(
                |addr| {
                    // Whoever started us has given up waiting if this fails, and stops us.
                    let _ = listening.send(addr.clone());
                },
                async {
                    // A stop that was dropped is a stop as well.
                    let _ = stopped.await;
                },
            )
        };
        let thread = Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .map_err(|error| FsError::new(ErrorCode::Busy, format!("thread {name}: {error}")))?;
        match ready.recv_timeout(START) {
            Ok(addr) => Ok(ServerThread { addr, stop, thread }),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(FsError::new(ErrorCode::Timeout, format!("{name} did not come up")))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
                Ok(Err(error)) => Err(error.with_server(name)),
                _ => Err(FsError::new(ErrorCode::Io, format!("{name} ended before it listened"))),
            },
        }
    }

    /// Where it listens.
    pub fn addr(&self) -> &Addr {
        &self.addr
    }

    /// Stops it and waits for its end.
    ///
    /// # Errors
    /// What it failed with; `Io` if it panicked.
    pub fn stop(self) -> Result<(), FsError> {
        // It may have ended by itself.
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_else(|_| Err(FsError::new(ErrorCode::Io, "the server's thread panicked")))
    }
}

/// A cluster over TCP on loopback, its data under one directory. Dropping it stops the servers without waiting for them.
pub struct EmbeddedCluster {
    dir: PathBuf,
    options: ClusterOptions,
    manager: Option<ServerThread>,
    manager_addr: Addr,
    iods: Vec<Option<ServerThread>>,
    iod_addrs: Vec<Addr>,
}

impl EmbeddedCluster {
    /// Starts the servers, at free ports of 127.0.0.1, with what `dir` holds of an earlier cluster of the same shape.
    ///
    /// # Errors
    /// What keeps a server from coming up, with its name.
    pub fn start(dir: impl Into<PathBuf>, options: ClusterOptions) -> Result<EmbeddedCluster, FsError> {
        let any = Addr::tcp("127.0.0.1", 0);
        let mut cluster = EmbeddedCluster {
            dir: dir.into(),
            options,
            manager: None,
            manager_addr: any.clone(),
            iods: Vec::new(),
            iod_addrs: Vec::new(),
        };
        for index in 0..cluster.options.iods {
            let iod = cluster.launch_iod(index, any.clone())?;
            cluster.iod_addrs.push(iod.addr().clone());
            cluster.iods.push(Some(iod));
        }
        let manager = cluster.launch_manager(any)?;
        cluster.manager_addr = manager.addr().clone();
        cluster.manager = Some(manager);
        Ok(cluster)
    }

    /// The manager's address.
    pub fn manager(&self) -> &Addr {
        &self.manager_addr
    }

    /// The I/O servers' addresses.
    pub fn iods(&self) -> &[Addr] {
        &self.iod_addrs
    }

    /// Stops an I/O server; its address stays its own.
    ///
    /// # Errors
    /// What it failed with.
    pub fn stop_iod(&mut self, index: usize) -> Result<(), FsError> {
        self.iods[index].take().map_or(Ok(()), ServerThread::stop)
    }

    /// Starts an I/O server again, at its old address.
    ///
    /// # Errors
    /// What keeps it from coming up.
    pub fn start_iod(&mut self, index: usize) -> Result<(), FsError> {
        if self.iods[index].is_none() {
            self.iods[index] = Some(self.launch_iod(index, self.iod_addrs[index].clone())?);
        }
        Ok(())
    }

    /// Stops the manager; its address stays its own.
    ///
    /// # Errors
    /// What it failed with.
    pub fn stop_manager(&mut self) -> Result<(), FsError> {
        self.manager.take().map_or(Ok(()), ServerThread::stop)
    }

    /// Starts the manager again, at its old address.
    ///
    /// # Errors
    /// What keeps it from coming up.
    pub fn start_manager(&mut self) -> Result<(), FsError> {
        if self.manager.is_none() {
            self.manager = Some(self.launch_manager(self.manager_addr.clone())?);
        }
        Ok(())
    }

    /// Stops all servers and waits for their ends.
    ///
    /// # Errors
    /// What the first one failed with that did.
    pub fn stop(mut self) -> Result<(), FsError> {
        let manager = self.stop_manager();
        let iods = (0..self.iods.len()).map(|index| self.stop_iod(index)).collect::<Vec<_>>();
        std::iter::once(manager).chain(iods).collect()
    }

    fn launch_iod(&self, index: usize, listen: Addr) -> Result<ServerThread, FsError> {
        let name = format!("iod{index}");
        let dir = self.dir.join(&name);
        let role = Role::Iod { dir, settings: self.options.iod, offload: self.options.offload };
        let endpoint = self.options.endpoint(&name);
        ServerThread::start(&name, Server { role, listen, endpoint, limits: self.options.limits })
    }

    fn launch_manager(&self, listen: Addr) -> Result<ServerThread, FsError> {
        let settings = ManagerSettings { iods: self.iod_addrs.clone(), strip_size: self.options.strip_size };
        let role = Role::Manager { dir: self.dir.join("manager"), settings };
        let endpoint = self.options.endpoint("manager");
        ServerThread::start("manager", Server { role, listen, endpoint, limits: self.options.limits })
    }
}
