//! What is measured: one test, of one size, over one transport.
//!
//! **Invariants**
//! 1. Both sides get the same [`Case`] and run their parts of it. A server checks the bounds of
//!    [`Case::check`] before it allocates: a case comes from the network.
//! 2. Cases that differ only in `over` measure the same thing and are shown side by side.

mod station;
mod test;

use std::collections::BTreeMap;

use bmi::driver::Waiting as Driver;
use bmi::paths::Path;
use bmi_report::{Kind, Row};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub(crate) use self::station::{Interface, Over, Settings, Station};
pub(crate) use self::test::Test;

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

/// How both sides wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Waiting {
    /// Poll without pause; takes a whole processor for each thread.
    Polling,
    /// Sleep in the kernel until something arrives.
    Sleeping,
    /// Sleep, and poll before where that has paid off lately.
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
            Waiting::Hybrid => Driver::Adaptive,
        }
    }
}

/// What to do besides measuring. The time of such a round means nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Besides {
    /// Nothing.
    #[default]
    Nothing,
    /// Count system calls.
    Counting,
    /// Record a timeline, if this is the first thread and an endpoint's.
    Recording,
}

/// Work for the threads of a station.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) case: Case,
    /// Messages on each connection.
    pub(crate) count: u64,
    /// What to do besides measuring.
    pub(crate) besides: Besides,
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
        if self.test.has_paths() || self.test.has_tasks() {
            let is_write = matches!(self.test, Test::CallWrite | Test::TokioWrite);
            add("direction", if is_write { "write" } else { "read" }.to_owned());
        }
        if self.test.has_paths() {
            add("path", self.path().map_or_else(|| "chosen".to_owned(), |path| path.to_string()));
        }
        Row {
            test: self.test.name().to_owned(),
            over: self.station.name(),
            kind: match self.station.over {
                Over::Sockets | Over::Memory => Kind::Baseline,
                _ => Kind::Library,
            },
            size: Some(self.size),
            setup,
            unit: self.test.unit(),
            ..Row::default()
        }
    }

    /// Returns true if both measure the same thing, be it over different transports.
    #[cfg(test)]
    pub(crate) fn is_beside(&self, other: &Case) -> bool {
        let station = Station { over: other.station.over, interface: other.station.interface, ..self.station };
        Case { station, ..*self } == *other
    }

    /// Returns true if this can be measured over what the station is.
    pub(crate) fn is_possible(&self) -> bool {
        let Station { over, interface, connections, threads } = self.station;
        if self.test.has_tasks() {
            // The runtime sleeps while no task is ready.
            return interface == Interface::Tasks
                && !matches!(over, Over::Uring | Over::Memory)
                && self.waiting == Waiting::Sleeping;
        }
        let is_alone = (connections, threads) == (1, 1) && self.waiting == Waiting::Polling;
        match over {
            Over::Tcp | Over::Tls | Over::Ib | Over::Shm => {
                self.test.has(interface) && (!interface.polls() || is_alone)
            }
            // Sockets know no paths: they are beside the library's own choice.
            Over::Sockets => self.path.is_none(),
            Over::Uring => {
                let has_test = !matches!(self.test, Test::BothWays | Test::LatencyAtRate);
                has_test && self.path.is_none() && self.waiting != Waiting::Hybrid
            }
            Over::Memory => {
                is_alone
                    && matches!(
                        self.test,
                        Test::Latency | Test::WriteSeen | Test::Bandwidth | Test::WriteBandwidth | Test::ReadBandwidth
                    )
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
            station: Station { over: Over::Tcp, interface: Interface::Endpoint, connections: 1, threads: 1 },
            waiting: Waiting::Polling,
            size: 65_536,
            depth: 16,
            pieces: 1,
            rate: 1000,
            path: None,
        }
    }

    #[test]
    fn rows_are_named_by_what_they_measure() {
        assert_eq!(case().row().name(), "tcp bandwidth 64 KiB, depth 16, polling");
        let calls = Case { test: Test::CallWrite, path: Some(0), ..case() };
        assert_eq!(calls.row().setup["path"], Path::TAKEN[0].to_string());
        let backend = Station { interface: Interface::Backend, ..case().station };
        let backend = Case { station: backend, ..case() };
        assert_eq!(backend.row().name(), "tcp backend bandwidth 64 KiB, depth 16, polling");
        assert!(case().row().is_beside(&backend.row()) && case().is_beside(&backend));
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
            Case { station: Station { interface: Interface::Backend, ..station(2, 1) }, ..case() },
            Case { station: Station { interface: Interface::Tasks, ..station(2, 2) }, ..case() },
            Case { station: station(MOST_CONNECTIONS + 1, 1), ..case() },
            Case { station: station(MOST_CONNECTIONS, MOST_THREADS + 1), ..case() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn every_connection_belongs_to_one_thread() {
        for (connections, threads) in [(1, 1), (7, 3), (8, 8), (1000, 64)] {
            let station = Station { connections, threads, ..case().station };
            let sum: u32 = (0..threads).map(|thread| station.connections_of(thread)).sum();
            assert_eq!(sum, connections);
            assert!((0..threads).all(|thread| station.connections_of(thread) > 0));
        }
    }
}
