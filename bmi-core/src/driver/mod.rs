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
//! event fd, or in its [`Bed`](crate::transport::Bed) if they have a thread of their own. If the
//! transport has neither, they sleep until it calls the waker. The simulator has its own driver in
//! `bmi-sim`.

mod adaptive;
pub mod busy;
#[cfg(feature = "tokio")]
pub mod event;
mod processors;
pub mod thread;
#[cfg(feature = "tokio")]
mod together;
mod wait;
mod waiting;

pub use waiting::{Waiter, Waiting};

use crate::time::{Clock, Time};

/// The machine's monotonic clock. Its origin is one second before its creation.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    /// The system's time at the origin, in nanoseconds.
    origin: u64,
}

impl MonotonicClock {
    /// Creates a clock.
    pub fn new() -> MonotonicClock {
        // The origin is one second ago, so that no reading is `Time::ZERO`.
        MonotonicClock { origin: system_time().saturating_sub(1_000_000_000) }
    }
}

impl Default for MonotonicClock {
    fn default() -> MonotonicClock {
        MonotonicClock::new()
    }
}

impl Clock for MonotonicClock {
    #[inline]
    fn now(&self) -> Time {
        Time::from_nanos(system_time().saturating_sub(self.origin))
    }
}

/// Returns the system's monotonic time. A driver asks for it in each round, and the checked
/// arithmetic of [`std::time::Instant`] takes as long as the question. (Not by `rustix`: what it
/// does to find the function of the kernel does not run under valgrind.)
#[inline]
fn system_time() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure lives during the call. The clock exists on every system, so that the
    // call does not fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}
