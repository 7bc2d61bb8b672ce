//! The cluster on this machine: each server on its own thread, over any transports.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use bmi::{Addr, OpenOptions, Scheme, host_id};
use fs_proto::{ErrorCode, FsError};
use tokio::sync::oneshot;

use super::ClusterOptions;
use super::server::{Role, Server};
use crate::manager::ManagerSettings;

/// How long a server may take to come up.
const START: Duration = Duration::from_secs(30);

/// A server on its own thread.
pub struct ServerThread {
    addrs: Vec<Addr>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), FsError>>,
}

impl ServerThread {
    fn start(name: &str, server: Server) -> Result<ServerThread, FsError> {
        let (listening, ready) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            server.run(
                |addrs| {
                    // If this fails, the starting thread has stopped waiting, and it stops this
                    // server.
                    let _ = listening.send(addrs.to_vec());
                },
                async {
                    // Dropping the sender also stops the server.
                    let _ = stopped.await;
                },
            )
        };
        let thread = Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .map_err(|error| FsError::new(ErrorCode::Busy, format!("thread {name}: {error}")))?;
        match ready.recv_timeout(START) {
            Ok(addrs) => Ok(ServerThread { addrs, stop, thread }),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(FsError::new(ErrorCode::Timeout, format!("{name} did not come up")))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
                Ok(Err(error)) => Err(error.with_server(name)),
                _ => Err(FsError::new(ErrorCode::Io, format!("{name} ended before it listened"))),
            },
        }
    }

    /// Returns the addresses that the server listens on. The first is the one that it is known by.
    pub fn addrs(&self) -> &[Addr] {
        &self.addrs
    }

    /// Stops the server and waits for its end.
    ///
    /// # Errors
    /// The error that the server failed with; `Io` if it panicked.
    pub fn stop(self) -> Result<(), FsError> {
        // The server may have ended already.
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_else(|_| Err(FsError::new(ErrorCode::Io, "the server's thread panicked")))
    }
}

/// A cluster on this machine, with its data under one directory. Dropping it stops the servers
/// without waiting for them.
pub struct EmbeddedCluster {
    dir: PathBuf,
    options: ClusterOptions,
    manager: Slot,
    iods: Vec<Slot>,
    /// The addresses that the I/O servers are known by.
    known: Vec<Addr>,
}

/// A server's place in the cluster. The server may be stopped; its addresses remain.
struct Slot {
    server: Option<ServerThread>,
    addrs: Vec<Addr>,
}

impl Slot {
    fn of(server: ServerThread) -> Slot {
        Slot { addrs: server.addrs().to_vec(), server: Some(server) }
    }

    fn stop(&mut self) -> Result<(), FsError> {
        self.server.take().map_or(Ok(()), ServerThread::stop)
    }
}

impl EmbeddedCluster {
    /// Starts the servers. They use the data that an earlier cluster of the same shape left in
    /// `dir`. Over TCP and verbs they listen on free ports of 127.0.0.1, over shared memory on
    /// sockets under `dir`.
    ///
    /// # Errors
    /// The error that prevents a server from starting, with the server's name.
    pub fn start(dir: impl Into<PathBuf>, options: ClusterOptions) -> Result<EmbeddedCluster, FsError> {
        let dir = dir.into();
        let (mut iods, mut known) = (Vec::new(), Vec::new());
        for index in 0..options.iods {
            let iod = launch_iod(&dir, &options, index, anywhere(&dir, &options.over, &format!("iod{index}"))?)?;
            known.push(iod.addrs()[0].clone());
            iods.push(Slot::of(iod));
        }
        let manager = launch_manager(&dir, &options, &known, anywhere(&dir, &options.over, "manager")?)?;
        Ok(EmbeddedCluster { manager: Slot::of(manager), dir, options, iods, known })
    }

    /// Returns the address that the manager is known by.
    pub fn manager(&self) -> &Addr {
        &self.manager.addrs[0]
    }

    /// Returns all addresses of the manager.
    pub fn manager_addrs(&self) -> &[Addr] {
        &self.manager.addrs
    }

    /// Returns the addresses that the I/O servers are known by.
    pub fn iods(&self) -> &[Addr] {
        &self.known
    }

    /// Returns all addresses of an I/O server.
    pub fn iod_addrs(&self, index: usize) -> &[Addr] {
        &self.iods[index].addrs
    }

    /// Stops an I/O server. Its addresses stay reserved for it.
    ///
    /// # Errors
    /// The error that the server failed with.
    pub fn stop_iod(&mut self, index: usize) -> Result<(), FsError> {
        self.iods[index].stop()
    }

    /// Starts an I/O server again, on its old addresses.
    ///
    /// # Errors
    /// The error that prevents it from starting.
    pub fn start_iod(&mut self, index: usize) -> Result<(), FsError> {
        let slot = &mut self.iods[index];
        if slot.server.is_none() {
            slot.server = Some(launch_iod(&self.dir, &self.options, index, slot.addrs.clone())?);
        }
        Ok(())
    }

    /// Stops the manager. Its addresses stay reserved for it.
    ///
    /// # Errors
    /// The error that the manager failed with.
    pub fn stop_manager(&mut self) -> Result<(), FsError> {
        self.manager.stop()
    }

    /// Starts the manager again, on its old addresses.
    ///
    /// # Errors
    /// The error that prevents it from starting.
    pub fn start_manager(&mut self) -> Result<(), FsError> {
        if self.manager.server.is_none() {
            let addrs = self.manager.addrs.clone();
            self.manager.server = Some(launch_manager(&self.dir, &self.options, &self.known, addrs)?);
        }
        Ok(())
    }

    /// Stops all servers and waits for their ends.
    ///
    /// # Errors
    /// The error of the first server that failed.
    pub fn stop(mut self) -> Result<(), FsError> {
        let manager = self.manager.stop();
        let iods = self.iods.iter_mut().map(Slot::stop).collect::<Vec<_>>();
        std::iter::once(manager).chain(iods).collect()
    }
}

/// Returns an address for the server `name` over each of the schemes.
fn anywhere(dir: &Path, over: &[Scheme], name: &str) -> Result<Vec<Addr>, FsError> {
    let here = "127.0.0.1";
    let one = |scheme: &Scheme| match scheme {
        Scheme::Tcp => Ok(Addr::tcp(here, 0)),
        Scheme::Ib => Ok(Addr::ib(None, here, 0)),
        // Parse the text, so that a path that is too long for a socket is rejected.
        Scheme::Shm => Ok(format!("shm://{}", dir.join("sockets").join(name).display()).parse()?),
        Scheme::Sim => Err(FsError::new(ErrorCode::Invalid, "a simulated cluster is a SimCluster")),
        Scheme::Custom(_) => Err(FsError::new(ErrorCode::Invalid, format!("{scheme}:// is not for servers"))),
    };
    over.iter().map(one).collect()
}

fn launch_iod(dir: &Path, options: &ClusterOptions, index: usize, listen: Vec<Addr>) -> Result<ServerThread, FsError> {
    let name = format!("iod{index}");
    let number = u32::try_from(index).unwrap_or(u32::MAX);
    let role = Role::Iod {
        index: number,
        dir: dir.join(&name),
        settings: options.iod,
        offload: options.offload,
        manager: None,
    };
    launch(&name, role, options, listen)
}

fn launch_manager(
    dir: &Path,
    options: &ClusterOptions,
    iods: &[Addr],
    listen: Vec<Addr>,
) -> Result<ServerThread, FsError> {
    let settings = ManagerSettings { iods: iods.to_vec(), strip_size: options.strip_size };
    launch("manager", Role::Manager { dir: dir.join("manager"), settings }, options, listen)
}

fn launch(name: &str, role: Role, options: &ClusterOptions, listen: Vec<Addr>) -> Result<ServerThread, FsError> {
    let server = Server {
        role,
        adopt: false,
        listen,
        host: host_id().unwrap_or_default(),
        transports: OpenOptions::default(),
        endpoint: options.endpoint(name),
        limits: options.limits,
        waiting: options.waiting,
    };
    ServerThread::start(name, server)
}
