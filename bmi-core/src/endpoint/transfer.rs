//! Transfers between two lists: rendezvous receives, pulls and pushes. They are chains of RDMA
//! requests, in units that take turns.
//!
//! **Protocol.** A transfer is a chain of RDMA reads or writes. Each request covers as many bytes
//! as are contiguous at the peer, and as the adapter's entries can gather or scatter on this side.
//! Requests form units. A unit has at most [`Config::transfer_unit`](crate::Config::transfer_unit)
//! bytes, and at most as many requests as half of a connection's queue. Only the last request of a
//! unit is signalled. Reads complete in order, and so do writes (C4), so its completion ends the
//! unit. Thousands of small pieces cost few completions. Failures are always reported. They end the
//! connection, which settles everything. [`super::pacing`] decides which unit goes next, and when.
//!
//! If the local list is packed ([`crate::lists`]), each unit has a packing buffer. Pieces are
//! copied into it before a write, and out of it after a read has ended.
//!
//! **Invariants**
//! 1. A unit that was begun gets its signalled request. If the queue became full in between, this
//!    is the transfer's next request. If the transfer was asked to end, it is a request of a single
//!    byte. So everything that was posted is known to end.
//! 2. In the steady state nothing here allocates. The queues of units keep their capacity, and
//!    lists and regions are shared.
//!
//! **Source.** [PVFS-IB §3.2.3] (server-based RDMA), [PVFS-IB §4.2] (pipelined bulk transfer),
//! [Quadrics-PVFS2 §3] (chained RDMA with a single event).

use super::Endpoint;
use super::op::{Cursor, Op, State, writes};
use super::pacing::Level;
use super::packing::{self, Copying};
use super::peer::{Notice, Peer};
use super::unit::{self, Transfer, Unit};
use super::work::Work;
use crate::bulk::BulkDescriptor;
use crate::capability::Registration;
use crate::error::{Error, ErrorKind};
use crate::lists::Lists;
use crate::mem::{MemList, RemoteSlice};
use crate::op::{OpId, OpKind, Options, PeerId, Posted};
use crate::proto::header::FinishStatus;
use crate::proto::one_or_many::OneOrMany;
use crate::transport::{HostWork, PostError, ServiceClass, Transport, WorkOptions, WorkStatus, WriteTarget};
use crate::{mutated, mutated_each};

/// Size of a page, in bytes, as registration counts pages ([PVFS-IB §5]).
const PAGE: usize = 4096;

/// The result of posting a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The unit is with the adapter, and there are more.
    Posted,
    /// The last unit is with the adapter.
    Last,
    /// The transfer must wait, because the queue is full, there is no message credit, or no packing
    /// buffer is free. Some requests of the unit may already be posted.
    QueueFull,
    /// The transfer is over: it ended, or the connection is about to end.
    Over,
}

impl<T: Transport> Endpoint<T> {
    pub(super) fn start_bulk(
        &mut self,
        kind: OpKind,
        peer: PeerId,
        remote: &BulkDescriptor,
        at: u64,
        local: MemList,
        options: Options,
    ) -> Result<Posted, Error> {
        self.start_bulk_with(kind, peer, remote, at, local, None, options)
    }

    /// Starts a push to the beginning of `remote` whose last write carries immediate data.
    pub(super) fn start_push(
        &mut self,
        peer: PeerId,
        remote: &BulkDescriptor,
        local: MemList,
        immediate: u32,
        options: Options,
    ) -> Result<Posted, Error> {
        self.start_bulk_with(OpKind::Push, peer, remote, 0, local, Some(immediate), options)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one transfer")]
    fn start_bulk_with(
        &mut self,
        kind: OpKind,
        peer: PeerId,
        remote: &BulkDescriptor,
        at: u64,
        local: MemList,
        immediate: Option<u32>,
        options: Options,
    ) -> Result<Posted, Error> {
        let cursor = unit::seek(remote.pieces(), at);
        if immediate.is_none()
            && let Some(done) = self.transfer_immediately(kind, peer, remote, cursor, &local, &options)
        {
            return Ok(Posted::Done(done));
        }
        self.check_bulk(kind, peer, remote, at, &local).map_err(|error| error.during(kind.as_str()))?;
        let id = self.insert_op(kind, Some(peer), 0, Some(local), options, State::Queued);
        let op = self.ops.get_mut(id.0).expect("just entered");
        op.immediate = immediate;
        let remote = remote.shared();
        if self.peers.get(peer.0).is_some_and(Peer::is_up) {
            self.begin_bulk(id, remote, cursor);
            return Ok(self.posted(id));
        }
        op.remote = Some(Box::new((remote, cursor)));
        self.peers.get_mut(peer.0).expect("checked").queue.push_back(id);
        Ok(self.posted(id))
    }

    fn check_bulk(
        &self,
        kind: OpKind,
        peer: PeerId,
        remote: &BulkDescriptor,
        at: u64,
        local: &MemList,
    ) -> Result<(), Error> {
        if kind == OpKind::Pull {
            self.check_target(peer, local)?
        } else {
            self.check_list(peer, local)?
        }
        let invalid = |text: String| Error::new(ErrorKind::Invalid, text);
        if at.checked_add(local.len() as u64).is_none_or(|end| end > remote.len()) {
            let text = format!("{} bytes at {at} lie outside a descriptor of {}", local.len(), remote.len());
            return Err(invalid(text));
        }
        if remote.pieces().len() > self.config.limits.max_pieces {
            let text = format!(
                "a descriptor of {} pieces; at most {} are allowed",
                remote.pieces().len(),
                self.config.limits.max_pieces
            );
            return Err(invalid(text));
        }
        if kind == OpKind::Pull && !self.transport.capabilities().rdma_read {
            return Err(Error::new(ErrorKind::Unsupported, "the adapter has no RDMA read"));
        }
        Ok(())
    }

    /// Returns true if all of a transfer is with the adapter, or if it is over. Messages that are
    /// sent from now on arrive after it.
    pub fn is_issued(&self, op: OpId) -> bool {
        match self.ops.get(op.0).map(|op| &op.state) {
            Some(State::Queued) => false,
            Some(State::Moving(transfer)) => transfer.issued == transfer.total,
            _ => true,
        }
    }

    /// Starts a pull or push that waited for its peer.
    pub(super) fn start_queued_bulk(&mut self, id: OpId) {
        let op = self.ops.get_mut(id.0).expect("the caller has it");
        let (remote, cursor) = *op.remote.take().expect("a queued pull or push has its descriptor");
        self.begin_bulk(id, remote, cursor);
    }

    /// Starts a pull or push whose peer is up.
    fn begin_bulk(&mut self, id: OpId, remote: OneOrMany<RemoteSlice>, cursor: Cursor) {
        let op = self.ops.get(id.0).expect("the caller has it");
        let (kind, total) = (op.kind, op.len() as u64);
        let counter = if kind == OpKind::Pull { &mut self.counters.pulls } else { &mut self.counters.pushes };
        *counter += 1;
        self.start_transfer(id, remote, cursor, total, None);
    }

    /// Starts to read an announced message into its receive, or to have it written there.
    pub(super) fn start_rendezvous(
        &mut self,
        peer: PeerId,
        id: OpId,
        named: u64,
        len: u64,
        remote: OneOrMany<RemoteSlice>,
    ) {
        let room = self.ops.get(id.0).map_or(0, Op::len) as u64;
        let (status, kind) = if let Some(ending) = self.ops.get(id.0).and_then(|op| op.ending) {
            (FinishStatus::Cancelled, ending)
        } else if len > room && !mutated("rendezvous/longer-than-the-receive") {
            (FinishStatus::TooLong, ErrorKind::TooLong)
        } else if len > 0 && !self.transport.capabilities().rdma_read {
            return self.start_write_rendezvous(peer, id, named, len);
        } else {
            return self.start_transfer(id, remote, Cursor::default(), len, Some(named));
        };
        self.notify(peer, Notice::Finish { op: named, status, len: 0 });
        self.finish(id, Err(kind), len);
    }

    pub(super) fn start_transfer(
        &mut self,
        id: OpId,
        remote: OneOrMany<RemoteSlice>,
        remote_cursor: Cursor,
        total: u64,
        announced_as: Option<u64>,
    ) {
        let op = self.ops.get(id.0).expect("the caller has it");
        let list = op.list.as_ref().expect("a transfer has its list");
        let packs = self.packs(list, total, op.options.lists);
        let level = Level::of(op.options.class, total, self.config.limits.transfer_unit);
        let registered = match packs {
            true => Ok(OneOrMany::None),
            false => unit::register_list(&mut self.registry, &mut self.transport, list),
        };
        // A list that cannot be registered is copied, a unit at a time.
        let must_pack = registered.is_err();
        self.counters.bounced += u64::from(must_pack);
        let regions = registered.unwrap_or(OneOrMany::None);
        let peer = op.peer.expect("a transfer has its peer");
        let transfer = Transfer {
            remote,
            regions,
            region: 0,
            remote_cursor,
            local_cursor: Cursor::default(),
            total,
            issued: 0,
            outstanding: 0,
            open: Unit::empty(id, level),
            packs: packs || must_pack,
            must_pack,
            level,
            broken: false,
            announced_as,
            immediate: op.immediate,
        };
        let record = self.transfers.keep(transfer);
        self.ops.get_mut(id.0).expect("looked up above").state = State::Moving(record);
        if let Some(peer) = self.peers.get_mut(peer.0) {
            peer.busy += 1;
        }
        if total == 0 {
            self.finish_transfer(id);
        } else {
            self.queue_transfer(peer, id, level);
            self.pump_transfers();
        }
    }

    /// Returns true if the pieces of a transfer's local list are packed (see [`crate::lists`]).
    /// Packing saves the registrations, and the requests that are needed because one has too few
    /// entries.
    fn packs(&self, list: &MemList, total: u64, lists: Lists) -> bool {
        let pieces = list.pieces();
        if pieces.len() < 2 {
            return false;
        }
        match lists.or(self.config.memory.lists) {
            Lists::Chain => false,
            Lists::Pack => true,
            Lists::Auto => {
                let capabilities = self.transport.capabilities();
                let requests = (pieces.len() - 1) / capabilities.max_segments;
                let registering = self.price_of_registering(list);
                self.config.memory.list_prices.packing_pays(total, pieces.len() as u64, requests as u64, registering)
            }
        }
    }

    /// Returns the cost of registering the memories of a list that are not registered yet, in ns.
    fn price_of_registering(&self, list: &MemList) -> u64 {
        let Registration::Pins { per_region, per_page } = self.transport.capabilities().registration else { return 0 };
        let runs = list.pieces().chunk_by(|a, b| a.memory().id() == b.memory().id());
        let prices = runs.filter(|run| !self.registry.is_registered(run[0].memory())).map(|run| {
            let pages = u32::try_from(run[0].memory().len().div_ceil(PAGE)).unwrap_or(u32::MAX);
            u64::try_from((per_region + per_page.saturating_mul(pages)).as_nanos()).unwrap_or(u64::MAX)
        });
        prices.fold(0, u64::saturating_add)
    }

    /// Posts one unit of a transfer, or continues with a unit that found the queue full.
    pub(super) fn post_unit(&mut self, id: OpId) -> Outcome {
        if let Err(over) = self.begin_unit(id) {
            return over;
        }
        let Some(op) = self.ops.get_mut(id.0) else { return Outcome::Over };
        let (State::Moving(transfer), Some(peer)) = (&mut op.state, op.peer) else { return Outcome::Over };
        let Some(peer) = self.peers.get_mut(peer.0) else { return Outcome::Over };
        let (list, writes) = (op.list.as_ref().expect("a transfer has its list"), writes(op.kind));
        let class = if transfer.level == Level::Urgent { op.options.class } else { ServiceClass::Bulk };
        // If the transfer was asked to end in the middle of a unit, one more byte is moved. Its
        // completion tells that the adapter is done with the requests before it.
        let closing = op.ending.is_some();
        let capabilities = self.transport.capabilities();
        let (max_segments, max_len) = (capabilities.max_segments, capabilities.max_work_len);
        // Half of the queue, so that the next unit can be posted while one is under way.
        let most_requests = u32::try_from(capabilities.send_queue_depth / 2).unwrap_or(u32::MAX).max(1);
        let staged = transfer.open.staged.is_some();
        let unit = if staged { self.packing.buffer_len() } else { self.config.limits.transfer_unit } as u64;
        loop {
            let limit = if closing { 1 } else { max_len.min(unit - transfer.open.bytes) };
            let request = if staged {
                transfer.cut_staged(list, limit, writes, &self.packing, &mut self.segments)
            } else {
                transfer.cut(list, limit, max_segments, &mut self.segments)
            };
            let (remote, len) = (request.remote, request.remote.len);
            let last = transfer.issued + len == transfer.total;
            let full = transfer.open.bytes + len >= unit || transfer.open.requests + 1 >= most_requests;
            let (work, ends) = (Work::Op(id).to_id(), last || closing || full);
            let options = WorkOptions { signalled: ends && !mutated_each(20, "bulk/unit-not-signalled"), class };
            // Immediate data consumes a receive of the peer.
            let immediate = transfer.immediate.filter(|_| last);
            if immediate.is_some() && !peer.credit.as_mut().is_some_and(|credit| credit.spend_message()) {
                self.segments.clear();
                return Outcome::QueueFull;
            }
            let posted = if writes {
                let target = WriteTarget { remote, immediate };
                self.transport.post_write(peer.conn, work, &[], &self.segments, target, options)
            } else {
                self.transport.post_read(peer.conn, work, &self.segments, remote, options)
            };
            self.segments.clear();
            if let (Err(_), Some(_), Some(credit)) = (posted, immediate, peer.credit.as_mut()) {
                credit.unspend(0);
            }
            match posted {
                Ok(()) => {}
                Err(PostError::QueueFull) => return Outcome::QueueFull,
                Err(PostError::NotConnected) => {
                    transfer.broken = true;
                    return Outcome::Over;
                }
                Err(PostError::Invalid(why)) => return self.invalid_unit(id, why),
            }
            if request.copied > 0 {
                self.transport.charge(HostWork::Copy { bytes: len, pieces: request.copied });
            }
            transfer.posted(&request);
            self.turns.posted(&mut peer.moving, transfer.level, len, self.now);
            self.work += 1;
            self.counters.transfer_requests += 1;
            if ends {
                let done = std::mem::replace(&mut transfer.open, Unit::empty(id, transfer.level));
                self.counters.transfer_units += 1;
                self.turns.closed(&mut peer.moving, done, writes);
                return if last || closing { Outcome::Last } else { Outcome::Posted };
            }
        }
    }

    /// Checks that there is a unit to post. For a new unit, finds the memory: a packing buffer, or
    /// the regions of the list.
    fn begin_unit(&mut self, id: OpId) -> Result<(), Outcome> {
        let op = self.ops.get_mut(id.0).ok_or(Outcome::Over)?;
        let State::Moving(transfer) = &mut op.state else { return Err(Outcome::Over) };
        if transfer.broken {
            return Err(Outcome::Over);
        }
        if transfer.open.requests > 0 {
            return Ok(());
        }
        if op.ending.is_some() {
            return Err(Outcome::Over);
        }
        if transfer.packs && transfer.open.staged.is_none() {
            let buffer = match transfer.must_pack {
                true => self.packing.take_reserved(&mut self.transport),
                false => self.packing.take(&mut self.transport),
            };
            transfer.open.staged = buffer.map(|buffer| (buffer, transfer.local_cursor));
            self.counters.units_packed += u64::from(buffer.is_some());
        }
        if transfer.open.staged.is_some() || !transfer.regions.as_slice().is_empty() {
            return Ok(());
        }
        if !transfer.must_pack {
            let list = op.list.as_ref().expect("a transfer has its list");
            if let Ok(regions) = unit::register_list(&mut self.registry, &mut self.transport, list) {
                transfer.regions = regions;
                return Ok(());
            }
            // From here on, the list is copied, because it cannot be registered.
            transfer.must_pack = true;
            self.counters.bounced += 1;
        }
        let buffer = self.packing.take_reserved(&mut self.transport).ok_or(Outcome::QueueFull)?;
        transfer.open.staged = Some((buffer, transfer.local_cursor));
        Ok(())
    }

    fn invalid_unit(&mut self, id: OpId, why: &'static str) -> Outcome {
        debug_assert!(false, "the transport calls a unit invalid: {why}");
        tracing::error!(op = ?id, why, "the transport calls a unit invalid");
        let op = self.ops.get_mut(id.0).expect("the caller has it");
        op.ending.get_or_insert(ErrorKind::Unsupported);
        // The open unit can no longer be closed. Only the end of the connection tells when its
        // memory is free.
        if let Some(peer) = op.peer {
            self.cut(peer, Error::new(ErrorKind::Unsupported, format!("the transport calls a unit invalid: {why}")));
        }
        Outcome::Over
    }

    /// Handles the completion of a request. On success its unit has ended.
    pub(super) fn unit_done(&mut self, peer: PeerId, id: OpId, _len: u64, status: WorkStatus) {
        let Some(op) = self.ops.get_mut(id.0) else { return };
        let State::Moving(transfer) = &mut op.state else { return };
        if status != WorkStatus::Ok {
            // The connection ends, which settles everything. It is not known which of the
            // unsignalled requests were carried out.
            transfer.broken = true;
            if status == WorkStatus::RemoteAccess {
                op.ending.get_or_insert(ErrorKind::Protocol);
            }
            return;
        }
        let (Some(record), writes) = (self.peers.get_mut(peer.0), writes(op.kind)) else { return };
        let Some(unit) = self.turns.ended(&mut record.moving, writes, self.now) else { return };
        record.steps += 1;
        debug_assert_eq!(unit.op, id, "C4: reads complete in order, and so do writes");
        self.work -= unit.requests as usize;
        transfer.outstanding -= unit.requests;
        if let Some((buffer, at)) = unit.staged {
            if !writes && !mutated("bulk/not-unpacked") {
                let list = op.list.as_ref().expect("a transfer has its list");
                let here = self.packing.slice(buffer, 0, usize::try_from(unit.bytes).expect("within a buffer"));
                let (_, pieces) = packing::copy(list, at, &here, Copying::Unpack);
                self.transport.charge(HostWork::Copy { bytes: unit.bytes, pieces });
            }
            self.packing.free(buffer);
        }
        let over = transfer.issued == transfer.total || op.ending.is_some();
        if over && (transfer.outstanding == 0 || mutated("bulk/ended-before-the-last-unit")) && !transfer.broken {
            self.finish_transfer(id);
        }
    }

    /// Ends a transfer that no adapter is working on.
    pub(super) fn finish_transfer(&mut self, id: OpId) {
        let op = self.ops.get_mut(id.0).expect("the caller has it");
        let (State::Moving(transfer), Some(peer)) = (&mut op.state, op.peer) else {
            unreachable!("only transfers end here")
        };
        if let Some((buffer, _)) = transfer.open.staged.take() {
            self.packing.free(buffer);
        }
        let (kind, total, named) = (op.kind, transfer.total, transfer.announced_as);
        let status = match op.ending {
            Some(kind) if transfer.issued < transfer.total => Err(kind),
            // It was asked to end early, but everything had been moved.
            _ => Ok(()),
        };
        if let (Some(named), OpKind::Send) = (named, kind) {
            self.notify_written(peer, named, status.is_ok().then_some(total));
        } else if let Some(named) = named {
            let finish = if status.is_ok() { (FinishStatus::Ok, total) } else { (FinishStatus::Cancelled, 0) };
            self.notify(peer, Notice::Finish { op: named, status: finish.0, len: finish.1 });
        }
        if status.is_ok() {
            let counter = match kind {
                OpKind::Pull => &mut self.counters.bytes_pulled,
                OpKind::Push => &mut self.counters.bytes_pushed,
                // It was counted when it was announced.
                OpKind::Send => &mut 0,
                _ => &mut self.counters.bytes_received,
            };
            *counter += total;
        }
        self.finish(id, status, total);
        self.no_longer_busy(peer);
    }
}
