//! The cluster in the simulator: nodes `manager`, `iod0`, `iod1` …, each listening on port 7000.

mod disk;
mod loops;
mod page_cache;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bmi::driver::Waiting;
use bmi::{Addr, Endpoint};
use bmi_cache::Frames;
use bmi_sim::faults::{DiskUser, Loss};
use bmi_sim::{Node, Sim};
use fs_proto::{ClusterId, DatafileHandle, ErrorCode, FsError, Identity, Role, Start, StoreId};
use tokio::sync::oneshot;

use self::disk::Timed;
pub use self::disk::{Free, Medium, SimStore, datafiles};
use self::loops::serve_on_cores;
use self::page_cache::PageCache;
pub use self::page_cache::PageCacheOptions;
use super::ClusterOptions;
use super::waiting_room::{wait_until, why_iod};
use crate::iod::{Gate, Iod, LabelLock, Membership};
use crate::manager::{self, Manager};
use crate::service::{Standing, beside, serve, serve_beside};
use crate::store::{
    CacheSettings, DataStore, DiskStep, Label, MemDisk, MetaStore, Service, UnifiedStore, datafile_of, name_of,
};

/// The port of every server.
const PORT: u16 = 7000;

/// The memory of the caches of an I/O server, by the stores that it has had: the end of the server
/// leaves it as it is, a power failure takes it.
#[derive(Default)]
struct CacheMemory(RefCell<BTreeMap<StoreId, Frames>>);

impl CacheMemory {
    fn frames(&self, store: StoreId, settings: &CacheSettings) -> Result<Frames, FsError> {
        if let Some(frames) = self.0.borrow().get(&store) {
            return Ok(frames.clone());
        }
        let frames = Frames::anonymous(settings.arena)?;
        self.0.borrow_mut().insert(store, frames.clone());
        Ok(frames)
    }
}

impl DiskUser for CacheMemory {
    fn power_fails(&self, _loss: &mut Loss) {
        self.0.borrow_mut().clear();
    }
}

/// Pause before a server that could not be started is tried again.
const START_AGAIN: Duration = Duration::from_millis(10);

/// The number of every simulated cluster.
pub const SIM_CLUSTER: ClusterId = ClusterId(0x51);

/// A cluster of simulated nodes. Dropping the handle has no effect: the servers belong to their
/// nodes. A node starts its server whenever it comes up ([`Node::boot`]), also after a crash that a
/// fault plan requests.
pub struct SimCluster {
    sim: Sim,
    options: Rc<ClusterOptions>,
    disks: Vec<MemDisk>,
    media: Vec<Rc<dyn Medium>>,
    /// The memory of the servers' caches.
    caches: Vec<Rc<CacheMemory>>,
    metadata: MemDisk,
    /// The number of event loops of each I/O server, if they have cores of their own.
    loops: Option<usize>,
}

impl SimCluster {
    /// Starts the servers. They run whenever the world runs.
    ///
    /// # Errors
    /// `Invalid` for invalid options; the errors of an endpoint.
    pub fn start(sim: &Sim, options: ClusterOptions) -> Result<SimCluster, FsError> {
        SimCluster::begin(sim, options, None, None)
    }

    /// Starts the servers. The system of each I/O server has a page cache in front of its disk,
    /// whose costs count in any case.
    ///
    /// # Errors
    /// As [`SimCluster::start`]; `Invalid` if the servers have caches of their own, which bypass
    /// that of the system.
    pub fn start_with_page_cache(
        sim: &Sim,
        options: ClusterOptions,
        page_cache: PageCacheOptions,
    ) -> Result<SimCluster, FsError> {
        if options.service.has_cache() {
            let text = format!("a page cache for the service {}, which bypasses it", options.service.name());
            return Err(FsError::new(ErrorCode::Invalid, text));
        }
        SimCluster::begin(sim, options, None, Some(&page_cache))
    }

    /// Starts the servers. Each I/O server has `loops` event loops behind one address, each on a
    /// core of its own, and pays for the locks of what they share ([`Node::locked`]). Without
    /// enough cores, the last loops share one.
    ///
    /// # Errors
    /// As [`SimCluster::start`]; `Invalid` for no loops.
    pub fn start_on_cores(sim: &Sim, options: ClusterOptions, loops: usize) -> Result<SimCluster, FsError> {
        if loops == 0 {
            return Err(FsError::new(ErrorCode::Invalid, "a server without event loops"));
        }
        SimCluster::begin(sim, options, Some(loops), None)
    }

    fn begin(
        sim: &Sim,
        options: ClusterOptions,
        loops: Option<usize>,
        page_cache: Option<&PageCacheOptions>,
    ) -> Result<SimCluster, FsError> {
        options.endpoint("server").validate()?;
        options.iod.zones()?;
        fs_proto::Distribution::simple_stripe(options.strip_size, options.iods as u32)?;
        let options = Rc::new(options);
        let medium = |index: usize| -> Rc<dyn Medium> {
            let node = sim.node(&format!("iod{index}"));
            let Some(settings) = page_cache else {
                return Rc::new(Timed(options.disk_costs.then(|| node.disk()), node));
            };
            let cache = PageCache::new(&node, settings);
            node.disk().attach(Rc::new(cache.clone()));
            Rc::new(cache)
        };
        let media = (0..options.iods).map(medium).collect();
        let disk = |index: usize| {
            let disk = MemDisk::new(options.disk_capacity).numbered(index as u64);
            if options.disk_cache { disk } else { disk.write_through() }
        };
        let disks = (0..options.iods).map(disk).collect();
        let caches = (0..options.iods).map(|_| Rc::default()).collect();
        let metadata = MemDisk::default();
        manager::format(&MetaStore::on(metadata.database())?, SIM_CLUSTER, StoreId(1), &fs_proto::Caller::ROOT, 0)?;
        let cluster = SimCluster { sim: sim.clone(), options: options.clone(), disks, media, caches, metadata, loops };
        for (index, disk) in cluster.disks.iter().enumerate() {
            cluster.iod_node(index).disk().attach(Rc::new(disk.clone()));
            cluster.iod_node(index).disk().attach(cluster.caches[index].clone());
            cluster.boot_iod(index, index);
        }
        let (metadata, iods) = (cluster.metadata.clone(), cluster.iods());
        let node = cluster.manager_node();
        node.disk().attach(Rc::new(metadata.clone()));
        node.boot(move |node| run_manager(node, iods.clone(), options.clone(), metadata.reopen()));
        Ok(cluster)
    }

    /// Starts an I/O server whenever a node comes up.
    fn boot_iod(&self, at: usize, index: usize) {
        let (options, manager) = (self.options.clone(), self.manager());
        let (disk, medium) = (self.disks[index].clone(), self.media[index].clone());
        let (loops, cache) = (self.loops, self.caches[index].clone());
        let run = move |node| {
            let disk = (disk.clone(), medium.clone());
            run_iod(node, index as u32, options.clone(), loops, disk, cache.clone(), manager.clone())
        };
        self.iod_node(at).boot(run);
    }

    /// From now on I/O server `index`, with its store, is behind the address of server `at`.
    pub fn serve_at(&self, at: usize, index: usize) {
        self.iod_node(at).kill();
        self.boot_iod(at, index);
        self.iod_node(at).restart();
    }

    /// Returns the manager's address.
    pub fn manager(&self) -> Addr {
        self.manager_node().addr(PORT)
    }

    /// Returns the I/O servers' addresses.
    pub fn iods(&self) -> Vec<Addr> {
        (0..self.disks.len()).map(|index| self.iod_node(index).addr(PORT)).collect()
    }

    /// Returns the manager's node.
    pub fn manager_node(&self) -> Node {
        self.sim.node("manager")
    }

    /// Returns an I/O server's node.
    pub fn iod_node(&self, index: usize) -> Node {
        self.sim.node(&format!("iod{index}"))
    }

    /// Returns an I/O server's disk.
    pub fn disk(&self, index: usize) -> &MemDisk {
        &self.disks[index]
    }

    /// Returns the label on an I/O server's disk, if it can be read.
    pub fn label(&self, index: usize) -> Option<Label> {
        Label::on(&self.disks[index])
    }

    /// Lets an I/O server's disk fail such a step on the file of each datafile for which `refusal`
    /// returns an error.
    pub fn refuse(
        &self,
        index: usize,
        which: DiskStep,
        refusal: impl Fn(DatafileHandle) -> Option<std::io::ErrorKind> + Send + 'static,
    ) {
        self.disks[index].refuse_if(move |step, name| refusal(datafile_of(name).filter(|_| step == which)?));
    }

    /// Kills an I/O server, changes the file of a datafile on its disk, and starts it again: a
    /// server that has the file open would not notice.
    pub fn tamper<R>(&self, index: usize, datafile: DatafileHandle, change: impl FnOnce(&MemDisk, &str) -> R) -> R {
        let node = self.iod_node(index);
        node.kill();
        let result = change(&self.disks[index], &name_of(datafile));
        node.restart();
        result
    }

    /// Returns true if the I/O servers have caches of their own.
    pub fn lends(&self) -> bool {
        self.options.service.has_cache()
    }

    /// Returns the manager's disk.
    pub fn metadata(&self) -> &MemDisk {
        &self.metadata
    }

    /// Fails and restores the power of the manager's node. The manager keeps only what it had
    /// synced.
    pub fn restart_manager(&self) {
        let node = self.manager_node();
        node.crash(&mut Loss::everything());
        node.restart();
    }

    /// Kills an I/O server and starts it again. Its disk is unchanged.
    pub fn restart_iod(&self, index: usize) {
        let node = self.iod_node(index);
        node.kill();
        node.restart();
    }
}

/// An I/O server of a simulated cluster, at one endpoint.
type SimIod = Iod<Rc<dyn DataStore>>;

/// Does a step of a start until it succeeds, as a system's init does.
async fn until_started<R>(node: &Node, begin: impl AsyncFn() -> Result<R, FsError>) -> R {
    loop {
        match begin().await {
            Ok(begun) => return begun,
            Err(error) => tracing::warn!(node = node.name(), %error, "not started; tried again"),
        }
        node.sleep(START_AGAIN).await;
    }
}

/// Makes an endpoint, or one for each of `loops`, and makes the first one listen.
async fn listen(node: &Node, options: &ClusterOptions, loops: Option<usize>) -> Vec<Endpoint> {
    let config = options.endpoint(&node.name());
    let make = async || match loops {
        None => Ok(vec![node.endpoint(config.clone())?]),
        Some(loops) => Ok(node.shards(&config, Waiting::Busy, loops)?),
    };
    // An endpoint is driven by its own task, so it is created only once.
    let endpoints = until_started(node, make).await;
    until_started(node, async || Ok(endpoints[0].listen(&node.addr(PORT))?)).await;
    endpoints
}

/// Returns a number that no other start of a server has: each node is its own machine, and the time
/// of a start identifies it.
fn instance(node: &Node) -> u128 {
    u128::from(node.now().as_nanos()) + 1
}

fn identity(node: &Node, label: &Label, start: Start) -> Identity {
    let Label { cluster, role, store, .. } = *label;
    Identity { cluster, role, store, start, host: node.name(), addrs: vec![node.addr(PORT)] }
}

async fn run_manager(node: Node, iods: Vec<Addr>, options: Rc<ClusterOptions>, metadata: MemDisk) {
    let loops = (options.threads > 1).then_some(options.threads);
    let endpoints = listen(&node, &options, loops).await;
    let endpoint = &endpoints[0];
    let begin = async || {
        let (store, settings) = (MetaStore::on(metadata.reopen().database())?, options.manager(iods.clone()));
        let clock = node.clone();
        let manager = Manager::new(endpoint.clone(), store, settings, instance(&node), move || clock.wall_ns())?;
        // Each start has another one.
        let mut secret = [0; 32];
        secret[..16].copy_from_slice(&instance(&node).to_le_bytes());
        Ok(if options.tickets { manager.with_tickets(secret) } else { manager })
    };
    let manager = until_started(&node, begin).await.taking(options.commit_time);
    let own = manager.identity();
    let standing = Standing::serving(identity(&node, &Label::new(own.cluster, Role::Manager, own.store), own.start));
    let further = endpoints.iter().enumerate().skip(1).map(|(core, endpoint)| {
        let (stop, stopped) = oneshot::channel::<()>();
        let (endpoint, handler) = (endpoint.clone(), manager.further_loop());
        let (standing, limits) = (standing.clone(), options.limits);
        let task = node.spawn_on(core, async move {
            // The other end is dropped when the manager stops.
            let stopped = async { drop(stopped.await) };
            serve(&endpoint, &handler, &standing, limits, stopped).await;
        });
        (stop, task)
    });
    let (stops, tasks): (Vec<_>, Vec<_>) = further.unzip();
    let stop = async {
        let error = manager.failure().await;
        tracing::error!(%error, "the manager stops");
        drop(stops);
    };
    let work = async {
        serve_beside(&[(endpoint.clone(), &manager)], &standing, options.limits, None, stop).await;
        for task in tasks {
            // An error means that the node was killed, and with it this future.
            let _ = task.await;
        }
    };
    beside(&manager, work).await;
    if manager.is_in_doubt() {
        start_again(&node);
    }
}

/// Starts a node's programs again after a pause, as a system's init does with a program that has
/// ended.
fn start_again(node: &Node) {
    let (init, node) = (node.sim().node("init"), node.clone());
    init.clone().spawn(async move {
        init.sleep(START_AGAIN).await;
        if node.is_alive() {
            node.kill();
            node.restart();
        }
    });
}

async fn run_iod(
    node: Node,
    index: u32,
    options: Rc<ClusterOptions>,
    loops: Option<usize>,
    (disk, medium): (MemDisk, Rc<dyn Medium>),
    cache: Rc<CacheMemory>,
    manager: Addr,
) {
    let instance = instance(&node);
    let endpoints = listen(&node, &options, loops).await;
    let endpoint = &endpoints[0];
    if loops.is_some() {
        endpoint.with(|engine| engine.transport_mut().spread(1));
    }
    let open = async || SimStore::open(&disk, medium.clone())?.checksums(options.checksums);
    let store = Rc::new(until_started(&node, open).await.mapping(options.service == Service::Mmap));
    let number = StoreId(instance << 32 | u128::from(index) | 1 << 31);
    let gate = Arc::new(Gate::new(options.tickets, Gate::PATIENCE));
    let membership = Membership::new(endpoint.clone(), manager, index, instance, false, options.heartbeat);
    let mut membership = membership.telling(gate.clone());
    let labels = Arc::new(LabelLock::default());
    let begin = begin(&mut membership, &store, &labels, number, &node);
    let never = std::future::pending();
    let begun = wait_until(&why_iod(index), &endpoints, options.limits, begin, never).await;
    let (label, start) = match begun {
        Some(Ok(begun)) => begun,
        Some(Err(error)) => return tracing::error!(%error, "the I/O server stops"),
        None => return,
    };
    let stored: Rc<dyn DataStore> = match &options.service {
        Service::Normal | Service::Mmap => store.clone(),
        Service::Unifier(settings) => {
            let begin = async || {
                let (frames, clock) = (cache.frames(label.store, settings)?, node.clone());
                let unified = UnifiedStore::new(store.clone(), frames, settings.cache.clone(), move || clock.wall_ns());
                unified.reconcile().await?;
                Ok(Rc::new(unified))
            };
            until_started(&node, begin).await
        }
    };
    let iod = until_started(&node, async || Iod::new(endpoint.clone(), stored.clone(), options.iod)).await;
    let iod = iod.started_as(instance as u64).with_labels(labels.clone()).guarded_by(gate);
    let standing = Standing::serving(identity(&node, &label, start));
    let failed = Cell::new(false);
    let stop = async {
        let error = tokio::select! {
            biased;
            error = membership.keep(&*store, &labels, start) => error,
            error = stored.failure() => {
                failed.set(true);
                error
            }
        };
        tracing::error!(%error, "the I/O server stops");
    };
    match loops {
        None => serve(endpoint, &iod, &standing, options.limits, stop).await,
        Some(_) => serve_on_cores(&node, &endpoints, iod, options.iod, &standing, options.limits, stop).await,
    }
    if failed.get() {
        start_again(&node);
    }
}

/// Labels an empty store and begins its next start. If the disk refuses, tries again.
async fn begin(
    membership: &mut Membership,
    store: &SimStore,
    labels: &LabelLock,
    number: StoreId,
    node: &Node,
) -> Result<(Label, Start), FsError> {
    loop {
        let attempt = async {
            if store.label().is_none() {
                let label = membership.ask_for_label(number).await?;
                store.relabel(&label).await?;
            }
            let start = membership.begin(store, labels).await?;
            let none = || FsError::new(ErrorCode::Io, "the disk was taken out");
            Ok::<_, FsError>((store.label().ok_or_else(none)?, start))
        };
        match attempt.await {
            Err(error) if matches!(error.code, ErrorCode::Io | ErrorCode::NoSpace) => {
                tracing::warn!(node = node.name(), %error, "not started; tried again");
                node.sleep(START_AGAIN).await;
            }
            result => return result,
        }
    }
}
