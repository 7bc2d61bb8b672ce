//! Building blocks that are necessarily the same in every backend.
//!
//! **Why.** The contract ([`bmi_core::transport`]) requires some things of each backend that do not
//! depend on how its bytes travel: connection ids that are never reused (C6), connecting without
//! blocking (C1), a next deadline (C12), limits with descriptive errors, and, in a software
//! adapter, checked keys and bounds (C7). Three backends contained the same code for them.
//!
//! **Not here** is code that is similar only by accident:
//! - The loop of a poll. Its steps are the parts below, but each backend has steps of its own
//!   between them, and their order follows from how its bytes travel.
//! - The queue of events of shared memory. It also holds the memory of work that was done while it
//!   was posted, and is on the data path.
//! - The phases and the end of a connection. Verbs drain a queue pair, TCP ends a stream, and
//!   shared memory reads a ring to its end.
//!
//! | where | what | tcp | ib | shm |
//! |---|---|---|---|---|
//! | [`ConnectionTable`] | the connections, identified by slot and generation | x | x | x |
//! | [`SlotQueue`] | the connections that have something to do | x | x | x |
//! | [`EventQueue`] | the events that no poll has reported yet | x | x | |
//! | [`Deadlines`] | the earliest of all deadlines; log lines that peers can cause | x | x | x |
//! | [`Listeners`] | accepting in turns, and retrying after a shortage of descriptors | x | x | x |
//! | [`HalfOpen`] | accepted connections that have not introduced themselves | x | x | x |
//! | [`Shard`] | several transports behind one listening address | x | x | x |
//! | [`Fault`], [`Violation`] | why a connection ends, and the error that reports it | x | x | x |
//! | [`Limit`], [`listen_failed`], [`request_gone`], and others | actionable errors of the system, a limit or a call | x | x | x |
//! | [`Regions`] | registered regions, and whether segments belong to them | x | x | x |
//! | [`WorkLimits`] | checks of a work request against the capabilities | x | x | x |
//! | [`Helpers`] | threads for calls that may block | x | x | |
//! | [`waker`] | the waker of a transport that has a descriptor to wait on | x | x | x |
//! | [`software`] | exposures, keys, refusals, capabilities of an adapter without hardware | x | | x |
//! | [`net`] (feature `net`) | host names, TCP listeners, dialing | x | x | |
//!
//! **Rooms.** `accept` and `tables` (the connections and what they have to do) use `check` (limits,
//! errors). So do `regions`, [`software`] and [`net`], which also uses `helpers`. `fault` uses
//! `check` and [`software`].
//!
//! The simulator uses only the checks. `docs/design/transport.md` says why, and why this is no
//! module of `bmi-core`.
//!
//! **Invariants** are in each module. Nothing here holds a lock across a call or allocates on the
//! data path.
//!
//! **Tests** are here, and in the conformance suite for each backend.

mod accept;
mod check;
mod fault;
mod helpers;
#[cfg(feature = "net")]
pub mod net;
mod regions;
pub mod software;
mod tables;

pub use accept::{HalfOpen, Limits, Listeners, Place, Round, Shard};
pub use check::{
    Limit, WorkLimits, check_private, check_scheme, connection_ended, listen_failed, lost, request_gone, total_len,
    unreached,
};
pub use fault::{Fault, Violation};
pub use helpers::{Helpers, Outcome, waker};
pub use regions::Regions;
pub use tables::{ConnectionTable, Deadlines, EventQueue, SlotQueue, Turn};
