//! A server and a client of a backend, and what serves calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bmi_core::comm::{Body, Direction, Incoming};
use bmi_core::driver::{MonotonicClock, Waiting};
use bmi_core::{
    Addr, AnyThread, Clock, Config, Engine, Error, ErrorKind, Handle, HandleConfig, Memory, PeerEvent, SharedPeer,
    Transport,
};

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
pub(super) const LIMIT: Duration = Duration::from_secs(20);

pub(super) fn handle(backend: &Backend, name: &str, count: usize, settings: HandleConfig) -> Handle {
    let clock = MonotonicClock::new();
    let mut config = Config::named(name);
    config.timeouts.fence_grace = Duration::from_secs(2);
    let open = |adapter| Engine::new(adapter, config.clone(), clock.now()).expect("an endpoint");
    Handle::start((backend.open)(count).into_iter().map(open).collect(), clock, settings).expect("a handle")
}

/// A server and a client, not connected yet.
pub(super) struct Pair {
    pub(super) server: Handle,
    pub(super) client: Handle,
    pub(super) addr: Addr,
}

impl Pair {
    pub(super) fn new(backend: &Backend, server_endpoints: usize, client_endpoints: usize) -> Pair {
        Pair::waiting(backend, server_endpoints, client_endpoints, Waiting::Event)
    }

    pub(super) fn waiting(
        backend: &Backend,
        server_endpoints: usize,
        client_endpoints: usize,
        waiting: Waiting,
    ) -> Pair {
        let settings = HandleConfig::default().waiting(waiting);
        let server = handle(backend, "server", server_endpoints, settings);
        let client = handle(backend, "client", client_endpoints, settings);
        let addr = server.listen(&(backend.addr)()).expect("a free address");
        Pair { server, client, addr }
    }

    pub(super) fn connect(&self) -> SharedPeer {
        let soon = self.client.within(LIMIT);
        self.client.block_on(self.client.connect(&self.addr, soon)).expect("a connection")
    }

    /// Connects, and returns the peer at either side: the client's server, and the server's client.
    pub(super) fn connect_both(&self) -> (SharedPeer, SharedPeer) {
        (self.connect(), connected(&self.server))
    }

    /// Ends both, and checks that nothing is left.
    pub(super) fn end(self) {
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
pub(super) fn connected(handle: &Handle) -> SharedPeer {
    match handle.block_on(handle.next_event()) {
        Ok(PeerEvent::Connected { peer, .. }) => peer,
        other => panic!("expected a connection, found {other:?}"),
    }
}

/// Answers each call with the sum of its data, and with the data doubled for a read, until the
/// handle is closed.
pub(super) fn serve(server: &Handle, threads: usize) -> Vec<thread::JoinHandle<usize>> {
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

pub(super) async fn answer(call: Incoming<AnyThread>) -> Result<(), Error> {
    let options = call.within(LIMIT);
    let seed = call.request().first().copied().unwrap_or(0);
    let len = call.len() as usize;
    match call.direction() {
        Some(Direction::Read) => {
            let data = Memory::from(pattern(seed, len));
            call.reply(b"read", Some(data.into()), options).await
        }
        Some(Direction::Write) => {
            let data = Memory::zeroed(len)?;
            call.fetch(0, &data, options).await?;
            let sum = sum(&data.all().to_vec());
            call.reply(&sum.to_le_bytes(), None, options).await
        }
        None => call.reply(&[seed], None, options).await,
    }
}

pub(super) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| seed.wrapping_add(at as u8)).collect()
}

pub(super) fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

/// One call of a random kind and size, checked.
pub(super) async fn any_call(peer: &SharedPeer, rng: &mut Rng) -> Result<(), Error> {
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

/// Starts a thread of a test.
pub(super) fn start_thread<V: Send + 'static>(run: impl FnOnce() -> V + Send + 'static) -> thread::JoinHandle<V> {
    thread::Builder::new().name("test".into()).spawn(run).expect("a thread")
}

pub(super) fn wait_until(mut is_so: impl FnMut() -> bool, what: &str) {
    let clock = MonotonicClock::new();
    let end = clock.now() + LIMIT;
    while !is_so() {
        assert!(clock.now() < end, "{what} were not given back");
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// Blocks on a future without a handle, which a driver elsewhere drives. The future is polled only
/// when it is woken.
pub(super) fn futures_block_on<F: Future>(future: F) -> F::Output {
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
