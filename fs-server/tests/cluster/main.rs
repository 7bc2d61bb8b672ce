//! The whole file system under every fault: real clients, a real manager and real I/O servers, in
//! the simulator.
//!
//! **Procedure.** Two clients act at random, each in its own directory and both in one shared file,
//! while many random faults hit all nodes. Every answer is compared with a model (`model.rs`). Once
//! the faults are over, everything must succeed, and in time. Then everything is written again and
//! synced, and no resources may be held because of faults. The power of all nodes fails at once,
//! and everything is compared again. Then a disaster strikes (`disaster.rs`): a directory vanishes,
//! is swapped or goes back in time, or a connection is misdirected. At the end everything is
//! removed. No orphan, no datafile and no file without a name may be left, and every endpoint must
//! have returned its resources.
//!
//! I/O servers with caches of their own have trials of their own (`caches.rs`), and so have changes
//! of size that a disk refuses (`commits.rs`).
//!
//! Clients crash too. A restarted client knows only the names that it was told about. An operation
//! that was in progress may have happened or not, or may happen a while later.
//!
//! `BMI_SEEDS=0..5000 cargo test -p fs-server --test cluster` runs more seeds.

#![expect(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]
#![allow(unreachable_pub, reason = "modules of a test")]

mod actions;
mod caches;
mod commits;
mod disaster;
mod doubts;
mod files;
mod model;
mod player;
mod together;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use bmi::Config;
use bmi::backend::Capabilities;
use bmi::paths::Path;
use bmi_cache::{ArenaSettings, Policy, Settings};
use bmi_sim::check::{self, Case};
use bmi_sim::faults::{Loss, Swarm};
use bmi_sim::{Node, Rng, SimConfig};
use fs_client::{Client, ClientOptions, FsPath};
use fs_server::embedded::{ClusterOptions, SimCluster};
use fs_server::iod::IodSettings;
use fs_server::store::{CacheSettings, Service, ViewSettings};
use futures_util::future::{Either, join, join_all, select};
use player::Player;

const NODES: [&str; 6] = ["manager", "iod0", "iod1", "iod2", "client0", "client1"];
/// The first four nodes are servers.
const SERVERS: usize = 4;
const CLIENTS: usize = 2;
/// Time limit of one request.
const PATIENCE: Duration = Duration::from_millis(400);
/// Time limit of an operation once the faults are over. An operation can be several requests, and
/// each may have to reconnect.
const BOUND: Duration = Duration::from_secs(2);
/// How long a file without a name outlives the connection of its client. Longer than a client needs
/// to write one while requests time out.
const GRACE: Duration = Duration::from_millis(2500);
/// When the last fault begins.
const FAULTS_WITHIN: Duration = Duration::from_millis(120);
/// How often an I/O server confirms that it is up.
const HEARTBEAT: Duration = Duration::from_millis(30);

/// Settings that differ from seed to seed: adapters with little memory, and endpoints with few
/// credits or without slots.
fn endpoint(seed: u64, name: &str) -> Config {
    let mut rng = Rng::new(seed ^ 0x0065_6e64);
    let mut config =
        Config::named(name).fence_grace(Duration::from_millis(50)).connect_timeout(Duration::from_millis(100));
    if rng.below(3) == 0 {
        (config.credits.messages, config.credits.bytes) = (4 + rng.below(8) as u16, 64 << 10);
    }
    if rng.below(3) == 0 {
        config.tuning.fast_slots = rng.below(3) as u8;
    }
    if rng.below(3) == 0 {
        (config.tuning.transfer_unit, config.credits.eager_limit) = (8 << 10, 2 << 10);
    }
    if rng.below(3) == 0 {
        (config.tuning.pin_cache_entries, config.memory.expose_groups) = (rng.below(3) as usize, false);
    }
    config
}

fn settings(seed: u64) -> SimConfig {
    let mut rng = Rng::new(seed ^ 0x0063_6170);
    let mut config = SimConfig { jitter_ns: rng.below(3) * 5_000, ..SimConfig::drawn(seed) };
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

/// A third of the seeds have I/O servers with caches of their own, small ones, and a sixth servers
/// that map their files; with `BMI_UNIFIER` all have caches. So have all seeds that look for a
/// seeded bug of the cache, and none that look for another one.
fn service(seed: u64) -> Service {
    let mut rng = Rng::new(seed ^ 0x7365_7276);
    let bug = std::env::var("BMI_MUTANT").ok();
    let of_cache = bug.as_ref().is_some_and(|bug| bug.starts_with("cache/"));
    let all = of_cache || std::env::var_os("BMI_UNIFIER").is_some();
    let chosen = rng.below(6);
    if !all && (chosen > 1 || bug.is_some()) {
        return if chosen == 2 && bug.is_none() { Service::Mmap } else { Service::Normal };
    }
    // The smallest has room for one large operation. Few have room for all bytes.
    let bytes = (128 << 10) << rng.below(4);
    let cache = Settings {
        unit: 4096 << rng.below(5),
        policy: [Policy::Lru, Policy::ScanResistant][rng.below(2) as usize],
        age: Duration::from_millis(2 + rng.below(100)),
        write_through: rng.below(8) == 0,
        // With few dirty bytes, some are on their way to the disk whenever a server is killed.
        dirty: (bytes / 4) >> rng.below(4),
        ..Settings::for_bytes(bytes)
    };
    Service::Unifier(CacheSettings {
        arena: ArenaSettings { bytes, chunk: 128 << 10 },
        cache,
        views: ViewSettings::for_bytes(0),
    })
}

fn options(seed: u64) -> ClusterOptions {
    let mut rng = Rng::new(seed ^ 0x0069_6f64);
    let mut options = ClusterOptions {
        endpoint: endpoint(seed, "server"),
        disk_costs: true,
        disk_cache: true,
        strip_size: 4096 << rng.below(3),
        iod: IodSettings { unit: 16 << 10, buffers: 8, depth: 2 },
        heartbeat: HEARTBEAT,
        nameless_grace: GRACE,
        pool: 1 + rng.below(12) as u32,
        commit_time: Duration::from_micros(rng.below(3) * 500),
        threads: [1, 1, 1, 3][rng.below(4) as usize],
        service: service(seed),
        tickets: seed % 3 == 1,
        ..ClusterOptions::with_iods(3)
    };
    options.limits.request_timeout = Duration::from_secs(1);
    options.limits.reply_timeout = Duration::from_secs(1);
    options
}

/// Repeats an operation until it succeeds. Used at the beginning, when there are faults already.
async fn insist<T, F: Future<Output = Result<T, fs_client::Error>>>(world: &Case, what: impl Fn() -> F) -> T {
    loop {
        match what().await {
            Ok(value) => return value,
            Err(error) => assert!(world.now() < world.calm_at() + BOUND, "{error}"),
        }
        world.sleep(Duration::from_millis(1)).await;
    }
}

/// Creates a client on a node that is up.
async fn client(world: &Case, cluster: &SimCluster, who: usize, lives: usize) -> Client {
    let node = world.node(&format!("client{who}"));
    let mut rng = world.rng(who as u64 + 1);
    let paths =
        [None, None, Some(Path::Inline), Some(Path::FastRdma), Some(Path::ServerBased), Some(Path::ClientBased)];
    let path = paths[rng.below(paths.len() as u64) as usize];
    let endpoint = loop {
        // Registration of memory may fail.
        match node.endpoint(endpoint(world.seed, "client")) {
            Ok(endpoint) => break endpoint,
            Err(error) => assert!(world.now() < world.calm_at(), "{error}"),
        }
        world.sleep(Duration::from_millis(1)).await;
    };
    // A program that is restarted draws a new number.
    let id = (lives as u128) << 64 | (who as u128 + 1);
    let options = ClientOptions { timeout: PATIENCE, path, ..ClientOptions::new(id) };
    insist(world, || Client::connect(endpoint.clone(), cluster.manager(), options.clone())).await
}

fn player(world: &Case, who: usize, shared_model: &Rc<RefCell<model::Model>>) -> Player {
    Player {
        who,
        players: CLIENTS,
        link: None,
        lives: 0,
        world: world.clone(),
        rng: world.rng((CLIENTS + who) as u64 + 1),
        dir: FsPath::root().join(format!("dir{who}")).unwrap(),
        files: BTreeMap::new(),
        dirs: BTreeSet::new(),
        unsure: BTreeSet::new(),
        doubts: BTreeMap::new(),
        kept: None,
        changing: Vec::new(),
        shared: None,
        shared_path: FsPath::root().join("shared").unwrap(),
        shared_model: shared_model.clone(),
        names: 0,
        salts: 0,
        errors: 0,
        disaster: false,
        broken_disks: false,
    }
}

/// Runs `work`. Returns `None` if the node crashes meanwhile or is down.
async fn unless_it_crashes<F: Future>(node: &Node, work: F) -> Option<F::Output> {
    let death = node.spawn(std::future::pending::<()>());
    match select(std::pin::pin!(work), death).await {
        Either::Left((done, death)) => {
            death.abort();
            Some(done)
        }
        Either::Right(_) => None,
    }
}

/// Makes sure that a player has a client.
async fn be_up(player: &mut Player, cluster: &SimCluster) -> Result<(), String> {
    if player.link.is_some() {
        return Ok(());
    }
    let client = client(&player.world, cluster, player.who, player.lives).await;
    player.get_up(client).await
}

/// Acts until it has done enough and the faults are over, across as many crashes as it takes.
async fn live(world: &Case, cluster: &SimCluster, mut player: Player) -> Result<Player, String> {
    let node = world.node(&format!("client{}", player.who));
    let mut actions = 0;
    while actions < 25 || world.now() < world.calm_at() || player.link.is_none() {
        let step = unless_it_crashes(&node, async {
            be_up(&mut player, cluster).await?;
            player.act().await?;
            player.think().await;
            Ok::<(), String>(())
        });
        match step.await {
            Some(done) => done?,
            None => {
                player.died();
                while !node.is_alive() {
                    world.sleep(Duration::from_millis(1)).await;
                }
            }
        }
        actions += 1;
    }
    Ok(player)
}

async fn scenario(world: Case, deaths: Rc<Cell<usize>>) -> Result<(), String> {
    let cluster = SimCluster::start(&world, options(world.seed)).map_err(|error| error.to_string())?;
    let shared_model: Rc<RefCell<model::Model>> = Rc::default();
    let players = (0..CLIENTS).map(|who| live(&world, &cluster, player(&world, who, &shared_model)));
    let troubles = join(caches::kill_among_faults(&world, &cluster), commits::fail_among_faults(&world, &cluster));
    let (players, _) = join(join_all(players), troubles).await;
    let mut players: Vec<Player> = players.into_iter().collect::<Result<_, _>>()?;
    deaths.set(deaths.get() + players.iter().map(|player| player.lives).sum::<usize>());
    world.calm().await;
    // Operations that were given up earlier are over now, too.
    world.sleep(model::ZOMBIE + Duration::from_millis(1)).await;
    within(&world, "everything written anew", join_all(players.iter_mut().map(Player::finish))).await?;
    caches::try_all(&world, &cluster, &mut players).await?;
    commits::fail_one(&world, &cluster, &mut players[0]).await.map_err(|error| format!("a failing commit: {error}"))?;
    within(&world, "drafts written", join_all(players.iter_mut().map(Player::begin_kept))).await?;

    // Check for leaks before the servers' memory is lost.
    world.sleep(Duration::from_secs(3)).await;
    within(&world, "drafts published", join_all(players.iter_mut().map(Player::publish_kept))).await?;
    let leaks = leaks_between_heartbeats(&world, "client").await;
    if !leaks.is_empty() {
        return Err(format!("after all faults servers hold\n{}", leaks.join("\n")));
    }
    let old = disaster::Copies::take(&cluster);
    for name in NODES {
        world.node(name).crash(&mut Loss::everything());
    }
    world.sleep(Duration::from_millis(20)).await;
    NODES.iter().for_each(|name| world.node(name).restart());
    for player in &mut players {
        player.died();
        be_up(player, &cluster).await?;
    }
    within(&world, "everything compared", join_all(players.iter_mut().map(Player::compare))).await?;

    within(&world, "everything written once more", join_all(players.iter_mut().map(Player::finish))).await?;
    disaster::strike(&world, &cluster, &mut players, &old).await?;
    within(&world, "everything there again", join_all(players.iter_mut().map(Player::compare))).await?;

    within(&world, "everything removed", join_all(players.iter_mut().map(Player::clear))).await?;
    players[0].client().remove_all(&players[0].shared_path).await.map_err(|error| error.to_string())?;
    // Wait for the last acknowledgements.
    world.sleep(Duration::from_millis(100)).await;
    for player in &players {
        let (who, held) = (player.who, player.client().endpoint().resource_usage());
        if (held.operations, held.exposures, held.work) != (0, 0, 0) {
            return Err(format!("client {who} holds {held:?}"));
        }
        // The manager removes what it has begun and not published.
        world.node(&format!("client{who}")).kill();
    }
    world.node("client0").restart();
    nothing_is_left(&world, &client(&world, &cluster, 0, players[0].lives + 1).await).await?;
    world.node("client0").kill();
    let leaks = leaks_between_heartbeats(&world, "client").await;
    // The harness checks for leaks too. That must not be in the middle of a heartbeat.
    NODES[..SERVERS].iter().for_each(|name| world.node(name).kill());
    if leaks.is_empty() { Ok(()) } else { Err(format!("in the end servers hold\n{}", leaks.join("\n"))) }
}

/// Waits until there is no file, no file without a name, no orphan and no datafile but those that
/// were created in advance.
async fn nothing_is_left(world: &Case, client: &Client) -> Result<(), String> {
    let mut found = String::new();
    for _ in 0..100 {
        let space = client.statfs().await.map_err(|error| error.to_string())?;
        let (left, manager) = (left(&space), space.manager);
        if (manager.files, manager.nameless, manager.orphans) == (0, 0, 0) && left == manager.prepared {
            return Ok(());
        }
        found = format!("{left} datafiles are left, {manager:?}");
        world.sleep(Duration::from_millis(500)).await;
    }
    Err(found)
}

/// Returns the resources that are held because of faults, except those of nodes with `except` in
/// their names. Looks again for a while, because a heartbeat may be in flight.
async fn leaks_between_heartbeats(world: &Case, except: &str) -> Vec<String> {
    for _ in 0..20 {
        let leaks: Vec<String> = world.leaks().into_iter().filter(|leak| !leak.contains(except)).collect();
        if leaks.is_empty() {
            return leaks;
        }
        world.sleep(Duration::from_millis(1)).await;
    }
    world.leaks().into_iter().filter(|leak| !leak.contains(except)).collect()
}

/// Returns the number of datafiles on all servers.
fn left(space: &fs_client::Space) -> u64 {
    space.servers.iter().map(|server| server.result.as_ref().unwrap().datafiles).sum()
}

/// Checks that the work after the faults takes at most a time bound per file.
async fn within<F: Future<Output = Vec<Result<(), String>>>>(world: &Case, what: &str, work: F) -> Result<(), String> {
    let start = world.now();
    work.await.into_iter().collect::<Result<Vec<()>, _>>()?;
    let took = world.now() - start;
    if took > 20 * BOUND { Err(format!("{what} took {took:?}")) } else { Ok(()) }
}

fn swarm() -> Swarm {
    Swarm::all().within(FAULTS_WITHIN).lasting(Duration::from_millis(40)).at_most(12)
}

fn sweep() -> check::Sweep {
    check::sweep("cluster")
        .named(&NODES)
        .seeds(0..if std::env::var_os("BMI_FULL").is_some() { 400 } else { 100 })
        .faults(swarm())
        .settings(settings)
        .limit(Duration::from_secs(300))
        .shrink(100)
}

#[test]
fn nothing_that_was_synced_is_lost_whatever_fails() {
    let deaths: Rc<Cell<usize>> = Rc::default();
    let report = sweep().run(|world| scenario(world, deaths.clone()));
    println!("{report}; clients crashed {} times in the middle of their work", deaths.get());
    // A single seed is run by a developer who investigates a failure.
    assert!(report.seeds < 20 || (report.faults > report.seeds && deaths.get() as u64 > report.seeds / 4), "{report}");
}

/// Collective operations: see `together.rs`.
#[test]
fn what_members_write_together_is_there_whatever_fails() {
    let failures = RefCell::new(0);
    let report = check::sweep("together")
        .named(&together::NODES)
        .seeds(0..if std::env::var_os("BMI_FULL").is_some() { 400 } else { 30 })
        .faults(swarm())
        .settings(settings)
        .limit(Duration::from_secs(300))
        .shrink(100)
        .run(|world| together::scenario(world, &failures));
    println!("{report}; {} operations failed", failures.borrow());
    assert!(report.seeds < 20 || *failures.borrow() > report.seeds / 2, "{report}");
}

/// `cargo xtask test --only digests` compares the output of this test in debug and in release, of
/// more seeds.
#[test]
fn digests_to_compare() {
    println!("{}", sweep().seeds(0..2).run(|world| scenario(world, Rc::default())));
}
