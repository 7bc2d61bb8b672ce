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

use crate::engine::adapter::{AdapterSide, Work};
use crate::engine::books::{
    Effect, Level, Notice, Op, Operations, Peer, Plan, State, Transfer, Unit, record, unit, writes,
};
use crate::engine::buffers::{Copying, Cursor, packing};
use crate::error::{Error, ErrorKind};
use crate::lists::Lists;
use crate::mem::{MemList, OneOrMany};
use crate::op::{OpId, OpKind};
use crate::transport::capability::Registration;
use crate::transport::{HostWork, PostError, ServiceClass, Transport, WorkOptions, WorkStatus, WriteTarget};
use crate::wire::header::FinishStatus;
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

// ---- the beginning ------------------------------------------------------------------------------

/// Starts a pull or push that waited for its peer.
pub(in crate::engine) fn begin_queued(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    id: OpId,
) -> Effect {
    let Some(op) = ops.get_mut(id) else { return Effect::None };
    let (kind, plan) = (op.kind, op.plan.take());
    plan.map_or(Effect::None, |plan| begin(adapter, ops, peer, id, kind, *plan))
}

/// Starts a pull or push whose peer is up.
#[inline]
pub(in crate::engine) fn begin(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    id: OpId,
    kind: OpKind,
    plan: Plan,
) -> Effect {
    let counters = &mut adapter.counters;
    let counter = if kind == OpKind::Pull { &mut counters.pulls } else { &mut counters.pushes };
    *counter += 1;
    start(adapter, ops, peer, id, plan)
}

/// Starts a transfer, which takes its turns from now on.
pub(in crate::engine) fn start(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    id: OpId,
    Plan { remote, at, total, announced_as, immediate }: Plan,
) -> Effect {
    let Some(op) = ops.get(id) else { return Effect::None };
    let Some(list) = &op.list else { return Effect::None };
    let packs = packs(adapter, list, total, op.options.lists);
    let level = Level::of(op.options.class, total, adapter.config.tuning.transfer_unit);
    let registered = match packs {
        true => Ok(OneOrMany::None),
        false => unit::register_list(&mut adapter.registry, &mut adapter.transport, list),
    };
    // A list that cannot be registered is copied, a unit at a time.
    let must_pack = registered.is_err();
    adapter.counters.bounced += u64::from(must_pack);
    let transfer = Transfer {
        remote,
        regions: registered.unwrap_or(OneOrMany::None),
        region: 0,
        remote_cursor: at,
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
        immediate,
    };
    let transfer = ops.transfers.keep(transfer);
    if let Some(op) = ops.get_mut(id) {
        op.enter(State::Moving(transfer));
        if let Some(named) = announced_as {
            peer.moving.enter_name(named, id, writes(op.kind));
        }
    }
    peer.busy += 1;
    if total == 0 {
        return end(adapter, ops, peer, id);
    }
    adapter.turns.queue(&mut peer.moving, peer.id, id, level);
    Effect::TakeTurns
}

/// Returns true if the pieces of a transfer's local list are packed (see [`crate::lists`]). Packing
/// saves the registrations, and the requests that are needed because one has too few entries.
fn packs(adapter: &AdapterSide, list: &MemList, total: u64, lists: Lists) -> bool {
    let pieces = list.pieces();
    if pieces.len() < 2 {
        return false;
    }
    match lists.or(adapter.config.memory.lists) {
        Lists::Chain | Lists::PackExposed => false,
        Lists::Pack => true,
        Lists::Auto => {
            let requests = (pieces.len() - 1) / adapter.transport.capabilities().max_segments;
            let registering = price_of_registering(adapter, list);
            Lists::packing_pays(total, pieces.len() as u64, requests as u64, registering)
        }
    }
}

/// Returns the cost of registering the memories of a list that are not registered yet, in ns.
fn price_of_registering(adapter: &AdapterSide, list: &MemList) -> u64 {
    let Registration::Pins { per_region, per_page } = adapter.transport.capabilities().registration else { return 0 };
    let runs = list.pieces().chunk_by(|a, b| a.memory().id() == b.memory().id());
    let prices = runs.filter(|run| !adapter.registry.is_registered(run[0].memory())).map(|run| {
        let pages = u32::try_from(run[0].memory().len().div_ceil(PAGE)).unwrap_or(u32::MAX);
        u64::try_from((per_region + per_page.saturating_mul(pages)).as_nanos()).unwrap_or(u64::MAX)
    });
    prices.fold(0, u64::saturating_add)
}

// ---- units --------------------------------------------------------------------------------------

/// Posts one unit of a transfer, or continues with a unit that found the queue full.
#[inline(never)]
pub(super) fn post_unit(adapter: &mut AdapterSide, ops: &mut Operations, peer: &mut Peer, id: OpId) -> Outcome {
    if adapter.recorder.is_on() {
        stamp_unit(adapter, ops, id);
    }
    if let Err(over) = begin_unit(adapter, ops, id) {
        return over;
    }
    let Some(op) = ops.get_mut(id) else { return Outcome::Over };
    let (writes, closing, class) = (writes(op.kind), op.ending.is_some(), op.options.class);
    let Some((list, transfer)) = op.moving() else { return Outcome::Over };
    let class = if transfer.level == Level::Urgent { class } else { ServiceClass::Bulk };
    // If the transfer was asked to end in the middle of a unit, one more byte is moved. Its
    // completion tells that the adapter is done with the requests before it.
    let capabilities = adapter.transport.capabilities();
    let (max_segments, max_len) = (capabilities.max_segments, capabilities.max_work_len);
    // Half of the queue, so that the next unit can be posted while one is in flight.
    let most_requests = u32::try_from(capabilities.send_queue_depth / 2).unwrap_or(u32::MAX).max(1);
    let staged = transfer.open.staged.is_some();
    let unit = if staged { adapter.packing.buffer_len() } else { adapter.config.tuning.transfer_unit } as u64;
    loop {
        let limit = if closing { 1 } else { max_len.min(unit - transfer.open.bytes) };
        let request = if staged {
            transfer.cut_staged(list, limit, writes, &adapter.packing, &mut adapter.segments)
        } else {
            transfer.cut(list, limit, max_segments, &mut adapter.segments)
        };
        let (remote, len) = (request.remote, request.remote.len);
        let last = transfer.issued + len == transfer.total;
        let full = transfer.open.bytes + len >= unit || transfer.open.requests + 1 >= most_requests;
        let (work, ends) = (Work::Op(id).to_id(), last || closing || full);
        let options = WorkOptions { signalled: ends && !mutated_each(20, "bulk/unit-not-signalled"), class };
        // Immediate data consumes a receive of the peer.
        let immediate = transfer.immediate.filter(|_| last);
        if immediate.is_some() && !peer.spend_message() {
            adapter.segments.clear();
            return Outcome::QueueFull;
        }
        let posted = if writes {
            let target = WriteTarget { remote, immediate };
            adapter.transport.post_write(peer.conn, work, &[], &adapter.segments, target, options)
        } else {
            adapter.transport.post_read(peer.conn, work, &adapter.segments, remote, options)
        };
        adapter.segments.clear();
        if posted.is_err() && immediate.is_some() {
            peer.unspend(0);
        }
        match posted {
            Ok(()) => {}
            Err(PostError::QueueFull) => return Outcome::QueueFull,
            Err(PostError::NotConnected) => {
                transfer.broken = true;
                return Outcome::Over;
            }
            Err(PostError::Invalid(why)) => {
                op.ending.get_or_insert(ErrorKind::Unsupported);
                return invalid_unit(adapter, peer, id, why);
            }
        }
        if request.copied > 0 {
            adapter.transport.charge(HostWork::Copy { bytes: len, pieces: request.copied });
        }
        transfer.posted(&request);
        adapter.turns.posted(&mut peer.moving, transfer.level, len, adapter.now);
        adapter.work += 1;
        adapter.counters.transfer_requests += 1;
        if ends {
            let done = std::mem::replace(&mut transfer.open, Unit::empty(id, transfer.level));
            adapter.counters.transfer_units += 1;
            adapter.turns.closed(&mut peer.moving, done, writes);
            return if last || closing { Outcome::Last } else { Outcome::Posted };
        }
    }
}

/// Notes the time if the next request is the first of its unit.
#[cold]
#[inline(never)]
fn stamp_unit(adapter: &AdapterSide, ops: &mut Operations, id: OpId) {
    if let Some((_, transfer)) = ops.get_mut(id).and_then(Op::moving)
        && transfer.open.requests == 0
    {
        transfer.open.begun = adapter.recorder.now();
    }
}

/// Checks that there is a unit to post. For a new unit, finds the memory: a packing buffer, or the
/// regions of the list.
fn begin_unit(adapter: &mut AdapterSide, ops: &mut Operations, id: OpId) -> Result<(), Outcome> {
    let op = ops.get_mut(id).ok_or(Outcome::Over)?;
    let ending = op.ending.is_some();
    let (list, transfer) = op.moving().ok_or(Outcome::Over)?;
    if transfer.broken {
        return Err(Outcome::Over);
    }
    if transfer.open.requests > 0 {
        return Ok(());
    }
    if ending {
        return Err(Outcome::Over);
    }
    let AdapterSide { transport, registry, packing, counters, .. } = adapter;
    if transfer.packs && transfer.open.staged.is_none() {
        let buffer = match transfer.must_pack {
            true => packing.take_reserved(transport),
            false => packing.take(transport),
        };
        transfer.open.staged = buffer.map(|buffer| (buffer, transfer.local_cursor));
        counters.units_packed += u64::from(buffer.is_some());
    }
    if transfer.open.staged.is_some() || !transfer.regions.as_slice().is_empty() {
        return Ok(());
    }
    if !transfer.must_pack {
        if let Ok(regions) = unit::register_list(registry, transport, list) {
            transfer.regions = regions;
            return Ok(());
        }
        // From here on, the list is copied, because it cannot be registered.
        transfer.must_pack = true;
        counters.bounced += 1;
    }
    let buffer = packing.take_reserved(transport).ok_or(Outcome::QueueFull)?;
    transfer.open.staged = Some((buffer, transfer.local_cursor));
    Ok(())
}

/// Handles a unit that the transport calls invalid. The open unit can no longer be closed: only the
/// end of the connection tells when its memory is free.
fn invalid_unit(adapter: &mut AdapterSide, peer: &mut Peer, id: OpId, why: &'static str) -> Outcome {
    debug_assert!(false, "the transport calls a unit invalid: {why}");
    tracing::error!(op = ?id, why, "the transport calls a unit invalid");
    adapter.cut(peer, Error::new(ErrorKind::Unsupported, format!("the transport calls a unit invalid: {why}")));
    Outcome::Over
}

/// Handles the completion of a request. On success its unit has ended.
pub(in crate::engine) fn unit_done(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    id: OpId,
    status: WorkStatus,
) -> Effect {
    if adapter.recorder.is_on() {
        record_unit(adapter, ops, peer, id, status);
    }
    let Some(op) = ops.get_mut(id) else { return Effect::None };
    let writes = writes(op.kind);
    if status != WorkStatus::Ok {
        let Some(transfer) = op.transfer_mut() else { return Effect::None };
        // The connection ends, which settles everything. It is not known which of the unsignalled
        // requests were carried out.
        transfer.broken = true;
        if status == WorkStatus::RemoteAccess {
            op.ending.get_or_insert(ErrorKind::Protocol);
        }
        return Effect::None;
    }
    let ending = op.ending.is_some();
    let Some((list, transfer)) = op.moving() else { return Effect::None };
    let Some(unit) = adapter.turns.ended(&mut peer.moving, writes, adapter.now) else { return Effect::None };
    peer.steps += 1;
    debug_assert_eq!(unit.op, id, "C4: reads complete in order, and so do writes");
    adapter.work -= unit.requests as usize;
    transfer.outstanding -= unit.requests;
    if let Some((buffer, at)) = unit.staged {
        if !writes && !mutated("bulk/not-unpacked") {
            let here = adapter.packing.slice(buffer, 0, usize::try_from(unit.bytes).expect("within a buffer"));
            let (_, pieces) = packing::copy(list, at, &here, Copying::Unpack);
            adapter.transport.charge(HostWork::Copy { bytes: unit.bytes, pieces });
        }
        adapter.packing.free(buffer);
    }
    let over = transfer.issued == transfer.total || ending;
    if over && (transfer.outstanding == 0 || mutated("bulk/ended-before-the-last-unit")) && !transfer.broken {
        return end(adapter, ops, peer, id);
    }
    Effect::None
}

/// Records the unit whose last request is completed, before it is handled.
#[cold]
#[inline(never)]
fn record_unit(adapter: &AdapterSide, ops: &Operations, peer: &Peer, id: OpId, status: WorkStatus) {
    let Some(op) = ops.get(id).filter(|_| status == WorkStatus::Ok) else { return };
    let writes = writes(op.kind);
    let unit = if writes { peer.moving.writes.front() } else { peer.moving.reads.front() };
    if let Some(unit) = unit.filter(|unit| unit.op == id) {
        record::unit(&adapter.recorder, peer.id, writes, unit.begun, unit.bytes);
    }
}

// ---- the end ------------------------------------------------------------------------------------

/// Ends a transfer that no adapter is working on.
pub(in crate::engine) fn end(adapter: &mut AdapterSide, ops: &mut Operations, peer: &mut Peer, id: OpId) -> Effect {
    let Some(op) = ops.get_mut(id) else { return Effect::None };
    let (kind, ending) = (op.kind, op.ending);
    let Some(transfer) = op.transfer_mut() else { return Effect::None };
    if let Some((buffer, _)) = transfer.open.staged.take() {
        adapter.packing.free(buffer);
    }
    let total = transfer.total;
    let status = match ending {
        Some(kind) if transfer.issued < transfer.total => Err(kind),
        // It was asked to end early, but everything had been moved.
        _ => Ok(()),
    };
    if let Some(named) = transfer.announced_as {
        peer.moving.leave_name(named, id, writes(kind));
        notify_end(peer, kind, named, status.is_ok().then_some(total));
    }
    if status.is_ok() {
        let counters = &mut adapter.counters;
        match kind {
            OpKind::Pull => counters.bytes_pulled += total,
            OpKind::Push => counters.bytes_pushed += total,
            // It was counted when it was announced.
            OpKind::Send => {}
            _ => counters.bytes_received += total,
        }
    }
    peer.no_longer_busy();
    Effect::ends(id, status, total)
}

/// Reports the end of a rendezvous to the peer: a Written or Withdrawn if this side wrote the
/// message, and a Finish if it read it. `moved` is the number of bytes, if all were moved.
fn notify_end(peer: &mut Peer, kind: OpKind, named: u64, moved: Option<u64>) {
    let notice = match (kind, moved) {
        (OpKind::Send, None) if mutated("write-rendezvous/told-written-though-stopped") => {
            Notice::Written { op: named, len: 0 }
        }
        (OpKind::Send, Some(len)) => Notice::Written { op: named, len },
        (OpKind::Send, None) => {
            // It is counted as any other Withdrawn in the queue.
            peer.answers += 1;
            Notice::Withdrawn { op: named }
        }
        (_, Some(len)) => Notice::Finish { op: named, status: FinishStatus::Ok, len },
        (_, None) => Notice::Finish { op: named, status: FinishStatus::Cancelled, len: 0 },
    };
    peer.notify(notice);
}
