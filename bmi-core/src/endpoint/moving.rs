//! Bytes between two lists: rendezvous receives, pulls and pushes, cut into units that take turns.
//!
//! **Protocol.** A transfer is a chain of RDMA reads or writes. Each takes one unit: as much as lies contiguous at the peer, as the adapter's
//! entries can gather or scatter here, and as [`Config::transfer_unit`](crate::Config::transfer_unit) allows. Active transfers take turns, a
//! unit each, until [`Config::in_flight_bytes`](crate::Config::in_flight_bytes) are with the adapter; its completions make room for more. Beyond
//! that a peer that has nothing with the adapter still gets one unit, so a peer that has come to a halt halts nobody else. So a long
//! transfer does not keep a short one waiting, and a request of any size needs only what is in flight.
//!
//! **Source.** Paper 000, sections 3.2.3 (server-based RDMA), 4.2 (pipelined bulk transfer), 3.4 (arranging transfers).

use super::Endpoint;
use super::op::{Cursor, Op, State, Transfer};
use super::peer::Notice;
use super::work::Work;
use crate::bulk::BulkDescriptor;
use crate::error::{Error, ErrorKind};
use crate::mem::{MemList, RemoteSlice, Segment};
use crate::op::{OpId, OpKind, Options, PeerId, Posted};
use crate::proto::header::FinishStatus;
use crate::proto::one_or_many::OneOrMany;
use crate::transport::{PostError, ServiceClass, Transport, WorkOptions, WorkStatus};

/// How posting one unit went.
enum Unit {
    /// One more unit is with the adapter, and there are more.
    Posted,
    /// The last one is.
    Last,
    /// The adapter takes no more now.
    Full,
    /// The transfer is over: it ended, or the connection is about to.
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
        self.check_bulk(peer, remote, at, &local).map_err(|error| error.during(kind.as_str()))?;
        let mut op = Op::new(kind, Some(peer), 0, Some(local), options, State::Queued);
        op.remote = Some((remote.pieces().iter().copied().collect(), seek(remote.pieces(), at)));
        let id = self.insert_op(op);
        let record = self.peers.get_mut(peer.0).expect("checked");
        if record.is_up() {
            self.start_queued_bulk(id);
        } else {
            record.queue.push_back(id);
        }
        Ok(self.posted(id))
    }

    fn check_bulk(&self, peer: PeerId, remote: &BulkDescriptor, at: u64, local: &MemList) -> Result<(), Error> {
        self.check_list(peer, local)?;
        let invalid = |text: String| Error::new(ErrorKind::Invalid, text);
        if at.checked_add(local.len() as u64).is_none_or(|end| end > remote.len()) {
            let text = format!("{} bytes at {at} lie outside a descriptor of {}", local.len(), remote.len());
            return Err(invalid(text));
        }
        if remote.pieces().len() > self.config.max_pieces {
            let text = format!(
                "a descriptor of {} pieces; at most {} are allowed",
                remote.pieces().len(),
                self.config.max_pieces
            );
            return Err(invalid(text));
        }
        Ok(())
    }

    /// Starts a pull or push whose peer is up.
    pub(super) fn start_queued_bulk(&mut self, id: OpId) {
        let op = self.ops.get_mut(id.0).expect("the caller has it");
        let (remote, cursor) = op.remote.take().expect("a queued pull or push has its descriptor");
        let (kind, total) = (op.kind, op.len() as u64);
        let counter = if kind == OpKind::Pull { &mut self.counters.pulls } else { &mut self.counters.pushes };
        *counter += 1;
        if let Err(error) = self.start_transfer(id, remote, cursor, total, None) {
            self.finish(id, Err(error.kind()), 0);
        }
    }

    /// Starts to read an announced message into its receive.
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
        } else if len > room {
            (FinishStatus::TooLong, ErrorKind::TooLong)
        } else {
            match self.start_transfer(id, remote, Cursor::default(), len, Some(named)) {
                Ok(()) => return,
                Err(error) => (FinishStatus::Exhausted, error.kind()),
            }
        };
        self.notify(peer, Notice::Finish { op: named, status, len: 0 });
        self.finish(id, Err(kind), len);
    }

    fn start_transfer(
        &mut self,
        id: OpId,
        remote: OneOrMany<RemoteSlice>,
        remote_cursor: Cursor,
        total: u64,
        announced_as: Option<u64>,
    ) -> Result<(), Error> {
        let op = self.ops.get_mut(id.0).expect("the caller has it");
        let list = op.list.as_ref().expect("a transfer has its list");
        let regions = list.pieces().iter().map(|piece| self.registry.register(&mut self.transport, piece.memory()));
        let Ok(regions) = OneOrMany::try_collect(regions) else {
            self.start_bounced(id, remote, remote_cursor, total, announced_as);
            return Ok(());
        };
        op.state = State::Moving(Transfer {
            remote,
            regions,
            remote_cursor,
            local_cursor: Cursor::default(),
            total,
            issued: 0,
            outstanding: 0,
            broken: false,
            announced_as,
        });
        if let Some(peer) = op.peer.and_then(|peer| self.peers.get_mut(peer.0)) {
            peer.busy += 1;
        }
        if total == 0 {
            self.finish_transfer(id);
        } else {
            self.active.push_back(id);
            self.pump_transfers();
        }
        Ok(())
    }

    /// Hands units to the adapter, one from each active transfer in turn, as far as there is room. Returns whether any went.
    pub(super) fn pump_transfers(&mut self) -> bool {
        let (mut any, mut full) = (false, 0);
        while full < self.active.len() {
            let Some(id) = self.active.pop_front() else { break };
            match self.post_unit(id) {
                Unit::Posted => {
                    self.active.push_back(id);
                    (any, full) = (true, 0);
                }
                Unit::Last => (any, full) = (true, 0),
                Unit::Full => {
                    self.active.push_back(id);
                    full += 1;
                }
                Unit::Over => {}
            }
        }
        any
    }

    fn post_unit(&mut self, id: OpId) -> Unit {
        let Some(op) = self.ops.get_mut(id.0) else { return Unit::Over };
        let (State::Moving(transfer), Some(peer), None) = (&mut op.state, op.peer, op.ending) else {
            return Unit::Over;
        };
        let Some(peer) = self.peers.get_mut(peer.0).filter(|_| !transfer.broken) else { return Unit::Over };
        // A peer with nothing in flight may always have one unit: it must not wait for another peer that has come to a halt.
        if self.in_flight >= self.config.in_flight_bytes && peer.in_flight > 0 {
            return Unit::Full;
        }
        let list = op.list.as_ref().expect("a transfer has its list");
        let capabilities = self.transport.capabilities();
        let limit = (self.config.transfer_unit as u64).min(capabilities.max_work_len);
        let (remote, local) = next_unit(transfer, list, limit, capabilities.max_segments, &mut self.segments);
        let work = Work::Op(id).to_id();
        let options = WorkOptions { signalled: true, class: ServiceClass::Bulk };
        let posted = if op.kind == OpKind::Push {
            self.transport.post_write(peer.conn, work, &[], &self.segments, remote.into(), options)
        } else {
            self.transport.post_read(peer.conn, work, &self.segments, remote, options)
        };
        self.segments.clear();
        match posted {
            Ok(()) => {}
            Err(PostError::QueueFull) => return Unit::Full,
            Err(PostError::NotConnected) => {
                transfer.broken = true;
                return Unit::Over;
            }
            Err(PostError::Invalid(why)) => {
                debug_assert!(false, "the transport calls a unit invalid: {why}");
                tracing::error!(op = ?id, why, "the transport calls a unit invalid");
                self.end_early(id, ErrorKind::Unsupported);
                return Unit::Over;
            }
        }
        transfer.remote_cursor.offset += remote.len;
        transfer.local_cursor = local;
        transfer.issued += remote.len;
        transfer.outstanding += 1;
        self.in_flight += remote.len;
        peer.in_flight += remote.len;
        self.work += 1;
        if transfer.issued == transfer.total { Unit::Last } else { Unit::Posted }
    }

    /// A unit ended.
    pub(super) fn unit_done(&mut self, peer: PeerId, id: OpId, len: u64, status: WorkStatus) {
        self.in_flight -= len;
        if let Some(peer) = self.peers.get_mut(peer.0) {
            peer.in_flight -= len;
        }
        self.work -= 1;
        let Some(op) = self.ops.get_mut(id.0) else { return };
        let State::Moving(transfer) = &mut op.state else { return };
        transfer.outstanding -= 1;
        if status != WorkStatus::Ok {
            transfer.broken = true;
            if status == WorkStatus::RemoteAccess {
                op.ending.get_or_insert(ErrorKind::Protocol);
            }
            return;
        }
        let over = transfer.issued == transfer.total || op.ending.is_some();
        if over && transfer.outstanding == 0 && !transfer.broken {
            self.finish_transfer(id);
        }
    }

    /// Ends a transfer with which no adapter is busy any more.
    pub(super) fn finish_transfer(&mut self, id: OpId) {
        if self.next_round(id) {
            return;
        }
        let op = self.ops.get(id.0).expect("the caller has it");
        let (State::Moving(transfer), Some(peer)) = (&op.state, op.peer) else {
            unreachable!("only transfers end here")
        };
        let (kind, total, named) = (op.kind, transfer.total, transfer.announced_as);
        let status = match op.ending {
            Some(kind) if transfer.issued < transfer.total => Err(kind),
            // Asked to end early, but everything had been moved.
            _ => Ok(()),
        };
        if let Some(named) = named {
            let finish = if status.is_ok() { (FinishStatus::Ok, total) } else { (FinishStatus::Cancelled, 0) };
            self.notify(peer, Notice::Finish { op: named, status: finish.0, len: finish.1 });
        }
        if status.is_ok() {
            let counter = match kind {
                OpKind::Pull => &mut self.counters.bytes_pulled,
                OpKind::Push => &mut self.counters.bytes_pushed,
                _ => &mut self.counters.bytes_received,
            };
            *counter += total;
        }
        self.finish(id, status, total);
        self.no_longer_busy(peer);
    }
}

/// Where byte `at` of a list of remote pieces lies.
fn seek(pieces: &[RemoteSlice], at: u64) -> Cursor {
    let mut offset = at;
    for (piece, slice) in pieces.iter().enumerate() {
        if offset < slice.len {
            return Cursor { piece, offset };
        }
        offset -= slice.len;
    }
    Cursor { piece: pieces.len(), offset: 0 }
}

/// The next unit of a transfer: the peer's side of it, and where the local side goes on. The local side's entries go to `segments`.
fn next_unit(
    transfer: &mut Transfer,
    list: &MemList,
    limit: u64,
    max_segments: usize,
    segments: &mut Vec<Segment>,
) -> (RemoteSlice, Cursor) {
    debug_assert!(segments.is_empty(), "scratch is left empty");
    let pieces = transfer.remote.as_slice();
    let cursor = &mut transfer.remote_cursor;
    while pieces[cursor.piece].len == cursor.offset {
        *cursor = Cursor { piece: cursor.piece + 1, offset: 0 };
    }
    let contiguous = pieces[cursor.piece].len - cursor.offset;
    let wanted = contiguous.min(limit).min(transfer.total - transfer.issued);
    let (mut local, mut len) = (transfer.local_cursor, 0);
    while len < wanted && segments.len() < max_segments {
        let piece = &list.pieces()[local.piece];
        let left = piece.len() as u64 - local.offset;
        if left == 0 {
            local = Cursor { piece: local.piece + 1, offset: 0 };
            continue;
        }
        let take = left.min(wanted - len);
        let start = piece.offset() + usize::try_from(local.offset).expect("within a memory");
        segments.push(
            transfer.regions.as_slice()[local.piece].segment(start, usize::try_from(take).expect("within a memory")),
        );
        local.offset += take;
        len += take;
    }
    let remote = pieces[cursor.piece].slice(cursor.offset, len);
    // An address that wraps is the peer's doing; its adapter will refuse the access.
    let remote = remote.unwrap_or(RemoteSlice { key: pieces[cursor.piece].key, addr: u64::MAX, len });
    (remote, local)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::RemoteKey;

    #[test]
    fn seek_finds_the_byte() {
        let slice = |len| RemoteSlice { key: RemoteKey(1), addr: 0, len };
        let pieces = [slice(3), slice(0), slice(5)];
        let at = |at| seek(&pieces, at);
        assert_eq!((at(0).piece, at(0).offset), (0, 0));
        assert_eq!((at(2).piece, at(2).offset), (0, 2));
        assert_eq!((at(3).piece, at(3).offset), (2, 0));
        assert_eq!((at(8).piece, at(8).offset), (3, 0));
    }
}
