//! A loop that serves many calls at a time.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use futures_util::stream::{FuturesUnordered, Stream};

use super::incoming::Incoming;
use crate::async_endpoint::AsyncEndpoint;
use crate::error::Error;
use crate::transport::Transport;

/// Serves calls: runs `handler` for each call that arrives, at most `max_calls` at a time.
///
/// Further calls wait in their receive slots and keep their sender's credits, so a sender that is
/// too fast stops. A message that is not a call costs its sender the connection. If a handler
/// returns an error, the error is logged ([`tracing`]), and the other calls go on. The handler
/// should have replied before.
///
/// The future never returns. To stop, drop it, for instance by `select!` against a signal. This
/// drops the handlers that are under way.
///
/// ```
/// use std::convert::Infallible;
///
/// use bmi_core::comm::serve;
/// use bmi_core::{AsyncEndpoint, Transport};
///
/// /// Replies to each call with its request.
/// async fn echo<T: Transport>(endpoint: &AsyncEndpoint<T>) -> Infallible {
///     serve(endpoint, 64, async |call| {
///         let request = call.request().to_vec();
///         let options = call.within(std::time::Duration::from_secs(1));
///         call.reply(&request, None, options).await
///     })
///     .await
/// }
/// ```
///
/// # Panics
/// If `max_calls` is 0.
pub async fn serve<T, H>(endpoint: &AsyncEndpoint<T>, max_calls: usize, handler: H) -> Infallible
where
    T: Transport,
    H: AsyncFn(Incoming<T>) -> Result<(), Error>,
{
    assert!(max_calls > 0, "a server that serves no calls");
    let answer = async |call: Incoming<T>| {
        let peer = call.peer();
        if let Err(error) = handler(call).await
            && endpoint.with(|endpoint| endpoint.admits_log_line("a call was not answered", peer))
        {
            tracing::warn!(?peer, %error, "a call was not answered");
        }
    };
    let mut calls = FuturesUnordered::new();
    let mut next = pin!(None);
    poll_fn(|cx| {
        loop {
            let mut moved = false;
            while let Poll::Ready(Some(())) = Pin::new(&mut calls).poll_next(cx) {
                moved = true;
            }
            while calls.len() < max_calls {
                if next.is_none() {
                    next.set(Some(endpoint.next_unexpected()));
                }
                let message = match next.as_mut().as_pin_mut().expect("just set").poll(cx) {
                    Poll::Ready(message) => message,
                    Poll::Pending => break,
                };
                next.set(None);
                let peer = message.peer();
                match Incoming::new(endpoint, message) {
                    Ok(call) => calls.push(answer(call)),
                    Err(error) => {
                        if endpoint.with(|endpoint| endpoint.admits_log_line("cut off", peer)) {
                            tracing::warn!(?peer, %error, "cut off");
                        }
                        endpoint.with(|endpoint| endpoint.cut(peer, error));
                    }
                }
                moved = true;
            }
            if !moved {
                return Poll::Pending;
            }
        }
    })
    .await
}
