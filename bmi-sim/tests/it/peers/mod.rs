//! What peers can cause: crowds of them, changed frames, names that they choose, lines in the log.

mod evictions;
mod log;
mod mutated;
mod named_by_peers;
