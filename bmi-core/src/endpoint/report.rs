//! What an endpoint tells its program: messages, peers, limits, counts.

use std::cell::OnceCell;
use std::fmt;
use std::sync::Arc;

use crate::addr::Addr;
use crate::error::Error;
use crate::mem::{MemSlice, Memory};
use crate::op::{PeerId, Tag};
use crate::returns::Returns;

/// A message that needed no receive. It lies where it arrived; dropping it gives the space, and
/// with it the credit, back to the peer.
pub struct Unexpected {
    pub(super) peer: PeerId,
    pub(super) tag: Tag,
    pub(super) bytes: Bytes,
    pub(super) cost: u32,
    pub(super) released: Arc<Returns<Release>>,
}

/// Where the bytes of a message stand.
pub(super) enum Bytes {
    /// In a receive slot: the slots' memory, where in it, how many, which slot.
    Slot { memory: Memory, offset: usize, len: usize, slot: u32 },
    /// In a fast-RDMA slot, which the peer can write to: so there is never a reference to it, only
    /// to a copy.
    Fast { slice: MemSlice, slot: u8, copy: OnceCell<Box<[u8]>> },
    /// Copied out of the way.
    Copied(Box<[u8]>),
}

/// A message was dropped: whose, in which slot, what it cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Release {
    pub(super) peer: PeerId,
    pub(super) slot: Option<ReleasedSlot>,
    pub(super) cost: u32,
}

/// The slot that a message was in.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReleasedSlot {
    /// A receive slot.
    Receive(u32),
    /// A fast-RDMA slot.
    Fast(u8),
}

impl Unexpected {
    /// Who sent it.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// The tag that it was sent with.
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Slot { len, .. } => *len,
            Bytes::Fast { slice, .. } => slice.len(),
            Bytes::Copied(bytes) => bytes.len(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The message where it stands, if that is a fast-RDMA slot.
    pub(crate) fn in_fast_slot(&self) -> Option<&MemSlice> {
        match &self.bytes {
            Bytes::Fast { slice, .. } => Some(slice),
            Bytes::Slot { .. } | Bytes::Copied(_) => None,
        }
    }

    /// Its bytes, in place; those of a message in a fast-RDMA slot are copied once.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            // SAFETY: a slot that holds a message is not posted (invariant of `proto::slots`), its
            // memory is exposed to nobody, and the slot stays ours until this value is dropped. The
            // handle keeps the memory.
            Bytes::Slot { memory, offset, len, .. } => unsafe {
                std::slice::from_raw_parts(memory.as_ptr().add(*offset), *len)
            },
            Bytes::Fast { slice, copy, .. } => copy.get_or_init(|| slice.to_vec().into_boxed_slice()),
            Bytes::Copied(bytes) => bytes,
        }
    }
}

impl Drop for Unexpected {
    fn drop(&mut self) {
        let slot = match self.bytes {
            Bytes::Slot { slot, .. } => Some(ReleasedSlot::Receive(slot)),
            Bytes::Fast { slot, .. } => Some(ReleasedSlot::Fast(slot)),
            Bytes::Copied(_) => None,
        };
        self.released.push(Release { peer: self.peer, slot, cost: self.cost });
    }
}

impl fmt::Debug for Unexpected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unexpected({:?}, tag {}, {} bytes)", self.peer, self.tag, self.bytes().len())
    }
}

/// A peer came or went.
#[derive(Clone, Debug)]
pub enum PeerEvent {
    /// A connection stands, the peer's version and features fit.
    Connected {
        /// The peer.
        peer: PeerId,
        /// Where it is: for a peer that connected to us, where it says or is seen to be.
        addr: Addr,
        /// Whether this side connected.
        outgoing: bool,
    },
    /// A connection is gone, every operation on it has ended, and the `PeerId` is no longer valid.
    Lost {
        /// The peer it was.
        peer: PeerId,
        /// Why.
        reason: Error,
    },
}

/// What was agreed with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLimits {
    /// Longest unexpected message that it takes in a receive slot, and longest expected one that is
    /// sent eagerly, in bytes.
    pub eager: usize,
    /// Longest message that it takes in a fast-RDMA slot, in bytes; 0 if it has none, or has not
    /// described them yet.
    pub fast: usize,
    /// Longest message or bulk transfer, in bytes.
    pub message: u64,
    /// Pieces of a list or descriptor.
    pub pieces: usize,
}

/// What an endpoint did so far. All counts, none ever goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Expected messages sent eagerly.
    pub eager: u64,
    /// Messages written into a fast-RDMA slot of the peer.
    pub fast: u64,
    /// Of those, the ones of which all but small pieces went straight from the program's memory.
    pub fast_gathered: u64,
    /// Messages that were short enough for a fast-RDMA slot but found none free, and were
    /// announced.
    pub slot_misses: u64,
    /// Expected messages written straight into a receive that the peer had offered.
    pub offered: u64,
    /// Expected messages sent by rendezvous.
    pub rendezvous: u64,
    /// Rendezvous lists that had to be copied into one piece, because the peer's receive has no
    /// room to describe them.
    pub packed: u64,
    /// Unexpected messages sent.
    pub unexpected: u64,
    /// Bulk transfers pulled.
    pub pulls: u64,
    /// Bulk transfers pushed.
    pub pushes: u64,
    /// Of both, those that were over when they were posted: without a work request.
    pub immediate: u64,
    /// Work requests of rendezvous receives, pulls and pushes.
    pub transfer_requests: u64,
    /// Units that they made up: each ends in one completion.
    pub transfer_units: u64,
    /// Units whose local pieces were packed in a staging buffer.
    pub units_packed: u64,
    /// Bytes sent in messages, eager and rendezvous.
    pub bytes_sent: u64,
    /// Bytes received in messages.
    pub bytes_received: u64,
    /// Bytes pulled.
    pub bytes_pulled: u64,
    /// Bytes pushed.
    pub bytes_pushed: u64,
    /// Messages that had to wait for a credit when they were posted.
    pub credit_waits: u64,
    /// Credit messages sent on their own.
    pub credit_messages: u64,
    /// Messages that arrived before their receive.
    pub unmatched: u64,
    /// Peers cut off for breaking the protocol.
    pub violations: u64,
    /// Times that memory was registered already when an operation needed it.
    pub pin_hits: u64,
    /// Times that it was not, and had to be registered.
    pub pin_misses: u64,
    /// Registrations given up to make room for others.
    pub pin_evictions: u64,
    /// Times that the adapter refused a registration, further tries included.
    pub pin_failures: u64,
    /// Batches of registrations that were let go.
    pub pin_batches: u64,
    /// Transfers and messages that were copied through memory of the endpoint's, because theirs
    /// could not be registered.
    pub bounced: u64,
}

/// What the pin-down cache holds right now. Registrations that nobody uses are no leak: they are
/// kept for the next use, within [`Config::pin_cache_entries`](crate::Config::pin_cache_entries)
/// and [`Config::pin_cache_bytes`](crate::Config::pin_cache_bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// Registrations, in use, idle, and waiting to be let go.
    pub entries: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Those that an operation, an exposure or the program holds: zero when idle, unless the
    /// program holds regions of its own.
    pub in_use: usize,
}

/// What an endpoint holds right now; all zero but `peers` when idle, so a leak shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceUsage {
    /// Connections, in any state.
    pub peers: usize,
    /// Operations not yet ended, or ended and not yet collected.
    pub operations: usize,
    /// Receive slots that hold a message.
    pub slots: usize,
    /// Fast-RDMA slots that hold a message.
    pub fast_slots: usize,
    /// Messages parked because nobody has received them.
    pub parked: usize,
    /// Exposures not yet revoked, one for each key: pieces may share one
    /// ([`Config::expose_groups`](crate::Config::expose_groups)).
    pub exposures: usize,
    /// Work requests handed to the adapter and not completed, posted receives aside.
    pub work: usize,
    /// FallbackBuffers of the endpoint that stand in for memory that cannot be registered.
    pub fallback_buffers: usize,
}
