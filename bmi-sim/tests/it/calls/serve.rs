//! The loop that serves calls, and messages taken as `Bytes`.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bmi_core::comm::{Body, serve};
use bmi_core::{Config, ErrorKind, Memory, Peer, PeerEvent};
use bmi_sim::World;
use bytes::Bytes;
use futures_util::future::{join_all, select};

const SECOND: Duration = Duration::from_secs(1);

/// Starts a server that works at `max_calls` calls at a time, 1 ms at each. Returns the greatest
/// number of calls that ran at the same time.
fn start(world: &World, max_calls: usize) -> (Rc<Cell<usize>>, bmi_core::Addr) {
    let node = world.node("server");
    let server = node.endpoint(Config::default()).unwrap();
    let addr = server.listen(&node.addr(1)).unwrap();
    let most = Rc::new(Cell::new(0));
    let seen = Rc::clone(&most);
    node.spawn(async move {
        let running = Cell::new(0);
        serve(&server, max_calls, async |call| {
            running.set(running.get() + 1);
            seen.set(seen.get().max(running.get()));
            server.sleep(Duration::from_millis(1)).await;
            running.set(running.get() - 1);
            let (request, options) = (call.request_bytes(), call.within(SECOND));
            call.reply(&request, None, options).await
        })
        .await
    });
    (most, addr)
}

async fn echo(peer: &Peer, tag: u64) {
    let request = tag.to_le_bytes();
    let call = peer.call(&request, Body::None, peer.within(SECOND));
    assert_eq!(call.unwrap().reply().await.unwrap().bytes[..], request, "call {tag}");
}

#[test]
fn calls_beyond_the_limit_wait_and_all_are_answered() {
    for max_calls in [1, 3] {
        let world = World::new(1);
        let (most, addr) = start(&world, max_calls);
        let clients = ["a", "b"].map(|name| world.node(name).endpoint(Config::default()).unwrap());
        world.block_on(join_all(clients.iter().map(async |client| {
            let peer = client.connect(&addr, client.within(SECOND)).await.unwrap();
            join_all((0..20).map(|tag| echo(&peer, tag))).await;
        })));
        assert_eq!(most.get(), max_calls);
    }
}

/// Calls that never end take three quarters of the places, and no more.
#[test]
fn a_peer_whose_calls_never_end_leaves_room_for_others() {
    let world = World::new(3);
    let node = world.node("server");
    let server = node.endpoint(Config::default()).unwrap();
    let addr = server.listen(&node.addr(1)).unwrap();
    let stuck = Rc::new(Cell::new(0));
    let seen = Rc::clone(&stuck);
    node.spawn(async move {
        serve(&server, 8, async |call| {
            if call.request() == b"stay" {
                seen.set(seen.get() + 1);
                std::future::pending::<()>().await;
            }
            let (request, options) = (call.request_bytes(), call.within(SECOND));
            call.reply(&request, None, options).await
        })
        .await
    });
    let (rogue, honest) = (world.node("rogue"), world.node("honest"));
    let (rogue, honest) = (rogue.endpoint(Config::default()).unwrap(), honest.endpoint(Config::default()).unwrap());
    world.block_on(async {
        let to_server = rogue.connect(&addr, rogue.within(SECOND)).await.unwrap();
        let call = |_| to_server.call(b"stay", Body::None, to_server.within(SECOND)).unwrap();
        let calls: Vec<_> = (0..20).map(call).collect();
        let peer = honest.connect(&addr, honest.within(SECOND)).await.unwrap();
        for tag in 0..20 {
            echo(&peer, tag).await;
        }
        assert_eq!(stuck.get(), 6);
        drop(calls);
    });
}

#[test]
fn calls_that_wait_are_told_when_the_loop_is_dropped() {
    let world = World::new(4);
    let node = world.node("server");
    let server = node.endpoint(Config::default()).unwrap();
    let addr = server.listen(&node.addr(1)).unwrap();
    node.spawn(async move {
        let serving = Box::pin(serve(&server, 1, async |_| std::future::pending().await));
        let end = Box::pin(server.sleep(SECOND / 10));
        drop(select(serving, end).await);
        server.sleep(10 * SECOND).await;
    });
    let client = world.node("client").endpoint(Config::default()).unwrap();
    world.block_on(async {
        let peer = client.connect(&addr, client.within(SECOND)).await.unwrap();
        let call = |_| peer.call(b"wait", Body::None, peer.within(5 * SECOND)).unwrap().reply();
        for result in join_all((0..3).map(call)).await {
            assert_eq!(result.err().map(|error| error.kind()), Some(ErrorKind::Abandoned));
        }
        assert!(client.now() < bmi_core::Time::ZERO + SECOND, "at once");
    });
}

#[test]
fn a_message_that_is_no_call_costs_its_sender_the_connection_and_nobody_else() {
    let world = World::new(2);
    let (_, addr) = start(&world, 4);
    let client = world.node("client").endpoint(Config::default()).unwrap();
    let rogue = world.node("rogue").endpoint(Config::default()).unwrap();
    world.block_on(async {
        let peer = client.connect(&addr, client.within(SECOND)).await.unwrap();
        let to_server = rogue.connect(&addr, rogue.within(SECOND)).await.unwrap();
        to_server.send_unexpected(1, vec![0xff; 5], rogue.within(SECOND)).await.unwrap();
        loop {
            if let PeerEvent::Lost { reason, .. } = rogue.next_event().await {
                assert_eq!(reason.kind(), ErrorKind::PeerLost, "{reason}");
                break;
            }
        }
        echo(&peer, 7).await;
    });
}

/// The bytes are where the message arrived, so they hold its receive slot until they are dropped.
#[test]
fn a_message_taken_as_bytes_holds_its_slot_until_they_are_dropped() {
    let world = World::new(5);
    let (near, far) = (world.node("a"), world.node("b"));
    let (a, b) = (near.endpoint(Config::default()).unwrap(), far.endpoint(Config::default()).unwrap());
    let addr = b.listen(&far.addr(1)).unwrap();
    world.block_on(async {
        let peer = a.connect(&addr, a.within(SECOND)).await.unwrap();
        peer.send_unexpected(5, Bytes::from_static(b"a message"), a.within(SECOND)).await.unwrap();
        let message = b.next_unexpected().await;
        let place = message.bytes().as_ptr();
        let bytes = Bytes::from(message);
        let part = bytes.slice(2..);
        drop(bytes);
        b.sleep(Duration::from_millis(1)).await;
        assert_eq!((part.as_ptr(), &part[..]), (place.wrapping_add(2), &b"message"[..]));
        assert_eq!(b.resource_usage().slots, 1);
        // A copy of a part outlives the slot.
        let kept = Memory::from(part.to_vec());
        drop(part);
        b.sleep(Duration::from_millis(1)).await;
        assert_eq!((b.resource_usage().slots, kept.to_vec()), (0, b"message".to_vec()));
    });
}
