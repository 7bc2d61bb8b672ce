//! Notes that dropped handles leave for the endpoint: keys of regions, exposures, receive slots.
//!
//! **Why.** A handle may be dropped on any thread and at any time, even during the endpoint's own
//! work. But only the endpoint can release the resource behind the handle. So a drop leaves a note
//! here, and the next poll reads the notes. Checking for notes costs one load. The lock is held for
//! a push or a move of the vector, never across a call. An endpoint that is about to sleep leaves
//! its waker here, and the first note wakes it. This matters because something may wait for the
//! released resource.
//!
//! **Inside of an endpoint.** The waker may run any code. So if the thread that leaves the note is
//! using an endpoint ([`Inside`]), it calls the waker when it has released the endpoint.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;

/// A box of notes.
#[derive(Debug)]
pub struct Returns<N> {
    any: AtomicBool,
    notes: Mutex<Vec<N>>,
    asleep: AtomicBool,
    sleeper: Mutex<Option<Waker>>,
}

thread_local! {
    /// Number of endpoints that this thread is using, one inside of the other.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
    /// There are wakers to call.
    static ANY_LATER: Cell<bool> = const { Cell::new(false) };
    static LATER: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
}

/// This thread is using an endpoint, behind its lock. It is dropped after the lock.
#[derive(Debug)]
pub(crate) struct Inside {
    /// It belongs to the thread.
    _not_send: std::marker::PhantomData<*mut ()>,
}

impl Inside {
    #[inline]
    pub(crate) fn enter() -> Inside {
        INSIDE.set(INSIDE.get() + 1);
        Inside { _not_send: std::marker::PhantomData }
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        let left = INSIDE.get() - 1;
        INSIDE.set(left);
        if left == 0 && ANY_LATER.get() {
            wake_those_of_inside();
        }
    }
}

#[cold]
fn wake_those_of_inside() {
    ANY_LATER.set(false);
    for waker in LATER.take() {
        // This may be run by a panic.
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}

/// Calls a waker: now, or when this thread has left the endpoint that it is using.
fn wake_outside(waker: Waker) {
    if INSIDE.get() == 0 {
        return waker.wake();
    }
    // At the end of a thread the list may be gone.
    let mut waker = Some(waker);
    let _ = LATER.try_with(|later| later.borrow_mut().extend(waker.take()));
    match waker {
        None => ANY_LATER.set(true),
        Some(waker) => waker.wake(),
    }
}

impl<N> Default for Returns<N> {
    fn default() -> Returns<N> {
        Returns {
            any: AtomicBool::new(false),
            notes: Mutex::new(Vec::new()),
            asleep: AtomicBool::new(false),
            sleeper: Mutex::new(None),
        }
    }
}

impl<N> Returns<N> {
    /// Leaves a note, and wakes the endpoint if it sleeps.
    pub fn push(&self, note: N) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(note);
        // Sequentially consistent with `wake_at_next`: either this sees the sleeper, or it sees the
        // note.
        self.any.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            let sleeper = self.sleeper.lock().unwrap_or_else(PoisonError::into_inner).take();
            sleeper.into_iter().for_each(wake_outside);
        }
    }

    /// Registers `waker`, to be woken once by the next note. Returns false if a note is already
    /// waiting. The caller must not sleep then.
    #[must_use]
    pub fn wake_at_next(&self, waker: &Waker) -> bool {
        let mut sleeper = self.sleeper.lock().unwrap_or_else(PoisonError::into_inner);
        let known = match &*sleeper {
            Some(known) if known.will_wake(waker) => None,
            _ => sleeper.replace(waker.clone()),
        };
        drop(sleeper);
        // Outside the lock, because dropping a waker may run any code.
        drop(known);
        self.asleep.store(true, Ordering::SeqCst);
        !self.any.load(Ordering::SeqCst)
    }

    /// Moves all notes to the end of `into`.
    pub fn drain(&self, into: &mut Vec<N>) {
        if self.any.load(Ordering::Relaxed) && self.any.swap(false, Ordering::Acquire) {
            into.append(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Returns true if no note is waiting.
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }
}
