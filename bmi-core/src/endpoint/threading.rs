//! Who may use an endpoint: the tasks of one thread, or any thread.
//!
//! **Why a type parameter.** The `async` interface, the calls and the drivers are the same code for
//! both. For one thread, the endpoint is in a cell, and costs nothing beyond it. For any thread, it
//! is behind a lock. A program of one thread does not pay for a lock.
//!
//! **Why the lock is held while the endpoint is polled.** The alternatives were weighed:
//!
//! - *A queue of commands to a thread that owns the endpoint.* Each call takes two hand-overs, and
//!   a hand-over between sleeping threads takes longer than a message. Commands need memory, and
//!   the bound of the queue is one more thing that can be full.
//! - *Callers that make progress themselves* need no hand-over on the way out, and none on the way
//!   back if they poll. They have to wait for each other: for as long as one poll takes.
//!
//! The second is built. `docs/performance.md` has the measurements.

#![allow(unreachable_pub, reason = "parts of a sealed public trait; Rust 1.91 takes them for unreachable")]

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use crate::sync::combining_lock;
use crate::sync::combining_lock::CombiningLock;
use crate::time::Clock;

/// Who may use an endpoint: [`OneThread`] or [`AnyThread`].
pub trait Threading: Shared {}

impl<S: Shared> Threading for S {}

/// The endpoint is used by the tasks of one thread. Handles are `Rc`, and nothing is locked.
#[derive(Clone, Copy, Debug)]
pub enum OneThread {}

/// The endpoint is used by any thread. Handles are `Send` and `Sync` if the transport is `Send`.
#[derive(Clone, Copy, Debug)]
pub enum AnyThread {}

/// The building blocks of state that is shared.
mod sealed {
    use super::{Clock, Deref, DerefMut};

    pub trait Shared: Sized + 'static {
        /// A counted pointer.
        type Pointer<V>: Deref<Target = V> + Clone;
        /// A pointer that does not keep its value.
        type Weak<V>;
        /// What an endpoint is in.
        type Lock<V, N>: Lock<V, N>;
        /// What a value is in that is used for a few instructions.
        type Slot<V>: Slot<V>;
        /// The clock of an endpoint.
        type Clock: Clock;
        /// Whether a caller makes progress itself, rather than waking a driver that sleeps.
        const CALLERS_PROGRESS: bool;

        fn pointer<V>(value: V) -> Self::Pointer<V>;
        fn downgrade<V>(pointer: &Self::Pointer<V>) -> Self::Weak<V>;
        fn upgrade<V>(weak: &Self::Weak<V>) -> Option<Self::Pointer<V>>;
    }

    /// A lock around `V`, with a queue of notes of `N` for its holder.
    pub trait Lock<V, N> {
        type Guard<'a>: Guard<V, N>
        where
            Self: 'a;

        fn new(value: V) -> Self;
        /// Waits for the lock.
        fn acquire(&self) -> Self::Guard<'_>;
        /// Leaves a note, and returns the lock if it was free.
        fn leave(&self, note: N) -> Option<Self::Guard<'_>>;
        /// Lets those go first that wait for the lock.
        fn give_way(&self);
    }

    /// The right to use a locked value.
    pub trait Guard<V, N>: DerefMut<Target = V> + Sized {
        fn take_note(&mut self) -> Option<N>;
        /// Releases the lock, or returns the guard if there are notes.
        fn release(self) -> Result<(), Self>;
    }

    /// A value that is used briefly. The closure runs no other code.
    pub trait Slot<V> {
        fn new(value: V) -> Self;
        fn with<R>(&self, f: impl FnOnce(&mut V) -> R) -> R;
    }
}

pub(crate) use sealed::{Guard, Lock, Shared, Slot};

impl Shared for OneThread {
    type Pointer<V> = Rc<V>;
    type Weak<V> = std::rc::Weak<V>;
    type Lock<V, N> = NotedCell<V, N>;
    type Slot<V> = RefCell<V>;
    type Clock = Box<dyn Clock>;
    const CALLERS_PROGRESS: bool = false;

    fn pointer<V>(value: V) -> Rc<V> {
        Rc::new(value)
    }

    fn downgrade<V>(pointer: &Rc<V>) -> std::rc::Weak<V> {
        Rc::downgrade(pointer)
    }

    fn upgrade<V>(weak: &std::rc::Weak<V>) -> Option<Rc<V>> {
        weak.upgrade()
    }
}

impl Shared for AnyThread {
    type Pointer<V> = Arc<V>;
    type Weak<V> = std::sync::Weak<V>;
    type Lock<V, N> = CombiningLock<V, N>;
    type Slot<V> = Mutex<V>;
    type Clock = Box<dyn Clock + Send + Sync>;
    const CALLERS_PROGRESS: bool = true;

    fn pointer<V>(value: V) -> Arc<V> {
        Arc::new(value)
    }

    fn downgrade<V>(pointer: &Arc<V>) -> std::sync::Weak<V> {
        Arc::downgrade(pointer)
    }

    fn upgrade<V>(weak: &std::sync::Weak<V>) -> Option<Arc<V>> {
        weak.upgrade()
    }
}

/// A cell with a queue of notes, for one thread.
pub struct NotedCell<V, N> {
    value: RefCell<V>,
    notes: RefCell<VecDeque<N>>,
}

/// The right to use the value of a [`NotedCell`].
pub struct CellGuard<'a, V, N> {
    value: RefMut<'a, V>,
    notes: &'a RefCell<VecDeque<N>>,
}

impl<V, N> Lock<V, N> for NotedCell<V, N> {
    type Guard<'a>
        = CellGuard<'a, V, N>
    where
        Self: 'a;

    fn new(value: V) -> Self {
        NotedCell { value: RefCell::new(value), notes: RefCell::default() }
    }

    #[inline]
    fn acquire(&self) -> CellGuard<'_, V, N> {
        CellGuard { value: self.value.borrow_mut(), notes: &self.notes }
    }

    fn leave(&self, note: N) -> Option<CellGuard<'_, V, N>> {
        self.notes.borrow_mut().push_back(note);
        let value = self.value.try_borrow_mut().ok()?;
        Some(CellGuard { value, notes: &self.notes })
    }

    #[inline]
    fn give_way(&self) {}
}

impl<V, N> Guard<V, N> for CellGuard<'_, V, N> {
    #[inline]
    fn take_note(&mut self) -> Option<N> {
        self.notes.borrow_mut().pop_front()
    }

    #[inline]
    fn release(self) -> Result<(), Self> {
        if self.notes.borrow().is_empty() { Ok(()) } else { Err(self) }
    }
}

impl<V, N> Deref for CellGuard<'_, V, N> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        &self.value
    }
}

impl<V, N> DerefMut for CellGuard<'_, V, N> {
    #[inline]
    fn deref_mut(&mut self) -> &mut V {
        &mut self.value
    }
}

impl<V> Slot<V> for RefCell<V> {
    fn new(value: V) -> Self {
        RefCell::new(value)
    }

    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut V) -> R) -> R {
        f(&mut self.borrow_mut())
    }
}

impl<V, N> Lock<V, N> for CombiningLock<V, N> {
    type Guard<'a>
        = combining_lock::Guard<'a, V, N>
    where
        Self: 'a;

    fn new(value: V) -> Self {
        CombiningLock::new(value)
    }

    #[inline]
    fn acquire(&self) -> combining_lock::Guard<'_, V, N> {
        CombiningLock::acquire(self)
    }

    fn leave(&self, note: N) -> Option<combining_lock::Guard<'_, V, N>> {
        CombiningLock::leave(self, note)
    }

    #[inline]
    fn give_way(&self) {
        CombiningLock::give_way(self);
    }
}

impl<V, N> Guard<V, N> for combining_lock::Guard<'_, V, N> {
    #[inline]
    fn take_note(&mut self) -> Option<N> {
        combining_lock::Guard::take_note(self)
    }

    #[inline]
    fn release(self) -> Result<(), Self> {
        combining_lock::Guard::release(self)
    }
}

impl<V> Slot<V> for Mutex<V> {
    fn new(value: V) -> Self {
        Mutex::new(value)
    }

    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut V) -> R) -> R {
        f(&mut self.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
