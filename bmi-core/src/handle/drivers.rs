//! The tasks and threads that drive the endpoints of a handle.
//!
//! **Why a task.** A thread of its own would be woken for each message, and would then wake the
//! thread of the task that waits for the message. A driver that is a task of the same runtime is
//! run by the thread that the system woke, and so is, next, the task that it wakes.

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

/// Starts what drives an endpoint until it is closed: a task of the multi-threaded runtime that
/// this is called in, or a thread. A runtime of one thread runs its tasks only while it is blocked
/// on, and a driver that polls without end would take a worker from it.
///
/// # Errors
/// `Io` if the system starts no more threads.
pub(super) fn start(number: usize, endpoint: SharedEndpoint, waiting: Waiting) -> Result<(), Error> {
    #[cfg(feature = "tokio")]
    if waiting != Waiting::Busy
        && let Ok(runtime) = tokio::runtime::Handle::try_current()
        && runtime.runtime_flavor() == tokio::runtime::RuntimeFlavor::MultiThread
    {
        runtime.spawn(task::run(task::Relay { number, endpoint, waiting }));
        return Ok(());
    }
    start_thread(number, endpoint, waiting)
}

#[cfg(feature = "tokio")]
mod task {
    use std::pin::pin;

    use futures_util::future::{Either, select};

    use super::{SharedEndpoint, Waiting, start_thread};
    use crate::driver::event;

    /// A thread goes on when this is dropped before the endpoint is closed: the task panicked, or
    /// its runtime ended first.
    pub(super) struct Relay {
        pub(super) number: usize,
        pub(super) endpoint: SharedEndpoint,
        pub(super) waiting: Waiting,
    }

    impl Drop for Relay {
        fn drop(&mut self) {
            if !self.endpoint.has_closed()
                && let Err(error) = start_thread(self.number, self.endpoint.clone(), self.waiting)
            {
                tracing::error!(%error, "nothing drives an endpoint any more");
            }
        }
    }

    pub(super) async fn run(relay: Relay) {
        let driving = pin!(event::drive_with(relay.endpoint.clone(), relay.waiting));
        if let Either::Left((Err(error), _)) = select(driving, pin!(relay.endpoint.closed())).await {
            tracing::error!(%error, "the runtime cannot wait for the transport; a thread does");
        }
    }
}

/// Starts the thread that drives an endpoint until it is closed.
///
/// # Errors
/// `Io` if the system starts no more threads.
fn start_thread(number: usize, endpoint: SharedEndpoint, waiting: Waiting) -> Result<(), Error> {
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
        // What arrives is for another thread. To wake that is a wake-up too, and it may need the
        // processor that this one would poll on. It polls itself if it can (`Handle::block_on`).
        Waiting::Adaptive => driver::block_on(endpoint, Waiting::Event, endpoint.closed()),
        Waiting::Event | Waiting::PollSends { .. } => driver::block_on(endpoint, waiting, endpoint.closed()),
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
