//! Tasks of a runtime that serve calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bmi_core::comm::{Body, Incoming};
use bmi_core::{AnyThread, Error, ErrorKind, Memory, PeerEvent, SharedPeer};
use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use super::bed::{Backend, LIMIT, Pair, answer, any_call};
use crate::Rng;

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

async fn connect(pair: &Pair) -> SharedPeer {
    pair.client.connect(&pair.addr, pair.client.within(LIMIT)).await.expect("a connection")
}

async fn ask(peer: &SharedPeer, request: &[u8]) -> Result<Vec<u8>, Error> {
    let call = peer.call(request, Body::None, peer.within(LIMIT))?;
    Ok(call.reply().await?.bytes.to_vec())
}

/// Drivers, server, handlers and clients are tasks of one runtime. Handlers that fail or panic end
/// their own call, and no place is lost. What is no call costs its sender the connection only.
pub fn tasks_serve_calls(backend: &Backend) {
    const PLACES: usize = 4;
    let runtime = runtime();
    let pair = runtime.block_on(async {
        let pair = Pair::new(backend, 1, 1);
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let handler = {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            move |call: Incoming<AnyThread>| {
                let (now, most) = (Arc::clone(&now), Arc::clone(&most));
                async move {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    let handled = match call.request() {
                        b"fail" => Err(Error::new(ErrorKind::Invalid, "asked to fail")),
                        b"panic" => {
                            now.fetch_sub(1, Ordering::SeqCst);
                            panic!("asked to panic")
                        }
                        _ => answer(call).await,
                    };
                    now.fetch_sub(1, Ordering::SeqCst);
                    handled
                }
            }
        };
        let server = pair.server.clone();
        let serving = tokio::spawn(async move { server.serve(PLACES, handler).await });
        let (peer, other) = (connect(&pair).await, connect(&pair).await);
        // More of each kind than there are places.
        for request in [&b"fail"[..], b"panic"] {
            for ended in join_all((0..3 * PLACES).map(|_| ask(&peer, request))).await {
                assert_eq!(ended.expect_err("no reply").kind(), ErrorKind::Cancelled);
            }
        }
        other.send_unexpected(1, b"no call".to_vec(), other.within(LIMIT)).await.expect("it is sent");
        let lost = ask(&other, b"a call").await.expect_err("cut off");
        assert_eq!(lost.kind(), ErrorKind::PeerLost);
        join_all((0..12).map(|seed| {
            let peer = peer.clone();
            tokio::spawn(async move {
                let mut rng = Rng::new(seed);
                for _ in 0..10 {
                    any_call(&peer, &mut rng).await.expect("a call");
                }
            })
        }))
        .await
        .into_iter()
        .for_each(|client| client.expect("a client"));
        assert!(most.load(Ordering::SeqCst) <= PLACES, "{most:?} at a time");
        pair.client.close().await;
        pair.server.close().await;
        serving.await.expect("a task").expect("it ends when the handle is closed");
        pair
    });
    drop(runtime);
    pair.end();
}

/// When the future of a server is dropped, calls that have begun go on, and those that wait end.
pub fn a_dropped_server_ends_calls_that_wait(backend: &Backend) {
    let runtime = runtime();
    let pair = runtime.block_on(async {
        let pair = Pair::new(backend, 1, 1);
        let go_on = Arc::new(Semaphore::new(0));
        let begun = Arc::new(Semaphore::new(0));
        let handler = {
            let (go_on, begun) = (Arc::clone(&go_on), Arc::clone(&begun));
            move |call: Incoming<AnyThread>| {
                let (go_on, begun) = (Arc::clone(&go_on), Arc::clone(&begun));
                async move {
                    begun.add_permits(1);
                    go_on.acquire().await.expect("never closed").forget();
                    answer(call).await
                }
            }
        };
        let server = pair.server.clone();
        let serving = tokio::spawn(async move { server.serve(1, handler).await });
        let peer = connect(&pair).await;
        let Ok(PeerEvent::Connected { peer: client, .. }) = pair.server.next_event().await else {
            panic!("nobody connected")
        };
        let ask_in_task = |seed: u8| {
            let peer = peer.clone();
            tokio::spawn(async move { ask(&peer, &[seed]).await })
        };
        let first = ask_in_task(1);
        begun.acquire().await.expect("never closed").forget();
        let waiting: Vec<_> = (2..5).map(ask_in_task).collect();
        // They have arrived once a message behind them has. Most of them were taken by then.
        let (behind, soon) = (Memory::zeroed(1).expect("memory"), peer.within(LIMIT));
        let arrives = client.recv(1, &behind, soon);
        peer.send(1, vec![1], soon).await.expect("a send");
        arrives.await.expect("a receive");
        serving.abort();
        assert!(serving.await.expect_err("it was dropped").is_cancelled());
        let rest = pair.server.clone();
        let rest = tokio::spawn(async move { while rest.next_call().await.is_ok() {} });
        for call in waiting {
            assert_eq!(call.await.expect("a task").expect_err("no reply").kind(), ErrorKind::Cancelled);
        }
        go_on.add_permits(1);
        assert_eq!(first.await.expect("a task").expect("a reply"), [1]);
        assert_eq!(begun.available_permits(), 0, "no other call has begun");
        pair.client.close().await;
        pair.server.close().await;
        rest.await.expect("it ends with the handle");
        pair
    });
    drop(runtime);
    pair.end();
}

/// Outside of a runtime there is an error that says what to do.
pub fn a_server_of_tasks_needs_a_runtime(backend: &Backend) {
    let pair = Pair::new(backend, 1, 1);
    let refused = pair.server.block_on(pair.server.serve(1, answer)).expect_err("no runtime");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("next_call"), "{refused}");
    pair.end();
}
