//! Bugs of the protocol that appeared only when endpoints slept. Each has one test, named for the
//! correct behaviour.

use std::time::Duration;

use bmi_core::{Access, Config, ErrorKind, MemList, Memory, Options, Peer, PeerEvent};
use bmi_sim::{Node, SimConfig, World};
use futures_util::future::join;

const SECOND: Duration = Duration::from_secs(1);

struct Pair {
    /// Keeps the nodes.
    _nodes: [Node; 2],
    to_b: Peer,
    to_a: Peer,
}

fn pair(world: &World, config: &Config) -> Pair {
    let (near, far) = (world.node("a"), world.node("b"));
    let (a, b) = (near.endpoint(config.clone()).unwrap(), far.endpoint(config.clone()).unwrap());
    b.listen(&far.addr(1)).unwrap();
    let (to_b, to_a) = world.block_on(async {
        let to_b = a.connect(&far.addr(1), Options::default()).await.unwrap();
        let PeerEvent::Connected { peer: to_a, .. } = b.next_event().await else { panic!("no peer") };
        (to_b, to_a)
    });
    Pair { _nodes: [near, far], to_b, to_a }
}

/// Returns the smallest possible credit windows.
fn tight() -> Config {
    Config::default().eager_limit(256).credit_messages(16).credit_bytes(4 * 320).transfer_unit(4096)
}

/// The grace of a cancel was counted from the last poll. After a long sleep it was over at once,
/// and the connection was cut.
#[test]
fn a_cancel_after_a_long_sleep_has_its_grace() {
    let world = World::new(1);
    let Pair { to_b, to_a, .. } = &pair(&world, &Config::default());
    world.block_on(async {
        let offered = to_b.recv(1, Memory::zeroed(50_000).unwrap(), Options::default());
        let announced = to_b.send(2, Memory::zeroed(50_000).unwrap(), Options::default());
        to_a.endpoint().sleep(5 * SECOND).await;
        offered.cancel();
        announced.cancel();
        assert_eq!(offered.await.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(announced.await.unwrap_err().kind(), ErrorKind::Cancelled);
        let ping = to_a.recv(3, Memory::zeroed(10).unwrap(), to_a.within(SECOND));
        to_b.send(3, vec![1; 10], to_b.within(SECOND)).await.unwrap();
        assert_eq!(ping.await.unwrap().len, 10, "the connection stands");
    });
}

/// A peer took messages that are shorter than an eager one may be. Short ones were sent to it all
/// the same: only the general path compared their length.
#[test]
fn a_short_message_is_not_longer_than_the_peer_takes() {
    let world = World::new(1);
    let Pair { to_b, to_a, .. } = &pair(&world, &Config::default().max_message(100));
    world.block_on(async {
        let received = to_a.recv(1, Memory::zeroed(200).unwrap(), to_a.within(SECOND));
        let refused = to_b.send(1, vec![1; 101], to_b.within(SECOND)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLarge);
        to_b.send(1, vec![1; 100], to_b.within(SECOND)).await.unwrap();
        assert_eq!(received.await.unwrap().len, 100);
    });
}

/// The send at the head of the queue was cancelled. The sends behind it had credit, but were not
/// checked again.
#[test]
fn a_cancelled_head_of_the_queue_lets_the_others_go() {
    let world = World::new(1);
    let Pair { to_b, to_a, .. } = &pair(&world, &tight());
    world.block_on(async {
        let parked: Vec<_> = (0..3).map(|_| to_b.send(1, vec![0; 256], Options::default())).collect();
        let more = to_b.send(1, vec![0; 100], Options::default());
        to_a.endpoint().sleep(SECOND).await;
        let head = to_b.send(1, vec![0; 256], Options::default());
        let small = to_b.send(2, vec![7; 10], to_b.within(2 * SECOND));
        to_a.endpoint().sleep(SECOND / 2).await;
        head.cancel();
        assert_eq!(head.await.unwrap_err().kind(), ErrorKind::Cancelled);
        small.await.unwrap();
        let target = Memory::zeroed(10).unwrap();
        to_a.recv(2, target.clone(), to_a.within(SECOND)).await.unwrap();
        assert_eq!(target.to_vec(), [7; 10]);
        drop((parked, more));
    });
}

/// The future of a connect was dropped when the connection had just been established, and the
/// connection was never ended.
#[test]
fn a_connect_abandoned_when_it_is_done_leaves_no_connection() {
    let world = World::new(1);
    let (near, far) = (world.node("a"), world.node("b"));
    let (a, b) = (near.endpoint(Config::default()).unwrap(), far.endpoint(Config::default()).unwrap());
    b.listen(&far.addr(1)).unwrap();
    world.block_on(async {
        let (peer, op) = a.with(|engine| engine.connect(&far.addr(1), Options::default())).unwrap();
        a.sleep(SECOND).await;
        assert!(a.peer(peer).limits().is_some(), "it is connected");
        a.with(|engine| engine.abandon(op));
        a.sleep(SECOND).await;
        assert_eq!((a.resource_usage().peers, b.resource_usage().peers), (0, 0));
    });
}

/// The future of a disconnect was dropped, and the connection was cut at once: what was posted
/// before was lost.
#[test]
fn a_disconnect_that_nobody_waits_for_is_in_order() {
    let world = World::new(1);
    let Pair { to_b, to_a, .. } = &pair(&world, &tight());
    let receive = |_| to_a.recv(1, Memory::zeroed(256).unwrap(), Options::default());
    world.block_on(async {
        let sends: Vec<_> = (0..20).map(|_| to_b.send(1, vec![7; 256], Options::default())).collect();
        let mut leaving = Box::pin(to_b.disconnect(Options::default()));
        assert!(futures_util::poll!(&mut leaving).is_pending(), "the sends wait for credit");
        drop(leaving);
        for received in (0..20).map(receive) {
            assert_eq!(received.await.unwrap().len, 256);
        }
        for sent in sends {
            sent.await.unwrap();
        }
        to_a.endpoint().sleep(SECOND).await;
        let ends = [to_a.endpoint(), to_b.endpoint()];
        assert_eq!(ends.map(|end| (end.resource_usage().peers, end.resource_usage().operations)), [(0, 0); 2]);
    });
}

/// A message was dropped while the driver slept. Its credit was not returned until something else
/// woke the driver, and the sender waited without end.
#[test]
fn a_message_dropped_while_the_driver_sleeps_gives_its_credit_back() {
    let world = World::new(1);
    let Pair { _nodes: [_, far], to_b, to_a } = &pair(&world, &tight());
    let (slow, far_sim) = (to_a.endpoint().clone(), world.clone());
    far.spawn(async move {
        let mut kept = Vec::new();
        loop {
            kept.push(slow.next_unexpected().await);
            if kept.len() == 4 {
                // The endpoint does not notice this.
                far_sim.sleep_until(far_sim.now() + SECOND).await;
                kept.clear();
            }
        }
    });
    world.block_on(async {
        for number in 0..20 {
            let sent = to_b.send_unexpected(number, vec![1; 256], to_b.within(10 * SECOND)).await;
            sent.unwrap_or_else(|error| panic!("message {number}: {error}"));
        }
    });
}

/// Offers of receives took all credits in bytes. A message that could have let the peer continue
/// found none.
#[test]
fn offered_receives_leave_credit_for_messages() {
    let world = World::new(1);
    let Pair { to_b, to_a, .. } = &pair(&world, &tight());
    world.block_on(async {
        let receive = |tag| to_b.recv(tag, Memory::zeroed(300).unwrap(), Options::default());
        let ahead: Vec<_> = (0..40).map(receive).collect();
        let request = to_a.recv(99, Memory::zeroed(256).unwrap(), to_a.within(2 * SECOND));
        to_b.endpoint().sleep(SECOND).await;
        to_b.send(99, vec![1; 256], to_b.within(SECOND)).await.unwrap();
        assert_eq!(request.await.unwrap().len, 256);
        drop(ahead);
    });
}

/// The bytes in flight to a stalled peer took the whole budget, and no other peer's transfer could
/// begin.
#[test]
fn a_stalled_peer_does_not_hold_up_the_transfers_of_others() {
    const LEN: usize = 64 << 10;
    let world = World::new(1);
    let config = Config::default().transfer_unit(4096).in_flight_bytes(4096);
    let server = world.node("server");
    let s = server.endpoint(config.clone()).unwrap();
    s.listen(&server.addr(1)).unwrap();
    let clients: Vec<_> = ["stalled", "lively"].map(|name| world.node(name)).into_iter().collect();
    let ends: Vec<_> = clients.iter().map(|node| node.endpoint(config.clone()).unwrap()).collect();
    world.block_on(async {
        let mut receives = Vec::new();
        let mut sends = Vec::new();
        for end in &ends {
            let peer = end.connect(&server.addr(1), Options::default()).await.unwrap();
            let PeerEvent::Connected { peer: back, .. } = s.next_event().await else { panic!("no peer") };
            sends.push(peer.send(1, Memory::zeroed(LEN).unwrap(), Options::default()));
            receives.push(back);
        }
        s.sleep(SECOND).await;
        // Its reads get no answer until the adapter notices, 10 ms later.
        world.partition(&clients[0], &server);
        let start = s.now();
        let stalled = receives[0].recv(1, Memory::zeroed(LEN).unwrap(), Options::default());
        let lively = receives[1].recv(1, Memory::zeroed(LEN).unwrap(), s.within(SECOND));
        assert_eq!(lively.await.unwrap().len, LEN as u64);
        assert!(s.now() - start < Duration::from_millis(5), "{:?}", s.now() - start);
        assert_eq!(stalled.await.unwrap_err().kind(), ErrorKind::PeerLost);
        assert!(s.now() - start > Duration::from_millis(5), "{:?}", s.now() - start);
        drop(sends);
    });
}

/// Every valid hello took half a MiB of receives, however many there were already.
#[test]
fn a_peer_beyond_the_limit_is_refused() {
    let world = World::new(1);
    let config = Config::default().max_peers(1);
    let Pair { _nodes: [_, far], to_b, to_a } = &pair(&world, &config);
    let third = world.node("c").endpoint(Config::default()).unwrap();
    world.block_on(async {
        let refused = third.connect(&far.addr(1), Options::default()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused, "{refused}");
        assert!(refused.detail().contains("takes no more"), "{refused}");
        let ping = to_a.recv(1, Memory::zeroed(10).unwrap(), to_a.within(SECOND));
        to_b.send(1, vec![1; 10], to_b.within(SECOND)).await.unwrap();
        assert_eq!(ping.await.unwrap().len, 10, "who was there before does not notice");
    });
}

/// The second piece of an eager message could not be registered. The first piece's entry stayed in
/// the scratch list, before the next message.
#[test]
fn a_message_that_could_not_be_gathered_leaves_no_entries_behind() {
    let mut config = SimConfig { max_registrations: 64, ..SimConfig::seeded(1) };
    (config.profile.register_region_ns, config.profile.register_page_ns) = (0, 0);
    let world = World::with(config);
    let Pair { to_b, to_a, .. } = &pair(&world, &Config::default());
    world.block_on(async {
        let (one, other) = (Memory::from(vec![1; 1500]), Memory::from(vec![2; 1500]));
        let mut held = Vec::new();
        while let Ok(region) = to_b.endpoint().with(|engine| engine.register(&Memory::zeroed(10).unwrap())) {
            held.push(region);
        }
        held.pop();
        let target = Memory::zeroed(3000).unwrap();
        let list: MemList = [one.all(), other.all()].into_iter().collect();
        let (sent, received) =
            join(to_b.send(1, list, to_b.within(SECOND)), to_a.recv(1, target.clone(), to_a.within(SECOND))).await;
        sent.and(received).unwrap();
        assert!(target.to_vec() == [vec![1; 1500], vec![2; 1500]].concat());
        drop(held);
        let shown = to_a.expose(Memory::from(vec![3; 9000]), Access::READ).unwrap();
        let into = Memory::zeroed(9000).unwrap();
        to_b.pull(shown.descriptor(), 0, into.clone(), to_b.within(SECOND)).await.unwrap();
        assert!(into.to_vec() == vec![3; 9000]);
    });
}
