//! Explores the interleavings of the combining lock, with the primitives of loom in place of the
//! system's.

use loom::sync::Arc;
use loom::thread;

use crate::combining_lock::{CombiningLock, Guard};

/// A sum. A note adds to it.
type Sum = CombiningLock<u32, u32>;

/// Settles the notes and releases the lock, as the endpoint's handles do. Returns the sum.
fn finish(mut guard: Guard<'_, u32, u32>) -> u32 {
    loop {
        while let Some(note) = guard.take_note() {
            *guard += note;
        }
        let sum = *guard;
        match guard.release() {
            Ok(()) => return sum,
            Err(held) => guard = held,
        }
    }
}

fn leave(lock: &Sum, note: u32) {
    if let Some(guard) = lock.leave(note) {
        finish(guard);
    }
}

fn add(lock: &Sum, number: u32) {
    let mut guard = lock.acquire();
    *guard += number;
    finish(guard);
}

/// Returns the value of a lock that no thread holds, without settling anything.
fn settled(lock: &Sum) -> u32 {
    let mut guard = lock.try_acquire().expect("no thread holds it");
    assert!(guard.take_note().is_none(), "a note was left behind");
    let sum = *guard;
    assert!(guard.release().is_ok());
    sum
}

/// Three threads have too many interleavings for all of them. These are those in which threads are
/// interrupted twice at most.
fn few_preemptions() -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model
}

#[test]
fn a_note_is_settled_by_the_holder_or_by_who_leaves_it() {
    loom::model(|| {
        let lock = Arc::new(Sum::new(0));
        let other = Arc::clone(&lock);
        let thread = thread::spawn(move || add(&other, 1));
        leave(&lock, 10);
        thread.join().unwrap();
        assert_eq!(settled(&lock), 11);
    });
}

#[test]
fn notes_of_two_threads_are_settled_once_each() {
    few_preemptions().check(|| {
        let lock = Arc::new(Sum::new(0));
        let threads = [1, 10].map(|note| {
            let other = Arc::clone(&lock);
            thread::spawn(move || leave(&other, note))
        });
        add(&lock, 100);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(settled(&lock), 111);
    });
}

#[test]
fn two_threads_are_not_at_the_value_at_a_time_and_both_get_it() {
    loom::model(|| {
        let lock = Arc::new(Sum::new(0));
        let other = Arc::clone(&lock);
        let thread = thread::spawn(move || {
            add(&other, 1);
            add(&other, 2);
        });
        add(&lock, 10);
        thread.join().unwrap();
        assert_eq!(settled(&lock), 13);
    });
}

#[test]
fn of_two_that_sleep_each_is_woken() {
    few_preemptions().check(|| {
        let lock = Arc::new(Sum::new(0));
        let threads = [1, 10].map(|number| {
            let other = Arc::clone(&lock);
            thread::spawn(move || add(&other, number))
        });
        add(&lock, 100);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(settled(&lock), 111);
    });
}

#[test]
fn a_guard_that_is_dropped_leaves_the_notes_to_the_next_holder() {
    loom::model(|| {
        let lock = Arc::new(Sum::new(0));
        let other = Arc::clone(&lock);
        let thread = thread::spawn(move || leave(&other, 1));
        // As in a panic.
        drop(lock.acquire());
        thread.join().unwrap();
        assert_eq!(finish(lock.acquire()), 1);
    });
}
