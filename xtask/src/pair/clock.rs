//! The clock of this machine: `CLOCK_MONOTONIC`.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the time in nanoseconds.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Waits until `is` returns true. Returns false if that takes longer than `limit`.
#[expect(clippy::disallowed_methods, reason = "real processes in real time")]
pub(super) fn until(limit: Duration, mut is: impl FnMut() -> bool) -> bool {
    let end = now_ns() + limit.as_nanos() as u64;
    while !is() {
        if now_ns() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}
