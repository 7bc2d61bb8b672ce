//! Seeded bugs: places where the protocol can be made to break its own rules, to check that the
//! tests detect it.
//!
//! **Why.** A sweep over thousands of seeds that finds nothing proves little, unless it is known to
//! find bugs that exist. So the code contains seeded bugs of the kinds that such protocols really
//! have: a credit that is not returned, a bound off by one, a stale key that still works. They are
//! guarded by [`mutated`]. `cargo xtask mutants` switches them on one after the other and runs the
//! sweeps.
//!
//! **Invariants**
//! 1. Without the feature `mutants` every guard is a constant `false` and costs nothing. Only
//!    `cargo xtask` builds with the feature, in debug, so that one build serves all of its steps.
//!    The programs that find the bugs are therefore the programs that pass without a bug. No
//!    release build has the feature.
//! 2. With the feature, a process has at most one bug: the one named by the environment variable
//!    `BMI_MUTANT`.
//! 3. A bug changes behaviour that a user can see, or the steps that a peer's message costs
//!    ([`steps`](crate::steps)). Any other bug that only costs time belongs to the benchmarks.
//!
//! Names have the form `area/description-of-the-bug`. There is no list of them. `cargo xtask
//! mutants` reads them from the sources.

/// Returns true if the bug with this name is switched on.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn mutated(_name: &'static str) -> bool {
    false
}

/// Returns true for every `nth` call, if the bug with this name is switched on.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn mutated_each(_nth: u64, _name: &'static str) -> bool {
    false
}

#[cfg(feature = "mutants")]
pub use switched::{mutated, mutated_each};

#[cfg(feature = "mutants")]
mod switched {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// The bug of this process.
    static BUG: OnceLock<Option<String>> = OnceLock::new();
    /// How often the bug's guard was reached.
    static REACHED: AtomicU64 = AtomicU64::new(0);

    fn reached(name: &'static str) -> Option<u64> {
        let bug = BUG.get_or_init(|| std::env::var("BMI_MUTANT").ok());
        if bug.as_deref() != Some(name) {
            return None;
        }
        let before = REACHED.fetch_add(1, Relaxed);
        if before == 0 {
            // Shows whether the guard is reached at all, which helps to explain an undetected bug.
            eprintln!("the place of the bug {name} is reached");
        }
        Some(before + 1)
    }

    /// Returns true if the bug with this name is switched on.
    pub fn mutated(name: &'static str) -> bool {
        reached(name).is_some()
    }

    /// Returns true for every `nth` call, if the bug with this name is switched on.
    pub fn mutated_each(nth: u64, name: &'static str) -> bool {
        reached(name).is_some_and(|time| time % nth == 0)
    }
}
