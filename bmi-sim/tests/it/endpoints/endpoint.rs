//! The real protocol inside a world: an example of a user's test, and the effects of faults on it.

use std::time::Duration;

use bmi_core::{Access, Config, Endpoint, ErrorKind, Memory, OneSided, Options, Peer, PeerEvent, Tag};
use bmi_sim::{Node, SimConfig, World};

const SECOND: Duration = Duration::from_secs(1);

/// Answers each unexpected message with its bytes under the same tag.
async fn echo(endpoint: Endpoint) {
    loop {
        let request = endpoint.next_unexpected().await;
        let bytes = Memory::from(request.bytes().to_vec());
        let options = endpoint.within(SECOND);
        // A client that left does not matter to the server.
        let _ = request.peer().send(request.tag(), bytes, options).await;
    }
}

fn server_and_client(world: &World) -> (Node, Node, Endpoint, Endpoint) {
    let (server, client) = (world.node("server"), world.node("client"));
    let (s, c) = (server.endpoint(Config::default()).unwrap(), client.endpoint(Config::default()).unwrap());
    s.listen(&server.addr(1)).unwrap();
    (server, client, s, c)
}

/// Asks for an echo of `len` bytes.
async fn ask(peer: &Peer, tag: Tag, len: usize) -> Result<Vec<u8>, bmi_core::Error> {
    let (request, reply) = (Memory::from(vec![tag as u8; len]), Memory::zeroed(len)?);
    let options = peer.within(SECOND);
    let answer = peer.recv(tag, reply.clone(), options);
    peer.send_unexpected(tag, request, options).await?;
    answer.await?;
    Ok(reply.to_vec())
}

fn echo_run(config: SimConfig) -> (u64, u64) {
    let world = World::with(config);
    let (server, client, s, c) = server_and_client(&world);
    server.spawn(echo(s));
    world.block_on(async {
        let peer = c.connect(&server.addr(1), Options::default()).await.unwrap();
        for tag in 0..200 {
            let len = 1 + tag as usize * 40;
            assert_eq!(ask(&peer, tag, len).await.unwrap(), vec![tag as u8; len]);
        }
        peer.disconnect(peer.within(SECOND)).await.unwrap();
    });
    world.run();
    assert!(client.cpu_busy() > Duration::ZERO);
    assert_eq!(c.resource_usage().work, 0);
    (world.digest(), world.events())
}

#[test]
fn echoes_come_back_and_a_run_repeats() {
    let config = |seed| SimConfig { jitter_ns: 2_000, ..SimConfig::seeded(seed) };
    assert_eq!(echo_run(config(1)), echo_run(config(1)));
    assert_ne!(echo_run(config(1)), echo_run(config(2)));
    echo_run(SimConfig::vapi_2003());
}

#[test]
fn scarce_adapters_only_cost_time() {
    let mut config = SimConfig::seeded(5);
    let mut capabilities = config.capabilities();
    (capabilities.max_segments, capabilities.max_inline, capabilities.max_outstanding_reads) = (1, 0, 1);
    (capabilities.send_queue_depth, capabilities.one_sided) = (2, OneSided::Native);
    config.capabilities_override = Some(capabilities);
    echo_run(config);
}

#[test]
fn bulk_moves_both_ways_at_the_adapters_speed() {
    const LEN: usize = 8 << 20;
    let world = World::new(1);
    let (server, client, s, c) = server_and_client(&world);
    let data: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    let source = Memory::from(data.clone());
    let serving = server.spawn(async move {
        let PeerEvent::Connected { peer, .. } = s.next_event().await else { panic!("no peer") };
        let exposure = peer.expose(source, Access::READ).unwrap();
        let wire: Vec<u8> = exposure.descriptor().pieces().iter().flat_map(|piece| piece.to_wire()).collect();
        peer.send(1, Memory::from(wire), peer.within(SECOND)).await.unwrap();
        s.next_event().await;
    });
    let (copy, took) = world.block_on(async {
        let peer = c.connect(&server.addr(1), Options::default()).await.unwrap();
        let wire = Memory::zeroed(24).unwrap();
        peer.recv(1, wire.clone(), peer.within(SECOND)).await.unwrap();
        let piece = bmi_core::RemoteSlice::from_wire(wire.to_vec()[..].try_into().unwrap());
        let remote = bmi_core::BulkDescriptor::try_from(vec![piece]).unwrap();
        let into = Memory::zeroed(LEN).unwrap();
        let start = client.now();
        peer.pull(&remote, 0, into.clone(), peer.within(SECOND)).await.unwrap();
        let took = client.now() - start;
        peer.disconnect(peer.within(SECOND)).await.unwrap();
        (into, took)
    });
    assert!(copy.to_vec() == data, "the bytes differ");
    // 8 MiB at 12.5 GB/s take 671 µs.
    assert!((671..1_342).contains(&took.as_micros()), "{took:?}");
    world.block_on(serving).unwrap();
}

#[test]
fn a_killed_server_ends_the_clients_operations() {
    let world = World::new(1);
    let (server, _client, s, c) = server_and_client(&world);
    server.spawn(echo(s));
    let killed = server.clone();
    world.at(bmi_core::Time::from_nanos(2_000_000), move |_| killed.kill());
    let error = world.block_on(async {
        let peer = c.connect(&server.addr(1), Options::default()).await.unwrap();
        loop {
            if let Err(error) = ask(&peer, 1, 100).await {
                return error;
            }
        }
    });
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
    assert!(error.peer().is_some() && error.operation().is_some(), "{error}");
    assert_eq!(world.now().as_nanos() / 1_000_000, 12, "noticed after the detection time of 10 ms");
    server.restart();
    let s = server.endpoint(Config::default()).unwrap();
    s.listen(&server.addr(1)).unwrap();
    server.spawn(echo(s));
    world.block_on(async {
        let peer = c.connect(&server.addr(1), Options::default()).await.unwrap();
        assert_eq!(ask(&peer, 2, 3).await.unwrap(), [2; 3]);
    });
}

#[test]
fn a_paused_server_makes_the_client_time_out() {
    let world = World::new(1);
    let (server, _client, s, c) = server_and_client(&world);
    server.spawn(echo(s));
    let peer = world.block_on(c.connect(&server.addr(1), Options::default())).unwrap();
    server.pause();
    let error = world.block_on(ask(&peer, 1, 10)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    server.resume();
}
