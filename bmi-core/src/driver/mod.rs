//! Loops that drive an endpoint. The protocol does nothing by itself: a driver polls it, wakes
//! futures, and sleeps when there is nothing to do.
//!
//! | driver | for |
//! |---|---|
//! | `event` (feature `tokio`) | `async` programs under tokio: sleeps, polls, or both ([`Waiting`]) |
//! | [`thread`] | `async` code on one thread without a runtime |
//! | [`busy`] | the lowest latency on a core of its own; several endpoints |
//! | [`Endpoint::wait`](crate::Endpoint::wait) | programs without an executor |
//!
//! All but [`busy`] sleep while there is nothing to do, on the transport's event fd or, for a
//! transport that has none, until its waker is called. The simulator has its own driver in `bmi-sim`.

pub mod busy;
#[cfg(feature = "tokio")]
pub mod event;
pub mod thread;
mod wait;
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
