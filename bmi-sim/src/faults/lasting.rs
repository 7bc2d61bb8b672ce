//! The faults of a plan that still affect a node.

/// The times, in ns, until which the faults of a plan affect a node; 0 without a fault. Of two
/// faults that overlap, the longer one counts: neither ends the other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lasting {
    pub(crate) paused: u64,
    pub(crate) down: u64,
    pub(crate) full: u64,
    pub(crate) broken: u64,
    /// The power fails in the middle of a write: for how many µs, and with which salt.
    pub(crate) armed: Option<(u64, u32)>,
}
