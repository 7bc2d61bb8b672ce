//! What must not happen to a cluster, and happens: directories that vanish, are swapped or go back
//! in time, servers behind each other's addresses, and datafiles that are damaged.
//!
//! **Procedure.** All data is known and synced. One disaster strikes, drawn from the seed. The
//! clients go on. Their requests may fail with errors that name a wrong, old or missing server, but
//! whatever succeeds must be right. Then everything is put back, and all data must be there.

use std::time::Duration;

use bmi::paths::Direction;
use bmi_sim::Rng;
use bmi_sim::check::Case;
use fs_client::{CreateOptions, ErrorCode};
use fs_proto::{ClusterId, StoreId};
use fs_server::embedded::SimCluster;
use fs_server::manager;
use fs_server::store::{Contents, MemDisk, MetaStore};

use super::player::Player;
use super::{BOUND, HEARTBEAT};

/// The state of all disks at an earlier time.
pub struct Copies {
    stores: Vec<Contents>,
    metadata: Contents,
}

impl Copies {
    pub fn take(cluster: &SimCluster) -> Copies {
        let stores = (0..cluster.iods().len()).map(|index| cluster.disk(index).copy()).collect();
        Copies { stores, metadata: cluster.metadata().copy() }
    }
}

/// Number of actions of each client during a disaster.
const ACTIONS: usize = 12;

/// Strikes, lets the clients act, and puts everything back. `old` is from before the servers'
/// current start.
pub async fn strike(world: &Case, cluster: &SimCluster, players: &mut [Player], old: &Copies) -> Result<(), String> {
    let mut rng = Rng::new(world.seed ^ 0x6469_7361);
    let victim = rng.below(cluster.iods().len() as u64) as usize;
    let other = (victim + 1) % cluster.iods().len();
    let disaster = rng.below(9);
    match disaster {
        0 => {
            // Its disk is not mounted.
            let own = exchange(cluster, victim, Contents::default());
            go_on(world, players).await?;
            avoided(players, victim).await?;
            exchange(cluster, victim, own);
        }
        1 => {
            let (own, others) = (cluster.disk(victim).copy(), cluster.disk(other).copy());
            cluster.iod_node(other).kill();
            exchange(cluster, victim, others.clone());
            exchange(cluster, other, own.clone());
            go_on(world, players).await?;
            cluster.iod_node(other).kill();
            exchange(cluster, victim, own);
            exchange(cluster, other, others);
        }
        2 => {
            let own = exchange(cluster, victim, old.stores[victim].clone());
            go_on(world, players).await?;
            exchange(cluster, victim, own);
        }
        3 => {
            let own = replace(cluster, Contents::default());
            go_on(world, players).await?;
            replace(cluster, own);
        }
        4 => {
            let own = replace(cluster, old.metadata.clone());
            // Started so often that it is ahead by its count.
            for _ in 0..3 {
                world.sleep(HEARTBEAT).await;
                cluster.restart_manager();
            }
            go_on(world, players).await?;
            replace(cluster, own);
        }
        5 => {
            // A copy of the current start. Then so many files that new pools are ordered.
            let copy = cluster.metadata().copy();
            players[0].create_many(40).await?;
            let own = replace(cluster, copy);
            go_on(world, players).await?;
            replace(cluster, own);
        }
        6 => {
            // Another cluster's manager is at the address.
            let foreign = MemDisk::default();
            let store = MetaStore::on(foreign.database()).map_err(|error| error.to_string())?;
            manager::format(&store, ClusterId(9), StoreId(9), &fs_proto::Caller::ROOT, 0)
                .map_err(|error| error.to_string())?;
            drop(store);
            let own = replace(cluster, foreign.copy());
            go_on(world, players).await?;
            replace(cluster, own);
        }
        7 => {
            // Each is behind the other's address.
            cluster.serve_at(victim, other);
            cluster.serve_at(other, victim);
            go_on(world, players).await?;
            cluster.serve_at(victim, victim);
            cluster.serve_at(other, other);
        }
        _ => damage(cluster, &mut players[0], rng.below(2) == 0).await?,
    }
    serve_again(world, players).await.map_err(|error| format!("after disaster {disaster}: {error}"))
}

fn exchange(cluster: &SimCluster, index: usize, contents: Contents) -> Contents {
    cluster.iod_node(index).kill();
    let own = cluster.disk(index).exchange(contents);
    cluster.iod_node(index).restart();
    own
}

fn replace(cluster: &SimCluster, contents: Contents) -> Contents {
    cluster.manager_node().kill();
    let own = cluster.metadata().exchange(contents);
    cluster.manager_node().restart();
    own
}

/// Lets the clients act. Errors are expected.
async fn go_on(world: &Case, players: &mut [Player]) -> Result<(), String> {
    world.sleep(HEARTBEAT * 4).await;
    for player in players.iter_mut() {
        player.disaster = true;
        for _ in 0..ACTIONS {
            player.act().await?;
            player.think().await;
        }
    }
    Ok(())
}

/// A new file is not placed on a server that is down.
async fn avoided(players: &mut [Player], victim: usize) -> Result<(), String> {
    let player = &mut players[0];
    let path = player.fresh_path();
    match player.client().create(&path, CreateOptions::default()).await {
        Ok(file) if file.servers().iter().any(|server| server.iod == Some(victim as u32)) => {
            Err(format!("{path} is on iod {victim}, which is down"))
        }
        _ => Ok(()),
    }
}

/// Damages a datafile. It must not read as zeros.
async fn damage(cluster: &SimCluster, player: &mut Player, lose: bool) -> Result<(), String> {
    let Some(known) = player.files.values().next().cloned() else { return Ok(()) };
    let datafiles = known.file.datafiles().await.map_err(|error| error.to_string())?;
    let Some((index, datafile)) = datafiles.iter().enumerate().find(|(_, datafile)| datafile.size > 0) else {
        return Ok(());
    };
    let server = datafile.server.iod.unwrap() as usize;
    // All of the file, so that the damaged part is among it.
    let size = known.file.distribution().file_size(&datafiles.iter().map(|one| one.size).collect::<Vec<_>>());
    let sound = bmi::Memory::zeroed(size as usize).unwrap();
    known.file.read_at(0, &sound).await.map_err(|error| format!("before the damage: {error}"))?;
    let lost = cluster.tamper(server, datafile.handle, |disk, name| match lose {
        true => Some(disk.lose(name)),
        false => {
            disk.damage(name, datafile.size / 2);
            None
        }
    });
    let memory = bmi::Memory::zeroed(size as usize).unwrap();
    let plan = known.file.plan(Direction::Read, &[fs_proto::Region::new(0, size)], &(&memory).into()).unwrap();
    assert!(plan.transfers.iter().any(|transfer| transfer.datafile == index), "it is read");
    let result = known.file.read_at(0, &memory).await;
    cluster.tamper(server, datafile.handle, |disk, name| match &lost {
        Some(lost) => disk.put_back(name, lost),
        None => disk.damage(name, datafile.size),
    });
    match result {
        Err(error) if error.code() == ErrorCode::Lost => Ok(()),
        Err(error) => Err(format!("a damaged datafile: {error}")),
        // A server with a cache of its own still has all bytes.
        Ok(_) if cluster.lends() && memory.to_vec() == sound.to_vec() => Ok(()),
        Ok(_) => Err("a damaged datafile was read".to_owned()),
    }
}

/// Waits until all servers serve all clients, and the manager has heard of all I/O servers.
pub async fn serve_again(world: &Case, players: &mut [Player]) -> Result<(), String> {
    let begun = world.now();
    for player in players {
        loop {
            let pongs = player.client().ping().await;
            let Some(error) = pongs.into_iter().find_map(|pong| pong.result.err()) else { break };
            if world.now() > begun + BOUND + HEARTBEAT * 10 {
                return Err(error.to_string());
            }
            world.sleep(Duration::from_millis(5)).await;
        }
        player.disaster = false;
    }
    Ok(())
}
