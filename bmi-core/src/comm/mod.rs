//! The communication manager: which way the data of each request takes, and the calls that carry it
//! out.
//!
//! **Why.** A storage request comes with data of any size, in memory that may or may not be
//! registered, for a peer that may or may not have room for it. There are four ways to move it,
//! each the best somewhere ([PVFS-IB §3.2.3, §4.1]). A program should not have to know:
//! it makes a [`Caller`] call with a request and a list of memory, and the server takes an
//! [`Incoming`] and fetches or stores, whatever the path.
//!
//! **Protocol**
//!
//! ```text
//!  path           write                                      read
//!  inline         request + data ─────────────>              request ────────────────────>
//!                                <───── reply                         <───── reply + data
//!  fast RDMA      request + data ══> slot                    request + user's memory, or nothing ──>
//!                                <───── reply                         <══ data, reply    or   slot <══ reply + data
//!  server-based   request + memory ───────────>              request + memory ───────────>
//!                        <══ RDMA reads, in units                     ══ RDMA writes, in units ══>
//!                                <───── reply                         <───── reply
//!  client-based   request ────────────────────>              request ────────────────────>
//!                                <───── grants                        <───── grants
//!                 RDMA writes, the last with immediate ══>   RDMA reads ══, taken ──────>
//!                                <───── reply                         <───── reply
//!  hybrid         client-based for writes, server-based for reads: RDMA write both ways
//! ```
//!
//! **Source.** [PVFS-IB §3.2.3] (mechanisms), 3.4 (choice), 4.1 (inline, fast RDMA). Where
//! we differ: the thresholds are measured ([`Thresholds`]), and a path that has no room right now
//! is passed over rather than waited for.

mod calibrate;
mod call;
mod incoming;
mod packed;
mod path;
mod plan;
mod policy;
mod server;
mod wire;

pub use calibrate::{Calibrations, Curve, MATERIAL, Measured, adapter, calibrate, measure};
pub use call::{Body, Call, Caller, Reply};
pub use incoming::{Incoming, announced};
pub use path::{Direction, Miss, Path, PathCounters};
pub use plan::{Plan, Rule};
pub use policy::{Choice, Crossovers, Facts, LONGEST_AHEAD, Policy, Thresholds};
pub use server::serve;
pub(crate) use wire::REPLY_HEAD;
