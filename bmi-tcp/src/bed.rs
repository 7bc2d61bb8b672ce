//! Where the thread of a driver sleeps: in epoll itself.
//!
//! **Protocol.** The thread asks epoll without the transport, which other threads may use
//! meanwhile, and leaves the events in [`Seen`] for the next poll. Readiness is edge-triggered, so
//! an event is reported once, to this thread or to a poll. Events may be old when a poll takes
//! them. They say only what to try.
//!
//! The bell is watched level-triggered: a poll by another thread that sees it leaves it as it is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use bmi_core::Error;
use bmi_core::transport::Bed;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::io::Errno;

use crate::vectored_io;
use crate::{TOKEN_BITS, TOKEN_WAKER};

/// The token of a bell.
const BELL: u64 = (1 << TOKEN_BITS | TOKEN_WAKER) as u64;

/// The system rounds the timeout of epoll up to milliseconds. A shorter one than this is waited for
/// by another call.
const EXACT: Duration = Duration::from_millis(10);

/// What epoll has reported to a thread that slept.
#[derive(Default)]
pub(crate) struct Seen {
    any: AtomicBool,
    events: Mutex<Vec<libc::epoll_event>>,
}

impl Seen {
    /// Returns true if there are events.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Exchanges the events for the memory of `events`, which are cleared.
    pub(crate) fn swap(&self, events: &mut Vec<libc::epoll_event>) {
        events.clear();
        std::mem::swap(&mut *self.lock(), events);
        self.any.store(false, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<libc::epoll_event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A bed in epoll.
pub(crate) struct TcpBed {
    epoll: OwnedFd,
    seen: Arc<Seen>,
    bell: Arc<OwnedFd>,
}

impl TcpBed {
    pub(crate) fn new(epoll: BorrowedFd<'_>, seen: Arc<Seen>) -> Result<TcpBed, Error> {
        let failed = |error: std::io::Error| Error::from(error).during("prepare to sleep");
        let epoll = epoll.try_clone_to_owned().map_err(failed)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
        let added = epoll::add(&epoll, &bell, EventData::new_u64(BELL), EventFlags::IN);
        added.map_err(|error| failed(error.into()))?;
        Ok(TcpBed { epoll, seen, bell: Arc::new(bell) })
    }
}

impl Drop for TcpBed {
    fn drop(&mut self) {
        // Wakers may keep the bell for long, and must not keep epoll awake.
        let _ = epoll::delete(&self.epoll, &self.bell);
    }
}

impl Bed for TcpBed {
    fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        let failed = |error: std::io::Error| Error::from(error).during("sleep");
        let mut until = timeout;
        // A duration that is too long for the system means no timeout.
        if let Some(Ok(exact)) = timeout.filter(|timeout| *timeout < EXACT).map(Timespec::try_from) {
            let mut fds = [PollFd::from_borrowed_fd(self.epoll.as_fd(), PollFlags::IN)];
            match rustix::event::poll(&mut fds, Some(&exact)) {
                Ok(0) | Err(Errno::INTR) => return Ok(()),
                Ok(_) => until = Some(Duration::ZERO),
                Err(error) => return Err(failed(error.into())),
            }
        }
        // Only this thread adds events. A poll takes none meanwhile, because none are announced.
        let mut events = std::mem::take(&mut *self.seen.lock());
        if !self.seen.any() {
            vectored_io::wait(self.epoll.as_fd(), &mut events, until).map_err(failed)?;
        }
        if events.iter().any(|event| event.u64 == BELL) {
            // It may have been read by an earlier sleep, whose events nobody has taken.
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
        let any = !events.is_empty();
        *self.seen.lock() = events;
        self.seen.any.store(any, Ordering::Release);
        Ok(())
    }

    fn waker(&self) -> Waker {
        let bell = Arc::clone(&self.bell);
        bmi_backend::waker(move || match rustix::io::write(&bell, &1_u64.to_ne_bytes()) {
            // It rings already.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        })
    }
}
