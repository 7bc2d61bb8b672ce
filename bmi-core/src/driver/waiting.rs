//! How a driver waits: by polling, by sleeping, or by polling for a while and then sleeping.
//!
//! **Why a choice.** Polling answers fastest and takes a whole core. Sleeping takes no core, and
//! pays an interrupt and a context switch for each wake-up. The better choice depends on how long
//! the waiting lasts, and on the other work for the core.
//!
//! **Source.** [PVFS-IB §3.2.4]: a client polls for the completion of its sends and sleeps until
//! the reply. A dedicated server polls. Adaptive waiting is not in the paper; `driver/adaptive.rs`
//! has its rule.

use std::time::Duration;

use super::adaptive::Experience;
use super::processors::Turn;
use crate::endpoint::Found;
use crate::time::Time;

/// A driver that comes back to its endpoint so much later than it left did not have the processor,
/// or other tasks of its runtime needed it.
const ABSENCE: Duration = Duration::from_micros(100);

/// How a driver waits when there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// Polls without pause. This has the lowest latency and takes a whole core.
    Busy,
    /// Sleeps at once, until the transport, a task or a deadline has something to do. This takes no
    /// processor time while idle.
    Event,
    /// Sleeps, but polls first where that has paid off lately: if messages come sooner than a
    /// wake-up takes on this machine. It polls for 250 µs at most, and not while the processor has
    /// other work. Takes no processor time while idle.
    #[default]
    Adaptive,
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
}

/// The state of a driver's waiting. It reads no clock.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    waiting: Waiting,
    experience: Experience,
}

/// A wait of a driver that shares its processor with other programs.
#[derive(Debug)]
pub(crate) struct Wait {
    since: Time,
    /// How long it polls; `None` for polling without end.
    patience: Option<Duration>,
    /// When it was about to poll the last time.
    polled: Time,
    /// Held while it polls for a while.
    turn: Option<Turn>,
    /// The processor did something else between two polls.
    absent: bool,
}

impl Waiter {
    /// Creates the state for `waiting`, without experience.
    pub fn new(waiting: Waiting) -> Waiter {
        Waiter { waiting, experience: Experience::default() }
    }

    /// Returns how long a wait that begins now polls for nothing before sleeping, or `None` to poll
    /// without end. `sending` is true while the adapter has requests of this side.
    pub fn patience(&self, sending: bool) -> Option<Duration> {
        match self.waiting {
            Waiting::Busy => None,
            Waiting::Event => Some(Duration::ZERO),
            Waiting::Adaptive => Some(self.experience.patience()),
            Waiting::PollSends { at_most } => Some(if sending { at_most } else { Duration::ZERO }),
        }
    }

    /// Notes that something arrived after a wait of `idle`, which polled for up to `patience`.
    pub fn ended(&mut self, idle: Duration, patience: Option<Duration>) {
        if let (Waiting::Adaptive, Some(patience)) = (self.waiting, patience) {
            self.experience.note_wait(idle, patience);
        }
    }

    /// Returns true if a wait that begins now may begin with polling.
    #[cfg(any(test, feature = "tokio"))]
    pub(crate) fn polls(&self) -> bool {
        match self.waiting {
            Waiting::Event => false,
            Waiting::Adaptive => self.experience.polls(),
            Waiting::Busy | Waiting::PollSends { .. } => true,
        }
    }

    /// Begins a wait at `now`, as [`Waiter::patience`].
    pub(crate) fn begin(&self, now: Time, sending: bool) -> Wait {
        let mut patience = self.patience(sending);
        let mut turn = None;
        if self.waiting == Waiting::Adaptive && patience != Some(Duration::ZERO) {
            turn = Turn::take();
            patience = patience.filter(|_| turn.is_some()).or(Some(Duration::ZERO));
        }
        Wait { since: now, patience, polled: now, turn, absent: false }
    }

    /// Ends the wait, unless it goes on: what was posted has left, and adaptive waiting is about
    /// what arrives.
    pub(crate) fn found(&mut self, wait: &mut Option<Wait>, found: Found, now: Time) {
        if self.waiting == Waiting::Adaptive && found == Found::Posted {
            return;
        }
        let Some(mut wait) = wait.take() else { return };
        wait.note_absence(now);
        match wait.absent {
            true => self.experience.note_absence(),
            false => self.ended(now - wait.since, wait.patience),
        }
    }
}

impl Wait {
    /// Returns true if the driver has to poll once more, and false if it has to sleep.
    pub(crate) fn polls_on(&mut self, now: Time) -> bool {
        self.note_absence(now);
        self.polled = now;
        let polls = !self.absent && self.patience.is_none_or(|patience| now - self.since < patience);
        if !polls {
            self.turn = None;
        }
        polls
    }

    /// Notes whether it was away for long while it polled.
    fn note_absence(&mut self, now: Time) {
        self.absent |= self.turn.is_some() && now - self.polled > ABSENCE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_as_chosen() {
        let patience = |waiting, sending| Waiter::new(waiting).patience(sending);
        assert_eq!(patience(Waiting::Busy, false), None);
        assert_eq!(patience(Waiting::Event, true), Some(Duration::ZERO));
        assert_eq!(patience(Waiting::Adaptive, true), Some(Duration::ZERO), "without experience");
        assert_eq!(patience(Waiting::PAPER_CLIENT, false), Some(Duration::ZERO));
        assert_eq!(patience(Waiting::PAPER_CLIENT, true), Some(Duration::from_millis(1)));
        assert_eq!(patience(Waiting::PAPER_SERVER, false), None);
    }

    #[test]
    fn a_wait_polls_for_its_patience_unless_the_processor_is_taken() {
        let at = |us| Time::ZERO + Duration::from_micros(us);
        let begin = || Wait {
            since: at(0),
            patience: Some(Duration::from_micros(100)),
            polled: at(0),
            turn: Turn::of(usize::MAX),
            absent: false,
        };
        let mut wait = begin();
        assert!(wait.polls_on(at(0)) && wait.polls_on(at(99)) && wait.turn.is_some());
        assert!(!wait.polls_on(at(100)) && wait.turn.is_none() && !wait.absent);
        let mut wait = Wait { patience: Some(Duration::from_micros(1000)), ..begin() };
        assert!(wait.polls_on(at(90)) && wait.polls_on(at(180)));
        assert!(!wait.polls_on(at(300)) && !wait.polls_on(at(301)) && wait.turn.is_none());
        // What arrived meanwhile is found by the first poll.
        let mut found = begin();
        found.note_absence(at(90));
        assert!(!found.absent);
        found.note_absence(at(300));
        assert!(found.absent);
        let mut waiter = Waiter::new(Waiting::Adaptive);
        waiter.found(&mut Some(wait), Found::Arrived, at(302));
        for _ in 0..100 {
            assert!(!waiter.polls(), "more waits have to end soon than without an absence");
            waiter.ended(Duration::from_micros(50), Some(Duration::ZERO));
        }
    }

    #[test]
    fn what_is_posted_does_not_end_an_adaptive_wait() {
        for (waiting, goes_on) in [(Waiting::Adaptive, true), (Waiting::PAPER_CLIENT, false)] {
            let mut waiter = Waiter::new(waiting);
            let mut wait = Some(waiter.begin(Time::ZERO, true));
            waiter.found(&mut wait, Found::Posted, Time::ZERO);
            assert_eq!(wait.is_some(), goes_on);
            waiter.found(&mut wait, Found::Arrived, Time::ZERO);
            assert!(wait.is_none());
        }
    }

    #[test]
    fn no_driver_polls_where_no_processor_is_free() {
        assert!(Turn::of(0).is_none());
    }
}
