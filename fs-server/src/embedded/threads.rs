//! The cluster on this machine: each server on its own thread, or threads, over any transports.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use bmi::backend::host_id;
use bmi::{Addr, OpenOptions, Scheme};
use fs_proto::{ErrorCode, FsError};
use tokio::sync::oneshot;

use super::ClusterOptions;
use super::directory::format_manager_directory;
use super::server::{Neighbours, Role, Server};
use crate::config::CacheSection;
use crate::iod::Gate;

/// How long a server may take to come up.
const START: Duration = Duration::from_secs(30);

/// What a server reports from its thread.
pub(crate) enum Event {
    Listening(Vec<Addr>),
    Serving,
    /// By itself, by a panic, or because it was told to.
    Ended,
}

/// Calls a function with the events of a server, with its end when this is dropped.
struct Reports<F: Fn(Event)>(F);

impl<F: Fn(Event)> Drop for Reports<F> {
    fn drop(&mut self) {
        (self.0)(Event::Ended);
    }
}

/// A server on its own thread. Dropping it stops the server without waiting for it.
pub(crate) struct ServerThread {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), FsError>>,
}

impl ServerThread {
    /// Starts a server. Calls `report` on its thread, and `neighbours` once it listens.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn start(
        name: &str,
        server: Server,
        neighbours: impl FnOnce() -> Result<Neighbours, FsError> + Send + 'static,
        report: impl Fn(Event) + Send + 'static,
    ) -> io::Result<ServerThread> {
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            let reports = Reports(report);
            let ready = |addrs: &[Addr]| {
                (reports.0)(Event::Listening(addrs.to_vec()));
                neighbours()
            };
            server.run(ready, || (reports.0)(Event::Serving), async {
                // Dropping the sender also stops the server.
                let _ = stopped.await;
            })
        };
        Ok(ServerThread { stop, thread: Builder::new().name(name.to_owned()).spawn(run)? })
    }

    /// Tells the server to stop. Returns its thread.
    pub(crate) fn stop(self) -> JoinHandle<Result<(), FsError>> {
        // The server may have ended already.
        let _ = self.stop.send(());
        self.thread
    }
}

/// A server of a cluster, which is told its neighbours when all listen.
struct Starting {
    name: String,
    addrs: Vec<Addr>,
    neighbours: mpsc::Sender<Neighbours>,
    events: mpsc::Receiver<Event>,
    thread: ServerThread,
}

impl Starting {
    /// Starts a server, and waits until it listens.
    fn start(name: &str, server: Server) -> Result<Starting, FsError> {
        let (report, events) = mpsc::channel();
        let (neighbours, given) = mpsc::channel();
        // If this fails, the starting thread has stopped waiting, and it stops this server.
        let given = move || given.recv().map_err(|_| FsError::new(ErrorCode::Unreachable, "stopped before it served"));
        let thread = ServerThread::start(name, server, given, move |event| drop(report.send(event)))
            .map_err(|error| FsError::new(ErrorCode::Busy, format!("thread {name}: {error}")))?;
        let mut starting = Starting { name: name.to_owned(), addrs: Vec::new(), neighbours, events, thread };
        match starting.events.recv_timeout(START) {
            Ok(Event::Listening(addrs)) => starting.addrs = addrs,
            other => return Err(starting.why_not(&other)),
        }
        Ok(starting)
    }

    /// Tells the server its neighbours.
    fn introduce(&self, neighbours: Neighbours) {
        // If this fails, the server has ended. Whoever waits for it learns why.
        let _ = self.neighbours.send(neighbours);
    }

    /// Waits until the server serves.
    fn serving(self) -> Result<Slot, FsError> {
        match self.events.recv_timeout(START) {
            Ok(Event::Serving) => Ok(Slot { addrs: self.addrs, server: Some(self.thread) }),
            other => Err(self.why_not(&other)),
        }
    }

    /// Returns the reason why a server did not come up.
    fn why_not(self, last: &Result<Event, mpsc::RecvTimeoutError>) -> FsError {
        let name = self.name;
        if let Err(mpsc::RecvTimeoutError::Timeout) = last {
            return FsError::new(ErrorCode::Timeout, format!("{name} did not come up"));
        }
        match self.thread.stop().join() {
            Ok(Err(error)) => error.with_server(name),
            _ => FsError::new(ErrorCode::Io, format!("{name} ended before it served")),
        }
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
    /// Stops the server and waits for its end. Returns the error that it failed with.
    fn stop(&mut self) -> Result<(), FsError> {
        let Some(server) = self.server.take() else { return Ok(()) };
        let panicked = |_| Err(FsError::new(ErrorCode::Io, "the server's thread panicked"));
        server.stop().join().unwrap_or_else(panicked)
    }
}

impl EmbeddedCluster {
    /// Starts the servers. Raises this process's limit of file descriptors as far as it may. The
    /// servers use the data that an earlier cluster of the same shape left in `dir`. If `dir` is
    /// empty or does not exist, a new cluster is formatted in it. Over TCP and verbs they listen on
    /// free ports of 127.0.0.1, over shared memory on sockets under `dir`.
    ///
    /// # Errors
    /// The error that prevents a server from starting, with the server's name.
    pub fn start(dir: impl Into<PathBuf>, options: ClusterOptions) -> Result<EmbeddedCluster, FsError> {
        let dir = dir.into();
        if std::fs::read_dir(&dir).map_or(0, Iterator::count) == 0 {
            format_manager_directory(&dir.join("manager"))?;
        }
        // First all listen, because each has to be told the addresses of others.
        let manager = launch_manager(&dir, &options, anywhere(&dir, &options.over, "manager")?)?;
        let mut iods = Vec::new();
        for index in 0..options.iods {
            iods.push(launch_iod(&dir, &options, index, anywhere(&dir, &options.over, &format!("iod{index}"))?)?);
        }
        let known: Vec<Addr> = iods.iter().map(|iod| iod.addrs[0].clone()).collect();
        manager.introduce(known.clone());
        let manager = manager.serving()?;
        iods.iter().for_each(|iod| iod.introduce(manager.addrs.clone()));
        let iods = iods.into_iter().map(Starting::serving).collect::<Result<Vec<Slot>, FsError>>()?;
        Ok(EmbeddedCluster { manager, dir, options, iods, known })
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
            let server = launch_iod(&self.dir, &self.options, index, slot.addrs.clone())?;
            server.introduce(self.manager.addrs.clone());
            *slot = server.serving()?;
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

fn launch_iod(dir: &Path, options: &ClusterOptions, index: usize, listen: Vec<Addr>) -> Result<Starting, FsError> {
    let name = format!("iod{index}");
    let role = Role::Iod {
        index: u32::try_from(index).unwrap_or(u32::MAX),
        dir: dir.join(&name),
        settings: options.iod,
        offload: options.offload,
        heartbeat: options.heartbeat,
        service: options.service.clone(),
        checksums: options.checksums,
        // Memory, as for servers; the label of the store keeps clusters apart.
        cache_dir: CacheSection::default().dir,
        replace: false,
        discard_cache: None,
        tickets: options.tickets.then_some(Gate::PATIENCE),
    };
    launch(&name, role, options, listen)
}

fn launch_manager(dir: &Path, options: &ClusterOptions, listen: Vec<Addr>) -> Result<Starting, FsError> {
    let settings = options.manager(Vec::new());
    let (dir, tickets) = (dir.join("manager"), options.tickets);
    launch("manager", Role::Manager { dir, settings, restored: None, tickets }, options, listen)
}

fn launch(name: &str, role: Role, options: &ClusterOptions, listen: Vec<Addr>) -> Result<Starting, FsError> {
    let server = Server {
        role,
        // All servers are known by addresses of the first scheme.
        connects: options.over.first().cloned().into_iter().collect(),
        listen,
        host: host_id().unwrap_or_default(),
        transports: OpenOptions::default(),
        endpoint: options.endpoint(name),
        limits: options.limits,
        threads: options.threads,
        balance: options.balance,
        waiting: options.waiting,
        // The servers, the manager among them, and the program.
        sharers: options.iods + 2,
    };
    Starting::start(name, server)
}
