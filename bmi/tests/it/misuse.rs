//! Handlers and clients that end at the wrong moment: what they held comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bmi::{Call, Client, Error, ErrorKind, Server};
use tokio::sync::Semaphore;

use crate::bed::{Bed, LIMIT, echo, everywhere, start};

/// Waits until a number is reached.
async fn until(number: &AtomicUsize, wanted: usize) {
    while number.load(Ordering::SeqCst) < wanted {
        bmi::sleep(Duration::from_millis(1)).await;
    }
}

/// Calls whose client has given up are answered all the same, each in another way.
#[test]
fn three_hundred_late_replies_harm_no_other_call() {
    const CALLS: usize = 300;
    everywhere(async |bed: &Bed| {
        let (begun, go_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let (count, waits) = (Arc::clone(&begun), Arc::clone(&go_on));
        let answered = Arc::new(AtomicUsize::new(0));
        let ended = Arc::clone(&answered);
        let handler = move |call: Call| {
            let (count, waits, ended) = (Arc::clone(&count), Arc::clone(&waits), Arc::clone(&ended));
            async move {
                if call.data_len() > 0 {
                    return echo(call).await;
                }
                let number = count.fetch_add(1, Ordering::SeqCst);
                waits.acquire().await.expect("never closed").forget();
                // In the message, in the memory of the call, and to be fetched, which nobody does.
                let len = [10, 30_000, 200_000][number % 3];
                let _ = bmi::timeout(LIMIT / 10, call.reply(b"late").data(vec![1; len]).into_future()).await;
                ended.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        };
        let (server, addr) = bed.serve(handler).await;
        let client = Client::new(addr);
        let calls: Vec<_> = (0..CALLS)
            .map(|_| {
                let call = client.call(b"slow").timeout(2 * LIMIT);
                bmi::spawn(async move { call.await })
            })
            .collect();
        until(&begun, CALLS).await;
        calls.iter().for_each(|call| call.abort());
        for call in calls {
            assert_eq!(call.await.expect_err("aborted").kind(), ErrorKind::Abandoned);
        }
        go_on.add_permits(CALLS);
        for len in [1, 10_000, 1 << 20] {
            let reply = client.call(b"x").data(vec![2; len]).await.expect("a reply");
            assert!(reply.data == vec![2; len]);
        }
        until(&answered, CALLS).await;
        assert_eq!(client.call(b"x").data(vec![2; 10]).await.expect("a reply").data.len(), 10);
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// The server has memory for one call at a time, and places for two.
#[test]
fn what_a_handler_held_comes_back_however_it_ends() {
    const MOST_BYTES: usize = 100_000;
    everywhere(async |bed: &Bed| {
        let is_world = bed.is_world();
        let handler = move |call: Call| async move {
            let data = call.data().await?;
            match call.request() {
                b"fail" => Err(Error::new(ErrorKind::Exhausted, "no blocks are left")),
                b"drop" => Ok(()),
                // In a world, a panic is what a test looks for.
                b"panic" if !is_world => panic!("asked to panic"),
                b"panic" | b"hang" => std::future::pending().await,
                _ => call.reply(b"").data(data).await,
            }
        };
        let server = Server::builder().max_calls(2).max_bytes(MOST_BYTES as u64);
        let (server, addr) = start(server.bind(bed.addr()).await.expect("a server"), handler);
        let client = Client::new(addr);
        for _ in 0..3 {
            for request in ["fail", "drop", "panic", "hang"] {
                let call = client.call(request).data(vec![1; MOST_BYTES]).timeout(Duration::from_millis(100));
                call.await.expect_err("no reply");
            }
            // More than it takes back, and more than the server has.
            let error = client.call(b"").data(vec![1; MOST_BYTES + 1]).await.expect_err("too long");
            assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
            let dropped = client.call(b"hang").data(vec![1; MOST_BYTES]).timeout(Duration::from_millis(100));
            let _ = bmi::timeout(Duration::from_millis(5), dropped.into_future()).await;
            let reply = client.call(b"").data(vec![3; MOST_BYTES]).timeout(LIMIT).await.expect("a reply");
            assert!(reply.data == vec![3; MOST_BYTES]);
        }
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// A program that drops its client, and the calls that it has begun.
#[test]
fn a_client_that_is_dropped_ends_its_connection() {
    everywhere(async |bed: &Bed| {
        let (begun, gone) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (begins, ends) = (Arc::clone(&begun), Arc::clone(&gone));
        let handler = move |call: Call| {
            let (begins, ends) = (Arc::clone(&begins), Arc::clone(&ends));
            async move {
                begins.fetch_add(1, Ordering::SeqCst);
                call.client_gone().await;
                ends.fetch_add(1, Ordering::SeqCst);
                call.reply(b"nobody is there").await
            }
        };
        let (server, addr) = bed.serve(handler).await;
        for round in 1..=5 {
            let client = Client::new(addr.as_str());
            let calls = [0, 1000, 1 << 20].map(|len| {
                let call = client.call(b"").data(vec![1; len]).timeout(LIMIT);
                bmi::spawn(async move { call.await })
            });
            until(&begun, 3 * round).await;
            // The calls keep it.
            drop(client);
            assert_eq!(gone.load(Ordering::SeqCst), 3 * (round - 1));
            calls.iter().for_each(|call| call.abort());
            until(&gone, 3 * round).await;
        }
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// Calls of a client that is closed end at once, those in flight and those that wait for a turn.
#[test]
fn a_client_that_is_closed_ends_its_calls() {
    everywhere(async |bed: &Bed| {
        let (begun, never) = (Arc::new(AtomicUsize::new(0)), Duration::from_secs(3600));
        let begins = Arc::clone(&begun);
        let handler = move |_: Call| {
            begins.fetch_add(1, Ordering::SeqCst);
            std::future::pending()
        };
        let (server, addr) = bed.serve(handler).await;
        let client = Client::builder().max_calls(2).to(addr);
        let calls = [(); 5].map(|()| {
            let call = client.call(b"").timeout(never);
            bmi::spawn(async move { call.await })
        });
        until(&begun, 2).await;
        let other = client.clone();
        client.close().await;
        for call in calls {
            let error = call.await.expect("a task").expect_err("closed");
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Cancelled, false), "{error}");
        }
        assert_eq!(begun.load(Ordering::SeqCst), 2);
        for error in [other.call(b"").await.expect_err("closed"), other.connect().await.expect_err("closed")] {
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        }
        other.close().await;
        server.shutdown(Duration::ZERO).await;
    });
}
