//! Threads, connections and operations that share a handle.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use bmi_core::comm::Body;
use bmi_core::driver::Waiting;
use bmi_core::{Access, ErrorKind, HandleConfig, Memory, PeerEvent, SharedPeer};
use futures_util::future::join_all;

use super::bed::{Backend, LIMIT, Pair, any_call, connected, handle, serve, start_thread};
use crate::Rng;

/// Runs calls from several threads over several connections, by both ways of waiting.
pub fn threads_share_a_handle(backend: &Backend) {
    for (waiting, endpoints) in [(Waiting::Event, 2), (Waiting::Busy, 1), (Waiting::Adaptive, 1)] {
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

/// A wait that reaches its limit leaves the future, which goes on with the next wait.
pub fn a_wait_may_have_a_limit(backend: &Backend) {
    for waiting in [Waiting::Event, Waiting::Busy, Waiting::Adaptive] {
        let pair = Pair::waiting(backend, 1, 1, waiting);
        {
            let mut event = pin!(pair.server.next_event());
            for limit in [Duration::ZERO, Duration::from_millis(1)] {
                assert!(pair.server.block_on_for(event.as_mut(), limit).is_none(), "nobody has connected");
            }
            let _peer = pair.connect();
            let connected = pair.server.block_on_for(event.as_mut(), LIMIT);
            assert!(matches!(connected, Some(Ok(PeerEvent::Connected { .. }))), "{connected:?}");
        }
        pair.end();
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
