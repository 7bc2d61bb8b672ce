//! How an operation ends: `settlement` carries out what a handler returned, `early` is for a cancel
//! or a deadline, and `deadlines` has the timers.

mod deadlines;
mod early;
mod settlement;

pub(in crate::engine) use early::{can_end_at_once, end_early, name_of, op_of};
pub(in crate::engine) use settlement::finish;
