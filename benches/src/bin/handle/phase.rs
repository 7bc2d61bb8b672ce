//! What is measured.

use std::fmt;
use std::time::Duration;

use bmi_core::driver::Waiting;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// One measurement, as the peer is told.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Phase {
    pub(crate) what: What,
    pub(crate) mode: Mode,
    /// Number of exchanges, a multiple of 64.
    pub(crate) count: u64,
}

/// What an exchange is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum What {
    /// A message of so many bytes, and one back.
    Latency(usize),
    /// A call without data. So many are under way at a time.
    Calls(u64),
    /// A message of 64 bytes, in a stream that so many tasks send.
    Rate(u64),
}

/// How both sides wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    Polling,
    Sleeping,
}

/// The transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    Tcp,
    Shm,
}

/// The measurements.
pub(crate) const ROWS: [What; 6] =
    [What::Latency(8), What::Latency(4096), What::Latency(65_536), What::Calls(1), What::Calls(64), What::Rate(4)];

impl Phase {
    /// How long a phase may take at most.
    pub(crate) const LIMIT: Duration = Duration::from_secs(60);
}

impl Mode {
    pub(crate) fn waiting(self) -> Waiting {
        match self {
            Mode::Polling => Waiting::Busy,
            Mode::Sleeping => Waiting::Event,
        }
    }
}

impl Via {
    pub(crate) const ALL: [Via; 2] = [Via::Tcp, Via::Shm];
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Latency(size) => write!(f, "latency {}", bmi_report::units::size(*size)),
            What::Calls(1) => write!(f, "call"),
            What::Calls(in_flight) => write!(f, "call, {in_flight} in flight"),
            What::Rate(tasks) => write!(f, "rate 64 B from {tasks} tasks"),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Polling => "polling",
            Mode::Sleeping => "sleeping",
        })
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Via::Tcp => "tcp",
            Via::Shm => "shm",
        })
    }
}
