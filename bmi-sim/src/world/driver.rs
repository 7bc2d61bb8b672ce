//! Drives an endpoint inside a world: makes progress, then sleeps until the adapter, a task or a
//! deadline needs it.
//!
//! **Model of waiting.** A driver that polls costs no events. The time that it waits is counted
//! ([`Node::cpu_spinning`]) when something arrives. A driver that sleeps pays the profile's price
//! of a wake-up ([`Node::wake_up`]) on its node's processor when its *adapter* reports something.
//! Posts of the node's own tasks need no wake-up.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bmi_core::driver::{Waiter, Waiting};
use bmi_core::transport::Armed;
use bmi_core::{Endpoint, Threading, Time};

use super::time::Sleep;
use crate::model::{Node, Sim};

/// Drives `endpoint` for as long as the future is polled. Waiting costs nothing. Takes any
/// transport, including a wrapper around a [`crate::SimTransport`].
pub async fn drive<S: Threading>(sim: Sim, endpoint: Endpoint<S>) {
    run(sim, endpoint, None).await;
}

/// Drives `endpoint` on `node`, and waits as `waiting` says. [`Node::endpoint`] spawns it.
pub async fn drive_with<S: Threading>(node: Node, endpoint: Endpoint<S>, waiting: Waiting) {
    let idle = Idle { node: node.clone(), adapter: None, waiter: Waiter::new(waiting), since: None };
    run(node.sim.clone(), endpoint, Some(idle)).await;
}

/// As [`drive_with`], for an endpoint that is woken by this adapter of the node and by no other.
pub(crate) async fn drive_adapter<S: Threading>(node: Node, endpoint: Endpoint<S>, waiting: Waiting, adapter: u32) {
    let idle = Idle { node: node.clone(), adapter: Some(adapter), waiter: Waiter::new(waiting), since: None };
    run(node.sim.clone(), endpoint, Some(idle)).await;
}

/// As [`drive_adapter`], until the endpoint is closed.
pub(crate) async fn drive_until_closed<S: Threading>(
    node: Node,
    endpoint: Endpoint<S>,
    waiting: Waiting,
    adapter: u32,
) {
    let mut closed = pin!(endpoint.closed());
    let mut driving = pin!(drive_adapter(node, endpoint.clone(), waiting, adapter));
    poll_fn(|cx| match closed.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => driving.as_mut().poll(cx),
    })
    .await;
}

/// Accounts for the waiting of a driver on its node.
struct Idle {
    node: Node,
    /// The adapter that wakes the driver; `None` for any of the node's.
    adapter: Option<u32>,
    waiter: Waiter,
    /// Since when the driver waits, and how long it polls before it sleeps.
    since: Option<(Time, Option<Duration>)>,
}

impl Idle {
    fn begins(&mut self, sending: bool) {
        if self.since.is_none() {
            self.since = Some((self.node.now(), self.waiter.patience(sending)));
        }
    }

    /// Accounts for the waiting when something woke the driver. Returns whether the processor has
    /// to wake up first.
    fn ended(&mut self) -> bool {
        let Some((since, patience)) = self.since.take() else { return false };
        let idle = self.node.now() - since;
        let by_adapter = self.node.has_reports(self.adapter);
        if by_adapter {
            self.waiter.ended(idle, patience);
        }
        self.node.spin(patience.map_or(idle, |patience| patience.min(idle)));
        let slept = by_adapter && patience.is_some_and(|patience| idle > patience);
        if slept {
            self.node.wake_up();
        }
        slept
    }
}

async fn run<S: Threading>(sim: Sim, endpoint: Endpoint<S>, mut idle: Option<Idle>) {
    // The timer is kept when the next deadline is a later one. Waking too early is cheaper than a
    // new timer for each operation.
    let mut timer = pin!(None);
    poll_fn(|cx| {
        if idle.as_mut().is_some_and(Idle::ended) {
            // The processor is busy waking up. Then the driver goes on here.
            return again(cx);
        }
        loop {
            // Between two polls, the tasks that the first one woke get their turn.
            if endpoint.progress() || endpoint.arm(cx.waker()) == Armed::Busy {
                return again(cx);
            }
            if let Some(idle) = &mut idle {
                idle.begins(endpoint.is_sending());
            }
            let Some(at) = endpoint.next_deadline() else {
                timer.set(None);
                return Poll::<()>::Pending;
            };
            if at <= endpoint.now() {
                // The deadline is now; let the other tasks run first.
                return again(cx);
            }
            if timer.as_ref().as_pin_ref().is_none_or(|timer: std::pin::Pin<&Sleep>| at < timer.at()) {
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

fn again(cx: &Context<'_>) -> Poll<()> {
    cx.waker().wake_by_ref();
    Poll::Pending
}
