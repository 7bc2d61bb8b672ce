//! Steps of inner loops, counted: what a request costs the loop that serves it, without a clock.
//!
//! **Why.** Some legal requests cost far more than they look: a list of regions in one unit of a
//! cache, a note about an operation that the endpoint looks for among all of its operations. A
//! test with a clock does not find them reliably, because it depends on the machine. So the inner
//! loop of whatever a peer can ask for says [`step`] in each of its rounds, and a test bounds the
//! steps of the worst legal request of each kind.
//!
//! **Invariants**
//! 1. Without the feature `mutants` a step is nothing and costs nothing. No release build has the
//!    feature; see [`mutated`](crate::mutated).
//! 2. Each thread counts for itself. The simulator runs all nodes on one thread, so there a count
//!    includes the steps of every node. What a server hands over to a worker thread is done at once
//!    in the simulator, and does not count ([`handed_over`]).

/// Counts one round of an inner loop.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn step() {}

/// Counts `rounds` rounds of an inner loop at once, for loops that are inside of a library call.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn steps(_rounds: usize) {}

/// Does work that a program on a real system hands over to another thread.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub fn handed_over<R>(work: impl FnOnce() -> R) -> R {
    work()
}

#[cfg(feature = "mutants")]
pub use counted::{handed_over, longest_job, step, steps, steps_taken};

#[cfg(feature = "mutants")]
mod counted {
    use std::cell::Cell;

    thread_local! {
        static TAKEN: Cell<u64> = const { Cell::new(0) };
        static LONGEST_JOB: Cell<u64> = const { Cell::new(0) };
    }

    /// Counts one round of an inner loop.
    pub fn step() {
        steps(1);
    }

    /// Counts `rounds` rounds of an inner loop at once, for loops that are in a library's call.
    pub fn steps(rounds: usize) {
        TAKEN.set(TAKEN.get() + rounds as u64);
    }

    /// Returns the steps that this thread has taken so far. Only with the feature `mutants`.
    pub fn steps_taken() -> u64 {
        TAKEN.get()
    }

    /// Does work that a program on a real system hands over to another thread. Its steps are not
    /// counted with those of this one.
    pub fn handed_over<R>(work: impl FnOnce() -> R) -> R {
        let before = TAKEN.get();
        let result = work();
        LONGEST_JOB.set(LONGEST_JOB.get().max(TAKEN.replace(before) - before));
        result
    }

    /// Returns the most steps of a piece of work that was handed over since the last call of this.
    pub fn longest_job() -> u64 {
        LONGEST_JOB.take()
    }
}

#[cfg(all(test, feature = "mutants"))]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a second thread is what this test is about")]
    fn a_thread_counts_its_own_steps() {
        let before = steps_taken();
        step();
        steps(3);
        std::thread::spawn(|| steps(100)).join().unwrap();
        handed_over(|| steps(50));
        handed_over(step);
        assert_eq!((steps_taken() - before, longest_job(), longest_job()), (4, 50, 0));
    }
}
