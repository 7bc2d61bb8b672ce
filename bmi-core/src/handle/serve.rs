//! Serves calls with a task of tokio's for each.
//!
//! **Why tasks of its own.** A future that is awaited in `main` runs on the thread of `main`, which
//! is none of the runtime's workers: each call would be handed to that thread and back, by two
//! wake-ups. A spawned task runs on the worker that the arrival of the call woke, and so does,
//! next, the handler.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime;
use tokio::task::AbortHandle;

use super::Handle;
use crate::comm::{Admission, Incoming, report_failure};
use crate::endpoint::Message;
use crate::endpoint::threading::AnyThread;
use crate::error::{Error, ErrorKind};
use crate::op::PeerId;

impl Handle {
    /// Serves calls until the handle is closed: runs `handler` for each call that arrives, in a
    /// task of the runtime, at most `max_calls` at a time. Places are given as by
    /// [`serve`](crate::comm::serve), and so are errors of handlers handled. A handler that panics
    /// ends its call only.
    ///
    /// To stop, close the handle, or drop the future. Calls that have begun go on, those that wait
    /// end with `Cancelled`.
    ///
    /// ```
    /// use bmi_core::{Error, Handle};
    ///
    /// /// Replies to each call with its request.
    /// async fn echo(handle: &Handle) -> Result<(), Error> {
    ///     let serving = handle.serve(64, |call| async move {
    ///         let request = call.request_bytes();
    ///         let options = call.within(std::time::Duration::from_secs(1));
    ///         call.reply(&request, None, options).await
    ///     });
    ///     serving.await
    /// }
    /// ```
    ///
    /// # Errors
    /// `Invalid` outside of a tokio runtime.
    ///
    /// # Panics
    /// If `max_calls` is 0.
    pub async fn serve<H, F>(&self, max_calls: usize, handler: H) -> Result<(), Error>
    where
        H: Fn(Incoming<AnyThread>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let runtime = runtime::Handle::try_current().map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("{error}; without a runtime, use next_call")).during("serve")
        })?;
        let places = Places { admission: Admission::new(max_calls, max_calls), stopped: false };
        let calls = Arc::new(Calls { runtime: runtime.clone(), places: Mutex::new(places), handler });
        let accepting = {
            let (handle, calls) = (self.clone(), Arc::clone(&calls));
            runtime.spawn(async move {
                // It ends when the handle is closed.
                while let Ok(message) = handle.next_unexpected().await {
                    calls.take(message);
                }
            })
        };
        let _stop = Stop { accepting: accepting.abort_handle(), calls };
        match accepting.await {
            Err(ended) if ended.is_panic() => std::panic::resume_unwind(ended.into_panic()),
            _ => Ok(()),
        }
    }
}

/// The calls of a server, and what handles them.
struct Calls<H> {
    runtime: runtime::Handle,
    places: Mutex<Places>,
    handler: H,
}

struct Places {
    admission: Admission<Message<AnyThread>>,
    /// No call begins any more.
    stopped: bool,
}

impl<H> Calls<H> {
    /// It is locked for a few instructions, and never while the endpoint is used.
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the callers that wait that there will be no reply.
    fn stop(&self) {
        let waiting = {
            let mut places = self.places();
            places.stopped = true;
            places.admission.drain()
        };
        waiting.into_iter().for_each(|message| drop(Incoming::new(message)));
    }
}

impl<H, F> Calls<H>
where
    H: Fn(Incoming<AnyThread>) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    fn take(self: &Arc<Self>, message: Message<AnyThread>) {
        let peer = message.peer().id();
        let mut places = self.places();
        if places.stopped {
            drop(places);
            return drop(Incoming::new(message));
        }
        let mut next = places.admission.admit(peer, message);
        drop(places);
        while let Some(message) = next.take() {
            next = self.begin(message);
        }
    }

    /// Runs the handler for a message that has a place. If it is no call, its sender is cut off,
    /// and the next message is returned that has a place.
    fn begin(self: &Arc<Self>, message: Message<AnyThread>) -> Option<Message<AnyThread>> {
        let id = message.peer().id();
        let Some(call) = message.into_call() else {
            let mut places = self.places();
            places.admission.finished(id);
            places.admission.forget(id);
            return places.admission.begin_next().map(|(_, message)| message);
        };
        let place = Place { calls: Arc::clone(self), peer: id };
        self.runtime.spawn(async move {
            let peer = call.peer().clone();
            report_failure(&peer, (place.calls.handler)(call).await);
        });
        None
    }
}

/// The place of a call. It is given back when the task of the handler ends, in whichever way.
struct Place<H, F>
where
    H: Fn(Incoming<AnyThread>) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    calls: Arc<Calls<H>>,
    peer: PeerId,
}

impl<H, F> Drop for Place<H, F>
where
    H: Fn(Incoming<AnyThread>) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    fn drop(&mut self) {
        let mut places = self.calls.places();
        places.admission.finished(self.peer);
        while let Some((_, message)) = places.admission.begin_next() {
            drop(places);
            let mut next = Some(message);
            while let Some(message) = next.take() {
                next = self.calls.begin(message);
            }
            places = self.calls.places();
        }
    }
}

/// Stops to serve when the future is dropped.
struct Stop<H> {
    accepting: AbortHandle,
    calls: Arc<Calls<H>>,
}

impl<H> Drop for Stop<H> {
    fn drop(&mut self) {
        self.accepting.abort();
        self.calls.stop();
    }
}
