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
//! ([`crate::SimDisk::priced`]): a page cache copies what it has, and asks the disk for the rest.

use crate::faults::loss::DiskFault;
use crate::model::Core;
use crate::model::processor::Work;
use crate::prices::{DiskProfile, per_bytes};

#[derive(Debug, Default)]
pub(crate) struct DiskState {
    /// When all bytes have been transferred.
    free: u64,
    /// When each place of its queue is free. Grows as places are used.
    places: Vec<u64>,
    pub(crate) busy: u64,
    pub(crate) fault: DiskFault,
}

impl DiskState {
    /// Drops the requests in flight.
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
    pub(crate) fn disk_request(&mut self, node: u32, request: Request, prices: Option<&DiskProfile>) -> u64 {
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

#[derive(Clone, Copy)]
pub(crate) enum Request {
    Read(u64),
    Write(u64),
    Sync,
}
