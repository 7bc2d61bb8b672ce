//! A message interface for storage systems over TCP, RDMA verbs and shared memory.
//!
//! A program opens a transport by the scheme of an address and sends messages, moves bulk data or
//! makes calls over it. The same program runs over every transport, and in the simulator
//! (`bmi-sim`), where its protocol can be tested under faults.
//!
//! # Which interface
//!
//! | you write | use | it gives you |
//! |---|---|---|
//! | a server and its clients | [`Peer::call`], [`serve`] and [`Incoming`] | requests with data and replies; the library chooses how the data travels |
//! | processes that do something together | [`group::Group`] | ranks, barriers, values to all, parts from each to each |
//! | a protocol of your own, `async` | [`Endpoint`] and its [`Peer`]s | messages with tags, pull and push of exposed memory, as futures |
//! | a program of several threads | [`Handle`] | all of the above from any thread: `Send` futures, or blocking; drivers of its own |
//! | a program without an executor | [`polled::Engine`] | the same operations: post, poll or [`wait`](polled::Engine::wait) |
//!
//! An endpoint only works while a [`driver`] polls it. [`driver::event`] runs it under tokio,
//! [`driver::thread`] without a runtime, and [`driver::busy`] with the lowest latency on a core of
//! its own. One thread owns an [`Endpoint`]. Any thread may use a [`SharedEndpoint`]. A [`Handle`]
//! is one of these or several, behind one address, each with a driver: a task of the tokio runtime
//! that it is opened in, or a thread.
//!
//! ## Calls
//!
//! A call is a request, data in one direction, and a reply. Here a server stores the block that a
//! client writes:
//!
//! ```
//! use std::time::Duration;
//!
//! use bmi::driver::{MonotonicClock, event};
//! use bmi::{Addr, Body, Config, Error, Memory, OpenOptions, Scheme, serve};
//!
//! # fn main() -> Result<(), Error> {
//! let (options, clock) = (OpenOptions::default(), MonotonicClock::new());
//! // A client says how long its data is: bound it.
//! let config = Config::named("server").max_message(1 << 20);
//! let server = bmi::endpoint(Scheme::Tcp, &options, config, clock)?;
//! let client = bmi::endpoint(Scheme::Tcp, &options, Config::named("client"), clock)?;
//! let addr = server.listen(&Addr::tcp("127.0.0.1", 0))?;
//!
//! let serving = serve(&server, 64, async |call| {
//!     let block = Memory::zeroed(call.len() as usize)?;
//!     call.fetch(0, &block, call.within(Duration::from_secs(5))).await?;
//!     // ... write `block` to the disk ...
//!     let options = call.within(Duration::from_secs(5));
//!     call.reply(b"stored", None, options).await
//! });
//! let calling = async {
//!     let peer = client.connect(&addr, client.within(Duration::from_secs(5))).await?;
//!     let block = Memory::from(vec![7; 100_000]);
//!     let options = client.within(Duration::from_secs(5));
//!     let call = peer.call(b"write block 9", Body::Out(block.into()), options)?;
//!     assert_eq!(call.reply().await?.bytes, "stored");
//!     Ok(())
//! };
//! let both = async { tokio::select! { never = serving => match never {}, result = calling => result } };
//! event::block_on_all(&[server.clone(), client.clone()], both)?
//! # }
//! ```
//!
//! ## Messages
//!
//! An *expected* message goes into the receive that its peer posts for the tag. An *unexpected*
//! message, such as a request, needs no receive. Every operation takes [`Options`]. Give each a
//! deadline.
//!
//! ```
//! use std::time::Duration;
//!
//! use bmi::driver::{MonotonicClock, event};
//! use bmi::{Addr, Config, Error, Memory, OpenOptions, Scheme};
//!
//! # fn main() -> Result<(), Error> {
//! let open = |name| bmi::endpoint(Scheme::Tcp, &OpenOptions::default(), Config::named(name), MonotonicClock::new());
//! let (a, b) = (open("a")?, open("b")?);
//! let addr = b.listen(&Addr::tcp("127.0.0.1", 0))?;
//!
//! event::block_on_all(&[a.clone(), b.clone()], async {
//!     let soon = a.within(Duration::from_secs(5));
//!     let peer = a.connect(&addr, soon).await?;
//!     // The receive first, then the request that provokes its message.
//!     let buffer = Memory::zeroed(100)?;
//!     let reply = peer.recv(7, &buffer, soon);
//!     peer.send_unexpected(7, b"who are you?".to_vec(), soon).await?;
//!
//!     let request = b.next_unexpected().await;
//!     assert_eq!(request.bytes(), b"who are you?");
//!     request.peer().send(request.tag(), b"b".to_vec(), b.within(Duration::from_secs(5))).await?;
//!
//!     assert_eq!(reply.await?.len, 1);
//!     Ok::<_, Error>(())
//! })?
//! # }
//! ```
//!
//! ## Without an executor
//!
//! The methods of [`Engine`](polled::Engine) post an operation.
//! [`Engine::wait`](polled::Engine::wait) blocks the thread until it ends.
//!
//! ```
//! use std::sync::mpsc;
//! use std::thread;
//! use std::time::Duration;
//!
//! use bmi::driver::MonotonicClock;
//! use bmi::polled::Engine;
//! use bmi::{Addr, Clock, Config, Error, Memory, OpenOptions, Options, PeerEvent, Scheme};
//!
//! fn open(name: &str, clock: &MonotonicClock) -> Result<Engine, Error> {
//!     let transport = bmi::backend::open(Scheme::Tcp, &OpenOptions::default())?;
//!     Engine::new(transport, Config::named(name), clock.now())
//! }
//!
//! # fn main() -> Result<(), Error> {
//! let clock = MonotonicClock::new();
//! let end = clock.now() + Duration::from_secs(5);
//! let (tell, told) = mpsc::channel();
//! let serving = thread::spawn(move || -> Result<(), Error> {
//!     let mut server = open("server", &clock)?;
//!     tell.send(server.listen(&Addr::tcp("127.0.0.1", 0))?).expect("the client waits for it");
//!     let request = server.wait_until(&clock, end, |server| server.poll_unexpected())?;
//!     let (peer, tag) = (request.peer(), request.tag());
//!     let reply = server.post_send(peer, tag, b"the server".to_vec(), Options::by(end))?;
//!     server.wait(reply, &clock, end)?;
//!     // Nothing drives an endpoint but its program: go on until the client has left.
//!     let left = |event| matches!(event, PeerEvent::Lost { .. }).then_some(());
//!     server.wait_until(&clock, end, |server| server.poll_event().and_then(left))
//! });
//! let mut client = open("client", &clock)?;
//! let addr = told.recv().expect("the server listens");
//!
//! let (peer, connecting) = client.connect(&addr, Options::by(end))?;
//! client.wait(connecting, &clock, end)?;
//! let buffer = Memory::zeroed(100)?;
//! let receiving = client.post_recv(peer, 7, &buffer, Options::by(end))?;
//! let request = b"who are you?".to_vec();
//! let sending = client.post_send_unexpected(peer, 7, request, Options::by(end))?;
//! client.wait(sending, &clock, end)?;
//! let received = client.wait(receiving, &clock, end)?;
//! assert_eq!(buffer.slice(0, received.len as usize).to_vec(), b"the server");
//! let closing = client.disconnect(peer, Options::by(end))?;
//! client.wait(closing, &clock, end)?;
//! serving.join().expect("the server's thread")
//! # }
//! ```
//!
//! # Memory
//!
//! An adapter reads and writes memory while the program runs on. So operations never take a borrow.
//! They take [`Memory`], a counted handle that owns its bytes. A `Vec<u8>`, [`Bytes`] or
//! `BytesMut` becomes memory without a copy, and memory becomes `Vec<u8>` or `Bytes` again.
//! Memory made of `Bytes` is read-only ([`Memory::is_read_only`]).
//!
//! Part of a memory is a [`MemSlice`]. Several pieces in order are a [`MemList`], which an
//! operation gathers or scatters. To access the bytes directly, call [`Memory::get_mut`]. It
//! returns `None` while an operation or an exposure holds another handle.
//!
//! ```
//! use bmi::{Bytes, MemList, Memory};
//!
//! let mut block = Memory::zeroed(4096)?;
//! block.get_mut().expect("the only handle")[0] = 1;
//! let header = Memory::from(Bytes::from_static(b"header"));
//! let list: MemList = [header.all(), block.slice(0, 512)].into_iter().collect();
//! assert_eq!(list.len(), 518);
//! assert!(block.get_mut().is_none(), "the list holds a handle");
//! drop(list);
//! assert_eq!(block.into_bytes().len(), 4096);
//! # Ok::<(), bmi::Error>(())
//! ```
//!
//! # Bulk data
//!
//! To let a peer access memory without a call, expose the memory and send the
//! [`BulkDescriptor`](bulk::BulkDescriptor) in a message. The peer then pulls or pushes as many
//! bytes as it wants, with lists of any shape. The exposure ends when it is dropped.
//!
//! ```no_run
//! # use bmi::bulk::{Access, BulkDescriptor};
//! # use bmi::{Error, Memory, Peer};
//! # async fn f(a: &Peer, b: &Peer) -> Result<(), Error> {
//! # let soon = a.within(std::time::Duration::from_secs(1));
//! let memory = Memory::zeroed(1 << 20)?;
//! let exposure = a.expose(&memory, Access::WRITE)?;
//! let wire: Vec<u8> = exposure.descriptor().encode(Vec::new());
//! // ... the peer receives `wire` ...
//! let remote = BulkDescriptor::decode(&wire, 1024)?;
//! b.push(&remote, 4096, vec![1; 100], soon).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Deadlines and errors
//!
//! An operation with a deadline ends by then, whatever the peer does. [`Endpoint::within`]
//! makes [`Options`] with a deadline. Dropping a future abandons its operation.
//!
//! An [`Error`] has the operation, the peer and the reason. [`Error::kind`] says what a caller can
//! do. [`Error::is_retryable`] returns whether the same call may succeed later. When a connection
//! is lost, all operations on it end with `PeerLost`, and the program connects again.
//!
//! ```
//! use std::time::Duration;
//!
//! use bmi::driver::{MonotonicClock, event};
//! use bmi::{Addr, Config, Error, ErrorKind, OpenOptions, Scheme};
//!
//! # fn main() -> Result<(), Error> {
//! let (options, config) = (OpenOptions::default(), Config::named("client"));
//! let client = bmi::endpoint(Scheme::Tcp, &options, config, MonotonicClock::new())?;
//! let connecting = async {
//!     // No program listens at this port.
//!     let addr = Addr::tcp("127.0.0.1", 1);
//!     match client.connect(&addr, client.within(Duration::from_secs(2))).await {
//!         Ok(peer) => println!("connected: {peer:?}"),
//!         Err(error) if error.is_retryable() => println!("again later: {error}"),
//!         Err(error) if error.kind() == ErrorKind::Incompatible => println!("update one side: {error}"),
//!         Err(error) => return Err(error),
//!     }
//!     Ok(())
//! };
//! event::block_on(client.clone(), connecting)?
//! # }
//! ```
//!
//! # Features
//!
//! | feature | what it adds | default |
//! |---|---|---|
//! | `tcp` | `tcp://host:port` | yes |
//! | `ib` | `ib://device/host:port`: RDMA verbs, loaded at run time where there is an adapter | yes |
//! | `shm` | `shm:///path`: processes of one host | yes |
//! | `tokio` | servers, clients and drivers as tasks of a tokio runtime | yes |
//! | `typed` | requests and replies as values that `serde` knows ([`rpc::typed`]) | no |
//! | `tower` | servers and clients as `tower::Service` ([`rpc::tower`]) | no |
//! | `metrics` | counters through the facade `metrics` ([`rpc::metrics`]) | no |
//!
//! Real transports need Linux. To test a protocol in the simulator on another system, depend on
//! `bmi` with `default-features = false`.
//!
//! A backend of your own implements [`backend::Transport`] and is registered with
//! [`OpenOptions::backend`].

#![warn(missing_docs)]

mod backends;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod group;
mod host;
pub mod rpc;

pub use bytes::Bytes;

// Calls.
#[doc(inline)]
pub use rpc::{Call, Client, Server};
// What a program needs beside them, over every transport and in a world.
#[doc(inline)]
pub use bmi_core::runtime::{Instant, Task, sleep, spawn, timeout};
// To open the floors below.
pub use backends::{OpenOptions, endpoint, handle, shared_endpoint};
#[doc(inline)]
pub use bmi_core::{Addr, Config, Scheme};
// Endpoints and peers.
#[doc(inline)]
pub use bmi_core::{
    Endpoint, Handle, Message, Operation, Options, Peer, PeerEvent, PeerId, SharedEndpoint, SharedPeer, Tag,
};
// Calls of the floor below.
#[doc(inline)]
pub use bmi_core::comm::{Body, Incoming, Reply, serve};
// Memory.
#[doc(inline)]
pub use bmi_core::{MemList, MemSlice, Memory};
// Who is there.
#[doc(inline)]
pub use bmi_core::{Newcomer, PeerIdentity, PeerPolicy};
// Errors and time.
#[doc(inline)]
pub use bmi_core::{Clock, Error, ErrorKind, Time};

#[doc(inline)]
pub use bmi_core::driver;

/// Where a program runs: tasks, time and random numbers, outside and in a simulated world.
pub mod runtime {
    #[doc(inline)]
    pub use bmi_core::runtime::*;
}

/// The parts of settings: of endpoints, of operations, of transports.
pub mod config {
    #[doc(inline)]
    pub use bmi_core::{
        CreditConfig, Device, HandleConfig, LimitConfig, Lists, MemoryConfig, ServiceClass, TimeoutConfig,
    };
    #[cfg(feature = "ib")]
    #[doc(inline)]
    pub use bmi_ib::IbConfig;
    #[cfg(feature = "shm")]
    #[doc(inline)]
    pub use bmi_shm::ShmConfig;
    #[cfg(feature = "tcp")]
    #[doc(inline)]
    pub use bmi_tcp::TcpConfig;
    #[cfg(any(feature = "tcp", feature = "ib"))]
    #[doc(inline)]
    pub use bmi_tls::Security;
}

/// Bulk data: memory that a peer accesses without a call.
pub mod bulk {
    #[doc(inline)]
    pub use bmi_core::{Access, BulkDescriptor, Exposure, Grant, RemoteKey, RemoteSlice, extents};
}

/// The parts of calls that few programs name.
pub mod calls {
    #[doc(inline)]
    pub use bmi_core::comm::{Admission, Call, announced, request_of};
}

/// Registered memory, memory at addresses of the program's own, memory that is read by other
/// processes, places at one distance, and zones of buffers.
pub mod memory {
    #[doc(inline)]
    pub use bmi_core::MemoryRegion;
    #[doc(inline)]
    pub use bmi_core::mem::{Extent, Foreign, PublishedPages, RemoteView, Strided, zone};
}

/// The four paths for the data of a call, and the choice between them.
pub mod paths {
    #[doc(inline)]
    pub use bmi_core::comm::{
        Calibrations, Choice, Crossovers, Direction, Facts, LONGEST_AHEAD, Measured, MessageRule, Miss, Path, Plan,
        Policy, Rule, Thresholds, calibrate,
    };
}

/// The message interface without an executor: operations are posted and polled.
pub mod polled {
    #[doc(inline)]
    pub use bmi_core::{Completion, Engine, OpId, OpKind, Posted, Unexpected};
}

/// What endpoints count.
pub mod stats {
    #[doc(inline)]
    pub use bmi_core::comm::PathCounters;
    #[doc(inline)]
    pub use bmi_core::{Counters, Kept, LogLimit, PeerLimits, Pinned, ResourceUsage};
}

/// Who may use an endpoint, for code that is generic over it.
pub mod threading {
    #[doc(inline)]
    pub use bmi_core::{AnyThread, OneThread, Threading};
}

/// What an endpoint did and when, from both sides of a connection.
pub mod timeline {
    #[doc(inline)]
    pub use bmi_core::timeline::{
        Alignment, Class, Direction, Entry, Merged, Timeline, TimelineOptions, TimelinePeer, Way, What, align, merge,
    };
}

/// Transports by themselves: to open one without an endpoint, to wrap one, or to write one.
pub mod backend {
    pub use crate::backends::{is_built_in, open, open_shards};
    pub use crate::host::host_id;
    #[doc(inline)]
    pub use bmi_core::transport::*;
    #[doc(inline)]
    pub use bmi_core::{Capabilities, CustomScheme, OneSided, Registration, Segment, forward_transport};
}

/// For this project's own tests: seeded bugs and counted steps.
#[doc(hidden)]
pub mod hooks {
    pub use bmi_core::{handed_over, mutated, mutated_each, step, steps};
    #[cfg(feature = "mutants")]
    pub use bmi_core::{longest_job, steps_taken};
}

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
