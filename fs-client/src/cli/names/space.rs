//! Commands that show space: `du df`.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Client, Error, FsPath, Handle};
use serde_json::{Value, json};

use super::walk::walk;
use crate::cli::args::names::Sizes;
use crate::cli::output::{Output, table};
use crate::program::{Stop, printable};

pub(crate) async fn du(
    client: &Client,
    paths: &[FsPath],
    summarize: bool,
    sizes: Sizes,
    output: &mut Output,
) -> Result<(), Stop> {
    // Files with several names that were counted.
    let (mut counted, mut shown) = (BTreeSet::new(), Vec::<Value>::new());
    for path in paths {
        let mut sums = BTreeMap::<FsPath, u64>::new();
        let ask = async |at: &FsPath, handle: Handle| match handle {
            Handle::File(_) => client.getattr(at, handle).await.map(|stat| (handle, stat.attr.size, stat.attr.nlink)),
            Handle::Dir(_) | Handle::Symlink(_) => Ok((handle, 0, 1)),
        };
        let done = |at: &FsPath, result: Result<(Handle, u64, u32), Error>| match result {
            Ok((handle, _, names)) if names > 1 && !counted.insert(handle) => {}
            Ok((handle, size, _)) => {
                let is_top = |at: &FsPath| at == path;
                let mut above = if handle.dir().is_some() || is_top(at) { Some(at.clone()) } else { at.parent() };
                while let Some(dir) = above {
                    above = if is_top(&dir) { None } else { dir.parent() };
                    *sums.entry(dir).or_default() += size;
                }
            }
            Err(error) => output.failure(error),
        };
        walk(client, path, true, ask, done).await;
        // The sum of a directory is behind those of the directories in it.
        for (at, bytes) in sums.iter().rev().filter(|(at, _)| !summarize || *at == path) {
            output.line(format!("{}\t{}", sizes.show(*bytes), printable(at)));
            shown.push(json!({ "name": at.to_string(), "bytes": bytes }));
        }
    }
    output.field("sums", json!(shown));
    Ok(())
}

pub(crate) async fn df(client: &Client, sizes: Sizes, output: &mut Output) -> Result<(), Stop> {
    let space = client.statfs().await?;
    let (mut capacity, mut free) = (0u64, 0u64);
    // Servers may share a disk.
    let mut disks = BTreeSet::new();
    let titles = ["server", "size", "used", "free", "use", "datafiles"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    let row = |name: String, capacity: u64, free: u64, datafiles: String| {
        let used = capacity.saturating_sub(free);
        // Rounded up, as df(1) does: only what is empty is 0 %.
        let percent = (u128::from(used) * 100).div_ceil(u128::from(capacity.max(1)));
        vec![name, sizes.show(capacity), sizes.show(used), sizes.show(free), format!("{percent} %"), datafiles]
    };
    let servers = space.servers.into_iter().map(|server| (server.server, server.result));
    output.servers("servers", servers, |_, server, stat| {
        if disks.insert(stat.disk) {
            capacity = capacity.saturating_add(stat.capacity);
            free = free.saturating_add(stat.free);
        }
        rows.push(row(server.to_owned(), stat.capacity, stat.free, stat.datafiles.to_string()));
        json!({
            "server": server, "capacity": stat.capacity, "free": stat.free, "datafiles": stat.datafiles,
            "disk": format!("{:016x}", stat.disk),
        })
    });
    let disks = if disks.len() == 1 { "1 disk".to_owned() } else { format!("{} disks", disks.len()) };
    rows.push(row(format!("all, on {disks}"), capacity, free, String::new()));
    table(&rows, 1).into_iter().for_each(|line| output.line(line));
    let manager = space.manager;
    output.line(format!("{}: {} files, {} directories", client.manager(), manager.files, manager.dirs));
    output.fields(&json!({
        "nameless_files": manager.nameless, "orphaned_datafiles": manager.orphans,
        "prepared_datafiles": manager.prepared, "files": manager.files, "directories": manager.dirs,
        "capacity": capacity, "free": free,
    }))
}
