//! What only servers with caches of their own can get wrong.
//!
//! **Why.** The random faults end a server's program together with its power, which takes the cache
//! away. They are over soon, while most bytes are still in the cache. And everything is written
//! anew before the comparison that follows. So caches get trials of their own.
//!
//! **Procedure.** Servers are killed among the random faults. After these:
//! 1. All servers are killed while clients write. Nothing that was acknowledged may be lost.
//! 2. All disks break while clients read and write, and then the servers are killed or not. Or they
//!    are full while clients also sync, and then the power fails: what a sync has confirmed must be
//!    there.
//! 3. The clients use the shared file at the same time, after another kill. The caches have little
//!    of it, so bytes arrive from clients and from disks in the same units.

use std::time::Duration;

use bmi_sim::check::Case;
use bmi_sim::faults::Loss;
use bmi_sim::{DiskFault, Rng};
use fs_server::embedded::SimCluster;
use futures_util::future::{join, join_all};

use super::disaster::serve_again;
use super::player::Player;
use super::{FAULTS_WITHIN, within};

/// How often the clients use the shared file at the same time.
const SHARED: usize = 3;
/// Most servers that are killed among the random faults.
const MOST: u64 = 6;

/// Kills servers at random times while there are faults, and starts them again.
pub async fn kill_among_faults(world: &Case, cluster: &SimCluster) {
    let mut rng = Rng::new(world.seed ^ 0x6b69_6c6c);
    let times = if cluster.lends() { rng.below(MOST + 1) } else { 0 };
    for _ in 0..times {
        world.sleep(Duration::from_nanos(rng.below(2 * FAULTS_WITHIN.as_nanos() as u64 / times))).await;
        let index = rng.below(cluster.iods().len() as u64) as usize;
        if world.now() < world.calm_at() && cluster.iod_node(index).is_alive() {
            cluster.restart_iod(index);
        }
    }
}

/// The trials after the random faults.
pub async fn try_all(world: &Case, cluster: &SimCluster, players: &mut [Player]) -> Result<(), String> {
    if !cluster.lends() {
        return Ok(());
    }
    let mut rng = Rng::new(world.seed ^ 0x7472_6961);
    kill_while_writing(world, cluster, players, &mut rng).await?;
    fail_disks(world, cluster, players, rng.below(3)).await?;
    for _ in 0..SHARED {
        kill_all(cluster);
        serve_again(world, players).await?;
        let shared = join_all(players.iter_mut().map(Player::use_own_part));
        within(world, "the shared file used by all", shared).await?;
    }
    compare(world, players, "after the trials").await
}

fn kill_all(cluster: &SimCluster) {
    (0..cluster.iods().len()).for_each(|index| cluster.restart_iod(index));
}

async fn kill_while_writing(
    world: &Case,
    cluster: &SimCluster,
    players: &mut [Player],
    rng: &mut Rng,
) -> Result<(), String> {
    players.iter_mut().for_each(|player| player.disaster = true);
    let kill = async {
        for index in 0..cluster.iods().len() {
            world.sleep(Duration::from_micros(rng.below(1_000))).await;
            let disk = cluster.iod_node(index).disk();
            let before = disk.busy_ns();
            // If the disk has a request soon, in the middle of that.
            for _ in 0..300 {
                if disk.busy_ns() != before {
                    break;
                }
                world.sleep(Duration::from_micros(1)).await;
            }
            cluster.restart_iod(index);
        }
    };
    let (written, ()) = join(join_all(players.iter_mut().map(Player::write_here_and_there)), kill).await;
    written.into_iter().collect::<Result<Vec<()>, _>>()?;
    compare(world, players, "after a kill").await
}

/// Lets all disks fail while they are used. `what` is what happens after that.
async fn fail_disks(world: &Case, cluster: &SimCluster, players: &mut [Player], what: u64) -> Result<(), String> {
    let iods = || (0..cluster.iods().len()).map(|index| cluster.iod_node(index));
    let set = |fault| iods().for_each(|node| node.disk().set_fault(fault));
    players.iter_mut().for_each(|player| player.broken_disks = true);
    set(if what == 0 { DiskFault::Full } else { DiskFault::Broken });
    for player in players.iter_mut() {
        // A server whose disk syncs nothing ends.
        player.use_all_files(what == 0).await?;
    }
    match what {
        0 => iods().for_each(|node| node.crash(&mut Loss::everything())),
        1 => iods().for_each(|node| node.kill()),
        _ => {}
    }
    set(DiskFault::None);
    iods().for_each(|node| node.restart());
    players.iter_mut().for_each(|player| player.broken_disks = false);
    compare(world, players, "after the disks failed").await
}

/// Compares everything, once the servers serve.
async fn compare(world: &Case, players: &mut [Player], when: &str) -> Result<(), String> {
    serve_again(world, players).await.map_err(|error| format!("{when}: {error}"))?;
    let compared = join_all(players.iter_mut().map(Player::compare));
    within(world, "everything compared", compared).await.map_err(|error| format!("{when}: {error}"))
}
