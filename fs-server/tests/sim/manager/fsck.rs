//! The check of a whole cluster: damage of each kind is found, and nothing else; a repair mends
//! what it can, and loses no bytes.

use bmi::Memory;
use fs_client::{CreateOptions, FsPath, LOST_FOUND, Publish, Report};
use fs_proto::{Attr, BString, DirHandle, Fix, Handle, Kind, RemoveKind, Repair};
use fs_server::embedded::ClusterOptions;
use fs_server::store::name_of;
use futures_util::future::{join, join_all, select};
use redb::{ReadableTable, TableDefinition, WriteTransaction};

use super::truncate::{connect, contents, empty_cluster, long_file, options, path, with_fs};
use super::*;

type FsClient = fs_client::Client;

const OBJECTS: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("objects");
const NAMES: TableDefinition<'static, (u64, &'static [u8]), (u64, u8)> = TableDefinition::new("names");
const COUNTERS: TableDefinition<'static, &'static str, u64> = TableDefinition::new("counters");
const ORPHANS: TableDefinition<'static, (u32, u64), ()> = TableDefinition::new("orphans");
const ROOT: u64 = DirHandle::ROOT.0;
const NOTHING: u64 = 0xdead;

/// Changes the manager's database while the manager is down.
async fn damage(cluster: &SimCluster, client: &FsClient, change: impl FnOnce(&WriteTransaction)) {
    cluster.manager_node().kill();
    let disk = cluster.metadata().reopen();
    let database = redb::Builder::new().create_with_backend(disk.database()).unwrap();
    let transaction = database.begin_write().unwrap();
    change(&transaction);
    transaction.commit().unwrap();
    drop(database);
    cluster.manager_node().restart();
    client.endpoint().sleep(Duration::from_secs(1)).await;
    while client.refresh().await.is_err() {
        client.endpoint().sleep(Duration::from_millis(10)).await;
    }
}

/// Changes the parent and the attributes of an object.
fn change_object(transaction: &WriteTransaction, raw: u64, change: impl FnOnce(&mut u64, &mut Attr)) {
    let mut objects = transaction.open_table(OBJECTS).unwrap();
    let bytes = objects.get(raw).unwrap().unwrap().value().to_vec();
    let ((mut parent, mut attr), rest) = postcard::take_from_bytes::<(u64, Attr)>(&bytes).unwrap();
    change(&mut parent, &mut attr);
    let bytes = [postcard::to_stdvec(&(parent, attr)).unwrap(), rest.to_vec()].concat();
    objects.insert(raw, bytes.as_slice()).unwrap();
}

async fn raw(client: &FsClient, name: &str) -> u64 {
    client.lookup(&path(name)).await.unwrap().handle.raw()
}

async fn check(client: &FsClient) -> Report {
    client.check(|_| {}).await.unwrap()
}

/// Returns the kinds of the findings with their paths, sorted.
fn kinds(report: &Report) -> Vec<(&str, &str)> {
    assert!(report.unchecked.is_empty(), "{:?}", report.unchecked);
    let mut kinds: Vec<_> =
        report.findings.iter().map(|finding| (finding.kind, finding.path.as_deref().unwrap_or(""))).collect();
    kinds.sort_unstable();
    kinds
}

/// Repairs until nothing is left that can be repaired. Returns the number of rounds.
async fn repair(client: &FsClient) -> u32 {
    let mut rounds = 0;
    loop {
        let report = check(client).await;
        if report.repairable().next().is_none() {
            return rounds;
        }
        rounds += 1;
        assert!(rounds < 4, "{:#?}", report.findings);
        client.repair(&report, |_, _| {}).await.unwrap();
    }
}

async fn lost_found(name: BString) -> FsPath {
    LOST_FOUND.parse::<FsPath>().unwrap().join(name.to_string().as_str()).unwrap()
}

#[test]
fn damaged_tables_are_found_and_mended() {
    with_fs(1, options(2), async |_, cluster, client| {
        for dir in ["d", "d/sub", "gone"] {
            client.mkdir(&path(dir)).await.unwrap();
        }
        for (name, salt) in [("d/a", 1), ("d/b", 2), ("d/c", 3), ("gone/x", 4)] {
            long_file(client, name, salt).await;
        }
        client.link(&path("d/a"), &path("d/a2")).await.unwrap();
        let draft = client.draft(&path("draft"), CreateOptions::default()).await.unwrap();
        let held = client.hold(&path("d/a2")).await.unwrap();
        assert_eq!(kinds(&check(client).await), []);

        let [d, sub, gone] = [raw(client, "d").await, raw(client, "d/sub").await, raw(client, "gone").await];
        let [a, b, c] = [raw(client, "d/a").await, raw(client, "d/b").await, raw(client, "d/c").await];
        damage(cluster, client, |transaction| {
            let mut names = transaction.open_table(NAMES).unwrap();
            names.insert((d, b"ghost".as_slice()), (NOTHING + 2, 0)).unwrap();
            names.insert((d, b"a2".as_slice()), (a, 2)).unwrap();
            names.insert((ROOT, b"sub2".as_slice()), (sub, 1)).unwrap();
            names.remove((d, b"b".as_slice())).unwrap();
            names.remove((d, b"c".as_slice())).unwrap();
            names.insert((NOTHING, b"c".as_slice()), (c, 0)).unwrap();
            names.insert((NOTHING, b"both".as_slice()), (NOTHING + 1, 0)).unwrap();
            names.remove((ROOT, b"gone".as_slice())).unwrap();
            change_object(transaction, a, |_, attr| attr.nlink = 7);
            change_object(transaction, sub, |parent, _| *parent = gone);
            transaction.open_table(COUNTERS).unwrap().insert("files", 99).unwrap();
        })
        .await;
        let report = check(client).await;
        let expected = [
            ("counts", ""),
            ("name", "(dead)/both"),
            ("name", "(dead)/c"),
            ("name", "/d/a2"),
            ("name", "/d/ghost"),
            ("name", "/sub2"),
            ("nameless", ""),
            ("nameless", ""),
            ("ties", "/d"),
            ("ties", "/d/a"),
            ("ties", "/sub2"),
        ];
        assert_eq!(kinds(&report), expected, "{:#?}", report.findings);
        let rounds = repair(client).await;
        assert!(rounds <= 2, "{rounds} rounds");
        assert_eq!(kinds(&check(client).await), []);
        for (path, salt) in [
            (path("d/a"), 1),
            (path("d/a2"), 1),
            (lost_found(Fix::name_of(b)).await, 2),
            (lost_found(Fix::name_of(c)).await, 3),
            (lost_found(Fix::name_of(gone)).await.join("x").unwrap(), 4),
        ] {
            let file = client.open(&path).await.unwrap();
            assert!(contents(client, &file).await == pattern(super::truncate::LONG, salt), "{path}");
        }
        assert_eq!(client.lookup(&path("d/a")).await.unwrap().attr.nlink, 2);
        assert_eq!(client.statfs().await.unwrap().manager.files, 4);
        drop(held);
        draft.publish(Publish::default()).await.unwrap();
        assert_eq!(kinds(&check(client).await), []);
    });
}

#[test]
fn what_cannot_be_mended_is_told_and_left() {
    with_fs(2, options(2), async |_, cluster, client| {
        for dir in ["d", "one", "one/two"] {
            client.mkdir(&path(dir)).await.unwrap();
        }
        let files = join_all([1, 2, 3].map(async |salt| long_file(client, &format!("d/{salt}"), salt).await)).await;
        let datafiles = files[1].datafiles().await.unwrap();
        let (first, second) = (raw(client, "d/1").await, raw(client, "d/2").await);
        let [one, two, bad] = [raw(client, "one").await, raw(client, "one/two").await, raw(client, "d/3").await];
        damage(cluster, client, |transaction| {
            let mut names = transaction.open_table(NAMES).unwrap();
            names.remove((ROOT, b"one".as_slice())).unwrap();
            names.insert((two, b"one".as_slice()), (one, 1)).unwrap();
            // The first file has the datafiles of the second one.
            let mut objects = transaction.open_table(OBJECTS).unwrap();
            let stored = objects.get(second).unwrap().unwrap().value().to_vec();
            objects.insert(first, stored.as_slice()).unwrap();
            objects.insert(bad, b"nonsense".as_slice()).unwrap();
            let iod = datafiles[0].server.iod.unwrap();
            transaction.open_table(ORPHANS).unwrap().insert((iod, datafiles[0].handle.0), ()).unwrap();
            // The manager is about to remove it, but the server is down.
            cluster.iod_node(iod as usize).kill();
            drop(objects);
            change_object(transaction, one, |parent, attr| (*parent, attr.nlink) = (two, 3));
            change_object(transaction, two, |_, attr| (attr.size, attr.nlink) = (1, 3));
            change_object(transaction, ROOT, |_, attr| (attr.size, attr.nlink) = (1, 3));
        })
        .await;
        let report = check(client).await;
        assert_eq!(report.unchecked.len(), 1, "{:?}", report.unchecked);
        let mut kinds: Vec<&str> = report.findings.iter().map(|finding| finding.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        // The datafiles that the first file had belong to nobody, on the server that answers.
        assert_eq!(kinds, ["circle", "spare", "twice", "unowned", "unreadable"], "{:#?}", report.findings);
        let refused = client.repair(&report, |_, _| {}).await.unwrap_err();
        assert!(refused.to_string().contains("nothing is repaired while a server is missing"), "{refused}");
        assert!(client.lookup(&LOST_FOUND.parse().unwrap()).await.is_err());
    });
}

#[test]
fn datafiles_that_are_missing_or_wrong_or_belong_to_nobody_are_found() {
    let (world, cluster) = empty_cluster(3, options(2));
    world.block_on(async {
        let client = &connect(&world, &cluster, 1).await;
        let test = async {
            let names = ["lost", "short", "long", "removed", "open"];
            let mut on_first = Vec::new();
            for name in names {
                let file = long_file(client, name, 1).await;
                file.record_size(super::truncate::LONG as u64).await.unwrap();
                let datafiles = file.datafiles().await.unwrap();
                on_first.push(datafiles.into_iter().find(|datafile| datafile.server.iod == Some(0)).unwrap().handle);
            }
            let (held, file, _) = client.create_held(&path("closed"), CreateOptions::default()).await.unwrap();
            file.write_at(0, &Memory::from(pattern(super::truncate::LONG, 2))).await.unwrap();
            let closed = file.datafiles().await.unwrap();
            let closed = closed.iter().find(|datafile| datafile.server.iod == Some(0)).unwrap().handle;
            drop((held, file));
            client.remove(&path("removed"), RemoveKind::File).await.unwrap();
            client.endpoint().sleep(Duration::from_secs(2)).await;
            assert_eq!(kinds(&check(client).await), []);

            let (lost, foreign) = (on_first[0], DatafileHandle(1 << 50));
            cluster.tamper(0, lost, |disk, name| drop(disk.lose(name)));
            client.endpoint().sleep(Duration::from_secs(1)).await;
            // Opened, so that they are not compared with what was synced.
            for name in ["short", "long", "open", "closed"] {
                client.stat(&path(name)).await.unwrap();
            }
            let disk = cluster.disk(0);
            drop(disk.lose(&name_of(on_first[4])));
            disk.damage(&name_of(on_first[1]), 10);
            disk.damage(&name_of(on_first[2]), 90_000);
            disk.put(&name_of(on_first[3]), b"belongs to nobody");
            disk.put(&name_of(foreign), b"of another cluster");
            // Of a file that was closed, the manager knows nothing more after a start.
            disk.damage(&name_of(closed), 10);
            let report = check(client).await;
            let expected = [
                ("long", "/long"),
                ("lost", "/lost"),
                ("lost", "/open"),
                ("short", "/short"),
                ("unassigned", ""),
                ("unowned", ""),
            ];
            assert_eq!(kinds(&report), expected, "{:#?}", report.findings);
            assert_eq!(report.repairable().count(), 1);
            assert_eq!(repair(client).await, 1);
            let mended = client.open(&lost_found(Fix::name_of_datafile(0, on_first[3])).await).await.unwrap();
            assert_eq!(contents(client, &mended).await, b"belongs to nobody");
            let left: Vec<_> = expected.into_iter().filter(|(kind, _)| *kind != "unowned").collect();
            assert_eq!(kinds(&check(client).await), left);
            // The file is as it was: what is at the other server can be read.
            let file = client.open(&path("lost")).await.unwrap();
            let memory = Memory::from(vec![0; 4096]);
            let reads = join(file.read_at(0, &memory), file.read_at(4096, &memory)).await;
            assert!(reads.0.is_ok() != reads.1.is_ok(), "{reads:?}");
        };
        select(std::pin::pin!(test), std::pin::pin!(client.keep_held())).await;
    });
}

#[test]
fn the_size_of_a_closed_file_is_compared() {
    let (world, cluster) = empty_cluster(4, options(2));
    world.block_on(async {
        let client = &connect(&world, &cluster, 1).await;
        let test = async {
            let (held, file, _) = client.create_held(&path("closed"), CreateOptions::default()).await.unwrap();
            file.write_at(0, &Memory::from(pattern(super::truncate::LONG, 2))).await.unwrap();
            let datafiles = file.datafiles().await.unwrap();
            drop((held, file));
            client.endpoint().sleep(Duration::from_secs(2)).await;
            assert_eq!(kinds(&check(client).await), []);
            for datafile in datafiles {
                cluster.disk(datafile.server.iod.unwrap() as usize).damage(&name_of(datafile.handle), 10);
            }
            assert_eq!(kinds(&check(client).await), [("size", "/closed")]);
        };
        select(std::pin::pin!(test), std::pin::pin!(client.keep_held())).await;
    });
}

/// Whatever clients and servers do meanwhile is not damage.
#[test]
fn a_check_beside_changes_finds_nothing() {
    for seed in 0..4 {
        let (world, cluster) = empty_cluster(10 + seed, options(3));
        world.block_on(async {
            let clients = join_all((1..=3).map(|id| connect(&world, &cluster, id))).await;
            let changes = clients.iter().zip(0u64..).map(async |(client, id)| {
                let mut rng = bmi_sim::Rng::new(seed * 100 + id);
                loop {
                    client.endpoint().sleep(Duration::from_millis(rng.below(5))).await;
                    let name = path(&format!("f{}", rng.below(6)));
                    // Others remove and replace the same files.
                    match rng.below(8) {
                        0 => drop(client.remove(&name, RemoveKind::File).await),
                        1 => drop(client.rename(&name, &path(&format!("f{}", rng.below(6)))).await),
                        2 => drop(client.link(&name, &path(&format!("f{}", rng.below(6)))).await),
                        3 => {
                            let Ok(draft) = client.draft(&name, CreateOptions::default()).await else { continue };
                            let len = 1 + rng.below(30_000) as usize;
                            let bytes = Memory::from(pattern(len, rng.below(100)));
                            if draft.file().write_at(0, &bytes).await.is_ok() && draft.file().sync().await.is_ok() {
                                let how = Publish { size: Some(len as u64), ..Publish::default() };
                                drop(draft.publish(how).await);
                            }
                        }
                        4 => {
                            let Ok(file) = client.open(&name).await else { continue };
                            drop(file.set_len(rng.below(20_000)).await);
                        }
                        5 => {
                            let Ok((held, file, _)) = client.create_held(&name, CreateOptions::default()).await else {
                                continue;
                            };
                            drop(file.write_at(rng.below(10_000), &Memory::from(pattern(9000, 1))).await);
                            drop(held);
                        }
                        6 => drop(client.mkdir(&path(&format!("d{}", rng.below(3)))).await),
                        _ => drop(client.remove(&path(&format!("d{}", rng.below(3))), RemoveKind::Dir).await),
                    }
                }
            });
            let changes = std::pin::pin!(join(join_all(changes), join_all(clients.iter().map(FsClient::keep_held))));
            let checker = connect(&world, &cluster, 9).await;
            let checks = async {
                for _ in 0..100 {
                    let report = check(&checker).await;
                    assert!(report.is_clean(), "seed {seed}: {report:#?}");
                    checker.endpoint().sleep(Duration::from_millis(7)).await;
                }
                assert!(checker.statfs().await.unwrap().manager.files > 0);
            };
            select(std::pin::pin!(checks), changes).await;
        });
    }
}

/// Otherwise two files would have the same bytes.
#[test]
fn a_datafile_that_is_there_for_a_new_file_is_given_to_no_other() {
    let (world, cluster) = cluster(1, ClusterOptions::with_iods(1));
    world.block_on(async {
        let client = Client::new(&world.node("client"), 1);
        let manager = client.connect(&cluster.manager()).await;
        let entry = client.entry(manager, create("file")).await.unwrap();
        let (iod, used) = entry.layout.unwrap().datafiles()[0];
        let fix = Fix::Datafile { iod, datafile: DatafileHandle(used.0 + 1) };
        let repair = Repair { fix, before: 0, lost: DirHandle::ROOT };
        let refused = client.manager(manager, ManagerRequest::Repair(repair)).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Stale);
    });
}

/// Two who repair at the same time do not give a datafile to two files.
#[test]
fn a_second_repair_at_the_same_time_is_refused() {
    with_fs(5, options(1), async |_, cluster, client| {
        let file = long_file(client, "file", 1).await;
        let datafile = file.datafiles().await.unwrap()[0].handle;
        client.remove(&path("file"), RemoveKind::File).await.unwrap();
        client.endpoint().sleep(Duration::from_secs(1)).await;
        cluster.disk(0).put(&name_of(datafile), b"bytes");
        let (one, two) = (check(client).await, check(client).await);
        client.repair(&one, |_, result| result.unwrap()).await.unwrap();
        let mended = lost_found(Fix::name_of_datafile(0, datafile)).await;
        client.rename(&mended, &path("mine")).await.unwrap();
        let mut refused = 0;
        client
            .repair(&two, |_, result| refused += u32::from(result.unwrap_err().code() == ErrorCode::Stale))
            .await
            .unwrap();
        assert_eq!((refused, kinds(&check(client).await)), (1, vec![]));
        assert!(matches!(client.lookup(&path("mine")).await.unwrap().handle, Handle::File(_)));
        assert_eq!(client.lookup(&LOST_FOUND.parse().unwrap()).await.unwrap().attr.kind, Kind::Dir);
    });
}
