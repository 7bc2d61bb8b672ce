//! Thin loops that drive an endpoint, waiting as [`Waiting`] says: `thread` (feature `thread`) on
//! the calling thread with `poll(2)`, `event` (feature `tokio`) under tokio. [`busy`] polls several
//! endpoints without pause. The simulator has its own in `bmi-sim`.

pub mod busy;
#[cfg(feature = "tokio")]
pub mod event;
#[cfg(feature = "thread")]
pub mod thread;
mod waiting;

pub use waiting::{Spin, Waiter, Waiting};

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
