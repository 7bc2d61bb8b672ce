//! Time where the program runs.

use std::future::Future;
use std::ops::{Add, Sub};
use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use futures_util::future::{Either, select};

use super::host;
use crate::driver::MonotonicClock;
use crate::error::{Error, ErrorKind};
use crate::time::{Clock, Time};

/// A point in time: of the monotonic clock, or of a node's clock in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Time);

/// The monotonic clock of this process. All its readings have the same origin.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicTime;

impl Clock for MonotonicTime {
    fn now(&self) -> Time {
        static CLOCK: OnceLock<MonotonicClock> = OnceLock::new();
        CLOCK.get_or_init(MonotonicClock::new).now()
    }
}

impl Instant {
    /// Returns the time now.
    pub fn now() -> Instant {
        Instant(host().map_or_else(|| MonotonicTime.now(), |host| host.now()))
    }

    /// Returns the time since then.
    pub fn elapsed(&self) -> Duration {
        Instant::now() - *self
    }

    /// Returns the time of the clock that operations have.
    pub const fn time(self) -> Time {
        self.0
    }
}

impl From<Time> for Instant {
    fn from(time: Time) -> Instant {
        Instant(time)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, later: Duration) -> Instant {
        Instant(self.0 + later)
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// Zero if `earlier` is later.
    fn sub(self, earlier: Instant) -> Duration {
        self.0.since(earlier.0)
    }
}

/// Waits for `duration`.
///
/// # Panics
/// Outside of a tokio runtime and of a world.
pub async fn sleep(duration: Duration) {
    match host() {
        Some(host) => host.sleep_until(host.now() + duration).await,
        None => sleep_outside(duration).await,
    }
}

/// Waits until `at`.
///
/// # Panics
/// As [`sleep`].
pub async fn sleep_until(at: Instant) {
    sleep(at - Instant::now()).await;
}

#[cfg(feature = "tokio")]
#[expect(clippy::disallowed_methods, reason = "outside of a world, real time is what a program waits for")]
async fn sleep_outside(duration: Duration) {
    tokio::time::sleep(duration).await;
}

#[cfg(not(feature = "tokio"))]
async fn sleep_outside(_: Duration) {
    panic!("sleep outside of a simulated world: the feature `tokio` is off");
}

/// Waits for `future`, for `duration` at most.
///
/// # Errors
/// `TimedOut` if it takes longer. The future is dropped then.
///
/// # Panics
/// As [`sleep`], if the future is not ready at once.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Error> {
    match select(pin!(future), pin!(sleep(duration))).await {
        Either::Left((output, _)) => Ok(output),
        Either::Right(((), _)) => Err(Error::new(ErrorKind::TimedOut, format!("longer than {duration:?}"))),
    }
}
