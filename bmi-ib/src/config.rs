//! The settings of this backend, with defaults that suit a storage server.

use std::time::Duration;

use bmi_backend::{Limit, Limits};
use bmi_core::Device;
use bmi_tls::Security;

/// Settings of an [`IbTransport`](crate::IbTransport).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IbConfig {
    /// The adapter and its port. Without an adapter, the first device is used; without a port, its
    /// first active one.
    pub device: Option<Device>,
    /// Limits on the connections: 4096 of them, and the defaults otherwise. An accepted peer that
    /// does not confirm is dropped after `handshake_timeout` as well.
    pub limits: Limits,
    /// How long a port may be down before its connections are ended. 1 s.
    pub port_down_grace: Duration,
    /// The peer's adapter must answer within 4.096 µs times two to the power of this. 14, which is
    /// 67 ms.
    pub ack_timeout: u8,
    /// How often a request is retried, 0 to 6. 6.
    pub retries: u8,
    /// How often a request that found no receive is retried, 0 to 6. 3.
    pub not_ready_retries: u8,
    /// Service level of the connections on InfiniBand, 0 to 15. 0.
    pub service_level: u8,
    /// Traffic class of the connections' packets on RoCE. 0.
    pub traffic_class: u8,
    /// TLS with certificates on both sides, for the side channel of each connection: who is let in
    /// is known, and nobody else learns the numbers and keys that reach a queue pair. **What queue
    /// pairs carry stays in the clear**: only setting up is protected. A peer without it, or the
    /// reverse, is refused. Default: none.
    pub security: Option<Security>,
    /// What no program has had a reason to change. Tests make it scarce.
    #[doc(hidden)]
    pub tuning: Tuning,
}

/// What no program has had a reason to change.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// Most work requests in a connection's send queue.
    pub send_queue_depth: usize,
    /// Most receives in a connection's receive queue.
    pub recv_queue_depth: usize,
    /// Registered bytes of a connection for heads and inline payload, at least 32 KiB.
    pub staging: usize,
    /// Most payload bytes that the adapter is asked to take inside a request. It may offer fewer.
    pub adapter_inline: u32,
    /// Most outstanding reads of a connection, if the adapter supports as many. More reads are
    /// queued in this backend.
    pub max_outstanding_reads: u8,
}

impl Default for IbConfig {
    fn default() -> IbConfig {
        IbConfig {
            device: None,
            limits: Limits { max_connections: 4096, ..Limits::default() },
            port_down_grace: Duration::from_secs(1),
            ack_timeout: 14,
            retries: 6,
            not_ready_retries: 3,
            service_level: 0,
            traffic_class: 0,
            security: None,
            tuning: Tuning {
                send_queue_depth: 128,
                recv_queue_depth: 256,
                staging: 256 << 10,
                adapter_inline: 256,
                max_outstanding_reads: 16,
            },
        }
    }
}

impl IbConfig {
    /// Returns settings with short queues, one read at a time, nothing inline, and a small ring.
    #[doc(hidden)]
    pub fn scarce() -> IbConfig {
        let tuning = Tuning {
            send_queue_depth: 16,
            recv_queue_depth: 128,
            staging: 32 << 10,
            adapter_inline: 0,
            max_outstanding_reads: 1,
        };
        IbConfig { tuning, ..IbConfig::default() }
    }

    /// Returns the limits, as far as the names of connections allow.
    pub(crate) fn bounds(&self) -> Limits {
        Limits { max_connections: self.limits.max_connections.min(MAX_SLOTS), ..self.limits }
    }
}

/// How long a failed queue pair may take to flush, and its peer to report why, before it is
/// destroyed.
pub(crate) const DRAIN: Duration = Duration::from_millis(200);
/// Most threads that connect queue pairs. On RoCE the kernel looks up the peer's hardware address
/// for it, which takes about a second if no host has the address that the peer named. A few such
/// peers do not delay the others.
pub(crate) const HELPERS: usize = 8;
/// Most registered regions.
pub(crate) const REGIONS: Limit = Limit { max: 1 << 20, what: "regions", setting: None };
/// Most exposures of one connection.
pub(crate) const EXPOSURES: Limit = Limit { max: 64 << 10, what: "exposures on the connection", setting: None };
/// Most connections that the id of a work request can distinguish (`queue_pair::tag`).
pub(crate) const MAX_SLOTS: usize = 1 << 20;
/// Longest head of a work request, in bytes.
pub(crate) const MAX_HEAD: usize = 256;
/// Largest inline send, head included, in bytes. It fits an eager message of the protocol's default
/// size.
pub(crate) const MAX_INLINE: usize = (8 << 10) + MAX_HEAD;
/// Segments of a work request. One more entry is for the staged bytes.
pub(crate) const MAX_SEGMENTS: usize = 16;
/// Longest work request, in bytes, if the port supports it.
pub(crate) const MAX_WORK_LEN: u64 = 1 << 30;
/// Entries of a new completion queue, if the adapter supports as many. When all are assigned,
/// another queue is created.
pub(crate) const COMPLETIONS: usize = 8192;
