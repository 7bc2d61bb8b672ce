//! The values that an endpoint reports to its program: messages, peers, limits and counters.

use std::fmt;
use std::sync::Arc;
use std::sync::OnceLock;

use bytes::Bytes;

use crate::addr::Addr;
use crate::error::Error;
use crate::identity::PeerIdentity;
use crate::mem::{MemSlice, Memory};
use crate::op::{PeerId, Tag};
use crate::sync::Returns;

/// A message that needed no receive. It stays in the slot where it arrived, or in a copy. Dropping
/// it returns the space to the peer, and with it the credit.
pub struct Unexpected {
    pub(in crate::engine) peer: PeerId,
    pub(in crate::engine) tag: Tag,
    pub(in crate::engine) bytes: Place,
    pub(in crate::engine) cost: u32,
    pub(in crate::engine) released: Arc<Returns<Release>>,
}

/// The location of a message's bytes.
pub(in crate::engine) enum Place {
    /// In a receive slot: the memory of the slots, offset and length in it, and the number of the
    /// slot.
    Slot { memory: Memory, offset: usize, len: usize, slot: u32 },
    /// In a fast-RDMA slot. The peer can write to the slot, so there is never a reference to it,
    /// only to a copy.
    Fast { slice: MemSlice, slot: u8, copy: OnceLock<Box<[u8]>> },
    /// Copied out of the slot.
    Copied(Box<[u8]>),
}

/// A message that the program dropped: its peer, its slot and its cost.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Release {
    pub(in crate::engine) peer: PeerId,
    pub(in crate::engine) slot: Option<ReleasedSlot>,
    pub(in crate::engine) cost: u32,
}

/// The slot that a message was in.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) enum ReleasedSlot {
    /// A receive slot.
    Receive(u32),
    /// A fast-RDMA slot.
    Fast(u8),
}

impl Unexpected {
    /// Returns the peer that sent the message.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// Returns the tag that the message was sent with.
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// Returns the length of the message in bytes.
    pub fn len(&self) -> usize {
        match &self.bytes {
            Place::Slot { len, .. } => *len,
            Place::Fast { slice, .. } => slice.len(),
            Place::Copied(bytes) => bytes.len(),
        }
    }

    /// Returns true if the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the message in place, if it is in a fast-RDMA slot.
    pub(crate) fn in_fast_slot(&self) -> Option<&MemSlice> {
        match &self.bytes {
            Place::Fast { slice, .. } => Some(slice),
            Place::Slot { .. } | Place::Copied(_) => None,
        }
    }

    /// Returns the bytes of the message, in place. Those of a message in a fast-RDMA slot are
    /// copied once.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            // SAFETY: a slot that holds a message is not posted (invariant of
            // `buffers::receive_slots`). Its memory is not exposed to any peer, and the slot stays
            // ours until this value is dropped. The handle keeps the memory alive.
            Place::Slot { memory, offset, len, .. } => unsafe {
                std::slice::from_raw_parts(memory.as_ptr().add(*offset), *len)
            },
            Place::Fast { slice, copy, .. } => copy.get_or_init(|| slice.to_vec().into_boxed_slice()),
            Place::Copied(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Unexpected {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl From<Unexpected> for Bytes {
    /// The message as `Bytes`, where it arrived, without a copy. Its space, and with it the
    /// sender's credit, is returned when the last handle is dropped; copy what is kept for long.
    fn from(message: Unexpected) -> Bytes {
        Bytes::from_owner(message)
    }
}

impl Drop for Unexpected {
    fn drop(&mut self) {
        let slot = match self.bytes {
            Place::Slot { slot, .. } => Some(ReleasedSlot::Receive(slot)),
            Place::Fast { slot, .. } => Some(ReleasedSlot::Fast(slot)),
            Place::Copied(_) => None,
        };
        self.released.push(Release { peer: self.peer, slot, cost: self.cost });
    }
}

impl fmt::Debug for Unexpected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unexpected({:?}, tag {}, {} bytes)", self.peer, self.tag, self.bytes().len())
    }
}

/// An event about a peer, which is a number in the polled interface, and a [`Peer`](crate::Peer) in
/// that with futures.
#[derive(Clone, Debug)]
pub enum PeerEvent<P = PeerId> {
    /// A connection is up. The peer's version and features are compatible.
    Connected {
        /// The peer.
        peer: P,
        /// The address of the peer. For a peer that connected to this side, the address that it
        /// gives or that is seen.
        addr: Addr,
        /// Who it is, as far as the transport has proved it.
        identity: PeerIdentity,
        /// Whether this side connected.
        outgoing: bool,
    },
    /// A connection is gone, every operation on it has ended, and the `PeerId` is no longer valid.
    Lost {
        /// The peer that was lost.
        peer: P,
        /// The reason.
        reason: Error,
    },
}

impl PeerEvent {
    /// Returns the event with `of` its peer in place of the peer's id.
    pub(crate) fn map<P>(self, of: impl FnOnce(PeerId) -> P) -> PeerEvent<P> {
        match self {
            PeerEvent::Connected { peer, addr, identity, outgoing } => {
                PeerEvent::Connected { peer: of(peer), addr, identity, outgoing }
            }
            PeerEvent::Lost { peer, reason } => PeerEvent::Lost { peer: of(peer), reason },
        }
    }
}

/// The limits that were agreed with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLimits {
    /// Longest unexpected message that the peer receives in a receive slot, and longest expected
    /// message that is sent eagerly, in bytes.
    pub eager: usize,
    /// Longest message that the peer receives in a fast-RDMA slot, in bytes. 0 if it has no slots,
    /// or has not described them yet.
    pub fast: usize,
    /// Longest message or bulk transfer, in bytes.
    pub message: u64,
    /// Most pieces of a list or descriptor.
    pub pieces: usize,
}

/// Counters of everything that an endpoint has done. No counter ever decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Expected messages sent eagerly.
    pub eager: u64,
    /// Messages written into a fast-RDMA slot of the peer.
    pub fast: u64,
    /// Of the messages in `fast`, those sent straight from the program's memory except for small
    /// pieces.
    pub fast_gathered: u64,
    /// Expected messages written straight into an offered receive.
    pub offered: u64,
    /// Expected messages sent by rendezvous.
    pub rendezvous: u64,
    /// Rendezvous lists that were copied into one piece, because the peer's receive slots have no
    /// room to describe them.
    pub packed: u64,
    /// Unexpected messages sent.
    pub unexpected: u64,
    /// Bulk transfers pulled.
    pub pulls: u64,
    /// Bulk transfers pushed.
    pub pushes: u64,
    /// Pulls and pushes that completed when they were posted, without a work request.
    pub immediate: u64,
    /// Work requests of rendezvous receives, pulls and pushes.
    pub transfer_requests: u64,
    /// Units that these requests formed. Each ends in one completion.
    pub transfer_units: u64,
    /// Units whose local pieces were packed into a packing buffer.
    pub units_packed: u64,
    /// Bytes sent in messages, eager and rendezvous.
    pub bytes_sent: u64,
    /// Bytes received in messages.
    pub bytes_received: u64,
    /// Bytes pulled.
    pub bytes_pulled: u64,
    /// Bytes pushed.
    pub bytes_pushed: u64,
    /// Sends that could not leave when they were posted, mostly for lack of a credit.
    pub credit_waits: u64,
    /// Credit messages sent.
    pub credit_messages: u64,
    /// Messages that arrived before their receive.
    pub unmatched: u64,
    /// Messages that were dropped: those of calls that were over, and those that met a discard
    /// ([`Engine::post_discard`](crate::Engine::post_discard)).
    pub discarded: u64,
    /// Peers cut off for breaking the protocol.
    pub violations: u64,
    /// Times that memory was already registered when an operation needed it.
    pub pin_hits: u64,
    /// Times that memory was not registered when an operation needed it.
    pub pin_misses: u64,
    /// Registrations dropped to make room for others.
    pub pin_evictions: u64,
    /// Times that the adapter refused a registration, including retries.
    pub pin_failures: u64,
    /// Batches of registrations that were dropped.
    pub pin_batches: u64,
    /// Transfers and messages that were copied through memory of the endpoint, because their own
    /// could not be registered.
    pub bounced: u64,
}

/// The contents of the pin-down cache at this moment. Registrations that are not in use are not a
/// leak. They are kept for the next use, within
/// [`Config::pin_cache_entries`](crate::Config::pin_cache_entries) and
/// [`Config::pin_cache_bytes`](crate::Config::pin_cache_bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// Registrations that are in use, idle, or waiting to be dropped.
    pub entries: usize,
    /// The bytes of these registrations.
    pub bytes: u64,
    /// Registrations that an operation, an exposure or the program holds. Zero when idle, unless
    /// the program holds regions of its own.
    pub in_use: usize,
}

/// The resources that an endpoint holds at this moment. All except `peers` are zero when idle, so a
/// leak shows. Only memory that a peer keeps (`retired`) may outlast all work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceUsage {
    /// Connections, in any state.
    pub peers: usize,
    /// Operations that have not ended, or were not collected yet.
    pub operations: usize,
    /// Receive slots that hold a message.
    pub slots: usize,
    /// Fast-RDMA slots that hold a message.
    pub fast_slots: usize,
    /// Messages parked because there is no receive for them yet.
    pub parked: usize,
    /// The bytes that these messages keep. They count against what their peers may send.
    pub parked_bytes: u64,
    /// Exposures that were not revoked yet. Each key counts once, and several pieces may share a
    /// key ([`Config::expose_groups`](crate::Config::expose_groups)).
    pub exposures: usize,
    /// Work requests that the adapter has and has not completed, not counting posted receives.
    pub work: usize,
    /// Fallback buffers in use.
    pub fallback_buffers: usize,
    /// Exposures that have ended, but whose memory is held because the peer may still access it. A
    /// peer that has stopped may keep it so for any time
    /// ([`Transport::retired_memory`](crate::Transport::retired_memory)).
    pub retired: usize,
    /// Bytes of the memories that these exposures hold.
    pub retired_bytes: u64,
}
