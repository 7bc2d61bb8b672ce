//! Tests how drivers wait, over TCP. An idle endpoint takes no processor time in the event modes
//! and a whole core when polling. Every mode carries a conversation. Processor time is that of the
//! calling thread, as the kernel counts it, so elapsed time does not matter.

use bmi::Scheme;
use std::time::Duration;

use benches::cpu;
use benches::net::endpoint;
use bmi::driver::{Waiting, event, thread};
use bmi::{Addr, Endpoint, Error, Memory, Options};

const IDLE: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(60);

/// A way to run a future beside an endpoint: a driver that does the work with one way of waiting,
/// and returns its processor time.
type Runner = fn(Endpoint, Waiting, Work) -> Result<Duration, Error>;

const RUNNERS: [(&str, Runner); 2] = [
    ("tokio", |endpoint, waiting, work| {
        let future = work(endpoint.clone());
        event::block_on_with(endpoint, waiting, future)
    }),
    ("thread", |endpoint, waiting, work| {
        let future = work(endpoint.clone());
        thread::block_on(&endpoint, waiting, future)
    }),
];

type Work = Box<dyn FnOnce(Endpoint) -> std::pin::Pin<Box<dyn Future<Output = Duration>>>>;

/// Returns the work of an endpoint that has nothing to do.
fn idle() -> Work {
    Box::new(|endpoint: Endpoint| {
        Box::pin(async move {
            let addr: Addr = "tcp://127.0.0.1:0".parse().unwrap();
            endpoint.listen(&addr).unwrap();
            // Wait until the costs of the start are over.
            endpoint.sleep(Duration::from_millis(20)).await;
            let before = cpu::of_thread();
            endpoint.sleep(IDLE).await;
            cpu::of_thread() - before
        })
    })
}

#[test]
fn an_idle_endpoint_takes_no_processor_time_unless_it_polls() {
    for (runner, run) in RUNNERS {
        for waiting in [Waiting::Event, Waiting::ADAPTIVE, Waiting::PAPER_CLIENT] {
            let spent = run(endpoint(Scheme::Tcp, "idle").unwrap(), waiting, idle()).unwrap();
            assert!(spent < IDLE / 20, "{runner}, {waiting:?}: {spent:?} of {IDLE:?}");
        }
        // On a machine with much other load, a polling thread gets only a share of a core, but much
        // more than one that sleeps.
        let spent = run(endpoint(Scheme::Tcp, "polling").unwrap(), Waiting::PAPER_SERVER, idle()).unwrap();
        assert!(spent > IDLE / 20, "{runner}: a driver that polls took only {spent:?} of {IDLE:?}");
    }
}

/// Two endpoints, each on a thread of its own, exchange messages, with every way of waiting.
#[test]
fn every_mode_carries_a_conversation() {
    let modes = [Waiting::Busy, Waiting::Event, Waiting::ADAPTIVE, Waiting::PAPER_CLIENT];
    for (name, run) in RUNNERS {
        for waiting in modes {
            let (tell, addr) = std::sync::mpsc::channel();
            let server = std::thread::Builder::new()
                .name("server".to_owned())
                .spawn(move || {
                    let endpoint = endpoint(Scheme::Tcp, "server").unwrap();
                    let future = serve(endpoint.clone(), tell);
                    thread::block_on(&endpoint, waiting, future).unwrap();
                })
                .unwrap();
            let addr = addr.recv().unwrap();
            let work: Work = Box::new(move |endpoint| Box::pin(talk(endpoint, addr)));
            run(endpoint(Scheme::Tcp, "client").unwrap(), waiting, work)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            server.join().unwrap();
        }
    }
}

const ROUNDS: u64 = 50;

async fn serve(endpoint: Endpoint, tell: std::sync::mpsc::Sender<Addr>) {
    tell.send(endpoint.listen(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap()).unwrap();
    for _ in 0..ROUNDS {
        let request = endpoint.next_unexpected().await;
        let bytes = Memory::from(request.bytes().to_vec());
        request.peer().send(request.tag(), bytes, endpoint.within(LONG)).await.unwrap();
    }
    // Wait until the client has its last reply and disconnects.
    while !matches!(endpoint.next_event().await, bmi::PeerEvent::Lost { .. }) {}
}

async fn talk(endpoint: Endpoint, addr: Addr) -> Duration {
    let peer = endpoint.connect(&addr, Options::default()).await.unwrap();
    for tag in 0..ROUNDS {
        let (request, reply) = (Memory::from(vec![tag as u8; 3_000]), Memory::zeroed(3_000).unwrap());
        let answer = peer.recv(tag, reply.clone(), peer.within(LONG));
        peer.send_unexpected(tag, request, peer.within(LONG)).await.unwrap();
        answer.await.unwrap();
        assert_eq!(reply.to_vec(), vec![tag as u8; 3_000]);
    }
    peer.disconnect(peer.within(LONG)).await.unwrap();
    Duration::ZERO
}

/// The future of one thread is woken by another thread, while the driver's thread sleeps in the
/// kernel.
#[test]
fn another_thread_wakes_the_sleeping_driver() {
    let endpoint = endpoint(Scheme::Tcp, "sleeper").unwrap();
    let (give_waker, waker) = std::sync::mpsc::channel::<std::task::Waker>();
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let told = done.clone();
    let other = std::thread::Builder::new()
        .spawn(move || {
            let waker = waker.recv().unwrap();
            told.store(true, std::sync::atomic::Ordering::SeqCst);
            waker.wake();
        })
        .unwrap();
    let future = std::future::poll_fn(|cx| {
        let _ = give_waker.send(cx.waker().clone());
        if done.load(std::sync::atomic::Ordering::SeqCst) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    });
    thread::block_on(&endpoint, Waiting::Event, future).unwrap();
    other.join().unwrap();
}
