//! A node's disk: how long it takes, and when it fails. What is stored is kept by whoever uses it.
//!
//! **Model.** One request at a time, in order: a latency, then a price for each byte. Where the disk is memory
//! ([`Profile::disk_is_memory`](crate::Profile::disk_is_memory)) the node's processor does the work, besides everything else it has to do.

use std::future::Future;
use std::rc::Rc;

use bmi_core::{Error, Time};

use crate::error::SimError;
use crate::faults::DiskUser;
use crate::node::Node;
use crate::profile::per_bytes;

/// What the disk answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskFault {
    /// It works.
    #[default]
    None,
    /// Writes fail, `Exhausted`.
    Full,
    /// Everything fails, `Io`.
    Broken,
}

#[derive(Debug, Default)]
pub(crate) struct DiskState {
    free: u64,
    busy: u64,
    fault: DiskFault,
}

/// A handle to a node's disk.
#[derive(Clone)]
pub struct SimDisk {
    pub(crate) node: Node,
}

#[derive(Clone, Copy)]
enum Request {
    Read(u64),
    Write(u64),
    Sync,
}

impl SimDisk {
    /// Reads `bytes` bytes. The request takes its place when this is called.
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

    /// Makes what was written before durable.
    ///
    /// # Errors
    /// `Io` on a broken disk.
    pub fn sync(&self) -> impl Future<Output = Result<(), Error>> + use<> {
        self.request(Request::Sync)
    }

    /// How it behaves from now on, for requests that are made later.
    pub fn set_fault(&self, fault: DiskFault) {
        self.node.sim.0.with(|core| core.nodes[self.node.id as usize].disk.fault = fault);
        self.node.disk_users().iter().for_each(|user| user.behaves(fault));
    }

    /// A store on this disk that wants to know when the power fails ([`Node::crash`]) and when the disk refuses. It outlives the node's programs, as
    /// a disk does.
    pub fn attach(&self, user: Rc<dyn DiskUser>) {
        self.node.sim.0.with(|core| core.nodes[self.node.id as usize].disk_users.push(user));
    }

    /// How long it has worked, in ns.
    pub fn busy_ns(&self) -> u64 {
        self.node.sim.0.core.borrow().nodes[self.node.id as usize].disk.busy
    }

    fn request(&self, request: Request) -> impl Future<Output = Result<(), Error>> + use<> {
        let (done, outcome) = self.node.sim.0.with(|core| {
            let profile = &core.config.profile;
            let cost = match request {
                Request::Read(len) => profile.disk_read_latency_ns + per_bytes(len, profile.disk_read_byte_ps),
                Request::Write(len) => profile.disk_write_latency_ns + per_bytes(len, profile.disk_write_byte_ps),
                Request::Sync => profile.disk_sync_ns,
            };
            let (now, in_memory) = (core.queue.now, profile.disk_is_memory);
            let state = &mut core.nodes[self.node.id as usize];
            // The request is made when the processor comes to it.
            let begin = state.cpu.free_at(now);
            let worked = if in_memory { state.cpu.charge(now, cost) } else { 0 };
            let disk = &mut state.disk;
            disk.free = if in_memory { worked } else { disk.free.max(begin).saturating_add(cost) };
            disk.busy = disk.busy.saturating_add(cost);
            let outcome = match (disk.fault, request) {
                (DiskFault::Broken, _) => Err(SimError::DiskFailed),
                (DiskFault::Full, Request::Write(_)) => Err(SimError::DiskFull),
                _ => Ok(()),
            };
            (disk.free, outcome)
        });
        let wait = self.node.sim.sleep_until(Time::from_nanos(done));
        async move {
            wait.await;
            outcome.map_err(Error::from)
        }
    }
}
