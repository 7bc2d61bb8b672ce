//! The tests, under the names that people know.

use bmi_report::Unit;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::Interface;

/// A test, under the name that people know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Test {
    /// Half the round trip of a message and its answer of the same length.
    Latency,
    /// Bytes per second of a stream of messages to the server.
    Bandwidth,
    /// Bytes per second of two streams at the same time, one each way; the sum.
    BothWays,
    /// Messages per second of a stream to the server.
    Rate,
    /// Round trip of a message that is due at a fixed rate (--rate), from when it was due.
    LatencyAtRate,
    /// RDMA write, one at a time, until it is complete.
    WriteLatency,
    /// RDMA writes in flight, in bytes per second.
    WriteBandwidth,
    /// RDMA read, one at a time.
    ReadLatency,
    /// RDMA reads in flight, in bytes per second.
    ReadBandwidth,
    /// RDMA write with immediate data, until the peer's answer has come.
    WriteImm,
    /// Half the round trip of RDMA writes that the peer's program sees by their last byte; only of
    /// a backend (--interface backend).
    WriteSeen,
    /// A call that brings data to the server, by each path.
    CallWrite,
    /// A call that fetches data from the server, by each path.
    CallRead,
    /// Calls per second that fetch data, one from each of --depth tasks. Both sides are programs on
    /// tokio's default runtime, plain sockets too.
    TokioRead,
    /// The same with calls that bring data to the server.
    TokioWrite,
    /// RDMA write from a list of pieces into a list of other pieces (--pieces).
    ListWrite,
    /// RDMA read from a list of pieces into a list of other pieces (--pieces).
    ListRead,
}

impl Test {
    /// Returns the name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Test::Latency => "latency",
            Test::Bandwidth => "bandwidth",
            Test::BothWays => "bandwidth both ways",
            Test::Rate => "message rate",
            Test::LatencyAtRate => "latency at rate",
            Test::WriteLatency => "RDMA write latency",
            Test::WriteBandwidth => "RDMA write bandwidth",
            Test::ReadLatency => "RDMA read latency",
            Test::ReadBandwidth => "RDMA read bandwidth",
            Test::WriteImm => "write with immediate",
            Test::WriteSeen => "RDMA write until seen",
            Test::CallWrite | Test::CallRead => "call",
            Test::TokioRead | Test::TokioWrite => "tokio call",
            Test::ListWrite => "list write",
            Test::ListRead => "list read",
        }
    }

    /// Returns the unit of its rows.
    pub(crate) fn unit(self) -> Unit {
        match self {
            Test::Bandwidth | Test::BothWays | Test::WriteBandwidth | Test::ReadBandwidth => Unit::BytesPerSecond,
            Test::Rate | Test::TokioRead | Test::TokioWrite => Unit::PerSecond,
            _ => Unit::Seconds,
        }
    }

    /// Returns true if several operations are in flight.
    pub(crate) fn streams(self) -> bool {
        matches!(
            self,
            Test::Bandwidth
                | Test::BothWays
                | Test::Rate
                | Test::LatencyAtRate
                | Test::WriteBandwidth
                | Test::ReadBandwidth
        ) || self.has_tasks()
    }

    /// Returns true if its time is half the round trip.
    pub(crate) fn is_half_trip(self) -> bool {
        matches!(self, Test::Latency | Test::WriteSeen)
    }

    /// Returns true if the server only exposes memory, from which the client reads.
    pub(crate) fn reads(self) -> bool {
        matches!(self, Test::ReadLatency | Test::ReadBandwidth | Test::ListRead)
    }

    /// Returns true if both sides are programs on tokio, with a task for each call.
    pub(crate) fn has_tasks(self) -> bool {
        matches!(self, Test::TokioRead | Test::TokioWrite)
    }

    /// Returns true if a backend measures it without the library.
    fn is_of_backend(self) -> bool {
        !matches!(self, Test::BothWays | Test::LatencyAtRate | Test::ListWrite | Test::ListRead) && !self.has_paths()
    }

    /// Returns true if it can be measured through an interface.
    pub(crate) fn has(self, interface: Interface) -> bool {
        match interface {
            Interface::Tasks => self.has_tasks(),
            _ if self.has_tasks() => false,
            Interface::Backend => self.is_of_backend(),
            Interface::C => matches!(self, Test::Latency | Test::Bandwidth | Test::Rate),
            Interface::Polled => self.is_of_backend() && !matches!(self, Test::WriteImm | Test::WriteSeen),
            _ => self != Test::WriteSeen,
        }
    }

    /// Returns true if rows differ in the path of the data.
    pub(crate) fn has_paths(self) -> bool {
        matches!(self, Test::CallWrite | Test::CallRead)
    }

    /// Returns true if rows differ in the number of pieces.
    pub(crate) fn has_pieces(self) -> bool {
        matches!(self, Test::ListWrite | Test::ListRead)
    }

    /// Returns the bytes of an exchange that plain sockets make in its place: there and back.
    /// `None` if it is a stream.
    pub(crate) fn exchange(self, size: usize) -> Option<(usize, usize)> {
        /// About the length of a request with a descriptor of memory, and of an acknowledgement.
        const REQUEST: usize = 40;
        const REPLY: usize = 8;
        match self {
            Test::Latency | Test::LatencyAtRate | Test::WriteSeen => Some((size, size)),
            Test::WriteLatency | Test::ListWrite => Some((size, REPLY)),
            Test::WriteImm => Some((size, REQUEST)),
            Test::ReadLatency | Test::ListRead => Some((REQUEST, size)),
            Test::CallWrite => Some((REQUEST + size, REPLY)),
            Test::CallRead => Some((REQUEST, REPLY + size)),
            Test::Bandwidth | Test::BothWays | Test::Rate | Test::WriteBandwidth | Test::ReadBandwidth => None,
            Test::TokioRead | Test::TokioWrite => None,
        }
    }
}
