//! The record of a transfer, and how two lists are cut into requests and units. This code needs no
//! adapter and does no I/O.
//!
//! ```text
//!   peer's list    |------- r0 -------|-- r1 --|----------- r2 -----------|
//!   our list       |-- l0 --|-- l1 --|---- l2 ----|--- l3 ---|--- l4 -----|
//!   requests       |  l0 l1 l2'       | l2'' l3'| l3'' l4                 |    one remote piece, many of ours
//!   units          |<------- unsignalled ------>|<-- signalled ---------->|    the last request of a unit is signalled
//! ```

use crate::engine::buffers::PinCache;
use crate::error::Error;
use crate::mem::{MemList, MemoryRegion, OneOrMany, RemoteSlice, Segment};
use crate::op::OpId;
use crate::time::Time;
use crate::transport::{ServiceClass, Transport};

use crate::engine::buffers::{Copying, Cursor, Packing, packing};
use crate::{mutated, mutated_each};

/// The priority of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Level {
    Urgent = 0,
    Bulk = 1,
}

impl Level {
    /// Returns the level of a transfer of `total` bytes.
    pub(in crate::engine) fn of(class: ServiceClass, total: u64, unit: usize) -> Level {
        match class {
            ServiceClass::Control => Level::Urgent,
            ServiceClass::Message if total <= unit as u64 => Level::Urgent,
            ServiceClass::Message | ServiceClass::Bulk => Level::Bulk,
        }
    }
}

/// What a transfer moves besides its own list.
#[derive(Debug)]
pub(in crate::engine) struct Plan {
    /// The peer's memory, and where in it the transfer begins.
    pub(in crate::engine) remote: OneOrMany<RemoteSlice>,
    pub(in crate::engine) at: Cursor,
    /// Bytes to move.
    pub(in crate::engine) total: u64,
    /// The peer's name for its operation, to report the end to it.
    pub(in crate::engine) announced_as: Option<u64>,
    /// For a push: the immediate data of its last write.
    pub(in crate::engine) immediate: Option<u32>,
}

/// A transfer between a local and a remote list, in units.
#[derive(Debug)]
pub(in crate::engine) struct Transfer {
    /// The peer's pieces, in order.
    pub(in crate::engine) remote: OneOrMany<RemoteSlice>,
    /// The regions of the local pieces, in the order of the operation's list. Empty while the
    /// pieces are packed.
    pub(in crate::engine) regions: OneOrMany<RegionRun>,
    /// The region that contains the local cursor.
    pub(in crate::engine) region: usize,
    pub(in crate::engine) remote_cursor: Cursor,
    pub(in crate::engine) local_cursor: Cursor,
    /// Bytes to move in total.
    pub(in crate::engine) total: u64,
    /// Bytes that the adapter has or had.
    pub(in crate::engine) issued: u64,
    /// Work requests with the adapter, as far as is known. Those of a unit count until it ends.
    pub(in crate::engine) outstanding: u32,
    /// The unit that has no signalled request yet.
    pub(in crate::engine) open: Unit,
    /// Pieces are packed, unit by unit, while there are free buffers.
    pub(in crate::engine) packs: bool,
    /// The list cannot be registered. A unit without a buffer waits for one.
    pub(in crate::engine) must_pack: bool,
    /// The level on which the transfer takes turns.
    pub(in crate::engine) level: Level,
    /// A work request failed. The connection is about to end, and the operation with it.
    pub(in crate::engine) broken: bool,
    /// The peer's name for its operation, to report the end to it. For a receive this is the
    /// sender's, and for a write rendezvous the receiver's.
    pub(in crate::engine) announced_as: Option<u64>,
    /// For a push: the immediate data of its last write.
    pub(in crate::engine) immediate: Option<u32>,
}

/// The records of transfers that have ended. They are used again, so a transfer allocates nothing,
/// and the record of an operation stays short.
#[derive(Debug, Default)]
pub(in crate::engine) struct Transfers {
    #[expect(clippy::vec_box, reason = "the boxes themselves are used again")]
    spent: Vec<Box<Transfer>>,
}

/// Most records that are kept. Further ones are freed.
const KEPT: usize = 256;

impl Transfers {
    #[inline]
    pub(in crate::engine) fn keep(&mut self, transfer: Transfer) -> Box<Transfer> {
        match self.spent.pop() {
            Some(mut record) => {
                *record = transfer;
                record
            }
            None => Box::new(transfer),
        }
    }

    /// Takes a record back, and drops what it held.
    #[inline]
    pub(super) fn retire(&mut self, mut record: Box<Transfer>) {
        if self.spent.len() < KEPT {
            (record.remote, record.regions) = (OneOrMany::None, OneOrMany::None);
            self.spent.push(record);
        }
    }
}

/// The requests of a transfer that end in one completion.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Unit {
    pub(in crate::engine) op: OpId,
    pub(in crate::engine) level: Level,
    pub(in crate::engine) bytes: u64,
    pub(in crate::engine) requests: u32,
    /// When its first request was posted, if anyone records.
    pub(in crate::engine) begun: Time,
    /// The packing buffer that contains its bytes, and their position in the local list.
    pub(in crate::engine) staged: Option<(u32, Cursor)>,
}

impl Unit {
    pub(in crate::engine) fn empty(op: OpId, level: Level) -> Unit {
        Unit { op, level, bytes: 0, requests: 0, begun: Time::ZERO, staged: None }
    }
}

/// The pieces of a list that are in one region. `end` is the index after the last of them.
#[derive(Debug)]
pub(in crate::engine) struct RegionRun {
    end: usize,
    region: MemoryRegion,
}

/// Registers the memories of a list. Adjacent pieces of one memory share a registration.
///
/// # Errors
/// Those of [`Transport::register`].
pub(in crate::engine) fn register_list(
    registry: &mut PinCache,
    transport: &mut dyn Transport,
    list: &MemList,
) -> Result<OneOrMany<RegionRun>, Error> {
    let mut start = 0;
    let pieces = list.pieces();
    let runs = pieces.chunk_by(|a, b| a.memory().id() == b.memory().id()).map(|run| {
        start += run.len();
        let region = registry.register(transport, run[0].memory())?;
        Ok(RegionRun { end: start, region })
    });
    OneOrMany::try_collect(runs)
}

/// A request that was cut but not posted yet.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Request {
    /// The remote side of the request.
    pub(in crate::engine) remote: RemoteSlice,
    /// The next position in the local list, and its region.
    local: Cursor,
    region: usize,
    /// Number of pieces that were copied for it.
    pub(in crate::engine) copied: u64,
}

impl Transfer {
    /// Cuts the next request, of at most `limit` bytes. Its local entries are appended to
    /// `segments`.
    pub(in crate::engine) fn cut(
        &mut self,
        list: &MemList,
        limit: u64,
        max_segments: usize,
        segments: &mut Vec<Segment>,
    ) -> Request {
        debug_assert!(segments.is_empty(), "scratch is left empty");
        let mut remote = self.next_remote(limit);
        let (mut at, mut region, mut len) = (self.local_cursor, self.region, 0);
        let regions = self.regions.as_slice();
        while len < remote.len && segments.len() < max_segments {
            let piece = &list.pieces()[at.piece];
            let take = (piece.len() as u64 - at.offset).min(remote.len - len);
            if take == 0 {
                at = Cursor { piece: at.piece + 1, offset: 0 };
                continue;
            }
            while regions[region].end <= at.piece {
                region += 1;
            }
            let start = piece.offset() + usize::try_from(at.offset).expect("within a memory");
            segments.push(regions[region].region.segment(start, usize::try_from(take).expect("within a memory")));
            at.offset += take;
            len += take;
        }
        remote.len = len;
        Request { remote, local: at, region, copied: 0 }
    }

    /// Cuts the next request of a unit with a packing buffer. Data to be written is copied into the
    /// buffer.
    pub(in crate::engine) fn cut_staged(
        &mut self,
        list: &MemList,
        limit: u64,
        writes: bool,
        packing: &Packing,
        segments: &mut Vec<Segment>,
    ) -> Request {
        let (buffer, _) = self.open.staged.expect("the caller has looked");
        let remote = self.next_remote(limit);
        let at = usize::try_from(self.open.bytes).expect("within a buffer");
        let len = usize::try_from(remote.len).expect("within a buffer");
        segments.push(packing.segment(buffer, at, len));
        let way = if writes { Copying::Pack } else { Copying::Skip };
        let (local, pieces) = packing::copy(list, self.local_cursor, &packing.slice(buffer, at, len), way);
        Request { remote, local, region: self.region, copied: if writes { pieces } else { 0 } }
    }

    /// Returns the next contiguous bytes at the peer, at most `limit`.
    fn next_remote(&mut self, limit: u64) -> RemoteSlice {
        let pieces = self.remote.as_slice();
        let cursor = &mut self.remote_cursor;
        while pieces[cursor.piece].len == cursor.offset {
            *cursor = Cursor { piece: cursor.piece + 1, offset: 0 };
        }
        let piece = &pieces[cursor.piece];
        let len = (piece.len - cursor.offset).min(limit).min(self.total - self.issued);
        part(piece, cursor.offset, len)
    }

    /// Advances past a request that was posted.
    pub(in crate::engine) fn posted(&mut self, request: &Request) {
        let len = request.remote.len;
        if !mutated_each(20, "bulk/local-cursor-stays") {
            (self.local_cursor, self.region) = (request.local, request.region);
        }
        self.remote_cursor.offset += len;
        self.issued += len;
        self.outstanding += 1;
        self.open.bytes += len;
        self.open.requests += 1;
    }
}

/// Returns the `len` bytes at `offset` of a piece.
fn part(piece: &RemoteSlice, offset: u64, len: u64) -> RemoteSlice {
    // The peer causes an address that wraps around. Its adapter will refuse the access.
    piece.slice(offset, len).unwrap_or(RemoteSlice { key: piece.key, addr: u64::MAX, len })
}

/// Returns the position of byte `at` in a list of remote pieces.
pub(in crate::engine) fn seek(pieces: &[RemoteSlice], at: u64) -> Cursor {
    let mut offset = at;
    for (piece, slice) in pieces.iter().enumerate() {
        if offset < slice.len {
            return Cursor { piece, offset };
        }
        offset -= if mutated("bulk/begins-at-the-wrong-piece") { offset } else { slice.len };
    }
    Cursor { piece: pieces.len(), offset: 0 }
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
