//! What the author of a backend needs that is the same in every backend by its nature.
//!
//! **Why.** The contract ([`bmi_core::transport`]) asks some things of each backend that have
//! nothing to do with how its bytes travel: names of connections that are never given twice (C6),
//! connecting without blocking (C1), a next deadline (C12), limits that are told in words, and, in
//! an adapter made of software, keys and bounds that are checked (C7). Three backends had written
//! them three times, line for line. What is alike by accident only, such as the methods of a trait
//! that each hands to its own parts, is not here.
//!
//! | where | what | tcp | ib | shm |
//! |---|---|---|---|---|
//! | [`ConnectionTable`] | the connections, named by slot and generation | x | x | x |
//! | [`Deadlines`] | the earliest of all time limits | x | x | x |
//! | [`Listeners`] | accepting in turns, and again when descriptors were short | x | x | x |
//! | [`Limit`], [`listen_failed`], [`lost`], [`unreached`] | what the system or a limit refused, as a caller can act on it | x | x | x |
//! | [`software`] | registrations, exposures, keys, refusals, capabilities of an adapter without hardware | x | | x |
//! | [`net`] (feature `net`) | host names, TCP listeners, dialing | x | x | |
//!
//! The simulator takes none of it: its connections stand in the world's tables, since both sides
//! are in one program, and its keys come from the run's seed. It uses no sockets.
//!
//! **Not in `bmi-core`**, because that does no I/O and starts no thread, and this does: names are
//! looked up on a thread, and sockets are made.
//!
//! **Invariants** are each module's own. Nothing here takes a lock across a call or allocates on
//! the data path.
//!
//! **Tests** here, and the conformance suite over each backend.

mod connection_table;
mod deadlines;
mod listeners;
#[cfg(feature = "net")]
pub mod net;
mod refused;
pub mod software;

pub use connection_table::ConnectionTable;
pub use deadlines::Deadlines;
pub use listeners::{Listeners, Round};
pub use refused::{Limit, check_private, check_scheme, listen_failed, lost, unreached};
