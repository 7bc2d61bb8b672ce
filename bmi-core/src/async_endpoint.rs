//! The `async` interface of an endpoint. A future may be dropped at any time. Its operation is then
//! abandoned, and the endpoint keeps the memory until no adapter can touch it.
//!
//! An operation is posted when the method is *called*, not when the future is first polled. So a
//! receive can be posted before the request that provokes its message:
//!
//! ```text
//! let reply = endpoint.recv(server, tag, &buffer, options);     // posted here
//! endpoint.send_unexpected(server, tag, request, options).await?;
//! let len = reply.await?.len;
//! ```
//!
//! A clone is another handle to the same endpoint. The interface is single-threaded. It runs on any
//! executor that takes `!Send` futures. A driver must drive the endpoint (see [`crate::driver`]).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::addr::Addr;
use crate::bulk::{BulkDescriptor, Exposure};
use crate::endpoint::{CallPart, Counters, Endpoint, Grant, PeerEvent, PeerLimits, ResourceUsage, Unexpected};
use crate::error::{Error, ErrorKind};
use crate::mem::{Access, MemList};
use crate::op::{Completion, OpId, Options, PeerId, Posted, Tag};
use crate::time::{Clock, Time};
use crate::transport::{Armed, Transport};

/// A handle to an endpoint, for `async` code.
pub struct AsyncEndpoint<T: Transport> {
    shared: Rc<Shared<T>>,
}

struct Shared<T: Transport> {
    endpoint: RefCell<Endpoint<T>>,
    clock: Box<dyn Clock>,
    /// The tasks that wait for unexpected messages.
    message_waiters: RefCell<Vec<Waker>>,
    /// The tasks that wait for peer events.
    event_waiters: RefCell<Vec<Waker>>,
    /// Wakes the driver, while it sleeps.
    driver: RefCell<Option<Waker>>,
    /// Set if a task has used the endpoint since the last poll.
    posted: Cell<bool>,
    /// What was dropped while the endpoint was in use, and must be done as soon as it is free.
    dropped: RefCell<Vec<Dropped>>,
    scratch: RefCell<Vec<Waker>>,
}

/// What remains to be done for a value that was dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dropped {
    /// Abandon an operation.
    Operation(OpId),
    /// End the use of a call's id.
    Call(PeerId, Tag),
    /// Tell the caller that its call gets no reply.
    Unanswered(PeerId, Tag),
}

impl<T: Transport> Clone for AsyncEndpoint<T> {
    fn clone(&self) -> Self {
        AsyncEndpoint { shared: Rc::clone(&self.shared) }
    }
}

/// An operation under way. It ends in its completion, or in an error that names operation and peer.
#[must_use = "dropping it abandons the operation"]
pub struct Operation<T: Transport> {
    endpoint: AsyncEndpoint<T>,
    state: Progress,
}

enum Progress {
    Refused(Error),
    Done(Completion),
    Pending(OpId),
    Taken,
}

impl<T: Transport> Future for Operation<T> {
    type Output = Result<Completion, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match std::mem::replace(&mut self.state, Progress::Taken) {
            Progress::Refused(error) => Poll::Ready(Err(error)),
            Progress::Done(completion) => Poll::Ready(self.endpoint.outcome(completion)),
            Progress::Pending(op) => {
                let polled = self.endpoint.shared.endpoint.borrow_mut().poll_op_or_wake(op, cx.waker());
                match polled {
                    None => {
                        self.state = Progress::Pending(op);
                        Poll::Pending
                    }
                    Some(Some(completion)) => Poll::Ready(self.endpoint.outcome(completion)),
                    Some(None) => {
                        Poll::Ready(Err(Error::new(ErrorKind::Invalid, "somebody else collected the completion")))
                    }
                }
            }
            Progress::Taken => panic!("an operation was polled after it had ended"),
        }
    }
}

impl<T: Transport> Operation<T> {
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

    /// Asks the operation to end early. It must still be awaited.
    pub fn cancel(&self) {
        if let Progress::Pending(op) = self.state {
            self.endpoint.with(|endpoint| endpoint.cancel(op));
        }
    }
}

impl<T: Transport> Drop for Operation<T> {
    fn drop(&mut self) {
        if let Progress::Pending(op) = self.state {
            self.endpoint.settle(Dropped::Operation(op));
        }
    }
}

impl<T: Transport> AsyncEndpoint<T> {
    /// Creates the `async` interface of `endpoint`. `clock` gives the time for operations and
    /// timers.
    pub fn new(endpoint: Endpoint<T>, clock: impl Clock + 'static) -> AsyncEndpoint<T> {
        let shared = Shared {
            endpoint: RefCell::new(endpoint),
            clock: Box::new(clock),
            message_waiters: RefCell::default(),
            event_waiters: RefCell::default(),
            driver: RefCell::default(),
            posted: Cell::new(true),
            dropped: RefCell::default(),
            scratch: RefCell::default(),
        };
        AsyncEndpoint { shared: Rc::new(shared) }
    }

    /// Runs `f` on the endpoint itself. `f` must use neither this handle nor a clone of it. It may
    /// drop operations, calls and messages: what remains to be done for them is done after it.
    ///
    /// # Panics
    /// If `f` uses a handle to this endpoint.
    pub fn with<R>(&self, f: impl FnOnce(&mut Endpoint<T>) -> R) -> R {
        let result = f(&mut self.shared.endpoint.borrow_mut());
        self.settle_dropped();
        self.wake_ended();
        self.shared.posted.set(true);
        if let Some(driver) = self.shared.driver.take() {
            driver.wake();
        }
        result
    }

    /// Does what remains to be done for a dropped value: now, or when the endpoint is free.
    pub(crate) fn settle(&self, dropped: Dropped) {
        let free = self.shared.endpoint.try_borrow_mut().is_ok();
        self.shared.dropped.borrow_mut().push(dropped);
        if free {
            self.with(|_| ());
        }
    }

    /// Does what remains to be done for the values that were dropped while the endpoint was in use.
    #[inline]
    fn settle_dropped(&self) {
        if !self.shared.dropped.borrow().is_empty() {
            self.settle_each();
        }
    }

    fn settle_each(&self) {
        let now = self.now();
        let mut endpoint = self.shared.endpoint.borrow_mut();
        // The endpoint may drop memory, and with it a value of the program.
        while let Some(dropped) = self.next_dropped() {
            match dropped {
                Dropped::Operation(op) => endpoint.abandon(op),
                Dropped::Call(peer, id) => endpoint.close_call(peer, id),
                Dropped::Unanswered(peer, id) => crate::comm::leave_unanswered(&mut endpoint, peer, id, now),
            }
        }
    }

    fn next_dropped(&self) -> Option<Dropped> {
        self.shared.dropped.borrow_mut().pop()
    }

    // ---- getters --------------------------------------------------------------------------------

    /// Returns the time of the clock.
    pub fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// Returns options whose deadline is `timeout` from now.
    pub fn within(&self, timeout: Duration) -> Options {
        Options::within(self.now(), timeout)
    }

    /// See [`Endpoint::peer_addr`].
    pub fn peer_addr(&self, peer: PeerId) -> Option<Addr> {
        self.shared.endpoint.borrow().peer_addr(peer)
    }

    /// See [`Endpoint::limits`].
    pub fn limits(&self, peer: PeerId) -> Option<PeerLimits> {
        self.shared.endpoint.borrow().limits(peer)
    }

    /// See [`Endpoint::counters`].
    pub fn counters(&self) -> Counters {
        self.shared.endpoint.borrow().counters()
    }

    /// See [`Endpoint::resource_usage`].
    pub fn resource_usage(&self) -> ResourceUsage {
        self.shared.endpoint.borrow().resource_usage()
    }

    /// Returns a function that returns [`Endpoint::unfinished`]. It does not keep the endpoint
    /// alive, and returns `None` when the endpoint is gone. It is for finding leaks.
    pub fn observer(&self) -> impl Fn() -> Option<ResourceUsage> + use<T> {
        let shared = Rc::downgrade(&self.shared);
        move || shared.upgrade().map(|shared| shared.endpoint.borrow().unfinished())
    }

    /// See [`Endpoint::is_sending`].
    pub fn is_sending(&self) -> bool {
        self.shared.endpoint.borrow().is_sending()
    }

    /// See [`Endpoint::awaited_peers`].
    pub fn awaited_peers(&self) -> BTreeMap<PeerId, u64> {
        self.shared.endpoint.borrow().awaited_peers()
    }

    // ---- connections and memory -----------------------------------------------------------------

    /// See [`Endpoint::listen`].
    ///
    /// # Errors
    /// As there.
    pub fn listen(&self, addr: &Addr) -> Result<Addr, Error> {
        self.with(|endpoint| endpoint.listen(addr))
    }

    /// Connects to `addr`. Dropping the future abandons the attempt.
    ///
    /// # Errors
    /// `Refused`, `Incompatible`, `TimedOut`, or another reason that the peer was not reached.
    /// `Invalid` for an address of another scheme.
    pub async fn connect(&self, addr: &Addr, options: Options) -> Result<PeerId, Error> {
        let options =
            Options { deadline: options.deadline.or_else(|| Some(self.now() + self.connect_timeout())), ..options };
        let (peer, op) = self.with(|endpoint| endpoint.connect(addr, options))?;
        self.operation(Ok(Posted::Pending(op))).await.map(|_| peer)
    }

    fn connect_timeout(&self) -> Duration {
        self.shared.endpoint.borrow().config().timeouts.connect
    }

    /// Ends a connection after everything posted before has been sent; see
    /// [`Endpoint::disconnect`].
    ///
    /// # Errors
    /// `PeerLost` if the connection is gone already.
    pub async fn disconnect(&self, peer: PeerId, options: Options) -> Result<(), Error> {
        let grace = self.shared.endpoint.borrow().config().timeouts.fence_grace;
        let options = Options { deadline: options.deadline.or_else(|| Some(self.now() + grace)), ..options };
        let op = self.with(|endpoint| endpoint.disconnect(peer, options))?;
        self.operation(Ok(Posted::Pending(op))).await.map(|_| ())
    }

    /// See [`Endpoint::cut`].
    pub fn cut(&self, peer: PeerId, reason: Error) {
        self.with(|endpoint| endpoint.cut(peer, reason));
    }

    /// See [`Endpoint::expose`].
    ///
    /// # Errors
    /// As there.
    pub fn expose(&self, peer: PeerId, list: impl Into<MemList>, access: Access) -> Result<Exposure, Error> {
        self.with(|endpoint| endpoint.expose(peer, list, access))
    }

    // ---- operations -----------------------------------------------------------------------------

    /// Sends an expected message; see [`Endpoint::post_send`].
    pub fn send(&self, peer: PeerId, tag: Tag, list: impl Into<MemList>, options: Options) -> Operation<T> {
        let posted = self.with(|endpoint| endpoint.post_send(peer, tag, list, options));
        self.operation(posted)
    }

    /// Sends an unexpected message, which needs no receive; see [`Endpoint::post_send_unexpected`].
    pub fn send_unexpected(&self, peer: PeerId, tag: Tag, list: impl Into<MemList>, options: Options) -> Operation<T> {
        let posted = self.with(|endpoint| endpoint.post_send_unexpected(peer, tag, list, options));
        self.operation(posted)
    }

    /// Receives an expected message; see [`Endpoint::post_recv`].
    pub fn recv(&self, peer: PeerId, tag: Tag, list: impl Into<MemList>, options: Options) -> Operation<T> {
        let posted = self.with(|endpoint| endpoint.post_recv(peer, tag, list, options));
        self.operation(posted)
    }

    /// Sends a request with the id of its call.
    pub(crate) fn send_request(&self, peer: PeerId, id: Tag, list: MemList, options: Options) -> Operation<T> {
        let posted = self.with(|endpoint| endpoint.post_in_call(CallPart::Request, peer, id, list, options));
        self.operation(posted)
    }

    /// Sends a message of a call.
    pub(crate) fn send_in_call(
        &self,
        peer: PeerId,
        id: Tag,
        list: impl Into<MemList>,
        options: Options,
    ) -> Operation<T> {
        let posted = self.with(|endpoint| endpoint.post_in_call(CallPart::Send, peer, id, list.into(), options));
        self.operation(posted)
    }

    /// Receives a message of a call.
    pub(crate) fn recv_in_call(
        &self,
        peer: PeerId,
        id: Tag,
        list: impl Into<MemList>,
        options: Options,
    ) -> Operation<T> {
        let posted = self.with(|endpoint| endpoint.post_in_call(CallPart::Receive, peer, id, list.into(), options));
        self.operation(posted)
    }

    /// Drops the next expected message with this tag; see [`Endpoint::post_discard`].
    pub fn discard(&self, peer: PeerId, tag: Tag, options: Options) -> Operation<T> {
        let posted = self.with(|endpoint| endpoint.post_discard(peer, tag, options));
        self.operation(posted)
    }

    /// Reads `local.len()` bytes at `at` of the memory that `remote` describes; see
    /// [`Endpoint::post_pull`].
    pub fn pull(
        &self,
        peer: PeerId,
        remote: &BulkDescriptor,
        at: u64,
        local: impl Into<MemList>,
        options: Options,
    ) -> Operation<T> {
        let posted = self.with(|endpoint| endpoint.post_pull(peer, remote, at, local, options));
        self.operation(posted)
    }

    /// Writes `local` to `at` of the memory that `remote` describes; see [`Endpoint::post_push`].
    pub fn push(
        &self,
        peer: PeerId,
        remote: &BulkDescriptor,
        at: u64,
        local: impl Into<MemList>,
        options: Options,
    ) -> Operation<T> {
        let posted = self.with(|endpoint| endpoint.post_push(peer, remote, at, local, options));
        self.operation(posted)
    }

    /// Lets the peer write `list` once; see [`Endpoint::post_grant`].
    ///
    /// # Errors
    /// As there.
    pub fn grant(
        &self,
        peer: PeerId,
        list: impl Into<MemList>,
        options: Options,
    ) -> Result<(Grant, Operation<T>), Error> {
        let (grant, op) = self.with(|endpoint| endpoint.post_grant(peer, list, options))?;
        Ok((grant, self.operation(Ok(Posted::Pending(op)))))
    }

    /// Writes `local` into the memory that the peer has granted, and notifies the peer; see
    /// [`Endpoint::post_push_granted`].
    pub fn push_granted(
        &self,
        peer: PeerId,
        grant: &Grant,
        local: impl Into<MemList>,
        options: Options,
    ) -> Operation<T> {
        let posted = self.with(|endpoint| endpoint.post_push_granted(peer, grant, local, options));
        self.operation(posted)
    }

    /// Waits for `duration`.
    pub async fn sleep(&self, duration: Duration) {
        self.sleep_until(self.now() + duration).await;
    }

    /// Waits until `at`.
    pub async fn sleep_until(&self, at: Time) {
        let op = self.with(|endpoint| endpoint.post_timer(at, 0));
        // A timer ends only at its time, because no other code has its id.
        let _ = self.operation(Ok(Posted::Pending(op))).await;
    }

    /// Returns the next unexpected message. Several tasks may wait; each message goes to one of
    /// them.
    pub async fn next_unexpected(&self) -> Unexpected {
        poll_fn(|cx| match self.shared.endpoint.borrow_mut().poll_unexpected() {
            Some(message) => Poll::Ready(message),
            None => wait_in(&self.shared.message_waiters, cx),
        })
        .await
    }

    /// Returns the next event of a peer that came or went. Several tasks may wait; each event goes
    /// to one of them.
    pub async fn next_event(&self) -> PeerEvent {
        poll_fn(|cx| match self.shared.endpoint.borrow_mut().poll_event() {
            Some(event) => Poll::Ready(event),
            None => wait_in(&self.shared.event_waiters, cx),
        })
        .await
    }

    pub(crate) fn operation(&self, posted: Result<Posted, Error>) -> Operation<T> {
        let state = match posted {
            Ok(Posted::Done(completion)) => Progress::Done(completion),
            Ok(Posted::Pending(op)) => Progress::Pending(op),
            Err(error) => Progress::Refused(error),
        };
        Operation { endpoint: self.clone(), state }
    }

    fn outcome(&self, completion: Completion) -> Result<Completion, Error> {
        match completion.status {
            Ok(()) => Ok(completion),
            Err(kind) => {
                let error = self.shared.endpoint.borrow().explain(&completion);
                Err(error.unwrap_or_else(|| Error::new(kind, "")))
            }
        }
    }

    // ---- for drivers ----------------------------------------------------------------------------

    /// Polls the endpoint once, at the clock's time, and wakes the futures that can go on. Returns
    /// whether there was anything to do.
    pub fn progress(&self) -> bool {
        let now = self.now();
        self.shared.posted.set(false);
        let (worked, messages, events) = {
            let mut endpoint = self.shared.endpoint.borrow_mut();
            let worked = endpoint.poll(now);
            (worked, endpoint.has_unexpected(), endpoint.has_events())
        };
        self.settle_dropped();
        self.wake_ended();
        if messages {
            self.wake_all(&self.shared.message_waiters);
        }
        if events {
            self.wake_all(&self.shared.event_waiters);
        }
        worked
    }

    /// Returns the time at which to call `progress` even if nothing arrives.
    pub fn next_deadline(&self) -> Option<Time> {
        self.shared.endpoint.borrow().next_deadline()
    }

    /// Prepares to sleep. `waker` is woken when a task uses the endpoint, for example to post or to
    /// cancel an operation, and when a message or an exposure is dropped. It is also woken when the
    /// transport has something to do, unless the transport has an event fd for that.
    pub fn arm(&self, waker: &Waker) -> Armed {
        if self.shared.posted.get() {
            return Armed::Busy;
        }
        let armed = self.shared.endpoint.borrow_mut().arm(waker);
        if armed == Armed::Waiting {
            self.shared.driver.replace(Some(waker.clone()));
        }
        armed
    }

    /// Runs `f` on the transport's event fd, if it has one.
    pub fn with_event_fd<R>(&self, f: impl FnOnce(Option<BorrowedFd<'_>>) -> R) -> R {
        f(self.shared.endpoint.borrow().event_fd())
    }

    fn wake_ended(&self) {
        // Outside the borrow, because a waker may run any code.
        let mut wakes = self.shared.scratch.take();
        self.shared.endpoint.borrow_mut().take_wakes(&mut wakes);
        wakes.drain(..).for_each(Waker::wake);
        self.shared.scratch.replace(wakes);
    }

    fn wake_all(&self, waiters: &RefCell<Vec<Waker>>) {
        let mut wakes = waiters.take();
        wakes.drain(..).for_each(Waker::wake);
        let mut kept = waiters.borrow_mut();
        if kept.is_empty() {
            *kept = wakes;
        }
    }
}

/// Largest number of wakers in a list of waiting tasks. Beyond it, all are woken.
const KEPT_WAITERS: usize = 1024;

fn wait_in<V>(waiters: &RefCell<Vec<Waker>>, cx: &Context<'_>) -> Poll<V> {
    if waiters.borrow().len() >= KEPT_WAITERS {
        // Most belong to futures that were dropped since. The others register again.
        waiters.take().into_iter().for_each(Waker::wake);
    }
    let mut waiters = waiters.borrow_mut();
    if !waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
        waiters.push(cx.waker().clone());
    }
    Poll::Pending
}
