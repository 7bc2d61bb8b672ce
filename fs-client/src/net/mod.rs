//! Reaching servers: over which transport and why (`route`), which are avoided (`servers`), and a
//! request with its repetitions (`connection`).

mod connection;
mod route;
mod servers;

pub(crate) use connection::{Answer, Connections, Outgoing, Resend, unexpected};
pub(crate) use route::Preference;
pub use route::{Endpoints, Route, TransportChoice};
