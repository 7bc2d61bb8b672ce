//! Drives an endpoint and runs a future on the calling thread, without a runtime.
//!
//! **Protocol.** Run the future if it was woken, and poll the endpoint. When neither has anything
//! to do, poll as long as [`Waiting`] allows. Then arm, and sleep until the transport has something
//! to do or until the next deadline.
//!
//! The thread sleeps in `poll(2)` on the transport's event fd. If the transport has none, the
//! thread is parked, and the waker that the transport was armed with unparks it (C11). A waker of
//! the future ends the sleep too, from any thread.

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

/// The way to end the sleep of the thread.
enum Sleeper {
    /// The thread sleeps on the transport's event fd, which this waker makes readable.
    Descriptor(Waker),
    /// The thread is parked.
    Parked(Thread),
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.store(true, Ordering::SeqCst);
        // Only a sleeping thread needs the system call. The thread checks `ready` once more after
        // it has set `asleep`.
        if self.asleep.load(Ordering::SeqCst) {
            match &self.sleeper {
                Sleeper::Descriptor(transport) => transport.wake_by_ref(),
                Sleeper::Parked(thread) => thread.unpark(),
            }
        }
    }
}

/// Runs `future` to its end on this thread, and drives `endpoint` meanwhile.
///
/// When it returns, nothing drives the endpoint any more, and what was posted last may not have
/// left. A future that ends with a send disconnects the peer, which waits for it
/// ([`AsyncEndpoint::disconnect`]).
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

/// Parks the thread. It may wake early; the loop then checks and sleeps again.
pub(super) fn park(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => thread::park_timeout(timeout),
        None => thread::park(),
    }
}

/// Waits until `fd` is readable, or for `timeout`.
pub(super) fn wait_for(fd: std::os::fd::BorrowedFd<'_>, timeout: Option<Duration>) -> Result<(), Error> {
    // A duration that is too long for the system means no timeout.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        // After a signal the loop checks and sleeps again.
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(Error::from(std::io::Error::from(error))),
    }
}
