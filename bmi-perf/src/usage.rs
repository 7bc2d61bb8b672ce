//! What a part of a round costs: processor time, context switches, system calls.
//!
//! System calls are counted in a round of their own: see [`crate::system_calls`].
//!
//! **Source.** proc_pid_status(5).

use std::fs;
use std::path::PathBuf;
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

/// A measurement that is running: of the calling thread, or of the whole process.
pub(crate) struct Meter {
    is_whole: bool,
    cpu: Duration,
    switches: u64,
    counter: Option<Counter>,
}

impl Meter {
    /// Begins to measure. Counts system calls of the thread if `counting` is true and the system
    /// allows it. With `is_whole`, processor time and switches are those of the process.
    pub(crate) fn begin(counting: bool, is_whole: bool) -> Meter {
        let counter = (counting && !is_whole).then(|| Counter::open().ok()).flatten();
        Meter { is_whole, cpu: time(is_whole), switches: switches(is_whole), counter }
    }

    /// Returns what was used since.
    pub(crate) fn end(self) -> Usage {
        let calls = self.counter.and_then(|counter| counter.read().ok());
        let cpu = (time(self.is_whole) - self.cpu).as_secs_f64();
        // Those of a thread that has ended meanwhile are not known any more.
        Usage { cpu, switches: switches(self.is_whole).saturating_sub(self.switches), calls }
    }
}

fn time(is_whole: bool) -> Duration {
    let time = clock_gettime(if is_whole { ClockId::ProcessCPUTime } else { ClockId::ThreadCPUTime });
    // These clocks count up from zero, so a reading is never negative.
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn switches(is_whole: bool) -> u64 {
    let own = || vec![PathBuf::from("/proc/thread-self/status")];
    let all = || fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let files = if is_whole { all().map(|thread| thread.path().join("status")).collect() } else { own() };
    let statuses = files.iter().map(|file| fs::read_to_string(file).unwrap_or_default());
    let of = |status: String| -> u64 {
        let counts = status.lines().filter_map(|line| line.split_once("voluntary_ctxt_switches:"));
        counts.filter_map(|(_, number)| number.trim().parse::<u64>().ok()).sum()
    };
    statuses.map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_and_sleep_are_measured() {
        let meter = Meter::begin(false, false);
        let (_sender, receiver) = std::sync::mpsc::channel::<()>();
        assert!(receiver.recv_timeout(Duration::from_millis(1)).is_err());
        let begin = time(false);
        let mut word = 1u64;
        while time(false) == begin {
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
