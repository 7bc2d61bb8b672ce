//! How a driver waits: by polling, by sleeping, or by polling for a while and then sleeping.
//!
//! **Why a choice.** Polling answers fastest and takes a whole core; sleeping takes none and pays
//! an interrupt and a switch for each time it is woken. What is better depends on how long the
//! waiting lasts, and on what else the core could do.
//!
//! **Source.** [PVFS-IB §3.2.4]: a client polls for the completion of what it sends and
//! sleeps until the reply; a dedicated server polls. Adaptive waiting is not in the paper: it polls
//! for as long as that has paid, and no longer than it was allowed.

use std::time::Duration;

/// How a driver waits when there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// Polls without pause: the lowest latency, a whole core.
    Busy,
    /// Sleeps at once until the transport, a task or a deadline has something to do: no processor
    /// time while idle.
    #[default]
    Event,
    /// Polls for up to `spin`, as long as that has paid lately (see [`Spin`]), then sleeps.
    Adaptive {
        /// The longest that it polls for nothing before it sleeps.
        spin: Duration,
    },
    /// Polls while requests of this side are with the adapter, then sleeps for what the peers send.
    PollSends {
        /// The longest that it polls for nothing before it sleeps all the same: a peer may have
        /// stopped taking.
        at_most: Duration,
    },
}

impl Waiting {
    /// A client of [PVFS-IB]: polls for the completion of its requests, sleeps until the replies.
    pub const PAPER_CLIENT: Waiting = Waiting::PollSends { at_most: Duration::from_millis(1) };
    /// A server of [PVFS-IB], on a machine of its own.
    pub const PAPER_SERVER: Waiting = Waiting::Busy;
    /// Polls for no longer than sleeping and waking would take, some 50 µs: at worst it takes twice
    /// the processor time of either.
    pub const ADAPTIVE: Waiting = Waiting::Adaptive { spin: Duration::from_micros(50) };
}

/// How long to poll before sleeping: learns from what came of it. Reads no clock.
///
/// | what happened | what follows |
/// |---|---|
/// | something came while it polled | twice as long next time, up to the limit |
/// | nothing came while it polled | half as long next time; below an eighth of the limit, not at all |
/// | it slept, but not longer than the limit | polling would have paid: twice as long, at least an eighth of the limit |
///
/// So an idle endpoint stops polling after a few rounds, and a busy one is found polling within a
/// few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spin {
    limit: Duration,
    budget: Duration,
}

impl Spin {
    /// Begins with the whole of `limit`.
    pub fn new(limit: Duration) -> Spin {
        Spin { limit, budget: limit }
    }

    /// How long to poll now.
    pub fn budget(&self) -> Duration {
        self.budget
    }

    /// Something came after `idle` without anything to do, the polling included.
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

/// What a driver knows of its waiting.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    waiting: Waiting,
    spin: Spin,
}

impl Waiter {
    /// Nothing is known yet.
    pub fn new(waiting: Waiting) -> Waiter {
        let limit = match waiting {
            Waiting::Adaptive { spin } => spin,
            _ => Duration::ZERO,
        };
        Waiter { waiting, spin: Spin::new(limit) }
    }

    /// How long to poll for nothing before sleeping; `None` for ever. `sending`: requests of this
    /// side are with the adapter.
    pub fn patience(&self, sending: bool) -> Option<Duration> {
        match self.waiting {
            Waiting::Busy => None,
            Waiting::Event => Some(Duration::ZERO),
            Waiting::Adaptive { .. } => Some(self.spin.budget()),
            Waiting::PollSends { at_most } => Some(if sending { at_most } else { Duration::ZERO }),
        }
    }

    /// There is something to do, after `idle` without.
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
        // A sleep that was shorter than the limit: polling would have caught it.
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
