//! Crowds of idle peers.

use std::time::Duration;

use bmi_core::comm::{Body, Incoming};
use bmi_core::{Access, Addr, Config, Endpoint, ErrorKind, Memory, Options, Peer, PeerEvent};
use bmi_sim::World;
use futures_util::FutureExt;
use futures_util::future::join;

const SECOND: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(10);

/// A server that keeps `max_peers` connections, and as many clients.
struct Full {
    server: Endpoint,
    addr: Addr,
    /// The server, as each client has it.
    to_server: Vec<Peer>,
    /// The clients, as the server has them.
    to_clients: Vec<Peer>,
}

fn full(world: &World, max_peers: usize, evict_idle_after: Option<Duration>) -> Full {
    let node = world.node("server");
    let config = Config::default().max_peers(max_peers).evict_idle_after(evict_idle_after);
    let server = node.endpoint(config).unwrap();
    let addr = server.listen(&node.addr(1)).unwrap();
    let mut full = Full { server, addr, to_server: Vec::new(), to_clients: Vec::new() };
    for client in 0..max_peers {
        let endpoint = world.node(&format!("client{client}")).endpoint(Config::default()).unwrap();
        world.block_on(async {
            full.to_server.push(endpoint.connect(&full.addr, Options::default()).await.unwrap());
            full.to_clients.push(next_peer(&full.server).await);
        });
    }
    full
}

async fn next_peer(server: &Endpoint) -> Peer {
    loop {
        if let PeerEvent::Connected { peer, .. } = server.next_event().await {
            return peer;
        }
    }
}

/// Sends a message from a client to the server.
async fn talk(full: &Full, client: usize) {
    let into = full.to_clients[client].recv(7, Memory::zeroed(9).unwrap(), full.server.within(SECOND));
    let to_server = &full.to_server[client];
    to_server.send(7, vec![1; 9], to_server.within(SECOND)).await.unwrap();
    into.await.unwrap();
}

fn is_connected(full: &Full, client: usize) -> bool {
    full.to_clients[client].limits().is_some()
}

#[test]
fn the_peer_that_was_idle_longest_makes_room_for_a_newcomer() {
    let world = World::new(1);
    let full = &full(&world, 3, Some(IDLE));
    let late = world.node("late").endpoint(Config::default()).unwrap();
    world.block_on(async {
        full.server.sleep(8 * SECOND).await;
        talk(full, 0).await;
        talk(full, 2).await;
        let refused = late.connect(&full.addr, late.within(SECOND)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused, "nobody was idle long enough: {refused}");
        full.server.sleep(3 * SECOND).await;
        late.connect(&full.addr, late.within(SECOND)).await.unwrap();
        full.server.sleep(SECOND).await;
        assert_eq!([0, 1, 2].map(|client| is_connected(full, client)), [true, false, true]);
        assert!(full.to_server[1].limits().is_none(), "the client knows that it is gone");
        let (one, other) = (full.server.next_event().await, full.server.next_event().await);
        let ((PeerEvent::Lost { peer, reason }, PeerEvent::Connected { peer: newcomer, .. })
        | (PeerEvent::Connected { peer: newcomer, .. }, PeerEvent::Lost { peer, reason })) = (one, other)
        else {
            panic!("one came and one went")
        };
        assert_eq!((peer, reason.kind()), (full.to_clients[1].clone(), ErrorKind::Cancelled));
        assert!(reason.detail().contains("idle for 11 s"), "{reason}");
        assert!(newcomer.limits().is_some());
    });
}

#[test]
fn without_the_setting_nobody_is_idle() {
    let world = World::new(1);
    let full = &full(&world, 2, None);
    let late = world.node("late").endpoint(Config::default()).unwrap();
    world.block_on(async {
        full.server.sleep(1000 * SECOND).await;
        assert_eq!(late.connect(&full.addr, late.within(SECOND)).await.unwrap_err().kind(), ErrorKind::Refused);
    });
}

#[test]
fn waiting_for_idle_peers_costs_no_time() {
    let world = World::new(1);
    let full = &full(&world, 2, Some(IDLE));
    world.block_on(async { full.server.sleep(SECOND).await });
    assert_eq!(full.server.next_deadline(), None);
}

/// Each peer has something that would be lost with its connection. A newcomer is refused until it
/// is gone.
#[test]
fn peers_with_anything_under_way_are_not_idle() {
    let world = World::new(1);
    let full = &full(&world, 7, Some(IDLE));
    let late = world.node("late").endpoint(Config::default()).unwrap();
    world.block_on(async {
        let Full { server, to_server, to_clients, .. } = full;
        let buffer = || Memory::zeroed(9).unwrap();
        // A receive that waits, and a message that waits for its receive.
        let receive = to_clients[0].recv(1, buffer(), Options::default());
        to_server[1].send(1, vec![1; 9], Options::default()).await.unwrap();
        // A long message whose receiver has no receive yet.
        let announced = to_clients[2].send(1, vec![1; 1 << 20], Options::default());
        let exposure = to_clients[3].expose(buffer(), Access::READ).unwrap();
        // An unexpected message that the program holds, and a call that it works at.
        to_server[4].send_unexpected(1, vec![1; 9], Options::default()).await.unwrap();
        let message = server.next_unexpected().await;
        let call = to_server[5].call(b"?", Body::None, Options::default()).unwrap();
        let incoming = Incoming::new(server.next_unexpected().await).unwrap();
        let kept = server.with(|engine| engine.keep(to_clients[6].id())).unwrap();
        let mut things: Vec<(usize, Box<dyn FnOnce()>)> = vec![
            (0, Box::new(|| drop(receive))),
            (2, Box::new(|| drop(announced))),
            (3, Box::new(|| drop(exposure))),
            (4, Box::new(|| drop(message))),
            (5, Box::new(|| drop((incoming, call)))),
            (6, Box::new(|| drop(kept))),
        ];
        for (client, end) in things.drain(..) {
            server.sleep(100 * SECOND).await;
            let refused = late.connect(&full.addr, late.within(SECOND)).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Refused, "{client}");
            assert!((0..7).skip(client).all(|client| is_connected(full, client)));
            end();
            server.sleep(100 * SECOND).await;
            late.connect(&full.addr, late.within(SECOND)).await.unwrap();
            let newcomer = next_peer(server).await;
            // The newcomer takes the place for good.
            let kept = server.with(|engine| engine.keep(newcomer.id()));
            std::mem::forget(kept);
            server.sleep(SECOND).await;
            assert!(!is_connected(full, client), "{client}");
        }
        let got = to_clients[1].recv(1, buffer(), server.within(SECOND)).await.unwrap();
        assert_eq!(got.len, 9, "the parked message was kept");
    });
}

/// Replays a bug: a client that had ever looked at a view of a server kept its place for good.
#[test]
fn a_peer_that_may_read_what_nothing_waits_for_is_idle() {
    let world = World::new(1);
    let full = &full(&world, 2, Some(IDLE));
    let late = world.node("late").endpoint(Config::default()).unwrap();
    world.block_on(async {
        let expose = |client: usize, standing| {
            let (peer, memory) = (&full.to_clients[client], Memory::zeroed(9).unwrap());
            match standing {
                true => peer.expose_standing(memory, Access::READ).unwrap(),
                false => peer.expose(memory, Access::READ).unwrap(),
            }
        };
        let _exposures = (expose(0, false), expose(1, true), expose(1, true));
        drop(expose(1, true));
        full.server.sleep(2 * IDLE).await;
        late.connect(&full.addr, late.within(SECOND)).await.unwrap();
        full.server.sleep(SECOND).await;
        assert_eq!([0, 1].map(|client| is_connected(full, client)), [true, false]);
    });
}

#[test]
fn a_crowd_of_idle_peers_is_replaced_and_the_number_stays_bounded() {
    let world = World::new(3);
    let full = &full(&world, 32, Some(IDLE));
    let late: Vec<_> =
        (0..32).map(|number| world.node(&format!("late{number}")).endpoint(Config::default()).unwrap()).collect();
    world.block_on(async {
        full.server.sleep(IDLE).await;
        for client in &late {
            client.connect(&full.addr, client.within(SECOND)).await.unwrap();
            assert!(full.server.resource_usage().peers <= 32 + 4);
        }
        full.server.sleep(2 * SECOND).await;
        assert_eq!(full.server.resource_usage().peers, 32);
        assert!((0..32).all(|client| !is_connected(full, client)));
    });
}

/// A newcomer connects when the only client has been idle for long. The client sends a request
/// `delay_ns` later. Returns whether the newcomer was accepted, whether the request was sent,
/// whether the server got it, and how the receive of the answer ended.
fn ask_while_a_newcomer_connects(delay_ns: u64) -> (bool, bool, bool, ErrorKind) {
    let world = World::new(1);
    let full = &full(&world, 1, Some(IDLE));
    let late = world.node("late").endpoint(Config::default()).unwrap();
    world.block_on(async {
        full.server.sleep(2 * IDLE).await;
        let asking = async {
            let to_server = &full.to_server[0];
            to_server.endpoint().sleep(Duration::from_nanos(delay_ns)).await;
            let answer = to_server.recv(2, Memory::zeroed(9).unwrap(), to_server.within(SECOND));
            let sent = to_server.send_unexpected(1, vec![1; 9], to_server.within(SECOND)).await;
            (sent.is_ok(), answer.await.unwrap_err().kind())
        };
        let (connected, (sent, ended)) = join(late.connect(&full.addr, late.within(SECOND)), asking).await;
        full.server.sleep(SECOND).await;
        (connected.is_ok(), sent, full.server.next_unexpected().now_or_never().is_some(), ended)
    })
}

/// A request may cross the decision to close its connection. It is not carried out then, and its
/// sender is told so. It did not know, and could not repeat what must not be done twice.
#[test]
fn a_request_that_crosses_the_decision_is_not_handled() {
    let (mut early, mut late) = (0, 10_000_000);
    let asked = ask_while_a_newcomer_connects;
    assert_eq!(asked(early), (false, true, true, ErrorKind::TimedOut), "the client is not idle");
    assert_eq!(asked(late), (true, false, false, ErrorKind::PeerLost), "the client knows that it was closed");
    while late - early > 1 {
        let delay = early.midpoint(late);
        let (connected, _, handled, _) = asked(delay);
        assert_eq!(connected, !handled, "after {delay} ns");
        *(if handled { &mut early } else { &mut late }) = delay;
    }
    assert_eq!(asked(late), (true, true, false, ErrorKind::Refused), "the request was on its way");
}
