//! Tests of [`Handle`]: threads that share endpoints of a real backend, with the drivers that
//! [`Handle::start`] starts. In the simulator see `bmi-sim/tests/it/endpoints/handle.rs`.
//!
//! They run threads and wait for real time, so they are not part of the suite that the simulator
//! runs. Waiting has a bound, and reaching it fails.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use bmi_core::comm::{Body, Direction, Incoming, Path};
use bmi_core::driver::{MonotonicClock, Waiting};
use bmi_core::{
    Access, Addr, AnyThread, Clock, Config, Engine, Error, ErrorKind, Handle, HandleConfig, Memory, Options, PeerEvent,
    SharedPeer, Transport,
};
use futures_util::future::join_all;

use crate::Rng;

/// Adapters for the tests.
pub type Adapter = Box<dyn Transport + Send>;

/// What the tests need to know of a backend.
pub struct Backend {
    /// Creates so many adapters that share their listening addresses.
    pub open: fn(usize) -> Vec<Adapter>,
    /// Returns an address to listen at that is free at each call.
    pub addr: fn() -> Addr,
}

/// The bound of every wait.
const LIMIT: Duration = Duration::from_secs(20);

fn handle(backend: &Backend, name: &str, count: usize, settings: HandleConfig) -> Handle {
    let clock = MonotonicClock::new();
    let mut config = Config::named(name);
    config.timeouts.fence_grace = Duration::from_secs(2);
    let open = |adapter| Engine::new(adapter, config.clone(), clock.now()).expect("an endpoint");
    Handle::start((backend.open)(count).into_iter().map(open).collect(), clock, settings).expect("a handle")
}

/// A server and a client, not connected yet.
struct Pair {
    server: Handle,
    client: Handle,
    addr: Addr,
}

impl Pair {
    fn new(backend: &Backend, server_endpoints: usize, client_endpoints: usize) -> Pair {
        Pair::waiting(backend, server_endpoints, client_endpoints, Waiting::Event)
    }

    fn waiting(backend: &Backend, server_endpoints: usize, client_endpoints: usize, waiting: Waiting) -> Pair {
        let settings = HandleConfig::default().waiting(waiting);
        let server = handle(backend, "server", server_endpoints, settings);
        let client = handle(backend, "client", client_endpoints, settings);
        let addr = server.listen(&(backend.addr)()).expect("a free address");
        Pair { server, client, addr }
    }

    fn connect(&self) -> SharedPeer {
        let soon = self.client.within(LIMIT);
        self.client.block_on(self.client.connect(&self.addr, soon)).expect("a connection")
    }

    /// Connects, and returns the peer at either side: the client's server, and the server's client.
    fn connect_both(&self) -> (SharedPeer, SharedPeer) {
        (self.connect(), connected(&self.server))
    }

    /// Ends both, and checks that nothing is left.
    fn end(self) {
        let Pair { server, client, .. } = self;
        client.block_on(client.close());
        server.block_on(server.close());
        for handle in [&client, &server] {
            // All have ended, but the threads that wait for them may not have run yet.
            let is_idle = |usage: &bmi_core::ResourceUsage| (usage.peers, usage.operations) == (0, 0);
            wait_until(|| handle.resource_usage().iter().all(is_idle), "operations");
        }
    }
}

/// Returns the next peer that connected to a handle.
fn connected(handle: &Handle) -> SharedPeer {
    match handle.block_on(handle.next_event()) {
        Ok(PeerEvent::Connected { peer, .. }) => peer,
        other => panic!("expected a connection, found {other:?}"),
    }
}

/// Answers each call with the sum of its data, and with the data doubled for a read, until the
/// handle is closed.
fn serve(server: &Handle, threads: usize) -> Vec<thread::JoinHandle<usize>> {
    let run = |server: Handle| {
        let mut served = 0;
        loop {
            let call = match server.block_on(server.next_call()) {
                Ok(call) => call,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                    return served;
                }
            };
            served += 1;
            // A client that gave up has no reply.
            let _ = server.block_on(answer(call));
        }
    };
    let start = |number: usize| {
        let server = server.clone();
        thread::Builder::new().name(format!("server-{number}")).spawn(move || run(server)).expect("a thread")
    };
    (0..threads).map(start).collect()
}

async fn answer(call: Incoming<AnyThread>) -> Result<(), Error> {
    let options = call.within(LIMIT);
    let seed = call.request().first().copied().unwrap_or(0);
    let len = call.len() as usize;
    match call.direction() {
        Some(bmi_core::comm::Direction::Read) => {
            let data = Memory::from(pattern(seed, len));
            call.reply(b"read", Some(data.into()), options).await
        }
        Some(bmi_core::comm::Direction::Write) => {
            let data = Memory::zeroed(len)?;
            call.fetch(0, &data, options).await?;
            let sum = sum(&data.all().to_vec());
            call.reply(&sum.to_le_bytes(), None, options).await
        }
        None => call.reply(&[seed], None, options).await,
    }
}

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| seed.wrapping_add(at as u8)).collect()
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

/// One call of a random kind and size, checked.
async fn any_call(peer: &SharedPeer, rng: &mut Rng) -> Result<(), Error> {
    let seed = rng.below(256) as u8;
    let len = [0, 1, 100, 5_000, 70_000, 300_000][rng.below(6) as usize];
    let soon = peer.within(LIMIT);
    match rng.below(3) {
        0 => {
            let call = peer.call(&[seed], Body::None, soon)?;
            assert_eq!(call.reply().await?.bytes, [seed].as_slice());
        }
        1 => {
            let data = pattern(seed, len);
            let expected = sum(&data);
            let call = peer.call(&[seed], Body::Out(Memory::from(data).into()), soon)?;
            assert_eq!(call.reply().await?.bytes, expected.to_le_bytes().as_slice());
        }
        _ => {
            let memory = Memory::zeroed(len)?;
            let call = peer.call(&[seed], Body::In((&memory).into()), soon)?;
            assert_eq!(call.reply().await?.data, len as u64);
            assert!(memory.all().to_vec() == pattern(seed, len), "{len} bytes of {seed}");
        }
    }
    Ok(())
}

/// Runs calls from several threads over several connections, by both ways of waiting.
pub fn threads_share_a_handle(backend: &Backend) {
    for (waiting, endpoints) in [(Waiting::Event, 2), (Waiting::Busy, 1), (Waiting::ADAPTIVE, 1)] {
        let pair = Pair::waiting(backend, endpoints, endpoints, waiting);
        let servers = serve(&pair.server, 2);
        let peers: Vec<SharedPeer> = (0..4).map(|_| pair.connect()).collect();
        let numbers: std::collections::BTreeSet<u8> = peers.iter().map(|peer| peer.id().endpoint()).collect();
        assert_eq!(numbers.len(), endpoints, "connections go to the endpoints in turn");
        thread::scope(|scope| {
            for (number, peer) in peers.iter().enumerate() {
                let client = pair.client.clone();
                scope.spawn(move || {
                    let mut rng = Rng::new(number as u64);
                    for _ in 0..40 {
                        client.block_on(any_call(peer, &mut rng)).expect("a call");
                    }
                });
            }
            // One thread with several calls at a time.
            let client = &pair.client;
            client.block_on(join_all((10..18).map(|seed| {
                let peer = &peers[seed as usize % 4];
                async move {
                    let mut rng = Rng::new(seed);
                    for _ in 0..10 {
                        any_call(peer, &mut rng).await.expect("a call");
                    }
                }
            })));
        });
        pair.end();
        let served: usize = servers.into_iter().map(|server| server.join().expect("a server thread")).sum();
        assert_eq!(served, 4 * 40 + 8 * 10);
    }
}

/// The endpoints of a handle get the connections of one address in turn, and all serve.
pub fn endpoints_share_an_address(backend: &Backend) {
    let pair = Pair::new(backend, 2, 1);
    let both: Vec<(SharedPeer, SharedPeer)> = (0..4).map(|_| pair.connect_both()).collect();
    let mut of_each = [0; 2];
    both.iter().for_each(|(_, peer)| of_each[usize::from(peer.id().endpoint())] += 1);
    assert_eq!(of_each, [2, 2]);
    for (server, client) in both {
        let memory = Memory::zeroed(5).expect("memory");
        let soon = pair.client.within(LIMIT);
        let receive = server.recv(1, &memory, soon);
        pair.server.block_on(client.send(1, b"hello".to_vec(), soon)).expect("a send");
        pair.client.block_on(receive).expect("a receive");
        assert_eq!(memory.all().to_vec(), b"hello");
        // The id is of one endpoint. At the other one it names nobody.
        assert!(client.addr().is_some());
        let other = pair.server.endpoints().nth(1 - usize::from(client.id().endpoint())).expect("two");
        assert!(other.peer(client.id()).addr().is_none());
    }
    pair.end();
}

/// Futures are dropped at any time, by threads that go on. Nothing is left of them.
pub fn dropped_futures_leave_nothing(backend: &Backend) {
    let pair = Pair::new(backend, 1, 1);
    let servers = serve(&pair.server, 2);
    let peer = pair.connect();
    thread::scope(|scope| {
        for number in 0..4 {
            let (client, peer) = (pair.client.clone(), peer.clone());
            scope.spawn(move || {
                let mut rng = Rng::new(number);
                for _ in 0..60 {
                    let given_up = rng.below(2) == 0;
                    let rounds = rng.below(4);
                    if given_up {
                        let memory = Memory::zeroed(300_000).expect("memory");
                        let body = match rng.below(3) {
                            0 => Body::None,
                            1 => Body::Out(memory.into()),
                            _ => Body::In(memory.into()),
                        };
                        let call = peer.call(&[1], body, peer.within(LIMIT));
                        client.block_on(poll_a_few_times(call.expect("a call").reply(), rounds));
                    } else {
                        client.block_on(any_call(&peer, &mut rng)).expect("a call that is awaited");
                    }
                    // A receive whose message never comes, dropped on another thread.
                    let memory = Memory::zeroed(100).expect("memory");
                    let receive = peer.recv(77, &memory, Options::default());
                    thread::scope(|scope| {
                        scope.spawn(move || drop(receive));
                    });
                }
            });
        }
    });
    let is_idle = |usage: &bmi_core::ResourceUsage| (usage.operations, usage.exposures) == (0, 0);
    wait_until(|| pair.client.resource_usage().iter().all(is_idle), "operations");
    assert!(peer.limits().is_some(), "the connection is the same");
    pair.end();
    assert!(servers.into_iter().all(|server| server.join().is_ok()));
}

/// A call is dropped while the server moves its data. The server goes on, and the connection stays.
pub fn a_dropped_call_leaves_the_connection(backend: &Backend) {
    const HALF: usize = 500_000;
    let pair = Pair::new(backend, 1, 1);
    let peer = pair.connect();
    for direction in [Direction::Write, Direction::Read] {
        let (begin, begun) = mpsc::channel();
        let (drop_it, dropped) = mpsc::channel();
        let server = pair.server.clone();
        let serving = start_thread(move || {
            server.block_on(async {
                let call = server.next_call().await.expect("a call");
                let memory = Memory::zeroed(HALF).expect("memory");
                let options = call.within(LIMIT);
                for at in [0, HALF as u64] {
                    match direction {
                        Direction::Write => call.fetch(at, &memory, options).await.expect("the client's data"),
                        Direction::Read => call.store(at, &memory, options).await.expect("the client's memory"),
                    }
                    if at == 0 {
                        begin.send(()).expect("the client");
                        dropped.recv_timeout(LIMIT).expect("the client drops the call");
                    }
                }
                call.reply(b"late", None, options).await.expect("a reply that nobody waits for");
                answer(server.next_call().await.expect("another call")).await.expect("a reply");
            });
        });
        let client = &pair.client;
        let memory = Memory::zeroed(2 * HALF).expect("memory");
        let body = match direction {
            Direction::Write => Body::Out((&memory).into()),
            Direction::Read => Body::In((&memory).into()),
        };
        let call = peer.call(b"long", body, peer.within(LIMIT).path(Path::ServerBased)).expect("a call");
        begun.recv_timeout(LIMIT).expect("the server begins");
        drop(call);
        // The poll that ends the sleep revokes before what is to be revoked.
        client.block_on(client.sleep(Duration::from_millis(1))).expect("there is room");
        assert!(memory.is_retired(), "the server may be at it");
        drop_it.send(()).expect("the server");
        let echo = peer.call(&[7], Body::None, peer.within(LIMIT)).expect("a call");
        assert_eq!(client.block_on(echo.reply()).expect("the connection is the same").bytes, [7].as_slice());
        serving.join().expect("the server");
        let is_idle = |usage: &bmi_core::ResourceUsage| (usage.operations, usage.exposures) == (0, 0);
        wait_until(|| client.resource_usage().iter().all(is_idle), "exposures");
        assert!(!memory.is_retired());
    }
    pair.end();
}

/// Polls a future so many times, and drops it.
async fn poll_a_few_times(future: impl Future, rounds: u64) {
    let mut future = std::pin::pin!(future);
    for _ in 0..rounds {
        let over = std::future::poll_fn(|cx| {
            // It goes on at once, whether or not the future can.
            std::task::Poll::Ready(future.as_mut().poll(cx).is_ready())
        });
        if over.await {
            return;
        }
        thread::yield_now();
    }
}

/// Starts a thread of a test.
fn start_thread<V: Send + 'static>(run: impl FnOnce() -> V + Send + 'static) -> thread::JoinHandle<V> {
    thread::Builder::new().name("test".into()).spawn(run).expect("a thread")
}

fn wait_until(mut is_so: impl FnMut() -> bool, what: &str) {
    let clock = MonotonicClock::new();
    let end = clock.now() + LIMIT;
    while !is_so() {
        assert!(clock.now() < end, "{what} were not given back");
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// What was sent before the last handle was dropped arrives, and what waited ends. Memory comes
/// back.
pub fn the_last_handle_ends_everything_in_order(backend: &Backend) {
    let pair = Pair::new(backend, 1, 1);
    let (server, from) = pair.connect_both();
    let Pair { server: serving, client, .. } = pair;
    let soon = client.within(LIMIT);
    let places: Vec<Memory> = (0..20).map(|_| Memory::zeroed(500).expect("memory")).collect();
    let arrivals: Vec<_> = (0..).zip(&places).map(|(tag, place)| from.recv(tag, place, soon)).collect();
    let mut memory = Memory::zeroed(1000).expect("memory");
    let receive = server.recv(5, &memory, Options::default());
    let exposure = server.expose(&memory, Access::WRITE).expect("an exposure");
    let observers: Vec<_> = client.endpoints().map(|endpoint| endpoint.observer()).collect();
    let sends: Vec<_> = (0..20).map(|tag| server.send(tag, pattern(tag as u8, 500), soon)).collect();
    // Detached: nobody awaits them.
    let sends = start_thread(move || sends);
    let waiting = client.clone();
    let (end, ended) = mpsc::channel();
    let waiter = start_thread(move || {
        // The future outlives all handles.
        let next = waiting.endpoints().next().expect("one").clone();
        drop(waiting);
        let outcome = futures_block_on(receive);
        end.send(outcome.map(|_| ()).expect_err("nothing was sent").kind()).expect("the test");
        drop(next);
    });
    let sends = sends.join().expect("a thread");
    drop((client, server));
    for (seed, (arrival, place)) in (0..).zip(arrivals.into_iter().zip(&places)) {
        serving.block_on(arrival).expect("a message that was sent before");
        assert!(place.all().to_vec() == pattern(seed, 500), "message {seed}");
    }
    let kind = ended.recv_timeout(LIMIT).expect("the receive ends");
    assert!(matches!(kind, ErrorKind::Cancelled | ErrorKind::PeerLost), "{kind:?}");
    waiter.join().expect("the waiter");
    match serving.block_on(serving.next_event()) {
        Ok(PeerEvent::Lost { .. }) => {}
        other => panic!("expected the end of the connection, found {other:?}"),
    }
    drop((sends, exposure));
    wait_until(|| memory.get_mut().is_some(), "memory");
    wait_until(|| observers.iter().all(|observer| observer().is_none()), "endpoints");
}

/// Blocks on a future without a handle, which a driver elsewhere drives. The future is polled only
/// when it is woken.
fn futures_block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread, AtomicBool);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.1.store(true, Ordering::SeqCst);
            self.0.unpark();
        }
    }
    let unpark = Arc::new(Unpark(thread::current(), AtomicBool::new(true)));
    let waker = Arc::clone(&unpark).into();
    let mut cx = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    let clock = MonotonicClock::new();
    let end = clock.now() + LIMIT;
    loop {
        if unpark.1.swap(false, Ordering::SeqCst)
            && let std::task::Poll::Ready(output) = future.as_mut().poll(&mut cx)
        {
            return output;
        }
        assert!(clock.now() < end, "the future was not woken");
        thread::park_timeout(LIMIT);
    }
}

/// After `close`, nothing can be begun, and who waits for messages is told.
pub fn a_closed_handle_refuses(backend: &Backend) {
    let pair = Pair::new(backend, 2, 1);
    let peer = pair.connect();
    let server = pair.server.clone();
    let waiter = start_thread(move || server.block_on(server.next_unexpected()).map(|_| ()));
    let client = pair.client.clone();
    let sleeper = start_thread(move || client.block_on(client.sleep(LIMIT * 10)));
    pair.client.block_on(pair.client.close());
    pair.server.block_on(pair.server.close());
    let ended = waiter.join().expect("a thread").expect_err("no message came");
    assert_eq!(ended.kind(), ErrorKind::Cancelled);
    sleeper.join().expect("a sleep ends").expect("there is room");
    let client = &pair.client;
    let soon = client.within(LIMIT);
    let sent = client.block_on(peer.send(1, vec![0], soon)).expect_err("it is closed");
    assert_eq!(sent.kind(), ErrorKind::PeerLost, "{sent}");
    let connected = client.block_on(client.connect(&pair.addr, soon)).expect_err("it is closed");
    assert_eq!(connected.kind(), ErrorKind::Cancelled, "{connected}");
    client.block_on(client.sleep(LIMIT * 10)).expect("there is room");
    pair.end();
}

/// A task that panics in the middle of operations harms no other.
pub fn a_panic_harms_no_other(backend: &Backend) {
    let pair = Pair::new(backend, 1, 1);
    let servers = serve(&pair.server, 2);
    let peer = pair.connect();
    let to_server = peer.clone();
    let panicking = thread::Builder::new().name("a thread that panics on purpose".into());
    let panicked = panicking.spawn(move || {
        let _call = to_server.call(&[1], Body::None, to_server.within(LIMIT)).expect("a call");
        let memory = Memory::zeroed(10).expect("memory");
        let _receive = to_server.recv(3, &memory, Options::default());
        // Nothing is printed: the hook prints only for `panic!`.
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(panicked.expect("a thread").join().is_err());
    // A waker that panics does so on the thread of the driver.
    struct Panics(AtomicUsize);
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }
    let waker = Arc::new(Panics(AtomicUsize::new(0)));
    let mut sleep = Box::pin({
        let client = pair.client.clone();
        async move { client.sleep(Duration::from_millis(5)).await }
    });
    let polled = sleep.as_mut().poll(&mut std::task::Context::from_waker(&Arc::clone(&waker).into()));
    assert!(polled.is_pending());
    // Others that wait for the same time are woken with it.
    let sleeper = pair.client.clone();
    let until = pair.client.now() + Duration::from_millis(5);
    let other = start_thread(move || futures_block_on(sleeper.sleep_until(until)));
    wait_until(|| waker.0.load(Ordering::SeqCst) > 0, "wake-ups");
    other.join().expect("a sleep ends").expect("there is room");
    drop(sleep);
    let mut rng = Rng::new(1);
    for _ in 0..20 {
        pair.client.block_on(any_call(&peer, &mut rng)).expect("the others go on");
    }
    pair.end();
    assert!(servers.into_iter().all(|server| server.join().is_ok()));
}

/// The owner of a message's bytes panics when it is dropped, in the middle of the endpoint's work.
/// Operations that ended at the same time did not end.
pub fn an_owner_of_memory_that_panics_harms_no_other(backend: &Backend) {
    struct Owner(Vec<u8>);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Owner {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }
    let pair = Pair::new(backend, 1, 1);
    let (server, from) = pair.connect_both();
    let client = &pair.client;
    // Nobody receives them, so they wait.
    let owned = |len| Memory::from(bytes::Bytes::from_owner(Owner(vec![0; len])));
    let sends: Vec<_> = (0..3).map(|tag| server.send(tag, owned(1 << 20), Options::default())).collect();
    let memory = Memory::zeroed(100).expect("memory");
    let receives: Vec<_> = (0..3).map(|tag| server.recv(tag, &memory, Options::default())).collect();
    let (end, ended) = mpsc::channel();
    let waiter = start_thread(move || {
        for receive in receives {
            end.send(futures_block_on(receive).is_err()).expect("the test");
        }
    });
    from.cut(Error::new(ErrorKind::Cancelled, "on purpose"));
    for _ in 0..3 {
        assert!(ended.recv_timeout(LIMIT).expect("the receives end"));
    }
    waiter.join().expect("the waiter");
    for send in sends {
        assert!(client.block_on(send).is_err());
    }
    let again = pair.connect();
    assert_ne!(again.id(), server.id());
    pair.end();
}

/// Operations beyond the bound are refused, and there is room when one ends.
pub fn operations_are_bounded(backend: &Backend) {
    let settings = HandleConfig::default().max_operations(4);
    let (server, client) = (handle(backend, "server", 1, settings), handle(backend, "client", 1, settings));
    let addr = server.listen(&(backend.addr)()).expect("a free address");
    let soon = client.within(LIMIT);
    let peer = client.block_on(client.connect(&addr, soon)).expect("a connection");
    let memory = Memory::zeroed(40).expect("memory");
    let mut receives: Vec<_> = (0..4).map(|at| peer.recv(1, memory.slice(at * 10, 10), soon)).collect();
    let refused = client.block_on(peer.recv(1, &memory, soon)).expect_err("a fifth");
    assert_eq!(refused.kind(), ErrorKind::Exhausted, "{refused}");
    let call = peer.call(b"", Body::None, soon).err().expect("a fifth");
    assert_eq!(call.kind(), ErrorKind::Exhausted, "{call}");
    let connect = client.block_on(client.connect(&addr, soon)).expect_err("a fifth");
    assert_eq!(connect.kind(), ErrorKind::Exhausted, "{connect}");
    let grant = peer.grant(&memory, soon).map(|_| ()).expect_err("a fifth");
    assert_eq!(grant.kind(), ErrorKind::Exhausted, "{grant}");
    let sleep = client.block_on(client.sleep(LIMIT)).expect_err("a fifth");
    assert_eq!(sleep.kind(), ErrorKind::Exhausted, "{sleep}");
    let expose = || peer.expose(&memory, Access::WRITE);
    let exposures: Vec<_> = (0..4).map(|_| expose().expect("an exposure")).collect();
    let exposure = expose().map(|_| ()).expect_err("a fifth");
    assert_eq!(exposure.kind(), ErrorKind::Exhausted, "{exposure}");
    drop(exposures);
    let (waiting, to_server) = (client.clone(), peer.clone());
    let waits = start_thread(move || waiting.block_on(to_server.endpoint().room()));
    drop(receives.pop());
    waits.join().expect("there is room");
    let again = peer.recv(1, memory.slice(30, 10), soon);
    let to_client = connected(&server);
    for _ in 0..4 {
        server.block_on(to_client.send(1, vec![7; 10], soon)).expect("a send");
    }
    for receive in receives.into_iter().chain([again]) {
        client.block_on(receive).expect("a message");
    }
    assert_eq!(memory.all().to_vec(), [7; 40]);
    client.block_on(client.close());
}

/// Threads that use one endpoint at once, as fast as they can: every message arrives once, and the
/// order of each thread is kept.
pub fn messages_of_many_threads_arrive_in_order(backend: &Backend) {
    const THREADS: u64 = 4;
    const MESSAGES: u64 = 500;
    for waiting in [Waiting::Event, Waiting::Busy] {
        let pair = Pair::waiting(backend, 1, 1, waiting);
        let (server, _) = pair.connect_both();
        let received = AtomicU64::new(0);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (client, server) = (pair.client.clone(), server.clone());
                scope.spawn(move || {
                    let soon = server.within(LIMIT);
                    let send = |number: u64| server.send_unexpected(thread, number.to_le_bytes().to_vec(), soon);
                    let sends: Vec<_> = (0..MESSAGES).map(send).collect();
                    for sent in client.block_on(join_all(sends)) {
                        sent.expect("a send");
                    }
                });
            }
            let mut next = [0; THREADS as usize];
            while received.load(Ordering::Relaxed) < THREADS * MESSAGES {
                let message = pair.server.block_on(pair.server.next_unexpected()).expect("a message");
                let expected: &mut u64 = &mut next[message.tag() as usize];
                assert_eq!(message.bytes(), expected.to_le_bytes());
                *expected += 1;
                received.fetch_add(1, Ordering::Relaxed);
            }
        });
        pair.end();
    }
}

/// Expands to one `#[test]` for each test of handles. The argument is a [`Backend`] of this module.
/// An attribute may follow, which each test gets.
#[macro_export]
macro_rules! handle_suite {
    ($backend:expr) => { $crate::handle_suite! { $backend, #[cfg(all())] } };
    ($backend:expr, #[$attribute:meta]) => { $crate::handle_suite! { @each ($backend, $attribute)
        threads_share_a_handle, endpoints_share_an_address, dropped_futures_leave_nothing,
        the_last_handle_ends_everything_in_order, a_closed_handle_refuses, a_panic_harms_no_other,
        operations_are_bounded, messages_of_many_threads_arrive_in_order, a_dropped_call_leaves_the_connection,
        an_owner_of_memory_that_panics_harms_no_other,
    } };
    (@each ($backend:expr, $attribute:meta) $($name:ident),* $(,)?) => { $(
        #[test]
        #[$attribute]
        fn $name() {
            $crate::handle::$name(&$backend);
        }
    )* };
}
