//! Drives an endpoint and runs a future on the calling thread, without a runtime.
//!
//! **Protocol.** Run the future if it was woken, and poll the endpoint. When neither has anything
//! to do, poll as long as [`Waiting`] allows. Then arm, and sleep until the transport has something
//! to do or until the next deadline.
//!
//! The thread sleeps in `poll(2)` on the transport's event fd, and on a pipe that its own waker
//! writes to. If the transport has no event fd, the thread is parked, and the waker that the
//! transport was armed with unparks it (C11). A waker of the future ends the sleep too, from any
//! thread.

use std::future::Future;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::{Waiter, Waiting};
use crate::endpoint::threading::Threading;
use crate::endpoint::{Endpoint, Found};
use crate::error::Error;
use crate::transport::Armed;

/// Notes that the future can go on, and wakes the thread if it sleeps.
pub(crate) struct Alarm {
    ready: AtomicBool,
    asleep: AtomicBool,
    sleeper: Sleeper,
}

/// The way to end the sleep of the thread.
pub(crate) enum Sleeper {
    /// The thread sleeps on the transport's event fd and on the other end of this pipe. The
    /// transport's own waker would not do: another thread that polls the transport takes it back
    /// before this thread has seen it.
    Pipe(PipeWriter),
    /// The thread is parked.
    Parked(Thread),
}

impl Alarm {
    /// Creates an alarm for a future that can go on.
    pub(crate) fn new(sleeper: Sleeper) -> Alarm {
        Alarm { ready: AtomicBool::new(true), asleep: AtomicBool::new(false), sleeper }
    }

    /// Returns true if the future can go on, once for each time.
    pub(crate) fn take(&self) -> bool {
        self.ready.swap(false, Ordering::SeqCst)
    }

    /// Returns true if the future can go on.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Parks this thread until the future can go on. May return early.
    pub(crate) fn park(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        if !self.ready.load(Ordering::SeqCst) {
            park(None);
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.store(true, Ordering::SeqCst);
        // Only a sleeping thread needs the system call, and it needs one. The thread checks `ready`
        // once more after it has set `asleep`.
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            match &self.sleeper {
                // There is room: one byte is written for each sleep. Without a reader, the thread
                // has ended.
                Sleeper::Pipe(pipe) => drop((&*pipe).write(&[0])),
                Sleeper::Parked(thread) => thread.unpark(),
            }
        }
    }
}

/// What the thread sleeps on.
struct Bed {
    /// A duplicate of the transport's event fd, so that the endpoint is free meanwhile.
    fd: OwnedFd,
    alarm: PipeReader,
}

/// Runs `future` to its end on this thread, and drives `endpoint` meanwhile.
///
/// When it returns, nothing drives the endpoint any more, and what was posted last may not have
/// left. A future that ends with a send disconnects the peer, which waits for it
/// ([`Peer::disconnect`](crate::Peer::disconnect)).
///
/// # Errors
/// `Io` if the system cannot wait.
pub fn block_on<S: Threading, F: Future>(
    endpoint: &Endpoint<S>,
    waiting: Waiting,
    future: F,
) -> Result<F::Output, Error> {
    let (sleeper, mut bed) = match endpoint.clone_event_fd()? {
        Some(fd) => {
            let (alarm, sleeper) = std::io::pipe()?;
            (Sleeper::Pipe(sleeper), Some(Bed { fd, alarm }))
        }
        None => (Sleeper::Parked(thread::current()), None),
    };
    let alarm = Arc::new(Alarm::new(sleeper));
    let waker = Waker::from(Arc::clone(&alarm));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    let mut waiter = Waiter::new(waiting);
    let mut wait = None;
    // The endpoint was polled since the last attempt to sleep.
    let mut polled = false;
    loop {
        let ran = alarm.take();
        if ran && let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Ok(output);
        }
        // What has come since that poll ends the sleep, so there is no second look for it.
        let found = if ran && polled {
            endpoint.send_posted();
            Some(Found::Posted)
        } else {
            polled = true;
            endpoint.find_work(endpoint.now()).or_else(|| ran.then_some(Found::Posted))
        };
        if let Some(found) = found {
            waiter.found(&mut wait, found, endpoint.now());
            if alarm.is_ready() {
                continue;
            }
        }
        let wait = wait.get_or_insert_with(|| waiter.begin(endpoint.now(), endpoint.is_sending()));
        if wait.polls_on(endpoint.now()) {
            std::hint::spin_loop();
        } else {
            sleep(endpoint, &alarm, &waker, bed.as_mut())?;
            polled = false;
        }
    }
}

/// Sleeps until there may be something to do.
fn sleep<S: Threading>(
    endpoint: &Endpoint<S>,
    alarm: &Alarm,
    waker: &Waker,
    bed: Option<&mut Bed>,
) -> Result<(), Error> {
    alarm.asleep.store(true, Ordering::SeqCst);
    let (armed, until) = match alarm.ready.load(Ordering::SeqCst) {
        true => (Armed::Busy, None),
        false => endpoint.arm_until(waker),
    };
    let sleeps = armed == Armed::Waiting;
    let timeout = until.map(|at| at.since(endpoint.now()));
    let Some(bed) = bed else {
        if sleeps {
            park(timeout);
        }
        alarm.asleep.store(false, Ordering::SeqCst);
        return Ok(());
    };
    let slept = if sleeps { wait_for(&[bed.fd.as_fd(), bed.alarm.as_fd()], timeout) } else { Ok(()) };
    if !alarm.asleep.swap(false, Ordering::SeqCst) {
        // Someone has woken this thread, or is about to. The byte must not end the next sleep.
        bed.alarm.read_exact(&mut [0])?;
    }
    slept
}

/// Parks the thread. It may wake early; the loop then checks and sleeps again.
pub(crate) fn park(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => thread::park_timeout(timeout),
        None => thread::park(),
    }
}

/// Waits until one of `fds` is readable, or for `timeout`.
pub(super) fn wait_for<const N: usize>(fds: &[BorrowedFd<'_>; N], timeout: Option<Duration>) -> Result<(), Error> {
    // A duration that is too long for the system means no timeout.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        // After a signal the loop checks and sleeps again.
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(Error::from(std::io::Error::from(error))),
    }
}
