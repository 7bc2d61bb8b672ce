//! The threads that drive the endpoints of a handle.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{self, Builder};
use std::time::Duration;

use crate::driver::{Waiting, thread as driver};
use crate::endpoint::SharedEndpoint;
use crate::error::Error;

/// Number of polls between two looks for other threads that poll. A poll that gives way to such
/// threads, on a core that they need too, takes 100 µs and more. With 256 polls, the driver noticed
/// them only after 24 ms.
const POLLS: u64 = 32;
/// How long a driver stands by for threads that poll, at first and at most. Each look for them
/// costs a wake-up, so the time doubles as long as they poll. If they stop, nobody polls for so
/// long.
const STAND_BY: Duration = Duration::from_micros(100);
const LONGEST_STAND_BY: Duration = Duration::from_millis(2);
/// Pause after a panic, so that a panic in every round does not take the whole core.
const AFTER_PANIC: Duration = Duration::from_millis(10);

/// Starts the thread that drives an endpoint until it is closed.
///
/// # Errors
/// `Io` if the system starts no more threads.
pub(super) fn start(number: usize, endpoint: SharedEndpoint, waiting: Waiting) -> Result<(), Error> {
    let run = move || {
        loop {
            match catch_unwind(AssertUnwindSafe(|| drive(&endpoint, waiting))) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => tracing::error!(%error, "the driver cannot wait; it polls in intervals"),
                // A waker of the program panicked. The others need this driver. The panic hook has
                // reported it.
                Err(_) => tracing::error!("a panic on the thread of a driver, which goes on"),
            }
            // The next waker may panic too, so this polls under guard.
            let _ = catch_unwind(AssertUnwindSafe(|| while endpoint.progress() {}));
            if endpoint.has_closed() {
                return;
            }
            driver::park(Some(AFTER_PANIC));
        }
    };
    Builder::new().name(format!("bmi-driver-{number}")).spawn(run)?;
    Ok(())
}

fn drive(endpoint: &SharedEndpoint, waiting: Waiting) -> Result<(), Error> {
    match waiting {
        Waiting::Busy => {
            poll_until_closed(endpoint);
            Ok(())
        }
        _ => driver::block_on(endpoint, waiting, endpoint.closed()),
    }
}

/// Polls, except while other threads do.
fn poll_until_closed(endpoint: &SharedEndpoint) {
    let mut polls = endpoint.polls();
    while !endpoint.has_closed() {
        for _ in 0..POLLS {
            if !endpoint.progress() {
                std::hint::spin_loop();
            }
        }
        let others = |polls: &mut u64, own: u64| {
            let before = std::mem::replace(polls, endpoint.polls());
            *polls - before > own
        };
        let mut standing_by = others(&mut polls, POLLS);
        let mut pause = STAND_BY;
        while standing_by {
            thread::park_timeout(pause);
            standing_by = others(&mut polls, 0);
            pause = (pause * 2).min(LONGEST_STAND_BY);
        }
    }
}
