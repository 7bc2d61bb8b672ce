//! What can be set, with defaults that suit a storage server.

use std::time::Duration;

use bmi_backend::{Limit, software};
use bmi_core::Capabilities;

pub(crate) use bmi_backend::software::{MAX_HEAD, MAX_INLINE, MAX_READS, MAX_SEGMENTS, MAX_WORK_LEN};

/// Settings of a [`TcpTransport`](crate::TcpTransport).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpConfig {
    /// A socket that has not sent its whole, right preamble this long after it was accepted is
    /// dropped. 5 s.
    pub handshake_timeout: Duration,
    /// How long a connection that this side cut may take to tell the peer why. 1 s.
    pub linger: Duration,
    /// A peer from which nothing is heard for about this long is taken for dead, whether bytes wait
    /// for it (`TCP_USER_TIMEOUT`) or not (keep-alive probes). Zero leaves the system's defaults,
    /// which are hours. 10 s.
    pub peer_timeout: Duration,
    /// Accepted sockets without a preamble, at most; above, new ones are closed at once. 256.
    pub max_half_open: usize,
    /// Connections of all kinds, at most. 4096.
    pub max_connections: usize,
    /// Registered regions, at most. 1 Mi.
    pub max_regions: usize,
    /// Exposures of one connection, at most; never more than 1 Mi, because a key names one of so
    /// many slots. 1 Mi.
    pub max_exposures: usize,
    /// `SO_SNDBUF` in bytes; `None` leaves it to the system, whose automatic tuning goes further
    /// than a fixed size may. `None`.
    pub send_buffer: Option<usize>,
    /// `SO_RCVBUF` in bytes; `None` as above. `None`.
    pub recv_buffer: Option<usize>,
    /// Bytes that are read ahead of the frame at hand, for each connection. 64 KiB, at least 4 KiB.
    pub read_ahead: usize,
    /// Work requests that a connection's send queue holds. 1024.
    pub send_queue_depth: usize,
    /// Receives that a connection's receive queue holds. 4096.
    pub recv_queue_depth: usize,
}

impl Default for TcpConfig {
    fn default() -> TcpConfig {
        TcpConfig {
            handshake_timeout: Duration::from_secs(5),
            linger: Duration::from_secs(1),
            peer_timeout: Duration::from_secs(10),
            max_half_open: 256,
            max_connections: 4096,
            max_regions: 1 << 20,
            max_exposures: 1 << 20,
            send_buffer: None,
            recv_buffer: None,
            read_ahead: 64 << 10,
            send_queue_depth: 1024,
            recv_queue_depth: 4096,
        }
    }
}

impl TcpConfig {
    /// What a transport with this configuration can do.
    pub(crate) fn capabilities(&self) -> Capabilities {
        software::capabilities(self.send_queue_depth, self.recv_queue_depth)
    }

    pub(crate) fn connections(&self) -> Limit {
        Limit { max: self.max_connections, what: "connections", setting: "TcpConfig::max_connections" }
    }

    pub(crate) fn regions(&self) -> Limit {
        Limit { max: self.max_regions, what: "regions", setting: "TcpConfig::max_regions" }
    }

    pub(crate) fn exposures(&self) -> Limit {
        Limit { max: self.max_exposures, what: "exposures on the connection", setting: "TcpConfig::max_exposures" }
    }
}
