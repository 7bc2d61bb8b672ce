//! The settings of this backend, with defaults that suit a storage server.

use std::time::Duration;

use bmi_backend::{Limit, ShardLimits};
use bmi_core::Device;

/// Settings of an [`IbTransport`](crate::IbTransport).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IbConfig {
    /// The adapter and its port. Without an adapter, the first device is used; without a port, its
    /// first active one.
    pub device: Option<Device>,
    /// Time after which an accepted side channel is dropped if it has not sent its complete, valid
    /// greeting. The time counts from its arrival, however many bytes have come since. An accepted
    /// peer that does not confirm is dropped after the same time. 5 s.
    pub handshake_timeout: Duration,
    /// How long a port may be down before its connections are ended. 1 s.
    pub port_down_grace: Duration,
    /// Most accepted side channels without a greeting, at least 1. A newcomer always gets a place:
    /// if all are taken, the address that has most of them loses its oldest one
    /// ([`bmi_backend::HalfOpen`]). Of several transports behind one address
    /// ([`IbTransport::shards`](crate::IbTransport::shards)) each has as many, at least 2. A
    /// quarter of them, at most 64, is for sockets that another one has accepted for it. 256.
    pub max_half_open: usize,
    /// Most connections of all kinds. Of several transports behind one address, each has as many.
    /// 4096.
    pub max_connections: usize,
    /// Most work requests in a connection's send queue. 128.
    pub send_queue_depth: usize,
    /// Most receives in a connection's receive queue. 256.
    pub recv_queue_depth: usize,
    /// Registered bytes of a connection for heads and inline payload, at least 32 KiB. 256 KiB.
    pub staging: usize,
    /// Most payload bytes that the adapter is asked to take inside a request. It may offer fewer.
    /// 256.
    pub adapter_inline: u32,
    /// Most outstanding reads of a connection, if the adapter supports as many. More reads are
    /// queued in this backend. 16.
    pub max_outstanding_reads: u8,
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
}

impl Default for IbConfig {
    fn default() -> IbConfig {
        IbConfig {
            device: None,
            handshake_timeout: Duration::from_secs(5),
            port_down_grace: Duration::from_secs(1),
            max_half_open: 256,
            max_connections: 4096,
            send_queue_depth: 128,
            recv_queue_depth: 256,
            staging: 256 << 10,
            adapter_inline: 256,
            max_outstanding_reads: 16,
            ack_timeout: 14,
            retries: 6,
            not_ready_retries: 3,
            service_level: 0,
            traffic_class: 0,
        }
    }
}

impl IbConfig {
    pub(crate) fn connections(&self) -> Limit {
        Limit {
            max: self.max_connections.min(MAX_SLOTS),
            what: "connections",
            setting: Some("IbConfig::max_connections"),
        }
    }

    pub(crate) fn shard_limits(&self) -> ShardLimits {
        ShardLimits { max_connections: self.connections().max, max_half_open: self.max_half_open }
    }
}

/// How long a failed queue pair may take to flush, and its peer to report why, before it is
/// destroyed.
pub(crate) const DRAIN: Duration = Duration::from_millis(200);
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
