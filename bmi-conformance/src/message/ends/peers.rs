//! Peers that connect, disconnect, and die.

use std::time::Duration;

use bmi_core::{Access, Config, ErrorKind, OpKind, Options, Peer, PeerEvent, PeerLimits};
use futures_util::future::{join_all, join3};

use crate::data::{memory, pattern};
use crate::message::{reads, tight};
use crate::net::{Net, SOON, all_end_well, fails, soon};

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
    assert_eq!((to_b.limits(), to_a.limits()), (Some(expected), Some(expected)));
    assert_eq!(to_b.addr(), Some(addr));
    assert!(to_a.addr().is_some());
    let target = memory(1000);
    let recv = to_a.recv(1, &target, soon(&b));
    to_b.send(1, pattern(1, 600), soon(&a)).await.expect("send");
    recv.await.expect("receive");
    assert_eq!(a.counters().eager, 0, "600 bytes are over the limit of the smaller side");
    let recv = to_b.recv(1, &target, soon(&a));
    to_a.send(1, pattern(1, 600), soon(&b)).await.expect("send");
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
    let to_b = a.peer(peer);
    assert_eq!(to_b.limits(), None, "not connected yet");
    let sends: Vec<_> = [100, 5000, 10]
        .into_iter()
        .enumerate()
        .map(|(n, size)| to_b.send(1, pattern(n as u64, size), soon(&a)))
        .collect();
    let reply = memory(100);
    let answer = to_b.recv(2, &reply, soon(&a));
    let to_a = net.arrived(&b).await;
    for (n, size) in [100, 5000, 10].into_iter().enumerate() {
        let target = memory(5000);
        let got = to_a.recv(1, &target, soon(&b)).await.expect("receive");
        assert_eq!(got.len, size as u64);
        assert!(target.to_vec()[..size] == pattern(n as u64, size), "message {n}");
    }
    to_a.send(2, pattern(9, 50), soon(&b)).await.expect("send");
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
    let (a, b, to_b, to_a) = (pair.a, pair.b, pair.to_b, pair.to_a);
    let exposure = to_a.expose(memory(4 << 20), Access::READ_WRITE).expect("expose");
    let descriptor = exposure.descriptor().clone();
    let mut buffers: Vec<_> = (0..5).map(|n| memory((4 << 20) - n)).collect();
    let own = to_b.expose(&buffers[4], Access::READ_WRITE).expect("expose");
    let mut work = vec![
        ("receive", to_b.recv(1, &buffers[0], Options::default())),
        ("send", to_b.send(2, &buffers[1], Options::default())),
        match reads(net) {
            true => ("pull", to_b.pull(&descriptor, 0, &buffers[2], Options::default())),
            false => ("push", to_b.push(&descriptor, 0, &buffers[2], Options::default())),
        },
        ("push", to_b.push(&descriptor, 0, &buffers[3], Options::default())),
    ];
    // Sends without a credit, expected and unexpected.
    for n in 0..10 {
        work.push(("send", to_b.send(3, pattern(n, 1000), Options::default())));
        work.push(("send unexpected", to_b.send_unexpected(3, pattern(n, 1000), Options::default())));
    }
    net.turns(8).await;
    drop((b, to_a, exposure));
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
    let reason = net.lost(&to_b).await;
    assert!(reason.peer().is_some(), "{reason}");
    net.settled(&a, 0, "after the peer died").await;
    drop(own);
    net.released("buffers", &mut buffers).await;
    assert_eq!(to_b.addr(), Some(pair.addr), "the address is remembered for a while");
    assert_eq!(to_b.limits(), None);
}

/// A peer that connected to this side and dies is lost. Its parked messages and exposures are gone.
pub async fn a_dead_caller_is_forgotten(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let (a, b, to_b, to_a) = (pair.a, pair.b, pair.to_b, pair.to_a);
    for n in 0..3 {
        to_b.send(n, pattern(n, 500), soon(&a)).await.expect("eager send");
    }
    let announced = to_b.send(9, pattern(9, 50_000), Options::default());
    net.until("messages parked", || (b.resource_usage().parked >= 3).then_some(())).await;
    drop(announced);
    drop((a, to_b));
    net.kill("a");
    net.lost(&to_a).await;
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
    pair.to_b.disconnect(soon(&pair.a)).await.expect("disconnect");
    all_end_well(sends).await;
    for (n, (receive, target)) in receives.into_iter().enumerate() {
        let got = receive.await.unwrap_or_else(|error| panic!("message {n}: {error}"));
        assert_eq!(got.len, sizes[n] as u64);
        assert!(target.to_vec()[..sizes[n]] == pattern(n as u64, sizes[n]), "message {n}");
    }
    net.lost(&pair.to_a).await;
    net.lost(&pair.to_b).await;
    net.settled(&pair.a, 0, "after disconnecting").await;
    net.settled(&pair.b, 0, "after disconnecting").await;
}

/// Receives end with `Cancelled` on the side that disconnects, and with `PeerLost` on the other. A
/// second disconnect is an error.
pub async fn disconnect_ends_receives(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let here = pair.to_b.recv(1, memory(10), Options::default());
    let there = pair.to_a.recv(1, memory(10), Options::default());
    pair.to_b.disconnect(soon(&pair.a)).await.expect("disconnect");
    fails(here.await, ErrorKind::Cancelled, "receive");
    fails(there.await, ErrorKind::PeerLost, "receive");
    fails(pair.to_b.disconnect(soon(&pair.a)).await, ErrorKind::PeerLost, "disconnect");
}

/// A message without a receive does not keep `disconnect` beyond its deadline.
pub async fn disconnect_has_a_deadline(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let mut bytes = memory(50_000);
    let send = pair.to_b.send(1, &bytes, Options::default());
    let options = pair.a.within(std::time::Duration::from_millis(50));
    // The disconnect is forced at its deadline, which ends it too. `Result` tells whether it
    // counts as success.
    let _ = pair.to_b.disconnect(options).await;
    let error = send.await.expect_err("nobody received it");
    assert_eq!(error.operation(), Some("send"), "{error}");
    net.lost(&pair.to_a).await;
    net.settled(&pair.a, 0, "after the deadline").await;
    net.released("the memory", [&mut bytes]).await;
}

/// Connecting again after an end works, many times, with new names.
pub async fn reconnecting_works(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let (mut to_b, mut to_a) = (pair.to_b, pair.to_a);
    let mut names = vec![to_b.id()];
    for round in 0..8 {
        let (peer, back) = if round % 2 == 0 { (to_b, to_a) } else { (to_a, to_b) };
        peer.disconnect(peer.within(SOON)).await.expect("disconnect");
        net.lost(&back).await;
        net.lost(&peer).await;
        (to_b, to_a) = net.connect(&pair.a, &pair.b, &pair.addr).await;
        assert!(!names.contains(&to_b.id()), "a name was used again");
        names.push(to_b.id());
        net.ping(&to_b, &to_a, "after connecting again").await;
    }
    net.settled(&pair.a, 1, "at the end").await;
    net.settled(&pair.b, 1, "at the end").await;
}

/// A side that makes room for a newcomer tells the peer whose connection it closes that nothing
/// more is handled. What is in flight there may be repeated.
pub async fn an_evicted_peer_is_told(net: &Net<'_>) {
    let config = tight().max_peers(1).evict_idle_after(Some(Duration::from_millis(1)));
    let (a, b, c) = (net.endpoint("a", &tight()), net.endpoint("b", &config), net.endpoint("c", &tight()));
    let addr = b.listen(&net.listen_addr("b")).expect("listen");
    let mut to_b = a.connect(&addr, soon(&a)).await.expect("connect");
    let mut told = 0;
    for round in 0..8 {
        let newcomer = if round % 2 == 0 { &c } else { &a };
        let answer = to_b.recv(1, memory(9), to_b.within(SOON));
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
    drop((pair.b, pair.to_a));
    net.kill("b");
    net.lost(&pair.to_b).await;
    let b = net.endpoint("b", &tight());
    let addr = b.listen(&pair.addr).expect("the address is free again");
    let (to_b, to_a) = net.connect(&pair.a, &b, &addr).await;
    net.ping(&to_b, &to_a, "after the restart").await;
}

/// Two connections between the same endpoints are two peers. Each has its own tags, order and
/// credits.
pub async fn two_connections_are_two_peers(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let (to_b, to_a) = net.connect(&pair.a, &pair.b, &pair.addr).await;
    assert!(to_b.id() != pair.to_b.id() && to_a.id() != pair.to_a.id());
    pair.send(1, b"first".to_vec()).await.expect("send");
    to_b.send(1, b"second".to_vec(), soon(&pair.a)).await.expect("send");
    for (peer, expected) in [(&to_a, &b"second"[..]), (&pair.to_a, b"first")] {
        let target = memory(10);
        let len = peer.recv(1, &target, soon(&pair.b)).await.expect("receive").len as usize;
        assert_eq!(&target.to_vec()[..len], expected);
    }
    to_b.disconnect(soon(&pair.a)).await.expect("disconnect");
    pair.ping(net, "the other connection stands").await;
}

/// Three endpoints, each connected to the others, all exchange messages at once.
pub async fn three_endpoints_talk_at_once(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let c = net.endpoint("c", &tight());
    let (c_to_b, b_to_c) = net.connect(&c, &pair.b, &pair.addr).await;
    let addr = c.listen(&net.listen_addr("c")).expect("listen");
    let (a_to_c, c_to_a) = net.connect(&pair.a, &c, &addr).await;
    let talk = async |to: &Peer, from: &Peer, seed: u64| {
        for n in 0..25u64 {
            let size = (n as usize * 977) % 9000;
            let target = memory(9000);
            let receive = from.recv(seed, &target, from.within(SOON));
            to.send(seed, pattern(seed + n, size), to.within(SOON)).await.expect("send");
            assert_eq!(receive.await.expect("receive").len, size as u64);
            assert!(target.to_vec()[..size] == pattern(seed + n, size), "message {n} of {seed}");
        }
    };
    let ab = join_all([talk(&pair.to_b, &pair.to_a, 100), talk(&pair.to_a, &pair.to_b, 200)]);
    let bc = join_all([talk(&b_to_c, &c_to_b, 300), talk(&c_to_b, &b_to_c, 400)]);
    let ca = join_all([talk(&c_to_a, &a_to_c, 500), talk(&a_to_c, &c_to_a, 600)]);
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
        PeerEvent::Connected { peer: seen, addr: at, outgoing, .. } => {
            assert_eq!((seen, at, outgoing), (peer.clone(), addr, true));
        }
        other => panic!("{other:?}"),
    }
    let from = net.arrived(&b).await;
    peer.disconnect(soon(&a)).await.expect("disconnect");
    net.lost(&peer).await;
    let reason = net.lost(&from).await;
    assert_eq!(reason.kind(), ErrorKind::PeerLost, "{reason}");
    net.turns(20).await;
    assert!(a.with(|e| e.poll_event()).is_none() && b.with(|e| e.poll_event()).is_none(), "events come once");
}
