//! What a program that embeds the transport depends on: the message interface of `bmi-core`, and
//! transports opened by the scheme of an address.
//!
//! **Why.** A program that names a backend's type is built for that backend. Most want to be told
//! at run time, by an address, which one to use, and to go on with another if this machine does not
//! have it. [`open`] gives them any backend as a `Box<dyn Transport>`.
//!
//! | feature | scheme | backend |
//! |---|---|---|
//! | `tcp` | `tcp://host:port` | `bmi-tcp`: everywhere |
//! | `ib` | `ib://device/host:port` | verbs: where there is an adapter |
//! | `shm` | `shm:///path` | memory shared between processes of one host |
//!
//! All are on by default, and each can be left out. The simulator is not among them: its transports
//! belong to a world.
//!
//! ```
//! use bmi::{Addr, OpenOptions, Transport};
//!
//! let addr: Addr = "tcp://127.0.0.1:0".parse()?;
//! let mut transport = bmi::open(addr.scheme(), &OpenOptions::default())?;
//! println!("listening on {}", transport.listen(&addr)?);
//! # Ok::<(), bmi::Error>(())
//! ```

mod host;
mod open;

pub use bmi_core::*;
#[cfg(feature = "ib")]
pub use bmi_ib;
#[cfg(feature = "shm")]
pub use bmi_shm;
#[cfg(feature = "tcp")]
pub use bmi_tcp;

pub use host::host_id;
pub use open::{AnyTransport, OpenOptions, endpoint, is_built_in, open};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
