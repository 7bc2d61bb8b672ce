//! The communication manager. It chooses the path of each request's data, and carries the calls
//! out.
//!
//! **Why.** A storage request comes with data of any size, in memory that may or may not be
//! registered, for a peer that may or may not have room for it. There are four paths, and each is
//! best in some case ([PVFS-IB §3.2.3, §4.1]). A program need not know them. It makes a call
//! ([`Peer::call`](crate::Peer::call)) with a request and a list of memory. The server takes an
//! [`Incoming`] and fetches or stores the data, whatever the path.
//!
//! **Protocol.** `docs/design/protocol.md`, section 10, draws the messages of each path, and
//! `ARCHITECTURE.md` says when it is chosen. A *hybrid* is client-based for writes and server-based
//! for reads: RDMA write both ways.
//!
//! **Source.** [PVFS-IB §3.2.3] (mechanisms), [PVFS-IB §3.4] (choice), [PVFS-IB §4.1] (inline, fast
//! RDMA). There are two differences. The thresholds are measured ([`Thresholds`]). A path that has
//! no room right now is passed over, not waited for.

mod admission;
mod calibration;
mod call;
mod incoming;
mod packing;
mod server;

pub use admission::Admission;
pub use calibration::{Calibrations, Curve, MATERIAL, Measured, adapter, calibrate, measure};
pub use call::{Body, Call, Reply};
pub use incoming::{Incoming, announced, request_of};
pub use server::serve;

pub use crate::paths::{
    Choice, Crossovers, Direction, Facts, LONGEST_AHEAD, MessageRule, Miss, Path, PathCounters, Plan, Policy, Rule,
    Thresholds,
};
