//! What the tests of the client share.

pub mod bodies;
pub mod mock;
