//! A message interface for storage systems, over backends that all look like an InfiniBand adapter.
//!
//! | where | what |
//! |---|---|
//! | [`transport`] | the contract of a backend: queue pairs, registration, completions |
//! | [`Engine`] | the message interface: expected and unexpected messages, bulk, deadlines, cancel, polling |
//! | [`Endpoint`] | the message interface for `async` code |
//! | [`comm`] | the communication manager: four paths for the data of a request, and the choice between them |
//! | [`runtime`] | tasks and time, where the program runs: tokio outside, a world in the simulator |
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
mod class;
pub mod comm;
mod config;
pub mod driver;
mod endpoint;
mod engine;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod handle;
mod hooks;
mod identity;
mod ids;
mod lists;
mod log_limit;
pub mod mem;
mod op;
mod paths;
pub mod runtime;
mod sync;
mod time;
pub mod timeline;
pub mod transport;
mod wire;

pub use addr::{Addr, CustomScheme, Device, Scheme};
pub use config::{Config, CreditConfig, LimitConfig, MemoryConfig, TimeoutConfig};
pub use endpoint::threading::{AnyThread, OneThread, Threading};
pub use endpoint::{Endpoint, Message, Operation, Peer, SharedEndpoint, SharedPeer};
pub use engine::{
    Counters, Engine, Exposure, Grant, Kept, MAX_TAG, PeerEvent, PeerLimits, Pinned, ResourceUsage, Unexpected,
};
pub use error::{Error, ErrorKind};
pub use handle::{Handle, HandleConfig, MAX_ENDPOINTS};
#[doc(hidden)]
pub use hooks::{handed_over, step, steps};
#[cfg(feature = "mutants")]
#[doc(hidden)]
pub use hooks::{longest_job, steps_taken};
pub use hooks::{mutated, mutated_each};
pub use identity::{Newcomer, PeerIdentity, PeerPolicy};
pub use lists::Lists;
pub use log_limit::LogLimit;
pub use mem::{Access, MemList, MemSlice, Memory, MemoryRegion, RemoteKey, RemoteSlice, Segment};
pub use op::{Completion, OpId, OpKind, Options, PeerId, Posted, Tag};
pub use sync::Returns;
pub use time::{Clock, Time};
pub use timeline::{Timeline, TimelineOptions};
pub use transport::capability::{Capabilities, OneSided, Registration};
pub use transport::{AnyTransport, ServiceClass, Transport};
#[doc(hidden)]
pub use wire::describe::describe_message;
pub use wire::{BulkDescriptor, extents};
