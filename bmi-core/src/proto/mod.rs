//! The protocol's parts that need no endpoint: what stands on the wire, who may send how much, what
//! matches what, when something is due. No I/O, no clock; each is tested alone.

pub(crate) mod credit;
pub(crate) mod header;
pub(crate) mod hello;
pub(crate) mod matching;
pub(crate) mod one_or_many;
pub(crate) mod receive_slots;
pub(crate) mod table;
pub(crate) mod timers;
