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

#[test]
fn all_loops_serve_one_store_and_the_run_repeats() {
    let (first, second, digest) = run(3);
    for load in [&first, &second] {
        // The fourth core has no loop.
        assert!(load.cores[..3].iter().all(|core| !core.is_zero()), "{load:?}");
        let names: Vec<_> = load.locks.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["open files", "buffers", "turns"], "in the order of their first use");
        assert!(load.locks.iter().all(|(_, held)| !held.is_zero()), "{load:?}");
    }
    assert_eq!(run(3), (first, second, digest));
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
