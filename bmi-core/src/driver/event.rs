//! Drives an endpoint under tokio. [`Waiting`] selects whether it sleeps, polls, or polls first and
//! then sleeps. Sleeping takes no processor time.
//!
//! It sleeps on the transport's event fd. A transport without one wakes the task instead (C11).
//!
//! **Protocol.**
//! 1. Forget the readiness that tokio has noted: the poll that follows sees what caused it. Poll.
//!    If there was something to do, let the tasks run that were woken, and send all that they post,
//!    without a second look for arrivals: what has come since is noted. If the driver is to sleep,
//!    callers make progress themselves, and there is one at most, the loop goes on at once: the
//!    runtime would wake another thread for it.
//! 2. Poll on, as long as `Waiting` allows. The other tasks of the runtime run after every few
//!    polls. If something is found, go on as after the first poll.
//! 3. Arm. If there is more to do, the result is *busy*, and the loop begins again.
//! 4. If tokio has noted readiness meanwhile, begin again.
//! 5. Otherwise sleep until the transport has something to do, a task posts something, or the next
//!    deadline.
//!
//! **Tests.** `benches/tests/it/waiting.rs`: an idle endpoint takes no processor time.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::LocalSet;
use tokio::time::{Instant, Sleep};

use super::together::together;
use super::{Waiter, Waiting};
use crate::endpoint::Endpoint;
use crate::endpoint::threading::Threading;
use crate::error::Error;
use crate::time::Time;
use crate::transport::Armed;

/// Number of polls that find nothing before the runtime runs other tasks, which costs a system
/// call.
const POLLS: usize = 8;

/// Drives `endpoint` as long as the future is polled. Spawn it, or let [`run`] poll it. (All
/// branches of a `select!` have one waker. There it polls the endpoint each time that another
/// branch is woken.) It waits in the default way ([`Waiting::Adaptive`]). It needs a tokio runtime
/// with I/O and time enabled.
///
/// # Errors
/// `Io` if tokio cannot wait on the transport's event fd.
pub async fn drive<S: Threading>(endpoint: Endpoint<S>) -> Result<Infallible, Error> {
    drive_with(endpoint, Waiting::default()).await
}

/// Works as [`drive`], but waits as `waiting` says.
///
/// # Errors
/// As [`drive`].
pub async fn drive_with<S: Threading>(endpoint: Endpoint<S>, waiting: Waiting) -> Result<Infallible, Error> {
    drive_beside(endpoint, waiting, Beside::Tasks).await
}

/// What runs when a driver gives way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// Tasks of a runtime.
    Tasks,
    /// The work of [`together`].
    Work,
}

async fn drive_beside<S: Threading>(
    endpoint: Endpoint<S>,
    waiting: Waiting,
    beside: Beside,
) -> Result<Infallible, Error> {
    let fd = endpoint.clone_event_fd()?;
    // SAFETY: the descriptor belongs to this function. It stays open until the `AsyncFd` is
    // dropped, and an `OwnedFd` always returns the same descriptor.
    let register = |fd| unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    let fd = fd.map(register).transpose().map_err(std::io::Error::from)?;
    let mut waiter = Waiter::new(waiting);
    let mut wait = None;
    let mut alarm = Alarm::default();
    // Polls since the last sleep that found something.
    let mut polls = 0_usize;
    loop {
        if let Some(fd) = &fd {
            forget_readiness(fd).await?;
        }
        let mut now = endpoint.now();
        let mut found = endpoint.find_work(now);
        loop {
            if let Some(found) = found {
                waiter.found(&mut wait, found, endpoint.now());
                polls = polls.wrapping_add(1);
                let yields = waiter.polls() || !S::CALLERS_PROGRESS || polls.is_multiple_of(POLLS);
                if yields || !endpoint.is_used_alone() {
                    give_way(&endpoint, beside).await;
                }
                now = endpoint.now();
                endpoint.send_posted(now);
            }
            let wait = wait.get_or_insert_with(|| waiter.begin(now, endpoint.is_sending()));
            found = None;
            while found.is_none() && wait.polls_on(now) {
                found = (0..POLLS).find_map(|_| {
                    now = endpoint.now();
                    endpoint.find_work(now)
                });
                if found.is_none() {
                    tokio::task::yield_now().await;
                    now = endpoint.now();
                }
            }
            if found.is_none() {
                break;
            }
        }
        if sleep(&endpoint, fd.as_ref(), &mut alarm).await? {
            polls = 0;
        }
    }
}

/// Lets the tasks run that were woken.
///
/// The yield of tokio looks for events too, which is a system call. A task that wakes itself runs
/// after those that were woken before, if it is part of [`together`] or of a runtime with one
/// thread. With the latter, if none of these has posted anything, what was woken may run only after
/// that look.
async fn give_way<S: Threading>(endpoint: &Endpoint<S>, beside: Beside) {
    if beside == Beside::Work || !S::CALLERS_PROGRESS {
        let mut woken = false;
        poll_fn(|cx| match std::mem::replace(&mut woken, true) {
            true => Poll::Ready(()),
            false => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        })
        .await;
        if beside == Beside::Work || endpoint.has_posted() {
            return;
        }
    }
    tokio::task::yield_now().await;
}

/// The alarm of a driver. It rings at the next deadline, or earlier.
///
/// **Why it stays set.** A runtime that is about to sleep is woken when it gets a timer that is
/// earlier than all others: by a write to its event fd, also on its own thread. With a new timer
/// for each sleep, that is a system call and an empty wake-up in each sleep. So the timer is kept.
/// One that rings before the next deadline costs one round, and a deadline seldom passes.
#[derive(Default)]
struct Alarm {
    timer: Option<Pin<Box<Sleep>>>,
    /// When it rings. `None` if it has.
    at: Option<Time>,
}

impl Alarm {
    /// Sets the alarm, unless it rings by then anyway, and returns true if it is time. Otherwise
    /// the task will be woken.
    #[expect(clippy::disallowed_methods, reason = "the driver of a real machine: real time is what it waits for")]
    fn rings_by(&mut self, until: Time, now: impl FnOnce() -> Time, cx: &mut Context<'_>) -> bool {
        if self.at.is_none_or(|at| at > until) {
            // A time too far for the system is no deadline.
            let Some(at) = Instant::now().checked_add(until.since(now())) else { return false };
            match &mut self.timer {
                Some(timer) => timer.as_mut().reset(at),
                None => self.timer = Some(Box::pin(tokio::time::sleep_until(at))),
            }
            self.at = Some(until);
        }
        let rings = self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready());
        if rings {
            self.at = None;
        }
        rings
    }
}

/// Forgets readiness that tokio has noted. An edge from here on is noted again.
async fn forget_readiness(fd: &AsyncFd<OwnedFd>) -> Result<(), Error> {
    poll_fn(|cx| {
        if let Poll::Ready(ready) = fd.poll_read_ready(cx) {
            ready?.clear_ready();
        }
        Poll::Ready(Ok(()))
    })
    .await
}

/// Sleeps until there may be something to do. Returns false if there was already.
async fn sleep<S: Threading>(
    endpoint: &Endpoint<S>,
    fd: Option<&AsyncFd<OwnedFd>>,
    alarm: &mut Alarm,
) -> Result<bool, Error> {
    let mut armed = false;
    poll_fn(|cx| {
        if armed {
            // Woken. The reason does not matter.
            return Poll::Ready(Ok(true));
        }
        // A transport need not look for arrivals while it is armed, if they make its fd readable.
        // So the fd is asked afterwards: an arrival since the polls has been noted, and a later one
        // wakes this task. A transport without an fd wakes the waker that it is armed with.
        let (waiting, until) = endpoint.arm_until(cx.waker());
        let rings = until.is_some_and(|until| alarm.rings_by(until, || endpoint.now(), cx));
        if waiting == Armed::Busy || rings || fd.is_some_and(|fd| fd.poll_read_ready(cx).is_ready()) {
            return Poll::Ready(Ok(false));
        }
        armed = true;
        Poll::Pending
    })
    .await
}

/// Runs `future` to its end, and drives `endpoint` meanwhile, in one task of a runtime that has I/O
/// and time enabled. It waits in the default way ([`Waiting::Adaptive`]).
///
/// What was posted last may not have left when it returns: see [`block_on`].
///
/// # Errors
/// As [`drive`].
pub async fn run<S: Threading, F: Future>(endpoint: Endpoint<S>, future: F) -> Result<F::Output, Error> {
    run_all(&[endpoint], Waiting::default(), future).await
}

async fn run_all<S: Threading, F: Future>(
    endpoints: &[Endpoint<S>],
    waiting: Waiting,
    future: F,
) -> Result<F::Output, Error> {
    let drivers = endpoints.iter().map(|endpoint| drive_beside(endpoint.clone(), waiting, Beside::Work));
    together(drivers.collect(), pin!(future)).await
}

/// Runs `future` to its end on a new current-thread runtime, and drives `endpoint` meanwhile.
/// It waits in the default way ([`Waiting::Adaptive`]).
///
/// When it returns, nothing drives the endpoint any more, and what was posted last may not have
/// left. A future that ends with a send disconnects the peer, which waits for it
/// ([`Peer::disconnect`](crate::Peer::disconnect)).
///
/// # Errors
/// As [`drive`].
pub fn block_on<S: Threading, F: Future>(endpoint: Endpoint<S>, future: F) -> Result<F::Output, Error> {
    block_on_with(endpoint, Waiting::default(), future)
}

/// Works as [`block_on`], but waits as `waiting` says.
///
/// # Errors
/// As [`drive`].
pub fn block_on_with<S: Threading, F: Future>(
    endpoint: Endpoint<S>,
    waiting: Waiting,
    future: F,
) -> Result<F::Output, Error> {
    block_on_all_with(&[endpoint], waiting, future)
}

/// Works as [`block_on`], with any number of endpoints. Each endpoint has a driver of its own, so
/// the work of one costs the others no system call. The endpoints must have the same clock if
/// deadlines of one are used with another.
///
/// # Errors
/// As [`drive`], of the first endpoint that fails.
pub fn block_on_all<S: Threading, F: Future>(endpoints: &[Endpoint<S>], future: F) -> Result<F::Output, Error> {
    block_on_all_with(endpoints, Waiting::default(), future)
}

/// Works as [`block_on_all`], but each endpoint waits as `waiting` says.
///
/// # Errors
/// As [`block_on_all`].
pub fn block_on_all_with<S: Threading, F: Future>(
    endpoints: &[Endpoint<S>],
    waiting: Waiting,
    future: F,
) -> Result<F::Output, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = LocalSet::new();
    runtime.block_on(run_all(endpoints, waiting, tasks.run_until(future)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Each sleep had a timer of its own. To set it woke the runtime, with a write to its event fd.
    #[test]
    fn an_alarm_stays_set_until_an_earlier_deadline_or_until_it_rings() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let now = Time::ZERO + Duration::from_secs(1);
        let mut alarm = Alarm::default();
        runtime.block_on(poll_fn(|cx| {
            let at = |seconds| now + Duration::from_secs(seconds);
            for (until, rings_at) in [(2000, 2000), (3000, 2000), (1000, 1000), (2000, 1000)] {
                assert!(!alarm.rings_by(at(until), || now, cx));
                assert_eq!(alarm.at, Some(at(rings_at)), "{until}");
            }
            Poll::Ready(())
        }));
        let rung = poll_fn(|cx| if alarm.rings_by(now, || now, cx) { Poll::Ready(()) } else { Poll::Pending });
        runtime.block_on(rung);
        assert_eq!(alarm.at, None);
        runtime.block_on(poll_fn(|cx| {
            let later = now + Duration::from_secs(1000);
            assert!(!alarm.rings_by(later, || now, cx), "it has rung, and is set again");
            assert_eq!(alarm.at, Some(later));
            Poll::Ready(())
        }));
    }
}
