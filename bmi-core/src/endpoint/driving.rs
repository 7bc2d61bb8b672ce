//! What drives an endpoint: drivers, callers that make progress, and the end.

use std::future::poll_fn;
#[cfg(feature = "tokio")]
use std::os::fd::OwnedFd;
use std::task::{Poll, Waker};

use super::Endpoint;
#[cfg(feature = "tokio")]
use super::operation::ALONE;
use super::state::Poller;
use super::threading::{Lock, Threading};
use crate::engine::Engine;
use crate::error::Error;
use crate::time::Time;
use crate::transport::{Armed, Bed};

/// What a poll found to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Tasks of this side had used the endpoint. Something may have arrived besides.
    Posted,
    /// Something arrived.
    Arrived,
}

impl<S: Threading> Endpoint<S> {
    // ---- for handles ----------------------------------------------------------------------------

    /// Polls the endpoint once, for a caller that waits. A driver that sleeps goes on to do so, but
    /// the adapter may not be armed for it any more: see [`Endpoint::rearm`].
    pub(crate) fn progress_of_caller(&self) -> bool {
        self.inner.state.give_way();
        let (worked, state) = self.run(|state| state.poll(self.now()));
        self.release(state, false);
        worked
    }

    /// Arms the adapter again for a driver that sleeps, or wakes the driver. For a caller that has
    /// polled, and polls no more.
    pub(crate) fn rearm(&self) {
        self.release(self.acquire(), true);
    }

    /// Lets the futures of operations poll the endpoint while they wait.
    pub(crate) fn let_futures_poll(&self) {
        self.look_at(|state| state.poller = Poller::Free);
    }

    /// Sets the largest number of operations. [`Endpoint::post`] refuses more.
    pub(crate) fn set_max_operations(&self, most: usize) {
        self.look_at(|state| state.max_operations = most);
    }

    /// Runs `f` on the endpoint, which posts an operation, if there is room.
    ///
    /// # Errors
    /// `Exhausted`, or that of `f`.
    pub(crate) fn with_room<R>(&self, f: impl FnOnce(&mut Engine) -> Result<R, Error>) -> Result<R, Error> {
        self.with_state(|state| {
            state.check_room()?;
            f(&mut state.engine)
        })
    }

    /// Waits until there is room for one more operation, or the endpoint is closing.
    pub async fn room(&self) {
        poll_fn(|cx| {
            self.look_at(|state| {
                if state.has_room() || state.engine.is_closing() {
                    return Poll::Ready(());
                }
                state.room_waiters.add(cx.waker(), &mut state.engine);
                Poll::Pending
            })
        })
        .await;
    }

    /// Begins to close the endpoint: connections end in order, nothing more is posted. It must be
    /// driven until it has [closed](Self::closed).
    pub fn close(&self) {
        let ((), state) = self.run(|state| state.close(self.now()));
        self.release(state, true);
    }

    /// Returns true if the endpoint is closing, or closed.
    pub fn is_closing(&self) -> bool {
        self.look(|engine| engine.is_closing())
    }

    /// Waits until the endpoint is closed. Every operation has ended then, and a driver may stop.
    pub async fn closed(&self) {
        poll_fn(|cx| {
            self.look_at(|state| {
                if state.engine.has_closed() {
                    return Poll::Ready(());
                }
                state.end_waiters.add(cx.waker(), &mut state.engine);
                Poll::Pending
            })
        })
        .await;
    }

    /// Returns true if the endpoint is closed.
    pub(crate) fn has_closed(&self) -> bool {
        self.look(|engine| engine.has_closed())
    }

    /// Checks that there is room for one more operation.
    ///
    /// # Errors
    /// `Exhausted`.
    pub(crate) fn check_room(&self) -> Result<(), Error> {
        self.look_at(|state| state.check_room())
    }

    /// Returns the number of polls so far, by whichever thread.
    pub(crate) fn polls(&self) -> u64 {
        self.look_at(|state| state.polls)
    }

    // ---- for drivers ----------------------------------------------------------------------------

    /// Polls the endpoint once, at the clock's time, and wakes the futures that can go on. Returns
    /// whether there was anything to do. Other threads that wait for the endpoint go first.
    pub fn progress(&self) -> bool {
        self.progress_at(self.now())
    }

    /// Works as [`Endpoint::progress`], at `now`. The time of an endpoint never decreases, so
    /// [`Time::ZERO`] is the time of the poll before.
    #[inline]
    pub(crate) fn progress_at(&self, now: Time) -> bool {
        self.find_work(now).is_some()
    }

    /// Works as [`Endpoint::progress_at`], and returns what there was to do.
    #[inline]
    pub(crate) fn find_work(&self, now: Time) -> Option<Found> {
        self.inner.state.give_way();
        let (found, state) = self.run(|state| {
            if S::CALLERS_PROGRESS {
                // It does not sleep. So callers leave everything to it.
                state.take_driver();
            }
            state.engine.record_wake();
            let found = if state.posted { Found::Posted } else { Found::Arrived };
            state.poll(now).then_some(found)
        });
        self.release(state, false);
        found
    }

    /// Sends what was posted, without a look for arrivals.
    pub(crate) fn send_posted(&self, now: Time) {
        let ((), state) = self.run(|state| state.send_posted(now));
        self.release(state, false);
    }

    /// Returns true if a task has used the endpoint since the last poll.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_posted(&self) -> bool {
        self.look_at(|state| state.posted)
    }

    /// Returns true if at most one task has operations in flight.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_used_alone(&self) -> bool {
        self.look(|engine| engine.operations() <= ALONE)
    }

    /// Returns the time at which to call `progress` even if nothing arrives.
    pub fn next_deadline(&self) -> Option<Time> {
        self.look(|engine| engine.next_deadline())
    }

    /// Prepares to sleep. `waker` is woken when a task uses the endpoint, for example to post or to
    /// cancel an operation, and when a message or an exposure is dropped. A task on another thread
    /// does not wake it if it can do itself what is to be done. It is also woken when the transport
    /// has something to do, unless the transport has an event fd for that.
    pub fn arm(&self, waker: &Waker) -> Armed {
        self.arm_until(waker).0
    }

    /// Works as [`Endpoint::arm`]. Also returns the time at which to call `progress` at the
    /// latest. A driver of a shared endpoint sleeps until exactly this time: a caller that posts
    /// something with a later deadline does not wake it. One driver may sleep at a time, because
    /// only the last one that prepared to is woken.
    pub fn arm_until(&self, waker: &Waker) -> (Armed, Option<Time>) {
        self.look_at(|state| state.arm(waker, S::CALLERS_PROGRESS))
    }

    /// Returns a place to sleep for the thread that drives the endpoint, unless the transport wakes
    /// only wakers.
    pub(crate) fn bed(&self) -> Result<Option<Box<dyn Bed>>, Error> {
        self.look(|engine| engine.new_bed())
    }

    /// Returns a duplicate of the transport's event fd, if it has one.
    #[cfg(feature = "tokio")]
    pub(crate) fn clone_event_fd(&self) -> Result<Option<OwnedFd>, Error> {
        Ok(self.look(|engine| engine.event_fd().map(|fd| fd.try_clone_to_owned()).transpose())?)
    }
}
