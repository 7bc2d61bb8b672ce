//! What threads share: the combining lock of an endpoint, and what handles [return](Returns) from
//! any thread.
//!
//! These are the primitives of [`combining_lock::CombiningLock`]. `tests/it/lock.rs` compiles the
//! lock with those of loom.

pub(crate) mod combining_lock;
mod returns;

pub(crate) use returns::Inside;
pub use returns::Returns;

pub(crate) use std::cell::UnsafeCell;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
pub(crate) use std::thread::yield_now;

/// Number of attempts before a thread sleeps. A poll that sends or receives takes about as long,
/// and to sleep and be woken takes several times as long.
pub(crate) const SPINS: usize = 1000;

pub(crate) fn spin() {
    std::hint::spin_loop();
}

/// Returns a number that no other thread has that lives, and that is not 0.
#[inline]
pub(crate) fn this_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark) as usize)
}

/// Locks a mutex whose data is valid also after a panic.
pub(crate) fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn wait<'a, V>(condition: &Condvar, guard: MutexGuard<'a, V>) -> MutexGuard<'a, V> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
