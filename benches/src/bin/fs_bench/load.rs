//! Keeps calls in flight and measures their times; draws random offsets.

use std::cell::RefCell;
use std::time::Duration;

use benches::workload::Failed;
use bmi_core::{AsyncEndpoint, Time};
use bmi_report::stats::{Random, middle};
use fs_client::Client;
use futures_util::stream::{FuturesUnordered, TryStreamExt};

/// The times of some calls.
#[derive(Debug)]
pub(crate) struct Times {
    /// The number of calls.
    calls: u64,
    /// The seconds from the beginning of the first call to the end of the last.
    seconds: f64,
    /// The seconds of each call, if calls are one after the other.
    each: Vec<f64>,
}

impl Times {
    /// Returns the time of a call if calls are one after the other, or else the calls per second.
    pub(crate) fn figure(mut self) -> f64 {
        if self.each.is_empty() { self.calls as f64 / self.seconds } else { middle(&mut self.each) }
    }
}

/// Calls `step` repeatedly in every lane, all lanes at the same time, so that as many calls are in
/// flight as there are lanes. No call begins after `time`. `step` returns false if it had nothing
/// left to do. Then its lane ends.
///
/// # Errors
/// The first error of a step; the calls in flight are then abandoned. Also an error if no step had
/// anything to do.
pub(crate) async fn repeat<L>(
    client: &Client,
    time: Duration,
    lanes: &mut [L],
    step: impl AsyncFn(&mut L) -> Result<bool, Failed>,
) -> Result<Times, Failed> {
    /// The number of calls in a usual measurement. With room for these, recording a time seldom
    /// moves the others.
    const USUAL: usize = 1 << 14;
    let endpoint = client.endpoint();
    let each = RefCell::new((lanes.len() == 1).then(|| Vec::with_capacity(USUAL)));
    let begin = endpoint.now();
    let end = begin + time;
    let running: FuturesUnordered<_> =
        lanes.iter_mut().map(|lane| run_lane(endpoint, begin, end, lane, &step, &each)).collect();
    let calls = running.try_fold(0, async |sum, calls| Ok(sum + calls)).await?;
    if calls == 0 {
        return Err("there was nothing left to measure".into());
    }
    let seconds = endpoint.now().since(begin).as_secs_f64();
    Ok(Times { calls, seconds, each: each.into_inner().unwrap_or_default() })
}

/// Runs one lane. Returns the number of its calls.
async fn run_lane<L>(
    endpoint: &AsyncEndpoint,
    begin: Time,
    end: Time,
    lane: &mut L,
    step: &impl AsyncFn(&mut L) -> Result<bool, Failed>,
    each: &RefCell<Option<Vec<f64>>>,
) -> Result<u64, Failed> {
    let (mut calls, mut before) = (0, begin);
    while before < end && step(lane).await? {
        let now = endpoint.now();
        if let Some(each) = each.borrow_mut().as_mut() {
            each.push(now.since(before).as_secs_f64());
        }
        calls += 1;
        before = now;
    }
    Ok(calls)
}

/// The offsets of accesses at random places of a file. They are multiples of the size of an access.
#[derive(Clone, Debug)]
pub(crate) struct Offsets {
    random: Random,
    size: u64,
    places: u64,
}

impl Offsets {
    /// Creates the offsets of accesses of `size` bytes in a file of `len`, which has room for at
    /// least one. The same seed gives the same offsets.
    pub(crate) fn new(seed: u64, len: u64, size: u64) -> Offsets {
        let places = len / size;
        assert!(places > 0, "a file of {len} bytes has no room for an access of {size}");
        Offsets { random: Random::new(seed), size, places }
    }

    /// Returns the next offset.
    pub(crate) fn draw(&mut self) -> u64 {
        self.random.below(self.places as usize) as u64 * self.size
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_access_lies_within_the_file() {
        for (len, size) in [(1, 1), (4096, 4096), (4097, 4096), (65535, 4096), (256 << 20, 64 << 10), (u64::MAX, 4096)]
        {
            for seed in 0..100 {
                let mut offsets = Offsets::new(seed, len, size);
                for _ in 0..1000 {
                    let offset = offsets.draw();
                    assert!(offset.is_multiple_of(size) && offset <= len - size, "{offset} of {len}, {size}");
                }
            }
        }
    }

    #[test]
    fn every_place_is_met_and_a_seed_repeats() {
        let draw = |seed| {
            let mut offsets = Offsets::new(seed, 64 << 10, 4 << 10);
            (0..1000).map(|_| offsets.draw()).collect::<Vec<u64>>()
        };
        assert_eq!(draw(1).into_iter().collect::<BTreeSet<u64>>().len(), 16);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    #[should_panic(expected = "no room")]
    fn a_file_without_room_for_an_access_is_a_mistake() {
        Offsets::new(1, 4095, 4096);
    }

    #[test]
    fn a_figure_is_a_time_or_a_rate() {
        let times = Times { calls: 3, seconds: 6.0, each: vec![1.0, 2.0, 9.0] };
        assert_eq!(times.figure(), 2.0);
        assert_eq!(Times { calls: 3, seconds: 6.0, each: Vec::new() }.figure(), 0.5);
    }
}
