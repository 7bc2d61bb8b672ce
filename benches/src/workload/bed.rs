//! The place where a workload runs: a cluster and clients, simulated or real.
//!
//! | | simulated | real |
//! |---|---|---|
//! | servers | nodes, polling; data in memory, at the price of the profile's disk, or of a [page cache](Setup::page_cache) in front of it | threads, over a transport of this machine; files in a temporary directory |
//! | ranks | one node each; wait as the paper's clients do ([`Waiting::PAPER_CLIENT`]) | one thread each; sleep while they wait |
//! | time | virtual | the machine's |
//! | processor time | the node's | the thread's; of the servers, that of all threads that are no ranks |
//!
//! In the simulator each program is one thread, as the papers' servers and clients are ("the server
//! is a single thread", [PVFS-IB §3.3.2]). Its tasks have one core of their node, however many
//! cores the node has. Interrupts use any core.

use std::cell::OnceCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use bmi::config::Lists;
use bmi::driver::{MonotonicClock, Waiting, event};
use bmi::{Addr, Config, OpenOptions, Scheme, paths};
use bmi_sim::{Node, Profile, SimConfig, World};
use fs_client::{Client, ClientOptions};
use fs_server::embedded::{ClusterOptions, EmbeddedCluster, PageCacheOptions, SimCluster};
use fs_server::iod::IodSettings;
use fs_server::store::Service;

use super::rank::{Cpu, ENDED, ServersCpu, Shared};
use super::{Failed, Rank, Workload};
use crate::{cpu, net, tasks};

/// The names of the threads of ranks begin with this.
const RANK: &str = "rank";

/// The place where a workload runs.
#[derive(Clone, Debug)]
pub enum Bed {
    /// The simulator, with these prices.
    Sim(Box<Profile>),
    /// A transport of this machine.
    Real(Scheme),
}

impl Bed {
    /// Returns the simulator with the prices of `profile`.
    pub fn sim(profile: Profile) -> Bed {
        Bed::Sim(Box::new(profile))
    }
}

/// The numbers of clients and servers, and their settings.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The number of processes of the workload, each on a node of its own.
    pub clients: usize,
    /// The number of I/O servers, each on a node of its own.
    pub servers: usize,
    /// The strip size, in bytes.
    pub strip: u64,
    /// The settings of all endpoints.
    pub endpoint: Config,
    /// How the I/O servers use their memory.
    pub iod: IodSettings,
    /// How the I/O servers move data between disk and network.
    pub service: Service,
    /// Simulator only: the page cache of each I/O server's system. Without one, each request has
    /// the price of the profile's disk. A service with a cache of its own has none.
    pub page_cache: Option<PageCacheOptions>,
    /// The path that data must take, if any.
    pub path: Option<paths::Path>,
    /// How clients and servers transfer lists of memory.
    pub lists: Lists,
    /// The most bytes in one request to one server.
    pub largest_transfer: u64,
    /// How the clients wait in the simulator.
    pub waiting: Waiting,
}

impl Setup {
    /// Returns the default settings for `clients` and `servers`.
    pub fn new(clients: usize, servers: usize) -> Setup {
        let options = ClientOptions::new(0);
        Setup {
            clients,
            servers,
            strip: ClusterOptions::default().strip_size,
            endpoint: Config::default(),
            iod: IodSettings::default(),
            service: Service::Normal,
            page_cache: None,
            path: None,
            lists: Lists::Auto,
            largest_transfer: options.largest_transfer,
            waiting: Waiting::PAPER_CLIENT,
        }
    }

    fn cluster(&self, over: &[Scheme]) -> ClusterOptions {
        ClusterOptions {
            over: over.to_vec(),
            strip_size: self.strip,
            endpoint: self.endpoint.clone().lists(self.lists),
            iod: self.iod,
            service: self.service.clone(),
            disk_costs: true,
            ..ClusterOptions::with_iods(self.servers)
        }
    }

    fn client(&self, number: usize) -> ClientOptions {
        let (path, lists, largest_transfer) = (self.path, self.lists, self.largest_transfer);
        // A long request to a slow disk is no failure.
        let timeout = Duration::from_secs(600);
        ClientOptions { path, lists, largest_transfer, timeout, ..ClientOptions::new(number as u128 + 1) }
    }

    fn endpoint(&self, number: usize) -> Config {
        self.endpoint.clone().name(format!("client{number}"))
    }
}

/// Runs a workload, and returns the result of each rank, in order.
///
/// # Errors
/// The first error of a rank, or the error of a server that does not start.
pub fn run<W: Workload>(bed: &Bed, setup: &Setup, workload: &W) -> Result<Vec<W::Out>, Failed> {
    match bed {
        Bed::Sim(profile) => in_sim(profile, setup, workload),
        Bed::Real(scheme) => over(*scheme, setup, workload),
    }
}

fn in_sim<W: Workload>(profile: &Profile, setup: &Setup, workload: &W) -> Result<Vec<W::Out>, Failed> {
    let world = World::with(SimConfig { profile: profile.clone(), ..SimConfig::default() });
    let cluster = match &setup.page_cache {
        None => SimCluster::start(&world, setup.cluster(&[]))?,
        Some(cache) => SimCluster::start_with_page_cache(&world, setup.cluster(&[]), cache.clone())?,
    };
    cluster.manager_node().limit_cores(1);
    let iods: Vec<_> = (0..setup.servers).map(|index| cluster.iod_node(index)).collect();
    iods.iter().for_each(|iod| iod.limit_cores(1));
    let servers: ServersCpu = Rc::new(move || iods.iter().map(Node::cpu_busy).sum());
    let shared = Shared::new(setup.clients);
    let mut tasks = Vec::new();
    for number in 0..setup.clients {
        let node = world.node(&format!("client{number}"));
        node.limit_cores(1);
        let endpoint = node.endpoint_waiting(setup.endpoint(number), setup.waiting)?;
        let (manager, options) = (cluster.manager(), setup.client(number));
        let (workload, count, shared) = (workload.clone(), setup.clients, shared.clone());
        let (meter, listen) = (node.clone(), node.addr(0));
        let cpu: Cpu = Rc::new(move || (meter.cpu_busy(), meter.cpu_spinning()));
        let servers = Rc::clone(&servers);
        tasks.push(node.spawn(async move {
            let client =
                connected(Client::connect(endpoint, manager, options)).await.inspect_err(|_| shared.give_up())?;
            workload.run(Rank { number, count, client, shared, cpu, servers, listen, group: OnceCell::new() }).await
        }));
    }
    world.try_block_on(async {
        let mut outs = Vec::new();
        for task in tasks {
            outs.push(task.await.map_err(Failed::from).and_then(|out| out));
        }
        first_cause(outs)
    })?
}

/// Connects, and sends a request to every server, so that no connection is made while time is
/// measured.
async fn connected(connect: impl Future<Output = Result<Client, fs_client::Error>>) -> Result<Client, Failed> {
    let client = connect.await?;
    for (_, plan) in client.plans(false).await {
        plan?;
    }
    Ok(client)
}

fn over<W: Workload>(scheme: Scheme, setup: &Setup, workload: &W) -> Result<Vec<W::Out>, Failed> {
    if scheme == Scheme::Sim {
        return in_sim(&Profile::default(), setup, workload);
    }
    // Before any server starts, so that a missing transport is reported once and clearly.
    net::endpoint(scheme, "workload")?;
    let folder = tempfile::Builder::new().prefix("workload-").tempdir_in(net::data_folder())?;
    let cluster = EmbeddedCluster::start(folder.path(), setup.cluster(&[scheme]))?;
    let shared = Shared::new(setup.clients);
    let mut threads = Vec::new();
    for number in 0..setup.clients {
        let listen = anywhere(scheme, folder.path(), number)?;
        let (manager, setup, workload, shared) =
            (cluster.manager().clone(), setup.clone(), workload.clone(), shared.clone());
        let rank = move || {
            let out = real_rank(scheme, number, &setup, manager, &workload, listen, &shared);
            if out.is_err() {
                shared.give_up();
            }
            out
        };
        threads.push(Builder::new().name(format!("{RANK}{number}")).spawn(rank)?);
    }
    let join = |thread: std::thread::JoinHandle<Result<W::Out, Failed>>| {
        thread.join().unwrap_or_else(|_| Err("a process of the workload panicked".into()))
    };
    let outs = first_cause(threads.into_iter().map(join).collect());
    cluster.stop()?;
    outs
}

fn real_rank<W: Workload>(
    scheme: Scheme,
    number: usize,
    setup: &Setup,
    manager: Addr,
    workload: &W,
    listen: Addr,
    shared: &Arc<Shared>,
) -> Result<W::Out, Failed> {
    let config = setup.endpoint(number);
    let endpoint = bmi::endpoint(scheme, &OpenOptions::default(), config, MonotonicClock::new())?;
    event::block_on(endpoint.clone(), async {
        let client: Client = connected(Client::connect(endpoint, manager, setup.client(number))).await?;
        let cpu: Cpu = Rc::new(|| (cpu::of_thread(), Duration::ZERO));
        let servers: ServersCpu = Rc::new(|| tasks::of_own_threads(|name| !name.starts_with(RANK)));
        let (count, shared) = (setup.clients, shared.clone());
        workload.run(Rank { number, count, client, shared, cpu, servers, listen, group: OnceCell::new() }).await
    })?
}

/// Returns an address at which a rank may listen for the others.
fn anywhere(scheme: Scheme, folder: &Path, number: usize) -> Result<Addr, Failed> {
    let here = "127.0.0.1";
    Ok(match scheme {
        Scheme::Shm => format!("shm://{}", folder.join("sockets").join(format!("rank{number}")).display()).parse()?,
        Scheme::Ib => Addr::ib(None, here, 0),
        _ => Addr::tcp(here, 0),
    })
}

/// Returns all results, or the error that caused the others. If a rank fails, its neighbours fail,
/// too, with less information.
fn first_cause<R>(outs: Vec<Result<R, Failed>>) -> Result<Vec<R>, Failed> {
    let mut errors = Vec::new();
    let mut all = Vec::new();
    for out in outs {
        match out {
            Ok(out) => all.push(out),
            Err(error) => errors.push(error),
        }
    }
    let cause = errors.iter().position(|error| error.to_string() != ENDED).unwrap_or(0);
    if errors.is_empty() { Ok(all) } else { Err(errors.swap_remove(cause)) }
}
