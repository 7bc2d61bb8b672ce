//! Connections: made when needed, and again; several addresses; the end of a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bmi::rpc::LinkState;
use bmi::{Call, Client, Error, ErrorKind, Server};
use bmi_sim::World;

use tokio::sync::Semaphore;

use crate::bed::{Bed, LIMIT, echo, everywhere, in_a_world, start};

/// A server at the same address, started again.
async fn again(addr: &str) -> Server {
    for _ in 0..200 {
        match Server::bind(addr).await {
            Ok(server) => return start(server, echo).0,
            Err(_) => bmi::sleep(Duration::from_millis(10)).await,
        }
    }
    panic!("{addr} stays in use")
}

#[test]
fn a_client_connects_again() {
    everywhere(async |bed: &Bed| {
        let (server, client) = bed.echo().await;
        let addr = server.addrs()[0].to_string();
        assert_eq!(client.links()[0].1, LinkState::Idle);
        client.call(b"1").await.expect("a reply");
        assert_eq!(client.links()[0].1, LinkState::Connected);
        server.shutdown(Duration::ZERO).await;
        drop(server);
        // It is not there: the call waits for it until its deadline.
        let error = client.call(b"2").timeout(Duration::from_millis(100)).await.expect_err("nobody is there");
        assert!(error.is_retryable(), "{error}");
        assert!(matches!(client.links()[0].1, LinkState::Down(_)));
        let waits = client.call(b"3").timeout(LIMIT);
        let waits = bmi::spawn(async move { waits.await });
        let server = again(&addr).await;
        assert_eq!(waits.await.expect("a task").expect("a reply").bytes, "3");
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// A server that ends while it handles a call. Only a call that may be repeated is repeated.
#[test]
fn calls_are_repeated_if_the_program_says_so() {
    everywhere(async |bed: &Bed| {
        for idempotent in [false, true] {
            let (server, addr) = bed.serve(|_| async { std::future::pending().await }).await;
            let addr = addr.as_str();
            let client = Client::new(addr);
            client.connect().await.expect("a connection");
            let call = client.call(b"x").timeout(LIMIT);
            let call = if idempotent { call.idempotent() } else { call };
            let call = bmi::spawn(async move { call.await });
            bmi::sleep(Duration::from_millis(50)).await;
            server.shutdown(Duration::ZERO).await;
            drop(server);
            let server = again(addr).await;
            match call.await.expect("a task") {
                Ok(reply) => assert!(idempotent && reply.bytes == "x"),
                Err(error) => {
                    let unknown = matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Abandoned);
                    assert!(!idempotent && unknown, "{error}");
                }
            }
            client.close().await;
            server.shutdown(Duration::from_secs(1)).await;
        }
    });
}

/// Handlers that have begun end, and calls that come later are refused.
#[test]
fn a_server_shuts_down_in_order() {
    everywhere(async |bed: &Bed| {
        let slow = |call: Call| async move {
            bmi::sleep(Duration::from_millis(200)).await;
            call.reply(b"done").await
        };
        let (server, addr) = bed.serve(slow).await;
        let client = Client::new(addr);
        client.connect().await.expect("a connection");
        let begun = client.call(b"");
        let begun = bmi::spawn(async move { begun.await });
        bmi::sleep(Duration::from_millis(50)).await;
        let stopping = server.clone();
        let stopping = bmi::spawn(async move { stopping.shutdown(LIMIT).await });
        bmi::sleep(Duration::from_millis(20)).await;
        let error = client.call(b"").timeout(Duration::from_millis(100)).await.expect_err("refused");
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Refused, true), "{error}");
        assert_eq!(begun.await.expect("a task").expect("a reply").bytes, "done");
        stopping.await.expect("it ends");
        client.close().await;
    });
}

#[test]
fn several_addresses_are_one_service() {
    everywhere(async |bed: &Bed| {
        let name = |name: &'static str| move |call: Call| async move { call.reply(name).await };
        let ((a, at_a), (b, at_b)) = (bed.serve(name("a")).await, bed.serve(name("b")).await);
        let first = Client::new([&at_a, &at_b]);
        let spread = Client::builder().spread().to(vec![at_a, at_b]);
        let mut answers = Vec::new();
        for _ in 0..4 {
            assert_eq!(first.call(b"").await.expect("a reply").bytes, "a");
            answers.push(spread.call(b"").await.expect("a reply").bytes);
        }
        assert_eq!(answers, ["a", "b", "a", "b"]);
        a.shutdown(Duration::from_secs(1)).await;
        for _ in 0..4 {
            assert_eq!(first.call(b"").await.expect("a reply").bytes, "b");
            assert_eq!(spread.call(b"").await.expect("a reply").bytes, "b");
        }
        first.close().await;
        spread.close().await;
        b.shutdown(Duration::from_secs(1)).await;
    });
}

/// Replays a bug: a call that had less time than the pause before the next attempt to connect
/// failed at once. A program that repeated its calls was a busy loop while a server was down.
#[test]
fn a_call_to_a_server_that_is_down_takes_its_time() {
    in_a_world(async |bed: &Bed| {
        let client = Client::new(bed.addr());
        for _ in 0..20 {
            let (begun, time) = (bmi::Instant::now(), Duration::from_millis(50));
            let error = client.call(b"").timeout(time).await.expect_err("nobody is there");
            assert!(error.is_retryable() && begun.elapsed() >= time, "{error} after {:?}", begun.elapsed());
        }
        client.close().await;
    });
}

/// Replays a bug: an address that this machine cannot use ended every call, although the next one
/// would have answered.
#[test]
fn an_address_that_cannot_be_used_is_passed_over() {
    crate::bed::outside(async |bed: &Bed| {
        let (server, addr) = bed.serve(echo).await;
        let client = Client::new(["none://nowhere:1", &addr]);
        assert_eq!(client.call(b"x").await.expect("a reply").bytes, "x");
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// Replays a bug: a server that went down began calls that had waited, and their clients learned
/// only that the connection was lost.
#[test]
fn calls_that_wait_are_refused_when_a_server_goes_down() {
    everywhere(async |bed: &Bed| {
        let begun = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = Arc::clone(&begun);
        let handler = move |_: Call| {
            count.fetch_add(1, Ordering::SeqCst);
            std::future::pending()
        };
        let server = Server::builder().max_calls(1).bind(bed.addr()).await.expect("a server");
        let (server, addr) = start(server, handler);
        let client = Client::new(addr);
        let calls: Vec<_> = (0..5)
            .map(|_| {
                let call = client.call(b"").timeout(Duration::from_secs(1));
                bmi::spawn(async move { call.await })
            })
            .collect();
        while begun.load(Ordering::SeqCst) == 0 {
            bmi::sleep(Duration::from_millis(1)).await;
        }
        bmi::sleep(Duration::from_millis(100)).await;
        server.shutdown(Duration::from_millis(50)).await;
        drop(server);
        for call in calls {
            let error = call.await.expect("a task").expect_err("no reply");
            assert!(matches!(error.kind(), ErrorKind::Refused | ErrorKind::Abandoned | ErrorKind::TimedOut), "{error}");
        }
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        client.close().await;
    });
}

/// Replays a bug: they were refused when the first handler ended, which may be late.
#[test]
fn calls_that_wait_are_refused_before_handlers_end() {
    in_a_world(async |bed: &Bed| {
        let server = Server::builder().max_calls(1).bind(bed.addr()).await.expect("a server");
        let (server, addr) = start(server, |_| std::future::pending());
        let client = Client::new(addr);
        let call = |timeout| {
            let call = client.call(b"").timeout(timeout);
            bmi::spawn(async move { call.await.expect_err("no reply") })
        };
        let (begun, waits) = (call(LIMIT), call(LIMIT / 4));
        bmi::sleep(Duration::from_millis(100)).await;
        let stopping = server.clone();
        let stopping = bmi::spawn(async move { stopping.shutdown(2 * LIMIT).await });
        // It tries elsewhere until its deadline, and there is nowhere else.
        assert_eq!(waits.await.expect("a task").kind(), ErrorKind::Refused);
        assert!(!begun.is_finished());
        let error = begun.await.expect("a task");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        stopping.await.expect("a task");
        client.close().await;
    });
}

/// Replays a bug: an endpoint that had nothing to do for some time, and then went down, cut its
/// connections at once. What it had sent just before was lost.
#[test]
fn the_last_reply_of_a_server_arrives() {
    everywhere(async |bed: &Bed| {
        let slow = |call: Call| async move {
            bmi::sleep(Duration::from_secs(1)).await;
            call.reply(b"done").await
        };
        let (server, addr) = bed.serve(slow).await;
        let client = Client::new(addr);
        client.connect().await.expect("a connection");
        let call = client.call(b"");
        let call = bmi::spawn(async move { call.await });
        bmi::sleep(Duration::from_millis(100)).await;
        server.shutdown(LIMIT).await;
        assert_eq!(call.await.expect("a task").expect("a reply").bytes, "done");
        client.close().await;
    });
}

/// Replays a bug: a handler did not learn that its client was gone after its server had stopped to
/// take calls.
#[test]
fn a_handler_learns_of_a_lost_client_when_nobody_serves() {
    everywhere(async |bed: &Bed| {
        let (begun, told) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (begins, tells) = (Arc::clone(&begun), Arc::clone(&told));
        let server = Server::bind(bed.addr()).await.expect("a server");
        let (addr, serves) = (server.addrs()[0].clone(), server.clone());
        let serving = bmi::spawn(async move {
            let handler = move |call: Call| {
                let (begins, tells) = (Arc::clone(&begins), Arc::clone(&tells));
                async move {
                    begins.add_permits(1);
                    call.client_gone().await;
                    tells.add_permits(1);
                    Ok(())
                }
            };
            serves.serve(handler).await
        });
        let client = Client::new(addr);
        let call = client.call(b"").timeout(LIMIT);
        let call = bmi::spawn(async move { call.await.map(|_| ()) });
        begun.acquire().await.expect("open").forget();
        serving.abort();
        client.close().await;
        told.acquire().await.expect("open").forget();
        call.await.expect("a task").expect_err("no reply");
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// Replays a bug: a call with little time asked a busy server whether it was there, did not wait
/// for the answer, and cut the connection that others waited at.
#[test]
fn short_calls_do_not_cut_the_connection_of_long_ones() {
    let world = World::new(5);
    let (slow, client) = (world.node("a"), world.node("client"));
    slow.spawn(async {
        let server = Server::bind("tcp://0.0.0.0:7001").await.expect("a server");
        let handler = |call: Call| async move {
            bmi::sleep(Duration::from_secs(8)).await;
            call.reply(b"late").await
        };
        server.serve(handler).await.expect("it serves");
    });
    let calls = async {
        let client = Client::new("tcp://a:7001");
        client.connect().await.expect("a connection");
        let long = client.call(b"");
        let long = bmi::spawn(async move { long.await });
        for _ in 0..20 {
            let error = client.call(b"").timeout(Duration::from_micros(20)).await.expect_err("too short");
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        }
        assert_eq!(long.await.expect("a task").expect("a reply").bytes, "late");
        client.close().await;
    };
    world.block_on(client.run(calls));
}

/// One server at addresses of different schemes.
#[test]
fn a_server_listens_at_several_addresses() {
    everywhere(async |bed: &Bed| {
        let folder = tempfile::tempdir().expect("a folder");
        let second = if bed.is_world() { "tcp://localhost:77".to_owned() } else { "tcp://127.0.0.1:0".to_owned() };
        let shm = format!("shm://{}/sockets/1", folder.path().display());
        let server = Server::bind(vec![bed.addr(), second, shm]).await.expect("a server");
        let (server, _) = start(server, echo);
        assert_eq!(server.addrs().len(), 3);
        for addr in server.addrs() {
            let client = Client::new(addr);
            assert_eq!(client.call(b"x").await.expect("a reply").bytes, "x");
            client.close().await;
        }
        server.shutdown(Duration::from_secs(1)).await;
    });
}

#[test]
fn programs_of_different_versions_are_told_so() {
    everywhere(async |bed: &Bed| {
        let server = Server::builder().protocol(3).bind(bed.addr()).await.expect("a server");
        let (server, addr) = start(server, echo);
        let old = Client::builder().protocol(2).to(addr.as_str());
        let error = old.call(b"x").await.expect_err("another version");
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        assert!(error.to_string().contains("version 2 of its protocol, this side 3"), "{error}");
        let new = Client::builder().protocol(3).to(addr);
        new.call(b"x").await.expect("a reply");
        old.close().await;
        new.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// A host that hangs: its connection is up, and nothing answers. The first call finds out by its
/// deadline, the second goes to another host.
#[test]
fn a_host_that_hangs_is_left() {
    let world = World::new(3);
    let ran = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&ran);
    for name in ["a", "b"] {
        let server = world.node(name);
        server.spawn(async move {
            let server = Server::bind("tcp://0.0.0.0:7001").await.expect("a server");
            let handler = move |call: Call| async move { call.reply(name).await };
            server.serve(handler).await.expect("it serves");
        });
    }
    let (hangs, client) = (world.node("a"), world.node("client"));
    let calls = async move {
        let client = Client::new(["tcp://a:7001", "tcp://b:7001"]);
        assert_eq!(client.call(b"").await?.bytes, "a");
        hangs.pause();
        let error = client.call(b"").timeout(Duration::from_secs(2)).await.expect_err("it hangs");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(client.call(b"").await?.bytes, "b");
        client.close().await;
        hangs.resume();
        done.store(true, Ordering::Relaxed);
        Ok::<_, Error>(())
    };
    world.block_on(client.run(calls)).expect("the calls");
    assert!(ran.load(Ordering::Relaxed));
}

/// A call that waits for another one's attempt to connect ends at its own deadline.
#[test]
fn a_call_ends_by_its_deadline_while_another_connects() {
    let world = World::new(4);
    let (hangs, client) = (world.node("a"), world.node("client"));
    hangs.spawn(async {
        let server = Server::bind("tcp://0.0.0.0:7001").await.expect("a server");
        server.serve(echo).await.expect("it serves");
    });
    let calls = async move {
        hangs.pause();
        let client = Client::new("tcp://a:7001");
        let patient = client.call(b"1");
        let patient = bmi::spawn(async move { patient.await });
        bmi::sleep(Duration::from_millis(10)).await;
        let begun = bmi::Instant::now();
        let error = client.call(b"2").timeout(Duration::from_millis(100)).await.expect_err("it hangs");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert_eq!(begun.elapsed().as_millis(), 100);
        hangs.resume();
        assert_eq!(patient.await.expect("a task").expect("a reply").bytes, "1");
        client.close().await;
    };
    world.block_on(client.run(calls));
}
