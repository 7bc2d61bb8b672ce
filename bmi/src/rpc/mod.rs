//! Calls: a [`Server`] that answers them, a [`Client`] that makes them.
//!
//! This is the interface that most programs use. It connects and connects again, bounds what is
//! under way, gives every call a deadline, and moves data of any length by the best path. The same
//! program runs over TCP, verbs and shared memory, and in a simulated world.
//!
//! ```
//! use bmi::{Client, Error, Server};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Error> {
//! let server = Server::bind("tcp://127.0.0.1:0").await?;
//! let addr = server.addrs()[0].clone();
//! let serving = tokio::spawn(async move {
//!     let handler = |call: bmi::Call| async move {
//!         let data = call.data().await?;
//!         call.reply(b"the same").data(data).await
//!     };
//!     server.serve(handler).await
//! });
//!
//! let client = Client::new(addr);
//! let reply = client.call(b"echo").data(vec![7; 100_000]).await?;
//! assert_eq!((&reply.bytes[..], reply.data.len()), (&b"the same"[..], 100_000));
//! # Ok(())
//! # }
//! ```
//!
//! **Deadlines.** A call has 10 s, unless it says otherwise. The deadline travels with it. The
//! handler is dropped a little before it passes, and the client's call ends when it passes.
//!
//! **Lengths.** Neither side need know how much the other sends. The reply's data comes in one
//! round trip up to what the client offers, and with one more above: 64 KiB by default, or as much
//! as the last replies had. Memory is taken within the limits.
//!
//! **Parts.** A call may be a [`Stream`]: request and reply come in parts, at the pace of whoever
//! is slower.
//!
//! **Limits.** Every number of calls and of bytes has a limit and a default. A call beyond those of
//! the server ends with [`Busy`](crate::ErrorKind::Busy) or
//! [`TooLarge`](crate::ErrorKind::TooLarge). The text names the setting.
//!
//! **Failures.** Before a request was sent, the client tries again and again, with the next
//! address, until the deadline. So a program that repeats its calls is no busy loop. Afterwards it
//! sends it again only if the program says that this is safe ([`Request::idempotent`]), or if the
//! server has said that it has not begun.
//!
//! **How it is made.** Of a [`Handle`] on either side: [`Peer::call`] and [`Incoming`].
//! `rpc/wire.rs` has the layout of what goes in front of requests and replies. The choice of the
//! path is the communication manager's ([`crate::paths`]).
//!
//! [`Handle`]: crate::Handle
//! [`Peer::call`]: crate::Peer::call
//! [`Incoming`]: crate::Incoming
//!
//! **Tests.** `bmi/tests/it`, over TCP, shared memory and in a world.

mod addrs;
mod client;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(not(feature = "metrics"))]
mod metrics;
mod server;
#[cfg(feature = "tower")]
pub mod tower;
mod trace;
#[cfg(feature = "typed")]
pub mod typed;
mod wire;

use std::time::Duration;

use bmi_core::Device;
use bmi_core::runtime::MonotonicTime;

pub use self::addrs::IntoAddrs;
pub use self::client::{Client, ClientBuilder, LinkState, Reply, Request, Stream};
pub use self::server::{Call, Replying, Server, ServerBuilder};
pub use self::trace::Trace;
pub(crate) use self::wire::{code_of, kind_of};
use crate::config::HandleConfig;
use crate::polled::Engine;
use crate::{Addr, Clock, Config, Error, Handle, OpenOptions, Scheme, backends};

/// Longest data of a call or of a reply, unless a program sets another limit.
const DEFAULT_MOST_DATA: u64 = 16 << 20;
/// Bytes of data that are under way on one side, unless a program sets another limit.
const DEFAULT_MOST_BYTES: u64 = 256 << 20;
/// The time for an answer that no deadline of a call bounds.
const GRACE: Duration = Duration::from_secs(1);
/// Parts of a stream that are under way in one direction, at most.
const WINDOW: usize = 8;
/// Bytes for one permit of a semaphore, which counts them with 32 bits.
const PERMIT: u64 = 1 << 12;

/// Returns the number of permits for so many bytes.
fn permits(bytes: u64) -> usize {
    usize::try_from(bytes.div_ceil(PERMIT)).unwrap_or(usize::MAX).min(u32::MAX as usize)
}

/// What an endpoint is at: a transport, and the adapter if the address names one.
type Place = (Scheme, Option<Device>);

fn place(addr: &Addr) -> Place {
    (addr.scheme(), addr.device().cloned())
}

/// Opens an endpoint for each scheme of the addresses, behind one handle, and listens at them.
fn listen(options: &OpenOptions, config: &Config, addrs: &[Addr]) -> Result<(Handle, Vec<Addr>), Error> {
    let mut places: Vec<Place> = Vec::new();
    let mut engines = Vec::new();
    let mut of_addr = Vec::new();
    for addr in addrs {
        let place = place(addr);
        let at = places.iter().position(|known| *known == place);
        if at.is_none() {
            engines.push(engine(options, config, addr)?);
            places.push(place);
        }
        of_addr.push(at.unwrap_or(places.len() - 1));
    }
    let handle = Handle::start(engines, MonotonicTime, HandleConfig::default())?;
    let endpoints: Vec<_> = handle.endpoints().collect();
    let listen = |(addr, at): (&Addr, usize)| endpoints[at].listen(addr);
    let addrs = addrs.iter().zip(of_addr).map(listen).collect::<Result<_, _>>()?;
    drop(endpoints);
    Ok((handle, addrs))
}

/// Opens an endpoint for connections to an address.
fn open(options: &OpenOptions, config: &Config, addr: &Addr) -> Result<Handle, Error> {
    Handle::start(vec![engine(options, config, addr)?], MonotonicTime, HandleConfig::default())
}

fn engine(options: &OpenOptions, config: &Config, addr: &Addr) -> Result<Engine, Error> {
    let options = options.clone().at(addr);
    Engine::new(backends::open(addr.scheme(), &options)?, config.clone(), MonotonicTime.now())
}
