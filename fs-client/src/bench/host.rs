//! Facts about this host, and the processor time of this process. What the kernel does not tell is
//! left out.

use std::fs;

use bmi_report::Host;
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

/// Returns the name of this host.
pub(crate) fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the facts about this host, under `name`.
pub(crate) fn facts(name: String) -> Host {
    let line = |path: &str, key: &str| {
        let text = fs::read_to_string(path).ok()?;
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let processors = std::thread::available_parallelism().ok().map(|number| number.to_string());
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let facts = [
        ("processors", processors),
        ("processor", line("/proc/cpuinfo", "model name")),
        ("memory", line("/proc/meminfo", "MemTotal")),
        ("kernel", Some(kernel)),
    ];
    let facts = facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    Host { role: "client".to_owned(), name, facts }
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
        assert!(facts("a".into()).facts.iter().any(|(name, _)| name == "kernel"));
    }
}
