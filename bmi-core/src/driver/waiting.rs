//! How a driver waits: by polling, by sleeping, or by polling for a while and then sleeping.
//!
//! **Why a choice.** Polling answers fastest and takes a whole core. Sleeping takes no core, and
//! pays an interrupt and a context switch for each wake-up. The better choice depends on how long
//! the waiting lasts, and on the other work for the core.
//!
//! **Source.** [PVFS-IB §3.2.4]: a client polls for the completion of its sends and sleeps until
//! the reply. A dedicated server polls. Adaptive waiting is not in the paper. It polls as long as
//! polling has paid off lately, up to a limit.

use std::time::Duration;

/// How a driver waits when there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// Polls without pause. This has the lowest latency and takes a whole core.
    Busy,
    /// Sleeps at once, until the transport, a task or a deadline has something to do. This takes no
    /// processor time while idle.
    #[default]
    Event,
    /// Polls for up to `spin`, as long as that has paid off lately (see [`Spin`]), then sleeps.
    Adaptive {
        /// The longest time of polling for nothing before sleeping.
        spin: Duration,
    },
    /// Polls while the adapter has requests of this side, then sleeps until a peer sends something.
    PollSends {
        /// The longest time of polling for nothing before sleeping anyway, because a peer may have
        /// stopped receiving.
        at_most: Duration,
    },
}

impl Waiting {
    /// A client of [PVFS-IB]. It polls for the completion of its requests and sleeps until the
    /// replies.
    pub const PAPER_CLIENT: Waiting = Waiting::PollSends { at_most: Duration::from_millis(1) };
    /// A server of [PVFS-IB], on a machine of its own.
    pub const PAPER_SERVER: Waiting = Waiting::Busy;
    /// Adaptive waiting that polls no longer than sleeping and waking would take, about 50 µs. In
    /// the worst case it takes twice the processor time of either.
    pub const ADAPTIVE: Waiting = Waiting::Adaptive { spin: Duration::from_micros(50) };
}

/// Decides how long to poll before sleeping, from the results of earlier waiting. Reads no clock.
///
/// | what happened | what follows |
/// |---|---|
/// | something arrived during polling | twice as long next time, up to the limit |
/// | nothing arrived during polling | half as long next time; below an eighth of the limit, not at all |
/// | it slept, but not longer than the limit | polling would have paid off: twice as long, from an eighth of the limit |
///
/// So an idle endpoint stops polling after a few rounds, and a busy one begins to poll after a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spin {
    limit: Duration,
    budget: Duration,
}

impl Spin {
    /// Begins with a budget of `limit`.
    pub fn new(limit: Duration) -> Spin {
        Spin { limit, budget: limit }
    }

    /// Returns how long to poll now.
    pub fn budget(&self) -> Duration {
        self.budget
    }

    /// Notes that something arrived after a time of `idle` with nothing to do, polling included.
    pub fn ended(&mut self, idle: Duration) {
        if idle <= self.limit {
            self.budget = (self.budget * 2).clamp(self.limit / 8, self.limit);
        } else {
            self.budget /= 2;
            if self.budget < self.limit / 8 {
                self.budget = Duration::ZERO;
            }
        }
    }
}

/// The state of a driver's waiting.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    waiting: Waiting,
    spin: Spin,
}

impl Waiter {
    /// Creates the state for `waiting`, without experience.
    pub fn new(waiting: Waiting) -> Waiter {
        let limit = match waiting {
            Waiting::Adaptive { spin } => spin,
            _ => Duration::ZERO,
        };
        Waiter { waiting, spin: Spin::new(limit) }
    }

    /// Returns how long to poll for nothing before sleeping, or `None` to poll without end.
    /// `sending` is true while the adapter has requests of this side.
    pub fn patience(&self, sending: bool) -> Option<Duration> {
        match self.waiting {
            Waiting::Busy => None,
            Waiting::Event => Some(Duration::ZERO),
            Waiting::Adaptive { .. } => Some(self.spin.budget()),
            Waiting::PollSends { at_most } => Some(if sending { at_most } else { Duration::ZERO }),
        }
    }

    /// Notes that there is something to do after a time of `idle` with nothing.
    pub fn ended(&mut self, idle: Duration) {
        self.spin.ended(idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(80);

    #[test]
    fn idle_endpoints_stop_polling_and_busy_ones_begin_again() {
        let mut spin = Spin::new(LIMIT);
        for _ in 0..4 {
            assert!(spin.budget() >= LIMIT / 8);
            spin.ended(Duration::from_secs(1));
        }
        assert_eq!(spin.budget(), Duration::ZERO);
        // The sleep was not longer than the limit, so polling would have caught the arrival.
        spin.ended(LIMIT);
        assert_eq!(spin.budget(), LIMIT / 8);
        for _ in 0..3 {
            spin.ended(LIMIT / 10);
        }
        assert_eq!(spin.budget(), LIMIT);
        spin.ended(LIMIT / 10);
        assert_eq!(spin.budget(), LIMIT, "never above the limit");
    }

    #[test]
    fn patience_is_as_chosen() {
        let patience = |waiting, sending| Waiter::new(waiting).patience(sending);
        assert_eq!(patience(Waiting::Busy, false), None);
        assert_eq!(patience(Waiting::Event, true), Some(Duration::ZERO));
        assert_eq!(patience(Waiting::Adaptive { spin: LIMIT }, false), Some(LIMIT));
        assert_eq!(patience(Waiting::PAPER_CLIENT, false), Some(Duration::ZERO));
        assert_eq!(patience(Waiting::PAPER_CLIENT, true), Some(Duration::from_millis(1)));
        assert_eq!(patience(Waiting::PAPER_SERVER, false), None);
    }
}
