//! Changes of size that were decided, and that a disk refuses to carry out.
//!
//! **Procedure.** While there are faults, the disks of some seeds refuse to change the length of
//! some datafiles. That ends with the faults, so all of these changes must have been made then.
//! Later one disk refuses for one datafile, without any other fault: nothing else may suffer,
//! everybody must be told, and another change of size must mend the file.

use std::time::Duration;

use bmi::Memory;
use bmi_sim::Rng;
use bmi_sim::check::Case;
use fs_client::{CreateOptions, Error, ErrorCode};
use fs_proto::{DatafileHandle, RemoveKind};
use fs_server::embedded::SimCluster;
use fs_server::store::DiskStep;

use super::BOUND;
use super::model::byte;
use super::player::Player;

/// The error of a bad place of a disk.
const REFUSED: std::io::ErrorKind = std::io::ErrorKind::Other;
/// Lengths of a file.
const LONG: u64 = 40_000;
const SHORT: u64 = 9_000;

fn fail_none(cluster: &SimCluster) {
    (0..cluster.iods().len()).for_each(|index| cluster.refuse(index, DiskStep::Length, |_| None));
}

/// Lets the disks of a third of the seeds refuse some changes of length, until the faults are over.
pub async fn fail_among_faults(world: &Case, cluster: &SimCluster) {
    if Rng::new(world.seed ^ 0x636f_6d6d).below(3) > 0 {
        return;
    }
    for index in 0..cluster.iods().len() {
        let is_bad = move |datafile: DatafileHandle| datafile.0 % 3 == index as u64;
        cluster.refuse(index, DiskStep::Length, move |datafile| is_bad(datafile).then_some(REFUSED));
    }
    while world.now() < world.calm_at() {
        world.sleep(Duration::from_millis(1)).await;
    }
    fail_none(cluster);
}

/// Lets a disk refuse to change the length of a datafile, while nothing else fails.
pub async fn fail_one(world: &Case, cluster: &SimCluster, player: &mut Player) -> Result<(), String> {
    let told = |error: Error| error.to_string();
    let client = player.client();
    let options = CreateOptions { servers: 3, ..CreateOptions::default() };
    let bytes = Memory::from((0..LONG).map(|at| byte(1, at)).collect::<Vec<u8>>());
    let (bad_path, good_path, gone) = (player.fresh_path(), player.fresh_path(), player.fresh_path());
    let mut files = Vec::new();
    for path in [&bad_path, &good_path, &gone] {
        let file = client.create(path, options).await.map_err(told)?;
        file.write_at(0, &bytes).await.map_err(told)?;
        files.push(file);
    }
    let [bad, good, _] = &files[..] else { unreachable!("three were made") };
    let datafiles = bad.datafiles().await.map_err(told)?;
    let victim = &datafiles[player.rng.below(3) as usize];
    let (iod, handle) = (victim.server.iod.unwrap(), victim.handle);
    cluster.refuse(iod as usize, DiskStep::Length, move |datafile| (datafile == handle).then_some(REFUSED));
    match bad.set_len(SHORT).await {
        Err(error) if error.code() == ErrorCode::Unfinished => {}
        other => return Err(format!("a change that was not carried out: {other:?}")),
    }
    // Everything else goes on.
    good.set_len(SHORT).await.map_err(told)?;
    client.remove(&gone, RemoveKind::File).await.map_err(told)?;
    player.create_many(15).await?;
    let begun = world.now();
    while client.statfs().await.map_err(told)?.manager.orphans > 0 {
        if world.now() > begun + BOUND {
            return Err("the datafiles of a removed file are still there".to_owned());
        }
        world.sleep(Duration::from_millis(20)).await;
    }
    let stat = client.stat(&bad_path).await.map_err(told)?;
    let is_told = stat.unfinished.iter().any(|one| one.server.iod == Some(iod) && one.error.is_some());
    if !is_told || stat.attr.size != SHORT {
        return Err(format!("what is told: {stat:?}"));
    }
    fail_none(cluster);
    bad.set_len(SHORT / 2).await.map_err(told)?;
    for (file, len) in [(bad, SHORT / 2), (good, SHORT)] {
        let memory = Memory::from(vec![0xee; LONG as usize]);
        let read = file.read_at(0, &memory).await.map_err(told)?;
        if read != len || memory.to_vec()[..len as usize] != bytes.to_vec()[..len as usize] {
            return Err(format!("{read} bytes of a file of {len}, or others"));
        }
    }
    Ok(())
}
