//! What an attack is, and what its processes are told and report.

use std::fmt;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// Random bytes, packets, descriptors and words in shared memory, some behind a real handshake.
    Garbage,
    /// Real streams that end somewhere in the middle.
    Cut,
    /// Frames, records and handshakes with huge lengths.
    Lengths,
    /// A byte each second: of a preamble, of a frame, of a record.
    Slow,
    /// Connections that send nothing.
    HalfOpen,
    /// Established connections that do nothing.
    Idle,
    /// Commands that fetch a file and are stopped in the middle.
    HungReaders,
    /// Commands that store a file and are stopped in the middle.
    HungWriters,
    /// Real streams, sent again.
    Replay,
    /// Real streams with seeded changes.
    Mutate,
}

impl Kind {
    /// Returns true if the attack consists of streams that are sent one after the other. The other
    /// attacks hold what they have.
    pub(super) fn is_streams(self) -> bool {
        matches!(self, Kind::Garbage | Kind::Cut | Kind::Lengths | Kind::Replay | Kind::Mutate)
    }

    /// Returns true if the attackers are `pvfs` commands that are stopped.
    pub(super) fn is_hung(self) -> bool {
        matches!(self, Kind::HungReaders | Kind::HungWriters)
    }
}

/// A transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Over {
    /// Sockets.
    Tcp,
    /// Shared memory.
    Shm,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().expect("none is skipped").get_name())
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().expect("none is skipped").get_name())
    }
}

/// The size of the file that commands move which are stopped in the middle. It has no bytes on a
/// disk, and no command comes to its end.
pub(super) const ENDLESS: u64 = 1 << 40;

/// A server and the file with real streams to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Target {
    /// `host:port`, or the path of a socket.
    pub(super) addr: String,
    pub(super) recording: PathBuf,
}

/// What an attacking process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// Sends at least this many streams for at least this time, in several threads, and ends.
    Streams { streams: u64, least_ms: u64, threads: usize },
    /// Holds this many connections until its standard input is closed.
    Hold { connections: usize },
    /// Uses this many thousandths of a processor until its standard input is closed.
    Burn { permille: u64 },
}

/// The argument of an attacking process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Spec {
    pub(super) kind: Kind,
    pub(super) over: Over,
    pub(super) targets: Vec<Target>,
    pub(super) seed: u64,
    pub(super) task: Task,
}

/// What an attacking process has done, printed at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Done {
    /// Streams that were sent, or connections that were held or opened again.
    pub(super) streams: u64,
    pub(super) bytes: u64,
    /// Connections that could not be made.
    pub(super) refused: u64,
}

impl std::ops::AddAssign for Done {
    fn add_assign(&mut self, other: Done) {
        self.streams += other.streams;
        self.bytes += other.bytes;
        self.refused += other.refused;
    }
}

/// What a real client sent over one connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stream {
    /// The first one is a preamble or a hello.
    pub(super) parts: Vec<Part>,
    /// Over shared memory, the length of its area, and the lines of the area that are not zero.
    pub(super) area_len: u64,
    pub(super) lines: Vec<(u64, Vec<u8>)>,
}

/// Bytes that a client sent before it waited for an answer, or a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) sent: Vec<u8>,
    /// The number of bytes of the server that followed.
    pub(super) answered: usize,
    /// The lengths of the memory that was passed with it.
    pub(super) passed: Vec<u64>,
}
