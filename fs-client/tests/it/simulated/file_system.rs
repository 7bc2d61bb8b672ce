//! The whole file system in the simulator, with the real client and real servers.

use std::pin::pin;
use std::time::Duration;

use bmi::driver::Waiting;
use bmi::{Config, Memory};
use bmi_conformance::log::capture;
use bmi_sim::faults::Loss;
use bmi_sim::{DiskProfile, Node, Profile, SimConfig, World};
use fs_client::{Client, ClientOptions, ErrorCode, SetAttr};
use fs_server::embedded::{ClusterOptions, SimCluster};
use futures_util::FutureExt;
use proptest::prelude::*;
use tracing::Level;

use crate::support::bodies::{self, path, pattern, striped};
use crate::support::{recycled, typed};

/// A cluster, and the node of a client.
pub(crate) struct Setting {
    pub(crate) world: World,
    pub(crate) cluster: SimCluster,
    pub(crate) node: Node,
}

pub(crate) fn setting(seed: u64, options: ClusterOptions) -> Setting {
    Setting::in_world(World::new(seed), options)
}

impl Setting {
    pub(crate) fn in_world(world: World, options: ClusterOptions) -> Setting {
        let cluster = SimCluster::start(&world.sim(), options).unwrap();
        let node = world.node("client");
        Setting { world, cluster, node }
    }

    pub(crate) async fn client(&self, id: u128) -> Client {
        self.client_with(ClientOptions { timeout: Duration::from_secs(3), ..ClientOptions::new(id) }).await
    }

    pub(crate) async fn client_with(&self, options: ClientOptions) -> Client {
        let endpoint = self.node.endpoint(Config::named("client")).unwrap();
        Client::connect(endpoint, self.cluster.manager(), options).await.unwrap()
    }
}

#[test]
fn servers_give_nothing_of_one_client_to_another() {
    let setting = setting(5, ClusterOptions::with_iods(1));
    let iod = setting.cluster.iods()[0].clone();
    setting.world.block_on(async {
        let client = setting.client(1).await;
        recycled::a_lying_client_stores_nothing_of_others(&client, &iod).await;
    });
}

#[test]
fn short_reads_bring_nothing_of_others() {
    let setting = setting(6, ClusterOptions::with_iods(1));
    let iod = setting.cluster.iods()[0].clone();
    setting.world.block_on(async {
        let client = setting.client(1).await;
        recycled::short_reads_bring_nothing_of_others(&client, &iod).await;
    });
}

/// The program holds a future that connects to a server and does not poll it. Others that need the
/// server connect themselves after a while, and there is one connection in the end.
#[test]
fn a_future_that_is_not_polled_keeps_nobody_from_a_server() {
    let setting = setting(8, ClusterOptions::with_iods(1));
    setting.world.block_on(async {
        let endpoint = setting.node.endpoint(Config::named("client")).unwrap();
        let options = ClientOptions { timeout: Duration::from_secs(20), ..ClientOptions::new(1) };
        let client = Client::connect(endpoint.clone(), setting.cluster.manager(), options).await.unwrap();
        let file = client.create(&path("/f"), striped(65536, 1)).await.unwrap();
        let mut write = pin!(file.write_at(0, pattern(1000, 1)));
        assert!(write.as_mut().now_or_never().is_none(), "it has begun to connect");
        file.write_at(1000, pattern(1000, 2)).await.unwrap();
        write.await.unwrap();
        assert_eq!(bodies::read(&file, 0, 2000).await, [pattern(1000, 1), pattern(1000, 2)].concat());
        endpoint.sleep(Duration::from_secs(1)).await;
        assert_eq!(endpoint.resource_usage().peers, 2, "the manager and the I/O server");
    });
}

/// The future that connects to a server is dropped. Another one that waits for it connects.
#[test]
fn a_dropped_attempt_to_connect_is_made_again() {
    let setting = setting(9, ClusterOptions::with_iods(1));
    for steps in 0..60u64 {
        setting.world.block_on(async {
            let endpoint = setting.node.endpoint(Config::named("client")).unwrap();
            let options =
                ClientOptions { timeout: Duration::from_secs(3), ..ClientOptions::new(u128::from(steps) + 1) };
            let client = Client::connect(endpoint.clone(), setting.cluster.manager(), options).await.unwrap();
            let file = client.create(&path(&format!("/{steps}")), striped(65536, 1)).await.unwrap();
            let first = async {
                tokio::select! {
                    biased;
                    () = endpoint.sleep(Duration::from_micros(steps * 2)) => {}
                    result = file.write_at(0, pattern(1000, 1)) => result.unwrap(),
                }
            };
            let second = async { file.write_at(1000, pattern(1000, 2)).await.unwrap() };
            futures_util::future::join(first, second).await;
            assert_eq!(bodies::read(&file, 1000, 1000).await, pattern(1000, 2));
            endpoint.sleep(Duration::from_secs(1)).await;
            assert_eq!(endpoint.resource_usage().peers, 2, "after {steps}: the manager and the I/O server");
        });
    }
}

/// The kernel of the server's machine received on the last core without a pause, because the other
/// loops were busy. The loop of that core did not run, and the write of its client was never
/// answered.
#[test]
fn a_loop_on_the_core_where_the_kernel_receives_serves_its_client() {
    const BYTES: usize = 4096;
    const STREAMS: usize = 4;
    let machine = Profile::named("ibnice-uncached-2003").unwrap();
    let profile = machine.with_disk(DiskProfile::named("ramfs-uncached-2003").unwrap());
    let world = World::with(SimConfig::with_profile(profile));
    world.node("iod0").set_cores(8);
    let options = ClusterOptions { disk_costs: true, ..ClusterOptions::with_iods(1) };
    let cluster = SimCluster::start_on_cores(&world, options, 8).unwrap();
    // Each client is at the next loop. The first loop is connected with the manager.
    for number in 0..6 {
        let node = world.node(&format!("client{number}"));
        node.limit_cores(1);
        let endpoint = node.endpoint_waiting(Config::named("client"), Waiting::Event).unwrap();
        let options = ClientOptions { timeout: Duration::from_secs(2), ..ClientOptions::new(number + 1) };
        let connecting = Client::connect(endpoint, cluster.manager(), options);
        let (client, file) = world.block_on(async {
            let client = connecting.await.unwrap();
            let file = client.create(&path(&format!("/f{number}")), striped(65536, 1)).await.unwrap();
            file.write_at(0, pattern(STREAMS * BYTES, 1)).await.unwrap();
            (client, file)
        });
        for stream in 0..STREAMS {
            let (client, file) = (client.clone(), file.clone());
            node.spawn(async move {
                let memory = client.memory(BYTES).unwrap();
                loop {
                    file.read_at((stream * BYTES) as u64, &memory).await.unwrap();
                }
            });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn lists_agree_with_a_model(
        seed in any::<u64>(),
        strip in prop::sample::select(vec![4096u64, 5000, 16384]),
        servers in 1u32..5,
        steps in bodies::any_steps(),
    ) {
        let setting = setting(seed, ClusterOptions::with_iods(4));
        setting.world.block_on(async {
            let client = setting.client(1).await;
            let file = client.create(&path("/f"), striped(strip, servers)).await.unwrap();
            bodies::list_io(&file, &steps).await;
        });
    }

    /// Connections are cut at random moments while names are created, moved and removed. At the end
    /// the namespace is the same as without any loss.
    #[test]
    fn changes_are_made_once_however_often_connections_are_cut(
        seed in any::<u64>(),
        cuts_us in prop::collection::vec(1..3_000u64, 1..12),
    ) {
        let setting = setting(seed, ClusterOptions::with_iods(1));
        let (sim, manager, node) = (setting.world.sim(), setting.cluster.manager_node(), setting.node.clone());
        setting.world.block_on(async {
            let client = setting.client(1).await;
            setting.world.spawn(async move {
                for pause in cuts_us {
                    sim.sleep(Duration::from_micros(pause)).await;
                    sim.cut(&manager, &node);
                }
            });
            for round in 0..20 {
                let (a, b) = (path(&format!("/a{round}")), path(&format!("/b{round}")));
                client.mkdir(&a).await.unwrap();
                client.rename(&a, &b).await.unwrap();
                if round % 2 == 0 {
                    client.remove(&b, fs_client::RemoveKind::Dir).await.unwrap();
                }
            }
            let names: Vec<_> = client.readdir(&path("/")).await.unwrap().into_iter().map(|entry| entry.name).collect();
            let mut expected: Vec<_> = (0..20).filter(|round| round % 2 == 1).map(|round| format!("b{round}")).collect();
            expected.sort();
            assert_eq!(names, expected);
        });
    }
}

#[test]
fn a_full_disk_names_server_and_ranges() {
    let setting = setting(2, ClusterOptions { disk_capacity: 1 << 20, ..ClusterOptions::with_iods(2) });
    setting.world.block_on(async {
        let client = setting.client(1).await;
        let small = client.create(&path("/small"), striped(65536, 2)).await.unwrap();
        small.write_at(0, pattern(300_000, 1)).await.unwrap();
        // Only one I/O server's disk becomes full.
        let big = client.create(&path("/big"), striped(65536, 1)).await.unwrap();
        let error = big.write_at(0, pattern(2 << 20, 2)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NoSpace, "{error}");
        assert_eq!(error.failures().len(), 1);
        let failure = &error.failures()[0];
        assert!(failure.server.as_ref().unwrap().iod.is_some());
        assert!(!failure.ranges.is_empty() && failure.ranges.last().unwrap().end == 2 << 20, "{error}");
        assert_eq!(bodies::read(&small, 0, 300_000).await, pattern(300_000, 1), "what was acknowledged stays");
    });
}

#[test]
fn an_iod_killed_during_a_transfer_ends_it_and_synced_data_survives() {
    let setting = setting(3, ClusterOptions::with_iods(4));
    setting.world.block_on(async {
        let client = setting.client(1).await;
        let kept = client.create(&path("/kept"), striped(65536, 4)).await.unwrap();
        kept.write_at(0, pattern(1 << 20, 1)).await.unwrap();
        kept.sync().await.unwrap();
        let file = client.create(&path("/f"), striped(65536, 4)).await.unwrap();
        let sim = setting.world.sim();
        let (victim, start) = (setting.cluster.iod_node(2), sim.now());
        let kill = async {
            sim.sleep(Duration::from_micros(200)).await;
            victim.kill();
        };
        let (result, ()) = futures_util::future::join(file.write_at(0, pattern(16 << 20, 2)), kill).await;
        let error = result.unwrap_err();
        assert!(matches!(error.code(), ErrorCode::Unreachable | ErrorCode::Timeout), "{error}");
        assert!(error.failures().iter().all(|failure| failure.server.as_ref().unwrap().iod == Some(2)), "{error}");
        assert!(sim.now().since(start) < Duration::from_secs(5), "within the time limit");
        assert!(kept.read_at(0, bmi::Memory::zeroed(1 << 20).unwrap()).await.is_err());
        setting.cluster.restart_iod(2);
        assert!(bodies::read(&kept, 0, 1 << 20).await == pattern(1 << 20, 1));
        file.write_at(0, pattern(1 << 20, 3)).await.unwrap();
        assert!(bodies::read(&file, 0, 1 << 20).await == pattern(1 << 20, 3));
    });
}

/// Replays a bug: the manager keeps replies to changes until the client confirms them, and the
/// client confirmed nothing while a read or write was in progress.
#[test]
fn a_slow_transfer_does_not_stop_changes() {
    let setting = setting(5, ClusterOptions::with_iods(1));
    setting.world.block_on(async {
        let client = setting.client(1).await;
        let file = client.create(&path("/f"), striped(65536, 1)).await.unwrap();
        file.write_at(0, pattern(1000, 1)).await.unwrap();
        setting.cluster.iod_node(0).pause();
        let changes = async {
            for number in 0..600 {
                client.mkdir(&path(&format!("/d{number}"))).await.unwrap();
            }
            setting.cluster.iod_node(0).resume();
        };
        let (written, ()) = futures_util::future::join(file.write_at(0, pattern(1000, 2)), changes).await;
        written.unwrap();
        assert!(bodies::read(&file, 0, 1000).await == pattern(1000, 2));
    });
}

#[test]
fn the_namespace_survives_its_manager() {
    let setting = setting(4, ClusterOptions::with_iods(2));
    let client = setting.world.block_on(async {
        let client = setting.client(1).await;
        client.mkdir_all(&path("/a/b")).await.unwrap();
        let file = client.create(&path("/a/b/f"), striped(4096, 2)).await.unwrap();
        file.write_at(0, pattern(20_000, 1)).await.unwrap();
        client
    });
    setting.cluster.restart_manager();
    setting.world.block_on(async {
        let file = client.open(&path("/a/b/f")).await.unwrap();
        assert_eq!(bodies::read(&file, 0, 20_000).await, pattern(20_000, 1));
        client.mkdir(&path("/a/c")).await.unwrap();
    });
}

/// Replays a bug: a sync that was dropped before its end took the record of unsynced writes with
/// it. The next sync then vouched for bytes that were lost.
#[test]
fn a_sync_that_is_given_up_forgets_nothing() {
    let setting = setting(13, ClusterOptions { disk_cache: true, ..ClusterOptions::with_iods(2) });
    setting.world.block_on(async {
        let client = setting.client(1).await;
        let file = client.create(&path("/file"), striped(4096, 2)).await.unwrap();
        file.write_at(0, pattern(20_000, 3)).await.unwrap();
        let node = setting.cluster.iod_node(1);
        node.pause();
        let patience = client.endpoint().sleep(Duration::from_millis(10));
        let given_up = futures_util::future::select(Box::pin(file.sync()), Box::pin(patience)).await;
        assert!(matches!(&given_up, futures_util::future::Either::Right(_)), "the server stands still");
        drop(given_up);
        node.crash(&mut Loss::everything());
        node.restart();
        let error = file.sync().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Io, "{error}");
        file.sync().await.unwrap();
    });
}

/// Replays a bug: the manager is not told about writes, so a file always showed its time of
/// creation.
#[test]
fn the_time_of_a_file_is_that_of_its_last_change() {
    let setting = setting(14, ClusterOptions::with_iods(2));
    setting.world.block_on(async {
        let client = setting.client(1).await;
        let file = client.create(&path("/file"), striped(4096, 2)).await.unwrap();
        let stat = async || client.stat(&path("/file")).await.unwrap().attr;
        let made = stat().await;
        client.endpoint().sleep(Duration::from_secs(5)).await;
        file.write_at(4096, pattern(10, 3)).await.unwrap();
        let written = stat().await;
        assert!(written.mtime_ns >= made.mtime_ns + 5_000_000_000, "{written:?} {made:?}");
        assert_eq!(written.ctime_ns, written.mtime_ns);
        // A time that was set by hand is kept until the file is written again.
        let set = |mtime_ns| SetAttr { mtime_ns: Some(mtime_ns), ..SetAttr::default() };
        client.setattr(&path("/file"), set(7)).await.unwrap();
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        client.setattr(&path("/file"), mode).await.unwrap();
        assert_eq!(stat().await.mtime_ns, 7);
        client.setattr(&path("/file"), set(u64::MAX)).await.unwrap();
        client.endpoint().sleep(Duration::from_secs(5)).await;
        file.set_len(1).await.unwrap();
        let cut = stat().await.mtime_ns;
        assert!(cut > written.mtime_ns && cut < u64::MAX, "a change counts, also after a time in the future: {cut}");
    });
}

/// Replays a bug: a server took bytes, was restarted before they were on its disk, and then
/// answered a sync of nothing successfully. The program was told that its bytes were durable, but
/// they were gone.
#[test]
fn a_sync_does_not_vouch_for_what_a_restarted_server_has_lost() {
    let setting = setting(12, ClusterOptions { disk_cache: true, ..ClusterOptions::with_iods(2) });
    let crash = || {
        let node = setting.cluster.iod_node(1);
        node.crash(&mut Loss::everything());
        node.restart();
    };
    setting.world.block_on(async {
        let client = setting.client(1).await;
        let file = client.create(&path("/file"), striped(4096, 2)).await.unwrap();
        let bytes = pattern(20_000, 3);
        file.write_at(0, bytes.clone()).await.unwrap();
        crash();
        let error = file.sync().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Io, "{error}");
        assert!(
            error.failures().len() == 1 && error.to_string().contains("iod 1"),
            "the other server has it all: {error}"
        );
        file.write_at(0, bytes.clone()).await.unwrap();
        file.sync().await.unwrap();
        crash();
        let read = Memory::zeroed(bytes.len()).unwrap();
        assert_eq!(file.read_at(0, &read).await.unwrap(), bytes.len() as u64);
        assert!(read.to_vec() == bytes, "what was synced is there");
    });
}

#[test]
fn a_manager_that_stays_away_ends_the_wait_at_the_time_limit() {
    let setting = setting(4, ClusterOptions::with_iods(1));
    setting.world.block_on(async {
        let client = setting.client(1).await;
        setting.cluster.manager_node().kill();
        let start = setting.world.now();
        let error = client.mkdir(&path("/d")).await.unwrap_err();
        assert!(matches!(error.code(), ErrorCode::Unreachable | ErrorCode::Timeout), "{error}");
        assert!(error.to_string().contains("sim://manager:7000 (manager)"), "{error}");
        assert!(setting.world.now().since(start) < Duration::from_secs(5));
    });
}

#[test]
fn nobody_at_the_address_is_said_at_once() {
    let setting = setting(5, ClusterOptions::with_iods(1));
    setting.world.block_on(async {
        let endpoint = setting.node.endpoint(Config::named("client")).unwrap();
        let start = setting.world.now();
        let options = ClientOptions { retry_for: Duration::ZERO, ..ClientOptions::new(1) };
        let result = Client::connect(endpoint, setting.cluster.manager_node().addr(99), options).await;
        let Err(error) = result else { panic!("connected to nobody") };
        assert_eq!(error.code(), ErrorCode::Unreachable);
        assert!(error.to_string().starts_with("connect at sim://manager:99 (manager) failed: "), "{error}");
        assert!(setting.world.now().since(start) < Duration::from_secs(1));
    });
}

#[test]
fn a_server_that_was_restarted_is_connected_again() {
    let setting = setting(10, ClusterOptions::with_iods(2));
    setting.world.block_on(async {
        let client = setting.client(1).await;
        let file = client.create(&path("/f"), striped(65536, 2)).await.unwrap();
        file.write_at(0, pattern(200_000, 1)).await.unwrap();
        setting.world.cut(&setting.node, &setting.cluster.iod_node(0));
        assert_eq!(bodies::read(&file, 0, 200_000).await, pattern(200_000, 1));
        setting.cluster.restart_iod(1);
        assert_eq!(bodies::read(&file, 0, 200_000).await, pattern(200_000, 1), "a read is sent again by itself");
    });
}

#[test]
fn futures_may_be_dropped_at_any_time() {
    let setting = setting(11, ClusterOptions::with_iods(3));
    setting.world.block_on(async {
        let client = setting.client(1).await;
        let file = client.create(&path("/f"), striped(4096, 3)).await.unwrap();
        file.write_at(0, pattern(300_000, 1)).await.unwrap();
        for step in 0..60u64 {
            let memory = Memory::zeroed(100_000).unwrap();
            let read = std::pin::pin!(file.read_at(step * 100, &memory));
            let sleep = std::pin::pin!(setting.world.sim().sleep(Duration::from_micros(step * 7)));
            futures_util::future::select(read, sleep).await;
        }
        assert_eq!(bodies::read(&file, 0, 300_000).await, pattern(300_000, 1));
        setting.world.sim().sleep(Duration::from_secs(5)).await;
        let left = client.endpoint().with(|engine| engine.resource_usage());
        assert_eq!((left.operations, left.exposures), (0, 0), "{left:?}");
    });
}

/// Replays a bug: to ping a server that hangs took a time limit for each of three rounds.
#[test]
fn the_pings_of_a_server_that_hangs_take_one_time_limit() {
    let setting = setting(77, ClusterOptions::with_iods(2));
    setting.world.block_on(async {
        let client = setting.client(1).await;
        client.ping().await;
        setting.cluster.iod_node(1).pause();
        let begun = setting.world.now();
        let latencies = client.latencies(3).await;
        assert!(latencies[0].1.is_ok() && latencies[1].1.is_ok());
        assert_eq!(latencies[2].1.as_ref().unwrap_err().code(), ErrorCode::Timeout);
        let took = setting.world.now() - begun;
        assert!(took < client.options().timeout * 3 / 2, "{took:?}");
    });
}

#[test]
fn types_and_views() {
    for iods in [1, 4] {
        let setting = setting(33, ClusterOptions::with_iods(iods));
        setting.world.block_on(async {
            let client = setting.client(1).await;
            typed::everything(&client, iods as u32).await;
            typed::lists(&client, iods as u32, 30).await;
        });
    }
}

/// Each command connects to all servers, and leaves them. That is no news for an operator.
#[test]
fn a_client_that_does_nothing_wrong_causes_no_log_lines() {
    let setting = setting(1, ClusterOptions::with_iods(4));
    setting.world.block_on(setting.node.sleep(Duration::from_secs(5))); // the servers come up
    let ((), lines) = capture(|| {
        setting.world.block_on(async {
            for id in 1..4 {
                let client = setting.client(id).await;
                if id == 1 {
                    bodies::everything(&client, 4, 500).await;
                }
                client.lookup(&path("/")).await.unwrap();
                drop(client);
                setting.node.sleep(Duration::from_secs(1)).await;
            }
        });
    });
    assert!(lines.iter().any(|line| line.text.starts_with("connected")), "lines of the servers are captured");
    let loud: Vec<_> = lines.iter().filter(|line| line.level <= Level::INFO).collect();
    assert!(loud.is_empty(), "{loud:?}");
}
