//! Hooks of the tests in the code: seeded bugs ([`mutated()`]), and steps that are counted
//! ([`step`]).

mod mutated;
mod steps;

pub use mutated::{mutated, mutated_each};
pub use steps::{handed_over, step, steps};
#[cfg(feature = "mutants")]
pub use steps::{longest_job, steps_taken};
