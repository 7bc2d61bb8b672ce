//! How calls end that do not end with a reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bmi::{Call, Client, Config, Error, ErrorKind, Instant, Server};

use crate::bed::{Bed, LIMIT, everywhere, outside, start};

/// Does what the request says.
async fn obey(call: Call) -> Result<(), Error> {
    match call.request() {
        b"fail" => Err(Error::new(ErrorKind::Exhausted, "no blocks are left")),
        b"refuse" => call.refuse("unknown request").await,
        b"drop" => Ok(()),
        b"panic" => panic!("asked to panic"),
        b"hang" => std::future::pending().await,
        _ => call.reply(b"done").await,
    }
}

/// Replays a bug: the client took an error of the handler for one of the connection, and made a
/// call again that may have been done.
#[test]
fn a_handler_whose_own_server_is_lost_is_not_called_again() {
    everywhere(async |bed: &Bed| {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let handler = move |call: Call| {
            count.fetch_add(1, Ordering::SeqCst);
            let kind = if call.request() == b"refused" { ErrorKind::Refused } else { ErrorKind::PeerLost };
            async move { Err(Error::new(kind, "a server behind this one")) }
        };
        let (server, addr) = bed.serve(handler).await;
        let client = Client::new(addr);
        for (number, request) in (1..).zip(["refused", "lost"]) {
            let error = client.call(request).await.expect_err("no reply");
            assert_eq!(error.detail(), "a server behind this one");
            assert_eq!(calls.load(Ordering::SeqCst), number);
            assert_eq!(client.links()[0].1, bmi::rpc::LinkState::Connected);
        }
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

#[test]
fn an_error_of_the_handler_reaches_the_client() {
    everywhere(async |bed: &Bed| {
        let (server, addr) = bed.serve(obey).await;
        let client = Client::new(addr);
        for (request, kind, text) in [
            ("fail", ErrorKind::Exhausted, "no blocks are left"),
            ("refuse", ErrorKind::Invalid, "unknown request"),
            ("drop", ErrorKind::Abandoned, "the handler ended without a reply"),
        ] {
            let error = client.call(request).await.expect_err("no reply");
            assert_eq!((error.kind(), error.detail()), (kind, text), "{error}");
        }
        assert_eq!(client.call(b"").await.expect("the server goes on").bytes, "done");
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// Outside only: in a world, a panic is what a test looks for.
#[test]
fn a_handler_that_panics_ends_its_own_call() {
    outside(async |bed: &Bed| {
        let (server, addr) = bed.serve(obey).await;
        let client = Client::new(addr);
        for _ in 0..3 {
            let error = client.call(b"panic").await.expect_err("no reply");
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Abandoned, false), "{error}");
        }
        assert_eq!(client.call(b"").await.expect("the server goes on").bytes, "done");
        server.shutdown(Duration::from_secs(1)).await;
    });
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The deadline travels with the call: the handler is dropped before it passes at the client.
#[test]
fn a_handler_ends_at_the_deadline_of_its_call() {
    everywhere(async |bed: &Bed| {
        let ended = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ended);
        let handler = move |call: Call| {
            let counted = Counted(Arc::clone(&count));
            async move {
                assert!(call.deadline() > Instant::now());
                let _counted = counted;
                obey(call).await
            }
        };
        let (server, addr) = bed.serve(handler).await;
        let client = Client::new(addr);
        client.connect().await.expect("a connection");
        let begun = Instant::now();
        let call = client.call(b"hang").timeout(Duration::from_millis(300));
        let error = call.await.expect_err("no reply");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        // On a busy machine the server may be late.
        let text = "the call's deadline passed at the server";
        assert!(error.detail() == text || !bed.is_world(), "{error}");
        assert!(begun.elapsed() >= Duration::from_millis(250));
        while ended.load(Ordering::SeqCst) == 0 {
            bmi::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(client.call(b"").await.expect("the server goes on").bytes, "done");
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

#[test]
fn a_handler_sees_that_its_client_is_gone() {
    everywhere(async |bed: &Bed| {
        let seen = Arc::new(tokio::sync::Notify::new());
        let told = Arc::clone(&seen);
        let handler = move |call: Call| {
            let told = Arc::clone(&told);
            async move {
                told.notify_one();
                call.client_gone().await;
                assert!(call.is_client_gone());
                told.notify_one();
                call.reply(b"nobody is there").await
            }
        };
        let (server, addr) = bed.serve(handler).await;
        let client = Client::new(addr);
        let waits = client.call(b"wait").timeout(LIMIT);
        let waits = bmi::spawn(async move { waits.await });
        seen.notified().await;
        client.close().await;
        seen.notified().await;
        assert!(waits.await.expect("a task").is_err());
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// A call that is dropped leaves the connection to the others, and its late reply harms nobody.
#[test]
fn dropped_calls_leave_nothing() {
    everywhere(async |bed: &Bed| {
        let handler = |call: Call| async move {
            let len = u32::from_le_bytes(call.request().try_into().expect("a length"));
            bmi::sleep(Duration::from_millis(2)).await;
            call.reply(b"").data(vec![1; len as usize]).await
        };
        let (server, addr) = bed.serve(handler).await;
        let client = Client::new(addr);
        for round in 0..30_u32 {
            let len: u32 = [10, 30_000, 200_000][round as usize % 3];
            let call = client.call(len.to_le_bytes()).timeout(Duration::from_secs(2));
            let patience = Duration::from_micros(u64::from(round) * 200);
            let ended = bmi::timeout(patience, call.into_future()).await;
            assert!(
                ended.is_err() || ended.is_ok_and(|reply| reply.is_ok_and(|reply| reply.data.len() == len as usize))
            );
        }
        let reply = client.call(200_000_u32.to_le_bytes()).await.expect("a reply");
        assert_eq!(reply.data.len(), 200_000);
        client.close().await;
        server.shutdown(Duration::from_secs(3)).await;
    });
}

#[test]
fn a_closed_client_and_a_wrong_address_say_so() {
    everywhere(async |bed: &Bed| {
        let (server, client) = bed.echo().await;
        client.call(b"x").await.expect("a reply");
        client.close().await;
        assert_eq!(client.call(b"x").await.expect_err("closed").kind(), ErrorKind::Cancelled);
        for (client, text) in
            [(Client::new("here"), "here"), (Client::new(Vec::<String>::new()), "no address to connect to")]
        {
            let error = client.call(b"x").await.expect_err("no address");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(text), "{error}");
        }
        let error = server.serve(obey).await.expect_err("it serves already");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// A call that may be repeated was not to be repeated until its time is over: only who runs the
/// server can change who is let in.
#[test]
fn a_client_that_is_not_let_in_gives_up_at_once() {
    everywhere(async |bed: &Bed| {
        let config = Config::named("closed").admit(|newcomer| Err(format!("{} is not known here", newcomer.identity)));
        let server = Server::builder().config(config).bind(bed.addr()).await.expect("a server");
        let (server, addr) = start(server, obey);
        let client = Client::new(addr);
        let start = Instant::now();
        let error = client.call("done").idempotent().timeout(LIMIT).await.expect_err("not let in");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.detail().contains("is not known here"), "{error}");
        assert!(start.elapsed() < LIMIT / 2);
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

#[test]
fn a_handler_knows_who_calls() {
    outside(async |bed: &Bed| {
        let tell = async |call: Call| {
            let user = call.identity().user();
            call.reply(format!("{user:?}")).await
        };
        let (server, addr) = bed.serve(tell).await;
        let (client, is_shm) = (Client::new(addr.as_str()), addr.starts_with("shm:"));
        let user = is_shm.then(|| rustix::process::geteuid().as_raw());
        assert_eq!(client.call("who am I").await.expect("a reply").bytes, format!("{user:?}"));
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}
