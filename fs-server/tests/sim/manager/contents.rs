//! What the manager knows about the sizes of files without asking I/O servers.

use std::collections::BTreeMap;

use bmi_sim::Rng;
use bmi_sim::faults::Loss;
use fs_client::{CreateOptions, File, FsPath, Held};
use fs_proto::{Attr, RemoveKind};

use super::truncate::{connect, empty_cluster, options, path};
use super::*;

type FsClient = fs_client::Client;

/// Longer than it takes until the manager has heard of everything that was closed.
const HEARD: Duration = Duration::from_secs(2);

fn run(seed: u64, test: impl AsyncFnOnce(&World, &SimCluster, &[FsClient; 3])) {
    run_with(seed, options(2), test);
}

fn run_with(seed: u64, options: ClusterOptions, test: impl AsyncFnOnce(&World, &SimCluster, &[FsClient; 3])) {
    let (world, cluster) = empty_cluster(seed, options);
    world.block_on(async {
        let [one, two, three] = [1, 2, 3].map(|id| connect(&world, &cluster, id));
        let clients = [one.await, two.await, three.await];
        let keep = futures_util::future::join_all(clients.iter().map(FsClient::keep_held));
        let test = test(&world, &cluster, &clients);
        futures_util::future::select(std::pin::pin!(test), std::pin::pin!(keep)).await;
    });
}

/// Returns the attributes, if the manager alone knows them.
async fn known(client: &FsClient, name: &str) -> Option<Attr> {
    client.lookup(&path(name)).await.unwrap().known_attr()
}

async fn new_file(client: &FsClient, name: &str) -> (Held, File) {
    let (held, file, _) = client.create_held(&path(name), CreateOptions::default()).await.unwrap();
    (held, file)
}

async fn write(file: &File, offset: u64, len: usize) {
    file.write_at(offset, &Memory::from(pattern(len, 1))).await.unwrap();
}

#[test]
fn the_size_of_a_file_is_known_after_it_was_closed() {
    run(1, async |_, _, [one, two, _]| {
        let (held, file) = new_file(one, "file").await;
        write(&file, 5000, 10_000).await;
        assert_eq!(known(two, "file").await, None, "it is open");
        let stat = two.stat(&path("file")).await.unwrap();
        drop((held, file));
        one.endpoint().sleep(HEARD).await;
        assert_eq!(known(two, "file").await, Some(stat.attr), "as the I/O servers had it");
        // Opened for reading only, it stays so.
        let (held, _) = two.hold(&path("file")).await.unwrap();
        let file = two.open(&path("file")).await.unwrap();
        assert_eq!(known(one, "file").await.unwrap().size, 15_000);
        write(&file, 15_000, 1).await;
        assert_eq!(known(one, "file").await, None);
        drop((held, file));
        one.endpoint().sleep(HEARD).await;
        assert_eq!(known(one, "file").await.unwrap().size, 15_001);
    });
}

#[test]
fn a_size_is_not_known_any_more_when_an_io_server_was_started() {
    run(2, async |_, cluster, [one, _, _]| {
        let (held, file) = new_file(one, "closed").await;
        write(&file, 0, 10_000).await;
        drop((held, file));
        let (held, file) = new_file(one, "recorded").await;
        write(&file, 0, 10_000).await;
        file.sync().await.unwrap();
        file.record_size(10_000).await.unwrap();
        let (held_open, open) = new_file(one, "open").await;
        write(&open, 0, 10_000).await;
        one.endpoint().sleep(HEARD).await;
        assert_eq!(known(one, "closed").await.unwrap().size, 10_000);
        // The one that has the last bytes.
        let node = cluster.iod_node(0);
        node.crash(&mut Loss::everything());
        node.restart();
        one.endpoint().sleep(HEARD).await;
        drop((held, file, held_open, open));
        one.endpoint().sleep(HEARD).await;
        assert_eq!((known(one, "closed").await, known(one, "open").await), (None, None));
        assert_eq!(known(one, "recorded").await.unwrap().size, 10_000, "it was synced");
        let entries = [one.lookup(&path("closed")).await.unwrap(), one.lookup(&path("recorded")).await.unwrap()];
        let attrs = one.attributes(&entries).await;
        let sizes: Vec<u64> = attrs.into_iter().map(|attr| attr.unwrap().size).collect();
        assert!(sizes[0] < 10_000 && sizes[1] == 10_000, "{sizes:?}: the servers are asked");
    });
}

/// A write that was dropped may still be under way, and may make the file longer. Opened and closed
/// again, the file was closed with the size of that moment.
#[test]
fn a_file_with_a_write_of_unknown_fate_is_not_closed() {
    run(3, async |_, _, [one, two, _]| {
        let (held, file) = new_file(one, "file").await;
        write(&file, 0, 10).await;
        let memory = Memory::from(pattern(1 << 20, 1));
        {
            let write = std::pin::pin!(file.write_at(0, &memory));
            let soon = std::pin::pin!(one.endpoint().sleep(Duration::from_micros(20)));
            let first = futures_util::future::select(write, soon).await;
            assert!(matches!(first, futures_util::future::Either::Right(_)), "it has not ended");
        }
        drop((held, file));
        one.endpoint().sleep(HEARD).await;
        assert_eq!(known(two, "file").await, None);
        write(&one.open(&path("file")).await.unwrap(), 0, 10).await;
        one.endpoint().sleep(HEARD).await;
        assert_eq!(known(two, "file").await, None);
    });
}

/// A write that no server has begun counted as under way for ever.
#[test]
fn a_file_with_a_write_that_was_refused_is_closed() {
    run(5, async |_, _, [one, two, _]| {
        let (held, file) = new_file(one, "file").await;
        write(&file, 0, 10).await;
        let too_far = file.write_at(fs_proto::limits::MAX_OFFSET, &Memory::from(pattern(10, 1))).await;
        assert_eq!(too_far.unwrap_err().code(), ErrorCode::TooLarge);
        drop((held, file));
        one.endpoint().sleep(HEARD).await;
        assert_eq!(known(two, "file").await.unwrap().size, 10);
    });
}

/// The end of an earlier use was said while the file was being truncated, with the size before.
#[test]
fn a_file_is_truncated_while_it_is_closed() {
    let options = ClusterOptions { commit_time: Duration::from_millis(100), ..options(2) };
    run_with(6, options, async |_, _, [one, two, _]| {
        one.endpoint().sleep(HEARD).await;
        drop(new_file(one, "file").await);
        for round in 1..40 {
            one.endpoint().sleep(Duration::from_millis(10 * round)).await;
            let file = one.open(&path("file")).await.unwrap();
            file.set_len(1000 * round).await.unwrap();
            assert_eq!(known(two, "file").await, None, "round {round}");
        }
        one.endpoint().sleep(HEARD).await;
        assert_eq!(known(two, "file").await.unwrap().size, 39_000);
    });
}

/// To open a file for writing withdrew its recorded size, though nothing was written.
#[test]
fn a_recorded_size_stays_until_something_is_written() {
    run(7, async |_, _, [one, two, _]| {
        let (held, file) = new_file(one, "file").await;
        write(&file, 0, 10).await;
        file.record_size(10).await.unwrap();
        drop((held, file));
        let file = two.open(&path("file")).await.unwrap();
        file.begin_write().await.unwrap();
        assert_eq!(one.lookup(&path("file")).await.unwrap().recorded_size(), Some(10));
        write(&file, 10, 1).await;
        assert_eq!(one.lookup(&path("file")).await.unwrap().recorded_size(), None);
    });
}

/// A server that did not answer left a whole page without sizes.
#[test]
fn the_sizes_that_servers_answer_are_there_without_the_others() {
    run(8, async |_, cluster, [one, two, _]| {
        let options = CreateOptions { servers: 1, ..CreateOptions::default() };
        let mut files = Vec::new();
        for at in 0..8 {
            files.push(one.create(&path(&format!("{at}")), options).await.unwrap());
            write(&files[at], 0, 100).await;
        }
        cluster.iod_node(0).crash(&mut Loss::everything());
        let mut entries = Vec::new();
        for file in &files {
            entries.push(two.lookup(&FsPath::of(file.handle())).await.unwrap());
        }
        let is_there = |entry: &fs_client::Entry| entry.layout.as_ref().unwrap().datafiles()[0].0 == 1;
        let expected: Vec<Option<u64>> = entries.iter().map(|entry| is_there(entry).then_some(100)).collect();
        let attrs = two.attributes_within(&entries, Duration::from_millis(500)).await;
        let sizes: Vec<Option<u64>> = attrs.iter().map(|attr| attr.map(|attr| attr.size)).collect();
        assert!(sizes == expected && sizes.contains(&None) && sizes.contains(&Some(100)), "{sizes:?}");
    });
}

/// A file that is opened again, while the manager is being told that it was closed, is written only
/// after the manager was told that, too.
#[test]
fn a_file_is_written_again_while_it_is_closed() {
    let options = ClusterOptions { commit_time: Duration::from_millis(100), ..options(2) };
    run_with(4, options, async |_, _, [one, two, _]| {
        one.endpoint().sleep(HEARD).await;
        let (held, file) = new_file(one, "file").await;
        write(&file, 0, 1000).await;
        drop((held, file));
        for round in 1..40 {
            // At some moment before, during or after the end of the last round.
            one.endpoint().sleep(Duration::from_millis(10 * round)).await;
            let file = one.open(&path("file")).await.unwrap();
            write(&file, 1000 * round, 1000).await;
            assert_eq!(known(two, "file").await, None, "round {round}");
        }
        one.endpoint().sleep(HEARD).await;
        assert_eq!(known(two, "file").await.unwrap().size, 40_000);
    });
}

/// Whatever clients do, one after the other, and whenever servers are started: a size that the
/// manager knows is that of the file.
#[test]
fn a_size_that_is_known_is_right() {
    let (mut right, mut unknown) = (0, 0);
    for seed in 0..12 {
        run(seed, async |_, cluster, clients| {
            let mut rng = Rng::new(seed);
            let mut sizes: BTreeMap<String, u64> = BTreeMap::new();
            let mut open: Vec<(String, Held, File)> = Vec::new();
            for _ in 0..150 {
                let (client, name) = (&clients[rng.below(3) as usize], format!("{}", rng.below(3)));
                match rng.below(11) {
                    0..3 if sizes.contains_key(&name) => {
                        let (held, entry) = client.hold(&path(&name)).await.unwrap();
                        let file = client.file(&FsPath::of(entry.handle), entry).await.unwrap();
                        open.push((name, held, file));
                    }
                    0..3 => {
                        let (held, file) = new_file(client, &name).await;
                        sizes.insert(name.clone(), 0);
                        open.push((name, held, file));
                    }
                    3..6 if !open.is_empty() => {
                        let (name, _, file) = &open[rng.below(open.len() as u64) as usize];
                        let size = sizes.get_mut(name).unwrap();
                        let (offset, len) = (rng.below(*size + 2000), rng.below(9000));
                        write(file, offset, len as usize).await;
                        *size = (offset + len).max(*size);
                    }
                    6 if !open.is_empty() => {
                        let (name, _, file) = &open[rng.below(open.len() as u64) as usize];
                        let len = rng.below(30_000);
                        file.set_len(len).await.unwrap();
                        sizes.insert(name.clone(), len);
                    }
                    7..9 if !open.is_empty() => drop(open.swap_remove(rng.below(open.len() as u64) as usize)),
                    9 if rng.below(4) == 0 => {
                        match rng.below(3) {
                            0 => cluster.restart_manager(),
                            iod => cluster.restart_iod(iod as usize - 1),
                        }
                        client.endpoint().sleep(HEARD).await;
                    }
                    10 if sizes.contains_key(&name) && rng.below(4) == 0 => {
                        open.retain(|(other, ..)| *other != name);
                        client.remove(&path(&name), RemoveKind::File).await.unwrap();
                        sizes.remove(&name);
                    }
                    _ => client.endpoint().sleep(Duration::from_millis(rng.below(600))).await,
                }
                for (name, size) in &sizes {
                    match known(client, name).await {
                        Some(attr) => {
                            right += 1;
                            assert_eq!(attr.size, *size, "seed {seed}: file {name}");
                        }
                        None => unknown += 1,
                    }
                }
            }
        });
    }
    assert!(right > 300 && unknown > 300, "{right} were known, {unknown} were not");
}
