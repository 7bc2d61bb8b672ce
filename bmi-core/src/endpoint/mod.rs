//! The `async` interface of an endpoint. A future may be dropped at any time. Its operation is then
//! abandoned, and the endpoint keeps the memory until no adapter can touch it.
//!
//! An operation is posted when the method is *called*, not when the future is first polled. So a
//! receive can be posted before the request that provokes its message:
//!
//! ```text
//! let reply = server.recv(tag, &buffer, options);     // posted here
//! server.send_unexpected(tag, request, options).await?;
//! let len = reply.await?.len;
//! ```
//!
//! A clone is another handle to the same endpoint. A driver must drive the endpoint (see
//! [`crate::driver`]).
//!
//! **Threads.** An [`Endpoint`] belongs to the tasks of one thread, and runs on any executor
//! that takes `!Send` futures. A [`SharedEndpoint`] is the same for any thread: it and its futures
//! are `Send` if the transport is. Its endpoint is behind a lock
//! ([`CombiningLock`](crate::sync::combining_lock::CombiningLock)).
//!
//! **Protocol** of a use:
//! 1. Take the lock. Post, collect or poll.
//! 2. Settle the notes of values that were dropped meanwhile.
//! 3. If the driver sleeps, and something is to be done for what was posted: do it, and arm the
//!    adapter again for the driver. On one thread, and if that is not enough, the driver will be
//!    woken for what is to be sent.
//! 4. Release the lock. Then wake the futures that can go on, and the driver. A waker of a future
//!    may run any code, so none is called under the lock.

mod call_buffers;
mod driving;
mod held;
mod operation;
mod peer;
mod state;
pub(crate) mod threading;

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use call_buffers::CallBuffers;
pub(crate) use call_buffers::PackingBuffer;
pub(crate) use driving::Found;
use held::InUse;
pub use operation::Operation;
pub use peer::{Message, Peer, SharedPeer};
pub(crate) use state::Dropped;
use state::{State, Wakes};

use crate::addr::Addr;
use crate::endpoint::threading::{AnyThread, Lock, OneThread, Shared, Threading};
use crate::engine::{Counters, Engine, PeerEvent, ResourceUsage};
use crate::error::Error;
use crate::op::{Options, PeerId, Posted};
use crate::time::{Clock, Time};
use crate::transport::HostWork;

/// A handle to an endpoint, for `async` code.
pub struct Endpoint<S: Threading = OneThread> {
    inner: S::Pointer<Inner<S>>,
}

/// A handle to an endpoint that any thread can use, if the transport is `Send`.
pub type SharedEndpoint = Endpoint<AnyThread>;

struct Inner<S: Threading> {
    state: S::Lock<State, Dropped>,
    clock: S::Clock,
    call_buffers: CallBuffers<S>,
}

type Guard<'a, S> = <<S as Shared>::Lock<State, Dropped> as Lock<State, Dropped>>::Guard<'a>;
type Held<'a, S> = held::Held<Guard<'a, S>>;

impl<S: Threading> Clone for Endpoint<S> {
    fn clone(&self) -> Self {
        Endpoint { inner: self.inner.clone() }
    }
}

impl Endpoint {
    /// Creates the `async` interface of `engine`, for the tasks of one thread. `clock` gives the
    /// time for operations and timers.
    pub fn new(engine: Engine, clock: impl Clock + 'static) -> Endpoint {
        let clock: Box<dyn Clock> = Box::new(clock);
        Endpoint::from_parts(engine, clock)
    }
}

impl SharedEndpoint {
    /// Creates the `async` interface of `engine`, for any thread. `clock` gives the time for
    /// operations and timers.
    pub fn shared(engine: Engine, clock: impl Clock + Send + Sync + 'static) -> SharedEndpoint {
        let clock: Box<dyn Clock + Send + Sync> = Box::new(clock);
        let endpoint = Endpoint::from_parts(engine, clock);
        let returned = Arc::new(Returned(Arc::downgrade(&endpoint.inner)));
        endpoint.look_at(|state| state.returns = Some(Waker::from(returned)));
        endpoint
    }
}

/// Its waker is called when a message or an exposure is dropped while the driver sleeps. What it
/// kept is taken back by the thread that dropped it, or by the one that uses the endpoint, so the
/// driver need not be woken.
struct Returned(Weak<Inner<AnyThread>>);

impl Wake for Returned {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(inner) = self.0.upgrade() {
            Endpoint::<AnyThread> { inner }.settle(Dropped::Return);
        }
    }
}

impl<S: Threading> Endpoint<S> {
    fn from_parts(engine: Engine, clock: S::Clock) -> Endpoint<S> {
        let state = S::Lock::new(State::new(engine));
        Endpoint { inner: S::pointer(Inner { state, clock, call_buffers: CallBuffers::default() }) }
    }

    /// Runs `f` on the endpoint itself. `f` must use neither this handle nor a clone of it. It may
    /// drop operations, calls and messages: what remains to be done for them is done after it.
    /// Other threads that use the endpoint wait meanwhile.
    ///
    /// # Panics
    /// If `f` uses a handle to this endpoint.
    pub fn with<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        self.with_state(|state| f(&mut state.engine))
    }

    fn with_state<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let (result, state) = self.run(f);
        self.release(state, true);
        result
    }

    /// Takes the lock and runs `f`. A panic of `f` releases the endpoint as its return would: notes
    /// are settled, and those who can go on are woken.
    #[inline]
    fn run<R>(&self, f: impl FnOnce(&mut State) -> R) -> (R, Held<'_, S>) {
        let mut used = InUse::new(self.acquire(), |held| self.release(held, true));
        let result = f(used.state());
        (result, used.end())
    }

    #[inline]
    fn acquire(&self) -> Held<'_, S> {
        held::Held::new(self.inner.state.acquire())
    }

    /// Says that the program has copied `bytes` bytes in `pieces` contiguous pieces. A simulated
    /// processor takes time for it. A real one has done so.
    pub fn copied(&self, bytes: u64, pieces: u64) {
        self.look(|engine| engine.transport_mut().charge(HostWork::Copy { bytes, pieces }));
    }

    /// Runs `f`, which gives the endpoint nothing to do.
    #[inline]
    pub(crate) fn look<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        self.look_at(|state| f(&mut state.engine))
    }

    #[inline]
    fn look_at<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let (result, state) = self.run(f);
        self.release_unused(state);
        result
    }

    /// Releases the endpoint after a use that gave it nothing to do. Wakers that are kept wait for
    /// the next use or poll: one of them may be that of the future which is being polled.
    #[inline]
    fn release_unused<'a>(&'a self, mut state: Held<'a, S>) {
        if state.note_room() {
            self.release_and_wake(state, false);
        } else if let Err(state) = state.release() {
            self.release_and_wake(state, false);
        }
    }

    /// Does what remains to be done for a dropped value: now, or when the endpoint is free.
    pub(crate) fn settle(&self, dropped: Dropped) {
        if let Some(state) = self.inner.state.leave(dropped) {
            self.release(held::Held::new(state), true);
        }
    }

    /// Releases the endpoint, and wakes whoever can go on. `used` says that it may have something
    /// to do.
    #[inline]
    fn release<'a>(&'a self, mut state: Held<'a, S>, used: bool) {
        if !state.note_use(used) {
            match state.release() {
                Ok(()) => return,
                Err(held) => state = held,
            }
        }
        self.release_and_wake(state, used);
    }

    /// Releases the endpoint when there are notes to settle, or somebody to wake.
    #[cold]
    fn release_and_wake<'a>(&'a self, mut state: Held<'a, S>, mut used: bool) {
        let mut wakes = Wakes::new();
        let clock = OnceCell::new();
        let now = || *clock.get_or_init(|| self.now());
        loop {
            // The endpoint may drop memory, and with it a value of the program.
            while let Some(dropped) = state.take_note() {
                state.settle(dropped, now());
                used = true;
            }
            if std::mem::take(&mut used) {
                state.posted = true;
                state.progress_for_driver(&mut wakes.driver, now);
                state.note_arrivals();
            }
            state.note_room();
            let more = wakes.take(&mut state.engine);
            match state.release() {
                Err(held) => state = held,
                Ok(()) => {
                    wakes.wake();
                    if !more {
                        break;
                    }
                    state = self.acquire();
                }
            }
        }
        wakes.driver.take().into_iter().for_each(Waker::wake);
    }

    // ---- getters --------------------------------------------------------------------------------

    /// Returns the time of the clock.
    pub fn now(&self) -> Time {
        self.inner.clock.now()
    }

    /// Returns options whose deadline is `timeout` from now.
    pub fn within(&self, timeout: Duration) -> Options {
        Options::within(self.now(), timeout)
    }

    /// See [`Engine::counters`].
    pub fn counters(&self) -> Counters {
        self.look(|engine| engine.counters())
    }

    /// See [`Engine::resource_usage`].
    pub fn resource_usage(&self) -> ResourceUsage {
        self.look(|engine| engine.resource_usage())
    }

    /// Returns a function that returns [`Engine::unfinished`]. It does not keep the endpoint
    /// alive, and returns `None` when the endpoint is gone. It is for finding leaks.
    pub fn observer(&self) -> impl Fn() -> Option<ResourceUsage> + use<S> {
        let inner = S::downgrade(&self.inner);
        move || {
            let endpoint: Endpoint<S> = Endpoint { inner: S::upgrade(&inner)? };
            Some(endpoint.look(|engine| engine.unfinished()))
        }
    }

    /// See [`Engine::is_sending`].
    pub fn is_sending(&self) -> bool {
        self.look(|engine| engine.is_sending())
    }

    /// See [`Engine::awaited_peers`].
    pub fn awaited_peers(&self) -> BTreeMap<PeerId, u64> {
        self.look(|engine| engine.awaited_peers())
    }

    // ---- connections and memory -----------------------------------------------------------------

    /// See [`Engine::listen`].
    ///
    /// # Errors
    /// As there.
    pub fn listen(&self, addr: &Addr) -> Result<Addr, Error> {
        self.with(|engine| engine.listen(addr))
    }

    /// Connects to `addr`. Dropping the future abandons the attempt.
    ///
    /// # Errors
    /// `Refused`, `Incompatible`, `TimedOut`, or another reason that the peer was not reached.
    /// `Invalid` for an address of another scheme.
    pub async fn connect(&self, addr: &Addr, options: Options) -> Result<Peer<S>, Error> {
        let options =
            Options { deadline: options.deadline.or_else(|| Some(self.now() + self.connect_timeout())), ..options };
        let (peer, op) = self.with_room(|engine| engine.connect(addr, options))?;
        self.operation(Ok(Posted::Pending(op))).await.map(|_| self.peer(peer))
    }

    fn connect_timeout(&self) -> Duration {
        self.look(|engine| engine.config().timeouts.connect)
    }

    // ---- operations -----------------------------------------------------------------------------

    /// Waits for `duration`.
    pub async fn sleep(&self, duration: Duration) {
        self.sleep_until(self.now() + duration).await;
    }

    /// Waits until `at`.
    pub async fn sleep_until(&self, at: Time) {
        let op = self.with(|engine| engine.post_timer(at, 0));
        // A timer ends only at its time, because no other code has its id.
        let _ = self.operation(Ok(Posted::Pending(op))).await;
    }

    /// Returns the next unexpected message. Several tasks may wait; each message goes to one of
    /// them.
    pub async fn next_unexpected(&self) -> Message<S> {
        poll_fn(|cx| self.poll_unexpected(cx)).await
    }

    /// Returns the next event of a peer that came or went. Several tasks may wait; each event goes
    /// to one of them.
    pub async fn next_event(&self) -> PeerEvent<Peer<S>> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    pub(crate) fn poll_unexpected(&self, cx: &Context<'_>) -> Poll<Message<S>> {
        let polled = self.look_at(|state| match state.engine.poll_unexpected() {
            Some(message) => Poll::Ready(message),
            None => {
                state.message_waiters.add(cx.waker(), &mut state.engine);
                Poll::Pending
            }
        });
        polled.map(|message| Message::new(self, message))
    }

    pub(crate) fn poll_event(&self, cx: &Context<'_>) -> Poll<PeerEvent<Peer<S>>> {
        let polled = self.look_at(|state| match state.engine.poll_event() {
            Some(event) => Poll::Ready(event),
            None => {
                state.event_waiters.add(cx.waker(), &mut state.engine);
                Poll::Pending
            }
        });
        polled.map(|event| event.map(|peer| self.peer(peer)))
    }

    // ---- for calls ------------------------------------------------------------------------------

    /// Returns the buffers that calls keep for later ones.
    pub(crate) fn call_buffers(&self) -> &CallBuffers<S> {
        &self.inner.call_buffers
    }
}
