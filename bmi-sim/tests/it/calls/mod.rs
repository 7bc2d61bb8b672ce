//! Calls: the loop that serves them, the pacing of their data, and calls that one side gives up.

mod dropped;
mod ended_early;
mod pacing;
mod serve;
