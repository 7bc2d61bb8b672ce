//! A lock whose holder also does what others left for it while it held the lock.
//!
//! **Why.** An endpoint that several threads use is behind a lock. A value that is dropped must not
//! wait for that lock: it may be dropped by any code, also by code that runs under the lock. So a
//! drop leaves a *note*. If the lock is free, the thread takes it and settles the note. Otherwise
//! the holder does so before it releases the lock. Nobody has to come back for the note. (The
//! principle is that of *flat combining*: Hendler, Incze, Shavit, Tzafrir, SPAA 2010.)
//!
//! **Invariants**
//! 1. *One holder.* The value is accessed only between a successful acquire and its release.
//! 2. *No note is lost.* The bit `NOTED` is set after the note is in the queue. [`Guard::release`]
//!    does not succeed while it is set. A thread that sets it while the lock is free tries to take
//!    the lock; if that fails, another thread holds the lock and will see the bit.
//! 3. *No waiter is lost.* A thread sleeps only after it has set `AWAITED` while the lock was held,
//!    under the mutex of the sleepers. The release that clears `AWAITED` takes that mutex and wakes
//!    one. The woken thread sets the bit again if others sleep.
//! 4. Waiting is for [`CombiningLock::acquire`] only. [`CombiningLock::leave`] never waits for the
//!    holder.
//!
//! **Cost.** Without contention, one atomic exchange to acquire and one to release, as for a
//! `Mutex`.
//!
//! **Tests.** `tests/it/lock.rs` explores the interleavings of notes, waiters and holders.
//! `bmi-conformance/src/handle` runs threads.

#![allow(unreachable_pub, reason = "part of a sealed public trait; Rust 1.91 takes it for unreachable")]

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use crate::sync::{AtomicU32, AtomicUsize, Condvar, Mutex, Ordering, SPINS, UnsafeCell, spin, this_thread};

/// The lock is held.
const HELD: u32 = 1;
/// Notes are in the queue.
const NOTED: u32 = 2;
/// Threads sleep until the lock is free.
const AWAITED: u32 = 4;

/// A lock around a value of `V`, with a queue of notes of `N` for its holder.
pub struct CombiningLock<V, N> {
    state: AtomicU32,
    /// The thread that holds the lock, or 0. Only that thread can find itself here.
    owner: AtomicUsize,
    value: UnsafeCell<V>,
    notes: Mutex<VecDeque<N>>,
    /// Number of threads that sleep until the lock is free.
    sleepers: Mutex<usize>,
    freed: Condvar,
    /// Number of threads in the slow part of `acquire`.
    awaited: AtomicUsize,
}

// SAFETY: the value is reached only through a `Guard`, and there is one guard at a time. A note is
// moved from thread to thread.
unsafe impl<V: Send, N: Send> Sync for CombiningLock<V, N> {}
// SAFETY: the lock owns its value and its notes.
unsafe impl<V: Send, N: Send> Send for CombiningLock<V, N> {}

/// The right to use the value. If it is dropped without [`Guard::release`], as by a panic, the lock
/// is free, and the next holder settles the notes.
#[must_use = "it holds the lock"]
pub struct Guard<'a, V, N> {
    lock: &'a CombiningLock<V, N>,
    /// A guard stays on its thread.
    _not_send: std::marker::PhantomData<*mut ()>,
}

impl<V, N> CombiningLock<V, N> {
    /// Creates a lock that is free.
    pub fn new(value: V) -> CombiningLock<V, N> {
        CombiningLock {
            state: AtomicU32::new(0),
            owner: AtomicUsize::new(0),
            value: UnsafeCell::new(value),
            notes: Mutex::new(VecDeque::new()),
            sleepers: Mutex::new(0),
            freed: Condvar::new(),
            awaited: AtomicUsize::new(0),
        }
    }

    /// Waits for the lock.
    ///
    /// # Panics
    /// If this thread holds the lock.
    #[inline]
    pub fn acquire(&self) -> Guard<'_, V, N> {
        match self.state.compare_exchange(0, HELD, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => self.held(),
            Err(_) => self.acquire_slowly(),
        }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_acquire(&self) -> Option<Guard<'_, V, N>> {
        self.take(0).then(|| self.held())
    }

    /// Leaves a note. Returns the lock if it was free: then the caller settles the notes.
    pub fn leave(&self, note: N) -> Option<Guard<'_, V, N>> {
        self.queue().push_back(note);
        // Release: who sees the bit finds the note.
        let before = self.state.fetch_or(NOTED, Ordering::AcqRel);
        if before & HELD == 0 { self.try_acquire() } else { None }
    }

    /// Lets the threads go first that wait for the lock. For a caller that takes the lock again and
    /// again: without it, a thread that sleeps could find the lock taken each time that it wakes.
    #[inline]
    pub fn give_way(&self) {
        if self.awaited.load(Ordering::Relaxed) > 0 {
            self.give_way_slowly();
        }
    }

    #[cold]
    fn give_way_slowly(&self) {
        // Bounded: a thread that waits may have been stopped.
        for _ in 0..SPINS {
            if self.awaited.load(Ordering::Relaxed) == 0 {
                return;
            }
            crate::sync::yield_now();
        }
    }

    #[inline]
    fn held(&self) -> Guard<'_, V, N> {
        self.owner.store(this_thread(), Ordering::Relaxed);
        Guard { lock: self, _not_send: std::marker::PhantomData }
    }

    /// Sets `HELD`, and the bits of `more`, if the lock is free.
    #[inline]
    fn take(&self, more: u32) -> bool {
        let mut state = self.state.load(Ordering::Relaxed);
        while state & HELD == 0 {
            let taken = state | HELD | more;
            match self.state.compare_exchange(state, taken, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    #[cold]
    fn acquire_slowly(&self) -> Guard<'_, V, N> {
        if self.take(0) {
            // Free, with notes.
            return self.held();
        }
        assert!(
            self.owner.load(Ordering::Relaxed) != this_thread(),
            "the endpoint is used by code that it runs: by a closure, or by the destructor of memory"
        );
        self.awaited.fetch_add(1, Ordering::Relaxed);
        let taken = (0..SPINS).any(|_| {
            spin();
            self.take(0)
        });
        if !taken {
            self.sleep_until_taken();
        }
        self.awaited.fetch_sub(1, Ordering::Relaxed);
        self.held()
    }

    fn sleep_until_taken(&self) {
        let mut sleepers = crate::sync::lock(&self.sleepers);
        loop {
            // Others that sleep are woken by the release of this thread.
            let others = if *sleepers > 0 { AWAITED } else { 0 };
            if self.take(others) {
                return;
            }
            let state = self.state.load(Ordering::Relaxed);
            let awaited = state | AWAITED;
            if state & HELD == 0
                || self.state.compare_exchange(state, awaited, Ordering::Relaxed, Ordering::Relaxed).is_err()
            {
                continue;
            }
            *sleepers += 1;
            sleepers = crate::sync::wait(&self.freed, sleepers);
            *sleepers -= 1;
        }
    }

    #[cold]
    fn wake_one(&self) {
        let sleepers = crate::sync::lock(&self.sleepers);
        if *sleepers > 0 {
            self.freed.notify_one();
        }
    }

    fn queue(&self) -> crate::sync::MutexGuard<'_, VecDeque<N>> {
        crate::sync::lock(&self.notes)
    }
}

impl<'a, V, N> Guard<'a, V, N> {
    /// Takes the oldest note.
    #[inline]
    pub fn take_note(&mut self) -> Option<N> {
        if self.lock.state.load(Ordering::Relaxed) & NOTED == 0 {
            return None;
        }
        self.take_note_slowly()
    }

    #[cold]
    fn take_note_slowly(&mut self) -> Option<N> {
        let mut notes = self.lock.queue();
        let note = notes.pop_front();
        if notes.is_empty() {
            // Under the mutex of the queue: who adds a note now sets the bit afterwards.
            self.lock.state.fetch_and(!NOTED, Ordering::Acquire);
        }
        note
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// The guard, if there are notes to settle.
    #[inline]
    pub fn release(self) -> Result<(), Guard<'a, V, N>> {
        self.lock.owner.store(0, Ordering::Relaxed);
        match self.lock.state.compare_exchange(HELD, 0, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => {
                std::mem::forget(self);
                Ok(())
            }
            Err(state) => self.release_slowly(state),
        }
    }

    #[cold]
    fn release_slowly(self, mut state: u32) -> Result<(), Guard<'a, V, N>> {
        while state & NOTED == 0 {
            match self.lock.state.compare_exchange(state, 0, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => {
                    let lock = self.lock;
                    std::mem::forget(self);
                    if state & AWAITED != 0 {
                        lock.wake_one();
                    }
                    return Ok(());
                }
                Err(now) => state = now,
            }
        }
        self.lock.owner.store(this_thread(), Ordering::Relaxed);
        Err(self)
    }
}

impl<V, N> Drop for Guard<'_, V, N> {
    fn drop(&mut self) {
        self.lock.owner.store(0, Ordering::Relaxed);
        let before = self.lock.state.fetch_and(!(HELD | AWAITED), Ordering::Release);
        if before & AWAITED != 0 {
            self.lock.wake_one();
        }
    }
}

impl<V, N> Deref for Guard<'_, V, N> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        // SAFETY: this guard is the only one (invariant 1), and the borrow is of the guard.
        unsafe { &*self.lock.value.get() }
    }
}

impl<V, N> DerefMut for Guard<'_, V, N> {
    #[inline]
    fn deref_mut(&mut self) -> &mut V {
        // SAFETY: as for `deref`.
        unsafe { &mut *self.lock.value.get() }
    }
}
