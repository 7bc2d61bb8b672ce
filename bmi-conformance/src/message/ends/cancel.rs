//! Cancelling, abandoning, and dropping futures, in every state that an operation passes through.

use bmi_core::{Access, Completion, Config, Endpoint, ErrorKind, MemList, OpId, OpKind, Options, Posted};

use crate::data::{Guarded, is_sole, memory, pattern};
use crate::message::tight;
use crate::net::{Net, Pair};

/// Returns limits as in [`tight`], with enough time for a slow peer to let go, so that no
/// connection is cut.
fn patient() -> Config {
    tight().fence_grace(std::time::Duration::from_secs(8))
}

/// Returns the id of an operation that was posted and is in flight.
fn pending(posted: Result<Posted, bmi_core::Error>) -> OpId {
    posted.expect("post").pending().expect("it cannot end at once")
}

/// Waits for the end of an operation.
async fn end_of(net: &Net<'_>, endpoint: &Endpoint, op: OpId, what: &str) -> Completion {
    net.until(what, || endpoint.with(|e| e.poll_op(op))).await
}

/// A receive without a matching message ends `Cancelled`. A message that comes later goes to the
/// next receive.
pub async fn unmatched_receive(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let (first, second) = (Guarded::new(&[100]), Guarded::new(&[100]));
    let options = Options::default().user(77);
    let op = pending(pair.b.with(|e| e.post_recv(pair.to_a.id(), 1, first.list(), options)));
    net.turns(5).await;
    pair.b.with(|e| e.cancel(op));
    let end = end_of(net, &pair.b, op, "the cancelled receive").await;
    assert_eq!((end.op, end.kind, end.status, end.user), (op, OpKind::Recv, Err(ErrorKind::Cancelled), 77));
    let error = pair.b.with(|e| e.explain(&end)).expect("a failure can be explained");
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Cancelled, Some("receive")), "{error}");
    pair.pass(1, pattern(1, 100), second.list()).await;
    first.check_untouched("the cancelled receive");
    second.check("the next receive", &pattern(1, 100));
    pair.settled(net, "at the end").await;
}

/// An announced send without a matching receive ends `Cancelled`. A receive posted later gets the
/// next message.
pub async fn unmatched_rendezvous(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let op = pending(pair.a.with(|e| e.post_send(pair.to_b.id(), 1, pattern(1, 50_000), Options::default())));
    net.turns(30).await;
    pair.a.with(|e| e.cancel(op));
    let end = end_of(net, &pair.a, op, "the cancelled send").await;
    assert_eq!((end.kind, end.status), (OpKind::Send, Err(ErrorKind::Cancelled)));
    let target = memory(50_000);
    assert_eq!(pair.pass(1, pattern(2, 30_000), &target).await.len, 30_000);
    assert!(target.to_vec()[..30_000] == pattern(2, 30_000));
    pair.settled(net, "at the end").await;
}

/// A send that waits for a credit ends `Cancelled` and is never sent.
pub async fn send_without_a_credit(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let first: Vec<_> = (0..10).map(|n| pair.send(1, pattern(n, 1000))).collect();
    let waiting = pending(pair.a.with(|e| e.post_send(pair.to_b.id(), 1, pattern(99, 1000), Options::default())));
    let last = pair.send(1, pattern(10, 1000));
    net.turns(20).await;
    pair.a.with(|e| e.cancel(waiting));
    let end = end_of(net, &pair.a, waiting, "the cancelled send").await;
    assert_eq!(end.status, Err(ErrorKind::Cancelled));
    for n in 0..=10 {
        let target = memory(1000);
        pair.recv(1, &target).await.expect("receive");
        assert!(target.to_vec() == pattern(n, 1000), "message {n}");
    }
    for sent in first {
        sent.await.expect("send");
    }
    last.await.expect("send");
    pair.settled(net, "at the end").await;
}

/// Connecting is cancelled before the peer has answered.
pub async fn connecting_is_given_up(net: &Net<'_>) {
    use bmi_core::Transport;
    let silent = net.bare("silent");
    let addr = silent.with(|t| t.listen(&net.listen_addr("silent"))).expect("listen");
    let a = net.endpoint("a", &Config::default());
    let (peer, op) = a.with(|e| e.connect(&addr, Options::default())).expect("connect starts");
    let target = memory(10);
    let waiting = a.peer(peer).recv(1, &target, Options::default());
    net.turns(20).await;
    a.with(|e| e.cancel(op));
    let end = end_of(net, &a, op, "the cancelled connect").await;
    assert_eq!((end.kind, end.status), (OpKind::Connect, Err(ErrorKind::Cancelled)));
    waiting.await.expect_err("the peer never was");
    net.settled(&a, 0, "after the cancelled connect").await;
    drop(Box::pin(a.connect(&addr, Options::default())));
    let mut dropped = Box::pin(a.connect(&addr, Options::default()));
    let polled = futures_util::poll!(&mut dropped);
    assert!(polled.is_pending());
    drop(dropped);
    net.settled(&a, 0, "after the dropped connect").await;
}

/// A stale id never reaches another operation, whatever is done with it.
pub async fn stale_ids_are_harmless(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let stale = pending(pair.b.with(|e| e.post_recv(pair.to_a.id(), 1, memory(10), Options::default())));
    pair.b.with(|e| e.cancel(stale));
    end_of(net, &pair.b, stale, "the cancelled receive").await;
    let target = memory(10);
    let fresh = pending(pair.b.with(|e| e.post_recv(pair.to_a.id(), 1, &target, Options::default())));
    assert_ne!(stale, fresh);
    pair.b.with(|e| {
        e.cancel(stale);
        e.abandon(stale);
        e.cancel(stale);
        assert_eq!(e.poll_op(stale), None);
    });
    net.turns(10).await;
    assert_eq!(pair.b.with(|e| e.poll_op(fresh)), None, "the new operation goes on");
    pair.send(1, pattern(1, 10)).await.expect("send");
    let end = end_of(net, &pair.b, fresh, "the new receive").await;
    assert_eq!((end.status, end.len), (Ok(()), 10));
    assert_eq!(pair.b.with(|e| e.poll_op(fresh)), None, "a completion is handed out once");
    pair.settled(net, "at the end").await;
}

/// An abandoned operation never reports, and everything it held is released.
pub async fn abandoned_operations(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let (mut near, mut far) = (memory(50_000), memory(50_000));
    let send = pending(pair.a.with(|e| e.post_send(pair.to_b.id(), 1, &near, Options::default())));
    let recv = pending(pair.b.with(|e| e.post_recv(pair.to_a.id(), 2, &far, Options::default())));
    net.turns(10).await;
    pair.a.with(|e| e.abandon(send));
    pair.b.with(|e| e.abandon(recv));
    pair.settled(net, "after both were abandoned").await;
    let mut completions = Vec::new();
    pair.a.with(|e| e.poll_all(&mut completions));
    pair.b.with(|e| e.poll_all(&mut completions));
    assert_eq!(completions, []);
    assert!(is_sole(&mut near) && is_sole(&mut far));
    pair.ping(net, "afterwards").await;
}

/// The side of a transfer that is cancelled.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Blow {
    Send,
    Recv,
    Both,
}

/// Starts a transfer, lets it run for `turns`, and cancels. Checks that both sides end, agree with
/// the bytes that arrived, and hold nothing.
async fn strike(net: &Net<'_>, pair: &Pair, blow: Blow, size: usize, turns: u32) {
    let what = format!("{blow:?} cancelled, {size} bytes, after {turns} turns");
    let (source, target) = (Guarded::filled(9, &[size / 2, size - size / 2]), Guarded::new(&[size]));
    // In half of the cases the receive is posted before the send, in the others after it.
    let receive = || pending(pair.b.with(|e| e.post_recv(pair.to_a.id(), 1, target.list(), Options::default())));
    let mut recv = turns.is_multiple_of(2).then(receive);
    let send = pair.a.with(|e| e.post_send(pair.to_b.id(), 1, source.list(), Options::default())).expect("post");
    net.turns(turns / 2).await;
    let (mut sent, mut received) = (None, None);
    if recv.is_none() {
        match pair.b.with(|e| e.post_recv(pair.to_a.id(), 1, target.list(), Options::default())).expect("post") {
            Posted::Pending(op) => recv = Some(op),
            Posted::Done(end) => received = Some(end),
        }
    }
    net.turns(turns - turns / 2).await;
    if let (Posted::Pending(op), true) = (send, blow != Blow::Recv) {
        pair.a.with(|e| e.cancel(op));
    }
    if let (Some(op), true) = (recv, blow != Blow::Send) {
        pair.b.with(|e| e.cancel(op));
    }
    match send {
        Posted::Done(end) => sent = Some(end),
        Posted::Pending(op) if blow != Blow::Recv => {
            sent = Some(end_of(net, &pair.a, op, &format!("{what}: the send")).await);
        }
        Posted::Pending(_) => {}
    }
    if let (None, Some(op), true) = (received, recv, blow != Blow::Send) {
        received = Some(end_of(net, &pair.b, op, &format!("{what}: the receive")).await);
    }
    // If the send and the receive had matched, the side that was not cancelled ends too, and is
    // told so before a ping arrives. Otherwise it waits for another partner, and gets one.
    pair.ping(net, &what).await;
    if sent.is_none()
        && let Posted::Pending(op) = send
    {
        if pair.a.with(|e| e.poll_op(op)).inspect(|end| sent = Some(*end)).is_none() {
            let other = pair.recv(1, memory(size)).await;
            other.unwrap_or_else(|error| panic!("{what}: another receive: {error}"));
            sent = Some(end_of(net, &pair.a, op, &format!("{what}: the send, with another receive")).await);
        }
    } else if let (None, Some(op)) = (received, recv)
        && pair.b.with(|e| e.poll_op(op)).inspect(|end| received = Some(*end)).is_none()
    {
        let other = pair.send(1, pattern(9, size)).await;
        other.unwrap_or_else(|error| panic!("{what}: another send: {error}"));
        received = Some(end_of(net, &pair.b, op, &format!("{what}: the receive, with another send")).await);
    }
    let (sent, received) = (sent.expect("ended"), received.expect("ended"));
    for end in [sent, received] {
        assert!(matches!(end.status, Ok(()) | Err(ErrorKind::Cancelled)), "{what}: {end:?}");
    }
    if received.status.is_ok() {
        target.check(&what, &pattern(9, size));
    }
    // An eager message whose receive was cancelled after it was sent is parked for the next one.
    if sent.status.is_ok() && received.status.is_err() && pair.b.resource_usage().parked > 0 {
        pair.recv(1, memory(size)).await.expect("the parked message");
    }
    pair.settled(net, &what).await;
    let (mut source, mut target) = (source.into_sole(), target.into_sole());
    assert!(is_sole(&mut source) && is_sole(&mut target), "{what}: memory is held");
    pair.ping(net, &what).await;
}

/// A transfer is cancelled at either side or both, after every number of turns, from none to well
/// beyond its end. Each side ends `Ok` or `Cancelled`, `Ok` means all bytes, and nothing is left
/// over.
pub async fn in_every_state(net: &Net<'_>) {
    let pair = net.pair(&patient()).await;
    for size in [100, 60_000] {
        for blow in [Blow::Send, Blow::Recv, Blow::Both] {
            for turns in (0..16).chain([24, 25, 40, 41]) {
                strike(net, &pair, blow, size, turns).await;
            }
        }
    }
}

/// Futures of every kind are dropped after every number of turns. Nothing leaks, and the connection
/// works if it still exists.
pub async fn futures_are_dropped_at_any_time(net: &Net<'_>) {
    let pair = net.pair(&patient()).await;
    for turns in (0..14).chain([20, 30]) {
        let what = format!("dropped after {turns} turns");
        let mut buffers: Vec<_> = (0..6).map(|n| memory(40_000 + n)).collect();
        let list = |index: usize| MemList::from(&buffers[index]);
        let exposure = pair.expose(list(4), Access::READ_WRITE);
        let work = (
            pair.to_b.send(1, list(0), Options::default()),
            pair.to_a.recv(1, list(1), Options::default()),
            pair.to_b.recv(2, list(2), Options::default()),
            pair.to_b.pull(exposure.descriptor(), 0, list(3), Options::default()),
            pair.to_b.push(exposure.descriptor(), 0, list(5).range(0, 30_000).collect::<MemList>(), Options::default()),
            pair.to_b.send(3, pattern(1, 900), Options::default()),
            pair.to_b.send_unexpected(4, pattern(1, 900), Options::default()),
        );
        net.turns(turns).await;
        drop(work);
        // Eager messages are gone once they are sent; the receiver takes them out.
        net.until(&format!("{what}: nothing on its way"), || {
            while pair.b.with(|e| e.poll_unexpected()).is_some() {}
            pair.a.with(|e| e.resource_usage().operations == 0).then_some(())
        })
        .await;
        pair.ping(net, &what).await;
        drop(exposure);
        while pair.b.with(|e| e.poll_unexpected()).is_some() {}
        while pair.b.resource_usage().parked > 0 {
            pair.recv(3, memory(900)).await.expect("the parked message");
        }
        pair.settled(net, &what).await;
        net.released(&what, &mut buffers).await;
    }
}
