//! Drives an endpoint and runs a future on the calling thread, without a runtime.
//!
//! **Protocol.** Run the future if it was woken, and poll the endpoint. When neither has anything
//! to do, poll as long as [`Waiting`] allows. Then arm, and sleep until the transport has something
//! to do or until the next deadline.
//!
//! The thread sleeps in the transport's [`Bed`], or on its event fd. If the transport has neither,
//! the thread is parked, and the waker that the transport was armed with unparks it (C11). A waker
//! of the future ends the sleep too, from any thread.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use super::{Waiter, Waiting};
use crate::endpoint::threading::Threading;
use crate::endpoint::{Endpoint, Found};
use crate::error::Error;
use crate::transport::{Armed, Bed};

/// Number of turns of the future between two looks for arrivals. A message that is sent takes two:
/// the first posts it, and the second goes on when it has left.
const TURNS: u32 = 4;

/// Notes that the future can go on, and wakes the thread if it sleeps.
pub(crate) struct Alarm {
    ready: AtomicBool,
    asleep: AtomicBool,
    /// Ends the sleep.
    bell: Waker,
}

impl Alarm {
    /// Creates an alarm for a future that can go on.
    pub(crate) fn new(bell: Waker) -> Alarm {
        Alarm { ready: AtomicBool::new(true), asleep: AtomicBool::new(false), bell }
    }

    /// Returns true if the future can go on, once for each time.
    pub(crate) fn take(&self) -> bool {
        self.ready.swap(false, Ordering::SeqCst)
    }

    /// Returns true if the future can go on.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Parks this thread until the future can go on, or for `timeout`. May return early.
    pub(crate) fn park(&self, timeout: Option<Duration>) {
        self.asleep.store(true, Ordering::SeqCst);
        if !self.ready.load(Ordering::SeqCst) {
            park(timeout);
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
            self.bell.wake_by_ref();
        }
    }
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
    let mut bed = endpoint.bed()?;
    let bell = bed.as_ref().map_or_else(this_thread, |bed| bed.waker());
    let alarm = Arc::new(Alarm::new(bell));
    let waker = Waker::from(Arc::clone(&alarm));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    let mut waiter = Waiter::new(waiting);
    let mut wait = None;
    // Turns of the future without a look for arrivals that may still come before one: none, if the
    // endpoint was not polled since the last attempt to sleep.
    let mut turns = 0;
    loop {
        let ran = alarm.take();
        if ran && let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Ok(output);
        }
        // What has come since that poll ends the sleep, so there is no second look for it.
        let now = endpoint.now();
        let found = if ran && turns > 0 {
            // A future that is ready again and again must not hide what arrives.
            turns -= 1;
            endpoint.send_posted(now);
            Some(Found::Posted)
        } else {
            turns = TURNS;
            endpoint.find_work(now).or_else(|| ran.then_some(Found::Posted))
        };
        if let Some(found) = found {
            waiter.found(&mut wait, found, endpoint.now());
            if alarm.is_ready() {
                continue;
            }
        }
        let wait = wait.get_or_insert_with(|| waiter.begin(now, endpoint.is_sending()));
        if wait.polls_on(now) {
            std::hint::spin_loop();
        } else {
            sleep(endpoint, &alarm, &waker, bed.as_mut())?;
            turns = 0;
        }
    }
}

/// Sleeps until there may be something to do.
fn sleep<S: Threading>(
    endpoint: &Endpoint<S>,
    alarm: &Alarm,
    waker: &Waker,
    bed: Option<&mut Box<dyn Bed>>,
) -> Result<(), Error> {
    alarm.asleep.store(true, Ordering::SeqCst);
    let (armed, until) = match alarm.ready.load(Ordering::SeqCst) {
        true => (Armed::Busy, None),
        false => endpoint.arm_until(waker),
    };
    let mut slept = Ok(());
    if armed == Armed::Waiting {
        let timeout = until.map(|at| at.since(endpoint.now()));
        match bed {
            Some(bed) => slept = bed.sleep(timeout),
            None => park(timeout),
        }
    }
    // A waker that comes now ends the next sleep too, which then is a poll in vain.
    alarm.asleep.store(false, Ordering::SeqCst);
    slept
}

/// Parks the thread. It may wake early; the loop then checks and sleeps again.
pub(crate) fn park(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => thread::park_timeout(timeout),
        None => thread::park(),
    }
}

/// Returns a waker that ends the parking of this thread.
pub(crate) fn this_thread() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}
