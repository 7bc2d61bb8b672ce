//! What a part of a round measured, and the clock with which it did.

use std::time::{Duration, Instant};

use bmi_report::Histogram;

/// The result of a part.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// From the begin of the first connection to the end of the last one, in seconds.
    pub(crate) seconds: f64,
    /// Number of messages.
    pub(crate) messages: u64,
    /// The durations of single operations, in nanoseconds.
    pub(crate) histogram: Option<Histogram>,
    /// Number of calls that did not take the path that was forced.
    pub(crate) missed: u64,
}

impl Measured {
    /// Begins to measure the time of all operations together.
    pub(crate) fn in_all() -> Measured {
        Measured::default()
    }

    /// Begins to measure the time of each operation.
    pub(crate) fn of_each() -> Measured {
        Measured { histogram: Some(Histogram::new()), ..Measured::default() }
    }

    /// Records an operation that began at `from` and has ended. Returns the end, which is the begin
    /// of the next one: the clock is read once for each operation.
    #[inline]
    pub(crate) fn lap(&mut self, from: Instant) -> Instant {
        let end = now();
        self.record(end - from);
        end
    }

    /// Records an operation.
    #[inline]
    pub(crate) fn record(&mut self, took: Duration) {
        if let Some(histogram) = &mut self.histogram {
            histogram.record(took.as_nanos() as u64);
        }
    }

    /// Ends the part of a connection.
    pub(crate) fn ended(self, watch: Stopwatch, messages: u64) -> Measured {
        Measured { seconds: (now() - watch.begin).as_secs_f64(), messages, ..self }
    }

    /// Adds what another connection measured at the same time.
    #[must_use]
    pub(crate) fn beside(mut self, other: Measured) -> Measured {
        self.seconds = self.seconds.max(other.seconds);
        self.messages += other.messages;
        self.missed += other.missed;
        match (&mut self.histogram, other.histogram) {
            (Some(sum), Some(other)) => sum.add(&other),
            (none, other) => *none = none.take().or(other),
        }
        self
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// When a part began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch {
    pub(crate) begin: Instant,
}

impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        Stopwatch { begin: now() }
    }
}

/// When each message of a fixed rate is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    begin: Instant,
    seconds: f64,
}

impl Schedule {
    /// Begins with the first message at `begin`, `rate` messages per second.
    pub(crate) fn new(begin: Instant, rate: f64) -> Schedule {
        Schedule { begin, seconds: 1.0 / rate }
    }

    fn due(&self, number: u64) -> Instant {
        self.begin + Duration::from_secs_f64(number as f64 * self.seconds)
    }

    /// Returns true if a message should have left.
    pub(crate) fn is_due(&self, number: u64) -> bool {
        now() >= self.due(number)
    }

    /// Returns the time since a message should have left.
    pub(crate) fn since_due(&self, number: u64) -> Duration {
        now().saturating_duration_since(self.due(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_added() {
        let mut one = Measured::of_each();
        one.record(Duration::from_micros(5));
        let (a, b) =
            (Measured { seconds: 1.0, messages: 10, ..one.clone() }, Measured { seconds: 2.0, messages: 5, ..one });
        let sum = Measured::default().beside(a).beside(b);
        assert_eq!((sum.seconds, sum.messages, sum.histogram.unwrap().len()), (2.0, 15, 2));
    }

    #[test]
    fn a_message_that_is_late_counts_from_when_it_was_due() {
        let begin = now();
        let schedule = Schedule::new(begin, 1e9);
        while now() < begin + Duration::from_micros(50) {}
        assert!(schedule.is_due(10) && schedule.since_due(10) >= Duration::from_micros(49));
        assert!(!Schedule::new(begin, 1e-3).is_due(1));
    }
}
