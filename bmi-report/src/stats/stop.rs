//! When a row has enough rounds.
//!
//! **Why.** Rows differ in their noise by a factor of a hundred. A number of rounds that is right
//! for one wastes minutes with another, or finds nothing. So rounds are added until the interval of
//! the ratio is narrow.
//!
//! **Invariant.** The rule looks at the width of the interval and never at its position. A rule
//! that stops as soon as the interval excludes 1 finds a difference in everything, if it looks
//! often enough: after 18 looks in 9 of 100 runs of the latency over TCP, which has none. Each look
//! at the width does harm, too, but little: it prefers samples that happen to vary less than usual.
//! So there are few looks ([`Stop::next_look`]), and none before [`Stop::least`] rounds.
//!
//! **Choice of the defaults.** With a width of 1.04, the interval reaches some 2 % to each side. A
//! difference of 5 % is then more than twice as far away, and is found nearly always. 24 rounds are
//! the fewest at which the bootstrap's intervals are wide enough. On a machine with free processors
//! most rows need 24 to 100 rounds. The most rounds, 1200, are for the worst row that was recorded:
//! two processes that poll on two processors on which other programs run. With 400 rounds a
//! difference of 5 % was found there in half of the runs, with 800 in nine of ten, and with 1200 in
//! 95 of 100. A round of 10 ms makes that half a minute.
//!
//! **Tests.** `tests/it/known_truth.rs`, on recordings of real runs.
//!
//! **Source.** Glynn, Whitt: The asymptotic validity of sequential stopping rules for stochastic
//! simulations (Annals of Applied Probability 2, 1992).

use super::Interval;

/// Rounds are added until the interval is narrow, or there are the most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stop {
    /// An interval is narrow if its upper end is at most this many times its lower end.
    pub width: f64,
    /// The number of rounds before the first look.
    pub least: usize,
    /// The number of rounds after which no more are added.
    pub most: usize,
}

impl Default for Stop {
    fn default() -> Stop {
        Stop { width: 1.04, least: 24, most: 1200 }
    }
}

impl Stop {
    /// Returns true if no more rounds are needed.
    pub fn is_done(&self, interval: &Interval, rounds: usize) -> bool {
        rounds >= self.most || (rounds >= self.least && interval.width() <= self.width)
    }

    /// Returns the number of rounds at which to look again, after `rounds` gave this interval; at
    /// the beginning there is none.
    ///
    /// The logarithm of a width shrinks with the square root of the number of rounds. From this
    /// follows how many are missing. An estimate from few rounds is rough, so their number grows by
    /// a quarter at least and becomes four times as large at most.
    pub fn next_look(&self, interval: &Interval, rounds: usize) -> usize {
        let missing = (interval.width().ln() / self.width.ln()).powi(2);
        // `clamp` keeps what is no number.
        let factor = if missing.is_nan() { 4.0 } else { missing.clamp(1.25, 4.0) };
        ((rounds as f64 * factor).ceil() as usize).clamp(self.least.min(self.most), self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(low: f64, high: f64) -> Interval {
        Interval { middle: (low * high).sqrt(), low, high }
    }

    #[test]
    fn only_the_width_decides_and_not_the_place() {
        let stop = Stop { width: 1.04, least: 24, most: 100 };
        for middle in [0.5, 0.97, 1.0, 1.03, 2.0] {
            let (narrow, wide) = (interval(middle / 1.019, middle * 1.019), interval(middle / 1.021, middle * 1.021));
            assert!(stop.is_done(&narrow, 24) && !stop.is_done(&narrow, 23), "{middle}");
            assert!(!stop.is_done(&wide, 99) && stop.is_done(&wide, 100), "{middle}");
            assert_eq!(stop.next_look(&wide, 40), 50);
        }
    }

    #[test]
    fn looks_are_few_and_end_with_the_most_rounds() {
        let stop = Stop { width: 1.04, least: 24, most: 1200 };
        let mut looks = vec![stop.next_look(&Interval::NONE, 0)];
        while looks[looks.len() - 1] < stop.most {
            looks.push(stop.next_look(&interval(0.5, 2.0), looks[looks.len() - 1]));
        }
        assert_eq!(looks, [24, 96, 384, 1200]);
        // The logarithm of this width is a fifth too large.
        assert_eq!(stop.next_look(&interval(1.0, 1.04f64.powf(1.2)), 100), 144);
        assert_eq!(Stop { least: 24, most: 10, ..stop }.next_look(&Interval::NONE, 0), 10);
    }
}
