//! The future of an operation.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::{Dropped, Endpoint};
use crate::endpoint::threading::{Lock, OneThread, Threading};
use crate::error::{Error, ErrorKind};
use crate::op::{Completion, OpId, Posted};

/// How long a future polls that is alone. A task should not keep its thread for more than about
/// 100 µs.
const TURN: Duration = Duration::from_micros(50);
/// Number of polls of a future that is not alone.
const TURN_OF_MANY: u32 = 8;
/// Number of operations that one task may have in flight: the two of a call, or of an exchange.
pub(super) const ALONE: usize = 2;

/// An operation in flight. It ends in its completion, or in an error that names operation and peer.
#[must_use = "dropping it abandons the operation"]
pub struct Operation<S: Threading = OneThread> {
    pub(super) endpoint: Endpoint<S>,
    pub(super) state: Progress,
}

pub(super) enum Progress {
    Refused(Error),
    Done(Completion),
    Pending(OpId),
    Taken,
}

impl<S: Threading> Endpoint<S> {
    pub(crate) fn operation(&self, posted: Result<Posted, Error>) -> Operation<S> {
        let state = match posted {
            Ok(Posted::Done(completion)) => Progress::Done(completion),
            Ok(Posted::Pending(op)) => Progress::Pending(op),
            Err(error) => Progress::Refused(error),
        };
        Operation { endpoint: self.clone(), state }
    }

    /// Returns the completion of `op`, or `None` after arranging to wake the task when there is
    /// one. `Some(None)` means that there is no such operation.
    ///
    /// If drivers poll, the future of one operation at a time does so instead, because a driver
    /// would take another thread. It polls in each of its turns. Between them, the other tasks of
    /// its executor run.
    #[inline]
    pub(super) fn poll_op(&self, op: OpId, cx: &Context<'_>) -> Option<Option<Completion>> {
        if S::CALLERS_PROGRESS && self.look_at(|state| !state.engine.has_ended(op) && state.take_poller(op)) {
            self.poll_a_turn(op);
            if !self.look_at(|state| state.engine.has_ended(op)) {
                cx.waker().wake_by_ref();
                // Other threads may wait for this core.
                std::thread::yield_now();
            }
        }
        let (polled, mut state) = self.run(|state| state.engine.poll_op_or_wake(op, cx.waker()));
        if S::CALLERS_PROGRESS && polled.is_some() && state.release_poller(op) {
            // Another future that waits becomes the one that polls.
            state.engine.wake_a_waiter();
            self.release(state, false);
        } else {
            self.release_unused(state);
        }
        polled
    }

    /// Polls until `op` has ended, or another task can go on; as long as a task may keep its thread
    /// if no other task waits for the endpoint, and a few times otherwise.
    fn poll_a_turn(&self, op: OpId) {
        let since = self.now();
        for polls in 0.. {
            self.inner.state.give_way();
            let now = self.now();
            let (_, state) = self.run(|state| state.poll(now));
            let is_alone = state.engine.operations() <= ALONE;
            let over = if is_alone { now - since > TURN } else { polls >= TURN_OF_MANY };
            let ended = over || state.engine.has_ended(op) || state.engine.has_wakers();
            self.release(state, false);
            if ended {
                return;
            }
            std::hint::spin_loop();
        }
    }

    pub(super) fn outcome(&self, completion: Completion) -> Result<Completion, Error> {
        match completion.status {
            Ok(()) => Ok(completion),
            Err(kind) => {
                let error = self.look(|engine| engine.explain(&completion));
                Err(error.unwrap_or_else(|| Error::new(kind, "")))
            }
        }
    }
}

impl<S: Threading> Future for Operation<S> {
    type Output = Result<Completion, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Progress::Pending(op) = self.state {
            // It is still pending if this panics, so that its drop abandons it.
            let Some(completion) = self.endpoint.poll_op(op, cx) else { return Poll::Pending };
            self.state = match completion {
                Some(completion) => Progress::Done(completion),
                None => Progress::Refused(Error::new(ErrorKind::Invalid, "somebody else collected the completion")),
            };
        }
        match std::mem::replace(&mut self.state, Progress::Taken) {
            Progress::Refused(error) => Poll::Ready(Err(error)),
            Progress::Done(completion) => Poll::Ready(self.endpoint.outcome(completion)),
            Progress::Pending(_) | Progress::Taken => panic!("an operation was polled after it had ended"),
        }
    }
}

// The endpoint is a pointer, and the rest is data.
impl<S: Threading> Unpin for Operation<S> {}

impl<S: Threading> Operation<S> {
    /// Returns the operation's id, while it is in flight.
    pub fn id(&self) -> Option<OpId> {
        match self.state {
            Progress::Pending(op) => Some(op),
            _ => None,
        }
    }

    /// Returns the error if the operation was not posted at all. Awaiting it returns the same
    /// error.
    pub(crate) fn refusal(&self) -> Option<Error> {
        match &self.state {
            Progress::Refused(error) => Some(error.clone()),
            _ => None,
        }
    }

    /// Lets the operation go on without this future. Returns its id if it is in flight. Somebody
    /// else collects its completion.
    pub(crate) fn release(&mut self) -> Option<OpId> {
        let op = self.id()?;
        self.state = Progress::Taken;
        Some(op)
    }

    /// Asks the operation to end early. It must still be awaited.
    pub fn cancel(&self) {
        if let Progress::Pending(op) = self.state {
            self.endpoint.with(|engine| engine.cancel(op));
        }
    }
}

impl<S: Threading> Drop for Operation<S> {
    fn drop(&mut self) {
        if let Progress::Pending(op) = self.state {
            self.endpoint.settle(Dropped::Operation(op));
        }
    }
}
