//! Seeded bugs: places where the protocol can be made to break one of its own rules, to see whether
//! the tests notice.
//!
//! **Why.** A sweep over thousands of seeds that finds nothing says little, unless it is known to
//! find what is there. So bugs of the kinds that such protocols really have, a credit that does not
//! come back, a bound off by one, a stale key that is still good, stand in the code behind
//! [`mutated`], and `cargo xtask mutants` switches on one after the other and runs the sweeps.
//!
//! **Invariants**
//! 1. Without the feature `mutants` every place is a constant `false` and costs nothing. Only
//!    `cargo xtask` builds with the feature, in debug, so that one build serves all of its steps:
//!    the sweeps that find the bugs are the programs that pass without a bug. No release build has
//!    the feature.
//! 2. With it, a process has at most one bug: the one that the environment variable `BMI_MUTANT`
//!    names.
//! 3. A bug changes what a user can see. One that only costs time belongs to the benchmarks.
//!
//! Names are `area/what-goes-wrong`; there is no list of them, `cargo xtask mutants` reads them
//! from the sources.

/// Whether the bug with this name is switched on.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn mutated(_name: &'static str) -> bool {
    false
}

/// Whether the bug with this name is switched on, and its turn has come: every `nth` time.
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

    /// The bug that this process has.
    static BUG: OnceLock<Option<String>> = OnceLock::new();
    /// How often its place was reached.
    static REACHED: AtomicU64 = AtomicU64::new(0);

    fn reached(name: &'static str) -> Option<u64> {
        let bug = BUG.get_or_init(|| std::env::var("BMI_MUTANT").ok());
        if bug.as_deref() != Some(name) {
            return None;
        }
        let before = REACHED.fetch_add(1, Relaxed);
        if before == 0 {
            // For whoever wants to know why a bug was not found: whether its place is reached at
            // all.
            eprintln!("the place of the bug {name} is reached");
        }
        Some(before + 1)
    }

    /// Whether the bug with this name is switched on.
    pub fn mutated(name: &'static str) -> bool {
        reached(name).is_some()
    }

    /// Whether the bug with this name is switched on, and its turn has come: every `nth` time.
    pub fn mutated_each(nth: u64, name: &'static str) -> bool {
        reached(name).is_some_and(|time| time % nth == 0)
    }
}
