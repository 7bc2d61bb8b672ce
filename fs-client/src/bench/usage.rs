//! The processor time and the context switches of this process.

use std::fs;

use rustix::time::{ClockId, clock_gettime};

/// What this process has taken of the machine so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Processor time in seconds, user and system.
    pub(crate) cpu: f64,
    /// Context switches of the threads that run now.
    pub(crate) switches: f64,
}

impl Usage {
    pub(crate) fn now() -> Usage {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Usage { cpu: time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9, switches: switches() }
    }
}

fn switches() -> f64 {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return 0.0 };
    let of_thread = |text: String| -> u64 {
        let counts = text.lines().filter(|line| line.contains("voluntary_ctxt_switches"));
        counts.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok()).sum()
    };
    let texts = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    texts.map(of_thread).sum::<u64>() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_processor_time() {
        let before = Usage::now();
        let mut sum = 0u64;
        while Usage::now().cpu <= before.cpu {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(Usage::now().switches > 0.0);
    }
}
