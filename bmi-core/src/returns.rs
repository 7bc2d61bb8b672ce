//! Things that come back from handles dropped elsewhere: keys of regions, exposures, receive slots.
//!
//! **Why.** A handle may be dropped on any thread and at any time, in the middle of the endpoint's own work too; what it stood for can be
//! taken back only by the endpoint. So a drop leaves a note here, and the next poll reads the notes. Looking costs one relaxed load;
//! the lock is held for a push or a move of the vector, never across a call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// A box of notes.
#[derive(Debug)]
pub struct Returns<N> {
    any: AtomicBool,
    notes: Mutex<Vec<N>>,
}

impl<N> Default for Returns<N> {
    fn default() -> Returns<N> {
        Returns { any: AtomicBool::new(false), notes: Mutex::new(Vec::new()) }
    }
}

impl<N> Returns<N> {
    /// Leaves a note.
    pub fn push(&self, note: N) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(note);
        self.any.store(true, Ordering::Release);
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
