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
use tokio::task::coop::consume_budget;

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
                    consume_budget().await;
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

/// What handles a call: a closure that returns a future.
trait Handler: Send + Sync + 'static {
    type Handling: Future<Output = Result<(), Error>> + Send + 'static;

    fn handle(&self, call: Incoming<AnyThread>) -> Self::Handling;
}

impl<H, F> Handler for H
where
    H: Fn(Incoming<AnyThread>) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    type Handling = F;

    fn handle(&self, call: Incoming<AnyThread>) -> F {
        self(call)
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
    /// It is locked for a few instructions.
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

impl<H: Handler> Calls<H> {
    fn take(self: &Arc<Self>, message: Message<AnyThread>) {
        let peer = message.peer().id();
        let mut places = self.places();
        if places.stopped {
            drop(places);
            return drop(Incoming::new(message));
        }
        let admitted = places.admission.admit(peer, message);
        drop(places);
        if let Some(message) = admitted {
            let begun = self.begin(message).or_else(|| self.begin_waiting());
            begun.into_iter().for_each(|begun| self.spawn(begun));
        }
    }

    /// Makes a call of a message that has a place. If it is none, its sender is cut off, and the
    /// place is free again.
    fn begin(self: &Arc<Self>, message: Message<AnyThread>) -> Option<Begun<H>> {
        let peer = message.peer().id();
        match message.into_call() {
            Some(call) => Some(Begun { call, place: Place { calls: Arc::clone(self), peer } }),
            None => {
                let mut places = self.places();
                places.admission.finished(peer);
                places.admission.forget(peer);
                None
            }
        }
    }

    /// Begins the calls that wait and have a place now. Returns the first, and starts the others.
    fn begin_waiting(self: &Arc<Self>) -> Option<Begun<H>> {
        let mut first = None;
        loop {
            let next = self.places().admission.begin_next();
            let Some((_, message)) = next else { return first };
            match self.begin(message) {
                Some(begun) if first.is_some() => self.spawn(begun),
                Some(begun) => first = Some(begun),
                None => {}
            }
        }
    }

    fn spawn(&self, begun: Begun<H>) {
        self.runtime.spawn(run(begun));
    }
}

/// Runs the handler for a call, and then for those that have waited for its place.
async fn run<H: Handler>(begun: Begun<H>) {
    let mut next = Some(begun);
    while let Some(Begun { call, place }) = next.take() {
        let peer = call.peer().clone();
        report_failure(&peer, place.calls.handler.handle(call).await);
        let calls = Arc::clone(&place.calls);
        drop(place);
        next = calls.begin_waiting();
        // Handlers that never wait must not keep the worker.
        consume_budget().await;
    }
}

/// A call and its place.
struct Begun<H: Handler> {
    call: Incoming<AnyThread>,
    place: Place<H>,
}

/// The place of a call. It is given back when this is dropped. After a panic of the handler, a task
/// of its own goes on with the calls that wait. When the runtime ends, none begins any more.
struct Place<H: Handler> {
    calls: Arc<Calls<H>>,
    peer: PeerId,
}

impl<H: Handler> Drop for Place<H> {
    fn drop(&mut self) {
        self.calls.places().admission.finished(self.peer);
        if std::thread::panicking() {
            self.calls.begin_waiting().into_iter().for_each(|begun| self.calls.spawn(begun));
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
