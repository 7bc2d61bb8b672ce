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
//! ([`CombiningLock`](crate::combining_lock::CombiningLock)).
//!
//! **Protocol** of a use:
//! 1. Take the lock. Post, collect or poll.
//! 2. Settle the notes of values that were dropped meanwhile.
//! 3. If the driver sleeps, and something is to be done for what was posted: do it, and arm the
//!    adapter again for the driver (only where callers make progress). If that is not enough, the
//!    driver will be woken.
//! 4. Release the lock. Then wake the futures that can go on, and the driver. A waker of a future
//!    may run any code, so none is called under the lock.

mod call_buffers;
mod held;
mod operation;
mod peer;
mod state;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use call_buffers::CallBuffers;
pub(crate) use call_buffers::PackingBuffer;
use held::InUse;
pub use operation::Operation;
use operation::Progress;
pub use peer::{Message, Peer, SharedPeer};
pub(crate) use state::Dropped;
use state::{Poller, State, Wakes};

use crate::addr::Addr;
use crate::engine::{Counters, Engine, PeerEvent, ResourceUsage};
use crate::error::Error;
use crate::op::{Completion, OpId, Options, PeerId, Posted};
use crate::threading::{AnyThread, Lock, OneThread, Shared, Threading};
use crate::time::{Clock, Time};
use crate::transport::Armed;

/// How long a future polls that is alone. A task should not keep its thread for more than about
/// 100 µs.
const TURN: Duration = Duration::from_micros(50);
/// Number of polls of a future that is not alone.
const TURN_OF_MANY: u32 = 8;
/// Number of operations that one task may have under way: the two of a call, or of an exchange.
const ALONE: usize = 2;

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
        Endpoint::from_parts(engine, clock)
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
        loop {
            // The endpoint may drop memory, and with it a value of the program.
            while let Some(dropped) = state.take_note() {
                state.settle(dropped, self.now());
                used = true;
            }
            if std::mem::take(&mut used) {
                state.posted = true;
                if S::CALLERS_PROGRESS {
                    state.progress_for_driver(&mut wakes.driver, || self.now());
                    state.note_arrivals();
                } else {
                    wakes.driver = wakes.driver.take().or(state.take_driver());
                }
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
    fn poll_op(&self, op: OpId, cx: &Context<'_>) -> Option<Option<Completion>> {
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

    fn outcome(&self, completion: Completion) -> Result<Completion, Error> {
        match completion.status {
            Ok(()) => Ok(completion),
            Err(kind) => {
                let error = self.look(|engine| engine.explain(&completion));
                Err(error.unwrap_or_else(|| Error::new(kind, "")))
            }
        }
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
        self.inner.state.give_way();
        let (worked, state) = self.run(|state| {
            if S::CALLERS_PROGRESS {
                // It does not sleep. So callers leave everything to it.
                state.take_driver();
            }
            state.engine.record_wake();
            state.poll(now)
        });
        self.release(state, false);
        worked
    }

    /// Returns true if at most one task has operations under way.
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
        self.look_at(|state| state.arm(waker))
    }

    /// Runs `f` on the transport's event fd, if it has one.
    pub fn with_event_fd<R>(&self, f: impl FnOnce(Option<BorrowedFd<'_>>) -> R) -> R {
        self.look(|endpoint| f(endpoint.event_fd()))
    }

    /// Returns a duplicate of the transport's event fd, if it has one.
    pub(crate) fn clone_event_fd(&self) -> Result<Option<OwnedFd>, Error> {
        Ok(self.with_event_fd(|fd| fd.map(|fd| fd.try_clone_to_owned()).transpose())?)
    }
}

/// A shared endpoint, what is made of it, and all futures may go to any thread.
const _: fn() = || {
    use crate::comm::{Body, Call, Incoming};
    use crate::mem::MemList;

    fn is_shared<V: Send + Sync>() {}
    fn can_be_sent<V: Send>(_: V) {}
    can_be_sent::<Option<Engine>>(None);
    is_shared::<SharedEndpoint>();
    is_shared::<SharedPeer>();
    is_shared::<Operation<AnyThread>>();
    can_be_sent::<Option<(Message<AnyThread>, Call<AnyThread>)>>(None);
    is_shared::<Incoming<AnyThread>>();
    let _ = |endpoint: SharedEndpoint, addr: Addr, peer: SharedPeer, list: MemList, options: Options| {
        can_be_sent(endpoint.connect(&addr, options));
        can_be_sent(endpoint.next_unexpected());
        can_be_sent(endpoint.next_event());
        can_be_sent(endpoint.sleep(Duration::ZERO));
        can_be_sent(endpoint.room());
        can_be_sent(peer.disconnect(options));
        can_be_sent(peer.call(b"", Body::In(list.clone()), options).map(Call::reply));
    };
    let _ = |call: Incoming<AnyThread>, list: MemList, options: Options| {
        can_be_sent(call.fetch(0, list.clone(), options));
        can_be_sent(call.store(0, list.clone(), options));
        can_be_sent(call.reply(b"", Some(list), options));
    };
};
