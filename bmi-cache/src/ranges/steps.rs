//! Steps of inner loops, counted: what a list of many pieces costs whoever has the cache's lock.
//!
//! **Why.** The lock is that of every event loop that uses the cache. A list of 16,384 pieces in
//! one unit is legal, so a loop over the pieces within a loop over the pieces stops a server for
//! minutes. A test with a clock does not find this reliably. See `bmi_core::steps`, which counts
//! where seeded bugs are built; the unit tests of this crate count in every build.

/// Counts `rounds` rounds of an inner loop at once.
#[inline(always)]
pub(crate) fn steps(rounds: usize) {
    bmi_core::steps(rounds);
    #[cfg(test)]
    counted::add(rounds);
}

/// Counts a search in a sorted list.
#[inline(always)]
pub(super) fn search_steps(len: usize) {
    steps(len.checked_ilog2().unwrap_or(0) as usize + 1);
}

#[cfg(test)]
pub(crate) use counted::steps_of;

#[cfg(test)]
mod counted {
    use std::cell::Cell;

    thread_local! {
        static TAKEN: Cell<u64> = const { Cell::new(0) };
        static MOST: Cell<u64> = const { Cell::new(u64::MAX) };
    }

    pub(super) fn add(rounds: usize) {
        let taken = TAKEN.get() + rounds as u64;
        TAKEN.set(taken);
        // Once: what is dropped because of it takes steps too.
        let most = MOST.get();
        if taken > most {
            MOST.set(u64::MAX);
            panic!("more than {most} steps of inner loops");
        }
    }

    /// Returns the result of `f`, and the steps that it took.
    ///
    /// # Panics
    /// As soon as they are more than `most`: nobody waits for the end of a loop that takes minutes.
    pub(crate) fn steps_of<R>(most: u64, f: impl FnOnce() -> R) -> (R, u64) {
        TAKEN.set(0);
        MOST.set(most);
        let result = f();
        MOST.set(u64::MAX);
        (result, TAKEN.get())
    }
}
