//! Busy polling: the lowest latency, a whole core.

use std::future::Future;

use crate::face::AsyncEndpoint;
use crate::transport::Transport;

/// Runs `future` to its end on this thread, polling every endpoint in `endpoints` in turn without ever sleeping.
#[expect(clippy::todo, unused_variables, reason = "signatures first")]
pub fn block_on<T: Transport, F: Future>(endpoints: &[AsyncEndpoint<T>], future: F) -> F::Output {
    todo!()
}
