//! Time as the library sees it: nanoseconds since an origin that only the [`Clock`] knows.
//!
//! The protocol reads no clock. The driver of an endpoint passes the time in. On a real machine the
//! time comes from [`crate::driver::MonotonicClock`], in the simulator from its event queue.

use std::fmt;
use std::ops::{Add, Sub};
use std::rc::Rc;
use std::time::Duration;

/// A point in time, in nanoseconds since the clock's origin. It never decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The clock's origin.
    pub const ZERO: Time = Time(0);

    /// Returns the point `ns` nanoseconds after the origin.
    pub const fn from_nanos(ns: u64) -> Time {
        Time(ns)
    }

    /// Returns the nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    /// Saturates: a deadline 600 years ahead is never reached.
    fn add(self, later: Duration) -> Time {
        let ns = u64::try_from(later.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(ns))
    }
}

impl Sub for Time {
    type Output = Duration;

    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// The source of time for a driver.
pub trait Clock {
    /// Returns the current time.
    fn now(&self) -> Time;
}

impl<C: Clock + ?Sized> Clock for Rc<C> {
    fn now(&self) -> Time {
        (**self).now()
    }
}

impl<C: Clock + ?Sized> Clock for Box<C> {
    fn now(&self) -> Time {
        (**self).now()
    }
}
