//! Tests how drivers wait, over TCP. An idle endpoint takes no processor time in the modes that
//! sleep and a whole core when polling. One that has polled for a busy peer takes nearly none when
//! the peer is quiet. Every mode carries a conversation. Processor time is that of the calling
//! thread, as the kernel counts it, so elapsed time does not matter.

use bmi::Scheme;
use std::time::Duration;

use benches::cpu;
use benches::net::endpoint;
use bmi::driver::{Waiting, event, thread};
use bmi::{Addr, Endpoint, Error, Memory, Options, Peer};

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

fn work<F: Future<Output = Duration> + 'static>(begin: impl FnOnce(Endpoint) -> F + 'static) -> Work {
    Box::new(|endpoint| Box::pin(begin(endpoint)))
}

/// Returns the work of an endpoint that has nothing to do.
fn idle() -> Work {
    work(|endpoint| async move {
        let addr: Addr = "tcp://127.0.0.1:0".parse().unwrap();
        endpoint.listen(&addr).unwrap();
        // Wait until the costs of the start are over.
        endpoint.sleep(Duration::from_millis(20)).await;
        let before = cpu::of_thread();
        endpoint.sleep(IDLE).await;
        cpu::of_thread() - before
    })
}

#[test]
fn an_idle_endpoint_takes_no_processor_time_unless_it_polls() {
    for (runner, run) in RUNNERS {
        for waiting in [Waiting::Event, Waiting::Adaptive, Waiting::PAPER_CLIENT] {
            let spent = run(endpoint(Scheme::Tcp, "idle").unwrap(), waiting, idle()).unwrap();
            assert!(spent < IDLE / 20, "{runner}, {waiting:?}: {spent:?} of {IDLE:?}");
        }
        // On a machine with much other load, a polling thread gets only a share of a core, but much
        // more than one that sleeps.
        let spent = run(endpoint(Scheme::Tcp, "polling").unwrap(), Waiting::PAPER_SERVER, idle()).unwrap();
        assert!(spent > IDLE / 20, "{runner}: a driver that polls took only {spent:?} of {IDLE:?}");
    }
}

/// Requests come one by one, so that both sides poll, and then one a second. Both sides pay at most
/// 1 % of a processor for those.
#[test]
fn adaptive_waiting_costs_little_when_requests_are_rare() {
    for (runner, run) in RUNNERS {
        let (tell, addr) = std::sync::mpsc::channel();
        let server = std::thread::Builder::new().spawn(move || {
            let endpoint = endpoint(Scheme::Tcp, "server").unwrap();
            let work = work(move |endpoint| async move {
                tell.send(endpoint.listen(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap()).unwrap();
                serve(&endpoint, FREQUENT).await;
                let before = cpu::of_thread();
                serve(&endpoint, RARE).await;
                let spent = cpu::of_thread() - before;
                leave(&endpoint).await;
                spent
            });
            run(endpoint, Waiting::Adaptive, work).unwrap()
        });
        let addr = addr.recv().unwrap();
        let client = work(move |endpoint| async move {
            let peer = endpoint.connect(&addr, Options::default()).await.unwrap();
            for tag in 0..FREQUENT {
                ask(&peer, tag).await;
            }
            let before = cpu::of_thread();
            for tag in 0..RARE {
                endpoint.sleep(Duration::from_secs(1)).await;
                ask(&peer, tag).await;
            }
            let spent = cpu::of_thread() - before;
            peer.disconnect(peer.within(LONG)).await.unwrap();
            spent
        });
        let asked = run(endpoint(Scheme::Tcp, "client").unwrap(), Waiting::Adaptive, client).unwrap();
        let served = server.unwrap().join().unwrap();
        let most = Duration::from_secs(RARE) / 100;
        assert!(asked < most && served < most, "{runner}: {asked:?} and {served:?} in {RARE} s");
    }
}

/// Requests after which both sides have come to poll.
const FREQUENT: u64 = 300;
/// Requests that come one a second.
const RARE: u64 = 3;

/// Two endpoints, each on a thread of its own, exchange messages, with every way of waiting.
#[test]
fn every_mode_carries_a_conversation() {
    let modes = [Waiting::Busy, Waiting::Event, Waiting::Adaptive, Waiting::PAPER_CLIENT];
    for (name, run) in RUNNERS {
        for waiting in modes {
            let (tell, addr) = std::sync::mpsc::channel();
            let server = std::thread::Builder::new()
                .name("server".to_owned())
                .spawn(move || {
                    let endpoint = endpoint(Scheme::Tcp, "server").unwrap();
                    let future = async {
                        tell.send(endpoint.listen(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap()).unwrap();
                        serve(&endpoint, ROUNDS).await;
                        leave(&endpoint).await;
                    };
                    thread::block_on(&endpoint, waiting, future).unwrap();
                })
                .unwrap();
            let addr = addr.recv().unwrap();
            run(endpoint(Scheme::Tcp, "client").unwrap(), waiting, work(|endpoint| talk(endpoint, addr)))
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            server.join().unwrap();
        }
    }
}

const ROUNDS: u64 = 50;

/// Answers so many requests.
async fn serve(endpoint: &Endpoint, rounds: u64) {
    for _ in 0..rounds {
        let request = endpoint.next_unexpected().await;
        let bytes = Memory::from(request.bytes().to_vec());
        request.peer().send(request.tag(), bytes, endpoint.within(LONG)).await.unwrap();
    }
}

/// Waits until the client has its last reply and disconnects.
async fn leave(endpoint: &Endpoint) {
    while !matches!(endpoint.next_event().await, bmi::PeerEvent::Lost { .. }) {}
}

/// Sends a request and checks the answer.
async fn ask(peer: &Peer, tag: u64) {
    let (request, reply) = (Memory::from(vec![tag as u8; 3_000]), Memory::zeroed(3_000).unwrap());
    let answer = peer.recv(tag, reply.clone(), peer.within(LONG));
    peer.send_unexpected(tag, request, peer.within(LONG)).await.unwrap();
    answer.await.unwrap();
    assert_eq!(reply.to_vec(), vec![tag as u8; 3_000]);
}

async fn talk(endpoint: Endpoint, addr: Addr) -> Duration {
    let peer = endpoint.connect(&addr, Options::default()).await.unwrap();
    for tag in 0..ROUNDS {
        ask(&peer, tag).await;
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
