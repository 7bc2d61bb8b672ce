//! Which faults, and how often.

/// A plan of faults: data only. Chances are in thousandths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// All randomness comes from this.
    pub seed: u64,
    /// Chance that a post of a send, a write or a read says `QueueFull`. Never a receive: the
    /// protocol posts as many as the capabilities promise room for, and counts on it.
    pub queue_full: u32,
    /// Chance that an event, once it stands at the front, is held back.
    pub late: u32,
    /// For at most how many polls.
    pub late_polls: u32,
    /// Most events that a poll reports; 0 for as many as there are.
    pub batch: usize,
    /// Chance that a message which is let through is shown to the caller's receiver first (C16),
    /// and that one which the transport inside shows is handed on to it.
    pub inline: u32,
    /// Chance that a registration or an exposure is refused, `Exhausted`.
    pub register: u32,
    /// Chance, at each poll, that one connection is cut.
    pub cut: u32,
}

impl Plan {
    /// No faults at all.
    pub const NONE: Plan =
        Plan { seed: 0, queue_full: 0, late: 0, late_polls: 1, batch: 0, inline: 0, register: 0, cut: 0 };

    /// Trouble that the contract allows and that must not show above: full queues, late events,
    /// small batches, messages that are shown or not.
    pub const fn mild(seed: u64) -> Plan {
        Plan { seed, queue_full: 200, late: 300, late_polls: 8, batch: 3, inline: 500, ..Plan::NONE }
    }

    /// Trouble that makes operations fail: refused registrations and cut connections, on top of the
    /// mild kind.
    pub const fn rough(seed: u64) -> Plan {
        Plan { register: 100, cut: 10, ..Plan::mild(seed) }
    }
}
