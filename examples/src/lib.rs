//! Small programs for newcomers to copy, each run by the test command:
//!
//! | program | shows |
//! |---|---|
//! | `ping_pong` | endpoints, connecting, tags, deadlines, a driver, over TCP |
//! | `one_sided_put` | exposing memory, a descriptor in a message, a push |
//! | `protocol_in_sim` | a protocol of twenty lines, and its unit test in the simulator, faults included |
//!
//! [`ledger`] has no program, only a test: a sweep over seeds and faults that finds a bug planted
//! in it.

pub mod ledger;
pub mod tickets;
