//! Clocks for endpoints, and waiting for a point in virtual time.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bmi_core::{Clock, Time};
use send_wrapper::SendWrapper;

use crate::model::{Node, Shared, Sim};

/// Reads virtual time: the world's, or a node's. A node's time is ahead of the world's while the
/// node's processor has work to do.
///
/// The clock is `Send` and `Sync`, so that it can be that of a [`Handle`](bmi_core::Handle). But it
/// belongs to the thread of its world: another thread that reads it panics.
#[derive(Clone)]
pub struct SimClock {
    shared: SendWrapper<Rc<Shared>>,
    node: Option<u32>,
}

impl SimClock {
    pub(crate) fn new(shared: Rc<Shared>, node: Option<u32>) -> SimClock {
        SimClock { shared: SendWrapper::new(shared), node }
    }
}

impl Clock for SimClock {
    fn now(&self) -> Time {
        match self.node {
            Some(node) => self.shared.now_at(node),
            None => self.shared.now(),
        }
    }
}

/// Waits for a point in virtual time.
#[must_use = "does nothing unless awaited"]
pub struct Sleep {
    sim: Sim,
    at: u64,
    timer: Option<(u32, u32)>,
}

impl Sleep {
    /// Returns when it ends.
    pub fn at(&self) -> Time {
        Time::from_nanos(self.at)
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (at, timer) = (self.at, self.timer);
        let shared = self.sim.0.clone();
        let mut core = shared.core.borrow_mut();
        if core.queue.now >= at {
            return Poll::Ready(());
        }
        match timer {
            None => self.timer = Some(core.add_timer(at, cx.waker().clone())),
            Some((slot, _)) => core.renew_timer(slot, cx.waker()),
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            drop(self.sim.0.with(|core| core.cancel_timer(timer)));
        }
    }
}

impl Sim {
    /// Returns the virtual time.
    pub fn now(&self) -> Time {
        self.0.now()
    }

    /// Returns the world's clock.
    pub fn clock(&self) -> SimClock {
        SimClock::new(self.0.clone(), None)
    }

    /// Waits for `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }

    /// Waits until `at`.
    pub fn sleep_until(&self, at: Time) -> Sleep {
        Sleep { sim: self.clone(), at: at.as_nanos(), timer: None }
    }
}

impl Node {
    /// Returns the virtual time of this node: when its processor has done its work so far. It is
    /// ahead of the world's time while a task makes the processor work.
    pub fn now(&self) -> Time {
        self.sim.0.now_at(self.id)
    }

    /// Returns its clock for endpoints, which shows [`Node::now`].
    pub fn clock(&self) -> SimClock {
        SimClock::new(self.sim.0.clone(), Some(self.id))
    }

    /// Waits for `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sim.sleep_until(self.now() + duration)
    }

    /// Returns its wall clock, in ns since 1970: a day in 2023 plus virtual time, unless a plan of
    /// faults has stepped it.
    pub fn wall_ns(&self) -> u64 {
        self.state(|node, now| u64::try_from(i128::from(node.wall_ns) + i128::from(now)).unwrap_or(0))
    }

    /// Steps its wall clock, forwards or back.
    pub fn step_wall(&self, by_ns: i64) {
        self.state(|node, _| node.wall_ns = node.wall_ns.saturating_add(by_ns));
    }
}
