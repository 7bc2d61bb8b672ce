//! What is beyond a limit ends with an error that names it.

use std::sync::Arc;
use std::time::Duration;

use bmi::{Call, Client, ErrorKind, Server};
use tokio::sync::Semaphore;

use crate::bed::{Bed, LIMIT, echo, everywhere, start};

#[test]
fn data_beyond_a_limit_is_too_large() {
    everywhere(async |bed: &Bed| {
        let server = Server::builder().max_data(10_000).bind(bed.addr()).await.expect("a server");
        let (server, addr) = start(server, echo);
        let client = Client::builder().max_reply(5000).to(addr);
        for (len, limit) in [(10_001, "max_data"), (5001, "max_reply")] {
            let error = client.call(b"x").data(vec![0; len]).await.expect_err("too large");
            assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
            assert!(error.detail().contains(limit), "{error}");
        }
        let error = client.call(vec![0; 100_000]).await.expect_err("too large");
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
        assert_eq!(client.call(b"x").data(vec![0; 5000]).await.expect("a reply").data.len(), 5000);
        // The memory that a call offers for its reply, 64 KiB, is none of its data.
        assert_eq!(client.call(b"x").await.expect("a reply").data, "");
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

#[test]
fn calls_beyond_a_limit_are_refused_as_busy() {
    everywhere(async |bed: &Bed| {
        let go_on = Arc::new(Semaphore::new(0));
        let waits = Arc::clone(&go_on);
        let handler = move |call: Call| {
            let waits = Arc::clone(&waits);
            async move {
                waits.acquire().await.expect("never closed").forget();
                call.reply(b"done").await
            }
        };
        let server = Server::builder().max_calls(1).max_waiting(2).bind(bed.addr()).await.expect("a server");
        let (server, addr) = start(server, handler);
        let client = Client::new(addr);
        let call = || {
            let call = client.call(b"x").timeout(LIMIT);
            bmi::spawn(async move { call.await })
        };
        let all: Vec<_> = (0..5).map(|_| call()).collect();
        while all.iter().filter(|call| call.is_finished()).count() < 2 {
            bmi::sleep(Duration::from_millis(1)).await;
        }
        go_on.add_permits(5);
        let mut busy = 0;
        for call in all {
            if let Err(error) = call.await.expect("a task") {
                assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Busy, true));
                assert!(error.detail().contains("max_waiting"), "{error}");
                busy += 1;
            }
        }
        assert_eq!(busy, 2);
        // A call that may be repeated waits for its turn.
        let all: Vec<_> = (0..8)
            .map(|_| {
                go_on.add_permits(1);
                let call = client.call(b"x").timeout(LIMIT).idempotent();
                bmi::spawn(async move { call.await })
            })
            .collect();
        for call in all {
            call.await.expect("a task").expect("a reply");
        }
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// Handlers that take data wait for each other. The data that they have at a time is bounded.
#[test]
fn handlers_share_the_memory_for_data() {
    everywhere(async |bed: &Bed| {
        let server = Server::builder().max_bytes(200_000).bind(bed.addr()).await.expect("a server");
        let (server, addr) = start(server, echo);
        let client = Client::builder().max_calls(20).max_bytes(200_000).to(addr);
        let all: Vec<_> = (0..40)
            .map(|_| {
                let call = client.call(b"x").data(vec![3; 100_000]).timeout(LIMIT);
                bmi::spawn(async move { call.await })
            })
            .collect();
        for call in all {
            assert_eq!(call.await.expect("a task").expect("a reply").data.len(), 100_000);
        }
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// Replays a bug: calls that waited kept the credits of their client, so it could not fetch the
/// replies of those that ran. All stood still until their deadlines.
#[test]
fn calls_that_wait_do_not_stop_the_replies_of_others() {
    everywhere(async |bed: &Bed| {
        let handler = |call: Call| async move {
            let data = call.data().await?;
            call.reply(b"").data([&data[..]; 10].concat()).await
        };
        let server = Server::builder().max_calls(8).bind(bed.addr()).await.expect("a server");
        let (server, addr) = start(server, handler);
        let client = Client::new(addr);
        let calls: Vec<_> = (0..600)
            .map(|_| {
                let call = client.call(b"x").data(vec![5; 4000]).timeout(LIMIT);
                bmi::spawn(async move { call.await })
            })
            .collect();
        for call in calls {
            assert_eq!(call.await.expect("a task").expect("a reply").data.len(), 40_000);
        }
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// Replays a bug: a handler that took its data twice waited for itself.
#[test]
fn data_is_taken_twice() {
    everywhere(async |bed: &Bed| {
        let handler = |call: Call| async move {
            let (first, second) = (call.data().await?, call.data().await?);
            assert_eq!(first, second);
            call.reply(b"").data(second).await
        };
        let server = Server::builder().max_bytes(150_000).bind(bed.addr()).await.expect("a server");
        let (server, addr) = start(server, handler);
        let client = Client::new(addr);
        for _ in 0..3 {
            let reply = client.call(b"x").data(vec![4; 100_000]).await.expect("a reply");
            assert_eq!(reply.data.len(), 100_000);
        }
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}
