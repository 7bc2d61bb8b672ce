//! The paths that the data of a call may take, and the choice between them: a function of facts.
//! [`crate::comm`] carries the choice out.

mod path;
mod plan;
mod policy;

pub use path::{Direction, Miss, Path, PathCounters};
pub(crate) use plan::Bytes;
pub use plan::{MessageRule, Plan, Rule};
pub use policy::{Choice, Crossovers, Facts, LONGEST_AHEAD, Policy, Thresholds};
