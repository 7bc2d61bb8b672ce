//! Capabilities of an adapter, as numbers and flags. The protocol and the conformance suite choose
//! their methods by them.

use std::time::Duration;

/// How one-sided operations are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneSided {
    /// By the adapter, without the peer's processor.
    Native,
    /// In software, by the peer's progress engine. They advance only while the peer polls.
    Emulated,
}

/// The cost of the registration that memory needs before an adapter may touch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// Registration is bookkeeping only. It needs no cost estimate.
    Free,
    /// Registration pins pages. It has a cost for each region and one for each page of 4 KiB
    /// ([PVFS-IB §5]).
    Pins {
        /// Cost for each region, registering and deregistering together.
        per_region: Duration,
        /// Cost for each page, registering and deregistering together.
        per_page: Duration,
    },
}

/// The capabilities of a transport, fixed for its lifetime. Every backend pins its own set in a
/// test, so that a changed flag makes a test fail instead of skipping tests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// How one-sided operations are carried out.
    pub one_sided: OneSided,
    /// RDMA read is supported. Without it, writes use grants (the hybrid mechanism of [PVFS-IB
    /// §3.2.3]).
    pub rdma_read: bool,
    /// An RDMA write may carry 32 bits of immediate data, which consume a receive at the peer.
    pub write_with_immediate: bool,
    /// The cost of registering memory.
    pub registration: Registration,
    /// Largest number of scatter/gather entries of one work request, on the local side.
    pub max_segments: usize,
    /// Longest `head` of a work request, in bytes (see [`crate::transport::Transport::post_send`]).
    pub max_head: usize,
    /// Largest payload that can be copied while posting, in bytes, head included. 0 if none can.
    pub max_inline: usize,
    /// Longest single work request, in bytes.
    pub max_work_len: u64,
    /// Number of work requests that fit a connection's send queue before it is full.
    pub send_queue_depth: usize,
    /// Number of receives that fit a connection's receive queue.
    pub recv_queue_depth: usize,
    /// Number of RDMA reads that may be outstanding on a connection. The backend queues the others.
    pub max_outstanding_reads: usize,
    /// Number of distinct service classes on the wire. 1 if the class of a work request is ignored.
    pub service_levels: u8,
    /// Exposing a part of a memory with shareable pages ([`crate::Memory::shareable`]) gives the
    /// peer the whole memory. A peer's memory can be mapped in this process too
    /// ([`crate::Transport::map_remote`], [`crate::Transport::view_remote`]).
    pub shares_pages: bool,
    /// The transport has a file descriptor to wait on. Without one, it wakes the waker that was
    /// passed to `arm`.
    pub event_fd: bool,
}

impl Capabilities {
    /// Returns the minimum that a backend must provide. A backend starts from it and raises the
    /// values that it exceeds.
    pub const fn minimal() -> Capabilities {
        Capabilities {
            one_sided: OneSided::Emulated,
            rdma_read: true,
            write_with_immediate: true,
            registration: Registration::Free,
            max_segments: 16,
            max_head: 128,
            max_inline: 0,
            max_work_len: 1 << 30,
            send_queue_depth: 128,
            recv_queue_depth: 128,
            max_outstanding_reads: 16,
            service_levels: 1,
            shares_pages: false,
            event_fd: false,
        }
    }
}
