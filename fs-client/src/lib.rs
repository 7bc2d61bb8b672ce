//! The client of the file system: a library over any transport of `bmi-core`, and the command
//! `pvfs`.
//!
//! | module or type | contents |
//! |---|---|
//! | [`Client`] | the namespace: directories, names, attributes; the list of servers |
//! | [`SharedClient`], [`SharedFile`] | the same, for any thread |
//! | [`File`] | the data: reads and writes, contiguous or lists on both sides |
//! | [`Way`], [`Choice`], [`CollectiveOptions`] | reads and writes of a group together ([`File::write_all`]) |
//! | [`Draft`] | a new file without a name, which replaces the old one when it is complete |
//! | [`Extended`], [`ExtendedRaw`] | lists with the allocations that contain their pieces |
//! | [`Plan`] | how a read or write is split among servers, which path the data takes, and why |
//! | [`SharedView`], [`SharedPlan`] | bytes of a file that servers on this host lend, and whether they do |
//! | [`Endpoints`], [`Route`] | which transport is used for a server, and why |
//! | [`CacheHints`], [`Cached`], [`CacheState`] | how a file will be used, and what the caches of the servers have |
//! | `array_type`, `slice_type` | types of arrays of the crate `ndarray`, with the feature `ndarray` |
//! | `PvfsStore` | the cluster as a store of the crate `object_store`, with the feature of that name |
//! | [`copy`] | whole files and trees, to and from the local machine, and within the cluster |
//! | `cli`, `bench` | the command `pvfs` and its benchmarks; not for other programs |
//! | [`Error`] | what failed, at which server, with which ranges of the file |
//!
//! The rooms; each uses those below it:
//!
//! ```text
//!   cli/                    the commands                      bench/   benchmarks over several hosts
//!   copy/                   whole files and trees             local    local files, in a thread
//!   objects/                a store of the crate object_store
//!   names/                  namespace, drafts, removing trees
//!   collective/             reads and writes of several processes together
//!   file/                   an open file: transfer, size, list, sync, shared_read, caches
//!   shared/   split         what servers on this host lend    how an access is split among servers
//!   client/   program       a client, what it knows of open files, what it asks; what a program needs
//!   net/                    routes, servers to avoid, connections with their repetitions
//!   error locked path
//! ```
//!
//! The library starts no task and reads no clock. A driver must drive the endpoint. A client over
//! an [`Endpoint`](bmi::Endpoint) belongs to one thread. A [`SharedClient`], over a
//! [`SharedEndpoint`](bmi::SharedEndpoint) or through a [`Handle`](bmi::Handle), may be
//! used by any thread: it, its files and all futures are `Send`. In the simulator, tasks of a node
//! share it. Any future may be dropped at any time.
//! Each request ends within the client's time limit. Only [`local`], which reads and writes local
//! files, has a thread.
//!
//! ```no_run
//! use bmi::{Addr, Config, Memory, OpenOptions, driver};
//! use fs_client::{Client, ClientOptions, CreateOptions};
//!
//! let manager: Addr = "tcp://localhost:7000".parse()?;
//! let clock = driver::MonotonicClock::new();
//! let endpoint = bmi::endpoint(manager.scheme(), &OpenOptions::default(), Config::named("example"), clock)?;
//! driver::event::block_on(endpoint.clone(), async move {
//!     let client = Client::connect(endpoint, manager, ClientOptions::new(0x5eed)).await?;
//!     client.mkdir(&"/data".parse()?).await?;
//!     let file = client.create(&"/data/a".parse()?, CreateOptions::default()).await?;
//!     file.write_at(0, Memory::from(b"hello".to_vec())).await?;
//!     file.sync().await?;
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! })??;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A program with arrays describes them by MPI's types: those in a file by a [`FileView`], those in
//! memory by a [`TypedMemory`]. [`File::write_view`] and [`File::read_view`] move them. The members
//! of a group call [`File::write_all`] and [`File::read_all`] together. The program
//! `examples/src/bin/arrays.rs` shows a matrix in tiles, a volume in pencils, and structs of which
//! one field is written after the other.

// Runs inside the simulator: see clippy.toml.
#![warn(clippy::disallowed_types)]
// Any thread may use a client: see `locked`.
#![deny(clippy::await_holding_lock)]

mod bench;
#[doc(hidden)]
pub mod cli;
mod client;
mod collective;
pub mod copy;
mod error;
mod file;
mod fsck;
pub mod local;
mod locked;
mod names;
mod net;
#[cfg(feature = "object_store")]
mod objects;
mod path;
mod program;
mod shared;
mod split;

pub use bmi::paths::{Direction, Path};
pub use bmi::stats::PathCounters;
pub use client::{
    Client, ClientOptions, ClientStats, CreateOptions, Datafile, Latency, OpenFileOptions, Pong, ServerSpace,
    SharedClient, Space, Stat, Unfinished,
};
pub use collective::{Choice, CollectiveError, CollectiveOptions, Done, Way};
pub use error::{Error, Failure, ServerName};
pub use file::{Cached, Extended, ExtendedRaw, File, ServerCache, ServerCoverage, SharedFile, TypedMemory};
#[cfg(feature = "ndarray")]
pub use file::{Number, array_type, slice_type};
/// The settings of transports that prove who the user is.
pub use fs_proto::user_transports;
pub use fs_proto::{
    Access, Allocation, Attr, BString, Caller, DefaultLayout, DirEntry, DirHandle, Distribution, Entry, ErrorCode,
    FileHandle, Handle, Kind, Layout, Region, RemoveKind, Replace, SetAttr, Sought, XattrName,
};
pub use fs_proto::{
    AccessPattern, CacheCoverage, CacheHints, CachePolicy, CacheStat, CacheState, CachedFile, ServiceKind,
};
pub use fs_proto::{Datatype, Distribute, FileView, GridDimension, Order};
pub use fsck::{Finding, LOST_FOUND, Report, ScrubOptions, ScrubReport};
pub use names::{Draft, Held, Publish, ReadDir};
pub use net::{Endpoints, Route, TransportChoice};
#[cfg(feature = "object_store")]
pub use objects::PvfsStore;
pub use path::FsPath;
pub use shared::{SharedPlan, SharedView, Stale, ViewPiece};
pub use split::{Plan, PlanLimits, Transfer};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
