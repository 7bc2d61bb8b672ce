//! The cluster in the simulator: nodes `manager`, `iod0`, `iod1` …, each listening at port 7000.

use async_trait::async_trait;
use bmi_core::{Addr, AsyncEndpoint, ErrorKind};
use bmi_sim::{Node, Sim, SimDisk, SimTransport};
use fs_proto::{ErrorCode, FsError, Identity, Role};

use super::ClusterOptions;
use crate::iod::Iod;
use crate::manager::{Manager, ManagerSettings};
use crate::service::{Handler, serve};
use crate::store::{Medium, MemStore, MetaStore, SharedBackend};

/// The port that every server listens at.
const PORT: u16 = 7000;

/// An error of a simulated disk, as a store reports it.
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

/// A cluster of simulated nodes. Dropping the handle changes nothing: the servers belong to their nodes.
pub struct SimCluster {
    sim: Sim,
    options: ClusterOptions,
    stores: Vec<MemStore>,
    metadata: SharedBackend,
}

impl SimCluster {
    /// Starts the servers; they run whenever the world does.
    ///
    /// # Errors
    /// `Invalid` for options that make no sense; what an endpoint refuses.
    pub fn start(sim: &Sim, options: ClusterOptions) -> Result<SimCluster, FsError> {
        let store = |index: usize| {
            if options.disk_costs {
                return MemStore::on(sim.node(&format!("iod{index}")).disk(), options.disk_capacity);
            }
            MemStore::new(options.disk_capacity)
        };
        let stores = (0..options.iods).map(store).collect();
        let cluster = SimCluster { sim: sim.clone(), options, stores, metadata: SharedBackend::default() };
        for index in 0..cluster.stores.len() {
            cluster.start_iod(index)?;
        }
        cluster.start_manager(cluster.metadata.clone())?;
        Ok(cluster)
    }

    /// The manager's address.
    pub fn manager(&self) -> Addr {
        self.manager_node().addr(PORT)
    }

    /// The I/O servers' addresses.
    pub fn iods(&self) -> Vec<Addr> {
        (0..self.stores.len()).map(|index| self.iod_node(index).addr(PORT)).collect()
    }

    /// The manager's node.
    pub fn manager_node(&self) -> Node {
        self.sim.node("manager")
    }

    /// An I/O server's node.
    pub fn iod_node(&self, index: usize) -> Node {
        self.sim.node(&format!("iod{index}"))
    }

    /// An I/O server's disk.
    pub fn store(&self, index: usize) -> &MemStore {
        &self.stores[index]
    }

    /// Kills the manager and starts it again, with what it had synced and nothing else.
    ///
    /// # Errors
    /// If the metadata cannot be opened again.
    pub fn restart_manager(&mut self) -> Result<(), FsError> {
        self.manager_node().kill();
        self.metadata = self.metadata.crash();
        self.manager_node().restart();
        self.start_manager(self.metadata.clone())
    }

    /// Starts an I/O server on its node again, after the node was killed. Its disk is as it was.
    ///
    /// # Errors
    /// What an endpoint refuses.
    pub fn restart_iod(&self, index: usize) -> Result<(), FsError> {
        self.iod_node(index).kill();
        self.iod_node(index).restart();
        self.start_iod(index)
    }

    fn start_manager(&self, metadata: SharedBackend) -> Result<(), FsError> {
        let node = self.manager_node();
        let endpoint = node.endpoint(self.options.endpoint("manager"))?;
        endpoint.listen(&node.addr(PORT))?;
        let settings = ManagerSettings { iods: self.iods(), strip_size: self.options.strip_size };
        let sim = self.sim.clone();
        let wall = move || sim.now().as_nanos();
        let manager = Manager::new(endpoint.clone(), MetaStore::on(metadata)?, settings, wall)?;
        self.run(&node, Role::Manager, endpoint, manager);
        Ok(())
    }

    fn start_iod(&self, index: usize) -> Result<(), FsError> {
        let node = self.iod_node(index);
        let endpoint = node.endpoint(self.options.endpoint(&node.name()))?;
        endpoint.listen(&node.addr(PORT))?;
        let iod = Iod::new(endpoint.clone(), self.stores[index].clone(), self.options.iod)?;
        self.run(&node, Role::Iod(index as u32), endpoint, iod);
        Ok(())
    }

    /// Each node is a machine of its own, and a start is told from others by its time.
    fn run(
        &self,
        node: &Node,
        role: Role,
        endpoint: AsyncEndpoint<SimTransport>,
        handler: impl Handler<SimTransport> + 'static,
    ) {
        let instance = u128::from(node.now().as_nanos());
        let identity = Identity { role, host: node.name(), instance, addrs: vec![node.addr(PORT)] };
        let limits = self.options.limits;
        node.spawn(async move { serve(&endpoint, &handler, &identity, limits, std::future::pending()).await });
    }
}
