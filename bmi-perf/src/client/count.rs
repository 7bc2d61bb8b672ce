//! How many messages of a case take about as long as a round should.
//!
//! **Why.** A round that is too short measures its own beginning: the first messages are slow, and
//! they take processor time that many others would share. How fast a case is shows only when it
//! runs, and a trial may be slow because another program ran.
//!
//! **How.** Other programs only slow a round down, so the fastest of the [`LATEST`] rounds tells
//! how long a message takes. The number of messages follows from that after each trial, and after
//! each round: a wrong number is corrected, whatever made it wrong. It stays as it is while a round
//! is at most [`OFF`] times too long or too short.

/// The rounds that count.
const LATEST: usize = 3;
/// A round that is more than this many times too long or too short gets another number of messages.
const OFF: f64 = 2.0;
/// How many times as many messages the next round has at most. A short round says little about a
/// long one.
const GROWTH: u64 = 8;

/// The number of messages of a row.
#[derive(Clone, Debug)]
pub(crate) struct Count {
    least: u64,
    most: u64,
    /// Seconds of a round.
    wanted: f64,
    now: u64,
    trials: usize,
    is_tried: bool,
    /// Seconds of a message in the latest rounds.
    latest: [f64; LATEST],
}

impl Count {
    /// Begins with `least` messages. A round is to take `wanted` seconds.
    pub(crate) fn new(least: u64, most: u64, wanted: f64) -> Count {
        let (most, latest) = (most.max(least), [f64::INFINITY; LATEST]);
        Count { least, most, wanted, now: least, trials: 0, is_tried: false, latest }
    }

    /// Always the same number.
    pub(crate) fn fixed(count: u64) -> Count {
        Count::new(count, count, 0.0)
    }

    /// Returns the number of messages of the next round.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Returns true if the trials are over.
    pub(crate) fn is_tried(&self) -> bool {
        self.is_tried
    }

    /// Learns from a trial or a round that had [`now`](Self::now) messages.
    pub(crate) fn add(&mut self, seconds: f64) {
        self.trials += 1;
        self.latest.rotate_left(1);
        self.latest[LATEST - 1] = seconds.max(1e-9) / self.now as f64;
        let fastest = self.latest.iter().copied().fold(f64::INFINITY, f64::min);
        let (fitting, before) = (self.wanted / fastest, self.now);
        if !(1.0 / OFF..=OFF).contains(&(self.now as f64 / fitting)) {
            self.now = (fitting as u64).min(self.now * GROWTH).clamp(self.least, self.most);
        }
        // One trial does not tell whether it was a slow one.
        self.is_tried |= self.least == self.most || (self.trials >= LATEST && self.now == before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds of a round, of a message, and of the time that another program takes.
    const ROUND: f64 = 0.02;
    const MESSAGE: f64 = 1e-6;
    const OTHER: f64 = 0.025;

    fn tried(mut seconds: impl FnMut(usize, u64) -> f64) -> (Count, usize) {
        let (mut count, mut trials) = (Count::new(2, 1 << 26, ROUND), 0);
        while !count.is_tried() {
            count.add(seconds(trials, count.now()));
            trials += 1;
        }
        (count, trials)
    }

    fn assert_fits(count: &Count) {
        let share = count.now() as f64 * MESSAGE / ROUND;
        assert!((1.0 / OFF..=OFF).contains(&share), "{share} of a round: {count:?}");
    }

    /// The first trial of a row has two messages. If another program ran meanwhile, it took longer
    /// than a round, and the row had two messages in all of its rounds: 46 us of processor time
    /// for a message of 3.6 us, and a cliff in the chart.
    #[test]
    fn a_slow_trial_does_not_fix_a_row_at_two_messages() {
        for slow in 0..7 {
            let (count, trials) =
                tried(|trial, messages| messages as f64 * MESSAGE + if trial == slow { OTHER } else { 0.0 });
            assert_fits(&count);
            assert!(trials <= 12, "{trials} trials");
        }
    }

    /// As above, but all trials were slow: the rounds correct it.
    #[test]
    fn rounds_correct_a_number_that_the_trials_got_wrong() {
        let (mut count, trials) = tried(|_, messages| messages as f64 * MESSAGE + OTHER);
        assert!(count.now() < 10 && trials <= 12, "{count:?} after {trials} trials");
        for _ in 0..8 {
            count.add(count.now() as f64 * MESSAGE);
        }
        assert_fits(&count);
        // And a case that becomes slow for good does not make the run ten times as long.
        for _ in 0..LATEST {
            count.add(count.now() as f64 * 10.0 * MESSAGE);
        }
        assert!(count.now() as f64 * 10.0 * MESSAGE <= OFF * ROUND, "{count:?}");
    }

    #[test]
    fn a_number_that_fits_stays() {
        let (mut count, _) = tried(|_, messages| messages as f64 * MESSAGE);
        let fitting = count.now();
        for round in 0..30 {
            let noise = [1.0, 1.3, 0.8, 7.0][round % 4];
            count.add(count.now() as f64 * MESSAGE * noise);
            assert_eq!(count.now(), fitting, "after round {round}");
        }
    }

    #[test]
    fn a_number_keeps_its_bounds() {
        let mut fixed = Count::fixed(7);
        let mut slow = Count::new(32, 100, ROUND);
        for seconds in [1e3, 0.0, 1e-9, 1e3, 1e3, 1e3] {
            fixed.add(seconds);
            slow.add(seconds);
            assert!(fixed.now() == 7 && (32..=100).contains(&slow.now()));
        }
        assert_eq!(slow.now(), 32);
    }
}
