//! The drive loop of the message level: it drives endpoints, and adapters without one, around one
//! future.
//!
//! **Why.** The message interface is tested from `async` code, as its users see it. But the test
//! must decide which endpoint is polled and when: a peer that stops polling is one of the
//! behaviours. So the suite has its own loop, the same for every backend. The future is polled only
//! when it was woken, so a lost wake-up shows as a failure, not as a slow success.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bmi_core::comm::{Body, Call, Incoming, Path};
use bmi_core::transport::Event;
use bmi_core::{
    Access, Addr, AnyTransport, BulkDescriptor, Completion, Config, Endpoint, Engine, Error, ErrorKind, Exposure,
    Grant, MemList, Memory, Operation, Options, Peer, PeerEvent, ResourceUsage, Time, Transport,
};

use crate::backend::Backend;
use crate::data::is_sole;

/// The time limit of an operation that is expected to succeed. It is shorter than any patience, so
/// that the operation itself reports the error.
pub const SOON: Duration = Duration::from_secs(8);

/// Endpoints and bare adapters, driven by [`Net::run`].
pub struct Net<'b> {
    backend: &'b dyn Backend,
    members: RefCell<Vec<Member>>,
    waiting_for: RefCell<Vec<String>>,
}

struct Member {
    name: String,
    paused: bool,
    what: Driven,
}

#[derive(Clone)]
enum Driven {
    Engine(Endpoint),
    Bare(Bare),
}

/// An adapter without an endpoint: a peer that sends whatever the test wants.
#[derive(Clone)]
pub struct Bare(Rc<RefCell<BareInner>>);

struct BareInner {
    transport: AnyTransport,
    events: VecDeque<Event>,
    scratch: Vec<Event>,
}

impl Bare {
    /// Runs `f` on the adapter.
    pub fn with<R>(&self, f: impl FnOnce(&mut AnyTransport) -> R) -> R {
        f(&mut self.0.borrow_mut().transport)
    }

    /// Takes out the first event for which `wanted` returns true.
    pub fn take(&self, wanted: impl FnMut(&Event) -> bool) -> Option<Event> {
        let events = &mut self.0.borrow_mut().events;
        let at = events.iter().position(wanted)?;
        events.remove(at)
    }

    fn poll(&self, now: Time) -> (bool, Option<Time>) {
        let inner = &mut *self.0.borrow_mut();
        let busy = inner.transport.poll(now, &mut inner.scratch);
        inner.events.extend(inner.scratch.drain(..));
        (busy, inner.transport.next_deadline())
    }
}

/// Records whether the future was woken.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Two endpoints, each a peer of the other.
pub struct Pair {
    /// The endpoint that connected, called `a`.
    pub a: Endpoint,
    /// The endpoint that listened, called `b`.
    pub b: Endpoint,
    /// The peer `b` of `a`.
    pub to_b: Peer,
    /// The peer `a` of `b`.
    pub to_a: Peer,
    /// The address at which `b` listens.
    pub addr: Addr,
}

impl<'b> Net<'b> {
    /// Creates a net without members.
    pub fn new(backend: &'b dyn Backend) -> Net<'b> {
        Net { backend, members: RefCell::default(), waiting_for: RefCell::default() }
    }

    /// Returns the backend.
    pub fn backend(&self) -> &'b dyn Backend {
        self.backend
    }

    /// Creates an endpoint on the node `name`.
    pub fn endpoint(&self, name: &str, config: &Config) -> Endpoint {
        let config = config.clone().name(name.to_owned());
        // Under rough faults an adapter may refuse its first registrations; another one is made
        // then.
        let made = (0..100).find_map(|_| {
            match Engine::new(self.backend.transport(name), config.clone(), self.backend.now()) {
                Err(error) if error.kind() == ErrorKind::Exhausted => None,
                result => Some(result),
            }
        });
        let engine = made.expect("an adapter that can register").expect("an engine");
        let endpoint = Endpoint::new(engine, self.backend.clock());
        self.join(name, Driven::Engine(endpoint.clone()));
        endpoint
    }

    /// Creates an adapter on the node `name`, without an endpoint.
    pub fn bare(&self, name: &str) -> Bare {
        let inner = BareInner { transport: self.backend.transport(name), events: VecDeque::new(), scratch: Vec::new() };
        let bare = Bare(Rc::new(RefCell::new(inner)));
        self.join(name, Driven::Bare(bare.clone()));
        bare
    }

    fn join(&self, name: &str, what: Driven) {
        self.members.borrow_mut().push(Member { name: name.to_owned(), paused: false, what });
    }

    /// Drops the members of this name. When the test has dropped its handles too, the adapter is
    /// dropped, as when its process dies.
    pub fn kill(&self, name: &str) {
        let mut members = self.members.borrow_mut();
        let dead: Vec<Member> = members.extract_if(.., |member| member.name == name).collect();
        assert!(!dead.is_empty(), "no member is called {name}");
        drop(members);
        drop(dead);
    }

    /// Stops or resumes driving the members of this name.
    pub fn pause(&self, name: &str, paused: bool) {
        self.members.borrow_mut().iter_mut().filter(|member| member.name == name).for_each(|m| m.paused = paused);
    }

    /// Returns an address to listen at.
    pub fn listen_addr(&self, name: &str) -> Addr {
        self.backend.listen_addr(name)
    }

    /// Drives the future and all members until the future ends.
    ///
    /// # Panics
    /// When the patience is over, naming what was waited for and listing what every endpoint holds.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&flag));
        let (mut turns, mut give_up) = (0u64, None);
        loop {
            if flag.0.swap(false, Ordering::SeqCst)
                && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return output;
            }
            turns += 1;
            self.turn(turns);
            let now = self.backend.now();
            let give_up = *give_up.get_or_insert(now + self.backend.patience() * 3);
            assert!(now < give_up, "the test does not end; {}", self.state());
        }
    }

    /// Drives every member once. Lets time pass if no member had anything to do.
    fn turn(&self, turns: u64) {
        let mut busy = false;
        let mut until: Option<Time> = None;
        let mut index = 0;
        loop {
            // Looked up one by one: driving a member may wake code that adds or kills members.
            let next = self.members.borrow().get(index).map(|member| (member.paused, member.what.clone()));
            let Some((paused, what)) = next else { break };
            index += 1;
            if paused {
                continue;
            }
            let (worked, deadline) = match &what {
                Driven::Engine(endpoint) => (endpoint.progress(), endpoint.next_deadline()),
                Driven::Bare(bare) => bare.poll(self.backend.now()),
            };
            busy |= worked;
            until = [until, deadline].into_iter().flatten().min();
        }
        if !busy || turns.is_multiple_of(64) {
            self.backend.pass(until);
        }
    }

    /// Describes the state of all members, for a test that fails.
    fn state(&self) -> String {
        let mut text = format!("now {}, waiting for {:?}", self.backend.now(), self.waiting_for.borrow());
        for member in self.members.borrow().iter() {
            match &member.what {
                Driven::Engine(endpoint) => {
                    let (resource_usage, counters) = endpoint.with(|e| (e.resource_usage(), e.counters()));
                    let deadline = endpoint.next_deadline();
                    text += &format!("\n  {}: next {deadline:?}, {resource_usage:?}, {counters:?}", member.name);
                }
                Driven::Bare(bare) => text += &format!("\n  {}: {:?}", member.name, bare.0.borrow().events),
            }
        }
        text
    }

    /// Waits until `found` returns a value. It is called on every turn of the loop.
    ///
    /// # Panics
    /// When the patience is over, naming `what`.
    pub async fn until<R>(&self, what: &str, mut found: impl FnMut() -> Option<R>) -> R {
        self.waiting_for.borrow_mut().push(what.to_owned());
        let give_up = self.backend.now() + self.backend.patience();
        let result = poll_fn(|cx| {
            if let Some(result) = found() {
                return Poll::Ready(result);
            }
            assert!(self.backend.now() < give_up, "waited in vain for: {what}; {}", self.state());
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        self.waiting_for.borrow_mut().retain(|other| other != what);
        result
    }

    /// Waits for this many turns of the loop.
    pub async fn turns(&self, mut count: u32) {
        poll_fn(|cx| {
            if count == 0 {
                return Poll::Ready(());
            }
            count -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Waits until all of this memory has no other handle.
    pub async fn released<'m>(&self, what: &str, memory: impl IntoIterator<Item = &'m mut Memory>) {
        for (number, memory) in memory.into_iter().enumerate() {
            self.until(&format!("{what}: memory {number} back"), || is_sole(memory).then_some(())).await;
        }
    }

    /// Waits until the endpoint holds nothing but this many peers.
    pub async fn settled(&self, endpoint: &Endpoint, peers: usize, what: &str) {
        let idle = ResourceUsage { peers, ..ResourceUsage::default() };
        self.until(&format!("{what}: nothing held but {peers} peers"), || {
            (endpoint.with(|e| e.resource_usage()) == idle).then_some(())
        })
        .await;
    }

    /// Waits for the next event of a bare adapter for which `wanted` returns true.
    pub async fn event(&self, bare: &Bare, what: &str, wanted: impl Fn(&Event) -> bool) -> Event {
        self.until(what, || bare.take(&wanted)).await
    }

    /// Creates two connected endpoints, `a` and `b`, with one configuration.
    pub async fn pair(&self, config: &Config) -> Pair {
        let (a, b) = (self.endpoint("a", config), self.endpoint("b", config));
        let addr = b.listen(&self.listen_addr("b")).expect("listen");
        let (to_b, to_a) = self.connect(&a, &b, &addr).await;
        Pair { a, b, to_b, to_a, addr }
    }

    /// Connects `from` to `to`, which listens at `addr`. Returns the peer `to` of `from`, and the
    /// peer `from` of `to`.
    pub async fn connect(&self, from: &Endpoint, to: &Endpoint, addr: &Addr) -> (Peer, Peer) {
        let near = from.connect(addr, from.within(SOON)).await.expect("connect");
        let far = self.arrived(to).await;
        self.seen(&near).await;
        (near, far)
    }

    /// Returns the next peer that connected to an endpoint.
    pub async fn arrived(&self, endpoint: &Endpoint) -> Peer {
        match self.next_event(endpoint, "a peer that connects").await {
            PeerEvent::Connected { peer, outgoing: false, .. } => peer,
            other => panic!("expected a peer that connects, got {other:?}"),
        }
    }

    /// Waits for the `Connected` event of a peer that its endpoint connected to.
    pub async fn seen(&self, expected: &Peer) {
        match self.next_event(expected.endpoint(), "the event of a peer that was connected to").await {
            PeerEvent::Connected { peer, outgoing: true, .. } if peer == *expected => {}
            other => panic!("expected {expected:?} connected, got {other:?}"),
        }
    }

    /// Waits for the next event of the peer's endpoint, which must be the loss of this peer.
    /// Returns the reason.
    pub async fn lost(&self, expected: &Peer) -> Error {
        match self.next_event(expected.endpoint(), "the loss of a peer").await {
            PeerEvent::Lost { peer, reason } if peer == *expected => reason,
            other => panic!("expected {expected:?} lost, got {other:?}"),
        }
    }

    /// Returns the next event of an endpoint.
    pub async fn next_event(&self, endpoint: &Endpoint, what: &str) -> PeerEvent<Peer> {
        self.waiting_for.borrow_mut().push(what.to_owned());
        let event = endpoint.next_event().await;
        self.waiting_for.borrow_mut().retain(|other| other != what);
        event
    }

    /// Sends a small expected message each way, which shows that the connection works.
    pub async fn ping(&self, to_b: &Peer, to_a: &Peer, what: &str) {
        const PING: u64 = 0x7069_6e67;
        for (to, from) in [(to_b, to_a), (to_a, to_b)] {
            let into = crate::data::memory(8);
            let received = from.recv(PING, &into, from.within(SOON));
            let sent = to.send(PING, b"ping".to_vec(), to.within(SOON));
            sent.await.unwrap_or_else(|error| panic!("{what}: ping: {error}"));
            let len = received.await.unwrap_or_else(|error| panic!("{what}: ping: {error}")).len;
            assert_eq!((len, &into.to_vec()[..4]), (4, &b"ping"[..]), "{what}");
        }
    }
}

/// Operations that are expected to succeed within [`SOON`]. Messages and transfers go from `a` to
/// `b`.
impl Pair {
    /// Sends from `a` to `b`.
    pub fn send(&self, tag: u64, list: impl Into<MemList>) -> Operation {
        self.to_b.send(tag, list, soon(&self.a))
    }

    /// Sends from `a` to `b`, which has posted the receive before. Returns the completion of the
    /// receive.
    ///
    /// # Panics
    /// If one of them fails.
    pub async fn pass(&self, tag: u64, list: impl Into<MemList>, into: impl Into<MemList>) -> Completion {
        let receive = self.recv(tag, into);
        self.send(tag, list).await.expect("send");
        receive.await.expect("receive")
    }

    /// Calls `b` from `a`.
    ///
    /// # Panics
    /// If the call cannot begin.
    pub fn call(&self, request: &[u8], body: Body, path: Option<Path>) -> Call {
        self.to_b.call(request, body, soon(&self.a).path(path)).expect("a call")
    }

    /// Sends an unexpected message from `a` to `b`.
    pub fn send_unexpected(&self, tag: u64, list: impl Into<MemList>) -> Operation {
        self.to_b.send_unexpected(tag, list, soon(&self.a))
    }

    /// Receives at `b` from `a`.
    pub fn recv(&self, tag: u64, list: impl Into<MemList>) -> Operation {
        self.to_a.recv(tag, list, soon(&self.b))
    }

    /// Exposes memory of `b` to `a`.
    ///
    /// # Panics
    /// If it is refused.
    pub fn expose(&self, list: impl Into<MemList>, access: Access) -> Exposure {
        self.to_a.expose(list, access).expect("expose")
    }

    /// Pulls from memory of `b` into memory of `a`.
    pub fn pull(&self, remote: &BulkDescriptor, at: u64, local: impl Into<MemList>) -> Operation {
        self.to_b.pull(remote, at, local, soon(&self.a))
    }

    /// Pushes from memory of `a` into memory of `b`.
    pub fn push(&self, remote: &BulkDescriptor, at: u64, local: impl Into<MemList>) -> Operation {
        self.to_b.push(remote, at, local, soon(&self.a))
    }

    /// Grants memory of `b` to `a`.
    ///
    /// # Panics
    /// If it is refused.
    pub fn grant(&self, list: impl Into<MemList>) -> (Grant, Operation) {
        self.to_a.grant(list, soon(&self.b)).expect("grant")
    }

    /// Pushes from memory of `a` into memory that `b` granted.
    pub fn push_granted(&self, grant: &Grant, local: impl Into<MemList>) -> Operation {
        self.to_b.push_granted(grant, local, soon(&self.a))
    }

    /// Runs [`Net::ping`] between the two.
    pub async fn ping(&self, net: &Net<'_>, what: &str) {
        net.ping(&self.to_b, &self.to_a, what).await;
    }

    /// Waits until each endpoint holds only its connection to the other.
    pub async fn settled(&self, net: &Net<'_>, what: &str) {
        net.settled(&self.a, 1, what).await;
        net.settled(&self.b, 1, what).await;
    }
}

/// Returns the options of an operation that is expected to succeed.
pub fn soon(endpoint: &Endpoint) -> Options {
    endpoint.within(SOON)
}

/// Waits for the next call of an endpoint.
///
/// # Panics
/// If the next unexpected message is not a call.
pub async fn next_call(endpoint: &Endpoint) -> Incoming {
    Incoming::new(endpoint.next_unexpected().await).expect("a call")
}

/// Returns the error of an operation.
///
/// # Panics
/// If it succeeded, or if the error is of another kind or does not name the operation.
#[track_caller]
pub fn fails<T: Debug>(result: Result<T, Error>, kind: ErrorKind, operation: &str) -> Error {
    let error = result.expect_err(operation);
    assert_eq!((error.kind(), error.operation()), (kind, Some(operation)), "{error}");
    error
}

/// Waits for operations that are expected to succeed.
///
/// # Panics
/// If one fails.
pub async fn all_end_well(operations: Vec<Operation>) {
    for (number, operation) in operations.into_iter().enumerate() {
        operation.await.unwrap_or_else(|error| panic!("operation {number}: {error}"));
    }
}
