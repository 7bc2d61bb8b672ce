//! Threads that run their parts of cases: one for each thread of a station, on either side.
//!
//! **Invariants**
//! 1. A worker owns its endpoint or socket and its connections, from the opening of the station to
//!    its end. So a round pays nothing for connecting.
//! 2. A worker tells everything that happens to it: [`Said`]. It ends when its orders end, or when
//!    the run is stopped.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use bmi::timeline::Timeline;
use bmi::{Addr, Error, ErrorKind};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::case::{Case, Over, Station};
use crate::control::Settings;
use crate::library::{self, Side};
use crate::measured::Measured;
use crate::memory;
use crate::sockets::{self, Sockets};
use crate::stop::Stop;
use crate::usage::{Meter, Usage};

/// Work for a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) case: Case,
    /// Messages on each connection.
    pub(crate) count: u64,
    /// What to do besides measuring.
    pub(crate) besides: Besides,
}

/// What to do besides measuring. The time of such a round means nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Besides {
    /// Nothing.
    #[default]
    Nothing,
    /// Count system calls.
    Counting,
    /// Record a timeline, if this is the first thread and the library's.
    Recording,
}

/// What a worker is asked for.
#[derive(Clone, Copy, Debug)]
enum Order {
    Part(Job),
    /// The paths that its transport takes. A peer describes its slots after the connection is made,
    /// so only a connection that has carried messages knows them.
    Plan,
}

/// What a worker tells.
#[derive(Debug)]
pub(crate) enum Said {
    /// A server's thread listens.
    Listening(String),
    /// All connections of the thread are there. With what the transport can do.
    Joined(Abilities),
    /// A part has ended.
    Part(Measured, Usage, Option<Timeline>),
    /// The paths that the transport takes.
    Planned(Vec<bmi::paths::Rule>),
    /// Something failed. The worker has ended.
    Failed(Error),
}

/// What a transport can do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Abilities {
    pub(crate) rdma_read: bool,
    pub(crate) write_with_immediate: bool,
}

/// The side of a worker.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// Connects to the address of the server's thread.
    Client { to: String },
    /// Listens at an address of this host. `names` is a directory for sockets with a name.
    Server { ip: IpAddr, names: PathBuf },
}

/// What a worker needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    pub(crate) role: Role,
    pub(crate) station: Station,
    /// The index of the thread.
    pub(crate) index: u32,
    pub(crate) settings: Settings,
    /// The processor that it runs on.
    pub(crate) processor: Option<usize>,
    pub(crate) stop: Arc<Stop>,
}

/// A worker and its orders. Dropping it ends the worker after its job.
#[derive(Debug)]
pub(crate) struct Worker {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a worker, which tells `said` what happens to it.
    pub(crate) fn start(assignment: Assignment, said: impl Fn(Said) + Send + 'static) -> std::io::Result<Worker> {
        let (orders, queue) = channel();
        let name = format!("{} {}", assignment.station.over, assignment.index);
        let thread = Builder::new().name(name).spawn(move || {
            if let Err(error) = work(&assignment, &queue, &said) {
                said(Said::Failed(error));
            }
        })?;
        Ok(Worker { orders: Some(orders), thread: Some(thread) })
    }

    /// Gives it a job. A worker that has ended has told why.
    pub(crate) fn give(&self, job: Job) {
        self.order(Order::Part(job));
    }

    /// Asks for its plan, which it tells when it has done its jobs.
    pub(crate) fn ask_for_plan(&self) {
        self.order(Order::Plan);
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A worker that panicked has printed why.
            let _ = thread.join();
        }
    }
}

/// The connections of a worker.
enum Means {
    Library(Side),
    Sockets(Sockets),
    Nothing,
}

fn work(of: &Assignment, orders: &Receiver<Order>, said: &dyn Fn(Said)) -> Result<(), Error> {
    if let Some(processor) = of.processor {
        let mut set = CpuSet::new();
        set.set(processor);
        sched_setaffinity(None, &set)
            .map_err(|error| Error::new(ErrorKind::Invalid, format!("processor {processor} of --cpu-list: {error}")))?;
    }
    let means = set_up(of, said)?;
    said(Said::Joined(abilities(&means)));
    for order in orders {
        let Order::Part(Job { case, count, besides }) = order else {
            said(Said::Planned(plan(&means)));
            continue;
        };
        if let (Means::Library(side), Besides::Recording, 0) = (&means, besides, of.index) {
            side.record()?;
        }
        let meter = Meter::begin(besides == Besides::Counting);
        let is_client = matches!(of.role, Role::Client { .. });
        let measured = match &means {
            Means::Library(side) if is_client => side.measure(&case, count, &of.stop)?,
            Means::Library(side) => side.serve(&case, count, &of.stop).map(|()| Measured::default())?,
            Means::Sockets(sockets) if is_client => sockets.measure(&case, count, &of.stop)?,
            Means::Sockets(sockets) => sockets.serve(&case, count, &of.stop).map(|()| Measured::default())?,
            Means::Nothing if is_client => memory::measure(&case, count, &of.stop)?,
            Means::Nothing => Measured::default(),
        };
        let usage = meter.end();
        let timeline = match &means {
            Means::Library(side) if besides == Besides::Recording => side.recorded(),
            _ => None,
        };
        said(Said::Part(measured, usage, timeline));
    }
    Ok(())
}

fn set_up(of: &Assignment, said: &dyn Fn(Said)) -> Result<Means, Error> {
    let connections = of.station.connections_of(of.index);
    match (&of.role, of.station.over) {
        (Role::Client { .. }, Over::Memory) => Ok(Means::Nothing),
        (Role::Server { .. }, Over::Memory) => {
            said(Said::Listening(String::new()));
            Ok(Means::Nothing)
        }
        (Role::Client { to }, Over::Sockets) => {
            let none = |_| Error::new(ErrorKind::Protocol, format!("the server's address `{to}`"));
            Ok(Means::Sockets(Sockets::connect(to.parse::<SocketAddr>().map_err(none)?, connections)?))
        }
        (Role::Server { ip, .. }, Over::Sockets) => {
            let (listener, port) = sockets::listen(*ip)?;
            said(Said::Listening(SocketAddr::new(*ip, port).to_string()));
            Ok(Means::Sockets(Sockets::accept(&listener, connections, &of.stop)?))
        }
        (Role::Client { to }, over) => {
            let scheme = over.scheme().unwrap_or(bmi::Scheme::Tcp);
            let endpoint = library::open(scheme, "bmi-perf run", &of.settings)?;
            Ok(Means::Library(Side::connect(endpoint, &to.parse()?, connections, &of.stop)?))
        }
        (Role::Server { ip, names }, over) => {
            let scheme = over.scheme().unwrap_or(bmi::Scheme::Tcp);
            let endpoint = library::open(scheme, "bmi-perf serve", &of.settings)?;
            let at = match over {
                Over::Shm => Addr::shm(names.join(of.index.to_string()).display().to_string()),
                Over::Ib => Addr::ib(None, ip.to_string(), 0),
                _ => Addr::tcp(ip.to_string(), 0),
            };
            said(Said::Listening(endpoint.listen(&at)?.without_device().to_string()));
            Ok(Means::Library(Side::accept(endpoint, connections, &of.stop)?))
        }
    }
}

fn abilities(means: &Means) -> Abilities {
    let Means::Library(side) = means else {
        return Abilities { rdma_read: true, write_with_immediate: true };
    };
    side.endpoint().with(|endpoint| {
        let capabilities = endpoint.transport().capabilities();
        Abilities { rdma_read: capabilities.rdma_read, write_with_immediate: capabilities.write_with_immediate }
    })
}

fn plan(means: &Means) -> Vec<bmi::paths::Rule> {
    match means {
        Means::Library(side) => side.endpoint().with(|endpoint| endpoint.plan(side.peer()).rules),
        Means::Sockets(_) | Means::Nothing => Vec::new(),
    }
}
