//! What connects the two sides, and through which interface the client uses it.

use std::fmt;

use bmi::Scheme;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{MOST_CONNECTIONS, MOST_THREADS};

/// What a case runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Over {
    /// The library over TCP.
    Tcp,
    /// The library over TCP, behind TLS.
    Tls,
    /// The library over RDMA verbs.
    Ib,
    /// The library over shared memory.
    Shm,
    /// The baseline of a network: plain sockets that do not block.
    Sockets,
    /// Plain sockets over io_uring, which are compared with `Sockets`.
    Uring,
    /// The baseline of shared memory: copies, and cache lines that two threads hand over.
    Memory,
}

impl Over {
    /// All, in the order in which they are shown.
    pub(crate) const ALL: [Over; 7] =
        [Over::Tcp, Over::Tls, Over::Ib, Over::Shm, Over::Uring, Over::Sockets, Over::Memory];

    /// Returns the name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Over::Tcp => "tcp",
            Over::Tls => "tls",
            Over::Ib => "ib",
            Over::Shm => "shm",
            Over::Sockets => "sockets",
            Over::Uring => "uring",
            Over::Memory => "memory",
        }
    }

    /// Returns the scheme of the library's transport.
    pub(crate) fn scheme(self) -> Option<Scheme> {
        match self {
            Over::Tcp | Over::Tls => Some(Scheme::Tcp),
            Over::Ib => Some(Scheme::Ib),
            Over::Shm => Some(Scheme::Shm),
            Over::Sockets | Over::Uring | Over::Memory => None,
        }
    }

    /// Returns the baseline beside it.
    pub(crate) fn baseline(self) -> Over {
        match self {
            Over::Tcp | Over::Tls | Over::Ib | Over::Uring | Over::Sockets => Over::Sockets,
            Over::Shm | Over::Memory => Over::Memory,
        }
    }

    /// Returns true if it is a transport of the library, and no baseline.
    pub(crate) fn is_library(self) -> bool {
        self.scheme().is_some()
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The interface through which the client uses a transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Interface {
    /// An endpoint on one thread, which drives it.
    #[default]
    Endpoint,
    /// An endpoint on one thread of a runtime, a task of which drives it.
    Runtime,
    /// The backend alone, on both sides: no matching, no credits, no paths. It polls.
    Backend,
    /// An endpoint on one thread, on both sides, which posts and polls: no tasks, no executor.
    Polled,
    /// The shared library for C, on both sides: messages alone. It is the one that cargo has built
    /// with this program (`cargo build --release -p bmi-perf -p bmi-c`), or the installed one.
    C,
    /// A handle, by `block_on` of as many threads as there are connections.
    Thread,
    /// A handle, by as many tasks of a runtime with two workers.
    Tokio,
    /// Both sides are programs on tokio's default runtime: the only one of the tests of those.
    #[value(skip)]
    Tasks,
}

impl Interface {
    fn name(self) -> &'static str {
        match self {
            Interface::Endpoint => "endpoint",
            Interface::Runtime => "runtime",
            Interface::Backend => "backend",
            Interface::Polled => "polled",
            Interface::C => "c",
            Interface::Thread => "thread",
            Interface::Tokio => "tokio",
            Interface::Tasks => "tasks",
        }
    }

    /// Returns true if both sides post and poll, on one connection, without an executor.
    pub(crate) fn polls(self) -> bool {
        matches!(self, Interface::Backend | Interface::Polled | Interface::C)
    }

    /// Returns true if the client's threads share an endpoint, which is opened for each round: the
    /// driver of an idle one would take a processor from other rows.
    pub(crate) fn is_shared(self) -> bool {
        matches!(self, Interface::Thread | Interface::Tokio)
    }
}

/// The connections between the two hosts that cases share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Station {
    pub(crate) over: Over,
    pub(crate) interface: Interface,
    /// Number of connections, spread over the threads.
    pub(crate) connections: u32,
    /// Number of threads of each side.
    pub(crate) threads: u32,
}

/// How a station is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// The device and port of the side's verbs adapter: `mlx5_0` or `mlx5_0:1`.
    pub(crate) device: Option<String>,
    /// Length of the longest message, in bytes.
    pub(crate) max_message: u64,
    /// Most bytes of the buffers of a case, which an interface that polls registers once.
    pub(crate) room: u64,
    /// TCP connections for each connection over TCP; `None` is the library's default.
    pub(crate) streams: Option<u8>,
    /// TLS over TCP, with the certificate of the side.
    pub(crate) secure: bool,
}

impl Station {
    /// Returns what it is called in reports: `shm`, `shm backend`.
    pub(crate) fn name(&self) -> String {
        match self.interface {
            // The tests are named for their tasks.
            Interface::Endpoint | Interface::Tasks => self.over.name().to_owned(),
            interface => format!("{} {}", self.over, interface.name()),
        }
    }

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
            _ if self.interface.polls() && (self.connections, self.threads) != (1, 1) => {
                Err(format!("{} is measured on one connection of one thread", self.name()))
            }
            (_, threads) if threads > 1 && self.interface == Interface::Tasks => {
                Err(format!("{threads} threads for programs on tokio, which has its own"))
            }
            (_, threads) if threads > MOST_THREADS => Err(format!("{threads} threads; at most {MOST_THREADS}")),
            (connections, threads) if threads > connections => {
                Err(format!("{threads} threads for {connections} connections: each thread needs one"))
            }
            _ => Ok(()),
        }
    }
}
