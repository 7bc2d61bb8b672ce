//! Reaching servers: over which transport and why (`route`), which are avoided (`servers`),
//! connections (`connection`), and a request with its repetitions (`request`).

mod connection;
mod numbers;
mod request;
mod route;
mod servers;
mod tickets;

pub(crate) use connection::Connections;
pub(crate) use request::{Answer, Outgoing, Resend, unexpected};
pub(crate) use route::Preference;
pub use route::{Endpoints, Route, TransportChoice};
