//! Waiting for operations in a program without an executor.

use super::thread::{park, this_thread};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind};
use crate::op::{Completion, Posted};
use crate::time::{Clock, Time};
use crate::transport::Armed;

/// Methods for programs without an executor. They block the calling thread and drive the endpoint
/// meanwhile.
impl Engine {
    /// Waits for an operation to end, and returns its completion. Takes what a `post_*` method
    /// returned, or the id of an operation.
    ///
    /// `clock` must be the clock whose time was passed to [`Engine::new`].
    ///
    /// # Errors
    /// The operation's own error, which names operation and peer. `TimedOut` if the operation has
    /// not ended at `deadline`. It then goes on, and can be waited for again or cancelled.
    /// `Invalid` if there is no such operation. `Io` if the system cannot wait.
    pub fn wait(&mut self, posted: impl Into<Posted>, clock: &impl Clock, deadline: Time) -> Result<Completion, Error> {
        let completion = match posted.into() {
            Posted::Done(completion) => completion,
            Posted::Pending(op) if self.is_known(op) => self
                .wait_until(clock, deadline, |endpoint| endpoint.poll_op(op))
                .map_err(|error| self.during(op, error))?,
            Posted::Pending(_) => {
                let text = "no such operation, or its completion was collected";
                return Err(Error::new(ErrorKind::Invalid, text).during("wait"));
            }
        };
        match self.explain(&completion) {
            Some(error) => Err(error),
            None => Ok(completion),
        }
    }

    /// Polls until `ready` returns a value, and returns it. The thread sleeps while there is
    /// nothing to do.
    ///
    /// ```no_run
    /// # use bmi_core::{Clock, Engine, Error, PeerEvent, Time, Transport};
    /// # fn first(endpoint: &mut Engine, clock: &impl Clock, end: Time) -> Result<(), Error> {
    /// let event: PeerEvent = endpoint.wait_until(clock, end, |endpoint| endpoint.poll_event())?;
    /// let message = endpoint.wait_until(clock, end, |endpoint| endpoint.poll_unexpected())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `TimedOut` at `deadline`, `Io` if the system cannot wait.
    pub fn wait_until<R>(
        &mut self,
        clock: &impl Clock,
        deadline: Time,
        mut ready: impl FnMut(&mut Engine) -> Option<R>,
    ) -> Result<R, Error> {
        let waker = this_thread();
        loop {
            let now = clock.now();
            let worked = self.poll(now);
            if let Some(value) = ready(self) {
                return Ok(value);
            }
            if now >= deadline {
                return Err(Error::new(ErrorKind::TimedOut, "the deadline passed"));
            }
            if worked || self.arm(&waker) == Armed::Busy {
                continue;
            }
            let wake_at = self.next_deadline().map_or(deadline, |at| at.min(deadline));
            let timeout = Some(wake_at.since(clock.now()));
            self.record_sleep();
            match self.own_bed()? {
                Some(bed) => bed.sleep(timeout)?,
                None => park(timeout),
            }
            self.record_wake();
        }
    }
}
