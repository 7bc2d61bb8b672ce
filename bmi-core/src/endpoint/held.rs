//! The right to use an endpoint behind its lock.

use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::state::{Dropped, State};
use crate::endpoint::threading::Guard;
use crate::sync::Inside;

/// The lock of an endpoint, held by the guard `G`.
pub(super) struct Held<G> {
    // The first field: the lock is released before the wakers are called that waited for that.
    guard: G,
    inside: Inside,
}

impl<G> Held<G> {
    #[inline]
    pub(super) fn new(guard: G) -> Held<G> {
        Held { guard, inside: Inside::enter() }
    }

    #[inline]
    pub(super) fn take_note(&mut self) -> Option<Dropped>
    where
        G: Guard<State, Dropped>,
    {
        self.guard.take_note()
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// The lock, if there are notes to settle.
    #[inline]
    pub(super) fn release(self) -> Result<(), Held<G>>
    where
        G: Guard<State, Dropped>,
    {
        let Held { guard, inside } = self;
        guard.release().map_err(|guard| Held { guard, inside })
    }
}

impl<G: Deref> Deref for Held<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Held<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// The lock while code runs that may panic. After a panic it is given to `release`, as after any
/// other use.
pub(super) struct InUse<G, F: Fn(Held<G>)> {
    held: Option<Held<G>>,
    release: F,
}

impl<G, F: Fn(Held<G>)> InUse<G, F> {
    #[inline]
    pub(super) fn new(held: Held<G>, release: F) -> InUse<G, F> {
        InUse { held: Some(held), release }
    }

    #[inline]
    pub(super) fn state(&mut self) -> &mut Held<G> {
        self.held.as_mut().expect("held until the end")
    }

    #[inline]
    pub(super) fn end(mut self) -> Held<G> {
        self.held.take().expect("held until the end")
    }
}

impl<G, F: Fn(Held<G>)> Drop for InUse<G, F> {
    #[inline]
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            // The first panic goes on.
            let _ = catch_unwind(AssertUnwindSafe(|| (self.release)(held)));
        }
    }
}
