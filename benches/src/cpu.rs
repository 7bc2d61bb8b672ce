//! Processor time, user and system together, and context switches, as the kernel counts them.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time of the calling thread since it began.
pub fn of_thread() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// Returns the processor time of all threads of this process since it began.
pub fn of_process() -> Duration {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    // These clocks count up from zero, so a reading is never negative.
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the voluntary context switches of all threads of this process that live.
fn voluntary_switches() -> u64 {
    count("voluntary_ctxt_switches:")
}

/// Returns the context switches, voluntary and involuntary, of all threads of this process that
/// live.
pub fn switches() -> u64 {
    voluntary_switches() + count("nonvoluntary_ctxt_switches:")
}

/// Returns the sum of a count over all threads.
fn count(name: &str) -> u64 {
    let of = |thread: std::fs::DirEntry| -> Option<u64> {
        let status = std::fs::read_to_string(thread.path().join("status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
    };
    std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten().filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sleeps_is_switched() {
        let (voluntary, all) = (voluntary_switches(), switches());
        assert!(all >= voluntary);
        let (wake, woken) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("waker".to_owned());
        // Rounds until the kernel had to wait for the other thread at least once.
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        let thread = thread.spawn(move || asked.iter().for_each(|()| wake.send(()).unwrap())).unwrap();
        while voluntary_switches() == voluntary {
            ask.send(()).unwrap();
            woken.recv().unwrap();
        }
        drop(ask);
        thread.join().unwrap();
        assert!(switches() >= all);
    }

    #[test]
    fn work_takes_processor_time() {
        let (thread, process) = (of_thread(), of_process());
        let mut word = 1u64;
        while of_thread() == thread {
            word = std::hint::black_box(word.wrapping_mul(3));
        }
        assert!(of_thread() > thread && of_process() > process);
    }
}
