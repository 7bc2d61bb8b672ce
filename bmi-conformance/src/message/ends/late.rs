//! What arrives when nobody waits for it any more: late messages of calls, messages that a program
//! discards, and values that are dropped.

use std::time::Duration;

use bmi_core::comm::{Body, Call, Incoming, Path, Policy};
use bmi_core::{Config, ErrorKind, MAX_TAG, Memory, OpKind, Options};
use futures_util::future::join;

use crate::data::{filled, is_sole, memory, pattern};
use crate::message::ways::fast::ready;
use crate::message::{LEFT, tight};
use crate::net::{Net, Pair, next_call, soon};

/// Number of late messages. They are several times what the credits allow.
const MANY: usize = 40;

/// Makes a call and returns it with its request.
async fn asked(pair: &Pair, body: Body, path: Option<Path>) -> (Call, Incoming) {
    let call = pair.call(b"?", body, path);
    let incoming = next_call(&pair.b).await;
    (call, incoming)
}

/// The bodies and paths of calls whose replies differ in how they travel.
fn shapes() -> Vec<(Body, Option<Path>, usize)> {
    let read = |len, path| (Body::In(memory(len).into()), Some(path), len);
    vec![
        (Body::None, None, 0),
        read(500, Path::Inline),
        read(3000, Path::FastRdma),
        read(20_000, Path::FastRdma),
        read(60_000, Path::ServerBased),
        (Body::Out(filled(1, 500).into()), Some(Path::Inline), 0),
        (Body::Out(filled(1, 20_000).into()), Some(Path::FastRdma), 0),
    ]
}

/// The reply to a call that was given up reaches no later call, however it travels.
pub async fn a_late_reply_reaches_no_other_call(net: &Net<'_>) {
    let pair = ready(net, &Config::default()).await;
    for (number, (body, path, len)) in shapes().into_iter().enumerate() {
        let (first, late) = asked(&pair, body.clone(), path).await;
        drop(first);
        let (second, incoming) = asked(&pair, body, path).await;
        assert_ne!(late.id(), incoming.id());
        // To write into memory that was taken back ends a connection, so it is not tried.
        let data = |seed| Some(filled(seed, len).into()).filter(|_| len > 0 && len <= 20_000);
        let old = data(7).filter(|_| late.path() == Some(Path::Inline));
        late.reply(b"old", old, soon(&pair.b)).await.expect("a late reply");
        let (reply, sent) = join(second.reply(), incoming.reply(b"new", data(8), soon(&pair.b))).await;
        sent.expect("reply");
        assert_eq!(reply.expect("reply").bytes, &b"new"[..], "shape {number}");
        pair.settled(net, "after a late reply").await;
    }
}

/// Late messages give their credits back: far more of them arrive than the credits allow, in both
/// directions. They are counted.
pub async fn late_messages_keep_no_credit(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let before = pair.a.counters().discarded;
    for number in 0..MANY {
        let (call, incoming) = asked(&pair, Body::None, None).await;
        drop(call);
        let reply = pattern(1, if number % 2 == 0 { 900 } else { 0 });
        incoming.reply(&reply, None, soon(&pair.b)).await.expect("a late reply");
    }
    let dropped = || pair.a.counters().discarded - before;
    net.until("late replies", || (dropped() == MANY as u64).then_some(())).await;
    pair.settled(net, "after late replies").await;
    // Long messages of calls that are over.
    for _ in 0..MANY {
        let (call, incoming) = asked(&pair, Body::None, None).await;
        drop(call);
        let long = pair.to_a.send(incoming.id(), pattern(2, 30_000), soon(&pair.b)).await;
        assert_eq!(long.expect_err("nobody wants it").kind(), ErrorKind::Cancelled);
    }
    pair.settled(net, "after long messages").await;
    // Grants for calls that are over.
    if crate::message::reads(net) {
        for _ in 0..MANY {
            let (call, incoming) = asked(&pair, Body::Out(filled(1, 5000).into()), Some(Path::ClientBased)).await;
            drop(call);
            let options = Options::within(pair.b.now(), Duration::from_millis(5));
            let error = incoming.fetch(0, &memory(5000), options).await.expect_err("nobody writes");
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        }
    }
    pair.settled(net, "after late grants").await;
}

/// The server ends a move of data by the client early, and gives the request up. The client, which
/// has not heard of it, then accesses the memory. That was a violation, which ended the connection.
pub async fn a_move_that_the_server_ends_early_ends_its_call_alone(net: &Net<'_>) {
    let pair = ready(net, &Config::default().dropped_call(LEFT)).await;
    for reads in [false, true] {
        if reads && !crate::message::reads(net) {
            continue;
        }
        let body = if reads { Body::In(memory(50_000).into()) } else { Body::Out(filled(1, 50_000).into()) };
        let (call, incoming) = asked(&pair, body, Some(Path::ClientBased)).await;
        let (buffer, options) = (memory(50_000), Options::within(pair.b.now(), Duration::from_millis(5)));
        let moved = match reads {
            false => incoming.fetch(0, &buffer, options).await,
            true => incoming.store(0, &buffer, options).await,
        };
        assert_eq!(moved.expect_err("the client does nothing").kind(), ErrorKind::TimedOut);
        assert!(buffer.is_retired(), "the client may access it");
        drop(incoming);
        assert_eq!(call.reply().await.expect_err("it was given up").kind(), ErrorKind::Abandoned);
        let (other, incoming) = asked(&pair, Body::None, None).await;
        let (reply, sent) = join(other.reply(), incoming.reply(b"here", None, soon(&pair.b))).await;
        sent.expect("reply");
        assert_eq!(reply.expect("the connection is the same").bytes, &b"here"[..]);
        pair.settled(net, "after a move that ended early").await;
        assert!(!buffer.is_retired());
    }
}

/// A reply that came while its call was busy elsewhere is dropped with the call.
pub async fn what_arrived_for_a_call_goes_with_it(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    for _ in 0..MANY {
        let (call, incoming) = asked(&pair, Body::None, None).await;
        let id = incoming.id();
        // The first message matches the call's receive. The others are parked.
        for _ in 0..3 {
            pair.to_a.send(id, pattern(1, 100), soon(&pair.b)).await.expect("send");
        }
        incoming.reply(b"", None, soon(&pair.b)).await.expect("reply");
        net.until("parked messages", || (pair.a.resource_usage().parked == 3).then_some(())).await;
        assert!(pair.a.resource_usage().parked_bytes >= 200);
        drop(call);
        assert_eq!((pair.a.resource_usage().parked, pair.a.resource_usage().parked_bytes), (0, 0));
    }
    pair.settled(net, "at the end").await;
}

/// A request that the server drops ends its call at once, and not at its deadline.
pub async fn a_dropped_request_ends_its_call(net: &Net<'_>) {
    let pair = ready(net, &Config::default()).await;
    for (body, path, _) in shapes() {
        let (call, incoming) = asked(&pair, body, path).await;
        drop(incoming);
        let error = call.reply().await.expect_err("there is no reply");
        assert_eq!(error.kind(), ErrorKind::Abandoned, "{error}");
        pair.settled(net, "after a dropped request").await;
    }
    // A handler that fails before its reply is out.
    let (call, incoming) = asked(&pair, Body::In(memory(100).into()), None).await;
    let too_long = incoming.reply(b"", Some(filled(1, 101).into()), soon(&pair.b)).await;
    assert_eq!(too_long.expect_err("too long").kind(), ErrorKind::Invalid);
    assert_eq!(call.reply().await.expect_err("there is no reply").kind(), ErrorKind::Abandoned);
    pair.settled(net, "after a failed handler").await;
}

/// The data of a read may be shorter than the memory for it, on every path. The memory behind it
/// stays as it was if one piece is read into in place.
pub async fn replies_shorter_than_their_memory(net: &Net<'_>) {
    let pair = ready(net, &Config::default()).await;
    for path in Path::TAKEN.into_iter().chain([Path::Hybrid]) {
        for (room, len) in [(1, 0), (500, 1), (3000, 2999), (20_000, 500), (60_000, 30_000), (200_000, 0)] {
            for pieces in [1, 4] {
                let what = format!("{path}, {len} of {room} bytes in {pieces} pieces");
                let target = Memory::from(vec![0x5a; room]);
                let list = (0..pieces)
                    .map(|at| target.slice(at * room / pieces, (at + 1) * room / pieces - at * room / pieces));
                let (call, incoming) = asked(&pair, Body::In(list.collect()), Some(path)).await;
                let sent = incoming.reply(b"some", Some(filled(3, len).into()), soon(&pair.b));
                let (reply, sent) = join(call.reply(), sent).await;
                sent.unwrap_or_else(|error| panic!("{what}: {error}"));
                let reply = reply.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!((&reply.bytes[..], reply.data), (&b"some"[..], len as u64), "{what}");
                let bytes = target.slice(0, room).to_vec();
                assert!(bytes[..len] == pattern(3, len), "{what}: the data");
                assert!(bytes[len..].iter().all(|byte| *byte == 0x5a), "{what}: the memory behind the data");
            }
        }
    }
    pair.settled(net, "at the end").await;
}

/// A discard takes the place of a receive: for a message that is parked and for one that is not,
/// of any length, and in the order of its tag.
pub async fn discards(net: &Net<'_>) {
    for config in [Config::default(), tight()] {
        let pair = net.pair(&config).await;
        for len in [0, 100, 900, 20_000, 300_000] {
            for parked in [false, true] {
                let what = format!("{len} bytes, parked: {parked}");
                let before = pair.b.counters().discarded;
                let early = (!parked).then(|| pair.to_a.discard(5, soon(&pair.b)));
                let kept = memory(10);
                let next = (!parked).then(|| pair.recv(5, &kept));
                let dropped = pair.send(5, pattern(1, len));
                let taken = pair.send(5, pattern(2, 10));
                if parked {
                    net.until("two parked messages", || (pair.b.resource_usage().parked == 2).then_some(())).await;
                }
                let discard = early.unwrap_or_else(|| pair.to_a.discard(5, soon(&pair.b)));
                let next = next.unwrap_or_else(|| pair.recv(5, &kept));
                let end = discard.await.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!((end.kind, end.len), (OpKind::Discard, len as u64), "{what}");
                assert_eq!(pair.b.counters().discarded - before, 1, "{what}");
                next.await.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(kept.slice(0, 10).to_vec() == pattern(2, 10), "{what}: the next message");
                match dropped.await {
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled, "{what}"),
                }
                taken.await.expect("the second message");
            }
        }
        // One that finds no message.
        let waits = pair.to_a.discard(5, soon(&pair.b));
        waits.cancel();
        assert_eq!(waits.await.expect_err("cancelled").kind(), ErrorKind::Cancelled);
        pair.settled(net, "at the end").await;
    }
}

/// Operations, calls, requests and messages may be dropped while the endpoint is in use.
pub async fn dropped_while_the_endpoint_is_in_use(net: &Net<'_>) {
    let pair = ready(net, &Config::default().dropped_call(LEFT)).await;
    let mut target = memory(1000);
    let operation = pair.to_b.recv(1, &target, soon(&pair.a));
    pair.a.with(|_| drop(operation));
    assert!(is_sole(&mut target), "the memory of a dropped receive");
    let (call, incoming) = asked(&pair, Body::In(memory(100_000).into()), Some(Path::ServerBased)).await;
    pair.a.with(|_| drop(call));
    pair.b.with(|_| drop(incoming));
    let (call, incoming) = asked(&pair, Body::Out(filled(1, 20_000).into()), Some(Path::FastRdma)).await;
    pair.b.with(|_| drop(incoming));
    assert_eq!(call.reply().await.expect_err("there is no reply").kind(), ErrorKind::Abandoned);
    pair.send_unexpected(3, pattern(1, 50)).await.expect("send");
    let message = pair.b.next_unexpected().await;
    pair.b.with(|_| drop(message));
    let (grant, written) = pair.grant(memory(5000));
    pair.b.with(|_| drop((grant, written)));
    pair.a.with(|engine| engine.set_policy(Policy::default()));
    pair.settled(net, "at the end").await;
}

/// The tags above the largest belong to calls: a program cannot send with them.
pub async fn reserved_tags_are_refused(net: &Net<'_>) {
    let pair = ready(net, &Config::default()).await;
    let target = memory(10);
    pair.pass(MAX_TAG, pattern(1, 10), &target).await;
    for operation in [pair.send(MAX_TAG + 1, pattern(1, 10)), pair.send_unexpected(MAX_TAG + 1, pattern(1, 10))] {
        let error = operation.await.expect_err("a reserved tag");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    // A message that only looks like a call's.
    pair.send_unexpected(9, pattern(1, 24)).await.expect("send");
    let error = Incoming::new(pair.b.next_unexpected().await).expect_err("no call");
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    pair.settled(net, "at the end").await;
}
