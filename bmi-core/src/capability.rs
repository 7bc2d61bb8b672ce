//! What an adapter can do, as numbers and flags that the communication manager and the conformance
//! suite choose by.

use std::time::Duration;

/// How one-sided operations are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneSided {
    /// By the adapter, without the peer's processor.
    Native,
    /// By the peer's progress engine, in software: they advance only while the peer polls.
    Emulated,
}

/// Whether and at what price memory must be registered before an adapter may touch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// Book-keeping only; register without a second thought.
    Free,
    /// Pins pages: a price for each region and one for each page of 4 KiB ([PVFS-IB §5]).
    Pins {
        /// For each region, registering and deregistering together.
        per_region: Duration,
        /// For each page, registering and deregistering together.
        per_page: Duration,
    },
}

/// The capability set of a transport. Fixed for its lifetime; every backend pins its own in a test,
/// so that a flag that flips fails instead of skipping.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Who moves the bytes of a one-sided operation.
    pub one_sided: OneSided,
    /// RDMA read is there. Without it, writes go by grants (the hybrid mechanism of [PVFS-IB
    /// §3.2.3]).
    pub rdma_read: bool,
    /// RDMA write may carry 32 bits of immediate data that consume a receive at the peer.
    pub write_with_immediate: bool,
    /// What registering memory costs.
    pub registration: Registration,
    /// Scatter/gather entries that one work request may have on the local side.
    pub max_segments: usize,
    /// Longest `head` of a work request, in bytes (see [`crate::transport::Transport::post_send`]).
    pub max_head: usize,
    /// Largest payload, head included, that can be copied while posting, in bytes; 0 if none can.
    pub max_inline: usize,
    /// Longest single work request, in bytes.
    pub max_work_len: u64,
    /// Work requests that a connection's send queue holds before it says full.
    pub send_queue_depth: usize,
    /// Receives that a connection's receive queue holds.
    pub recv_queue_depth: usize,
    /// RDMA reads that may be outstanding on a connection; the backend queues what is above.
    pub max_outstanding_reads: usize,
    /// Distinct service classes that reach the wire; 1 if the class of a work request is ignored.
    pub service_levels: u8,
    /// Memory in shareable pages ([`crate::Memory::shareable`]) is handed to a peer as a whole when
    /// a part of it is exposed, and a peer's may stand in this process too
    /// ([`crate::Transport::map_remote`]).
    pub shares_pages: bool,
    /// The transport has a file descriptor to wait on; without, it wakes the waker that `arm` was
    /// given.
    pub event_fd: bool,
}

impl Capabilities {
    /// The least that a backend must provide; a backend starts from it and raises what it has.
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
