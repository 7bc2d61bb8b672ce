//! Which faults happen, and how often.

/// A plan of faults, as data. Chances are in thousandths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The source of all randomness.
    pub seed: u64,
    /// Chance that posting a send, a write or a read returns `QueueFull`. Receives are never
    /// refused: the protocol posts as many as the capabilities promise room for, and relies on it.
    pub queue_full: u32,
    /// Chance that an event at the front is held back.
    pub late: u32,
    /// Maximum number of polls for which an event is held back.
    pub late_polls: u32,
    /// Maximum number of events that a poll reports; 0 for no limit.
    pub batch: usize,
    /// Chance that a message which is let through is first shown to the caller's receiver (C16).
    /// Also the chance that a message which the inner transport shows is passed on to that
    /// receiver.
    pub inline: u32,
    /// Chance that a registration or an exposure is refused with `Exhausted`.
    pub register: u32,
    /// Chance, at each poll, that one connection is cut.
    pub cut: u32,
}

impl Plan {
    /// No faults.
    pub const NONE: Plan =
        Plan { seed: 0, queue_full: 0, late: 0, late_polls: 1, batch: 0, inline: 0, register: 0, cut: 0 };

    /// Faults that the contract allows and that must have no visible effect above: full queues,
    /// late events, small batches, messages that are shown or not.
    pub const fn mild(seed: u64) -> Plan {
        Plan { seed, queue_full: 200, late: 300, late_polls: 8, batch: 3, inline: 500, ..Plan::NONE }
    }

    /// Faults that make operations fail: refused registrations and cut connections, in addition to
    /// the mild kind.
    pub const fn rough(seed: u64) -> Plan {
        Plan { register: 100, cut: 10, ..Plan::mild(seed) }
    }
}
