//! The cluster in the simulator: nodes `manager`, `iod0`, `iod1` …, each listening on port 7000.

use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use bmi_core::{Addr, AsyncEndpoint, ErrorKind};
use bmi_sim::faults::{DiskUser, Loss};
use bmi_sim::{DiskFault, Node, Sim, SimDisk, SimTransport};
use fs_proto::{ErrorCode, FsError, Identity, Role};

use super::ClusterOptions;
use crate::iod::Iod;
use crate::manager::{Manager, ManagerSettings};
use crate::service::{Handler, serve};
use crate::store::{Fates, Medium, MemStore, MetaStore, SharedBackend};

/// The port of every server.
const PORT: u16 = 7000;

/// Converts an error of a simulated disk to an error of a store.
fn disk_fault(error: &bmi_core::Error) -> FsError {
    let code = if error.kind() == ErrorKind::Exhausted { ErrorCode::NoSpace } else { ErrorCode::Io };
    FsError::new(code, error.to_string())
}

#[async_trait(?Send)]
impl Medium for SimDisk {
    async fn read(&self, bytes: u64) -> Result<(), FsError> {
        SimDisk::read(self, bytes).await.map_err(|error| disk_fault(&error))
    }

    async fn write(&self, bytes: u64) -> Result<(), FsError> {
        SimDisk::write(self, bytes).await.map_err(|error| disk_fault(&error))
    }

    async fn sync(&self) -> Result<(), FsError> {
        SimDisk::sync(self).await.map_err(|error| disk_fault(&error))
    }
}

/// A disk that takes no time, on a node with a clock.
struct Timeless(Node);

#[async_trait(?Send)]
impl Medium for Timeless {
    async fn read(&self, _bytes: u64) -> Result<(), FsError> {
        Ok(())
    }

    async fn write(&self, _bytes: u64) -> Result<(), FsError> {
        Ok(())
    }

    async fn sync(&self) -> Result<(), FsError> {
        Ok(())
    }

    fn wall_ns(&self) -> u64 {
        self.0.wall_ns()
    }
}

/// A node's disk, with the node's clock.
struct Timed(SimDisk, Node);

#[async_trait(?Send)]
impl Medium for Timed {
    async fn read(&self, bytes: u64) -> Result<(), FsError> {
        Medium::read(&self.0, bytes).await
    }

    async fn write(&self, bytes: u64) -> Result<(), FsError> {
        Medium::write(&self.0, bytes).await
    }

    async fn sync(&self) -> Result<(), FsError> {
        Medium::sync(&self.0).await
    }

    fn wall_ns(&self) -> u64 {
        self.1.wall_ns()
    }
}

/// A node's power failure, for the stores on its disk.
struct Drawn<'a>(&'a mut Loss);

impl Fates for Drawn<'_> {
    fn keeps(&mut self) -> bool {
        self.0.keeps()
    }

    fn sector(&mut self, old: &[u8], now: &mut [u8]) {
        self.0.apply(old, now);
    }
}

impl DiskUser for MemStore {
    fn power_fails(&self, loss: &mut Loss) {
        MemStore::power_fails(self, &mut Drawn(loss));
    }
}

impl DiskUser for SharedBackend {
    fn power_fails(&self, loss: &mut Loss) {
        SharedBackend::power_fails(self, &mut Drawn(loss));
    }

    fn cuts_off(&self, writes: Option<u32>) {
        self.cut_off(writes);
    }

    fn is_cut_off(&self) -> bool {
        SharedBackend::is_cut_off(self)
    }

    fn behaves(&self, fault: DiskFault) {
        self.refuse(match fault {
            DiskFault::None => None,
            DiskFault::Full => Some((std::io::ErrorKind::StorageFull, false)),
            DiskFault::Broken => Some((std::io::ErrorKind::Other, true)),
        });
    }
}

/// Pause before a server that could not be started is tried again.
const START_AGAIN: Duration = Duration::from_millis(10);

/// A cluster of simulated nodes. Dropping the handle has no effect: the servers belong to their
/// nodes. A node starts its server whenever it comes up ([`Node::boot`]), also after a crash that a
/// fault plan requests.
pub struct SimCluster {
    sim: Sim,
    stores: Vec<MemStore>,
}

impl SimCluster {
    /// Starts the servers. They run whenever the world runs.
    ///
    /// # Errors
    /// `Invalid` for invalid options; the errors of an endpoint.
    pub fn start(sim: &Sim, options: ClusterOptions) -> Result<SimCluster, FsError> {
        options.endpoint("server").validate()?;
        options.iod.zones()?;
        fs_proto::Distribution::simple_stripe(options.strip_size, options.iods as u32)?;
        let options = Rc::new(options);
        let store = |index: usize| {
            let node = sim.node(&format!("iod{index}"));
            let (disk, capacity) = (Timed(node.disk(), node.clone()), options.disk_capacity);
            match (options.disk_costs, options.disk_cache) {
                (true, true) => MemStore::cached(disk, capacity),
                (true, false) => MemStore::on(disk, capacity),
                (false, true) => MemStore::cached(Timeless(node), capacity),
                (false, false) => MemStore::on(Timeless(node), capacity),
            }
        };
        let stores = (0..options.iods).map(store).collect();
        let cluster = SimCluster { sim: sim.clone(), stores };
        for (index, store) in cluster.stores.iter().enumerate() {
            let node = cluster.iod_node(index);
            node.disk().attach(Rc::new(store.clone()));
            let (options, store) = (options.clone(), store.clone());
            node.boot(move |node| run_iod(node, index as u32, options.clone(), store.clone()));
        }
        let (metadata, iods) = (SharedBackend::default(), cluster.iods());
        let node = cluster.manager_node();
        node.disk().attach(Rc::new(metadata.clone()));
        node.boot(move |node| run_manager(node, iods.clone(), options.clone(), metadata.reopen()));
        Ok(cluster)
    }

    /// Returns the manager's address.
    pub fn manager(&self) -> Addr {
        self.manager_node().addr(PORT)
    }

    /// Returns the I/O servers' addresses.
    pub fn iods(&self) -> Vec<Addr> {
        (0..self.stores.len()).map(|index| self.iod_node(index).addr(PORT)).collect()
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
    pub fn store(&self, index: usize) -> &MemStore {
        &self.stores[index]
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

/// Starts a server and serves. If its disk refuses, retries until the server comes up, as a
/// system's init does.
async fn keep_up<H: Handler<SimTransport>>(
    node: Node,
    role: Role,
    options: Rc<ClusterOptions>,
    start: impl Fn(AsyncEndpoint<SimTransport>) -> Result<H, FsError>,
) {
    let mut made = None;
    loop {
        // The endpoint is driven by its own task, so it is created only once.
        let mut begin = || {
            let endpoint = match &made {
                Some(endpoint) => AsyncEndpoint::clone(endpoint),
                None => made.insert(node.endpoint(options.endpoint(&node.name()))?).clone(),
            };
            let handler = start(endpoint.clone())?;
            endpoint.listen(&node.addr(PORT))?;
            Ok::<_, FsError>((endpoint, handler))
        };
        match begin() {
            Ok((endpoint, handler)) => {
                // Each node is its own machine, and the time of a start identifies it.
                let instance = u128::from(node.now().as_nanos());
                let identity = Identity { role, host: node.name(), instance, addrs: vec![node.addr(PORT)] };
                return serve(&endpoint, &handler, &identity, options.limits, std::future::pending()).await;
            }
            Err(error) => tracing::warn!(node = node.name(), %error, "not started; tried again"),
        }
        node.sleep(START_AGAIN).await;
    }
}

async fn run_manager(node: Node, iods: Vec<Addr>, options: Rc<ClusterOptions>, metadata: SharedBackend) {
    let (clock, strip_size) = (node.clone(), options.strip_size);
    let start = move |endpoint| {
        let (settings, clock) = (ManagerSettings { iods: iods.clone(), strip_size }, clock.clone());
        Manager::new(endpoint, MetaStore::on(metadata.clone())?, settings, move || clock.wall_ns())
    };
    keep_up(node, Role::Manager, options, start).await;
}

async fn run_iod(node: Node, index: u32, options: Rc<ClusterOptions>, store: MemStore) {
    let (begun, settings) = (node.now().as_nanos(), options.iod);
    let start = move |endpoint| Ok(Iod::new(endpoint, store.clone(), settings)?.started_as(begun));
    keep_up(node, Role::Iod(index), options, start).await;
}
