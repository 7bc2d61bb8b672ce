//! What is behind the lock of an endpoint's handles.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use crate::engine::{DroppedCall, Engine, Exposure};
use crate::error::{Error, ErrorKind};
use crate::mem::Retirement;
use crate::mutated;
use crate::op::{OpId, PeerId, Tag};
use crate::time::Time;
use crate::transport::Armed;

/// Number of wakers that are taken from the endpoint at a time. They are on the stack.
const BATCH: usize = 8;
/// Largest number of wakers in a list of waiting tasks. Beyond it, all are woken.
const KEPT_WAITERS: usize = 1024;

/// An endpoint, and who waits for it.
pub(super) struct State {
    pub(super) engine: Engine,
    /// The driver, while it sleeps.
    pub(super) driver: Option<Sleeper>,
    /// Settles what the drop of a message or an exposure leaves to do. It is woken in place of the
    /// driver, where callers make progress.
    pub(super) returns: Option<Waker>,
    /// Set if a task has used the endpoint since the last poll.
    pub(super) posted: bool,
    /// The tasks that wait for unexpected messages.
    pub(super) message_waiters: Waiters,
    /// The tasks that wait for peer events.
    pub(super) event_waiters: Waiters,
    /// The tasks that wait for room for operations.
    pub(super) room_waiters: Waiters,
    /// The tasks that wait until the endpoint is closed.
    pub(super) end_waiters: Waiters,
    /// Largest number of operations.
    pub(super) max_operations: usize,
    /// The future that polls while it waits.
    pub(super) poller: Poller,
    /// Number of polls so far.
    pub(super) polls: u64,
}

/// The future of an operation that polls the endpoint while it waits. There is one at a time, as
/// there is one driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Poller {
    /// None, because drivers sleep.
    Off,
    /// None yet.
    Free,
    /// The future of this operation.
    Op(OpId),
}

/// A driver that sleeps.
pub(super) struct Sleeper {
    waker: Waker,
    /// When it wakes by itself.
    until: Option<Time>,
    /// A caller may send for it, where callers make progress: none has, since it sleeps.
    sends: bool,
}

/// What remains to be done for a value that was dropped.
#[derive(Debug)]
pub(crate) enum Dropped {
    /// Abandon an operation.
    Operation(OpId),
    /// End the use of a call's id.
    Call(PeerId, Tag),
    /// End a call whose operations are in flight.
    EarlyCall(Box<DroppedCall>),
    /// Leave exposed memory to its peer, which is not done with it.
    Exposed(Box<(Exposure, Vec<Retirement>)>),
    /// Tell the caller that its call gets no reply.
    Unanswered(PeerId, Tag),
    /// Take back what a message or an exposure kept.
    Return,
    /// Close the endpoint: its last handle is gone.
    Handle,
}

/// Tasks that wait for the same thing.
#[derive(Default)]
pub(super) struct Waiters(Vec<Waker>);

/// Wakers that are called after the lock is released.
pub(super) struct Wakes {
    wakers: [Option<Waker>; BATCH],
    len: usize,
    /// It is woken after all others.
    pub(super) driver: Option<Waker>,
}

impl State {
    pub(super) fn new(engine: Engine) -> State {
        State {
            engine,
            driver: None,
            returns: None,
            posted: true,
            message_waiters: Waiters::default(),
            event_waiters: Waiters::default(),
            room_waiters: Waiters::default(),
            end_waiters: Waiters::default(),
            max_operations: usize::MAX,
            poller: Poller::Off,
            polls: 0,
        }
    }

    /// Polls the endpoint. Those who wait for a message or an event of a peer can go on if there is
    /// one.
    pub(super) fn poll(&mut self, now: Time) -> bool {
        self.posted = false;
        self.polls += 1;
        let worked = self.engine.poll(now);
        self.note_arrivals();
        worked
    }

    /// Sends what was posted, without a look for arrivals.
    pub(super) fn send_posted(&mut self, now: Time) {
        self.posted = false;
        self.engine.send_posted(now);
        self.note_arrivals();
    }

    /// Lets those go on who wait for what is there now.
    pub(super) fn note_arrivals(&mut self) {
        if self.engine.has_unexpected() {
            self.engine.keep_wakers(&mut self.message_waiters.0);
        }
        if self.engine.has_events() {
            self.engine.keep_wakers(&mut self.event_waiters.0);
        }
        if self.engine.has_closed() {
            self.engine.keep_wakers(&mut self.end_waiters.0);
        }
    }

    /// Notes the end of a use. Returns true if there is somebody to wake, or a driver sleeps that
    /// has to see what was posted. While a driver polls, that is seldom so.
    #[inline]
    pub(super) fn note_use(&mut self, used: bool) -> bool {
        self.posted |= used;
        self.note_room() || self.engine.has_wakers() || used && self.driver.is_some()
    }

    /// Begins to close the endpoint. Those who wait for what will not come can go on.
    pub(super) fn close(&mut self, now: Time) {
        self.engine.close(now);
        for waiters in [&mut self.message_waiters, &mut self.event_waiters, &mut self.room_waiters] {
            self.engine.keep_wakers(&mut waiters.0);
        }
        if self.engine.has_closed() {
            self.engine.keep_wakers(&mut self.end_waiters.0);
        }
    }

    /// Returns true if there is room for one more operation.
    pub(super) fn has_room(&self) -> bool {
        self.engine.operations() < self.max_operations
    }

    /// Checks that there is room for one more operation.
    ///
    /// # Errors
    /// `Exhausted`.
    pub(super) fn check_room(&self) -> Result<(), Error> {
        if self.has_room() {
            return Ok(());
        }
        let text = format!("{} operations are in flight; wait for one to end, or for room", self.max_operations);
        Err(Error::new(ErrorKind::Exhausted, text))
    }

    /// Returns true if those who wait for room can go on. They are woken by the release.
    #[inline]
    pub(super) fn note_room(&mut self) -> bool {
        if self.room_waiters.0.is_empty() || !self.has_room() {
            return false;
        }
        self.engine.keep_wakers(&mut self.room_waiters.0);
        true
    }

    /// Returns whether the future of `op` is the one that polls. It becomes that if there is none.
    #[inline]
    pub(super) fn take_poller(&mut self, op: OpId) -> bool {
        if self.poller == Poller::Free {
            self.poller = Poller::Op(op);
        }
        self.poller == Poller::Op(op)
    }

    /// The future of `op` does not wait any more. Returns whether it was the one that polls.
    #[inline]
    pub(super) fn release_poller(&mut self, op: OpId) -> bool {
        let was = self.poller == Poller::Op(op);
        if was {
            self.poller = Poller::Free;
        }
        was
    }

    /// The future of `op` was dropped. If it was the one that polls, another one becomes that.
    fn end_wait(&mut self, op: OpId) {
        if self.release_poller(op) {
            self.engine.wake_a_waiter();
        }
    }

    /// Does what remains to be done for a dropped value.
    pub(super) fn settle(&mut self, dropped: Dropped, now: Time) {
        match dropped {
            Dropped::Operation(op) => {
                self.end_wait(op);
                self.engine.abandon(op);
            }
            Dropped::Call(peer, id) => self.engine.close_call(peer, id),
            Dropped::EarlyCall(call) => {
                [call.send, call.recv].into_iter().flatten().for_each(|op| self.end_wait(op));
                self.engine.drop_call(*call, now);
            }
            Dropped::Exposed(exposed) => self.engine.leave_exposure(exposed.0, exposed.1),
            Dropped::Unanswered(peer, id) => crate::engine::leave_unanswered(&mut self.engine, peer, id, now),
            Dropped::Return => {} // every use does this for a driver that sleeps
            Dropped::Handle => self.close(now),
        }
    }

    /// Prepares the sleep of a driver. Also returns the time until which it has to sleep at most:
    /// callers wake it only for an earlier one. A caller sends for it if `sends`.
    pub(super) fn arm(&mut self, waker: &Waker, sends: bool) -> (Armed, Option<Time>) {
        let returns = self.returns.as_ref().filter(|_| !mutated("wait/returns-wake-the-driver")).unwrap_or(waker);
        if self.posted || self.engine.arm_with(waker, returns) == Armed::Busy {
            return (Armed::Busy, None);
        }
        let until = self.engine.next_deadline();
        self.engine.record_sleep();
        self.driver = Some(Sleeper { waker: waker.clone(), until, sends });
        (Armed::Waiting, until)
    }

    /// Makes the progress that a driver that sleeps would have to make. The driver has to be woken
    /// nevertheless if there is more to do, or if it would wake too late. On one thread, that is
    /// all that there is to do: the driver is a task of the same thread, and sends what all tasks
    /// have posted together.
    ///
    /// Other callers send once in each sleep. Who exchanges messages with a peer wakes nobody this
    /// way: the driver wakes for the answer, and sleeps again. Who posts several messages, or does
    /// so in several tasks, wakes the driver with the second one. While the driver is awake,
    /// posting only adds to what its next poll sends together.
    ///
    /// `woken` takes the driver that has to be woken. It is there meanwhile, so that a panic wakes
    /// it.
    pub(super) fn progress_for_driver(&mut self, woken: &mut Option<Waker>, now: impl Fn() -> Time) {
        let Some(Sleeper { waker, until, mut sends }) = self.driver.take() else { return };
        let waker = woken.insert(waker);
        let returns = self.returns.as_ref().unwrap_or(waker);
        let armed = self.engine.relieve(now, &mut sends, waker, returns);
        let next = self.engine.next_deadline();
        let in_time = next.is_none_or(|next| until.is_some_and(|until| until <= next));
        if armed == Armed::Waiting && in_time {
            self.posted = false; // it was sent
            self.driver = woken.take().map(|waker| Sleeper { waker, until, sends });
        }
    }

    /// Returns the driver, if it sleeps.
    pub(super) fn take_driver(&mut self) -> Option<Waker> {
        self.driver.take().map(|sleeper| sleeper.waker)
    }
}

impl Waiters {
    /// Adds a task.
    pub(super) fn add(&mut self, waker: &Waker, engine: &mut Engine) {
        if self.0.len() >= KEPT_WAITERS {
            // Most belong to futures that were dropped since. The others register again.
            engine.keep_wakers(&mut self.0);
        }
        if !self.0.iter().any(|known| known.will_wake(waker)) {
            self.0.push(waker.clone());
        }
    }
}

impl Wakes {
    pub(super) fn new() -> Wakes {
        Wakes { wakers: [const { None }; BATCH], len: 0, driver: None }
    }

    /// Takes wakers of the endpoint, as many as fit. Returns true if there are more.
    pub(super) fn take(&mut self, engine: &mut Engine) -> bool {
        while self.len < BATCH
            && let Some(waker) = engine.take_waker()
        {
            self.wakers[self.len] = Some(waker);
            self.len += 1;
        }
        engine.has_wakers()
    }

    /// Wakes them, in the order in which they were kept.
    pub(super) fn wake(&mut self) {
        for waker in &mut self.wakers[..self.len] {
            waker.take().into_iter().for_each(Waker::wake);
        }
        self.len = 0;
    }
}

impl Drop for Wakes {
    /// If a waker has panicked, the others are woken nevertheless.
    fn drop(&mut self) {
        let left = self.wakers[..self.len].iter_mut().chain([&mut self.driver]);
        for waker in left.filter_map(Option::take) {
            // The first panic goes on.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}
