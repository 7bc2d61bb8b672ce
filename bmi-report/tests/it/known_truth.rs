//! The statistics on real recordings, where the truth is known because it was made: A against A
//! does not differ, and A against A slowed by five percent does.
//!
//! **Why.** Made-up noise is kinder than a real machine. Rounds of a real one depend on each other:
//! for some seconds another program runs, a processor slows down, or two of them move apart.
//!
//! **How.** `recordings` has pairs of rounds of one row, recorded on a busy machine with the
//! command that each file names. A run is drawn from them as two builds are compared: rounds are
//! added until [`Stop`] says that there are enough. Blocks of consecutive pairs are drawn, so that
//! what depends on each other stays together. In each pair, chance decides whether A is the first
//! or the second. So the true ratio is exactly 1.
//!
//! **The order in a round has to be drawn**, in a real run as here. If A is the first in every
//! other round only, a slow change of the machine looks like a difference: with whole blocks
//! turned, A against A differed in 3 of 50 runs of the bandwidth over TCP.
//!
//! **Source.** Künsch: The jackknife and the bootstrap for general stationary observations (Annals
//! of Statistics 17, 1989).

use bmi_report::stats::{Interval, Random, Stop, paired_ratio};
use serde::Deserialize;

/// The number of consecutive pairs that are drawn together. Pairs that are farther apart hardly
/// depend on each other.
const BLOCK: usize = 16;
/// The number of runs.
const RUNS: usize = 100;

#[derive(Deserialize)]
struct Recording {
    pairs: Vec<(f64, f64)>,
}

/// A run that draws its rounds from a recording.
struct Run<'a> {
    recording: &'a Recording,
    random: Random,
    pairs: Vec<(f64, f64)>,
}

impl Run<'_> {
    /// Measures A against A until the rule says that there are enough rounds. Returns the ratio.
    fn measure(&mut self, stop: Stop) -> Interval {
        let (mut ratio, mut rounds) = (Interval::NONE, 0);
        while rounds == 0 || !stop.is_done(&ratio, rounds) {
            rounds = stop.next_look(&ratio, rounds);
            while self.pairs.len() < rounds {
                self.draw_block();
            }
            ratio = paired_ratio(&self.pairs[..rounds], 1);
        }
        self.pairs.truncate(rounds);
        ratio
    }

    fn draw_block(&mut self) {
        let recorded = &self.recording.pairs;
        let at = self.random.below(recorded.len() - BLOCK + 1);
        for (first, second) in &recorded[at..at + BLOCK] {
            let (a, b) = if self.random.below(2) == 0 { (first, second) } else { (second, first) };
            self.pairs.push((*a, *b));
        }
    }

    /// Returns the ratio of the same run with B slowed. The width of an interval does not depend on
    /// the factor, so this run takes as many rounds.
    fn slowed(&self, factor: f64) -> Interval {
        let pairs: Vec<(f64, f64)> = self.pairs.iter().map(|(a, b)| (*a, b * factor)).collect();
        paired_ratio(&pairs, 1)
    }
}

fn check(text: &str) {
    let recording: Recording = serde_json::from_str(text).unwrap();
    assert!(recording.pairs.len() >= 400, "{} pairs", recording.pairs.len());
    let (mut same, mut found, mut rounds) = (0, 0, 0);
    for seed in 0..RUNS as u64 {
        let mut run = Run { recording: &recording, random: Random::new(seed), pairs: Vec::new() };
        let ratio = run.measure(Stop::default());
        let slowed = run.slowed(1.05);
        assert!((slowed.width() / ratio.width() - 1.0).abs() < 1e-9, "{slowed:?}, {ratio:?}");
        same += usize::from(!ratio.excludes(1.0));
        found += usize::from(slowed.low > 1.0);
        rounds += run.pairs.len();
    }
    println!("same: {same} of {RUNS}; 5 % slower: {found} of {RUNS}; {} rounds on average", rounds / RUNS);
    assert!(same >= 95, "A against A differs in {} of {RUNS} runs", RUNS - same);
    assert!(found >= 90, "A against A slowed by 5 % is found in {found} of {RUNS} runs only");
}

#[test]
fn latency_over_tcp() {
    check(include_str!("../recordings/tcp-latency-sleeping.json"));
}

#[test]
fn latency_over_tcp_of_processes_that_poll_on_busy_processors() {
    check(include_str!("../recordings/tcp-latency-polling.json"));
}

#[test]
fn bandwidth_over_tcp() {
    check(include_str!("../recordings/tcp-send-sleeping.json"));
}

#[test]
fn latency_over_shared_memory() {
    check(include_str!("../recordings/shm-latency.json"));
}
