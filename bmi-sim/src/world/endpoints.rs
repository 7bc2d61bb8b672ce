//! The transports and endpoints of a node, and who drives them.

use bmi_core::driver::Waiting;
use bmi_core::{Config, Endpoint, Engine, Error, Handle, HandleConfig};

use super::driver::{drive_adapter, drive_until_closed, drive_with};
use crate::adapter::SimTransport;
use crate::error::SimError;
use crate::model::Node;

impl Node {
    /// Creates a transport on the node that the caller drives.
    ///
    /// # Errors
    /// `Io` if the node has been killed.
    pub fn transport(&self) -> Result<SimTransport, Error> {
        if !self.is_alive() {
            return Err(SimError::NodeKilled.into());
        }
        Ok(SimTransport::new(self))
    }

    /// Creates `count` transports on the node that share the addresses on which any of them
    /// listens (C17 of [`bmi_core::transport`]). A connection request for such an address goes to
    /// the transport with the fewest connections. Of several, the one that listens has precedence.
    ///
    /// A transport that is dropped leaves the group. The requests that it has not polled go to the
    /// others, and the connections of the others go on. Nobody listens at its addresses any more.
    ///
    /// # Errors
    /// `Io` if the node has been killed.
    pub fn transports(&self, count: usize) -> Result<Vec<SimTransport>, Error> {
        let members = (0..count).map(|_| self.transport()).collect::<Result<Vec<_>, _>>()?;
        if let Some(first) = members.first().map(|first| first.id) {
            self.sim.0.with(|core| {
                members.iter().for_each(|member| core.adapters[member.id as usize].group = first);
            });
        }
        Ok(members)
    }

    /// Creates an endpoint on the node, driven by a task of its own that polls.
    ///
    /// # Errors
    /// As [`Engine::new`]; `Io` if the node has been killed.
    pub fn endpoint(&self, config: Config) -> Result<Endpoint, Error> {
        self.endpoint_waiting(config, Waiting::Busy)
    }

    /// Creates an endpoint on the node, driven by a task of its own that waits as `waiting` says.
    ///
    /// # Errors
    /// As [`Node::endpoint`].
    pub fn endpoint_waiting(&self, config: Config, waiting: Waiting) -> Result<Endpoint, Error> {
        let endpoint = self.observed(self.transport()?, config)?;
        self.spawn(drive_with(self.clone(), endpoint.clone(), waiting));
        Ok(endpoint)
    }

    /// Creates `count` endpoints over transports that share an address ([`Node::transports`]): a
    /// program with several event loops. The driver of endpoint `i` is bound to core `i`, as by
    /// [`Node::spawn_on`], and waits as `waiting` says. Bind the tasks that use the endpoint to the
    /// same core. From then on the copies of all cores of the node share its memory bus, and a
    /// loop's own core sends what the loop sends by an adapter in software.
    ///
    /// # Errors
    /// As [`Node::endpoint`].
    pub fn shards(&self, config: &Config, waiting: Waiting, count: usize) -> Result<Vec<Endpoint>, Error> {
        let mut members = Vec::new();
        for (core, transport) in self.transports(count)?.into_iter().enumerate() {
            let adapter = transport.id;
            self.sim.0.with(|state| {
                let cpu = &mut state.nodes[self.id as usize].cpu;
                cpu.share_bus();
                state.adapters[adapter as usize].core = Some(cpu.task_core(core));
            });
            let endpoint = self.observed(transport, config.clone())?;
            self.spawn_on(core, drive_adapter(self.clone(), endpoint.clone(), waiting, adapter));
            members.push(endpoint);
        }
        Ok(members)
    }

    /// Creates a [`Handle`] over `count` endpoints, whose transports share an address
    /// ([`Node::transports`]). Tasks of the node drive them, so all is done on one thread, in an
    /// order that is the same in each run. When the handle is closed, the drivers end.
    ///
    /// # Errors
    /// As [`Node::endpoint`]; `Invalid` as [`Handle::start`].
    pub fn handle(&self, config: &Config, count: usize, settings: HandleConfig) -> Result<Handle, Error> {
        let transports = self.transports(count)?;
        let adapters: Vec<u32> = transports.iter().map(|transport| transport.id).collect();
        let open = |transport: SimTransport| Engine::new(Box::new(transport), config.clone(), self.now());
        let endpoints = transports.into_iter().map(open).collect::<Result<_, _>>()?;
        let (handle, endpoints) = Handle::undriven(endpoints, self.clock(), settings)?;
        for (endpoint, adapter) in endpoints.into_iter().zip(adapters) {
            let observer = endpoint.observer();
            self.sim.0.with(|core| core.observers.push((self.id, Box::new(observer))));
            self.spawn(drive_until_closed(self.clone(), endpoint, settings.waiting, adapter));
        }
        Ok(handle)
    }

    /// Creates an endpoint over a transport of this node, and has its resources observed.
    fn observed(&self, transport: SimTransport, config: Config) -> Result<Endpoint, Error> {
        let endpoint = Endpoint::new(Engine::new(Box::new(transport), config, self.now())?, self.clock());
        let observer = endpoint.observer();
        self.sim.0.with(|core| core.observers.push((self.id, Box::new(observer))));
        Ok(endpoint)
    }
}
