//! What waits in the queues of a connection.

use bmi_core::transport::{WorkId, WorkKind, WriteTarget};
use bmi_core::{RemoteSlice, Segment};

use super::segments::Cursor;

/// A send or a write that waits or has gone in part.
pub(crate) struct Request {
    pub(super) work: WorkId,
    pub(crate) kind: WorkKind,
    pub(super) signalled: bool,
    /// Its length in bytes, head included.
    pub(crate) len: u64,
    /// The number of its bytes at the front of the staging buffer.
    pub(super) staged: usize,
    /// The number of its entries in the segment queue.
    pub(super) segments: u32,
    pub(super) cursor: Cursor,
    /// Bytes that have not gone.
    pub(crate) remaining: u64,
    /// The target, for a write.
    pub(crate) target: Option<WriteTarget>,
    /// Set if the rest goes through the ring and the record that says so has gone.
    pub(crate) in_ring: bool,
    /// The memory of an in-place message.
    pub(crate) pages: Option<Pages>,
}

/// A request that has gone but has not ended.
pub(super) struct Gone {
    pub(super) work: WorkId,
    pub(super) kind: WorkKind,
    pub(super) signalled: bool,
    pub(super) len: u64,
    pub(super) segments: u32,
    /// The number of in-place messages that the peer must have copied before this request ends. It
    /// is 0 for a request that is not in place and only waits for those before it.
    pub(super) until: u64,
}

/// Memory that the peer has mapped: its number there and its address here.
#[derive(Clone, Copy)]
pub(crate) struct Pages {
    pub(crate) number: u32,
    pub(crate) base: usize,
}

/// A read of the peer's memory.
pub(crate) struct Read {
    pub(super) work: WorkId,
    pub(super) signalled: bool,
    pub(crate) remote: RemoteSlice,
    pub(crate) id: u32,
    pub(super) segments: u32,
    pub(crate) cursor: Cursor,
    pub(crate) len: u64,
    /// Bytes that have not arrived.
    pub(crate) remaining: u64,
}

/// A reply to a read of the peer.
pub(crate) struct Reply {
    pub(crate) id: u32,
    pub(super) key: u64,
    pub(crate) segment: Segment,
    pub(crate) sent: usize,
}
