//! The disk of a node: how long requests take, and when they fail. Its user keeps the stored bytes.
//!
//! **Model.** A request costs a latency, then a price for each byte. The latencies of up to
//! [`DiskProfile::queue_depth`](crate::DiskProfile::queue_depth) requests overlap. Their bytes are
//! transferred one request after the other.
//!
//! With a cache ([`DiskProfile::cache_bytes`](crate::DiskProfile::cache_bytes)), a write is done
//! when the processor has copied it, as long as there is room. The disk writes it out meanwhile,
//! and a sync waits for that. Where the disk is memory
//! ([`DiskProfile::memory`](crate::DiskProfile::memory)), the node's processor does the work, in
//! addition to its other work.
//!
//! A program that decides request by request what the disk has to do uses it at several prices
//! ([`SimDisk::priced`]): a page cache copies what it has, and asks the disk for the rest.

use std::future::Future;
use std::rc::Rc;

use bmi_core::{Error, Time};

use crate::cpu::Work;
use crate::error::SimError;
use crate::faults::DiskUser;
use crate::node::Node;
use crate::profile::{DiskProfile, per_bytes};
use crate::world::Core;

/// How the disk responds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskFault {
    /// The disk works.
    #[default]
    None,
    /// Writes fail with `Exhausted`.
    Full,
    /// Everything fails with `Io`.
    Broken,
}

#[derive(Debug, Default)]
pub(crate) struct DiskState {
    /// When all bytes have been transferred.
    free: u64,
    /// When each place of its queue is free. Grows as places are used.
    places: Vec<u64>,
    busy: u64,
    fault: DiskFault,
}

impl DiskState {
    /// Drops the requests that are under way.
    pub(crate) fn lose_power(&mut self) {
        self.free = 0;
        self.places.clear();
    }

    /// Books a request that takes a place from `begin` on, for `latency`, and then the disk for
    /// `bytes`. Returns when its bytes begin and end to be transferred.
    fn request(&mut self, depth: usize, begin: u64, latency: u64, bytes: u64) -> (u64, u64) {
        if self.places.len() < depth.max(1) && self.places.iter().all(|free| *free > begin) {
            self.places.push(0);
        }
        let Some(place) = self.places.iter_mut().min() else { return (begin, begin) };
        let start = begin.max(*place).saturating_add(latency).max(self.free);
        self.free = start.saturating_add(bytes);
        *place = self.free;
        (start, self.free)
    }
}

impl Core {
    /// Starts a request on a node's disk, at these prices or at those of the profile. Returns when
    /// it is done.
    fn disk_request(&mut self, node: u32, request: Request, prices: Option<&DiskProfile>) -> u64 {
        let disk = prices.unwrap_or(&self.config.profile.disk);
        let (latency, len, ps, crossings, name) = match request {
            Request::Read(len) => (disk.read_latency_ns, len, disk.read_ps_per_byte, disk.read_crossings, "read"),
            Request::Write(len) => (disk.write_latency_ns, len, disk.write_ps_per_byte, disk.write_crossings, "write"),
            Request::Sync => (disk.sync_ns, 0, 0, 0, "sync"),
        };
        let bus = per_bytes(crossings.saturating_mul(len), self.config.profile.memory_ps_per_byte);
        let (bytes, depth) = (per_bytes(len, ps), disk.queue_depth as usize);
        let (cached, cache_ps, room) = (disk.cache_bytes > 0, disk.cache_ps_per_byte, per_bytes(disk.cache_bytes, ps));
        let state = &mut self.nodes[node as usize].disk;
        // What is memory beside the disk is no work of the disk.
        if !disk.memory || prices.is_none() {
            state.busy = state.busy.saturating_add(latency + bytes);
        }
        if disk.memory {
            return self.charge_copy(node, latency + bytes, bus);
        }
        let is_write = matches!(request, Request::Write(_));
        // The request is made when the processor gets to it.
        let begin = match cached && is_write {
            true => self.charge(node, Work::Copying, per_bytes(len, cache_ps)),
            false => self.nodes[node as usize].cpu.free_at(self.queue.now),
        };
        let state = &mut self.nodes[node as usize].disk;
        // Everything written before has to be on the disk.
        let from = if matches!(request, Request::Sync) { begin.max(state.free) } else { begin };
        let (start, end) = state.request(depth, from, latency, bytes);
        if let Some(timeline) = &mut self.timeline {
            timeline.disk(node, name, (start, end), len);
        }
        // A cache takes a write while there is room for it.
        if cached && is_write { begin.max(end.saturating_sub(room)) } else { end }
    }
}

/// A handle to a node's disk.
#[derive(Clone)]
pub struct SimDisk {
    pub(crate) node: Node,
    /// The prices of its requests, if they are not those of the profile.
    pub(crate) prices: Option<Rc<DiskProfile>>,
}

#[derive(Clone, Copy)]
enum Request {
    Read(u64),
    Write(u64),
    Sync,
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
