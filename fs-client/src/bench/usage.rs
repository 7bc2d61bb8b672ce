//! The processor time and the context switches of processes.

use std::fs::{self, DirEntry};

use rustix::time::{ClockId, clock_gettime};

/// What processes have taken of the machine so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Processor time in seconds, user and system.
    pub(crate) cpu: f64,
    /// Context switches of the threads that run now.
    pub(crate) switches: f64,
}

impl Usage {
    /// Returns the use of this process.
    pub(crate) fn now() -> Usage {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let cpu = time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9;
        Usage { cpu, switches: threads("self").map(|thread| switches(&thread)).sum() }
    }

    /// Returns the use of the threads of other processes of this host. A process that is gone
    /// counts as nothing.
    pub(crate) fn of(processes: &[u32]) -> Usage {
        let all = processes.iter().flat_map(|process| threads(&process.to_string()));
        all.fold(Usage::default(), |sum, thread| Usage {
            cpu: sum.cpu + ran(&thread),
            switches: sum.switches + switches(&thread),
        })
    }
}

fn threads(process: &str) -> impl Iterator<Item = DirEntry> + use<> {
    fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten()
}

fn read(thread: &DirEntry, name: &str) -> String {
    fs::read_to_string(thread.path().join(name)).unwrap_or_default()
}

/// Returns the seconds for which a thread ran.
fn ran(thread: &DirEntry) -> f64 {
    let text = read(thread, "schedstat");
    text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0) * 1e-9
}

fn switches(thread: &DirEntry) -> f64 {
    let text = read(thread, "status");
    let counts = text.lines().filter(|line| line.contains("voluntary_ctxt_switches"));
    counts.filter_map(|line| line.split_whitespace().last()?.parse::<f64>().ok()).sum()
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
        let own = Usage::of(&[std::process::id()]);
        assert!(own.cpu > 0.0 && own.switches > 0.0);
        assert_eq!(Usage::of(&[u32::MAX]).cpu, 0.0);
    }
}
