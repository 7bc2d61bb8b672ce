//! Files that begin small: on one server, until something is written behind their first strip.

use std::time::Duration;

use bmi::{MemList, Memory};
use bmi_sim::faults::Loss;
use fs_client::{
    Allocation, Client, CreateOptions, Datatype, ErrorCode, File, FileView, Region, RemoveKind, Sought, TypedMemory,
};
use fs_server::embedded::ClusterOptions;

use super::file_system::{Setting, setting};
use crate::support::bodies::{code, path, pattern, read, striped};

const SERVERS: usize = 3;
const STRIP: u64 = 4096;

fn small() -> CreateOptions {
    CreateOptions { small: true, ..striped(STRIP, SERVERS as u32) }
}

fn cluster(seed: u64) -> Setting {
    setting(seed, ClusterOptions::with_iods(SERVERS))
}

/// Returns a file as one client has created it, and as another one has opened it.
async fn opened_twice(one: &Client, other: &Client, name: &str) -> (File, File) {
    let created = one.create(&path(name), small()).await.unwrap();
    (created, other.open(&path(name)).await.unwrap())
}

#[test]
fn a_file_has_one_datafile_until_it_is_written_behind_its_first_strip() {
    let setting = cluster(1);
    setting.world.block_on(async {
        let (client, other) = (setting.client(1).await, setting.client(2).await);
        let (file, seen) = opened_twice(&client, &other, "/f").await;
        let bytes = pattern(3 * STRIP as usize, 1);
        file.write_at(0, bytes[..STRIP as usize].to_vec()).await.unwrap();
        assert!(file.is_small() && file.servers().len() == 1 && file.datafiles().await.unwrap().len() == 1);
        assert_eq!(file.size().await.unwrap(), STRIP);
        file.write_at(STRIP, bytes[STRIP as usize..].to_vec()).await.unwrap();
        assert!(!file.is_small() && file.servers().len() == SERVERS, "{:?}", file.servers());
        let sizes: Vec<u64> = file.datafiles().await.unwrap().iter().map(|datafile| datafile.size).collect();
        assert_eq!(sizes, [STRIP; SERVERS], "no byte was moved");
        assert!(seen.is_small(), "nobody has told the other client");
        assert_eq!(read(&seen, 0, bytes.len()).await, bytes);
        assert!(!seen.is_small());
        let stat = client.stat(&path("/f")).await.unwrap();
        assert_eq!((stat.attr.size, stat.datafiles.len()), (3 * STRIP, SERVERS));
        file.sync().await.unwrap();
        client.remove(&path("/f"), RemoveKind::File).await.unwrap();
        client.endpoint().sleep(Duration::from_secs(2)).await;
        assert_eq!(client.statfs().await.unwrap().manager.orphans, 0, "all datafiles are removed");
    });
}

/// What a client does with a file that it believes to be small, after another one has written far
/// behind the first strip: the bytes of the first datafile behind its limit are in another place.
#[test]
fn a_client_that_believes_a_file_to_be_small_is_not_misled() {
    let setting = cluster(2);
    setting.world.block_on(async {
        let (client, other) = (setting.client(1).await, setting.client(2).await);
        let (len, far) = (20 * STRIP as usize, 30 * STRIP);
        let bytes = pattern(len, 2);
        let memory = || Memory::from(vec![9; len]);
        let plain = FileView::new(0, Datatype::BYTE, Datatype::BYTE).unwrap();
        for way in 0..10 {
            let name = format!("/f{way}");
            let (file, seen) = opened_twice(&client, &other, &name).await;
            // The first strip is not filled.
            file.write_at(0, bytes[..100].to_vec()).await.unwrap();
            file.write_at(far, bytes.clone()).await.unwrap();
            let size = far + len as u64;
            match way {
                0 => assert_eq!(seen.size().await.unwrap(), size),
                1 => assert_eq!(read(&seen, far, len).await, bytes),
                2 => {
                    let start = memory();
                    assert_eq!(seen.read_at(0, &start).await.unwrap(), len as u64, "there is no end");
                    assert_eq!((&start.to_vec()[..100], start.to_vec()[100]), (&bytes[..100], 0));
                }
                3 => {
                    let found = memory();
                    assert_eq!(seen.read_view(&plain, far, &found).await.unwrap(), len as u64);
                    assert_eq!(found.to_vec(), bytes);
                }
                4 => {
                    assert_eq!(seen.append(bytes.clone()).await.unwrap(), size);
                    assert_eq!(read(&file, size, len).await, bytes);
                }
                5 => {
                    seen.set_len(50).await.unwrap();
                    assert_eq!((file.size().await.unwrap(), read(&file, 0, 50).await), (50, bytes[..50].to_vec()));
                }
                6 => assert_eq!(seen.seek(STRIP, Sought::Data).await.unwrap().map(|at| at <= far), Some(true)),
                7 => {
                    let strip = read(&seen, 0, STRIP as usize).await;
                    assert_eq!(
                        (strip[..100] == bytes[..100], strip[100..].iter().all(|byte| *byte == 0)),
                        (true, true)
                    );
                }
                8 => {
                    seen.allocate(Region::new(0, 1 << 40), Allocation::Hole).await.unwrap();
                    assert_eq!(read(&file, far, len).await, vec![0; len]);
                }
                _ => {
                    // It was asked to believe what it has seen when it was opened.
                    let believing = other.open(&path(&name)).await.unwrap();
                    assert_eq!(read(&believing.close_to_open(), far, len).await, bytes);
                    // The first datafile shows that it has grown: it has bytes of later strips.
                    let start = memory();
                    let read = seen.close_to_open().read_at(0, &start).await.unwrap();
                    assert_eq!((read, &start.to_vec()[..100]), (len as u64, &bytes[..100]));
                    assert_eq!(start.to_vec()[100..], vec![0; len - 100]);
                }
            }
        }
    });
}

/// A client learns the recorded size of a file that has grown since it has opened it, and has read
/// nothing behind the first strip.
#[test]
fn a_recorded_size_does_not_make_a_small_file_seem_cut_off() {
    let setting = cluster(6);
    setting.world.block_on(async {
        let (client, other) = (setting.client(1).await, setting.client(2).await);
        let file = client.create(&path("/f"), small()).await.unwrap();
        let bytes = pattern(20 * STRIP as usize, 4);
        file.write_at(0, bytes[..100].to_vec()).await.unwrap();
        file.record_size(100).await.unwrap();
        let seen = other.open(&path("/f")).await.unwrap();
        file.write_at(0, bytes.clone()).await.unwrap();
        file.record_size(bytes.len() as u64).await.unwrap();
        assert_eq!(seen.size().await.unwrap(), bytes.len() as u64);
        assert_eq!(read(&seen, 10, 50).await, bytes[10..60]);
        assert_eq!(read(&seen, 0, bytes.len()).await, bytes);
    });
}

#[test]
fn every_way_to_write_behind_the_first_strip_lets_a_file_grow() {
    let setting = cluster(3);
    setting.world.block_on(async {
        let client = setting.client(1).await;
        let far = 5 * STRIP;
        let bytes = pattern(STRIP as usize, 3);
        for way in 0..7 {
            let file = client.create(&path(&format!("/f{way}")), small()).await.unwrap();
            file.write_at(10, bytes[..10].to_vec()).await.unwrap();
            let view = FileView::new(far, Datatype::BYTE, Datatype::BYTE).unwrap();
            let mut end = far + STRIP;
            match way {
                0 => file.write_at(far, bytes.clone()).await.unwrap(),
                1 => {
                    let regions = [Region::new(20, 30), Region::new(far, STRIP - 30)];
                    file.write_list(&regions, MemList::from(bytes.clone())).await.unwrap();
                    end = far + STRIP - 30;
                }
                2 => file.write_view(&view, 0, TypedMemory::from(&Memory::from(bytes.clone()))).await.unwrap(),
                3 => file.set_len(end).await.unwrap(),
                4 => {
                    let how = Allocation::Reserve { grows: true };
                    file.allocate(Region::new(far, STRIP), how).await.unwrap();
                }
                5 => {
                    file.set_len(STRIP).await.unwrap();
                    assert!(file.is_small(), "a small file may be as long");
                    assert_eq!(file.append(bytes.clone()).await.unwrap(), STRIP);
                    end = 2 * STRIP;
                }
                _ => {
                    file.set_len(STRIP + 1).await.unwrap();
                    end = STRIP + 1;
                }
            }
            assert_eq!((file.is_small(), file.size().await.unwrap()), (false, end), "{way}");
            assert_eq!(read(&file, 10, 10).await, bytes[..10], "{way}");
        }
    });
}

#[test]
fn several_clients_let_a_file_grow_at_the_same_time() {
    for seed in 0..6 {
        let setting = cluster(100 + seed);
        setting.world.block_on(async {
            let mut files = Vec::new();
            for id in 1..=4 {
                let client = setting.client(id).await;
                let options = CreateOptions { exclusive: false, ..small() };
                files.push((client.create(&path("/f"), options).await.unwrap(), client));
            }
            let part = 3 * STRIP;
            let writes = files.iter().zip(0..).map(async |((file, _), number)| {
                file.write_at(number * part, pattern(part as usize, number)).await.unwrap();
            });
            futures_util::future::join_all(writes).await;
            for (file, _) in &files {
                let all: Vec<u8> = (0..4).flat_map(|number| pattern(part as usize, number)).collect();
                assert_eq!(read(file, 0, all.len()).await, all);
                assert_eq!(file.size().await.unwrap(), 4 * part);
            }
        });
    }
}

/// Before, a sync of a handle that had not seen the growth left the further datafiles out.
#[test]
fn a_sync_covers_the_growth_that_another_handle_of_the_client_has_seen() {
    let setting = setting(5, ClusterOptions { disk_cache: true, ..ClusterOptions::with_iods(SERVERS) });
    let bytes = pattern(6 * STRIP as usize, 8);
    setting.world.block_on(async {
        let client = setting.client(1).await;
        let (file, seen) = opened_twice(&client, &client, "/f").await;
        file.write_at(0, bytes.clone()).await.unwrap();
        seen.sync().await.unwrap();
    });
    for index in 0..SERVERS {
        setting.cluster.iod_node(index).crash(&mut Loss::everything());
        setting.cluster.iod_node(index).restart();
    }
    setting.world.block_on(async {
        let file = setting.client(2).await.open(&path("/f")).await.unwrap();
        assert!(read(&file, 0, bytes.len()).await == bytes);
    });
}

/// A file grows over the servers that are up. While the manager is down, it does not, and what it
/// has is written on.
#[test]
fn a_file_grows_without_a_server_that_is_down_and_not_without_the_manager() {
    let setting = cluster(4);
    let (file, other) = setting.world.block_on(async {
        let client = setting.client(1).await;
        let file = client.create(&path("/f"), small()).await.unwrap();
        (file.clone(), client.create(&path("/g"), small()).await.unwrap())
    });
    let victim = (file.servers()[0].iod.unwrap() as usize + 1) % SERVERS;
    setting.cluster.iod_node(victim).crash(&mut Loss::everything());
    setting.world.run_for(Duration::from_secs(5));
    setting.world.block_on(async {
        let bytes = pattern(6 * STRIP as usize, 5);
        file.write_at(0, bytes.clone()).await.unwrap();
        assert_eq!((file.servers().len(), read(&file, 0, bytes.len()).await), (SERVERS - 1, bytes));
        other.write_at(0, pattern(100, 6)).await.unwrap();
    });
    setting.cluster.manager_node().crash(&mut Loss::everything());
    setting.world.block_on(async {
        if other.servers()[0].iod == Some(victim as u32) {
            return;
        }
        other.write_at(0, pattern(100, 7)).await.unwrap();
        assert_eq!(read(&other.close_to_open(), 0, 100).await, pattern(100, 7));
        let refused = code(other.write_at(STRIP, pattern(100, 7))).await;
        assert!([ErrorCode::Unreachable, ErrorCode::Timeout].contains(&refused), "{refused:?}");
        assert!(other.is_small());
    });
}
