//! The statistics on real recordings, where the truth is known because it was made: A against A does
//! not differ, and A against A slowed by five percent does.
//!
//! **Why.** Made-up noise is kinder than a real machine. Rounds of a real one depend on each other:
//! for some seconds another program runs, a processor slows down, or two of them move apart.
//!
//! **How.** `recordings` has pairs of rounds of one row, recorded on a busy machine with the command
//! that each file names. A run is drawn from them as two builds are compared: rounds are added until
//! [`Stop`] says that there are enough. Blocks of consecutive pairs are drawn, so that what depends
//! on each other stays together. In each pair, chance decides whether A is the first or the second.
//! So the true ratio is exactly 1.
//!
//! **The order in a round has to be drawn**, in a real run as here. If A is the first in every other
//! round only, a slow change of the machine looks like a difference: with whole blocks turned, A
//! against A differed in 6 of 100 runs of the bandwidth over TCP.
//!
//! **Source.** Künsch: The jackknife and the bootstrap for general stationary observations (Annals
//! of Statistics 17, 1989).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

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
    /// The cost of B is multiplied by this.
    slowed: f64,
}

impl Run<'_> {
    /// Measures until the rule says that there are enough rounds. Returns the ratio, and the number
    /// of rounds.
    fn measure(&mut self, stop: Stop) -> (Interval, usize) {
        let (mut pairs, mut ratio, mut rounds) = (Vec::new(), Interval::NONE, 0);
        loop {
            rounds = stop.next_look(&ratio, rounds);
            while pairs.len() < rounds {
                self.draw_block(&mut pairs);
            }
            ratio = paired_ratio(&pairs[..rounds], 1);
            if stop.is_done(&ratio, rounds) {
                return (ratio, rounds);
            }
        }
    }

    fn draw_block(&mut self, pairs: &mut Vec<(f64, f64)>) {
        let recorded = &self.recording.pairs;
        let at = self.random.below(recorded.len() - BLOCK + 1);
        for (first, second) in &recorded[at..at + BLOCK] {
            let (a, b) = if self.random.below(2) == 0 { (first, second) } else { (second, first) };
            pairs.push((*a, b * self.slowed));
        }
    }
}

/// Measures some runs of a recording. Returns in how many of them the ratio excluded 1, and the mean
/// number of rounds.
fn differ(recording: &Recording, slowed: f64) -> (usize, usize) {
    let mut sum = (0, 0);
    for seed in 0..RUNS as u64 {
        // Both factors draw other rounds.
        let mut run = Run { recording, random: Random::new(seed ^ slowed.to_bits()), slowed };
        let (ratio, rounds) = run.measure(Stop::default());
        sum = (sum.0 + usize::from(ratio.excludes(1.0)), sum.1 + rounds);
    }
    (sum.0, sum.1 / RUNS)
}

fn check(text: &str) {
    let recording: Recording = serde_json::from_str(text).unwrap();
    assert!(recording.pairs.len() >= 400, "{} pairs", recording.pairs.len());
    let ((wrong, rounds), (found, others)) = (differ(&recording, 1.0), differ(&recording, 1.05));
    let same = RUNS - wrong;
    println!("same: {same} of {RUNS} after {rounds} rounds; 5 % slower: {found} of {RUNS} after {others} rounds");
    assert!(same >= 95, "A against A differs in {wrong} of {RUNS} runs");
    assert!(found >= 90, "A against A slowed by 5 % differs in {found} of {RUNS} runs only");
}

#[test]
fn latency_over_tcp() {
    check(include_str!("recordings/tcp-latency-sleeping.json"));
}

#[test]
fn latency_over_tcp_of_processes_that_poll_on_busy_processors() {
    check(include_str!("recordings/tcp-latency-polling.json"));
}

#[test]
fn bandwidth_over_tcp() {
    check(include_str!("recordings/tcp-send-sleeping.json"));
}

#[test]
fn latency_over_shared_memory() {
    check(include_str!("recordings/shm-latency.json"));
}
