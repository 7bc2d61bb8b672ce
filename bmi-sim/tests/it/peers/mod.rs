//! What peers can cause: crowds of them, an adversary, changed frames, names that they choose,
//! lines in the log.

mod adversary;
mod evictions;
mod log;
mod mutated;
mod named_by_peers;
