//! The clock that all processes of a run share: `CLOCK_MONOTONIC`.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the time in microseconds.
pub(super) fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// Waits.
#[expect(clippy::disallowed_methods, reason = "the run is of real processes in real time")]
pub(super) fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// Waits until `is` returns true. Returns false if that takes longer than `limit`.
pub(super) fn until(limit: Duration, mut is: impl FnMut() -> Result<bool, String>) -> Result<bool, String> {
    let end_us = now_us() + limit.as_micros() as u64;
    while !is()? {
        if now_us() >= end_us {
            return Ok(false);
        }
        sleep(Duration::from_millis(10));
    }
    Ok(true)
}
