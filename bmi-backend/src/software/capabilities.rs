//! What an adapter in software can do, and its limits.

use bmi_core::{Capabilities, OneSided, Registration};

use crate::{Limit, WorkLimits};

/// Longest head of a work request, in bytes. It has room for the protocol's header and its largest
/// control message.
pub const MAX_HEAD: usize = 256;
/// Largest inline send, head included, in bytes. This is an eager message of the protocol by
/// default.
pub const MAX_INLINE: usize = (8 << 10) + MAX_HEAD;
/// Largest number of segments of a work request. This is the limit of one system call (`IOV_MAX`).
pub const MAX_SEGMENTS: usize = 1024;
/// Largest number of reads that a peer may have outstanding on a connection. Both sides count them,
/// so more reads are a violation and need not be queued.
pub const MAX_READS: usize = 64;
/// Longest work request, in bytes. It can be this large because nothing is allocated for it.
pub const MAX_WORK_LEN: u64 = 1 << 40;
/// Most registered regions.
pub const REGIONS: Limit = Limit { max: 1 << 20, what: "regions", setting: None };
/// Most exposures of one connection. A key has as many slots.
pub const EXPOSURES: Limit = Limit { max: 1 << 20, what: "exposures on the connection", setting: None };

/// The limits of a work request of a software adapter.
pub const WORK_LIMITS: WorkLimits =
    WorkLimits { max_segments: MAX_SEGMENTS, max_head: MAX_HEAD, max_inline: MAX_INLINE, max_work_len: MAX_WORK_LEN };

/// Returns the capabilities of a software adapter with queues of these depths. It supports
/// everything, using the processor.
pub fn capabilities(send_queue_depth: usize, recv_queue_depth: usize) -> Capabilities {
    let mut capabilities = Capabilities::minimal();
    capabilities.one_sided = OneSided::Emulated;
    capabilities.rdma_read = true;
    capabilities.write_with_immediate = true;
    capabilities.registration = Registration::Free;
    capabilities.max_segments = MAX_SEGMENTS;
    capabilities.max_head = MAX_HEAD;
    capabilities.max_inline = MAX_INLINE;
    capabilities.max_work_len = MAX_WORK_LEN;
    capabilities.send_queue_depth = send_queue_depth;
    capabilities.recv_queue_depth = recv_queue_depth;
    capabilities.max_outstanding_reads = MAX_READS;
    capabilities.service_levels = 1;
    capabilities.event_fd = true;
    capabilities
}
