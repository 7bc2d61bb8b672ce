//! The future of an operation.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{Dropped, Endpoint};
use crate::error::{Error, ErrorKind};
use crate::op::{Completion, OpId};
use crate::threading::{OneThread, Threading};

/// An operation under way. It ends in its completion, or in an error that names operation and peer.
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
    /// Returns the operation's id, while it is under way.
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

    /// Lets the operation go on without this future. Returns its id if it is under way. Somebody
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
