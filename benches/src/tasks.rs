//! What the threads of a process have used of the machine, as the kernel counts it.

use std::fs;
use std::time::Duration;

/// The use of all threads of some processes that live, since they began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Processor time.
    pub ran: Duration,
    /// Time for which threads were ready to run and had no processor.
    pub queued: Duration,
    /// Voluntary context switches: a thread went to sleep.
    pub sleeps: u64,
    /// Context switches, voluntary and involuntary.
    pub switches: u64,
}

impl Usage {
    /// Returns the use of processes. What cannot be read counts as nothing: a process may have
    /// ended, and a kernel may not count the time in the queue.
    pub fn of(processes: impl IntoIterator<Item = u32>) -> Usage {
        let folders = processes.into_iter().flat_map(|process| fs::read_dir(format!("/proc/{process}/task")));
        let mut sum = Usage::default();
        for task in folders.flatten().flatten() {
            let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let (ran, queued) = times(&read("schedstat"));
            sum.ran += ran;
            sum.queued += queued;
            let (voluntary, involuntary) = switches(&read("status"));
            sum.sleeps += voluntary;
            sum.switches += voluntary + involuntary;
        }
        sum
    }

    /// Returns the use since an earlier reading. A thread that has ended meanwhile is not counted.
    #[must_use]
    pub fn since(self, earlier: Usage) -> Usage {
        Usage {
            ran: self.ran.saturating_sub(earlier.ran),
            queued: self.queued.saturating_sub(earlier.queued),
            sleeps: self.sleeps.saturating_sub(earlier.sleeps),
            switches: self.switches.saturating_sub(earlier.switches),
        }
    }
}

/// Returns the processor time of the threads of this process that live and whose names are meant.
pub fn of_own_threads(is_meant: impl Fn(&str) -> bool) -> Duration {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let read = |task: &fs::DirEntry, name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
    tasks.filter(|task| is_meant(read(task, "comm").trim_end())).map(|task| times(&read(&task, "schedstat")).0).sum()
}

/// Parses `schedstat`: nanoseconds on a processor, nanoseconds in the queue, number of turns.
fn times(schedstat: &str) -> (Duration, Duration) {
    let mut words = schedstat.split_whitespace().map(|word| word.parse().unwrap_or(0));
    let mut next = || Duration::from_nanos(words.next().unwrap_or(0));
    (next(), next())
}

/// Parses `status`: the voluntary context switches, and the others.
fn switches(status: &str) -> (u64, u64) {
    let number = |name| {
        let number = status.lines().find_map(|line| line.strip_prefix(name));
        number.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    };
    (number("voluntary_ctxt_switches:"), number("nonvoluntary_ctxt_switches:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_kernel_are_parsed() {
        assert_eq!(times("1500 20 3\n"), (Duration::from_nanos(1500), Duration::from_nanos(20)));
        assert_eq!(times(""), (Duration::ZERO, Duration::ZERO));
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!((switches(status), switches("")), ((12, 3), (0, 0)));
    }

    #[test]
    fn threads_are_told_apart_by_name() {
        let work = || {
            let begin = crate::cpu::of_thread();
            while crate::cpu::of_thread() < begin + Duration::from_millis(2) {}
            (of_own_threads(|name| name == "worker7"), of_own_threads(|name| name == "nobody"))
        };
        let worker = std::thread::Builder::new().name("worker7".into()).spawn(work).unwrap();
        let (worker, nobody) = worker.join().unwrap();
        assert!(worker >= Duration::from_millis(1) && nobody.is_zero(), "{worker:?}, {nobody:?}");
    }

    #[test]
    fn sleeping_is_counted_and_a_process_that_is_gone_is_nothing() {
        let own = || Usage::of([std::process::id()]);
        let before = own();
        let (_sender, receiver) = std::sync::mpsc::channel::<()>();
        assert!(receiver.recv_timeout(Duration::from_millis(1)).is_err());
        let used = own().since(before);
        assert!(used.sleeps >= 1 && used.switches >= used.sleeps, "{used:?}");
        assert_eq!(Usage::of([u32::MAX]), Usage::default());
    }
}
