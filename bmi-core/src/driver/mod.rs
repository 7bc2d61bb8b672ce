//! Loops that drive an endpoint. The protocol only works while it is polled. A driver polls it,
//! wakes futures, and sleeps when there is nothing to do.
//!
//! | driver | for |
//! |---|---|
//! | `event` (feature `tokio`) | `async` programs under tokio: sleeps, polls, or both ([`Waiting`]) |
//! | [`thread`] | `async` code on one thread without a runtime |
//! | [`busy`] | the lowest latency on a core of its own; several endpoints |
//! | [`Engine::wait`](crate::Engine::wait) | programs without an executor |
//!
//! All but [`busy`] sleep while there is nothing to do, and may poll for a while before
//! ([`Waiting::Adaptive`], with the rule in `driver/adaptive.rs`). They sleep on the transport's
//! event fd. If the transport has none, they sleep until it calls the waker. The simulator has its
//! own driver in `bmi-sim`.

mod adaptive;
pub mod busy;
#[cfg(feature = "tokio")]
pub mod event;
mod processors;
pub mod thread;
mod wait;
mod waiting;

pub use waiting::{Waiter, Waiting};

use std::time::{Duration, Instant};

use crate::time::{Clock, Time};

/// The machine's monotonic clock. Its origin is one second before its creation.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock(Instant);

impl MonotonicClock {
    /// Creates a clock.
    #[expect(clippy::disallowed_methods, reason = "drivers are where the wall clock comes in")]
    pub fn new() -> MonotonicClock {
        // The origin is one second ago, so that no reading is `Time::ZERO`.
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
