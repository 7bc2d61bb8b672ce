//! Several endpoints of a node behind one address.

use std::time::Duration;

use bmi_core::driver::Waiting;
use bmi_core::transport::{Event, Transport};
use bmi_core::{Addr, Config, Endpoint, ErrorKind, Memory, Options, Peer};
use bmi_sim::{Node, Profile, SimConfig, SimTransport, World};

const SECOND: Duration = Duration::from_secs(1);

/// A world whose nodes have four cores.
fn world() -> World {
    World::with(SimConfig::with_profile(Profile { cpu_cores: 4, ..Profile::default() }))
}

fn shards(node: &Node, count: usize) -> (Vec<Endpoint>, Addr) {
    let members = node.shards(&Config::default(), Waiting::Busy, count).unwrap();
    let addr = members[0].listen(&node.addr(1)).unwrap();
    (members, addr)
}

/// Connects a client, and waits until the server knows it too.
async fn connect(client: &Endpoint, addr: &Addr) -> Result<Peer, bmi_core::Error> {
    let peer = client.connect(addr, client.within(SECOND)).await?;
    client.sleep(Duration::from_millis(1)).await;
    Ok(peer)
}

fn peers(members: &[Endpoint]) -> Vec<usize> {
    members.iter().map(|member| member.resource_usage().peers).collect()
}

#[test]
fn a_connection_goes_to_the_member_with_the_fewest() {
    let world = world();
    let (members, addr) = shards(&world.node("server"), 3);
    let client = world.node("client").endpoint(Config::default()).unwrap();
    world.block_on(async {
        let mut own = Vec::new();
        for expected in [[1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 1, 1], [2, 2, 1]] {
            own.push(connect(&client, &addr).await.unwrap());
            assert_eq!(peers(&members), expected);
        }
        // The first one has lost both of its connections.
        for peer in [&own[0], &own[3]] {
            peer.disconnect(client.within(SECOND)).await.unwrap();
        }
        client.sleep(Duration::from_millis(1)).await;
        assert_eq!(peers(&members), [0, 2, 1]);
        connect(&client, &addr).await.unwrap();
        connect(&client, &addr).await.unwrap();
        assert_eq!(peers(&members), [2, 2, 1], "the first of equals");
    });
}

/// Connects once more, and returns the number of new connections that each member sees.
fn request(world: &World, client: &mut SimTransport, members: &mut [SimTransport], addr: &Addr) -> Vec<usize> {
    client.connect(addr, &[], world.now() + SECOND).unwrap();
    world.run_for(Duration::from_millis(1));
    let mut requests = |member: &mut SimTransport| {
        let mut events = Vec::new();
        member.poll(world.now(), &mut events);
        events.iter().filter(|event| matches!(event, Event::ConnectRequest { .. })).count()
    };
    members.iter_mut().map(&mut requests).collect()
}

#[test]
fn a_dropped_member_leaves_the_group() {
    let world = world();
    let node = world.node("server");
    let mut members = node.transports(3).unwrap();
    let addr = members[0].listen(&node.addr(1)).unwrap();
    let mut client = world.node("client").transport().unwrap();
    assert_eq!(request(&world, &mut client, &mut members, &addr), [1, 0, 0]);
    assert_eq!(request(&world, &mut client, &mut members, &addr), [0, 1, 0]);
    drop(members.remove(1));
    for expected in [[0, 1], [1, 0], [0, 1]] {
        assert_eq!(request(&world, &mut client, &mut members, &addr), expected);
    }
    // A transport that is made alone is in no group.
    let mut alone = node.transport().unwrap();
    assert_eq!(request(&world, &mut client, &mut members, &addr), [1, 0]);
    assert!(!alone.poll(world.now(), &mut Vec::new()));
    drop(members.remove(0));
    assert_eq!(request(&world, &mut client, &mut members, &addr), [0], "nobody listens");
}

/// The connections of all members end with their node, and the next start has a group of its own.
#[test]
fn a_killed_node_loses_all_members() {
    let run = || {
        let world = world();
        let node = world.node("server");
        let client = world.node("client").endpoint(Config::default()).unwrap();
        let mut seen = Vec::new();
        for count in [2, 3] {
            let (members, addr) = shards(&node, count);
            world.block_on(async {
                for _ in 0..4 {
                    connect(&client, &addr).await.unwrap();
                }
                seen.push(peers(&members));
                node.kill();
                drop(members);
                let gone = client.connect(&addr, client.within(SECOND)).await.unwrap_err();
                assert!(matches!(gone.kind(), ErrorKind::Refused | ErrorKind::PeerLost), "{gone}");
                node.restart();
            });
            assert_eq!(client.resource_usage().peers, 0, "all connections have ended");
        }
        (seen, world.digest())
    };
    let (seen, digest) = run();
    assert_eq!(seen, [vec![2, 2], vec![2, 1, 1]]);
    assert_eq!(run(), (seen, digest));
}

/// Each member answers its own clients, and its messages wait for its own core only.
#[test]
fn every_member_serves_its_clients_on_its_core() {
    let world = world();
    let node = world.node("server");
    let (members, addr) = shards(&node, 2);
    for (core, member) in members.into_iter().enumerate() {
        let node2 = node.clone();
        node.spawn_on(core, async move {
            loop {
                let request = member.next_unexpected().await;
                node2.compute(Duration::from_millis(if core == 0 { 10 } else { 1 })).await;
                let name = vec![core as u8; 5];
                let sent = request.peer().send(request.tag(), Memory::from(name), Options::default());
                sent.await.unwrap();
            }
        });
    }
    let clients = ["a", "b"].map(|name| world.node(name).endpoint(Config::default()).unwrap());
    let ask = async |client: &Endpoint| {
        let peer = connect(client, &addr).await.unwrap();
        let (start, reply) = (client.now(), Memory::zeroed(5).unwrap());
        let answer = peer.recv(7, reply.clone(), Options::default());
        peer.send_unexpected(7, Memory::from(vec![1]), Options::default()).await.unwrap();
        answer.await.unwrap();
        (reply.to_vec()[0], client.now() - start)
    };
    let (a, b) = world.block_on(async { futures_util::future::join(ask(&clients[0]), ask(&clients[1])).await });
    assert_eq!((a.0, b.0), (0, 1));
    assert!(a.1 >= Duration::from_millis(10) && b.1 < Duration::from_millis(2), "{a:?} {b:?}");
}
