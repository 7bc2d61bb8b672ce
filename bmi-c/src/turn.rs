//! How threads wait in test calls. One of them, the *leader*, polls all transports, and sleeps on
//! their descriptors. The others wait until something has ended, or until they become the leader.
//!
//! **Protocol.** Whoever finds news (an operation that ended, an unexpected message) raises
//! `epoch`, wakes those that wait, and rings for the leader if that sleeps. A thread reads `epoch`
//! before it looks for what it waits for, and waits only while `epoch` is the same. So no news is
//! missed.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

use bmi::driver::{MonotonicClock, Waiter, Waiting};
use bmi::{Clock, Time};

use crate::number::{Number, Outcome};

/// The descriptor that ends the leader's sleep.
struct Bell(OwnedFd);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let one = 1_u64;
        // SAFETY: eight bytes of a number that lives. Such a write fails only if the counter is
        // full, and then the bell rings.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

pub(crate) struct Turn {
    epoch: AtomicU64,
    /// The leader sleeps, or is about to.
    sleeps: AtomicBool,
    followers: AtomicU32,
    state: Mutex<State>,
    changed: Condvar,
    bell: Arc<Bell>,
    pub(crate) waker: Waker,
}

struct State {
    has_leader: bool,
    waiter: Waiter,
}

impl Turn {
    pub(crate) fn new() -> Outcome<Turn> {
        // SAFETY: the call takes no memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Number::EMFILE);
        }
        // SAFETY: the call has just made the descriptor, and nothing else has it.
        let bell = Arc::new(Bell(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }));
        Ok(Turn {
            epoch: AtomicU64::new(0),
            sleeps: AtomicBool::new(false),
            followers: AtomicU32::new(0),
            state: Mutex::new(State { has_leader: false, waiter: Waiter::new(Waiting::Adaptive) }),
            changed: Condvar::new(),
            waker: Waker::from(Arc::clone(&bell)),
            bell,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that something has ended or come, or that the transports are others.
    pub(crate) fn announce(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        if self.followers.load(Ordering::SeqCst) > 0 {
            // A follower has the lock until it waits.
            drop(self.lock());
            self.changed.notify_all();
        }
        self.ring();
    }

    /// Returns true if the leader sleeps, or is about to.
    #[inline]
    pub(crate) fn is_asleep(&self) -> bool {
        self.sleeps.load(Ordering::SeqCst)
    }

    /// Ends the sleep of the leader.
    pub(crate) fn ring(&self) {
        if self.is_asleep() {
            self.waker.wake_by_ref();
        }
    }

    /// Looks until there is something, for `idle_ms` at most. `look` polls. `arm` gets ready to
    /// sleep: it returns the descriptors and the time of the next poll, or `None` to poll again.
    pub(crate) fn wait(
        &self,
        clock: MonotonicClock,
        idle_ms: u32,
        mut look: impl FnMut() -> Outcome<bool>,
        mut arm: impl FnMut(Time) -> Option<(Vec<libc::pollfd>, Time)>,
    ) -> Outcome<()> {
        let mut epoch = self.epoch.load(Ordering::SeqCst);
        if look()? || idle_ms == 0 {
            return Ok(());
        }
        let begun = clock.now();
        let until = begun + Duration::from_millis(idle_ms.into());
        while !self.lead(epoch, clock, until) {
            epoch = self.epoch.load(Ordering::SeqCst);
            if look()? || clock.now() >= until {
                return Ok(());
            }
        }
        let _leader = Leader(self);
        let patience = self.lock().waiter.patience(false);
        loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            let found = look()?;
            let now = clock.now();
            if found {
                self.lock().waiter.ended(now - begun, patience);
            }
            if found || now >= until {
                return Ok(());
            }
            if patience.is_none_or(|patience| now - begun < patience) {
                std::hint::spin_loop();
                continue;
            }
            self.sleeps.store(true, Ordering::SeqCst);
            if let Some((mut fds, wake_at)) = arm(until)
                && self.epoch.load(Ordering::SeqCst) == epoch
            {
                fds.push(libc::pollfd { fd: self.bell.0.as_raw_fd(), events: libc::POLLIN, revents: 0 });
                self.sleep(&mut fds, wake_at.since(clock.now()));
            }
            self.sleeps.store(false, Ordering::SeqCst);
        }
    }

    /// Makes this thread the leader. If there is one, waits for news, for the end of the leader or
    /// until `until`, and returns false.
    fn lead(&self, epoch: u64, clock: MonotonicClock, until: Time) -> bool {
        let mut state = self.lock();
        if !state.has_leader {
            state.has_leader = true;
            return true;
        }
        self.followers.fetch_add(1, Ordering::SeqCst);
        if self.epoch.load(Ordering::SeqCst) == epoch {
            let wait = self.changed.wait_timeout(state, until.since(clock.now()));
            drop(wait.unwrap_or_else(PoisonError::into_inner));
        }
        self.followers.fetch_sub(1, Ordering::SeqCst);
        false
    }

    fn sleep(&self, fds: &mut [libc::pollfd], timeout: Duration) {
        let timeout = libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let count = fds.len() as libc::nfds_t;
        // SAFETY: the list and the time live during the call. After an error, as after a signal,
        // the leader looks again.
        unsafe { libc::ppoll(fds.as_mut_ptr(), count, &raw const timeout, std::ptr::null()) };
        if fds.last().is_some_and(|bell| bell.revents != 0) {
            let mut rung = 0_u64;
            // SAFETY: eight bytes of a number that lives.
            unsafe { libc::read(self.bell.0.as_fd().as_raw_fd(), (&raw mut rung).cast(), 8) };
        }
    }
}

/// Ends the lead, whatever the end of the wait.
struct Leader<'a>(&'a Turn);

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.0.sleeps.store(false, Ordering::SeqCst);
        self.0.lock().has_leader = false;
        // Without followers this is a system call in vain.
        if self.0.followers.load(Ordering::SeqCst) > 0 {
            self.0.changed.notify_one();
        }
    }
}
