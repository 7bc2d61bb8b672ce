//! The blocking form: a thread that waits for a future of a handle.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::Handle;
use crate::driver::Waiter;
use crate::driver::thread::{Alarm, this_thread};
use crate::endpoint::{Found, SharedEndpoint};
use crate::time::Time;

/// Arms the adapters again for drivers that sleep, when this thread polls no more, also after a
/// panic.
struct Rearm<'a>(&'a Handle);

impl Drop for Rearm<'_> {
    fn drop(&mut self) {
        self.0.endpoints().for_each(SharedEndpoint::rearm);
    }
}

impl Handle {
    /// Runs `future` to its end on this thread. While it waits, the thread polls the endpoints, as
    /// long as [`HandleConfig::waiting`](super::HandleConfig::waiting) allows, and then sleeps
    /// until a driver has something for it. Any number of threads may wait at a time.
    ///
    /// For a program without an executor: `handle.block_on(handle.send(peer, tag, list, options))`.
    /// Do not call it in a task of an executor, whose thread it would block.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.wait(pin!(future), None).expect("without a limit it ends with the future")
    }

    /// Works as [`Handle::block_on`], for `limit` at most. Returns `None` then. The future goes on
    /// with the next call. For a program that has to look at something else now and then, such as
    /// signals.
    pub fn block_on_for<F: Future>(&self, future: Pin<&mut F>, limit: Duration) -> Option<F::Output> {
        self.wait(future, Some(self.now() + limit))
    }

    fn wait<F: Future>(&self, mut future: Pin<&mut F>, until: Option<Time>) -> Option<F::Output> {
        let alarm = Arc::new(Alarm::new(this_thread()));
        let waker = Waker::from(Arc::clone(&alarm));
        let mut cx = Context::from_waker(&waker);
        let left = |now: Time| until.map(|until| until.since(now));
        loop {
            if alarm.take()
                && let Poll::Ready(output) = future.as_mut().poll(&mut cx)
            {
                return Some(output);
            }
            let sending = self.endpoints().any(|endpoint| endpoint.is_sending());
            let mut now = self.now();
            let mut wait = self.waiter().begin(now, sending);
            let mut rearm = None;
            while !alarm.is_ready() && wait.polls_on(now) && left(now) != Some(Duration::ZERO) {
                rearm.get_or_insert_with(|| Rearm(self));
                if !self.endpoints().fold(false, |worked, endpoint| endpoint.progress_of_caller() | worked) {
                    std::hint::spin_loop();
                }
                now = self.now();
            }
            drop(rearm);
            alarm.park(left(now));
            now = self.now();
            if left(now) == Some(Duration::ZERO) && !alarm.is_ready() {
                return None;
            }
            self.waiter().found(&mut Some(wait), Found::Arrived, now);
        }
    }

    /// Returns what the threads that wait have in common. It is used for a few instructions.
    fn waiter(&self) -> MutexGuard<'_, Waiter> {
        self.shared.waiter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
