//! The handle to a node's disk. How long requests take is computed in `model/disk.rs`.

use std::future::Future;
use std::rc::Rc;

use bmi_core::{Error, Time};

use crate::error::SimError;
use crate::faults::DiskUser;
use crate::faults::loss::DiskFault;
use crate::model::{Node, Request};
use crate::prices::DiskProfile;

/// A handle to a node's disk.
#[derive(Clone)]
pub struct SimDisk {
    pub(crate) node: Node,
    /// The prices of its requests, if they are not those of the profile.
    pub(crate) prices: Option<Rc<DiskProfile>>,
}

impl SimDisk {
    /// Reads `bytes` bytes. The request takes its place in the queue when this is called.
    ///
    /// # Errors
    /// `Io` on a broken disk, after the time that the request takes.
    pub fn read(&self, bytes: u64) -> impl Future<Output = Result<(), Error>> + use<> {
        self.request(Request::Read(bytes))
    }

    /// Writes `bytes` bytes.
    ///
    /// # Errors
    /// `Exhausted` on a full disk, `Io` on a broken one.
    pub fn write(&self, bytes: u64) -> impl Future<Output = Result<(), Error>> + use<> {
        self.request(Request::Write(bytes))
    }

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// `Io` on a broken disk.
    pub fn sync(&self) -> impl Future<Output = Result<(), Error>> + use<> {
        self.request(Request::Sync)
    }

    /// Sets how the disk responds to requests that are made from now on.
    pub fn set_fault(&self, fault: DiskFault) {
        self.node.sim.0.with(|core| core.nodes[self.node.id as usize].disk.fault = fault);
        self.node.disk_users().iter().for_each(|user| user.behaves(fault));
    }

    /// Returns a handle to the same disk, whose requests have these prices. They take their places
    /// among all requests of the disk, and fail when the disk does. If the prices are those of
    /// memory, they are the processor's work only.
    pub fn priced(&self, prices: DiskProfile) -> SimDisk {
        SimDisk { prices: Some(Rc::new(prices)), ..self.clone() }
    }

    /// Returns the prices of its requests.
    pub fn prices(&self) -> DiskProfile {
        match &self.prices {
            Some(prices) => DiskProfile::clone(prices),
            None => self.node.sim.0.core.borrow().config.profile.disk.clone(),
        }
    }

    /// Attaches a store to this disk, to be told when the power fails ([`Node::crash`]) and when
    /// the disk refuses requests. Like the disk, it outlives the node's programs.
    pub fn attach(&self, user: Rc<dyn DiskUser>) {
        self.node.sim.0.with(|core| core.nodes[self.node.id as usize].disk_users.push(user));
    }

    /// Returns how long the disk has worked, in ns.
    pub fn busy_ns(&self) -> u64 {
        self.node.sim.0.core.borrow().nodes[self.node.id as usize].disk.busy
    }

    fn request(&self, request: Request) -> impl Future<Output = Result<(), Error>> + use<> {
        let (id, sim) = (self.node.id as usize, self.node.sim.clone());
        let (done, copy, outcome) = sim.0.with(|core| {
            let done = core.disk_request(self.node.id, request, self.prices.as_deref());
            let memory = self.prices.as_deref().unwrap_or(&core.config.profile.disk).memory;
            let copy = memory.then(|| core.nodes[id].cpu.copy_to(done));
            let disk = &core.nodes[id].disk;
            let outcome = match (disk.fault, request) {
                (DiskFault::Broken, _) => Err(SimError::DiskFailed),
                (DiskFault::Full, Request::Write(_)) => Err(SimError::DiskFull),
                _ => Ok(()),
            };
            (done, copy, outcome)
        });
        let wait = sim.sleep_until(Time::from_nanos(done));
        async move {
            wait.await;
            let mut slept = done;
            while let Some(copy) = copy {
                let end = sim.0.core.borrow().nodes[id].cpu.end_of(copy);
                if end <= slept {
                    break;
                }
                slept = end;
                sim.sleep_until(Time::from_nanos(end)).await;
            }
            outcome.map_err(Error::from)
        }
    }
}

impl Node {
    /// Returns its disk.
    pub fn disk(&self) -> SimDisk {
        SimDisk { node: self.clone(), prices: None }
    }

    pub(crate) fn disk_users(&self) -> Vec<Rc<dyn DiskUser>> {
        self.state(|node, _| node.disk_users.clone())
    }
}
