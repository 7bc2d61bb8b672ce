//! What is measured: one test, of one size, over one transport.
//!
//! **Invariants**
//! 1. Both sides get the same [`Case`] and run their parts of it. A server checks the bounds of
//!    [`Case::check`] before it allocates: a case comes from the network.
//! 2. Cases that differ only in `over` measure the same thing and are shown side by side.

use std::collections::BTreeMap;
use std::fmt;

use bmi::paths::Path;
use bmi::{Scheme, driver::Waiting as Driver};
use bmi_report::{Kind, Row, Unit};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Most bytes of buffers that one connection of a case may need on a side.
pub(crate) const MOST_BYTES: u64 = 1 << 30;
/// Most connections of a station.
pub(crate) const MOST_CONNECTIONS: u32 = 1024;
/// Most threads of a side.
pub(crate) const MOST_THREADS: u32 = 256;
/// Most messages in flight on a connection.
pub(crate) const MOST_DEPTH: u32 = 4096;
/// Most messages of a round.
pub(crate) const MOST_MESSAGES: u64 = 1 << 26;
/// Most pieces of a list.
const MOST_PIECES: u32 = 4096;

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
    /// A call that brings data to the server, by each path.
    CallWrite,
    /// A call that fetches data from the server, by each path.
    CallRead,
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
            Test::CallWrite | Test::CallRead => "call",
            Test::ListWrite => "list write",
            Test::ListRead => "list read",
        }
    }

    /// Returns the unit of its rows.
    pub(crate) fn unit(self) -> Unit {
        match self {
            Test::Bandwidth | Test::BothWays | Test::WriteBandwidth | Test::ReadBandwidth => Unit::BytesPerSecond,
            Test::Rate => Unit::PerSecond,
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
        )
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
            Test::Latency | Test::LatencyAtRate => Some((size, size)),
            Test::WriteLatency | Test::ListWrite => Some((size, REPLY)),
            Test::WriteImm => Some((size, REQUEST)),
            Test::ReadLatency | Test::ListRead => Some((REQUEST, size)),
            Test::CallWrite => Some((REQUEST + size, REPLY)),
            Test::CallRead => Some((REQUEST, REPLY + size)),
            Test::Bandwidth | Test::BothWays | Test::Rate | Test::WriteBandwidth | Test::ReadBandwidth => None,
        }
    }
}

/// What a case runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Over {
    /// The library over TCP.
    Tcp,
    /// The library over RDMA verbs.
    Ib,
    /// The library over shared memory.
    Shm,
    /// The baseline of a network: plain sockets that do not block.
    Sockets,
    /// The baseline of shared memory: copies, and cache lines that two threads hand over.
    Memory,
}

impl Over {
    /// Returns the name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Over::Tcp => "tcp",
            Over::Ib => "ib",
            Over::Shm => "shm",
            Over::Sockets => "sockets",
            Over::Memory => "memory",
        }
    }

    /// Returns the scheme of the library's transport.
    pub(crate) fn scheme(self) -> Option<Scheme> {
        match self {
            Over::Tcp => Some(Scheme::Tcp),
            Over::Ib => Some(Scheme::Ib),
            Over::Shm => Some(Scheme::Shm),
            Over::Sockets | Over::Memory => None,
        }
    }

    /// Returns the baseline beside it.
    pub(crate) fn baseline(self) -> Over {
        match self {
            Over::Tcp | Over::Ib | Over::Sockets => Over::Sockets,
            Over::Shm | Over::Memory => Over::Memory,
        }
    }

    pub(crate) fn kind(self) -> Kind {
        if self.scheme().is_some() { Kind::Library } else { Kind::Baseline }
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How both sides wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Waiting {
    /// Poll without pause; takes a whole processor for each thread.
    Polling,
    /// Sleep in the kernel until something arrives.
    Sleeping,
    /// Poll for up to 50 µs, then sleep.
    Hybrid,
}

impl Waiting {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Waiting::Polling => "polling",
            Waiting::Sleeping => "sleeping",
            Waiting::Hybrid => "hybrid",
        }
    }

    /// Returns the driver's way.
    pub(crate) fn driver(self) -> Driver {
        match self {
            Waiting::Polling => Driver::Busy,
            Waiting::Sleeping => Driver::Event,
            Waiting::Hybrid => Driver::ADAPTIVE,
        }
    }
}

/// Which of several measurements of the same thing, for `--self-check`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Repeat {
    /// The first, in most runs the only one.
    #[default]
    First,
    /// The same once more: it does not differ.
    Again,
    /// The same, but the client takes [`SLOWED`] longer for it.
    Slowed,
}

/// How much longer [`Repeat::Slowed`] takes: this part of the time.
pub(crate) const SLOWED: f64 = 0.05;

/// The connections between the two hosts that cases share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Station {
    pub(crate) over: Over,
    /// Number of connections, spread over the threads.
    pub(crate) connections: u32,
    /// Number of threads of each side.
    pub(crate) threads: u32,
}

impl Station {
    /// Returns the number of connections of a thread.
    pub(crate) fn connections_of(&self, thread: u32) -> u32 {
        self.connections / self.threads + u32::from(thread < self.connections % self.threads)
    }

    /// Returns why a server refuses it.
    pub(crate) fn check(&self) -> Result<(), String> {
        match (self.connections, self.threads) {
            (0, _) | (_, 0) => Err("no connection, or no thread".to_owned()),
            (connections, _) if connections > MOST_CONNECTIONS => {
                Err(format!("{connections} connections; at most {MOST_CONNECTIONS}"))
            }
            (_, threads) if threads > MOST_THREADS => Err(format!("{threads} threads; at most {MOST_THREADS}")),
            (connections, threads) if threads > connections => {
                Err(format!("{threads} threads for {connections} connections: each thread needs one"))
            }
            _ => Ok(()),
        }
    }
}

/// One measurement, as both sides run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Case {
    pub(crate) test: Test,
    pub(crate) station: Station,
    pub(crate) waiting: Waiting,
    /// Bytes of a message.
    pub(crate) size: u64,
    /// Most messages in flight on a connection.
    pub(crate) depth: u32,
    /// Pieces of a list.
    pub(crate) pieces: u32,
    /// Messages per second in all, for [`Test::LatencyAtRate`].
    pub(crate) rate: u32,
    /// The forced path of a call, as an index into [`Path::TAKEN`]. `None` leaves the choice to the
    /// library.
    pub(crate) path: Option<u8>,
    pub(crate) repeat: Repeat,
}

impl Case {
    /// Returns the forced path.
    pub(crate) fn path(&self) -> Option<Path> {
        self.path.and_then(|index| Path::TAKEN.get(usize::from(index)).copied())
    }

    /// Returns the number of buffers of `size` that a connection uses in turn.
    pub(crate) fn buffers(&self) -> usize {
        if self.test.streams() { self.depth as usize } else { 1 }
    }

    /// Returns the size as a length in memory.
    pub(crate) fn len(&self) -> usize {
        self.size as usize
    }

    /// Returns why a server refuses it.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.station.check()?;
        let wanted = self.size.saturating_mul(u64::from(self.depth.max(1)));
        if self.size == 0 || wanted > MOST_BYTES {
            let text = format!("{} messages of {} bytes; at most {MOST_BYTES} bytes in all", self.depth, self.size);
            return Err(text);
        }
        if self.depth == 0 || self.depth > MOST_DEPTH {
            return Err(format!("{} messages in flight; 1 to {MOST_DEPTH}", self.depth));
        }
        if self.pieces == 0 || self.pieces > MOST_PIECES || u64::from(self.pieces) > self.size {
            return Err(format!(
                "{} pieces of {} bytes; 1 to {MOST_PIECES}, of a byte at least",
                self.pieces, self.size
            ));
        }
        if self.path.is_some() && self.path().is_none() {
            return Err("an unknown path".to_owned());
        }
        Ok(())
    }

    /// Returns an empty row of this case.
    pub(crate) fn row(&self) -> Row {
        let mut setup = BTreeMap::from([("waiting".to_owned(), self.waiting.name().to_owned())]);
        let mut add = |name: &str, value: String| setup.insert(name.to_owned(), value);
        if self.test.streams() {
            add("depth", self.depth.to_string());
        }
        if self.station.connections > 1 {
            add("connections", self.station.connections.to_string());
        }
        if self.station.threads > 1 {
            add("threads", self.station.threads.to_string());
        }
        if self.test.has_pieces() {
            add("pieces", self.pieces.to_string());
        }
        if self.test == Test::LatencyAtRate {
            add("rate", self.rate.to_string());
        }
        if self.test.has_paths() {
            add("direction", if self.test == Test::CallWrite { "write" } else { "read" }.to_owned());
            add("path", self.path().map_or_else(|| "chosen".to_owned(), |path| path.to_string()));
        }
        Row {
            test: self.test.name().to_owned(),
            over: self.over(),
            // Repeats are compared with what they repeat, as the library is with a baseline.
            kind: if self.repeat == Repeat::First { self.station.over.kind() } else { Kind::Library },
            size: Some(self.size),
            setup,
            unit: self.test.unit(),
            ..Row::default()
        }
    }

    /// Returns what it runs over, as it is named in reports.
    fn over(&self) -> String {
        let name = self.station.over.name();
        match self.repeat {
            Repeat::First => name.to_owned(),
            Repeat::Again => format!("{name} again"),
            Repeat::Slowed => format!("{name} slowed"),
        }
    }

    /// Returns true if both measure the same thing, be it over different transports.
    #[cfg(test)]
    pub(crate) fn is_beside(&self, other: &Case) -> bool {
        let station = Station { over: other.station.over, ..self.station };
        Case { station, ..*self } == *other
    }

    /// Returns true if this can be measured over what the station is.
    pub(crate) fn is_possible(&self) -> bool {
        match self.station.over {
            Over::Tcp | Over::Ib | Over::Shm => true,
            // Sockets know no paths: they are beside the library's own choice.
            Over::Sockets => self.path.is_none(),
            Over::Memory => {
                matches!(self.test, Test::Latency | Test::Bandwidth | Test::WriteBandwidth | Test::ReadBandwidth)
                    && self.waiting == Waiting::Polling
                    && self.station.connections == 1
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn case() -> Case {
        Case {
            test: Test::Bandwidth,
            station: Station { over: Over::Tcp, connections: 1, threads: 1 },
            waiting: Waiting::Polling,
            size: 65_536,
            depth: 16,
            pieces: 1,
            rate: 1000,
            path: None,
            repeat: Repeat::First,
        }
    }

    #[test]
    fn rows_are_named_by_what_they_measure() {
        assert_eq!(case().row().name(), "tcp bandwidth 64 KiB, depth 16, polling");
        let calls = Case { test: Test::CallWrite, path: Some(0), ..case() };
        assert_eq!(calls.row().setup["path"], Path::TAKEN[0].to_string());
        let slowed = Case { repeat: Repeat::Slowed, ..case() };
        assert_eq!(slowed.row().name(), "tcp slowed bandwidth 64 KiB, depth 16, polling");
        let chosen = Case { path: None, ..calls };
        assert_eq!(chosen.row().setup["path"], "chosen");
        let sockets = Case { station: Station { over: Over::Sockets, ..case().station }, ..case() };
        assert!(case().is_beside(&sockets) && !case().is_beside(&Case { depth: 1, ..case() }));
        assert!(case().row().is_beside(&sockets.row()));
    }

    #[test]
    fn a_server_refuses_what_is_out_of_bounds() {
        assert_eq!(case().check(), Ok(()));
        let station = |connections, threads| Station { connections, threads, ..case().station };
        for bad in [
            Case { size: 0, ..case() },
            Case { size: u64::MAX, ..case() },
            Case { size: MOST_BYTES, depth: 2, ..case() },
            Case { depth: 0, ..case() },
            Case { depth: MOST_DEPTH + 1, size: 1, ..case() },
            Case { pieces: 0, ..case() },
            Case { pieces: 9, size: 8, ..case() },
            Case { path: Some(200), ..case() },
            Case { station: station(0, 1), ..case() },
            Case { station: station(1, 2), ..case() },
            Case { station: station(MOST_CONNECTIONS + 1, 1), ..case() },
            Case { station: station(MOST_CONNECTIONS, MOST_THREADS + 1), ..case() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn every_connection_belongs_to_one_thread() {
        for (connections, threads) in [(1, 1), (7, 3), (8, 8), (1000, 64)] {
            let station = Station { over: Over::Tcp, connections, threads };
            let sum: u32 = (0..threads).map(|thread| station.connections_of(thread)).sum();
            assert_eq!(sum, connections);
            assert!((0..threads).all(|thread| station.connections_of(thread) > 0));
        }
    }
}
