//! The messages that both processes exchange: which measurement comes next, and what it does.

use std::time::Duration;

use bmi_report::{Histogram, Unit, units};
use serde::{Deserialize, Serialize};

/// How a side waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Polls without a pause. It takes a whole core, and has the lowest latency.
    Polling,
    /// Sleeps in the kernel until something arrives.
    Sleeping,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum What {
    /// Half of the time for a message in each direction.
    Latency,
    /// A stream of messages to the peer, which ends with its acknowledgement.
    Send,
    /// A stream of RDMA writes to the peer, which ends with its acknowledgement. Plain sockets do
    /// the same as for `Send`.
    Write,
    /// A stream of RDMA reads from the peer. With plain sockets, the peer sends a stream to this
    /// side.
    Read,
    /// As `Send`, with small messages: messages are counted, and not bytes. Plain sockets use one
    /// write for each full window.
    Rate,
    /// As `Rate`. Plain sockets use one write for each message.
    RateEach,
}

impl What {
    /// Returns the unit of the figure.
    pub(crate) fn unit(self) -> Unit {
        match self {
            What::Latency => Unit::Seconds,
            What::Send | What::Write | What::Read => Unit::BytesPerSecond,
            What::Rate | What::RateEach => Unit::PerSecond,
        }
    }
}

/// The side of the comparison that is measured.
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
    /// The side of the comparison that is measured.
    pub(crate) who: Who,
    /// How both sides wait.
    pub(crate) mode: Mode,
    /// What is measured.
    pub(crate) what: What,
    /// The bytes of a message.
    pub(crate) size: usize,
    /// The most messages in flight. It is also the number of buffers of `size` that each side uses
    /// in turn, for plain sockets, too.
    pub(crate) window: usize,
    /// The number of all messages.
    pub(crate) count: u64,
    /// True to count system calls. That slows the phase, so its times mean nothing.
    pub(crate) counting: bool,
}

impl Phase {
    /// Time limit of any phase.
    pub(crate) const LIMIT: Duration = Duration::from_secs(20);

    /// Returns the name of the row, which is the same in every run: "tcp latency 4 B, polling".
    pub(crate) fn name(&self) -> String {
        let (what, mode) = (format!("{:?}", self.what).to_lowercase(), format!("{:?}", self.mode).to_lowercase());
        format!("tcp {what} {}, {mode}", units::size(self.size))
    }

    /// Returns a description of the phase, for the message when `LIMIT` is reached.
    pub(crate) fn describe(&self) -> String {
        format!("{:?} {:?} {:?} of {} x {} B", self.who, self.mode, self.what, self.count, self.size)
    }
}

/// The first message of the peer, when it is ready.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// The port of its plain socket on the loopback.
    pub(crate) plain_port: u16,
    /// The address of its endpoint.
    pub(crate) ours: String,
}

/// The result of a side for one phase.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// For latency, half of the median round trip; otherwise the whole duration, in seconds. It has
    /// no meaning on the peer's side.
    pub(crate) seconds: f64,
    /// The processor time of this process, user and system, in seconds.
    pub(crate) cpu: f64,
    /// The context switches of this process, voluntary and involuntary.
    pub(crate) switches: u64,
    /// The system calls of this process, if they were counted.
    pub(crate) calls: Option<u64>,
    /// For latency, half of each round trip. It is empty on the peer's side.
    pub(crate) each: Histogram,
}
