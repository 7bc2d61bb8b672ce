//! How a message leaves and arrives. `send` and `receive` post, `decide` says which way a message
//! goes: eager, into an offered receive, into a fast-RDMA slot, or by rendezvous. Each way is a
//! file with both sides of its protocol.

mod decide;
pub(in crate::engine) mod eager;
pub(in crate::engine) mod fast_rdma;
mod inline_receive;
pub(in crate::engine) mod offered_receive;
pub(in crate::engine) mod probe;
mod receive;
pub(in crate::engine) mod rendezvous;
mod rules;
mod send;
pub(in crate::engine) mod write_rendezvous;

pub(in crate::engine) use inline_receive::InlineReceives;
pub(crate) use probe::{AREA, ProbePath};
pub(in crate::engine) use send::{pump, return_credits};
