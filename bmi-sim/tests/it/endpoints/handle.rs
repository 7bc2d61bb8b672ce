//! A handle in the simulator: tasks of the world drive its endpoints, on one thread, and a run can
//! be repeated.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use bmi_core::comm::Body;
use bmi_core::driver::Waiting;
use bmi_core::transport::Armed;
use bmi_core::{
    Access, Config, Endpoint, ErrorKind, Handle, HandleConfig, Memory, Options, Peer, PeerEvent, SharedPeer, Threading,
    Time,
};
use bmi_sim::{Node, World};
use send_wrapper::SendWrapper;

const LIMIT: Duration = Duration::from_secs(5);

type Sim = Handle;

fn handle(node: &Node, count: usize, waiting: Waiting) -> Sim {
    node.handle(&Config::default(), count, HandleConfig::default().waiting(waiting)).unwrap()
}

async fn next_peer(server: &Sim) -> SharedPeer {
    let Ok(PeerEvent::Connected { peer, .. }) = server.next_event().await else { panic!("a connection") };
    peer
}

/// Answers calls until the handle is closed, each in a task of its own. Returns their number.
async fn serve(node: Node, server: Sim) -> usize {
    let mut tasks = Vec::new();
    loop {
        match server.next_call().await {
            Ok(call) => tasks.push(node.spawn(async move {
                let data = Memory::zeroed(call.len() as usize).unwrap();
                let options = call.within(LIMIT);
                call.fetch(0, &data, options).await.unwrap();
                let total: u64 = data.all().to_vec().iter().map(|byte| u64::from(*byte)).sum();
                call.reply(&total.to_le_bytes(), None, options).await.unwrap();
            })),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Cancelled);
                let served = tasks.len();
                for task in tasks {
                    task.await.unwrap();
                }
                return served;
            }
        }
    }
}

/// Runs clients whose tasks share one handle, against a server of two endpoints. Returns what the
/// run looked like: when each task ended, and when all were closed.
fn run(seed: u64, waiting: Waiting) -> Vec<Time> {
    let world = World::new(seed);
    let (near, far) = (world.node("clients"), world.node("server"));
    let (client, server) = (handle(&near, 2, waiting), handle(&far, 2, waiting));
    let addr = server.listen(&far.addr(1)).unwrap();
    let serving = far.spawn(serve(far.clone(), server.clone()));
    let mut times = world.block_on(async {
        let mut tasks = Vec::new();
        for number in 0..6u8 {
            let (client, addr) = (client.clone(), addr.clone());
            tasks.push(near.spawn(async move {
                let peer = client.connect(&addr, client.within(LIMIT)).await.unwrap();
                for len in [0, 10, 3_000, 50_000, 400_000] {
                    let data = Memory::from(vec![number; len]);
                    let call = peer.call(b"add", Body::Out(data.into()), peer.within(LIMIT)).unwrap();
                    let total = call.reply().await.unwrap().bytes;
                    assert_eq!(total, (u64::from(number) * len as u64).to_le_bytes().as_slice());
                }
                client.now()
            }));
        }
        let mut times = Vec::new();
        for task in tasks {
            times.push(task.await.unwrap());
        }
        let mut of_each = [0; 2];
        for _ in 0..6 {
            match server.next_event().await.unwrap() {
                PeerEvent::Connected { peer, .. } => of_each[usize::from(peer.id().endpoint())] += 1,
                PeerEvent::Lost { reason, .. } => panic!("{reason}"),
            }
        }
        assert_eq!(of_each, [3, 3], "the connections of the server's endpoints");
        client.close().await;
        server.close().await;
        times
    });
    assert_eq!(world.block_on(serving).unwrap(), 6 * 5);
    for usage in client.resource_usage().into_iter().chain(server.resource_usage()) {
        assert_eq!((usage.peers, usage.operations), (0, 0), "{usage:?}");
    }
    times.push(world.now());
    times
}

#[test]
fn tasks_share_a_handle_and_a_run_can_be_repeated() {
    for waiting in [Waiting::Busy, Waiting::Event] {
        for seed in 0..4 {
            assert_eq!(run(seed, waiting), run(seed, waiting), "seed {seed}, {waiting:?}");
        }
    }
}

#[test]
fn the_last_handle_ends_the_drivers_and_what_was_sent_arrives() {
    let world = World::new(1);
    let (near, far) = (world.node("near"), world.node("far"));
    let (client, server) = (handle(&near, 1, Waiting::Event), handle(&far, 1, Waiting::Event));
    let addr = server.listen(&far.addr(1)).unwrap();
    let mut memory = Memory::zeroed(100).unwrap();
    let into = Memory::zeroed(30_000).unwrap();
    let (arrival, receive, observer) = world.block_on(async {
        let peer = client.connect(&addr, client.within(LIMIT)).await.unwrap();
        let from = next_peer(&server).await;
        let arrival = from.recv(1, &into, from.within(LIMIT));
        let receive = peer.recv(9, &memory, bmi_core::Options::default());
        let sent = peer.send(1, vec![5; 30_000], client.within(LIMIT));
        let observer = client.endpoints().next().unwrap().observer();
        // The operation is awaited by a task that has no handle.
        near.spawn(async move { drop(sent.await) });
        drop(client);
        (arrival, receive, observer)
    });
    world.block_on(async {
        assert_eq!(arrival.await.unwrap().len, 30_000);
        assert_eq!(into.all().to_vec(), [5; 30_000]);
        let ended = receive.await.unwrap_err();
        assert!(matches!(ended.kind(), ErrorKind::Cancelled | ErrorKind::PeerLost), "{ended}");
    });
    world.run();
    assert!(memory.get_mut().is_some(), "the memory is back");
    assert!(observer().is_none(), "the driver has ended");
    world.block_on(server.close());
}

#[test]
fn what_was_sent_before_the_end_is_sent_also_after_a_long_idle_time() {
    let world = World::new(1);
    let (near, far) = (world.node("near"), world.node("far"));
    let (client, server) = (handle(&near, 1, Waiting::Event), handle(&far, 1, Waiting::Event));
    let addr = server.listen(&far.addr(1)).unwrap();
    let into = Memory::zeroed(400_000).unwrap();
    world.block_on(async {
        let peer = client.connect(&addr, client.within(LIMIT)).await.unwrap();
        let from = next_peer(&server).await;
        // Nothing is polled meanwhile. The time of the last poll is not that of the end.
        near.sleep(Duration::from_secs(30)).await;
        let sent = peer.send(1, vec![5; 400_000], bmi_core::Options::default());
        drop(client);
        far.sleep(Duration::from_millis(300)).await;
        // The message waits for its receive.
        assert_eq!(from.recv(1, &into, from.within(LIMIT)).await.unwrap().len, 400_000);
        sent.await.unwrap();
    });
    assert_eq!(into.all().to_vec(), [5; 400_000]);
    world.block_on(server.close());
}

/// Counts its calls. Each uses the endpoint, as a waker of an executor may that runs its task at
/// once.
struct Bell<S: Threading> {
    /// The world is of one thread.
    endpoint: SendWrapper<Endpoint<S>>,
    rung: AtomicUsize,
}

impl<S: Threading> Wake for Bell<S> {
    fn wake(self: Arc<Self>) {
        let _ = self.endpoint.counters();
        self.rung.fetch_add(1, Ordering::Relaxed);
    }
}

fn bell<S: Threading>(endpoint: &Endpoint<S>) -> (Arc<Bell<S>>, Waker) {
    let bell = Arc::new(Bell { endpoint: SendWrapper::new(endpoint.clone()), rung: AtomicUsize::new(0) });
    (Arc::clone(&bell), bell.into())
}

/// A regression test. Notes of what was dropped in the closure stayed where they were, and who
/// waited for room slept on.
#[test]
fn a_panic_while_the_endpoint_is_used_leaves_nobody_asleep() {
    let world = World::new(1);
    let (near, far) = (world.node("near"), world.node("far"));
    let settings = HandleConfig::default().max_operations(1);
    let client = near.handle(&Config::default(), 1, settings).unwrap();
    let server = handle(&far, 1, Waiting::Event);
    let addr = server.listen(&far.addr(1)).unwrap();
    world.block_on(async {
        let peer = client.connect(&addr, client.within(LIMIT)).await.unwrap();
        let receive = peer.recv(1, vec![0; 10], Options::default());
        let (bell, waker) = bell(client.endpoints().next().unwrap());
        let mut room = pin!(peer.endpoint().room());
        assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let closure = AssertUnwindSafe(|| {
            bell.endpoint.with(|_| {
                drop(receive);
                // Nothing is printed: the hook prints only for `panic!`.
                resume_unwind(Box::new("on purpose"));
            });
        });
        assert!(catch_unwind(closure).is_err());
        assert_eq!(bell.rung.load(Ordering::Relaxed), 1);
        assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        client.close().await;
        server.close().await;
    });
}

/// A regression test. The waker of a driver that sleeps was called while the endpoint was locked.
/// Where callers make progress it is not called: the use in which the exposure was dropped takes it
/// back.
#[test]
fn the_waker_of_a_driver_is_called_when_the_endpoint_is_free() {
    fn drop_within<S: Threading>(peer: &Peer<S>, rings: usize) {
        let memory = Memory::zeroed(10).unwrap();
        let exposure = peer.expose(&memory, Access::WRITE).unwrap();
        let (bell, waker) = bell(peer.endpoint());
        // From now on this is the driver.
        while bell.endpoint.progress() || bell.endpoint.arm(&waker) == Armed::Busy {}
        assert_eq!(bell.rung.load(Ordering::Relaxed), 0);
        bell.endpoint.with(|_| drop(exposure));
        assert_eq!(bell.rung.load(Ordering::Relaxed), rings);
        if rings == 0 {
            assert_eq!(peer.endpoint().resource_usage().exposures, 0);
        }
    }
    let world = World::new(1);
    let (near, far) = (world.node("near"), world.node("far"));
    let (client, server) = (handle(&near, 1, Waiting::Event), handle(&far, 1, Waiting::Event));
    let single = near.endpoint(Config::named("single")).unwrap();
    let addr = server.listen(&far.addr(1)).unwrap();
    world.block_on(async {
        drop_within(&client.connect(&addr, client.within(LIMIT)).await.unwrap(), 0);
        // For the exposure. The use that takes it back leaves nothing else to do.
        drop_within(&single.connect(&addr, single.within(LIMIT)).await.unwrap(), 1);
    });
}
