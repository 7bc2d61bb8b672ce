//! Drives an endpoint and runs a future on the calling thread, without a runtime.
//!
//! **Protocol.** Run the future if it was woken, and poll the endpoint. When neither had anything to
//! do, poll for as long as [`Waiting`] says; then arm and sleep until the transport has something to
//! do or the next deadline. The thread sleeps in `poll(2)` on the transport's event fd; with a
//! transport without one it is parked, and the transport's waker unparks it (C11). A waker of the
//! future, used on any thread, ends the sleep too.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::{Waiter, Waiting};
use crate::async_endpoint::AsyncEndpoint;
use crate::error::Error;
use crate::time::Time;
use crate::transport::{Armed, Transport};

/// Notes that the future can go on, and wakes the thread if it sleeps.
struct Alarm {
    ready: AtomicBool,
    asleep: AtomicBool,
    sleeper: Sleeper,
}

/// What ends the sleep of the thread.
enum Sleeper {
    /// It sleeps on the transport's event fd, which this waker makes readable.
    Descriptor(Waker),
    /// It is parked.
    Parked(Thread),
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.store(true, Ordering::SeqCst);
        // Only a sleeping thread needs the system call; it looks at `ready` once more after it has
        // said that it sleeps.
        if self.asleep.load(Ordering::SeqCst) {
            match &self.sleeper {
                Sleeper::Descriptor(transport) => transport.wake_by_ref(),
                Sleeper::Parked(thread) => thread.unpark(),
            }
        }
    }
}

/// Runs `future` to its end on this thread, with `endpoint` driven beside it.
///
/// # Errors
/// `Io` if the system cannot wait.
pub fn block_on<T: Transport, F: Future>(
    endpoint: &AsyncEndpoint<T>,
    waiting: Waiting,
    future: F,
) -> Result<F::Output, Error> {
    let sleeper = match endpoint.with_event_fd(|fd| fd.is_some()) {
        true => Sleeper::Descriptor(endpoint.with(|endpoint| endpoint.transport().waker())),
        false => Sleeper::Parked(thread::current()),
    };
    let alarm = Arc::new(Alarm { ready: AtomicBool::new(true), asleep: AtomicBool::new(false), sleeper });
    let waker = Waker::from(Arc::clone(&alarm));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    let mut waiter = Waiter::new(waiting);
    let mut idle_since: Option<(Time, Option<Duration>)> = None;
    loop {
        let ran = alarm.ready.swap(false, Ordering::SeqCst);
        if ran && let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Ok(output);
        }
        if endpoint.progress() || ran {
            if let Some((since, _)) = idle_since.take() {
                waiter.ended(endpoint.now() - since);
            }
            continue;
        }
        let now = endpoint.now();
        let (since, patience) = *idle_since.get_or_insert_with(|| (now, waiter.patience(endpoint.is_sending())));
        if patience.is_none_or(|patience| now - since < patience) {
            std::hint::spin_loop();
        } else {
            sleep(endpoint, &alarm, &waker)?;
        }
    }
}

/// Sleeps until there may be something to do.
fn sleep<T: Transport>(endpoint: &AsyncEndpoint<T>, alarm: &Alarm, waker: &Waker) -> Result<(), Error> {
    alarm.asleep.store(true, Ordering::SeqCst);
    let slept = if alarm.ready.load(Ordering::SeqCst) || endpoint.arm(waker) == Armed::Busy {
        Ok(())
    } else {
        let timeout = endpoint.next_deadline().map(|at| at.since(endpoint.now()));
        endpoint.with_event_fd(|fd| match fd {
            Some(fd) => wait_for(fd, timeout),
            None => {
                park(timeout);
                Ok(())
            }
        })
    };
    alarm.asleep.store(false, Ordering::SeqCst);
    slept
}

/// Parks the thread. It may wake early; the loop looks and sleeps again.
pub(super) fn park(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => thread::park_timeout(timeout),
        None => thread::park(),
    }
}

/// Waits until `fd` is readable, or for `timeout`.
pub(super) fn wait_for(fd: std::os::fd::BorrowedFd<'_>, timeout: Option<Duration>) -> Result<(), Error> {
    // A duration beyond what the system can count is never.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        // A signal: the loop looks and sleeps again.
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(Error::from(std::io::Error::from(error))),
    }
}
