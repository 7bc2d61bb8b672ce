//! Faults of a world, as data.
//!
//! **Why data.** A [`Plan`] is a list of events with times and names. It can be drawn from a seed
//! ([`Swarm`]), printed when a test fails, shrunk to the few events that matter ([`crate::check`]),
//! edited by hand, and run again.
//!
//! **What a connection sees.** The service of a queue pair is reliable (C3, C6): a message arrives
//! once, whole and in order, or the connection ends. So faults of the wire show in few ways:
//!
//! | the wire | adapters that send again (InfiniBand, TCP) | adapters that only check |
//! |---|---|---|
//! | a frame is late | the message is late, and so are later ones on the connection | the same |
//! | frames of two connections change places | queue pairs overtake each other | the same |
//! | a frame is lost or damaged | late by the time-out, which doubles | the connection ends |
//! | | ([`Fault::Lossy`]) | ([`Fault::Corrupt`]) |
//! | a frame is lost too often | the connection ends, first at the side that waits | |
//! | a frame comes twice | no effect: dropped by its number | the same |
//!
//! When a connection ends while a write is on its way, some bytes of the write may be in place.
//!
//! **What a node loses.** [`crate::Node::kill`] ends the node's *programs*, as `kill -9` does.
//! Their writes are in the system's cache and survive. [`Fault::Crash`] takes the power away.
//! Memory is lost and synced data is kept. Each sector that was not synced is lost, kept or torn
//! ([`Loss`]). [`Fault::CrashWriting`] does so in the middle of the writes that a store makes at
//! once. Stores that want to model this attach themselves to the disk ([`crate::SimDisk::attach`]).
//!
//! **Invariants**
//! 1. A plan and a seed give one run.
//! 2. Every fault ends: after [`Plan::end_us`] nodes are up, links are whole, disks work.
//! 3. Each fault of a plan draws from its own salt, and of two overlapping faults neither ends the
//!    other. So leaving out one fault changes no other.
//!
//! Tested by `tests/it/faults.rs`, `tests/chaos.rs`, and by all users of [`crate::check`].

mod draw;
mod lasting;
pub(crate) mod link;
pub(crate) mod loss;
mod plan;

pub use draw::{Kind, Swarm};
pub(crate) use lasting::Lasting;
pub use loss::{DiskUser, Fate, Loss, SECTOR};
pub use plan::{At, BadPlan, Fault, Plan};
