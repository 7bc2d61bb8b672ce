//! Calls in parts: order, back-pressure, and every way in which a stream ends.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bmi::rpc::Stream;
use bmi::{Body, Call, Client, Error, ErrorKind, Handle, Memory, Options, Server};
use bmi_sim::World;
use tokio::sync::Semaphore;

use crate::bed::{Bed, LIMIT, everywhere, in_a_world, start};

/// Parts that are under way in one direction, at most.
const WINDOW: usize = 8;
const LENGTHS: [usize; 9] = [0, 1, 5000, 8192, 65_536, 65_537, 300_000, 3 << 20, 7];

fn part(number: usize) -> Vec<u8> {
    (0..LENGTHS[number % LENGTHS.len()]).map(|at| (at * 7 + number) as u8).collect()
}

/// Sends each part back, and replies with their number.
async fn echo(call: Call) -> Result<(), Error> {
    let mut count = 0_u32;
    while let Some(part) = call.next().await? {
        call.send(part).await?;
        count += 1;
    }
    call.reply(count.to_string()).await
}

async fn open(client: &Client) -> Stream {
    client.call(b"stream").timeout(LIMIT).stream().await.expect("a stream")
}

/// Asks for a part that is not there yet, and does not wait for it.
fn ask(stream: &Stream) {
    let mut cx = Context::from_waker(Waker::noop());
    // The first ones may have come.
    while let Poll::Ready(part) = pin!(stream.next()).poll(&mut cx) {
        part.expect("a part").expect("the stream goes on");
    }
}

#[test]
fn parts_of_any_length_go_both_ways_in_order() {
    everywhere(async |bed: &Bed| {
        let (server, addr) = bed.serve(echo).await;
        for client in [Client::new(addr.as_str()), Client::builder().offer(0).to(addr.as_str())] {
            let stream = open(&client).await;
            let sending = async {
                for number in 0..50 {
                    stream.send(part(number)).await.expect("it is taken");
                }
                stream.end().await.expect("it goes");
                assert_eq!(stream.send(part(0)).await.expect_err("ended").kind(), ErrorKind::Invalid);
            };
            let receiving = async {
                let mut number = 0;
                while let Some(came) = stream.next().await.expect("a part") {
                    assert!(came == part(number), "part {number}");
                    number += 1;
                }
                assert_eq!((number, stream.next().await.expect("the end again")), (50, None));
            };
            futures_util::future::join(sending, receiving).await;
            assert_eq!(stream.finish().await.expect("a reply").bytes, "50");
            client.close().await;
        }
        server.shutdown(Duration::from_secs(1)).await;
    });
}

#[test]
fn many_streams_share_a_connection() {
    everywhere(async |bed: &Bed| {
        let (server, addr) = bed.serve(echo).await;
        let client = Client::new(addr);
        let all: Vec<_> = (0..40_usize)
            .map(|number| {
                let client = client.clone();
                bmi::spawn(async move {
                    let stream = open(&client).await;
                    for at in number..number + 20 {
                        stream.send(part(at % 7)).await.expect("it is taken");
                        assert!(stream.next().await.expect("a part").expect("one for each") == part(at % 7));
                    }
                    assert_eq!(stream.finish().await.expect("a reply").bytes, "20");
                })
            })
            .collect();
        for one in all {
            one.await.expect("a task");
        }
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// A handler that takes no part stops its client, and so does a client that takes none.
#[test]
fn whoever_is_slow_slows_the_other() {
    in_a_world(async |bed: &Bed| {
        let (go_on, sent) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let (waits, counts) = (Arc::clone(&go_on), Arc::clone(&sent));
        let handler = move |call: Call| {
            let (waits, counts) = (Arc::clone(&waits), Arc::clone(&counts));
            async move {
                call.next().await?;
                waits.acquire().await.expect("open").forget();
                while call.next().await?.is_some() {}
                for number in 0..100 {
                    call.send(vec![number; 50_000]).await?;
                    counts.fetch_add(1, Ordering::SeqCst);
                }
                call.reply(b"").await
            }
        };
        let (server, addr) = bed.serve(handler).await;
        let client = Client::new(addr);
        let stream = Arc::new(client.call(b"").timeout(3 * LIMIT).stream().await.expect("a stream"));
        let (sends, went) = (Arc::clone(&stream), Arc::new(AtomicUsize::new(0)));
        let counts = Arc::clone(&went);
        let sending = bmi::spawn(async move {
            for _ in 0..100 {
                sends.send(vec![1; 100_000]).await.expect("it is taken");
                counts.fetch_add(1, Ordering::SeqCst);
            }
            sends.end().await.expect("it goes");
        });
        bmi::sleep(LIMIT / 2).await;
        // One was taken.
        assert_eq!(went.load(Ordering::SeqCst), WINDOW + 1);
        go_on.add_permits(1);
        sending.await.expect("it goes on");
        assert_eq!(stream.next().await.expect("a part").expect("the first")[0], 0);
        assert_eq!(stream.next().await.expect("a part").expect("the second")[0], 1);
        bmi::sleep(LIMIT / 2).await;
        assert_eq!(sent.load(Ordering::SeqCst), WINDOW + 1);
        for number in 2..100 {
            assert_eq!(stream.next().await.expect("a part").expect("the next")[0], number);
        }
        assert_eq!(stream.next().await.expect("the end"), None);
        drop(stream);
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

#[test]
fn an_error_of_the_handler_ends_both_directions() {
    everywhere(async |bed: &Bed| {
        let handler = |call: Call| async move {
            let part = call.next().await?.expect("a part");
            call.send(part).await?;
            match call.request() {
                b"fail" => Err(Error::new(ErrorKind::Io, "the disk is on fire")),
                b"panic" => panic!("planned"),
                _ => call.reply(b"enough").data(vec![9; 200_000]).await,
            }
        };
        let (server, addr) = bed.serve(handler).await;
        let client = Client::new(addr);
        for (request, kind) in [("fail", Some(ErrorKind::Io)), ("panic", Some(ErrorKind::Abandoned)), ("reply", None)] {
            if bed.is_world() && request == "panic" {
                continue;
            }
            let stream = client.call(request).timeout(LIMIT).stream().await.expect("a stream");
            stream.send(part(6)).await.expect("it is taken");
            assert!(stream.next().await.expect("a part").expect("the first") == part(6));
            let sending = async {
                loop {
                    if let Err(error) = stream.send(part(5)).await {
                        return error;
                    }
                }
            };
            assert_eq!(sending.await.kind(), kind.unwrap_or(ErrorKind::Cancelled));
            match kind {
                Some(kind) => assert_eq!(stream.next().await.expect_err("it failed").kind(), kind),
                None => assert_eq!(stream.next().await.expect("the end"), None),
            }
            match (kind, stream.finish().await) {
                (Some(kind), Err(error)) => assert_eq!(error.kind(), kind, "{error}"),
                (None, Ok(reply)) => assert_eq!((&reply.bytes[..], reply.data.len()), (&b"enough"[..], 200_000)),
                (_, outcome) => panic!("{request}: {outcome:?}"),
            }
        }
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// A client that drops its stream, or is not interested in the rest.
#[test]
fn a_handler_learns_that_its_client_takes_no_more() {
    everywhere(async |bed: &Bed| {
        let (told, ends) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (tells, waits) = (Arc::clone(&told), Arc::clone(&ends));
        let handler = move |call: Call| {
            let (tells, waits) = (Arc::clone(&tells), Arc::clone(&waits));
            async move {
                if call.request() == b"waits" {
                    call.client_gone().await;
                    tells.add_permits(1);
                    return Err(call.next().await.expect_err("dropped"));
                }
                let error = loop {
                    if let Err(error) = call.send(vec![1; 10_000]).await {
                        break error;
                    }
                };
                assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                if call.request() == b"sends" {
                    waits.add_permits(1);
                }
                assert_eq!(call.next().await.ok(), (call.request() != b"sends").then_some(None));
                call.reply(b"thanks").await
            }
        };
        let (server, addr) = bed.serve(handler).await;
        let client = Client::new(addr);
        let stream = client.call(b"waits").timeout(LIMIT).stream().await.expect("a stream");
        drop(stream);
        told.acquire().await.expect("open").forget();
        let stream = client.call(b"sends").timeout(LIMIT).stream().await.expect("a stream");
        stream.next().await.expect("a part");
        drop(stream);
        ends.acquire().await.expect("open").forget();
        let stream = client.call(b"finish").timeout(LIMIT).stream().await.expect("a stream");
        stream.next().await.expect("a part");
        assert_eq!(stream.finish().await.expect("a reply").bytes, "thanks");
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

#[test]
fn a_handler_for_parts_serves_plain_calls() {
    everywhere(async |bed: &Bed| {
        let handler = |call: Call| async move {
            let data = call.next().await?;
            assert_eq!(call.next().await?, None);
            let error = call.send(vec![1]).await.expect_err("no stream");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            call.reply(data.map_or(0, |data| data.len()).to_string()).await
        };
        let (server, addr) = bed.serve(handler).await;
        let client = Client::new(addr);
        assert_eq!(client.call(b"").data(vec![1; 70_000]).await.expect("a reply").bytes, "70000");
        assert_eq!(client.call(b"").await.expect("a reply").bytes, "0");
        for call in [client.call(b"").data(vec![1]), client.call(b"").data_into(Memory::zeroed(9).expect("memory"))] {
            assert_eq!(call.stream().await.expect_err("it has data").kind(), ErrorKind::Invalid);
        }
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

#[test]
fn a_part_beyond_a_limit_is_too_large() {
    everywhere(async |bed: &Bed| {
        let handler = |call: Call| async move {
            match call.request() {
                b"down" => call.send(vec![1; 20_000]).await?,
                _ => assert_eq!(call.next().await.expect_err("none").kind(), ErrorKind::TooLarge),
            }
            call.reply(b"").await
        };
        let server = Server::builder().max_data(10_000).bind(bed.addr()).await.expect("a server");
        let (server, addr) = start(server, handler);
        let client = Client::builder().max_reply(10_000).to(addr);
        let stream = client.call(b"down").stream().await.expect("a stream");
        let error = stream.next().await.expect_err("too large");
        assert!(error.kind() == ErrorKind::TooLarge && error.detail().contains("max_reply"), "{error}");
        drop(stream);
        let stream = client.call(b"up").stream().await.expect("a stream");
        stream.send(vec![0; 10_001]).await.expect("it went");
        let error = stream.send(vec![0; 1]).await.expect_err("the first was too large");
        assert!(error.kind() == ErrorKind::TooLarge && error.detail().contains("max_data"), "{error}");
        drop(stream);
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// Streams wait for a place as calls do, and are refused as calls are.
#[test]
fn a_stream_waits_for_its_turn() {
    everywhere(async |bed: &Bed| {
        let server = Server::builder().max_calls(1).max_waiting(1).bind(bed.addr()).await.expect("a server");
        let (server, addr) = start(server, echo);
        let client = Client::new(addr);
        let first = open(&client).await;
        first.send(part(2)).await.expect("it is taken");
        first.next().await.expect("a part");
        let second = open(&client).await;
        second.send(part(3)).await.expect("it waits with its call");
        let error = open(&client).await.next().await.expect_err("no room");
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert_eq!(first.finish().await.expect("a reply").bytes, "1");
        for number in 4..30 {
            second.send(part(number)).await.expect("it is taken");
            assert!(second.next().await.expect("a part").expect("one more") == part(number - 1));
        }
        assert!(second.next().await.expect("a part").expect("the last") == part(29));
        assert_eq!(second.finish().await.expect("a reply").bytes, "27");
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// From 1 us to 10 ms.
fn some_time() -> Duration {
    Duration::from_micros(10_u64.pow((bmi::runtime::random() % 5) as u32))
}

/// Waits that are dropped lose no part, on either side.
#[test]
fn a_wait_for_a_part_may_be_dropped() {
    in_a_world(async |bed: &Bed| {
        let handler = |call: Call| async move {
            loop {
                let next = bmi::timeout(some_time(), call.next()).await;
                match next {
                    Ok(Ok(Some(part))) => call.send(part).await?,
                    Ok(Ok(None)) => return call.reply(b"").await,
                    Ok(Err(error)) => return Err(error),
                    Err(_) => {}
                }
            }
        };
        let (server, addr) = bed.serve(handler).await;
        let client = Client::new(addr);
        let stream = open(&client).await;
        let sending = async {
            for number in 0..60 {
                stream.send(part(number)).await.expect("it is taken");
            }
            stream.end().await.expect("it goes");
        };
        let receiving = async {
            let mut number = 0;
            loop {
                match bmi::timeout(some_time(), stream.next()).await {
                    Ok(Ok(Some(came))) => assert!(came == part(number), "part {number}"),
                    Ok(end) => return assert_eq!((end.expect("the end"), number), (None, 60)),
                    Err(_) => continue,
                }
                number += 1;
            }
        };
        futures_util::future::join(sending, receiving).await;
        stream.finish().await.expect("a reply");
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

#[test]
fn a_stream_ends_with_its_server_and_by_its_deadline() {
    everywhere(async |bed: &Bed| {
        let (server, addr) = bed.serve(echo).await;
        let client = Client::new(addr);
        let short = client.call(b"").timeout(Duration::from_millis(200)).stream().await.expect("a stream");
        assert_eq!(short.next().await.expect_err("nothing comes").kind(), ErrorKind::TimedOut);
        let stream = open(&client).await;
        stream.send(part(5)).await.expect("it is taken");
        stream.next().await.expect("a part");
        server.shutdown(Duration::ZERO).await;
        drop(server);
        let error = stream.next().await.expect_err("the server is gone");
        assert!(matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Abandoned), "{error}");
        assert_eq!(stream.finish().await.expect_err("the same").kind(), error.kind());
        client.close().await;
    });
}

/// Replays a bug: a handler in the middle of a stream waited for a client that was gone, until the
/// deadline of the call.
#[test]
fn a_lost_connection_ends_the_waits_of_a_handler() {
    everywhere(async |bed: &Bed| {
        let (begun, ended) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (begins, ends) = (Arc::clone(&begun), Arc::clone(&ended));
        let handler = move |call: Call| {
            let (begins, ends) = (Arc::clone(&begins), Arc::clone(&ends));
            async move {
                begins.add_permits(1);
                let error = match call.request() {
                    b"next" => loop {
                        if let Err(error) = call.next().await {
                            break error;
                        }
                    },
                    _ => loop {
                        if let Err(error) = call.send(vec![1; 100]).await {
                            break error;
                        }
                    },
                };
                assert!(matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Cancelled), "{error}");
                ends.add_permits(1);
                Err(error)
            }
        };
        let (server, addr) = bed.serve(handler).await;
        for request in ["next", "send"] {
            let client = Client::new(addr.as_str());
            let stream = client.call(request).timeout(Duration::from_secs(3000)).stream().await.expect("a stream");
            stream.send(part(2)).await.expect("it goes");
            if request == "send" {
                stream.next().await.expect("a part");
            }
            begun.acquire().await.expect("open").forget();
            client.close().await;
            ended.acquire().await.expect("open").forget();
            assert!(stream.next().await.is_err() && stream.finish().await.is_err());
        }
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// Replays a bug: a handler whose part waited to be fetched was not told that the client had
/// enough.
#[test]
fn a_part_that_nobody_fetches_does_not_stop_the_end() {
    everywhere(async |bed: &Bed| {
        let handler = |call: Call| async move {
            // The first may be on its way when the client ends.
            let error = loop {
                if let Err(error) = call.send(vec![1; 100_000]).await {
                    break error;
                }
            };
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
            call.reply(b"enough").await
        };
        let (server, addr) = bed.serve(handler).await;
        let client = Client::builder().offer(0).to(addr);
        let stream = client.call(b"").timeout(LIMIT).stream().await.expect("a stream");
        // It asks for a part, and does not take it.
        ask(&stream);
        assert_eq!(stream.finish().await.expect("a reply").bytes, "enough");
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// Replays a bug: streams kept the memory for one part while they waited for that of the next, so
/// they waited for each other.
#[test]
fn streams_do_not_wait_for_the_memory_of_each_other() {
    everywhere(async |bed: &Bed| {
        let server = Server::builder().max_bytes(300_000).bind(bed.addr()).await.expect("a server");
        let (server, addr) = start(server, echo);
        let client = Client::new(addr);
        let streams = [open(&client).await, open(&client).await, open(&client).await];
        for len in [90_000, 280_000, 100_000] {
            for stream in &streams {
                stream.send(vec![3; len]).await.expect("it goes");
            }
            for stream in &streams {
                assert_eq!(stream.next().await.expect("a part").expect("one for each").len(), len);
            }
        }
        drop(streams);
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// Replays a bug: a part whose sending was given up was missing, and the stream ended well.
#[test]
fn a_part_that_was_given_up_is_missed() {
    in_a_world(async |bed: &Bed| {
        let given_up = Arc::new(Semaphore::new(0));
        let gives_up = Arc::clone(&given_up);
        let handler = move |call: Call| {
            let gives_up = Arc::clone(&gives_up);
            async move {
                call.send(vec![1; 100]).await?;
                let late = bmi::timeout(Duration::from_millis(50), call.send(vec![2; 100_000])).await;
                late.expect_err("nobody fetches it");
                gives_up.add_permits(1);
                assert_eq!(call.send(vec![3; 100]).await.expect_err("one is missing").kind(), ErrorKind::Protocol);
                call.reply(b"as if nothing had happened").await
            }
        };
        let (server, addr) = bed.serve(handler).await;
        let client = Client::builder().offer(0).to(addr);
        let stream = client.call(b"").timeout(LIMIT).stream().await.expect("a stream");
        assert_eq!(stream.next().await.expect("a part").expect("the first").len(), 100);
        ask(&stream);
        given_up.acquire().await.expect("open").forget();
        assert_eq!(stream.finish().await.expect_err("one is missing").kind(), ErrorKind::Protocol);
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// A request as a client writes it: a kind, the number of a stream, and a number.
fn request(kind: u8, stream: u32, number: u64) -> Vec<u8> {
    let time_us = 1_000_000_u64;
    [&[2, kind, 0, 0][..], &stream.to_le_bytes(), &time_us.to_le_bytes(), &number.to_le_bytes()].concat()
}

/// What no client of this library does: parts of no stream, out of turn, and too many.
#[test]
fn a_client_that_breaks_the_rules_ends_its_own_stream() {
    let world = World::new(3);
    let (at, client) = (world.node("server"), world.node("client"));
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let sees = Arc::clone(&seen);
    at.spawn(async move {
        let server = Server::bind("tcp://0.0.0.0:7001").await.expect("a server");
        let handler = move |call: Call| {
            let sees = Arc::clone(&sees);
            async move {
                bmi::sleep(Duration::from_millis(10)).await;
                let mut parts = 0;
                let error = loop {
                    match call.next().await {
                        Ok(Some(_)) => parts += 1,
                        Ok(None) => panic!("no end was sent"),
                        Err(error) => break error,
                    }
                };
                sees.lock().expect("no panic").push((call.request()[0], parts, error.kind()));
                Err(error)
            }
        };
        server.serve(handler).await.expect("it serves");
    });
    let hostile = async {
        let addr = "tcp://server:7001".parse().expect("an address");
        let host = bmi::runtime::host().expect("a node");
        let handle: Handle = host.open(&bmi::Config::named("hostile")).expect("an endpoint");
        let peer =
            handle.connect(&host.locate(&addr).expect("it is known"), handle.within(LIMIT)).await.expect("a peer");
        let tell = |request: Vec<u8>| {
            let sent = peer.call(&request, Body::Out(vec![1; 100].into()), Options::default()).expect("it goes");
            async move { sent.reply().await.map(|_| ()).map_err(|error| error.kind()) }
        };
        let unanswered = Err(ErrorKind::Abandoned);
        // Of no stream.
        assert_eq!(tell(request(5, 9, 0)).await, unanswered);
        assert_eq!(tell(request(6, 9, 0)).await, unanswered);
        let open = |stream: u32| {
            let request = [request(4, stream, 1000), vec![stream as u8]].concat();
            peer.call(&request, Body::None, Options::default()).expect("it goes")
        };
        // Out of turn.
        let first = open(1);
        assert_eq!(tell(request(5, 1, 1)).await, unanswered);
        // Too many parts.
        let second = open(2);
        let parts: Vec<_> = (0..20).map(|turn| tell(request(5, 2, turn))).collect();
        for part in parts {
            assert_eq!(part.await, unanswered);
        }
        // Too many demands, and a number that is in use.
        let third = open(3);
        let again = open(3).reply().await.expect("an answer");
        assert_ne!(again.bytes[1], 0, "it is refused");
        let demands: Vec<_> = (0..20).map(|turn| tell(request(6, 3, turn))).collect();
        for demand in demands {
            assert_eq!(demand.await, unanswered);
        }
        for call in [first, second, third] {
            assert_ne!(call.reply().await.expect("an answer").bytes[1], 0, "it failed");
        }
        handle.close().await;
    };
    world.block_on(client.run(hostile));
    let mut seen = seen.lock().expect("no panic").clone();
    seen.sort_by_key(|(stream, ..)| *stream);
    assert_eq!(seen, [1, 2, 3].map(|stream| (stream, 0, ErrorKind::Protocol)));
}
