//! Which of two policies gives up a unit, if the cache has units of both.
//!
//! **Why.** Files of [`super::Policy::Lru`] and of [`super::Policy::ScanResistant`] share the
//! cache. Suppose that the policy with more bytes gave up units. Then a file that is read once
//! would take half of the cache from files that are read all the time. The same happens if shares
//! follow insertions: what is always found in the cache is never inserted.
//!
//! **Rule.** A share follows what it is worth: how many bytes of uses the last tenth of the cache
//! would save each policy.
//! - *Lru* remembers which units it has evicted. If one comes back after at most a tenth of the
//!   cache was evicted, it would be a hit if the policy had a tenth more.
//! - *ScanResistant* knows what the ends of its queues are worth ([`super::scan_resistant`]).
//!
//! Each such use adds its bytes to the share of the policy, and takes them from the share of the
//! other one. So shares are at rest where both save the same. The policy that has more than its
//! share gives up the next unit. At first the shares are equal. A policy that does not use its
//! share leaves it to the other one.
//!
//! **Invariant.** The shares are not negative, and together they are the whole.
//!
//! **Source.** ARC (Megiddo and Modha, FAST 2003) shares a cache between its two lists by what
//! comes back after its eviction.
//!
//! **Tests.** `tests/balance.rs`.

/// The shares of the two policies.
#[derive(Debug)]
pub(super) struct Balance {
    capacity_bytes: u64,
    /// Bytes of the capacity that are the share of `Lru`. The rest is that of `ScanResistant`.
    lru_bytes: u64,
}

impl Balance {
    pub(super) fn new(capacity_bytes: u64) -> Balance {
        Balance { capacity_bytes, lru_bytes: capacity_bytes / 2 }
    }

    /// A tenth of the capacity saves `Lru` a use of that many bytes.
    pub(super) fn lru_saves(&mut self, bytes: u64) {
        self.lru_bytes = self.lru_bytes.saturating_add(bytes).min(self.capacity_bytes);
    }

    /// A tenth of `room`, which is what it may use, saves `ScanResistant` a use of that many bytes.
    pub(super) fn scan_resistant_saves(&mut self, bytes: u64, room: u64) {
        let parts = self.capacity_bytes / room.max(1);
        self.lru_bytes = self.lru_bytes.saturating_sub(bytes.saturating_mul(parts.max(1)));
    }

    /// Returns true if `Lru` gives up the next unit. The arguments are the bytes of both.
    pub(super) fn is_lru_next(&self, lru: u64, scan_resistant: u64) -> bool {
        let share = u128::from(self.lru_bytes) * (u128::from(lru) + u128::from(scan_resistant));
        lru > 0 && u128::from(lru) * u128::from(self.capacity_bytes) > share
    }
}
