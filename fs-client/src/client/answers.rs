//! What a client is answered about files and about servers.

use std::time::Duration;

use bmi::stats::PathCounters;
use fs_proto::{DatafileHandle, Handle, IodStat, ManagerStat};

use crate::error::{Error, ServerName};

/// Information about a file or directory.
#[derive(Clone, Debug)]
pub struct Stat {
    /// Its handle.
    pub handle: Handle,
    /// Its attributes, including the size of a file.
    pub attr: fs_proto::Attr,
    /// Where a symbolic link leads; `None` for anything else.
    pub target: Option<fs_proto::BString>,
    /// The distribution of a file; `None` for anything else.
    pub distribution: Option<fs_proto::Distribution>,
    /// A file's datafiles, in the order of the distribution.
    pub datafiles: Vec<Datafile>,
    /// The servers that have not carried out the last change of a file's size. The size and the
    /// datafiles are those that it is to have. Empty as a rule.
    pub unfinished: Vec<Unfinished>,
}

/// One server's share of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datafile {
    /// The server.
    pub server: ServerName,
    /// The server's handle for the share.
    pub handle: DatafileHandle,
    /// Its size in bytes.
    pub size: u64,
    /// Time of the last write or change of size, in nanoseconds since 1970 by the server's clock. 0
    /// if there was none.
    pub mtime_ns: u64,
}

/// A server that has not carried out a change of a file's size.
#[derive(Clone, Debug)]
pub struct Unfinished {
    /// The server.
    pub server: ServerName,
    /// The size that its datafile is to get, in bytes.
    pub size: u64,
    /// Why it cannot. It is tried again all the same. `None` if it has not answered yet.
    pub error: Option<String>,
}

/// A server's answer to a ping.
#[derive(Clone, Debug)]
pub struct Pong {
    /// The server.
    pub server: ServerName,
    /// The time until the reply, or the reason why there is none.
    pub result: Result<Duration, Error>,
}

/// The latencies of several pings of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// The shortest.
    pub least: Duration,
    /// All together.
    pub sum: Duration,
}

/// Space at one I/O server.
#[derive(Clone, Debug)]
pub struct ServerSpace {
    /// The server.
    pub server: ServerName,
    /// The size and use of its store, or the reason why they are not known.
    pub result: Result<IodStat, Error>,
}

/// Space in the whole file system.
#[derive(Clone, Debug)]
pub struct Space {
    /// Counts of what the manager holds.
    pub manager: ManagerStat,
    /// The space at each I/O server.
    pub servers: Vec<ServerSpace>,
}

/// Counters of a client's activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientStats {
    /// Requests with data, by path. The counts are those of all its endpoints, and so include other
    /// clients that share them.
    pub paths: PathCounters,
    /// Number of requests that were sent again after a connection was lost.
    pub resent: u64,
}
