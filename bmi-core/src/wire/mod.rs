//! The parts of the protocol that need no endpoint: the wire format, credits, tag matching, names
//! that peers give, and timers. [`crate::engine`] puts them together.
//!
//! These modules do no I/O and read no clock. Each is tested alone.

mod bulk;
pub(crate) mod call;
pub(crate) mod credit;
pub(crate) mod describe;
pub mod extents;
pub(crate) mod header;
pub(crate) mod hello;
pub(crate) mod matching;
pub(crate) mod named;
pub(crate) mod table;
pub(crate) mod timers;

pub use bulk::BulkDescriptor;

/// A violation of the protocol, for which a peer is cut off. The text follows "it sent".
pub(crate) type Violation = &'static str;
