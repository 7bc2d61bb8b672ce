//! Shared state behind a short lock.
//!
//! **Why.** Any thread may use a client. A value that several tasks change is reached only through
//! [`Locked::with`]. The closure is not `async`, so the lock cannot be held across an await.
//!
//! **Invariants**
//! 1. The closure calls neither another component, such as an endpoint, nor another lock. So locks
//!    cannot deadlock. It does not drop a value whose `drop` does so either.
//! 2. What must be checked and changed together is done in one closure.
//! 3. A panic elsewhere does not make the state unusable. The closures do not panic in the middle
//!    of a change, so the state is whole.

use std::sync::{Mutex, PoisonError};

/// A value that is locked for the duration of a closure.
#[derive(Debug, Default)]
pub(crate) struct Locked<V>(Mutex<V>);

impl<V> Locked<V> {
    pub(crate) fn new(value: V) -> Locked<V> {
        Locked(Mutex::new(value))
    }

    /// Runs `f` on the value.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut V) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the value.
    pub(crate) fn into_inner(self) -> V {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
