//! Unexpected messages, which need no receive.

use bmi_core::{Config, ErrorKind, OpKind};
use futures_util::future::{join, join_all};

use crate::data::{Guarded, memory, pattern};
use crate::message::tight;
use crate::net::{Net, Pair, all_end_well, fails, soon};

/// Any size up to the limit arrives whole, with its tag and its sender. The receiver has no
/// operation for it.
pub async fn arrive_without_a_receive(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let limit = pair.to_b.limits().expect("connected").eager;
    for (tag, size) in [0, 1, 100, limit - 1, limit].into_iter().enumerate() {
        let third = size / 3;
        let source = Guarded::filled(tag as u64, &[third, 0, size - third]);
        let send = pair.send_unexpected(tag as u64, source.list());
        let (sent, message) = join(send, pair.b.next_unexpected()).await;
        let sent = sent.expect("send unexpected");
        assert_eq!((sent.len, sent.kind), (size as u64, OpKind::SendUnexpected));
        assert_eq!((message.peer().id(), message.tag()), (pair.to_a.id(), tag as u64));
        assert!(message.bytes() == pattern(tag as u64, size), "{size} bytes");
    }
    assert_eq!(pair.a.counters().unexpected, 5);
    pair.settled(net, "after all sizes").await;
}

/// A message one byte over the limit is `TooLong`, and nothing is sent.
pub async fn over_the_limit_is_too_long(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let limit = pair.to_b.limits().expect("connected").eager;
    let error = pair.send_unexpected(1, pattern(1, limit + 1)).await;
    fails(error, ErrorKind::TooLarge, "send unexpected");
    pair.ping(net, "after a refused message").await;
    assert!(pair.b.with(|e| e.poll_unexpected()).is_none());
    pair.settled(net, "after a refused message").await;
}

/// A receive of the same tag does not take an unexpected message. An expected message is never
/// delivered as an unexpected one.
pub async fn expected_and_unexpected_do_not_mix(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let target = memory(10);
    let recv = pair.recv(7, &target);
    pair.send_unexpected(7, b"unasked".to_vec()).await.expect("send unexpected");
    assert_eq!(pair.b.next_unexpected().await.bytes(), b"unasked");
    pair.send(7, b"asked".to_vec()).await.expect("send");
    assert_eq!(recv.await.expect("receive").len, 5);
    assert_eq!(&target.to_vec()[..5], b"asked");
    pair.send(7, b"parked".to_vec()).await.expect("send");
    pair.ping(net, "behind the expected message").await;
    assert!(pair.b.with(|e| e.poll_unexpected()).is_none(), "an expected message is nobody's unexpected one");
    pair.recv(7, &target).await.expect("receive");
    pair.settled(net, "at the end").await;
}

/// Far more messages than there are credits, none of which is taken out. The sender waits, nothing
/// is lost, and all arrive in order when they are taken.
pub async fn a_crowd_waits_its_turn(net: &Net<'_>) {
    const MESSAGES: u64 = 60;
    let pair = net.pair(&tight()).await;
    let size = |n: u64| (n as usize * 97) % 1024;
    let sends: Vec<_> = (0..MESSAGES).map(|n| pair.send_unexpected(n, pattern(n, size(n)))).collect();
    net.turns(100).await;
    assert!(pair.a.counters().credit_waits > 0, "nobody waited for a credit");
    let slots = pair.b.resource_usage().slots;
    assert!(slots <= tight().credits.messages.into(), "{slots} slots hold messages");
    for n in 0..MESSAGES {
        let message = pair.b.next_unexpected().await;
        assert_eq!(message.tag(), n);
        assert!(message.bytes() == pattern(n, size(n)), "message {n}");
    }
    all_end_well(sends).await;
    pair.settled(net, "at the end").await;
}

/// A message that was taken out but not dropped keeps its slot. When it is dropped, it gives the
/// credit back.
pub async fn held_messages_hold_their_slots(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let mut held = Vec::new();
    for n in 0..3 {
        pair.send_unexpected(n, pattern(n, 1000)).await.expect("send unexpected");
        held.push(pair.b.next_unexpected().await);
    }
    let slots = pair.b.resource_usage().slots;
    assert!((1..=3).contains(&slots), "{slots} slots hold three messages");
    for (n, message) in held.iter().enumerate() {
        assert!(message.bytes() == pattern(n as u64, 1000), "message {n} stays as it is while it is held");
    }
    drop(held);
    pair.settled(net, "after the messages were dropped").await;
    for n in 0..20 {
        let send = pair.send_unexpected(n, pattern(n, 1000));
        let (sent, message) = join(send, pair.b.next_unexpected()).await;
        sent.expect("send unexpected");
        assert!(message.bytes() == pattern(n, 1000));
    }
}

/// A message that outlives its endpoint, or its peer, can still be read and dropped.
pub async fn messages_outlive_their_peer(net: &Net<'_>) {
    let Pair { a, b, to_b, to_a, .. } = net.pair(&tight()).await;
    to_b.send_unexpected(1, pattern(1, 500), soon(&a)).await.expect("send unexpected");
    to_b.send_unexpected(2, pattern(2, 500), soon(&a)).await.expect("send unexpected");
    let first = b.next_unexpected().await;
    // Without its peer, which would keep the endpoint.
    let second = net.until("the second message", || b.with(|engine| engine.poll_unexpected())).await;
    drop((a, to_b));
    net.kill("a");
    net.lost(&to_a).await;
    assert!(first.bytes() == pattern(1, 500));
    drop(first);
    net.settled(&b, 0, "the peer is gone, one message is held").await;
    drop((b, to_a));
    net.kill("b");
    assert!(second.bytes() == pattern(2, 500));
}

/// Several tasks may wait for messages. Each message wakes a task that takes it.
pub async fn several_tasks_wait(net: &Net<'_>) {
    let pair = net.pair(&Config::default()).await;
    let waiters = join_all((0..5).map(|_| async { pair.b.next_unexpected().await.tag() }));
    let sends = async {
        for n in 0..5 {
            net.turns(3).await;
            pair.send_unexpected(n, Vec::new()).await.expect("send unexpected");
        }
    };
    let (mut tags, ()) = join(waiters, sends).await;
    tags.sort_unstable();
    assert_eq!(tags, [0, 1, 2, 3, 4]);
}
