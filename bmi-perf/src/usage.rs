//! What a part of a round costs: processor time, context switches, system calls.
//!
//! System calls are counted in a round of their own: see [`crate::system_calls`].
//!
//! **Source.** proc_pid_status(5).

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::system_calls::Counter;

/// What threads have used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// Processor time in seconds.
    pub(crate) cpu: f64,
    /// Context switches, voluntary and involuntary.
    pub(crate) switches: u64,
    /// System calls, if they were counted.
    pub(crate) calls: Option<u64>,
}

impl Usage {
    /// Returns the sum.
    #[must_use]
    pub(crate) fn plus(self, other: Usage) -> Usage {
        Usage {
            cpu: self.cpu + other.cpu,
            switches: self.switches + other.switches,
            calls: self.calls.zip(other.calls).map(|(a, b)| a + b).or(self.calls).or(other.calls),
        }
    }
}

/// A measurement of the calling thread that is under way.
pub(crate) struct Meter {
    cpu: Duration,
    switches: u64,
    counter: Option<Counter>,
}

impl Meter {
    /// Begins to measure. Counts system calls if `counting` is true and the system allows it.
    pub(crate) fn begin(counting: bool) -> Meter {
        let counter = counting.then(|| Counter::open().ok()).flatten();
        Meter { cpu: thread_time(), switches: switches(), counter }
    }

    /// Returns what the thread has used since.
    pub(crate) fn end(self) -> Usage {
        let calls = self.counter.and_then(|counter| counter.read().ok());
        let cpu = (thread_time() - self.cpu).as_secs_f64();
        Usage { cpu, switches: switches().saturating_sub(self.switches), calls }
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // This clock counts up from zero, so a reading is never negative.
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn switches() -> u64 {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    status
        .lines()
        .filter_map(|line| line.split_once("voluntary_ctxt_switches:"))
        .filter_map(|(_, number)| number.trim().parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_and_sleep_are_measured() {
        let meter = Meter::begin(false);
        let (_sender, receiver) = std::sync::mpsc::channel::<()>();
        assert!(receiver.recv_timeout(Duration::from_millis(1)).is_err());
        let begin = thread_time();
        let mut word = 1u64;
        while thread_time() == begin {
            word = std::hint::black_box(word.wrapping_mul(3));
        }
        let usage = meter.end();
        assert!(usage.cpu > 0.0 && usage.switches >= 1 && usage.calls.is_none(), "{usage:?}");
    }

    #[test]
    fn sums_keep_what_was_counted() {
        let usage = |calls| Usage { cpu: 1.0, switches: 2, calls };
        assert_eq!(usage(Some(3)).plus(usage(Some(4))).calls, Some(7));
        assert_eq!(usage(None).plus(usage(Some(4))).calls, Some(4));
        assert_eq!(usage(None).plus(usage(None)), Usage { cpu: 2.0, switches: 4, calls: None });
    }
}
