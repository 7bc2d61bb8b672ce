//! What the processors of this machine have done, as its kernel tells.

use std::fs::read_to_string;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;
use rustix::thread::{CpuSet, sched_getaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::service::Meter;

/// The meter of an event loop, for use on its thread.
pub(super) struct Processors;

impl Meter for Processors {
    fn used(&self) -> Duration {
        now(ClockId::ThreadCPUTime)
    }

    /// Where the kernel does not tell, all processors seem to be free.
    fn idle(&self) -> Duration {
        let may_use = sched_getaffinity(None);
        let is_own = |cpu: usize| may_use.as_ref().is_ok_and(|set| cpu < CpuSet::MAX_CPU && set.is_set(cpu));
        let ticks = read_to_string("/proc/stat").ok().map(|text| idle_ticks(&text, is_own));
        let seconds = |ticks: u64| Duration::from_millis(ticks * 1000 / clock_ticks_per_second().max(1));
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        ticks.filter(|ticks| *ticks > 0).map_or_else(|| now(ClockId::Monotonic) * processors, seconds)
    }
}

fn now(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Returns for how many ticks some processors had nothing to do, by the text of `/proc/stat`: the
/// fourth and the fifth number of the line of each.
fn idle_ticks(text: &str, is_own: impl Fn(usize) -> bool) -> u64 {
    let of = |line: &str| {
        let (cpu, numbers) = line.strip_prefix("cpu")?.split_once(' ')?;
        let idle = numbers.split_whitespace().skip(3).take(2).map(|number| number.parse::<u64>().unwrap_or(0));
        is_own(cpu.parse().ok()?).then(|| idle.sum::<u64>())
    };
    text.lines().filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idle_time_of_own_processors_is_read() {
        let text = "cpu  9 9 9 99 99 0\ncpu0 1 2 3 40 5 6 7\ncpu1 1 1 1 300 x 1\ncpu2 1\nintr 5 6 7 8 9\n";
        assert_eq!(idle_ticks(text, |_| true), 345);
        assert_eq!(idle_ticks(text, |cpu| cpu == 0), 45);
        assert_eq!(idle_ticks("", |_| true), 0);
        let (used, idle) = (Processors.used(), Processors.idle());
        assert!(idle > Duration::ZERO && Processors.used() >= used && Processors.idle() >= idle);
    }
}
