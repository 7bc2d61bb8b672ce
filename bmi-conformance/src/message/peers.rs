//! Peers that connect, disconnect, and die.

use std::time::Duration;

use bmi_core::{Access, Config, ErrorKind, OpKind, Options, PeerEvent, PeerLimits};
use futures_util::future::{join_all, join3};

use super::{reads, tight};
use crate::data::{memory, pattern};
use crate::net::{Net, all_end_well, fails, soon};

/// Both sides get an event for the connection, know each other's address, and agree on the smaller
/// of each limit.
pub async fn limits_are_agreed(net: &Net<'_>) {
    let small = tight().eager_limit(512).max_message(1 << 20).max_pieces(100).fast_slots(0);
    let large = Config::default().max_message(1 << 30).max_pieces(50).fast_slots(0);
    let (a, b) = (net.endpoint("a", &small), net.endpoint("b", &large));
    let addr = b.listen(&net.listen_addr("b")).expect("listen");
    let (to_b, to_a) = net.connect(&a, &b, &addr).await;
    // Slots are described after the connection is established. Without slots there is nothing
    // to wait for.
    let expected = PeerLimits { eager: 512, fast: 0, message: 1 << 20, pieces: 50 };
    assert_eq!((a.limits(to_b), b.limits(to_a)), (Some(expected), Some(expected)));
    assert_eq!(a.peer_addr(to_b), Some(addr));
    assert!(b.peer_addr(to_a).is_some());
    let target = memory(1000);
    let recv = b.recv(to_a, 1, &target, soon(&b));
    a.send(to_b, 1, pattern(1, 600), soon(&a)).await.expect("send");
    recv.await.expect("receive");
    assert_eq!(a.counters().eager, 0, "600 bytes are over the limit of the smaller side");
    let recv = a.recv(to_b, 1, &target, soon(&a));
    b.send(to_a, 1, pattern(1, 600), soon(&b)).await.expect("send");
    recv.await.expect("receive");
    assert_eq!(b.counters().eager, 0, "in the other direction too");
}

/// Without a listener, the error names operation and address.
pub async fn refused_connect_names_the_address(net: &Net<'_>) {
    let a = net.endpoint("a", &tight());
    let _b = net.endpoint("b", &tight());
    let addr = net.backend().vacant_addr("b");
    let error = fails(a.connect(&addr, soon(&a)).await, ErrorKind::Refused, "connect");
    assert!(error.to_string().contains(&addr.to_string()), "{error}");
    assert!(error.is_retryable());
    net.settled(&a, 0, "after the refusal").await;
}

/// Work posted before the connection is established is sent afterwards, in order.
pub async fn work_waits_for_the_connection(net: &Net<'_>) {
    let (a, b) = (net.endpoint("a", &tight()), net.endpoint("b", &tight()));
    let addr = b.listen(&net.listen_addr("b")).expect("listen");
    let (peer, op) = a.with(|e| e.connect(&addr, Options::default())).expect("connect starts");
    assert_eq!(a.limits(peer), None, "not connected yet");
    let sends: Vec<_> = [100, 5000, 10]
        .into_iter()
        .enumerate()
        .map(|(n, size)| a.send(peer, 1, pattern(n as u64, size), soon(&a)))
        .collect();
    let reply = memory(100);
    let answer = a.recv(peer, 2, &reply, soon(&a));
    let from = net.arrived(&b).await;
    for (n, size) in [100, 5000, 10].into_iter().enumerate() {
        let target = memory(5000);
        let got = b.recv(from, 1, &target, soon(&b)).await.expect("receive");
        assert_eq!(got.len, size as u64);
        assert!(target.to_vec()[..size] == pattern(n as u64, size), "message {n}");
    }
    b.send(from, 2, pattern(9, 50), soon(&b)).await.expect("send");
    answer.await.expect("the answer");
    all_end_well(sends).await;
    let end = a.with(|e| e.poll_op(op)).expect("connected long ago");
    assert_eq!((end.kind, end.status, end.peer), (OpKind::Connect, Ok(()), Some(peer)));
    net.settled(&a, 1, "at the end").await;
    net.settled(&b, 1, "at the end").await;
}

/// A peer that dies ends every operation with it, of every kind and in every state, with
/// `PeerLost`, naming operation and peer. All memory is released.
pub async fn a_dead_peer_ends_every_operation(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let (a, b, to_b) = (pair.a.clone(), pair.b, pair.to_b);
    let exposure = b.expose(pair.to_a, memory(4 << 20), Access::READ_WRITE).expect("expose");
    let descriptor = exposure.descriptor().clone();
    let mut buffers: Vec<_> = (0..5).map(|n| memory((4 << 20) - n)).collect();
    let own = a.expose(to_b, &buffers[4], Access::READ_WRITE).expect("expose");
    let mut work = vec![
        ("receive", a.recv(to_b, 1, &buffers[0], Options::default())),
        ("send", a.send(to_b, 2, &buffers[1], Options::default())),
        match reads(net) {
            true => ("pull", a.pull(to_b, &descriptor, 0, &buffers[2], Options::default())),
            false => ("push", a.push(to_b, &descriptor, 0, &buffers[2], Options::default())),
        },
        ("push", a.push(to_b, &descriptor, 0, &buffers[3], Options::default())),
    ];
    // Sends without a credit, expected and unexpected.
    for n in 0..10 {
        work.push(("send", a.send(to_b, 3, pattern(n, 1000), Options::default())));
        work.push(("send unexpected", a.send_unexpected(to_b, 3, pattern(n, 1000), Options::default())));
    }
    net.turns(8).await;
    drop((b, exposure));
    net.kill("b");
    let mut lost = 0;
    for (operation, work) in work {
        // A send that was complete before the peer died may have succeeded.
        if let Err(error) = work.await {
            assert_eq!((error.kind(), error.operation()), (ErrorKind::PeerLost, Some(operation)), "{error}");
            assert!(error.peer().is_some_and(|peer| peer.contains(&pair.addr.to_string())), "{error}");
            lost += 1;
        } else {
            assert!(operation != "receive" && operation != "send unexpected" || lost > 0, "{operation} ended well");
        }
    }
    assert!(lost >= 3, "only {lost} operations ended in an error");
    let reason = net.lost(&a, to_b).await;
    assert!(reason.peer().is_some(), "{reason}");
    net.settled(&a, 0, "after the peer died").await;
    drop(own);
    net.released("buffers", &mut buffers).await;
    assert_eq!(a.peer_addr(to_b), Some(pair.addr), "the address is remembered for a while");
    assert_eq!(a.limits(to_b), None);
}

/// A peer that connected to this side and dies is lost. Its parked messages and exposures are gone.
pub async fn a_dead_caller_is_forgotten(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let (a, b, to_b, to_a) = (pair.a, pair.b, pair.to_b, pair.to_a);
    for n in 0..3 {
        a.send(to_b, n, pattern(n, 500), soon(&a)).await.expect("eager send");
    }
    let announced = a.send(to_b, 9, pattern(9, 50_000), Options::default());
    net.until("messages parked", || (b.resource_usage().parked >= 3).then_some(())).await;
    drop(announced);
    drop(a);
    net.kill("a");
    net.lost(&b, to_a).await;
    net.settled(&b, 0, "after the caller died").await;
}

/// `disconnect` sends everything that was posted before, large and small. The peer receives it all,
/// then gets the event of the end.
pub async fn disconnect_flushes(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let sizes = [10, 5000, 0, 1024, 60_000, 1];
    let receives: Vec<_> = sizes
        .iter()
        .map(|_| {
            let target = memory(60_000);
            (pair.recv(1, &target), target)
        })
        .collect();
    let sends: Vec<_> = sizes.into_iter().enumerate().map(|(n, size)| pair.send(1, pattern(n as u64, size))).collect();
    pair.a.disconnect(pair.to_b, soon(&pair.a)).await.expect("disconnect");
    all_end_well(sends).await;
    for (n, (receive, target)) in receives.into_iter().enumerate() {
        let got = receive.await.unwrap_or_else(|error| panic!("message {n}: {error}"));
        assert_eq!(got.len, sizes[n] as u64);
        assert!(target.to_vec()[..sizes[n]] == pattern(n as u64, sizes[n]), "message {n}");
    }
    net.lost(&pair.b, pair.to_a).await;
    net.lost(&pair.a, pair.to_b).await;
    net.settled(&pair.a, 0, "after disconnecting").await;
    net.settled(&pair.b, 0, "after disconnecting").await;
}

/// Receives end with `Cancelled` on the side that disconnects, and with `PeerLost` on the other. A
/// second disconnect is an error.
pub async fn disconnect_ends_receives(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let here = pair.a.recv(pair.to_b, 1, memory(10), Options::default());
    let there = pair.b.recv(pair.to_a, 1, memory(10), Options::default());
    pair.a.disconnect(pair.to_b, soon(&pair.a)).await.expect("disconnect");
    fails(here.await, ErrorKind::Cancelled, "receive");
    fails(there.await, ErrorKind::PeerLost, "receive");
    fails(pair.a.disconnect(pair.to_b, soon(&pair.a)).await, ErrorKind::PeerLost, "disconnect");
}

/// A message without a receive does not keep `disconnect` beyond its deadline.
pub async fn disconnect_has_a_deadline(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let mut bytes = memory(50_000);
    let send = pair.a.send(pair.to_b, 1, &bytes, Options::default());
    let options = pair.a.within(std::time::Duration::from_millis(50));
    // The disconnect is forced at its deadline, which ends it too. `Result` tells whether it
    // counts as success.
    let _ = pair.a.disconnect(pair.to_b, options).await;
    let error = send.await.expect_err("nobody received it");
    assert_eq!(error.operation(), Some("send"), "{error}");
    net.lost(&pair.b, pair.to_a).await;
    net.settled(&pair.a, 0, "after the deadline").await;
    net.released("the memory", [&mut bytes]).await;
}

/// Connecting again after an end works, many times, with new names.
pub async fn reconnecting_works(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let (mut to_b, mut to_a) = (pair.to_b, pair.to_a);
    let mut names = vec![to_b];
    for round in 0..8 {
        let (one, other, peer, back) =
            if round % 2 == 0 { (&pair.a, &pair.b, to_b, to_a) } else { (&pair.b, &pair.a, to_a, to_b) };
        one.disconnect(peer, soon(one)).await.expect("disconnect");
        net.lost(other, back).await;
        net.lost(one, peer).await;
        (to_b, to_a) = net.connect(&pair.a, &pair.b, &pair.addr).await;
        assert!(!names.contains(&to_b), "a name was used again");
        names.push(to_b);
        net.ping((&pair.a, to_b), (&pair.b, to_a), "after connecting again").await;
    }
    net.settled(&pair.a, 1, "at the end").await;
    net.settled(&pair.b, 1, "at the end").await;
}

/// A side that makes room for a newcomer tells the peer whose connection it closes that nothing
/// more is handled. What is under way there may be repeated.
pub async fn an_evicted_peer_is_told(net: &Net<'_>) {
    let config = tight().max_peers(1).evict_idle_after(Some(Duration::from_millis(1)));
    let (a, b, c) = (net.endpoint("a", &tight()), net.endpoint("b", &config), net.endpoint("c", &tight()));
    let addr = b.listen(&net.listen_addr("b")).expect("listen");
    let mut to_b = a.connect(&addr, soon(&a)).await.expect("connect");
    let mut told = 0;
    for round in 0..8 {
        let (old, newcomer) = if round % 2 == 0 { (&a, &c) } else { (&c, &a) };
        let answer = old.recv(to_b, 1, memory(9), soon(old));
        b.sleep(Duration::from_millis(10)).await;
        to_b = newcomer.connect(&addr, soon(newcomer)).await.expect("there is room");
        match answer.await.expect_err("there is no answer").kind() {
            ErrorKind::Refused => told += 1,
            // The adapter's queue was full.
            kind => assert_eq!(kind, ErrorKind::PeerLost),
        }
    }
    assert!(told >= 4, "{told} of 8 were told");
}

/// A restarted server can be reached again at its address.
pub async fn a_restarted_peer_is_reached_again(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let (a, b) = (pair.a, pair.b);
    drop(b);
    net.kill("b");
    net.lost(&a, pair.to_b).await;
    let b = net.endpoint("b", &tight());
    let addr = b.listen(&pair.addr).expect("the address is free again");
    let (to_b, to_a) = net.connect(&a, &b, &addr).await;
    net.ping((&a, to_b), (&b, to_a), "after the restart").await;
}

/// Two connections between the same endpoints are two peers. Each has its own tags, order and
/// credits.
pub async fn two_connections_are_two_peers(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let (to_b, to_a) = net.connect(&pair.a, &pair.b, &pair.addr).await;
    assert!(to_b != pair.to_b && to_a != pair.to_a);
    pair.send(1, b"first".to_vec()).await.expect("send");
    pair.a.send(to_b, 1, b"second".to_vec(), soon(&pair.a)).await.expect("send");
    for (peer, expected) in [(to_a, &b"second"[..]), (pair.to_a, b"first")] {
        let target = memory(10);
        let len = pair.b.recv(peer, 1, &target, soon(&pair.b)).await.expect("receive").len as usize;
        assert_eq!(&target.to_vec()[..len], expected);
    }
    pair.a.disconnect(to_b, soon(&pair.a)).await.expect("disconnect");
    pair.ping(net, "the other connection stands").await;
}

/// Three endpoints, each connected to the others, all exchange messages at once.
pub async fn three_endpoints_talk_at_once(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let c = net.endpoint("c", &tight());
    let (c_to_b, b_to_c) = net.connect(&c, &pair.b, &pair.addr).await;
    let addr = c.listen(&net.listen_addr("c")).expect("listen");
    let (a_to_c, c_to_a) = net.connect(&pair.a, &c, &addr).await;
    let talk = |from: &bmi_core::Endpoint, to: &bmi_core::Endpoint, peer, back, seed: u64| {
        let (from, to) = (from.clone(), to.clone());
        async move {
            for n in 0..25u64 {
                let size = (n as usize * 977) % 9000;
                let target = memory(9000);
                let receive = to.recv(back, seed, &target, soon(&to));
                from.send(peer, seed, pattern(seed + n, size), soon(&from)).await.expect("send");
                assert_eq!(receive.await.expect("receive").len, size as u64);
                assert!(target.to_vec()[..size] == pattern(seed + n, size), "message {n} of {seed}");
            }
        }
    };
    let ab = join_all([
        talk(&pair.a, &pair.b, pair.to_b, pair.to_a, 100),
        talk(&pair.b, &pair.a, pair.to_a, pair.to_b, 200),
    ]);
    let bc = join_all([talk(&pair.b, &c, b_to_c, c_to_b, 300), talk(&c, &pair.b, c_to_b, b_to_c, 400)]);
    let ca = join_all([talk(&c, &pair.a, c_to_a, a_to_c, 500), talk(&pair.a, &c, a_to_c, c_to_a, 600)]);
    join3(ab, bc, ca).await;
    for end in [&pair.a, &pair.b, &c] {
        net.settled(end, 2, "after all talks").await;
    }
}

/// Both sides get the events in order, once each.
pub async fn events_tell_who_came_and_went(net: &Net<'_>) {
    let (a, b) = (net.endpoint("a", &tight()), net.endpoint("b", &tight()));
    let addr = b.listen(&net.listen_addr("b")).expect("listen");
    let peer = a.connect(&addr, soon(&a)).await.expect("connect");
    match net.next_event(&a, "connected").await {
        PeerEvent::Connected { peer: seen, addr: at, outgoing } => {
            assert_eq!((seen, at, outgoing), (peer, addr, true));
        }
        other => panic!("{other:?}"),
    }
    let from = net.arrived(&b).await;
    a.disconnect(peer, soon(&a)).await.expect("disconnect");
    net.lost(&a, peer).await;
    let reason = net.lost(&b, from).await;
    assert_eq!(reason.kind(), ErrorKind::PeerLost, "{reason}");
    net.turns(20).await;
    assert!(a.with(|e| e.poll_event()).is_none() && b.with(|e| e.poll_event()).is_none(), "events come once");
}
