//! The whole file system under every fault: real clients, a real manager, real I/O servers, in the simulator.
//!
//! **What is done.** Two clients do what comes to their minds, each in a directory of its own and both in one file that they share, while a swarm of
//! faults hits everybody. Every answer is compared with a model (`model.rs`). Once the faults are over everything must succeed, and in
//! time; then everything is written anew and synced, the power of all servers fails at once, and everything is compared again. At the end all is removed;
//! no orphan and no datafile may be left, and every endpoint must have given back what it held.
//!
//! `BMI_SEEDS=0..5000 cargo test -p fs-server --test cluster` runs more of it.

#![expect(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]
#![allow(unreachable_pub, reason = "modules of a test")]

mod model;
mod player;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use bmi_core::comm::Path;
use bmi_core::{Capabilities, Config};
use bmi_sim::check::{self, Case};
use bmi_sim::faults::{Kind, Loss, Swarm};
use bmi_sim::{Rng, SimConfig};
use fs_client::{Client, ClientOptions, CreateOptions, FsPath};
use fs_server::embedded::{ClusterOptions, SimCluster};
use fs_server::iod::IodSettings;
use futures_util::future::join_all;
use player::{Known, Player};

const NODES: [&str; 6] = ["manager", "iod0", "iod1", "iod2", "client0", "client1"];
const CLIENTS: usize = 2;
/// Longest time for one request.
const PATIENCE: Duration = Duration::from_millis(400);
/// No operation may take longer once the faults are over; several requests, each of which may have to connect again.
const BOUND: Duration = Duration::from_secs(2);

/// Settings that differ from seed to seed: adapters with little room; endpoints with few credits, without slots.
fn endpoint(seed: u64, name: &str) -> Config {
    let mut rng = Rng::new(seed ^ 0x0065_6e64);
    let mut config = Config {
        fence_grace: Duration::from_millis(50),
        connect_timeout: Duration::from_millis(100),
        ..Config::named(name)
    };
    if rng.below(3) == 0 {
        (config.credit_messages, config.credit_bytes) = (4 + rng.below(8) as u16, 64 << 10);
    }
    if rng.below(3) == 0 {
        config.fast_slots = rng.below(3) as u8;
    }
    if rng.below(3) == 0 {
        (config.transfer_unit, config.eager_limit) = (8 << 10, 2 << 10);
    }
    if rng.below(3) == 0 {
        (config.pin_cache_entries, config.expose_hulls) = (rng.below(3) as usize, false);
    }
    config
}

fn settings(seed: u64) -> SimConfig {
    let mut rng = Rng::new(seed ^ 0x0063_6170);
    let mut config = SimConfig { jitter_ns: rng.below(3) * 5_000, ..SimConfig::seeded(seed) };
    let mut capabilities: Capabilities = config.capabilities();
    if rng.below(3) == 0 {
        (capabilities.send_queue_depth, capabilities.max_outstanding_reads) = (4, 1);
    }
    if rng.below(3) == 0 {
        (capabilities.max_segments, capabilities.max_inline) = (2, 0);
    }
    capabilities.rdma_read = rng.below(4) > 0;
    config.capabilities_override = Some(capabilities);
    config
}

fn options(seed: u64) -> ClusterOptions {
    let mut rng = Rng::new(seed ^ 0x0069_6f64);
    let mut options = ClusterOptions {
        endpoint: endpoint(seed, "server"),
        disk_costs: true,
        disk_cache: true,
        strip_size: 4096 << rng.below(3),
        iod: IodSettings { unit: 16 << 10, buffers: 8, depth: 2 },
        ..ClusterOptions::with_iods(3)
    };
    options.limits.request_timeout = Duration::from_secs(1);
    options.limits.reply_timeout = Duration::from_secs(1);
    options
}

/// Does it until it succeeds: things at the beginning, when there are faults already.
async fn insist<T, F: Future<Output = Result<T, fs_client::Error>>>(world: &Case, what: impl Fn() -> F) -> T {
    loop {
        match what().await {
            Ok(value) => return value,
            Err(error) => assert!(world.now() < world.calm_at() + BOUND, "{error}"),
        }
        world.sleep(Duration::from_millis(1)).await;
    }
}

async fn player(world: &Case, cluster: &SimCluster, who: usize) -> Player {
    let node = world.node(&format!("client{who}"));
    let mut rng = world.rng(who as u64 + 1);
    let paths =
        [None, None, Some(Path::Inline), Some(Path::FastRdma), Some(Path::ServerBased), Some(Path::ClientBased)];
    let path = paths[rng.below(paths.len() as u64) as usize];
    let endpoint = loop {
        // Memory may be refused.
        match node.endpoint(endpoint(world.seed, "client")) {
            Ok(endpoint) => break endpoint,
            Err(error) => assert!(world.now() < world.calm_at(), "{error}"),
        }
        world.sleep(Duration::from_millis(1)).await;
    };
    let options = ClientOptions { timeout: PATIENCE, path, ..ClientOptions::new(who as u128 + 1) };
    let client = insist(world, || Client::connect(endpoint.clone(), cluster.manager(), options.clone())).await;
    let dir = FsPath::root().join(&format!("dir{who}")).unwrap();
    insist(world, || client.mkdir_all(&dir)).await;
    Player {
        who,
        players: CLIENTS,
        client,
        world: world.clone(),
        rng,
        dir,
        files: BTreeMap::new(),
        dirs: BTreeSet::new(),
        unsure: BTreeSet::new(),
        shared: None,
        names: 0,
        salts: 0,
        errors: 0,
    }
}

async fn scenario(world: Case) -> Result<(), String> {
    let cluster = SimCluster::start(&world, options(world.seed)).map_err(|error| error.to_string())?;
    let shared_path = FsPath::root().join("shared").unwrap();
    let shared_model: Rc<RefCell<model::Model>> = Rc::default();
    let players = (0..CLIENTS).map(async |who| {
        let mut player = player(&world, &cluster, who).await;
        let open = CreateOptions { exclusive: false, ..CreateOptions::default() };
        let file = insist(&world, || player.client.create(&shared_path, open)).await;
        player.shared = Some(Known { file, model: shared_model.clone() });
        let mut actions = 0;
        while actions < 25 || world.now() < world.calm_at() {
            player.act().await?;
            player.think().await;
            actions += 1;
        }
        Ok::<Player, String>(player)
    });
    let mut players: Vec<Player> = join_all(players).await.into_iter().collect::<Result<_, _>>()?;
    world.calm().await;
    // What was given up before is over now, too.
    world.sleep(model::ZOMBIE + Duration::from_millis(1)).await;
    within(&world, "everything written anew", join_all(players.iter_mut().map(Player::finish))).await?;

    for name in &NODES[..4] {
        world.node(name).crash(&mut Loss::everything());
    }
    world.sleep(Duration::from_millis(20)).await;
    NODES[..4].iter().for_each(|name| world.node(name).restart());
    within(&world, "everything compared", join_all(players.iter_mut().map(Player::compare))).await?;

    within(&world, "everything removed", join_all(players.iter_mut().map(Player::clear))).await?;
    let client = players[0].client.clone();
    client.remove_all(&shared_path).await.map_err(|error| error.to_string())?;
    for _ in 0..200 {
        let space = client.statfs().await.map_err(|error| error.to_string())?;
        if space.manager.orphans == 0 {
            break;
        }
        world.sleep(Duration::from_millis(500)).await;
    }
    let space = client.statfs().await.map_err(|error| error.to_string())?;
    let left: Vec<u64> = space.servers.iter().map(|server| server.result.as_ref().unwrap().datafiles).collect();
    if space.manager.orphans > 0 || left != [0; 3] {
        return Err(format!("{} orphans, and datafiles {left:?} are left", space.manager.orphans));
    }
    // The last acknowledgements.
    world.sleep(Duration::from_millis(100)).await;
    for player in &players {
        let (who, held) = (player.who, player.client.endpoint().holdings());
        if (held.operations, held.exposures, held.work) != (0, 0, 0) {
            return Err(format!("client {who} holds {held:?}"));
        }
        world.node(&format!("client{who}")).kill();
    }
    Ok(())
}

/// Nothing may take longer than a bound for each file once the faults are over.
async fn within<F: Future<Output = Vec<Result<(), String>>>>(world: &Case, what: &str, work: F) -> Result<(), String> {
    let start = world.now();
    work.await.into_iter().collect::<Result<Vec<()>, _>>()?;
    let took = world.now() - start;
    if took > 20 * BOUND { Err(format!("{what} took {took:?}")) } else { Ok(()) }
}

fn swarm() -> Swarm {
    let clients = ["client0", "client1"];
    let spared = clients.iter().fold(Swarm::all(), |swarm, name| swarm.sparing(Kind::Crash, name));
    spared.within(Duration::from_millis(120)).lasting(Duration::from_millis(40)).at_most(12)
}

fn sweep() -> check::Sweep {
    check::sweep("cluster")
        .named(&NODES)
        .seeds(0..400)
        .faults(swarm())
        .settings(settings)
        .limit(Duration::from_secs(300))
        .shrink(100)
}

#[test]
fn nothing_that_was_synced_is_lost_whatever_fails() {
    let report = sweep().run(scenario);
    println!("{report}");
    assert!(report.faults > report.seeds, "{report}");
}

/// `cargo xtask test --only digests` compares what this says in debug and in release.
#[test]
fn digests_to_compare() {
    println!("{}", sweep().seeds(0..30).run(scenario));
}
