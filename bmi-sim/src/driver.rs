//! Drives an endpoint inside a world: progress, then sleep until the adapter, a task, or a deadline has something to do.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use bmi_core::AsyncEndpoint;
use bmi_core::transport::{Armed, Transport};

use crate::world::Sim;

/// Drives `endpoint` for as long as the future is polled; [`crate::Node::endpoint`] spawns it. Takes any transport, a wrapper around a
/// [`crate::SimTransport`] too.
pub async fn drive<T: Transport>(sim: Sim, endpoint: AsyncEndpoint<T>) {
    // Kept when the next deadline is a later one: waking too early is cheaper than a new timer for each operation.
    let mut timer = pin!(None);
    poll_fn(|cx| {
        loop {
            // Between two polls the tasks that the first one woke get their turn.
            if endpoint.progress() || endpoint.arm(cx.waker()) == Armed::Busy {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let Some(at) = endpoint.next_deadline() else {
                timer.set(None);
                return Poll::<()>::Pending;
            };
            if at <= sim.now() {
                // Its time has come just now; but let the other tasks run in between.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if timer.as_ref().as_pin_ref().is_none_or(|timer: std::pin::Pin<&crate::Sleep>| at < timer.at()) {
                timer.set(Some(sim.sleep_until(at)));
            }
            match timer.as_mut().as_pin_mut().map(|timer| timer.poll(cx)) {
                Some(Poll::Ready(())) => timer.set(None),
                _ => return Poll::Pending,
            }
        }
    })
    .await;
}
