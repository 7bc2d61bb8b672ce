//! What an attack is, and what its processes are told and report.

use std::fmt;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
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

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().expect("none is skipped").get_name())
    }
}

/// A transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Over {
    /// Sockets.
    Tcp,
    /// Shared memory.
    Shm,
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().expect("none is skipped").get_name())
    }
}

/// A server and the file with real streams to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Target {
    /// `host:port`, or the path of a socket.
    pub(super) addr: String,
    pub(super) recording: PathBuf,
}

/// What an attacking process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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

/// One connection of a real client over TCP: what it sent, in turns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TcpStream {
    pub(super) turns: Vec<Turn>,
}

/// Bytes of the client, and how many bytes of the server followed them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Turn {
    pub(super) sent: Vec<u8>,
    pub(super) answered: usize,
}

/// One connection of a real client over shared memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ShmStream {
    /// What it sent over the socket. The first packet is its hello.
    pub(super) packets: Vec<Packet>,
    /// The length of its area, and the lines of the area that are not zero.
    pub(super) area_len: u64,
    pub(super) lines: Vec<(u64, Vec<u8>)>,
}

/// A packet and the lengths of the memory that was passed with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Packet {
    pub(super) bytes: Vec<u8>,
    pub(super) passed: Vec<u64>,
}

/// The real streams to one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Recording {
    pub(super) tcp: Vec<TcpStream>,
    pub(super) shm: Vec<ShmStream>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_survives_the_command_line() {
        let targets = vec![Target { addr: "127.0.0.1:7".into(), recording: "/x".into() }];
        let task = Task::Streams { streams: 3, least_ms: 5, threads: 2 };
        let spec = Spec { kind: Kind::HungReaders, over: Over::Shm, targets, seed: 9, task };
        let text = serde_json::to_string(&spec).unwrap();
        assert!(text.contains("hung-readers"), "{text}");
        let again: Spec = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), text);
        assert_eq!((Kind::HalfOpen.to_string(), Over::Tcp.to_string()), ("half-open".into(), "tcp".into()));
    }
}
