//! An I/O server with several event loops, each on a core of its own.

use bmi::Time;
use bmi_sim::{Load, Profile, SimConfig};
use futures_util::future::join_all;

use super::*;

const CLIENTS: usize = 6;

/// Each client writes and reads a datafile of its own, small and long, and again after the server
/// was killed. Returns the loads of the server before and after that, and the digest of the run.
fn run(loops: usize) -> (Load, Load, u64) {
    let world = World::with(SimConfig::with_profile(Profile { cpu_cores: 4, ..Profile::default() }));
    let cluster = SimCluster::start_on_cores(&world, ClusterOptions::with_iods(1), loops).unwrap();
    with_datafiles(&cluster);
    let clients: Vec<_> =
        (0..CLIENTS).map(|at| Client::new(&world.node(&format!("client{at}")), at as u128 + 1)).collect();
    let node = cluster.iod_node(0);
    let start = node.load();
    let round = async |seed: u64| {
        join_all(clients.iter().enumerate().map(async |(at, client)| {
            let iod = client.connect(&cluster.iods()[0]).await;
            let file = DatafileHandle(at as u64);
            for len in [1000, 50_000, 1_500_000] {
                let (all, bytes) = (regions(&[(0, len as u64)]), pattern(len, seed + at as u64));
                client.write(iod, file, &all, &bytes.clone().into()).await.unwrap();
                assert!(client.read(iod, file, &all).await.unwrap() == bytes, "{len} bytes");
            }
        }))
        .await;
    };
    world.block_on(round(1));
    let first = node.load().since(&start);
    cluster.restart_iod(0);
    world.block_on(round(50));
    (first, node.load(), world.digest())
}

/// A second loop cost a server that needed only one.
#[test]
fn one_loop_serves_few_clients_and_the_run_repeats() {
    let (first, second, digest) = run(3);
    for load in [&first, &second] {
        assert!(!load.cores[0].is_zero(), "{load:?}");
        assert!(load.cores[1..].iter().all(Duration::is_zero), "the others have not even been woken: {load:?}");
        let names: Vec<_> = load.locks.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["open files", "buffers", "turns"], "in the order of their first use");
        assert!(load.locks.iter().all(|(_, held)| !held.is_zero()), "{load:?}");
    }
    assert_eq!(run(3), (first, second, digest));
}

/// Writes and reads a datafile over and over, a few requests at a time, until `end`. Connects again
/// whenever it is dismissed. Returns the number of requests, and of connections.
async fn work(client: &Client, addr: &Addr, file: DatafileHandle, end: Time) -> (usize, usize) {
    let (all, bytes) = (regions(&[(0, 4000)]), pattern(4000, file.0));
    let (mut done, mut connections) = (0, 0);
    while client.endpoint.now() < end {
        let iod = client.connect(addr).await;
        connections += 1;
        let stream = async || {
            let mut done = 0;
            while client.endpoint.now() < end {
                let list = bytes.clone().into();
                let moved = async {
                    client.write(iod, file, &all, &list).await?;
                    client.read(iod, file, &all).await
                };
                match moved.await {
                    Ok(read) => assert!(read == bytes),
                    Err(error) => {
                        assert!(error.detail.contains("has done nothing"), "nothing may be lost: {error}");
                        break;
                    }
                }
                done += 1;
            }
            done
        };
        done += join_all((0..4).map(|_| stream())).await.into_iter().sum::<usize>();
    }
    (done, connections)
}

/// All connections came to the first loop, and there they stayed however much it had to do.
#[test]
fn loops_join_when_the_first_is_full_and_clients_move_to_them() {
    let saturated = |loops| {
        let world =
            World::with(SimConfig::with_profile(Profile { cpu_cores: 3, ..Profile::named("vapi-2003").unwrap() }));
        let cluster = SimCluster::start_on_cores(&world, ClusterOptions::with_iods(1), loops).unwrap();
        with_datafiles(&cluster);
        let clients: Vec<_> =
            (0..12).map(|at| Client::new(&world.node(&format!("client{at}")), at as u128 + 1)).collect();
        let (addr, end) = (cluster.iods()[0].clone(), world.now() + Duration::from_millis(400));
        let all = clients.iter().zip(0..).map(|(client, at)| work(client, &addr, DatafileHandle(at), end));
        let results = world.block_on(join_all(all));
        let load = cluster.iod_node(0).load();
        (results.iter().map(|(done, _)| done).sum::<usize>(), results.iter().map(|(_, made)| made).sum::<usize>(), load)
    };
    let (alone, made, _) = saturated(1);
    assert_eq!(made, 12);
    let (together, made, load) = saturated(2);
    assert!(load.cores[1] > load.cores[0] / 2 && load.cores[2].is_zero(), "{load:?}");
    assert!((13..=12 + 6).contains(&made), "some of the clients have moved, once: {made} connections");
    assert!(together > alone + alone / 4, "{together} with two loops, {alone} with one");
}

#[test]
fn one_loop_waits_for_no_lock() {
    let (first, second, _) = run(1);
    assert!(!first.locks.is_empty() && first.lock_waiting.is_zero() && second.lock_waiting.is_zero());
}

#[test]
fn a_server_without_loops_is_refused() {
    let world = World::new(1);
    let refused = SimCluster::start_on_cores(&world, ClusterOptions::with_iods(1), 0);
    assert_eq!(refused.err().map(|error| error.code), Some(ErrorCode::Invalid));
    assert_eq!(world.now(), Time::ZERO);
}
