//! Faults: what can go wrong in a world, as data.
//!
//! **Why data.** A [`Plan`] is a list of events with times and names. It is drawn from a seed
//! ([`Swarm`]), printed when a test fails, shrunk to the few events that matter ([`crate::check`]),
//! edited by hand, and run again.
//!
//! **What a connection sees.** The service of a queue pair is reliable (C3, C6): a message arrives
//! once, whole, in its order, or the connection ends. What the wire does to frames shows as one of
//! three things only:
//!
//! | the wire | adapters that send again (InfiniBand, TCP) | adapters that only check |
//! |---|---|---|
//! | a frame is late | the message is late, and what is behind it on the same connection | the same |
//! | frames of two connections change places | queue pairs overtake each other | the same |
//! | a frame is lost or damaged | late by the time-out, which doubles ([`Fault::Lossy`]); lost too often, the connection ends, first at the side that waits for it | the connection ends ([`Fault::Corrupt`]) |
//! | a frame comes twice | dropped by its number: nothing | the same |
//!
//! However a connection ends: of a write that was on its way, some bytes may be in place.
//!
//! **What a node loses.** [`crate::Node::kill`] ends the node's *programs*, as `kill -9` does: what
//! they wrote is in the system's cache and survives. [`Fault::Crash`] takes the power away: memory
//! is lost, what was synced is kept, and of what was not each sector is lost, kept or torn
//! ([`Loss`]); [`Fault::CrashWriting`] does so in the middle of what a store writes at once. Stores
//! that want it real attach themselves to the disk ([`crate::SimDisk::attach`]).
//!
//! **Invariants**
//! 1. A plan and a seed give one run.
//! 2. Every fault ends: after [`Plan::end_us`] nodes are up, links are whole, disks work.
//! 3. Faults of a plan draw from their own salts, and of two that overlap none ends the other:
//!    leaving one out changes no other.
//!
//! Tested by `tests/faults.rs`, `tests/chaos.rs`, and by whatever uses [`crate::check`].

mod apply;
mod draw;
mod ends;
pub(crate) mod link;
mod loss;
mod plan;

pub(crate) use apply::Lasting;
pub use draw::{Kind, Swarm};
pub use loss::{DiskUser, Fate, Loss, SECTOR};
pub use plan::{At, BadPlan, Fault, Plan};
