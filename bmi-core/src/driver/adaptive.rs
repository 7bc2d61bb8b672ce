//! The rule of adaptive waiting: it polls while that pays. It reads no clock.
//!
//! **Why.** A side that sleeps until a message comes pays for a wake-up: an interrupt and a context
//! switch, which take time and processor time. A peer that sleeps until the answer pays again. If
//! messages come sooner than a wake-up takes, polling costs less than sleeping. If they come later,
//! or never, polling is a waste.
//!
//! **What is measured.** The cost of a wake-up depends on the machine, on its load and on the peer,
//! so it is not configured. A driver compares the time from "nothing to do" to an arrival for waits
//! that it slept through and for waits that it polled through. The difference is what polling
//! saves, including the wake-ups of a peer that polls as well.
//!
//! **The rule.** `usual` is the smoothed time of those waits that were slept through and ended
//! within [`SOON`].
//!
//! | what happened | what follows |
//! |---|---|
//! | [`EVIDENCE`] waits that were slept through ended soon | an attempt begins, with a credit of [`ALLOWANCE`] times `usual` |
//! | a wait during an attempt | polls for at most `usual`, then sleeps |
//! | something arrived after a time of polling | the credit grows by what was saved, and shrinks by that time |
//! | nothing arrived while polling | the credit shrinks by `usual` |
//! | the credit is spent | the attempt has failed; the next one needs twice the evidence, up to `2^`[`RAREST`] times |
//! | the credit has doubled | polling pays; it grows no further, and a failure is forgotten after [`FORGIVING`] such waits |
//! | the processor did something else between two polls | the attempt has failed, and counts as [`ABSENCE_COUNTS`] |
//!
//! A peer that sleeps too answers after its own wake-up, which is about half of `usual`. Polling
//! pays for itself then, and the peer, which sees its messages come sooner, begins to poll as well.
//!
//! **Invariant.** Whatever arrives when: the time spent with polling exceeds what it saved by at
//! most `ALLOWANCE + 1` times [`SOON`] for each attempt, 1.25 ms. If each attempt fails, the time
//! polled in vain is at most 1/800 of the time that is slept in the long run: `ALLOWANCE + 1` usual
//! waits for each `EVIDENCE << RAREST` of them.

use std::time::Duration;

/// A wait that took longer is not worth polling for, whatever a wake-up costs: two wake-ups, of
/// this side and of the peer, take less on every machine that is not loaded.
const SOON: Duration = Duration::from_micros(250);
/// Number of waits that were slept through and ended soon, after which polling is attempted.
const EVIDENCE: u32 = 16;
/// An attempt has credit to poll for so many usual waits in vain.
const ALLOWANCE: u32 = 4;
/// Number of failed attempts that still double the evidence for the next one. It is half a second
/// then if a wait takes 125 µs.
const RAREST: u32 = 8;
/// An attempt that ended because the processor had other work counts as so many that failed: it may
/// have cost the time of a whole turn of another program.
const ABSENCE_COUNTS: u32 = 3;
/// Number of waits that polling paid for, after which a failure is forgotten. Where another program
/// needs the processor, polling pays until the system gives it to that program, after milliseconds.
/// At 20 µs for an exchange, that is too short to forget the absence that follows.
const FORGIVING: u32 = 64;
/// The processor time of falling asleep and waking, as a part of a wait that is slept through: one
/// over so much. For a request of 64 bytes over loopback it was half.
const SLEEP_COSTS: u32 = 4;
/// A wait counts by one over so much in `usual`.
const SMOOTHING: u32 = 8;

/// What a driver knows of its waits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Experience {
    /// How long a wait takes that is slept through and ends soon.
    usual: Duration,
    /// Number of such waits since the last attempt.
    evidence: u32,
    /// Attempts that failed and are not forgotten, up to [`RAREST`].
    failures: u32,
    /// Waits that polling paid for, since one of those failures was forgotten.
    successes: u32,
    /// For how long polling may cost more than it saves. Zero while there is no attempt.
    credit: Duration,
}

impl Experience {
    /// Returns true during an attempt.
    pub(super) fn polls(&self) -> bool {
        !self.credit.is_zero()
    }

    /// Returns for how long a wait polls that begins now.
    pub(super) fn patience(&self) -> Duration {
        if self.polls() { self.usual } else { Duration::ZERO }
    }

    /// Notes that something arrived after a wait of `idle`, which polled for up to `patience`.
    pub(super) fn note_wait(&mut self, idle: Duration, patience: Duration) {
        if patience.is_zero() {
            self.note_sleep(idle);
        } else if self.polls() {
            self.note_polling(idle, patience);
        }
    }

    /// Notes that the processor did something else while the driver polled.
    pub(super) fn note_absence(&mut self) {
        self.fail(ABSENCE_COUNTS);
    }

    fn fail(&mut self, count: u32) {
        self.credit = Duration::ZERO;
        self.failures = (self.failures + count).min(RAREST);
    }

    fn note_sleep(&mut self, idle: Duration) {
        if idle > SOON {
            return;
        }
        self.usual = match self.usual {
            Duration::ZERO => idle,
            usual => (usual * (SMOOTHING - 1) + idle) / SMOOTHING,
        };
        if self.polls() {
            return; // no processor was free
        }
        self.evidence += 1;
        if self.evidence >= EVIDENCE << self.failures {
            self.evidence = 0;
            self.credit = self.usual * ALLOWANCE;
        }
    }

    fn note_polling(&mut self, idle: Duration, patience: Duration) {
        let most = self.usual * (2 * ALLOWANCE);
        let (saved, spent) = match idle <= patience {
            true => (patience - idle + patience / SLEEP_COSTS, idle),
            false => (Duration::ZERO, patience),
        };
        self.credit = (self.credit + saved).saturating_sub(spent);
        if self.credit.is_zero() {
            self.fail(1);
        } else if self.credit >= most {
            self.credit = most;
            self.successes += 1;
            if self.successes == FORGIVING {
                self.successes = 0;
                self.failures = self.failures.saturating_sub(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAKE_UP: Duration = Duration::from_micros(60);
    const WORK: Duration = Duration::from_micros(5);

    /// A side that waits for a message `after` so much, and is late if it sleeps then.
    fn wait(side: &mut Experience, after: Duration) -> (Duration, bool) {
        let patience = side.patience();
        let slept = after > patience;
        let idle = if slept { after + WAKE_UP } else { after };
        side.note_wait(idle, patience);
        (idle, slept)
    }

    /// Two sides exchange messages one at a time. Returns how long the last round took.
    fn ping_pong(sides: &mut [Experience; 2], rounds: u32) -> Duration {
        // The other side's share of a round: its work, and its wake-up if it slept.
        let mut other = WORK + WAKE_UP;
        let mut last = [Duration::ZERO; 2];
        for _ in 0..rounds {
            for (side, last) in sides.iter_mut().zip(&mut last) {
                let (idle, slept) = wait(side, other);
                other = WORK + if slept { WAKE_UP } else { Duration::ZERO };
                *last = idle + WORK;
            }
        }
        last[0]
    }

    fn polling() -> Experience {
        let mut sides = [Experience::default(); 2];
        ping_pong(&mut sides, 100);
        assert!(sides[0].polls());
        Experience { successes: 0, ..sides[0] }
    }

    #[test]
    fn sides_that_exchange_messages_come_to_poll() {
        let mut sides = [Experience::default(); 2];
        assert_eq!(ping_pong(&mut sides, 1), (WORK + WAKE_UP) * 2);
        assert_eq!(ping_pong(&mut sides, 100), WORK * 2);
        // Each of them has failed before, and as often as it counts.
        for failures in 0..=RAREST {
            let mut sides = [Experience::default(), Experience { failures, ..Experience::default() }];
            ping_pong(&mut sides, EVIDENCE << (failures + 1));
            assert_eq!(ping_pong(&mut sides, 2), WORK * 2, "after {failures} failures");
        }
    }

    #[test]
    fn an_idle_side_stops_polling() {
        let mut side = polling();
        let mut polled = Duration::ZERO;
        for _ in 0..100 {
            polled += side.patience();
            wait(&mut side, Duration::from_secs(1));
        }
        assert_eq!(side.patience(), Duration::ZERO);
        assert!(polled <= SOON * (2 * ALLOWANCE), "{polled:?}");
    }

    #[test]
    fn a_slow_peer_is_not_polled_for() {
        let mut side = Experience::default();
        let mut polled = Duration::ZERO;
        let slow = Duration::from_micros(150);
        for _ in 0..100_000 {
            let patience = side.patience();
            polled += patience.min(slow);
            wait(&mut side, slow);
        }
        assert!(polled < slow * 100_000 / 100, "{polled:?}");
    }

    #[test]
    fn an_absence_ends_polling_for_long() {
        let mut side = polling();
        side.note_absence();
        for _ in 0..EVIDENCE << ABSENCE_COUNTS {
            assert_eq!(side.patience(), Duration::ZERO);
            wait(&mut side, WORK);
        }
        assert!(side.polls());
    }

    #[test]
    fn failures_are_forgotten_slowly() {
        let mut side = Experience { failures: 2, ..polling() };
        for left in [2, 1, 0] {
            assert_eq!(side.failures, left);
            for _ in 0..FORGIVING {
                wait(&mut side, WORK);
            }
        }
        assert_eq!(side.failures, 0);
    }

    /// Drives one side with what `arrival` chooses, given the patience of the wait. Checks the
    /// bound of each attempt. Returns the time that was polled in vain, and the time that was
    /// slept.
    fn oppose(waits: u32, mut arrival: impl FnMut(Duration) -> Duration) -> (Duration, Duration) {
        let mut side = Experience::default();
        let (mut in_vain, mut slept) = (Duration::ZERO, Duration::ZERO);
        let (mut spent, mut saved, mut attempts) = (Duration::ZERO, Duration::ZERO, 0);
        for _ in 0..waits {
            let (patience, polls) = (side.patience(), side.polls());
            let idle = arrival(patience);
            side.note_wait(idle, patience);
            if patience.is_zero() {
                slept += idle;
            } else if idle <= patience {
                spent += idle;
                saved += patience - idle + patience / SLEEP_COSTS;
            } else {
                spent += patience;
                in_vain += patience;
            }
            attempts += u32::from(side.polls() && !polls);
            assert!(spent <= saved + SOON * (ALLOWANCE + 1) * attempts, "{spent:?}, {saved:?}, {attempts}");
        }
        (in_vain, slept)
    }

    #[test]
    fn waste_is_bounded_whatever_arrives_when() {
        // What is awaited comes soon to a side that sleeps, and just too late for one that polls.
        let late = |patience: Duration| match patience {
            Duration::ZERO => SOON,
            patience => patience + Duration::from_nanos(1),
        };
        let (in_vain, slept) = oppose(200_000, late);
        assert!(in_vain > Duration::ZERO && in_vain < slept / 800 + SOON * (ALLOWANCE + 1) * RAREST, "{in_vain:?}");
        // Every other wait is just short enough.
        let mut odd = false;
        oppose(200_000, |patience| {
            odd = !odd;
            if odd { patience } else { late(patience) }
        });
        // Anything.
        let mut random = 1_u64;
        oppose(200_000, |_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            Duration::from_nanos(random >> 45)
        });
    }
}
