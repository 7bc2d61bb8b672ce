//! Thin loops that drive an endpoint: [`busy`] polls without pause, `event` (feature `tokio`) sleeps on the transport's event fd.
//! The simulator has its own in `bmi-sim`.

pub mod busy;
#[cfg(feature = "tokio")]
pub mod event;

use std::time::{Duration, Instant};

use crate::time::{Clock, Time};

/// The machine's monotonic clock; its origin is when it was made.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock(Instant);

impl MonotonicClock {
    /// A clock that starts now.
    #[expect(clippy::disallowed_methods, reason = "drivers are where the wall clock comes in")]
    pub fn new() -> MonotonicClock {
        // One second ahead, so that no reading is `Time::ZERO`.
        MonotonicClock(Instant::now() - Duration::from_secs(1))
    }
}

impl Default for MonotonicClock {
    fn default() -> MonotonicClock {
        MonotonicClock::new()
    }
}

impl Clock for MonotonicClock {
    #[expect(clippy::disallowed_methods, reason = "drivers are where the wall clock comes in")]
    fn now(&self) -> Time {
        Time::ZERO + Instant::now().duration_since(self.0)
    }
}
