//! A loop that serves many calls at a time.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use futures_util::stream::{FuturesUnordered, Stream};

use super::admission::Admission;
use super::incoming::Incoming;
use crate::endpoint::threading::Threading;
use crate::endpoint::{Endpoint, Message, Peer};
use crate::error::Error;

/// Serves calls: runs `handler` for each call that arrives, at most `max_calls` at a time.
///
/// Further calls wait in their receive slots and keep their sender's credits, so a sender that is
/// too fast stops. One peer has at most three quarters of the calls, and several peers leave room
/// for one more ([`Admission`]). A message that is not a call costs its sender the connection. If a
/// handler returns an error, the error is logged ([`tracing`]), and the other calls go on. The
/// handler should have replied before.
///
/// The future never returns. To stop, drop it, for instance by `select!` against a signal. This
/// drops the running handlers. Calls that wait end with `Abandoned`.
///
/// ```
/// use std::convert::Infallible;
///
/// use bmi_core::comm::serve;
/// use bmi_core::{Endpoint, Transport};
///
/// /// Replies to each call with its request.
/// async fn echo(endpoint: &Endpoint) -> Infallible {
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
pub async fn serve<S, H>(endpoint: &Endpoint<S>, max_calls: usize, handler: H) -> Infallible
where
    S: Threading,
    H: AsyncFn(Incoming<S>) -> Result<(), Error>,
{
    assert!(max_calls > 0, "a server that serves no calls");
    let answer = async |call: Incoming<S>| {
        let peer = call.peer().clone();
        report_failure(&peer, handler(call).await);
        peer.id()
    };
    let mut queue = Queue { admission: Admission::new(max_calls, max_calls) };
    let mut calls = FuturesUnordered::new();
    let mut next = pin!(None);
    poll_fn(|cx| {
        loop {
            let mut moved = false;
            while let Poll::Ready(Some(peer)) = Pin::new(&mut calls).poll_next(cx) {
                queue.admission.finished(peer);
                moved = true;
            }
            while let Some((_, message)) = queue.admission.begin_next() {
                calls.extend(queue.begin(message).map(&answer));
                moved = true;
            }
            loop {
                if next.is_none() {
                    next.set(Some(endpoint.next_unexpected()));
                }
                let message = match next.as_mut().as_pin_mut().expect("just set").poll(cx) {
                    Poll::Ready(message) => message,
                    Poll::Pending => break,
                };
                next.set(None);
                if let Some(message) = queue.admission.admit(message.peer().id(), message) {
                    calls.extend(queue.begin(message).map(&answer));
                    moved = true;
                }
            }
            if !moved {
                return Poll::Pending;
            }
        }
    })
    .await
}

/// Logs the error of a handler.
fn report_failure<S: Threading>(peer: &Peer<S>, handled: Result<(), Error>) {
    if let Err(error) = handled
        && peer.admits_log_line("a call was not answered")
    {
        tracing::warn!(?peer, %error, "a call was not answered");
    }
}

/// The messages that wait for their turn.
struct Queue<S: Threading> {
    admission: Admission<Message<S>>,
}

impl<S: Threading> Queue<S> {
    /// Takes a message that has a place. If it is not a call, cuts off its sender.
    fn begin(&mut self, message: Message<S>) -> Option<Incoming<S>> {
        let peer = message.peer().id();
        let call = message.into_call();
        if call.is_none() {
            self.admission.finished(peer);
            self.admission.forget(peer);
        }
        call
    }
}

impl<S: Threading> Drop for Queue<S> {
    /// Tells the callers that there will be no reply.
    fn drop(&mut self) {
        for message in self.admission.drain() {
            drop(Incoming::new(message));
        }
    }
}
