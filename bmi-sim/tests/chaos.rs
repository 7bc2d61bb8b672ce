//! The real protocol under faults drawn from a seed: nodes killed and restarted, paused, cut off.
//! Every operation ends by its deadline, every answer is the right one, nothing is held afterwards,
//! and the run repeats. `BMI_SEEDS=0..5000` runs more of it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use bmi_core::{Access, Config, Endpoint, Error, ErrorKind, MemList, Memory, Options, Peer};
use bmi_sim::check::seeds;
use bmi_sim::{Node, Rng, SimConfig, World};

const CLIENTS: u64 = 3;
const PATIENCE: Duration = Duration::from_millis(50);
/// How long the world makes trouble.
const TROUBLE: Duration = Duration::from_millis(200);

fn config() -> Config {
    Config::default().fence_grace(Duration::from_millis(20)).connect_timeout(PATIENCE)
}

/// Answers every request with its bytes in reverse.
async fn serve(node: Node) {
    let endpoint = node.endpoint(config()).unwrap();
    endpoint.listen(&node.addr(1)).unwrap();
    loop {
        let request = endpoint.next_unexpected().await;
        let (peer, tag) = (request.peer().clone(), request.tag());
        let mut bytes = request.bytes().to_vec();
        drop(request);
        bytes.reverse();
        let repeat = 1 + tag as usize % 7 * 8;
        let reply = Memory::from(bytes.repeat(repeat));
        node.spawn(async move {
            // A client that went away does not matter to the server.
            let _ = peer.send(tag, reply, peer.within(PATIENCE)).await;
        });
    }
}

async fn ask(peer: &Peer, tag: u64, rng: &mut Rng) -> Result<(), Error> {
    let request: Vec<u8> = (0..1 + rng.below(2_000)).map(|_| rng.next_u64() as u8).collect();
    let mut expected = request.clone();
    expected.reverse();
    let expected = expected.repeat(1 + tag as usize % 7 * 8);
    let reply = Memory::zeroed(expected.len() + 100)?;
    let answer = peer.recv(tag, MemList::from(reply.clone()), peer.within(PATIENCE));
    peer.send_unexpected(tag, Memory::from(request), peer.within(PATIENCE)).await?;
    let len = answer.await?.len as usize;
    assert_eq!(len, expected.len());
    assert!(reply.to_vec()[..len] == expected, "a wrong answer");
    Ok(())
}

/// Asks until the trouble is over, and then once more. Returns the numbers of answers and of
/// errors.
async fn client(node: Node, server: Node, seed: u64, endpoint: Endpoint) -> (u64, u64) {
    let mut rng = Rng::new(seed);
    let (mut answers, mut errors, mut tag) = (0, 0, 0);
    let mut peer = None;
    loop {
        let last = node.now() > bmi_core::Time::ZERO + 2 * TROUBLE;
        let start = node.now();
        let outcome = async {
            let to = match peer.take() {
                Some(peer) => peer,
                None => endpoint.connect(&server.addr(1), Options::default()).await?,
            };
            tag += 1;
            ask(peer.insert(to), tag, &mut rng).await
        }
        .await;
        // Two operations, each its patience and its grace.
        assert!(
            node.now() - start <= 2 * (PATIENCE + config().timeouts.fence_grace),
            "an operation outlived its deadline"
        );
        match outcome {
            Ok(()) => answers += 1,
            Err(error) => {
                assert!(!last, "an error though all is well: {error}");
                assert!(
                    matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::TimedOut | ErrorKind::Refused),
                    "{error}"
                );
                errors += 1;
                if let Some(peer) = peer.take() {
                    let _ = peer.disconnect(peer.within(Duration::from_millis(1))).await;
                }
                node.sleep(Duration::from_millis(1)).await;
            }
        }
        if last {
            if let Some(peer) = peer.take() {
                peer.disconnect(peer.within(PATIENCE)).await.unwrap();
            }
            return (answers, errors);
        }
        node.sleep(Duration::from_micros(rng.below(2_000))).await;
    }
}

/// Causes faults by schedule, all over by the end of the trouble.
async fn trouble(world: bmi_sim::Sim, server: Node, clients: Vec<Node>, mut rng: Rng) {
    let end = bmi_core::Time::ZERO + TROUBLE;
    while world.now() < end {
        world.sleep(Duration::from_micros(rng.below(20_000))).await;
        let client = &clients[rng.below(CLIENTS) as usize];
        let pause = Duration::from_micros(rng.below(30_000));
        match rng.below(4) {
            0 => world.cut(&server, client),
            1 => {
                server.kill();
                world.sleep(pause).await;
                server.restart();
                server.spawn(serve(server.clone()));
            }
            2 => {
                server.pause();
                world.sleep(pause).await;
                server.resume();
            }
            _ => {
                world.partition(&server, client);
                world.sleep(pause).await;
                world.heal(&server, client);
            }
        }
    }
}

fn run(seed: u64) -> (u64, u64, u64) {
    let world = World::with(SimConfig { jitter_ns: 10_000, ..SimConfig::drawn(seed) });
    let mut rng = Rng::new(seed);
    let server = world.node("server");
    server.spawn(serve(server.clone()));
    let clients: Vec<Node> = (0..CLIENTS).map(|id| world.node(&format!("client{id}"))).collect();
    let endpoints: Vec<Endpoint> = clients.iter().map(|node| node.endpoint(config()).unwrap()).collect();
    let tasks: Vec<_> = clients
        .iter()
        .zip(&endpoints)
        .map(|(node, endpoint)| node.spawn(client(node.clone(), server.clone(), rng.next_u64(), endpoint.clone())))
        .collect();
    world.spawn(trouble(world.sim(), server.clone(), clients, rng));
    let (mut answers, mut errors) = (0, 0);
    for task in tasks {
        let (right, wrong) = world.block_on(task).unwrap();
        (answers, errors) = (answers + right, errors + wrong);
    }
    world.run_for(Duration::from_secs(1));
    for endpoint in &endpoints {
        let held = endpoint.resource_usage();
        assert_eq!(held, Default::default(), "seed {seed}");
    }
    (answers, errors, world.digest())
}

#[test]
fn every_operation_ends_and_a_run_repeats() {
    let (mut answers, mut errors) = (0, 0);
    let seeds = seeds(0..10);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let first = run(seed);
        assert_eq!(first, run(seed), "seed {seed}");
        answers += first.0;
        errors += first.1;
    }
    assert!(
        count < 5 || (answers > 100 * count && errors > 2 * count),
        "{answers} answers, {errors} errors: there was hardly any trouble, or no peace"
    );
}

/// A pull whose peer is killed, cut off or paused at every possible moment.
#[test]
fn a_bulk_transfer_survives_or_ends() {
    let mut ends = Vec::new();
    for at_us in (50..1_500).step_by(71) {
        let world = World::new(at_us);
        let (server, client) = (world.node("server"), world.node("client"));
        let (s, c) = (server.endpoint(config()).unwrap(), client.endpoint(config()).unwrap());
        let addr = s.listen(&server.addr(1)).unwrap();
        server.spawn(async move {
            let request = s.next_unexpected().await;
            let source = Memory::from(vec![9; 8 << 20]);
            let exposure = request.peer().expose(source, Access::READ).unwrap();
            let wire: Vec<u8> = exposure.descriptor().pieces().iter().flat_map(|piece| piece.to_wire()).collect();
            let _ = request.peer().send(1, Memory::from(wire), Options::default()).await;
            std::future::pending::<()>().await;
        });
        let victim = server.clone();
        world.at(bmi_core::Time::from_nanos(at_us * 1_000), move |_| victim.kill());
        let outcome = world.block_on(async {
            let peer = c.connect(&addr, Options::default()).await?;
            let wire = Memory::zeroed(24)?;
            let answer = peer.recv(1, wire.clone(), peer.within(PATIENCE));
            peer.send_unexpected(0, Memory::from(vec![0]), peer.within(PATIENCE)).await?;
            answer.await?;
            let piece = bmi_core::RemoteSlice::from_wire(wire.to_vec()[..].try_into().unwrap());
            let remote = bmi_core::BulkDescriptor::try_from(vec![piece])?;
            let mut into = Memory::zeroed(8 << 20)?;
            peer.pull(&remote, 0, into.clone(), peer.within(PATIENCE)).await?;
            assert!(into.get_mut().unwrap().iter().all(|byte| *byte == 9));
            Ok::<_, Error>(())
        });
        world.run_for(Duration::from_millis(100));
        assert_eq!(c.resource_usage(), Default::default(), "killed at {at_us} µs");
        ends.push(outcome.map_err(|error| error.kind()));
    }
    assert!(ends.iter().any(Result::is_ok) && ends.iter().any(Result::is_err), "{ends:?}");
}
