//! Locks of a node's program, and the memory bus that its cores share: what cores with a loop each
//! take from each other.
//!
//! **Locks.** A core that takes a lock holds it for [`Profile::lock_hold_ns`]. If another core was
//! the last one to hold it, the core first fetches [`Profile::lock_lines`] cache lines, each in
//! [`Profile::cache_line_ns`], and holds the lock meanwhile. A core that wants a lock that is held
//! spins: it does nothing else until it has the lock.
//!
//! **Memory bus.** On a node with transports that are bound to cores ([`crate::Node::shards`]), the
//! bytes that copies and the adapter move share the memory bus: together they use it for at most
//! all of the time. A copy ends when its core is done and the bus has carried its bytes. The
//! kernel's copies need the bus for all of their time. On other nodes a copy shares the bus with
//! the adapter only ([`super::cpu`]).
//!
//! **Differences from real machines.** Locks are given in order of the cores' clocks, not in order
//! of arrival. Cores that spin do not slow the one that holds the lock.
//!
//! [`Profile::lock_hold_ns`]: crate::Profile::lock_hold_ns
//! [`Profile::lock_lines`]: crate::Profile::lock_lines
//! [`Profile::cache_line_ns`]: crate::Profile::cache_line_ns

use super::calendar::Calendar;

/// A lock of a node's program.
#[derive(Debug)]
pub(crate) struct Lock {
    pub(crate) name: &'static str,
    pub(super) calendar: Calendar,
    /// How long it was held, or will be as it is booked, in ns.
    pub(super) booked: u64,
}

impl Lock {
    /// Returns how long it was held up to `now`, in ns.
    pub(crate) fn held(&self, now: u64) -> u64 {
        self.booked - self.calendar.booked_after(now)
    }
}

/// The memory bus of a node with a program on several cores.
#[derive(Debug, Default)]
pub(crate) struct MemoryBus {
    calendar: Calendar,
    /// How long it was used, or will be as it is booked, in ns.
    booked: u64,
}

impl MemoryBus {
    /// Returns how long it was used up to `now`, in ns.
    pub(crate) fn used(&self, now: u64) -> u64 {
        self.booked - self.calendar.booked_after(now)
    }

    /// Books the bus for `ns` from `from` on. Returns when its bytes have crossed it.
    pub(crate) fn book(&mut self, now: u64, from: u64, ns: u64) -> u64 {
        self.booked = self.booked.saturating_add(ns);
        self.calendar.book_in_pieces(now, from, ns)
    }
}
