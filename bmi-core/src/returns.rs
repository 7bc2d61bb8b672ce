//! Things that come back from handles dropped elsewhere: keys of regions, exposures, receive slots.
//!
//! **Why.** A handle may be dropped on any thread and at any time, in the middle of the endpoint's
//! own work too; what it stood for can be taken back only by the endpoint. So a drop leaves a note
//! here, and the next poll reads the notes. Looking costs one load; the lock is held for a push or
//! a move of the vector, never across a call. An endpoint that is about to sleep leaves its waker
//! here, for the first note to wake it: somebody may wait for what comes back.

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
    /// Leaves a note, and wakes who sleeps.
    pub fn push(&self, note: N) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(note);
        // In one total order with `wake_at_next`: either we see the sleeper, or it sees the note.
        self.any.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            let sleeper = self.sleeper.lock().unwrap_or_else(PoisonError::into_inner).take();
            sleeper.into_iter().for_each(Waker::wake);
        }
    }

    /// Promises to wake `waker` once at the next note. `false` if one waits already: then it is no
    /// time to sleep.
    #[must_use]
    pub fn wake_at_next(&self, waker: &Waker) -> bool {
        let known = self.sleeper.lock().unwrap_or_else(PoisonError::into_inner).replace(waker.clone());
        // Outside the lock: a waker may do anything when it is dropped.
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

    /// Whether a note waits.
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }
}
