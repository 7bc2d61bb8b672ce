//! Waiting on the transport's event fd under tokio: no processor time while idle.

use crate::error::Error;
use crate::face::AsyncEndpoint;
use crate::transport::Transport;

/// Drives `endpoint` for as long as the future is polled: spawn it with `tokio::task::spawn_local`, or `select!` it against the work.
/// Needs a tokio runtime with I/O and time enabled.
///
/// # Errors
/// `Unsupported` for a transport without an event fd; `Io` if tokio cannot wait on it.
#[expect(clippy::todo, unused_variables, clippy::unused_async, reason = "signatures first")]
pub async fn drive<T: Transport>(endpoint: AsyncEndpoint<T>) -> Result<std::convert::Infallible, Error> {
    todo!()
}

/// Runs `future` to its end on a new current-thread runtime, with `endpoint` driven beside it.
///
/// # Errors
/// As [`drive`].
#[expect(clippy::todo, unused_variables, reason = "signatures first")]
pub fn block_on<T: Transport + 'static, F: Future>(endpoint: AsyncEndpoint<T>, future: F) -> Result<F::Output, Error> {
    todo!()
}
