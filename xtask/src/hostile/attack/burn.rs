//! A process that uses as much of a processor as an attacker did, and connects to nobody.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::{is_over, sleep};
use crate::hostile::spec::Done;

/// The time in which the share is used once.
const PERIOD: Duration = Duration::from_millis(10);

/// Uses `permille` thousandths of a processor until the process shall end. More than one processor
/// takes several threads.
pub(super) fn burn(permille: u64) -> Done {
    let threads = permille.div_ceil(1000).max(1);
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| drop(scope.spawn(|| burn_alone(permille as f64 / threads as f64 / 1000.0))));
    });
    Done::default()
}

fn burn_alone(share: f64) {
    let now = |clock| {
        let now = clock_gettime(clock);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let (began, used_before) = (now(ClockId::Monotonic), now(ClockId::ThreadCPUTime));
    while !is_over() {
        // What was not had in one period is made up for in the next ones, as an attacker's work
        // would wait for the processor too.
        let due = (now(ClockId::Monotonic) - began + PERIOD).mul_f64(share);
        while now(ClockId::ThreadCPUTime) - used_before < due && !is_over() {
            std::hint::black_box((0..2000u64).fold(0, u64::wrapping_add));
        }
        sleep(PERIOD.mul_f64((1.0 - share).max(0.0)));
    }
}
