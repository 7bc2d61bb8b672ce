//! Small programs for newcomers to copy, each run by the test command:
//!
//! | program | shows |
//! |---|---|
//! | `hello` | a client and a server in forty lines, over any transport |
//! | `ping_pong` | endpoints, connecting, tags, deadlines, a driver, over TCP |
//! | `one_sided_put` | exposing memory, a descriptor in a message, a push |
//! | `protocol_in_sim` | [`tickets`]: a protocol of twenty lines, and its unit test in the simulator |
//! | `arrays` | a cluster of the file system, and arrays that a group writes and reads together |
//! | `replicated` | [`replicated`]: a replicated block store, tested under faults |
//!
//! [`ledger`] has no program, only a test: a sweep over seeds and faults that finds a planted bug.
//!
//! `docs/embedding.md` explains `hello` and `replicated` step by step.

pub mod ledger;
pub mod replicated;
pub mod tickets;

/// The snippets of the documents, compiled and run as doctests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../README.md")]
    mod readme {}
    #[doc = include_str!("../../docs/embedding.md")]
    mod embedding {}
    #[doc = include_str!("../../docs/simulating.md")]
    mod simulating {}
}
