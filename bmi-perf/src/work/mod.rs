//! Threads that run their parts of cases: one for each thread of a station, on either side.
//!
//! **Invariants**
//! 1. A worker owns its endpoint or socket and its connections, from the opening of the station to
//!    its end. So a round pays nothing for connecting. A handle is opened for each round, before
//!    its time begins.
//! 2. A worker tells everything that happens to it: [`Said`]. It ends when its orders end, or when
//!    the run is stopped.
//!
//! | module | what is there |
//! |---|---|
//! | `library` | what a side does through the library |
//! | `polling` | what it does without an executor: through a backend alone, or a polled endpoint |
//! | `tasks` | what it does as a program on tokio, through the library or plain sockets |
//! | `sockets`, `uring`, `memory` | what it does for a baseline |
//! | `produce` | the memory of messages, and the data that it sends |
//! | `adapter`, `tls` | which transports this host has, and with which certificates |

pub(crate) mod adapter;
mod library;
mod memory;
mod polling;
mod produce;
mod sockets;
mod tasks;
pub(crate) mod tls;
mod uring;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use bmi::paths::{MessageRule, Rule};
use bmi::timeline::Timeline;
use bmi::{Addr, Endpoint, Error, ErrorKind};
use rustix::thread::{CpuSet, sched_setaffinity};

pub(crate) use self::library::DATA;
use self::library::{Shared, Side};
use self::polling::{Meeting, Part};
use self::sockets::Sockets;
use self::tasks::Tasks;
use self::uring::Uring;
use crate::case::{Besides, Case, Interface, Job, Over, Settings, Station};
use crate::measured::Measured;
use crate::stop::Stop;
use crate::usage::{Meter, Usage};

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
    /// All connections of the thread are there.
    Joined,
    /// A part has ended.
    Part(Measured, Usage, Option<Timeline>),
    /// The paths that the transport takes, for the data of calls and for messages.
    Planned(Vec<Rule>, Vec<MessageRule>),
    /// Something failed. The worker has ended.
    Failed(Error),
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
        let name = format!("{} {}", assignment.station.name(), assignment.index);
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
    /// The server's end of connections that are made for each round.
    Awaited(Endpoint),
    Shared(Shared),
    Polling(Box<dyn Part>),
    Tasks(Tasks),
    Sockets(Sockets),
    Uring(Uring),
    Nothing,
}

fn work(of: &Assignment, orders: &Receiver<Order>, said: &dyn Fn(Said)) -> Result<(), Error> {
    if let Some(processor) = of.processor {
        let mut set = CpuSet::new();
        set.set(processor);
        sched_setaffinity(None, &set)
            .map_err(|error| Error::new(ErrorKind::Invalid, format!("processor {processor} of --cpu-list: {error}")))?;
    }
    let mut means = set_up(of, said)?;
    said(Said::Joined);
    for order in orders {
        let Order::Part(job) = order else {
            let (data, messages) = plan(&means);
            said(Said::Planned(data, messages));
            continue;
        };
        if let (Means::Library(side), Besides::Recording, 0) = (&means, job.besides, of.index) {
            side.record()?;
        }
        let meter = Meter::begin(job.besides == Besides::Counting, matches!(means, Means::Shared(_) | Means::Tasks(_)));
        let measured = match of.role {
            Role::Client { .. } => measure(&mut means, &job.case, job.count, of)?,
            Role::Server { .. } => serve(&mut means, &job.case, job.count, of).map(|()| Measured::default())?,
        };
        let usage = meter.end();
        let timeline = match &means {
            Means::Library(side) if job.besides == Besides::Recording => side.recorded(),
            _ => None,
        };
        said(Said::Part(measured, usage, timeline));
    }
    Ok(())
}

fn measure(means: &mut Means, case: &Case, count: u64, of: &Assignment) -> Result<Measured, Error> {
    match means {
        Means::Library(side) => side.measure(case, count, &of.stop),
        Means::Shared(shared) => shared.measure(case, count, &of.stop),
        Means::Polling(side) => side.measure(case, count, &of.stop),
        Means::Tasks(tasks) => tasks.measure(case, count, &of.stop),
        Means::Sockets(sockets) => sockets.measure(case, count, &of.stop),
        Means::Uring(uring) => uring.measure(case, count, &of.stop),
        Means::Nothing => memory::measure(case, count, &of.stop),
        Means::Awaited(_) => Err(Error::new(ErrorKind::Invalid, "a client that waits for connections")),
    }
}

fn serve(means: &mut Means, case: &Case, count: u64, of: &Assignment) -> Result<(), Error> {
    match means {
        Means::Library(side) => side.serve(case, count, &of.stop),
        Means::Awaited(endpoint) => {
            let connections = of.station.connections_of(of.index);
            let side = Side::accept(endpoint.clone(), connections, &of.stop)?;
            side.serve(case, count, &of.stop)?;
            side.until_they_leave(&of.stop)
        }
        Means::Polling(side) => side.serve(case, count, &of.stop),
        Means::Tasks(tasks) => tasks.serve(&of.stop),
        Means::Sockets(sockets) => sockets.serve(case, count, &of.stop),
        Means::Uring(uring) => uring.serve(case, count, &of.stop),
        Means::Shared(_) | Means::Nothing => Ok(()),
    }
}

fn set_up(of: &Assignment, said: &dyn Fn(Said)) -> Result<Means, Error> {
    let Station { over, interface, .. } = of.station;
    let connections = of.station.connections_of(of.index);
    if interface == Interface::Tasks {
        return Ok(Means::Tasks(Tasks::open(of, said)?));
    }
    let Some(scheme) = over.scheme() else { return set_up_baseline(of, connections, said) };
    let settings = of.settings.clone();
    match &of.role {
        Role::Client { to } => {
            let to: Addr = to.parse()?;
            Ok(match interface {
                _ if interface.polls() => {
                    Means::Polling(polling::open(interface, scheme, &settings, &Meeting::At(&to), &of.stop)?)
                }
                _ if interface.is_shared() => Means::Shared(Shared { scheme, to, connections, settings }),
                _ => {
                    let endpoint = library::open(scheme, "bmi-perf run", &settings)?;
                    Means::Library(Side::connect(endpoint, &to, connections, &of.stop)?)
                }
            })
        }
        Role::Server { ip, names } => {
            let at = listening_address(of, *ip, names);
            let listening = |at: Addr| said(Said::Listening(at.without_device().to_string()));
            if interface.polls() {
                let meeting = Meeting::Here(&at, &listening);
                return Ok(Means::Polling(polling::open(interface, scheme, &settings, &meeting, &of.stop)?));
            }
            let endpoint = library::open(scheme, "bmi-perf serve", &settings)?;
            listening(endpoint.listen(&at)?);
            Ok(match interface.is_shared() {
                true => Means::Awaited(endpoint),
                false => Means::Library(Side::accept(endpoint, connections, &of.stop)?),
            })
        }
    }
}

/// Returns where a server's thread listens through the library.
fn listening_address(of: &Assignment, ip: IpAddr, names: &Path) -> Addr {
    match of.station.over {
        Over::Shm => Addr::shm(names.join(of.index.to_string()).display().to_string()),
        Over::Ib => Addr::ib(None, ip.to_string(), 0),
        _ => Addr::tcp(ip.to_string(), 0),
    }
}

fn set_up_baseline(of: &Assignment, connections: u32, said: &dyn Fn(Said)) -> Result<Means, Error> {
    let is_memory = of.station.over == Over::Memory;
    let streams = match &of.role {
        Role::Client { .. } if is_memory => return Ok(Means::Nothing),
        Role::Server { .. } if is_memory => {
            said(Said::Listening(String::new()));
            return Ok(Means::Nothing);
        }
        Role::Client { to } => {
            let none = |_| Error::new(ErrorKind::Protocol, format!("the server's address `{to}`"));
            sockets::connect(to.parse::<SocketAddr>().map_err(none)?, connections)?
        }
        Role::Server { ip, .. } => {
            let (listener, port) = sockets::listen(*ip)?;
            said(Said::Listening(SocketAddr::new(*ip, port).to_string()));
            sockets::accept(&listener, connections, &of.stop)?
        }
    };
    Ok(match of.station.over {
        Over::Uring => Means::Uring(Uring::new(streams)?),
        _ => Means::Sockets(Sockets::new(streams)?),
    })
}

fn plan(means: &Means) -> (Vec<Rule>, Vec<MessageRule>) {
    match means {
        Means::Library(side) => side.plan(),
        _ => (Vec::new(), Vec::new()),
    }
}
