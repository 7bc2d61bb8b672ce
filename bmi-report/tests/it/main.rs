//! Tests of reports as their users see them, and of the statistics on real recordings.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod known_truth;
mod page;
