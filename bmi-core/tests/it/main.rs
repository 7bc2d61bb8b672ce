//! Tests of this crate from outside.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[cfg(feature = "tokio")]
mod drivers;
mod lock;
mod timeline;
mod waking;

/// The lock, compiled from its source with the primitives of [`sync`].
#[path = "../../src/sync/combining_lock.rs"]
#[allow(dead_code, reason = "the tests use part of it")]
mod combining_lock;

/// The primitives of the lock, as in `src/sync/mod.rs`, from loom.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use loom::thread::yield_now;

    /// Loom explores each attempt, so there is one.
    pub(crate) const SPINS: usize = 1;

    pub(crate) fn spin() {
        loom::thread::yield_now();
    }

    pub(crate) fn this_thread() -> usize {
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1);
        loom::thread_local!(static MARK: usize = NEXT.fetch_add(1, Ordering::Relaxed));
        MARK.with(|mark| *mark)
    }

    pub(crate) fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
        mutex.lock().unwrap()
    }

    pub(crate) fn wait<'a, V>(condition: &Condvar, guard: MutexGuard<'a, V>) -> MutexGuard<'a, V> {
        condition.wait(guard).unwrap()
    }

    /// Loom checks that no two threads are at the value at a time.
    pub(crate) struct UnsafeCell<V>(loom::cell::UnsafeCell<V>);

    impl<V> UnsafeCell<V> {
        pub(crate) fn new(value: V) -> UnsafeCell<V> {
            UnsafeCell(loom::cell::UnsafeCell::new(value))
        }

        pub(crate) fn get(&self) -> *mut V {
            self.0.with_mut(|value| value)
        }
    }
}
