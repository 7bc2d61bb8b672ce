//! The settings of a client, of a new file, and of one that is opened.

use std::time::Duration;

use bmi::config::Lists;
use bmi::paths::Path;
use fs_proto::{CacheHints, Caller, ClusterId};

use crate::net::TransportChoice;

/// Settings of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// A number that no other client has; draw it at random. The manager uses it to recognise
    /// repeated requests.
    pub id: u128,
    /// Time limit of a single request.
    pub timeout: Duration,
    /// How long a request is tried again if its server refuses connections, or is not ready for it.
    /// A lost connection is made again once in any case.
    pub retry_for: Duration,
    /// True if the manager is asked until it answers: when a time limit passes, the next one
    /// begins. A change keeps its number meanwhile, so it is made once.
    pub hard: bool,
    /// The path that data takes where possible. `None` leaves the choice to each endpoint's policy.
    pub path: Option<Path>,
    /// How lists of memory are moved. `Auto` decides by the sizes of their pieces.
    pub lists: Lists,
    /// Most bytes in one request to one server.
    pub largest_transfer: u64,
    /// For whom the client asks, if nobody else is [named](crate::Client::for_caller). New files
    /// belong to this user and group. A program passes [`Caller::of_process`].
    pub caller: Caller,
    /// The cluster. If `None`, it is the one of the first manager that answers.
    pub cluster: Option<ClusterId>,
    /// Which transport the client uses to reach a server.
    pub over: TransportChoice,
    /// The name of this machine, in the form that servers on it report (the boot id of Linux). If
    /// `None`, no server counts as being on this machine.
    pub host: Option<String>,
}

impl ClientOptions {
    /// Returns the defaults: 30 s and 16 MiB for each request, 5 s for a server to come back, paths
    /// chosen by policy, the best transport for each server, and root as the caller.
    pub fn new(id: u128) -> ClientOptions {
        ClientOptions {
            id,
            timeout: Duration::from_secs(30),
            retry_for: Duration::from_secs(5),
            hard: false,
            path: None,
            lists: Lists::Auto,
            largest_transfer: 16 << 20,
            caller: Caller::ROOT,
            cluster: None,
            over: TransportChoice::Auto,
            host: None,
        }
    }
}

/// Options for creating a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// Strip size in bytes; 0 for the cluster's default.
    pub strip_size: u64,
    /// Number of servers to stripe over. 0 for all that are up, as far as the manager and this
    /// client know. Any other number is met, if necessary with servers that are down.
    pub servers: u32,
    /// Permission bits.
    pub mode: u32,
    /// User and group; `None` for those of the client.
    pub owner: Option<(u32, u32)>,
    /// If true, an existing file is an error. If false, it is opened.
    pub exclusive: bool,
    /// How the file will be used, for the caches of its servers. They are told with the first
    /// access to each ([`File::advise`](crate::File::advise) tells them at once).
    pub hints: CacheHints,
    /// True if the file begins small: on one server, until something is written behind its first
    /// strip. That costs a request then, and a change of the manager's. A small file is created,
    /// looked at and removed in less work. A read that reaches its end asks the manager whether it
    /// has grown, unless [`File::close_to_open`](crate::File::close_to_open).
    pub small: bool,
}

impl Default for CreateOptions {
    /// Returns the cluster's strip size, all servers from the beginning, `0o644`, exclusive, no
    /// hints.
    fn default() -> CreateOptions {
        let hints = CacheHints::default();
        CreateOptions { strip_size: 0, servers: 0, mode: 0o644, owner: None, exclusive: true, hints, small: false }
    }
}

/// Options for opening a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFileOptions {
    /// How the file will be used, as in [`CreateOptions::hints`].
    pub hints: CacheHints,
}
