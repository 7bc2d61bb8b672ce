//! What both processes agree on: which measurement comes next, and what it does.

use std::time::Duration;

use benches::units;
use serde::{Deserialize, Serialize};

/// How a side waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Looks again and again: a whole core, the lowest latency.
    Polling,
    /// Sleeps in the kernel until something arrives.
    Sleeping,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum What {
    /// A message there and back; half of that.
    Latency,
    /// A stream of messages to the peer, ended by its acknowledgement.
    Send,
    /// A stream of RDMA writes to the peer, ended by its acknowledgement. Plain: as `Send`.
    Write,
    /// A stream of RDMA reads from the peer. Plain: the peer streams to us.
    Read,
    /// As `Send`, with small messages: the messages count, not the bytes. Plain: a write for each
    /// full window.
    Rate,
    /// As `Rate`. Plain: a write for each message.
    RateEach,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Who {
    /// Plain sockets.
    Plain,
    /// This library.
    Ours,
}

/// One measurement, as both sides run it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Phase {
    /// Whose turn it is.
    pub(crate) who: Who,
    /// How both sides wait.
    pub(crate) mode: Mode,
    /// What is measured.
    pub(crate) what: What,
    /// Bytes of a message.
    pub(crate) size: usize,
    /// Messages under way at most; also how many buffers of `size` each side cycles through, plain
    /// or not.
    pub(crate) window: usize,
    /// Messages in all.
    pub(crate) count: u64,
}

impl Phase {
    /// After this time the phase, whatever it is, has failed.
    pub(crate) const LIMIT: Duration = Duration::from_secs(20);

    /// The row's name, the same in every run: "tcp latency 4 B, polling".
    pub(crate) fn name(&self) -> String {
        let (what, mode) = (format!("{:?}", self.what).to_lowercase(), format!("{:?}", self.mode).to_lowercase());
        format!("tcp {what} {}, {mode}", units::size(self.size))
    }

    /// What `LIMIT` ends, for people.
    pub(crate) fn describe(&self) -> String {
        format!("{:?} {:?} {:?} of {} x {} B", self.who, self.mode, self.what, self.count, self.size)
    }
}

/// What the peer tells when it is ready.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Port of its plain socket on the loopback.
    pub(crate) plain_port: u16,
    /// Address of its endpoint.
    pub(crate) ours: String,
}

/// What a side measured of one phase.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Latency: half of the median round trip. Otherwise the whole duration. Seconds; of no meaning
    /// on the peer's side.
    pub(crate) seconds: f64,
    /// Processor time of this process, user and system, in seconds.
    pub(crate) cpu: f64,
}
