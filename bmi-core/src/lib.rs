//! A message interface for storage systems, over backends that all look like an InfiniBand adapter.
//!
//! | where | what |
//! |---|---|
//! | [`transport`] | the contract of a backend: queue pairs, registration, completions |
//! | [`Engine`] | the message interface: expected and unexpected messages, bulk, deadlines, cancel, polling |
//! | [`Endpoint`] | the message interface for `async` code |
//! | [`comm`] | the communication manager: four paths for the data of a request, and the choice between them |
//! | [`driver`] | loops that drive an endpoint: under tokio, on a thread without a runtime, by busy polling |
//! | [`timeline`] | what an endpoint did and when, from both sides of a connection |
//! | [`mem`](mod@mem) | memory that an adapter may touch, and the rules that keep that safe |
//! | [`extents`], [`Lists`] | lists of ranges on the wire; how lists of memory are moved |
//! | [`Config`], [`Capabilities`] | the settings of an endpoint; the capabilities of an adapter |
//!
//! The protocol does no I/O, reads no clock, draws no random number and starts no thread.

// This crate runs inside the simulator: see clippy.toml.
#![warn(clippy::disallowed_types)]

mod addr;
mod bulk;
mod capability;
mod combining_lock;
pub mod comm;
mod config;
pub mod driver;
mod endpoint;
mod engine;
mod error;
pub mod extents;
mod forward;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod handle;
mod inline_receive;
mod lists;
mod log_limit;
pub mod mem;
mod mutated;
mod op;
mod proto;
mod returns;
mod steps;
mod sync;
mod threading;
mod time;
pub mod timeline;
pub mod transport;

pub use addr::{Addr, CustomScheme, Device, Scheme};
pub use bulk::{BulkDescriptor, Exposure};
pub use capability::{Capabilities, OneSided, Registration};
pub use config::{Config, CreditConfig, LimitConfig, MemoryConfig, TimeoutConfig};
pub use endpoint::{Endpoint, Message, Operation, Peer, SharedEndpoint, SharedPeer};
pub use engine::{Counters, Engine, Grant, Kept, MAX_TAG, PeerEvent, PeerLimits, Pinned, ResourceUsage, Unexpected};
pub use error::{Error, ErrorKind};
pub use handle::{Handle, HandleConfig, MAX_ENDPOINTS};
pub use lists::Lists;
pub use log_limit::LogLimit;
pub use mem::{Access, MemList, MemSlice, Memory, MemoryRegion, RemoteKey, RemoteSlice, Segment};
pub use mutated::{mutated, mutated_each};
pub use op::{Completion, OpId, OpKind, Options, PeerId, Posted, Tag};
#[doc(hidden)]
pub use proto::describe::describe_message;
pub use returns::Returns;
#[doc(hidden)]
pub use steps::{handed_over, step, steps};
#[cfg(feature = "mutants")]
#[doc(hidden)]
pub use steps::{longest_job, steps_taken};
pub use threading::{AnyThread, OneThread, Threading};
pub use time::{Clock, Time};
pub use timeline::{Timeline, TimelineOptions};
pub use transport::{AnyTransport, ServiceClass, Transport};
