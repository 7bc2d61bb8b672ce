//! Settings, with defaults that suit a storage server.

use std::time::Duration;

use bmi_backend::{Limits, software};
use bmi_core::Capabilities;
use bmi_tls::Security;

pub(crate) use bmi_backend::software::{MAX_HEAD, MAX_INLINE, MAX_READS, WORK_LIMITS};

/// Time for a connection that this side cut to send the peer the reason.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// Settings of a [`TcpTransport`](crate::TcpTransport).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpConfig {
    /// Limits on the connections.
    pub limits: Limits,
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
    /// Number of TCP connections (streams) that carry the long transfers of one connection, 1 to
    /// 16. The peer's setting counts too: the smaller one is used. More than one is for a path that
    /// a single flow does not fill: long and fat, with losses, or with a limit for each flow.
    /// Elsewhere more streams only cost system calls. Each takes a descriptor at both ends.
    ///
    /// Long transfers are writes of 64 KiB or more and answers to reads. The connecting side dials
    /// the further streams to the address that it has reached. If one does not come about, the
    /// connection goes on with those that did. The loss of one ends the connection. Default: 1.
    pub streams: u8,
    /// TLS with certificates on both sides, for all connections that are made and accepted. Without
    /// it, all go in the clear. A peer without it, or the reverse, is refused: nothing falls back.
    /// Default: none.
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
    /// `SO_SNDBUF` in bytes. `None` leaves it to the system, whose automatic tuning can exceed the
    /// largest fixed size.
    pub send_buffer: Option<usize>,
    /// `SO_RCVBUF` in bytes; `None` as above.
    pub recv_buffer: Option<usize>,
    /// Bytes read ahead of the current frame, for each connection. At least 4 KiB.
    pub read_ahead: usize,
    /// Number of work requests that fit a connection's send queue.
    pub send_queue_depth: usize,
    /// Number of receives that fit a connection's receive queue.
    pub recv_queue_depth: usize,
}

impl Default for TcpConfig {
    fn default() -> TcpConfig {
        TcpConfig {
            limits: Limits::default(),
            peer_timeout: Duration::from_secs(10),
            streams: 1,
            security: None,
            tuning: Tuning {
                send_buffer: None,
                recv_buffer: None,
                read_ahead: 64 << 10,
                send_queue_depth: 1024,
                recv_queue_depth: 4096,
            },
        }
    }
}

impl TcpConfig {
    /// Most [`TcpConfig::streams`].
    pub const MAX_STREAMS: u8 = 16;

    /// Returns these settings with TLS ([`TcpConfig::security`]).
    ///
    /// ```no_run
    /// use bmi_tcp::{Security, TcpConfig};
    ///
    /// let security = Security::mutual("host.pem", "host.key", "authority.pem")?;
    /// let config = TcpConfig::default().secure(security);
    /// # Ok::<(), bmi_core::Error>(())
    /// ```
    #[must_use]
    pub fn secure(mut self, security: Security) -> TcpConfig {
        self.security = Some(security);
        self
    }

    /// Returns settings with which every frame arrives in pieces and queues are soon full.
    #[doc(hidden)]
    pub fn scarce() -> TcpConfig {
        let tuning = Tuning {
            send_buffer: Some(4 << 10),
            recv_buffer: Some(4 << 10),
            read_ahead: 4 << 10,
            send_queue_depth: 32,
            recv_queue_depth: 128,
        };
        TcpConfig { tuning, ..TcpConfig::default() }
    }

    /// Returns how often to look whether the hosts of peers are alive, if at all.
    pub(crate) fn watch_period(&self) -> Option<Duration> {
        let period = (self.peer_timeout / 4).max(Duration::from_millis(1));
        (!self.peer_timeout.is_zero()).then_some(period)
    }

    /// Returns the capabilities of a transport with this configuration.
    pub(crate) fn capabilities(&self) -> Capabilities {
        software::capabilities(self.tuning.send_queue_depth, self.tuning.recv_queue_depth)
    }
}
