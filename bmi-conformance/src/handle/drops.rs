//! Futures and calls that are dropped, and the end of handles.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bmi_core::comm::{Body, Direction, Path};
use bmi_core::{Access, ErrorKind, Memory, Options, PeerEvent};

use super::bed::{Backend, LIMIT, Pair, answer, any_call, futures_block_on, pattern, serve, start_thread, wait_until};
use crate::Rng;

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
