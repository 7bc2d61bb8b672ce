//! Settings, with defaults that suit a storage server.

use std::time::Duration;

use bmi_backend::{Limit, ShardLimits, software};
use bmi_core::Capabilities;

pub(crate) use bmi_backend::software::{MAX_HEAD, MAX_INLINE, MAX_READS, WORK_LIMITS};

/// Time for a connection that this side cut to send the peer the reason.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// Settings of a [`TcpTransport`](crate::TcpTransport).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpConfig {
    /// An accepted socket that has not sent a complete valid preamble after this time is dropped.
    /// The time counts from its arrival, however many bytes have come since. Default: 5 s.
    pub handshake_timeout: Duration,
    /// A host that answers nothing for about this long is considered dead. Hosts answer also if
    /// their programs are idle or do not read, so such connections stay.
    ///
    /// While bytes wait for the host, the transport asks the system every quarter of it whether
    /// retransmissions or probes are without an answer. It gives up when none has come for this
    /// long after the first such check, so after up to one and a half times as long. Linux before
    /// 6.15 probes a host whose buffers have been full for a while only every two minutes, and it
    /// takes two probes. A transport that is not polled twice in this time leaves the matter to the
    /// system. That gives up after a number of attempts: after about 15 minutes, whatever is set
    /// here.
    ///
    /// After a quarter of it without traffic, the system sends a keep-alive probe every quarter
    /// (whole seconds, at least one), and gives up after three. Zero keeps the system's defaults,
    /// which are hours. Default: 10 s, so a probe every 2 s.
    pub peer_timeout: Duration,
    /// Largest number of accepted sockets without a preamble, at least 1. A newcomer always gets a
    /// place: if all are taken, the address that has most of them loses its oldest one
    /// ([`bmi_backend::HalfOpen`]). Of several transports behind one address
    /// ([`TcpTransport::shards`](crate::TcpTransport::shards)) each has as many, at least 2. A
    /// quarter of them, at most 64, is for sockets that another one has accepted for it. Default:
    /// 256.
    pub max_half_open: usize,
    /// Largest number of connections of all kinds, half-open and ending ones too. An endpoint can
    /// close idle ones for a newcomer only if it is not the transport that has no room. Of several
    /// transports behind one address, each has as many. Default: 20,480, which is more than
    /// `Config::max_peers`.
    pub max_connections: usize,
    /// `SO_SNDBUF` in bytes. `None` leaves it to the system, whose automatic tuning can exceed the
    /// largest fixed size. Default: `None`.
    pub send_buffer: Option<usize>,
    /// `SO_RCVBUF` in bytes; `None` as above. Default: `None`.
    pub recv_buffer: Option<usize>,
    /// Bytes read ahead of the current frame, for each connection. At least 4 KiB. Default: 64 KiB.
    pub read_ahead: usize,
    /// Number of work requests that fit a connection's send queue. Default: 1024.
    pub send_queue_depth: usize,
    /// Number of receives that fit a connection's receive queue. Default: 4096.
    pub recv_queue_depth: usize,
}

impl Default for TcpConfig {
    fn default() -> TcpConfig {
        TcpConfig {
            handshake_timeout: Duration::from_secs(5),
            peer_timeout: Duration::from_secs(10),
            max_half_open: 256,
            max_connections: 20_480,
            send_buffer: None,
            recv_buffer: None,
            read_ahead: 64 << 10,
            send_queue_depth: 1024,
            recv_queue_depth: 4096,
        }
    }
}

impl TcpConfig {
    /// Returns how often to look whether the hosts of peers are alive, if at all.
    pub(crate) fn watch_period(&self) -> Option<Duration> {
        let period = (self.peer_timeout / 4).max(Duration::from_millis(1));
        (!self.peer_timeout.is_zero()).then_some(period)
    }

    /// Returns the capabilities of a transport with this configuration.
    pub(crate) fn capabilities(&self) -> Capabilities {
        software::capabilities(self.send_queue_depth, self.recv_queue_depth)
    }

    pub(crate) fn connections(&self) -> Limit {
        Limit { max: self.max_connections, what: "connections", setting: Some("TcpConfig::max_connections") }
    }

    pub(crate) fn shard_limits(&self) -> ShardLimits {
        ShardLimits { max_connections: self.max_connections, max_half_open: self.max_half_open }
    }
}
