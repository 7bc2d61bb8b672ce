//! The client against servers that misbehave on request, in the simulator.

use std::time::Duration;

use bmi_core::{Config, Lists, Memory};
use fs_client::{Client, ClientOptions, Direction, ErrorCode, Extended, ExtendedRaw, Path, Region};
use fs_proto::codec;
use proptest::prelude::*;

use crate::bodies::{code, path, pattern, striped};
use crate::servers::{Garbage, MockCluster};

/// No operation may take longer than its own time limit plus the grace period for letting go of
/// memory.
const LIMIT: Duration = Duration::from_secs(5);

#[test]
fn the_whole_interface() {
    let cluster = MockCluster::new(1, 5);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        assert_eq!(client.iods().len(), 5, "the list of servers comes in pages");
        crate::bodies::everything(&client, 5, 100).await;
        for pong in client.ping().await {
            assert!(pong.result.unwrap() > Duration::ZERO, "{}", pong.server);
        }
        assert_eq!(client.statfs().await.unwrap().servers.len(), 5);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn lists_agree_with_a_model(
        seed in any::<u64>(),
        strip in prop::sample::select(vec![4096u64, 5000, 16384]),
        servers in 1u32..5,
        steps in crate::bodies::any_steps(),
    ) {
        let cluster = MockCluster::new(seed, servers);
        cluster.world.block_on(async {
            let client = cluster.client().await;
            let file = client.create(&path("/f"), striped(strip, servers)).await.unwrap();
            crate::bodies::list_io(&file, &steps).await;
        });
    }
}

/// Any two lists, over each forced path, moved piece by piece or packed.
#[test]
fn lists_move_by_every_path_and_in_every_way() {
    let paths = Path::TAKEN.into_iter().chain([Path::Hybrid]).map(Some).chain([None]);
    let ways = [Lists::Auto, Lists::Chain, Lists::Pack];
    for (seed, (path_taken, lists)) in (20..).zip(paths.flat_map(|path| ways.map(|lists| (path, lists)))) {
        let cluster = MockCluster::new(seed, 3);
        cluster.world.block_on(async {
            let options = ClientOptions { path: path_taken, lists, ..cluster.options() };
            let client = cluster.client_with(options).await;
            let file = client.create(&path("/f"), striped(4096, 3)).await.unwrap();
            crate::bodies::list_io(&file, &crate::bodies::hard_steps()).await;
            let paths = client.stats().paths;
            let path = path_taken.unwrap_or(Path::ServerBased).resolve(Direction::Write);
            assert!(paths.requests(Direction::Write, path) > 0, "{path_taken:?}, {lists:?}: {paths}");
            // Exposures that were dropped are revoked at the next poll.
            cluster.world.sim().sleep(Duration::from_millis(1)).await;
            let left = client.endpoint().with(|endpoint| endpoint.resource_usage());
            assert_eq!(
                (left.operations, left.exposures, left.parked),
                (0, 0, 0),
                "{path_taken:?}, {lists:?}: {left:?}"
            );
        });
    }
}

/// The experiment of [PVFS-IB §6.8]: the upper left 1024 x 768 tile of a 2048 x 1536 array of
/// 64-byte elements, noncontiguous in memory and in the file. Its rows are registered one by one,
/// unless the program passes the allocation that contains them.
#[test]
fn a_tile_needs_one_registration_with_hints_and_one_for_each_row_without() {
    const ELEMENT: usize = 64;
    const ROW: usize = 1024 * ELEMENT;
    const LINE: usize = 2048 * ELEMENT;
    const ROWS: usize = 768;
    let mut array = vec![0u8; LINE * 1536];
    let base = array.as_mut_ptr();
    let mem_offsets: Vec<*mut u8> = (0..ROWS).map(|row| base.wrapping_add(row * LINE)).collect();
    let (mem_lengths, whole) = (vec![ROW; ROWS], LINE * (ROWS - 1) + ROW);
    let file_offsets: Vec<u64> = (0..ROWS as u64).map(|row| row * (ROW + 5000) as u64).collect();
    let file_lengths = vec![ROW as u64; ROWS];
    let (parents, lengths) = (vec![base; ROWS], vec![whole; ROWS]);
    let access = |hints: bool| ExtendedRaw {
        mem_offsets: &mem_offsets,
        mem_lengths: &mem_lengths,
        allocation_offsets: if hints { &parents } else { &[] },
        allocation_lengths: if hints { &lengths } else { &[] },
        file_offsets: &file_offsets,
        file_lengths: &file_lengths,
    };
    let tile = pattern(ROW * ROWS, 3);
    for hints in [true, false] {
        array.fill(0xEE);
        let cluster = MockCluster::new(7, 4);
        cluster.world.block_on(async {
            let client = cluster.client().await;
            let file = client.create(&path("/tile"), striped(65536, 4)).await.unwrap();
            let regions: Vec<_> = file_offsets.iter().map(|offset| Region::new(*offset, ROW as u64)).collect();
            file.write_list(&regions, tile.clone()).await.unwrap();
            let before = client.endpoint().counters();
            // SAFETY: the array lives until the end of the test, and nothing accesses it before the
            // client and its world are gone.
            let read = unsafe { file.read_extended_raw(access(hints)) }.await.unwrap();
            assert_eq!(read, tile.len() as u64);
            let registered = client.endpoint().counters().pin_misses - before.pin_misses;
            assert_eq!(registered, if hints { 1 } else { ROWS as u64 }, "hints: {hints}");
            let before = client.endpoint().counters();
            // SAFETY: as above.
            unsafe { file.write_extended_raw(access(hints)) }.await.unwrap();
            assert_eq!(client.endpoint().counters().pin_misses, before.pin_misses, "all are registered still");
            assert!(crate::bodies::read(&file, 5 * (ROW as u64 + 5000), ROW).await == tile[5 * ROW..6 * ROW]);
            client.foreign().forget_all();
        });
        for row in 0..ROWS {
            assert!(array[row * LINE..][..ROW] == tile[row * ROW..][..ROW], "row {row}, hints: {hints}");
            assert!(array[row * LINE + ROW..(row + 1) * LINE].iter().all(|byte| *byte == 0xEE), "behind row {row}");
        }
    }
}

/// The safe form: the allocations belong to the library.
#[test]
fn extended_lists_of_our_own_memory() {
    let cluster = MockCluster::new(8, 2);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        let file = client.create(&path("/f"), striped(4096, 2)).await.unwrap();
        let (one, other) = (Memory::from(pattern(30_000, 1)), Memory::from(pattern(20_000, 2)));
        let access = Extended {
            allocations: &[one.clone(), other.clone(), one.clone()],
            mem_offsets: &[20_000, 0, 5],
            mem_lengths: &[10_000, 20_000, 7],
            file_offsets: &[100, 50_000],
            file_lengths: &[30_000, 7],
        };
        file.write_extended(access).await.unwrap();
        let written = [&one.to_vec()[20_000..], &other.to_vec()[..]].concat();
        assert_eq!(crate::bodies::read(&file, 100, 30_000).await, written);
        assert_eq!(crate::bodies::read(&file, 50_000, 100).await, &one.to_vec()[5..12]);
        let target = Memory::zeroed(30_007).unwrap();
        let allocations = vec![target.clone(); 2];
        let back = Extended { allocations: &allocations, mem_offsets: &[7, 0], mem_lengths: &[30_000, 7], ..access };
        assert_eq!(file.read_extended(back).await.unwrap(), 30_007);
        assert_eq!(target.to_vec()[7..], written);
        for wrong in [
            Extended { mem_lengths: &[1], ..access },
            Extended { mem_offsets: &[20_001, 0, 5], ..access },
            Extended { file_lengths: &[1, 7], ..access },
            Extended { allocations: &[], ..access },
        ] {
            assert_eq!(code(file.write_extended(wrong)).await, ErrorCode::Invalid);
        }
    });
}

#[test]
fn a_change_whose_reply_was_lost_is_made_once() {
    let cluster = MockCluster::new(2, 1);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        cluster.faults.cut_after_change.set(1);
        client.mkdir(&path("/d")).await.unwrap();
        cluster.faults.cut_after_change.set(3);
        client.rename(&path("/d"), &path("/e")).await.unwrap();
        cluster.faults.cut_after_change.set(1);
        client.remove(&path("/e"), fs_client::RemoveKind::Any).await.unwrap();
        assert_eq!(cluster.state.borrow().executed, ["mkdir", "rename", "remove"]);
        assert!(client.stats().resent >= 3, "{:?}", client.stats());
    });
}

#[test]
fn a_manager_that_comes_back_within_the_time_limit_is_waited_for() {
    let cluster = MockCluster::new(3, 1);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        cluster.faults.cut_after_change.set(1);
        let (manager, sim) = (cluster.manager.clone(), cluster.world.sim());
        let dir = path("/d");
        let change = client.mkdir(&dir);
        let back = async {
            while cluster.state.borrow().executed.is_empty() {
                sim.sleep(Duration::from_micros(10)).await;
            }
            manager.kill();
            sim.sleep(Duration::from_secs(1)).await;
            manager.restart();
            cluster.start(&manager, None);
        };
        futures_util::future::join(change, back).await.0.unwrap();
        assert_eq!(cluster.state.borrow().executed, ["mkdir"]);
    });
}

#[test]
fn a_manager_that_stays_away_ends_the_wait_at_the_time_limit() {
    let cluster = MockCluster::new(4, 1);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        cluster.manager.kill();
        let start = cluster.world.now();
        let error = client.mkdir(&path("/d")).await.unwrap_err();
        assert!(matches!(error.code(), ErrorCode::Unreachable | ErrorCode::Timeout), "{error}");
        assert!(error.to_string().contains("sim://manager:1 (manager)"), "{error}");
        assert!(cluster.world.now().since(start) < LIMIT);
    });
}

#[test]
fn nobody_at_the_address_is_said_at_once() {
    let cluster = MockCluster::new(5, 1);
    cluster.world.block_on(async {
        let endpoint = cluster.client_node.endpoint(Config::named("client")).unwrap();
        let start = cluster.world.now();
        let result = Client::connect(endpoint, cluster.manager.addr(99), cluster.options()).await;
        let Err(error) = result else { panic!("connected to nobody") };
        assert_eq!(error.code(), ErrorCode::Unreachable);
        assert!(error.to_string().starts_with("connect at sim://manager:99 (manager) failed: "), "{error}");
        assert!(cluster.world.now().since(start) < Duration::from_secs(1));
    });
}

#[test]
fn a_full_disk_names_server_and_ranges_and_the_rest_stays() {
    let cluster = MockCluster::new(6, 4);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        let file = client.create(&path("/f"), striped(65536, 4)).await.unwrap();
        file.write_at(0, pattern(1 << 20, 1)).await.unwrap();
        cluster.faults.full.set(Some(2));
        let error = file.write_at(0, pattern(262_144, 2)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NoSpace);
        assert_eq!(
            error.to_string(),
            "write of /f at sim://iod2:1 (iod 2) of bytes 131072..196608 failed: no space left: the store is full"
        );
        let found = crate::bodies::read(&file, 0, 1 << 20).await;
        let (old, new) = (pattern(1 << 20, 1), pattern(262_144, 2));
        assert!(found[..131_072] == new[..131_072], "what the others acknowledged is there");
        assert!(found[131_072..196_608] == old[131_072..196_608]);
        assert!(found[196_608..262_144] == new[196_608..] && found[262_144..] == old[262_144..]);
        // Small writes report the same.
        let error = file.write_at(131_072 + 5, pattern(10, 1)).await.unwrap_err();
        assert_eq!(error.failures()[0].ranges, std::slice::from_ref(&(131_077..131_087)));
    });
}

#[test]
fn several_failures_are_told_together() {
    let cluster = MockCluster::new(7, 4);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        let file = client.create(&path("/f"), striped(65536, 4)).await.unwrap();
        file.write_at(0, pattern(1 << 20, 1)).await.unwrap();
        cluster.faults.full.set(Some(1));
        cluster.iods[3].kill();
        let start = cluster.world.now();
        let error = file.write_at(0, pattern(1 << 20, 2)).await.unwrap_err();
        assert!(cluster.world.now().since(start) < LIMIT);
        let mut servers: Vec<_> = error.failures().iter().map(|f| f.server.as_ref().unwrap().iod.unwrap()).collect();
        servers.sort_unstable();
        assert_eq!(servers, [1, 3]);
        assert!(error.to_string().starts_with("write of /f at 2 servers failed: "), "{error}");
    });
}

#[test]
fn a_silent_server_costs_the_time_limit_and_no_more() {
    let cluster = MockCluster::new(8, 2);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        let file = client.create(&path("/f"), striped(65536, 2)).await.unwrap();
        file.write_at(0, pattern(200_000, 1)).await.unwrap();
        cluster.faults.silent.set(Some(1));
        let start = cluster.world.now();
        for bulk in [true, false] {
            let len = if bulk { 65536 } else { 100 };
            let error = file.read_at(65536, Memory::zeroed(len).unwrap()).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::Timeout, "{error}");
            assert_eq!(error.failures()[0].ranges, std::slice::from_ref(&(65536..65536 + len as u64)));
        }
        assert!(cluster.world.now().since(start) < LIMIT * 2);
        cluster.faults.silent.set(None);
        assert_eq!(crate::bodies::read(&file, 0, 200_000).await, pattern(200_000, 1));
    });
}

#[test]
fn nonsense_from_a_server_is_an_error_and_nothing_else() {
    let cluster = MockCluster::new(9, 2);
    let good = |reply: fs_proto::IodReply| codec::encode_reply(&Ok(reply.into()).into());
    let reply = |bytes| Garbage { iod: 0, bytes, raw: false };
    let replies = vec![
        reply(vec![]),
        reply(vec![codec::VERSION]),
        reply(vec![9; 40]),
        reply(vec![codec::VERSION, 0xFF, 0xFF, 0xFF]),
        // A reply for a ping, and one with bytes that were not announced.
        reply(good(fs_proto::IodReply::Done)),
        reply([good(fs_proto::IodReply::Done), vec![0; 7]].concat()),
        // A write of fewer bytes than were sent, and a read that claims to be complete.
        reply(good(fs_proto::IodReply::Written { len: 3, size: 3, start: 1 })),
        reply(good(fs_proto::IodReply::Read { len: 100, size: 100 })),
        reply(vec![0xAB; 8000]),
        // These are not replies at all.
        Garbage { raw: true, ..reply(vec![]) },
        Garbage { raw: true, ..reply(vec![0; 100]) },
        Garbage { raw: true, ..reply(vec![0xFF; 128]) },
    ];
    cluster.world.block_on(async {
        let client = cluster.client().await;
        let file = client.create(&path("/f"), striped(65536, 2)).await.unwrap();
        file.write_at(0, pattern(200_000, 1)).await.unwrap();
        for reply in replies {
            *cluster.faults.garbage.borrow_mut() = Some(reply);
            assert_eq!(code(file.write_at(0, pattern(100, 1))).await, ErrorCode::Protocol);
            assert_eq!(code(file.read_at(0, Memory::zeroed(100).unwrap())).await, ErrorCode::Protocol);
        }
        *cluster.faults.garbage.borrow_mut() = None;
        assert_eq!(crate::bodies::read(&file, 0, 200_000).await, pattern(200_000, 1));
    });
}

/// Replays a bug: if a manager sent the same page again and again, the client asked endlessly and
/// stored all the pages.
#[test]
fn a_listing_without_end_is_an_error() {
    let cluster = MockCluster::new(12, 1);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        client.mkdir(&path("/endless")).await.unwrap();
        client.mkdir(&path("/endless/a")).await.unwrap();
        client.mkdir(&path("/endless/b")).await.unwrap();
        assert_eq!(code(client.readdir(&path("/endless"))).await, ErrorCode::Protocol);
        assert_eq!(client.readdir(&path("/")).await.unwrap().len(), 1, "other folders come to their end");
    });
}

#[test]
fn a_server_that_was_restarted_is_connected_again() {
    let cluster = MockCluster::new(10, 2);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        let file = client.create(&path("/f"), striped(65536, 2)).await.unwrap();
        file.write_at(0, pattern(200_000, 1)).await.unwrap();
        cluster.world.cut(&cluster.client_node, &cluster.iods[0]);
        assert_eq!(crate::bodies::read(&file, 0, 200_000).await, pattern(200_000, 1));
        cluster.iods[1].kill();
        cluster.iods[1].restart();
        cluster.start(&cluster.iods[1], Some(1));
        assert_eq!(crate::bodies::read(&file, 0, 200_000).await, pattern(200_000, 1), "a read is sent again by itself");
    });
}

#[test]
fn futures_may_be_dropped_at_any_time() {
    let cluster = MockCluster::new(11, 3);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        let file = client.create(&path("/f"), striped(4096, 3)).await.unwrap();
        file.write_at(0, pattern(300_000, 1)).await.unwrap();
        for step in 0..60u64 {
            let memory = Memory::zeroed(100_000).unwrap();
            let read = std::pin::pin!(file.read_at(step * 100, &memory));
            let sleep = std::pin::pin!(cluster.world.sim().sleep(Duration::from_micros(step * 7)));
            futures_util::future::select(read, sleep).await;
        }
        assert_eq!(crate::bodies::read(&file, 0, 300_000).await, pattern(300_000, 1));
        cluster.world.sim().sleep(Duration::from_secs(5)).await;
        let left = client.endpoint().with(|endpoint| endpoint.resource_usage());
        assert_eq!((left.operations, left.exposures), (0, 0), "{left:?}");
    });
}

/// Replays a bug: to ping a server that hangs took a time limit for each of three rounds.
#[test]
fn the_pings_of_a_server_that_hangs_take_one_time_limit() {
    let cluster = MockCluster::new(77, 2);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        cluster.faults.silent.set(Some(1));
        let begun = cluster.world.now();
        let latencies = client.latencies(3).await;
        assert!(latencies[0].1.is_ok() && latencies[1].1.is_ok());
        assert_eq!(latencies[2].1.as_ref().unwrap_err().code(), ErrorCode::Timeout);
        let took = cluster.world.now() - begun;
        assert!(took < client.options().timeout * 3 / 2, "{took:?}");
    });
}
