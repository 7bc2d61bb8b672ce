//! The loop that takes calls, and the tasks that handle them.
//!
//! **Protocol** of a message that arrives:
//! 1. Decode it. What is kept of it is a copy, which its sender cannot change, and its credits go
//!    back: a call that waits does not stop the fetches that running calls need. A ping and a fetch
//!    are answered at once, in a task.
//! 2. A call gets a place ([`Admission`]), waits for one, or is refused: if too many wait, if its
//!    data is too long, or if the server stops.
//! 3. With a place, its handler runs until the call's deadline. Then the call that has waited for
//!    the place begins.
//!
//! **Where a handler runs.** It is polled once where the call was taken. Most handlers end there:
//! no task is made, no other thread is woken, and the replies of calls that arrived together leave
//! together. One that waits becomes a task. If the first poll of a handler takes [`LONG`], the
//! handlers of the next [`APART`] calls are tasks from the beginning, so that other threads can run
//! them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use bmi_core::comm::Admission;
use bmi_core::runtime::{Instant, Runtime, TaskAbort, give_way, host, sleep_until};
use bmi_core::{AnyThread, Message, Time};
use futures_util::FutureExt;
use futures_util::future::{Either, join_all, select};

use super::answers::{fail, pong, refuse};
use super::arrival::{Arrival, data_len};
use super::held::Held;
use super::streams::Open;
use super::watch::Running;
use super::{Call, Shared};
use crate::rpc::trace::of_handler;
use crate::rpc::wire::{RequestHead, RequestKind, StreamEvent};
use crate::{Error, ErrorKind, Handle, Incoming, Options, PeerId};

/// The part of its time that a call has at the server. The rest is for the reply, and for a clock
/// that runs a little faster.
const SHARE: u32 = 16;
/// The longest time that a call has at the server, whatever its client says.
const LONGEST_CALL: Duration = Duration::from_secs(3600);
/// The longest time that is kept for the reply.
const LONGEST_RETURN: Duration = Duration::from_millis(50);

/// A handler whose first poll takes this long keeps the calls behind it from being taken. A thread
/// is woken for a task in about this time.
const LONG: Duration = Duration::from_micros(50);
/// Number of calls whose handlers are tasks after that.
const APART: u32 = 256;

/// Calls of one peer that are answered at a time without a place.
const ASIDE: usize = 256;

/// What handles a call: a closure that returns a future.
pub(super) trait Handler: Send + Sync + 'static {
    type Handling: Future<Output = Result<(), Error>> + Send + 'static;

    fn handle(&self, call: Call) -> Self::Handling;
}

impl<H, F> Handler for H
where
    H: Fn(Call) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    type Handling = F;

    fn handle(&self, call: Call) -> F {
        self(call)
    }
}

/// The calls of a server, and what handles them.
pub(super) struct Calls<H> {
    shared: Arc<Shared>,
    runtime: Runtime,
    places: Mutex<Places>,
    /// Number of calls whose handlers are tasks from the beginning.
    apart: AtomicU32,
    handler: H,
}

struct Places {
    admission: Admission<Arrival>,
    /// Number of calls that wait for a place.
    waiting: usize,
    /// Calls that are answered without a place: how many, for each peer.
    aside: BTreeMap<PeerId, usize>,
}

impl<H: Handler> Calls<H> {
    pub(super) fn new(shared: Arc<Shared>, runtime: Runtime, handler: H) -> Calls<H> {
        let most = shared.limits.max_calls;
        let places = Places { admission: Admission::new(most, most), waiting: 0, aside: BTreeMap::new() };
        Calls { shared, runtime, places: Mutex::new(places), apart: AtomicU32::new(0), handler }
    }

    /// Takes what arrives until the endpoints are closed.
    pub(super) async fn accept(self: Arc<Self>, handle: Handle) {
        while let Ok(message) = handle.next_unexpected().await {
            self.take(message);
            give_way().await;
        }
    }

    /// It is locked for a few instructions.
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(self: &Arc<Self>, message: Message<AnyThread>) {
        let Some(call) = message.into_call() else { return };
        let Some((head, request)) = RequestHead::decode(call.request()) else {
            let text = "a request that no bmi::Client of this version has made";
            return self.refuse(call, Error::new(ErrorKind::Incompatible, text));
        };
        let deadline = deadline(Instant::now().time(), head.time_us);
        let (trace, peer) = (head.trace, call.peer().id());
        match head.kind {
            RequestKind::Call { max_reply } => {
                self.admit(Arrival { call, deadline, max_reply, request, trace, stream: None });
            }
            RequestKind::Stream { stream, event: StreamEvent::Open { max_reply } } => {
                let Some(open) = self.shared.streams.open(call.peer(), stream) else {
                    return self.refuse(call, Error::new(ErrorKind::Invalid, "a stream that is open already"));
                };
                self.admit(Arrival { call, deadline, max_reply, request, trace, stream: Some(open) });
            }
            RequestKind::Stream { stream, event } => match self.too_large(data_len(&call)) {
                Some(error) if matches!(event, StreamEvent::Part { .. }) => {
                    self.shared.streams.too_large(peer, stream);
                    self.aside(peer, fail(call, error, false));
                }
                _ => self.shared.streams.note(peer, stream, event, call),
            },
            RequestKind::Fetch { number } => {
                let shared = Arc::clone(&self.shared);
                let options = Options::by(deadline);
                // What is kept has a place already, so there are no more of these than places.
                if self.shared.kept.has(peer, number) {
                    self.start(async move { shared.kept.fetch(call, number, options).await });
                } else {
                    self.aside(peer, async move { shared.kept.fetch(call, number, options).await });
                }
            }
            RequestKind::Ping => self.aside(peer, pong(call)),
        }
    }

    /// Gives a call a place, lets it wait for one, or refuses it.
    fn admit(self: &Arc<Self>, arrival: Arrival) {
        let limits = self.shared.limits;
        if self.shared.watch.is_stopped() {
            return self.refuse(arrival.call, Error::new(ErrorKind::Refused, "the server is shutting down"));
        }
        if let Some(error) = self.too_large(data_len(&arrival.call)) {
            return self.refuse(arrival.call, error);
        }
        let peer = arrival.call.peer().id();
        let mut places = self.places();
        if places.waiting >= limits.max_waiting && !places.admission.admits(peer) {
            drop(places);
            let text = format!(
                "{} calls are handled at a time (max_calls), and {} may wait (max_waiting)",
                limits.max_calls, limits.max_waiting
            );
            return self.refuse(arrival.call, Error::new(ErrorKind::Busy, text));
        }
        let admitted = places.admission.admit(peer, arrival);
        places.waiting += usize::from(admitted.is_none());
        drop(places);
        if let Some(arrival) = admitted {
            self.run(self.begin(arrival));
        }
    }

    /// Returns why a call with so many bytes of data is not taken.
    fn too_large(&self, data: u64) -> Option<Error> {
        let most = self.shared.limits.max_data.min(self.shared.limits.max_bytes);
        let text = || format!("{data} bytes of data, and the server takes {most} (max_data)");
        (data > most).then(|| Error::new(ErrorKind::TooLarge, text()))
    }

    /// Refuses a call whose handler has not begun.
    fn refuse(self: &Arc<Self>, call: Incoming<AnyThread>, error: Error) {
        self.shared.metrics.refused(error.kind());
        self.aside(call.peer().id(), refuse(call, error));
    }

    /// Answers a call that needs no place. A peer that asks and takes no answers does not get more
    /// memory than for [`ASIDE`] of them: further calls are dropped, and it is told so.
    fn aside(self: &Arc<Self>, peer: PeerId, answer: impl Future<Output = ()> + Send + 'static) {
        let Some(aside) = Aside::of(self, peer) else { return };
        let running = Running::of(&self.shared);
        self.start(async move {
            answer.await;
            drop((aside, running));
        });
    }

    /// Begins a call that has a place.
    fn begin(self: &Arc<Self>, arrival: Arrival) -> Begun<H> {
        let peer = arrival.call.peer().id();
        let _running = Running::of(&self.shared);
        Begun { arrival, place: Place { calls: Arc::clone(self), peer, _running } }
    }

    /// Begins the calls that wait and have a place now. Returns the first, and starts the others.
    fn begin_waiting(self: &Arc<Self>) -> Option<Begun<H>> {
        let mut first = None;
        loop {
            let next = self.places().begin_next();
            let Some(arrival) = next else { return first };
            let begun = self.begin(arrival);
            match first {
                Some(_) => self.spawn(begun),
                None => first = Some(begun),
            }
        }
    }

    fn spawn(&self, begun: Begun<H>) {
        self.start(run(begun));
    }

    /// Starts a task. All have one type, whatever the handler's is. Otherwise a program would have
    /// the runtime's code for tasks a dozen times for each of its handlers.
    fn start(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task.boxed());
    }

    /// Runs the handler of a call until it waits, and then in a task.
    fn run(&self, begun: Begun<H>) {
        let apart = self.apart.load(Ordering::Relaxed);
        if apart > 0 {
            self.apart.store(apart - 1, Ordering::Relaxed);
            return self.spawn(begun);
        }
        let mut handling = run(begun).boxed();
        let since = Instant::now();
        // The task polls again, with a waker of its own.
        let ended = handling.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        if !ended {
            self.runtime.spawn(handling);
        }
        if since.elapsed() >= LONG {
            self.apart.store(APART, Ordering::Relaxed);
        }
    }

    /// Refuses the calls that wait when the server stops.
    pub(super) async fn refuse_at_the_end(&self) {
        self.shared.watch.stopped().await;
        self.refuse_waiting();
    }

    /// Refuses the calls that wait.
    fn refuse_waiting(&self) {
        let waiting = {
            let mut places = self.places();
            places.waiting = 0;
            places.admission.drain()
        };
        if waiting.is_empty() {
            return;
        }
        waiting.iter().for_each(|_| self.shared.metrics.refused(ErrorKind::Refused));
        // At most as many as may wait.
        let running = Running::of(&self.shared);
        self.start(async move {
            let down = || Error::new(ErrorKind::Refused, "the server is shutting down");
            join_all(waiting.into_iter().map(|arrival| refuse(arrival.call, down()))).await;
            drop(running);
        });
    }
}

impl Places {
    fn begin_next(&mut self) -> Option<Arrival> {
        let (_, arrival) = self.admission.begin_next()?;
        self.waiting -= 1;
        Some(arrival)
    }
}

/// Returns when the server's part of a call ends, which has `time_us` from `now` on.
fn deadline(now: Time, time_us: u64) -> Time {
    // It is the client's claim.
    let time = Duration::from_micros(time_us).min(LONGEST_CALL);
    now + (time - (time / SHARE).min(LONGEST_RETURN))
}

/// Runs the handler for a call, and then for those that have waited for its place.
async fn run<H: Handler>(begun: Begun<H>) {
    let mut next = Some(begun);
    while let Some(Begun { arrival, place }) = next.take() {
        handle(&place.calls, arrival).await;
        let calls = Arc::clone(&place.calls);
        if calls.shared.watch.is_stopped() {
            calls.refuse_waiting();
        }
        drop(place);
        next = calls.begin_waiting();
        // Handlers that never wait must not keep the thread.
        give_way().await;
    }
}

/// Runs the handler until it ends, or until the deadline. If it has not replied, tells the client
/// why.
async fn handle<H: Handler>(calls: &Calls<H>, mut arrival: Arrival) {
    let (deadline, request, trace) = (arrival.deadline, arrival.request.clone(), arrival.trace);
    let peer = arrival.call.peer().clone();
    let late = || Error::new(ErrorKind::TimedOut, "the call's deadline passed at the server");
    if peer.limits().is_none() {
        return; // Nobody waits for it.
    }
    if Instant::now().time() >= deadline {
        calls.shared.metrics.refused(ErrorKind::TimedOut);
        return Box::pin(refuse(arrival.call, late())).await;
    }
    let in_flight = calls.shared.metrics.begin(request.len(), data_len(&arrival.call));
    let open = arrival.stream.take();
    let held = Held::new(arrival, Arc::clone(&calls.shared), open.as_ref().map(Open::begin));
    // The call to the handler is guarded too: it may panic before there is a future.
    let handling = async { calls.handler.handle(Call::new(&held, request, trace)).await };
    let handling = AssertUnwindSafe(of_handler(trace, &peer, handling)).catch_unwind();
    let ended = {
        // What ends it is set up when the handler waits, and many never do.
        let end = async {
            let (deadline, closed) = (pin!(sleep_until(deadline.into())), pin!(calls.shared.watch.closed()));
            let _ = select(deadline, closed).await;
        };
        match select(pin!(handling), pin!(end)).await {
            Either::Left((ended, _)) => Some(ended),
            Either::Right(_) => None,
        }
    };
    let why = |ended: &Option<_>| match ended {
        Some(Ok(Ok(()))) => Error::new(ErrorKind::Abandoned, "the handler ended without a reply"),
        Some(Ok(Err(error))) => Error::clone(error),
        Some(Err(_)) => Error::new(ErrorKind::Abandoned, "the handler panicked"),
        None if Instant::now().time() < deadline => Error::new(ErrorKind::Abandoned, "the server was shut down"),
        None => late(),
    };
    drop(open);
    let unanswered = held.unanswered();
    let failure = match &ended {
        Some(Ok(Ok(()))) if held.is_refused() => Some(ErrorKind::Invalid),
        Some(Ok(Ok(()))) if unanswered.is_none() => None,
        _ => Some(why(&ended).kind()),
    };
    in_flight.end(failure);
    if let Some(call) = unanswered {
        let error = why(&ended);
        // It is rare, and its future is large.
        Box::pin(fail(call, error, false)).await;
    } else if !matches!(ended, Some(Ok(Ok(())))) {
        tracing::debug!(error = %why(&ended), "a handler failed after its reply");
    }
    if let Some(Err(panic)) = ended
        && host().is_some()
    {
        // In a world, a panic is what a test looks for.
        std::panic::resume_unwind(panic);
    }
}

/// A call and its place.
struct Begun<H: Handler> {
    arrival: Arrival,
    place: Place<H>,
}

/// The place of a call. It is free when this is dropped.
struct Place<H: Handler> {
    calls: Arc<Calls<H>>,
    peer: PeerId,
    _running: Running,
}

impl<H: Handler> Drop for Place<H> {
    fn drop(&mut self) {
        self.calls.places().admission.finished(self.peer);
    }
}

/// A call that is answered without a place.
struct Aside<H: Handler> {
    calls: Arc<Calls<H>>,
    peer: PeerId,
}

impl<H: Handler> Aside<H> {
    /// Returns `None` if the peer has [`ASIDE`] of them.
    fn of(calls: &Arc<Calls<H>>, peer: PeerId) -> Option<Aside<H>> {
        let mut places = calls.places();
        let has = places.aside.entry(peer).or_default();
        if *has == ASIDE {
            return None;
        }
        *has += 1;
        Some(Aside { calls: Arc::clone(calls), peer })
    }
}

impl<H: Handler> Drop for Aside<H> {
    fn drop(&mut self) {
        let mut places = self.calls.places();
        if let Entry::Occupied(mut has) = places.aside.entry(self.peer) {
            *has.get_mut() -= 1;
            if *has.get() == 0 {
                has.remove();
            }
        }
    }
}

/// Stops to take calls when the future of the server is dropped.
pub(super) struct Stop<H: Handler> {
    pub(super) shared: Arc<Shared>,
    pub(super) calls: Arc<Calls<H>>,
    pub(super) tasks: [TaskAbort; 2],
}

impl<H: Handler> Drop for Stop<H> {
    fn drop(&mut self) {
        self.tasks.iter().for_each(TaskAbort::abort);
        self.calls.refuse_waiting();
        self.shared.serving.store(false, Ordering::Release);
        self.shared.watch.serves(false);
    }
}
