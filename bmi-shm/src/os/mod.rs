//! What the system offers: memfds, mappings and the memory of other processes (`sys`), the Unix
//! socket with its names and descriptors (`socket`). Knows no ring and no connection.

pub(crate) mod socket;
pub(crate) mod sys;
