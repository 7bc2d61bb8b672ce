//! Peers that break the protocol, and programs and faults that are drawn. Ways in: the behaviours
//! of each file.

pub mod hostile;
mod intruder;
pub mod property;
pub mod recycled;
pub mod rough;
