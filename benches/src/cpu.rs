//! Processor time, user and system together, as the kernel counts it.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time of the calling thread since it began.
pub fn of_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // This clock counts up from zero, so a reading is never negative.
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_processor_time() {
        let begin = of_thread();
        let mut word = 1u64;
        while of_thread() == begin {
            word = std::hint::black_box(word.wrapping_mul(3));
        }
        assert!(of_thread() > begin);
    }
}
