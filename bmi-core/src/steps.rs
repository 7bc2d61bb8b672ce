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
//!    includes the steps of every node.

/// Counts one round of an inner loop.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn step() {}

/// Counts `rounds` rounds of an inner loop at once, for loops that are inside of a library call.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn steps(_rounds: usize) {}

#[cfg(feature = "mutants")]
pub use counted::{step, steps, steps_taken};

#[cfg(feature = "mutants")]
mod counted {
    use std::cell::Cell;

    thread_local! {
        static TAKEN: Cell<u64> = const { Cell::new(0) };
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
        assert_eq!(steps_taken() - before, 4);
    }
}
