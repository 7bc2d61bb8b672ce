//! Completions: of one operation, of some, of all; and their contents.

use bmi_core::{Config, OpId, OpKind, Options, Peer, Posted};

use crate::data::{memory, pattern};
use crate::message::tight;
use crate::net::Net;

/// Posts receives of tags 0 to 5 with user words of 100 and up.
fn receives(peer: &Peer) -> Vec<OpId> {
    let options = |tag| Options::default().user(100 + tag);
    let post = |tag| peer.endpoint().with(|engine| engine.post_recv(peer.id(), tag, memory(10), options(tag)));
    (0..6).map(|tag| post(tag).expect("post").pending().expect("nothing has arrived")).collect()
}

/// `poll_op` returns the completion of one operation, `poll_some` those of a set, `poll_all` the
/// rest. Each completion is returned once, with user word, tag, peer and length.
pub async fn one_some_and_all(net: &Net<'_>) {
    let pair = net.pair(&Config::default()).await;
    let ops = receives(&pair.to_a);
    let mut found = Vec::new();
    assert_eq!(pair.b.with(|e| e.poll_some(&ops, &mut found)), 0);
    assert_eq!(pair.b.with(|e| e.poll_op(ops[0])), None);
    for tag in 0..6u64 {
        pair.send(tag, pattern(tag, tag as usize)).await.expect("send");
    }
    let third = net.until("one operation", || pair.b.with(|e| e.poll_op(ops[3]))).await;
    assert_eq!((third.op, third.kind, third.tag, third.user, third.len), (ops[3], OpKind::Recv, 3, 103, 3));
    assert_eq!((third.peer, third.status), (Some(pair.to_a.id()), Ok(())));
    net.until("some operations", || {
        pair.b.with(|e| e.poll_some(&[ops[5], ops[3], ops[1]], &mut found));
        (found.len() >= 2).then_some(())
    })
    .await;
    found.sort_by_key(|end| end.tag);
    assert_eq!(found.iter().map(|end| (end.op, end.user)).collect::<Vec<_>>(), [(ops[1], 101), (ops[5], 105)]);
    let mut rest = Vec::new();
    net.until("all operations", || {
        pair.b.with(|e| e.poll_all(&mut rest));
        (rest.len() >= 3).then_some(())
    })
    .await;
    rest.sort_by_key(|end| end.tag);
    assert_eq!(rest.iter().map(|end| end.op).collect::<Vec<_>>(), [ops[0], ops[2], ops[4]]);
    for op in ops {
        assert_eq!(pair.b.with(|e| e.poll_op(op)), None, "a completion is handed out once");
    }
    pair.settled(net, "at the end").await;
}

/// An operation that can end at once does. An eager send with a credit, and a receive whose message
/// is parked, leave no operation, or one that ends without further work of the peer.
pub async fn completion_at_once(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let options = Options::default().user(5);
    net.pause("b", true);
    let sent = match pair.a.with(|e| e.post_send(pair.to_b.id(), 1, pattern(1, 100), options)).expect("post") {
        Posted::Done(end) => end,
        Posted::Pending(op) => net.until("an eager send", || pair.a.with(|e| e.poll_op(op))).await,
    };
    assert_eq!((sent.kind, sent.status, sent.len, sent.tag, sent.user), (OpKind::Send, Ok(()), 100, 1, 5));
    net.pause("b", false);
    net.until("the message parked", || (pair.b.resource_usage().parked == 1).then_some(())).await;
    net.pause("a", true);
    let target = memory(100);
    let got = match pair.b.with(|e| e.post_recv(pair.to_a.id(), 1, &target, options)).expect("post") {
        Posted::Done(end) => end,
        Posted::Pending(op) => net.until("a parked message", || pair.b.with(|e| e.poll_op(op))).await,
    };
    assert_eq!((got.kind, got.status, got.len, got.tag, got.user), (OpKind::Recv, Ok(()), 100, 1, 5));
    assert!(target.to_vec() == pattern(1, 100));
    net.pause("a", false);
    pair.settled(net, "at the end").await;
}

/// An operation whose completion is not collected stays. Other operations go on.
pub async fn uncollected_completions_stay(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let op = pair.b.with(|e| e.post_recv(pair.to_a.id(), 50, memory(10), Options::default())).expect("post");
    let op = op.pending().expect("nothing has arrived");
    pair.send(50, pattern(1, 10)).await.expect("send");
    for _ in 0..10 {
        pair.ping(net, "beside an uncollected completion").await;
    }
    assert_eq!(pair.b.resource_usage().operations, 1);
    let end = pair.b.with(|e| e.poll_op(op)).expect("still there");
    assert_eq!((end.status, end.len), (Ok(()), 10));
    pair.settled(net, "at the end").await;
}

/// An idle endpoint has nothing to do and needs to be woken only by its transport.
pub async fn an_idle_endpoint_is_idle(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    pair.ping(net, "before idling").await;
    pair.settled(net, "before idling").await;
    for end in [&pair.a, &pair.b] {
        net.until("a poll with nothing to do", || (!end.progress()).then_some(())).await;
        let next = end.next_deadline();
        let soon = end.now() + std::time::Duration::from_millis(50);
        assert!(next.is_none_or(|at| at > soon), "an idle endpoint wants to be polled at {next:?}");
    }
}
