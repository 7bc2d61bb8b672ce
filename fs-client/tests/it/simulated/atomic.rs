//! Atomic accesses: one comes after the other as a whole, over all servers.

use std::time::Duration;

use bmi::Memory;
use fs_client::{Client, ClientOptions, CreateOptions, Datatype, ErrorCode, File, FileView, Region};
use fs_server::embedded::ClusterOptions;
use futures_util::FutureExt;
use futures_util::future::join_all;

use super::file_system::{Setting, setting};
use crate::support::bodies::{path, striped};

const SERVERS: usize = 3;
/// Bytes of an access. They are on all servers, in several requests each.
const LEN: usize = 120_000;
const STRIP: u64 = 4096;

/// Returns a client, and a handle of its own of the file.
async fn opened(setting: &Setting, id: u128) -> (Client, File) {
    let options =
        ClientOptions { timeout: Duration::from_secs(30), largest_transfer: 20_000, ..ClientOptions::new(id) };
    let client = setting.client_with(options).await;
    let options = CreateOptions { exclusive: false, ..striped(STRIP, SERVERS as u32) };
    let file = client.create(&path("/f"), options).await.unwrap();
    (client, file)
}

/// Every other block of some bytes.
fn view() -> FileView {
    FileView::new(0, Datatype::BYTE, Datatype::resized(0, 600, &Datatype::bytes(300).unwrap()).unwrap()).unwrap()
}

/// Writes a byte to all places of the view, by a view or by a list.
async fn write(file: &File, byte: u8, by_list: bool) {
    let memory = Memory::from(vec![byte; LEN]);
    match by_list {
        false => file.write_view(&view(), 0, &memory).await.unwrap(),
        true => {
            let regions: Vec<Region> = (0..LEN as u64 / 300).map(|at| Region::new(at * 600, 300)).collect();
            file.write_list(&regions, &memory).await.unwrap();
        }
    }
}

async fn read(file: &File) -> Vec<u8> {
    let memory = Memory::from(vec![0; LEN]);
    file.read_view(&view(), 0, &memory).await.unwrap();
    memory.to_vec()
}

/// Returns true if accesses of three clients at the same time were mixed.
fn mixes(seed: u64, is_atomic: bool) -> bool {
    let setting = setting(seed, ClusterOptions::with_iods(SERVERS));
    setting.world.block_on(async {
        let clients = join_all((1..=3).map(|id| opened(&setting, id))).await;
        let files: Vec<File> = clients.iter().map(|(_, file)| file.atomic(is_atomic)).collect();
        write(&files[0], 9, false).await;
        let mut found = Vec::new();
        for round in 0..4 {
            let write = async |file: &File, byte| {
                write(file, byte, round % 2 == byte as usize % 2).await;
                Vec::new()
            };
            let all =
                [write(&files[0], 1).boxed_local(), write(&files[1], 2).boxed_local(), read(&files[2]).boxed_local()];
            found.extend(join_all(all).await);
            found.push(read(&files[2]).await);
        }
        found.iter().any(|bytes| bytes.windows(2).any(|two| two[0] != two[1]))
    })
}

#[test]
fn atomic_accesses_do_not_mix_over_servers() {
    let seeds = 0..6;
    assert!(seeds.clone().any(|seed| mixes(seed, false)), "others do mix");
    seeds.for_each(|seed| assert!(!mixes(seed, true), "seed {seed}"));
}

/// Begins a write, and drops it as soon as it has a lock.
async fn abandon(file: &File, other: &Client) {
    let long = Memory::from(vec![1; 8 << 20]);
    let mut dropped = Box::pin(file.write_at(0, &long));
    let begun = other.endpoint().now();
    while other.endpoint().now() < begun + Duration::from_micros(200) {
        assert!(dropped.as_mut().now_or_never().is_none(), "it has not ended");
        other.endpoint().sleep(Duration::from_micros(5)).await;
    }
}

/// Who is gone in the middle of an access delays others for some time. Who was given up is told.
#[test]
fn a_lock_of_who_is_gone_is_forgotten() {
    let setting = setting(7, ClusterOptions::with_iods(SERVERS));
    setting.world.block_on(async {
        let (_one, file) = opened(&setting, 1).await;
        let (other, second) = opened(&setting, 2).await;
        let (file, second) = (file.atomic(true), second.atomic(true));
        let now = || other.endpoint().now();
        // It has the lock, and has not ended.
        abandon(&file, &other).await;
        let begun = now();
        write(&second, 2, false).await;
        let took = now().since(begun);
        assert!((Duration::from_secs(9)..Duration::from_secs(11)).contains(&took), "{took:?}");
        assert_eq!(read(&second).await, vec![2; LEN]);
        // Disjoint bytes, and other handles, do not wait.
        abandon(&file, &other).await;
        let begun = now();
        second.write_at(16 << 20, Memory::from(vec![3; 100])).await.unwrap();
        second.atomic(false).write_at(0, Memory::from(vec![3; 100])).await.unwrap();
        assert!(now().since(begun) < Duration::from_secs(1));
        let patience = ClientOptions { timeout: Duration::from_secs(3), ..ClientOptions::new(4) };
        let third = setting.client_with(patience).await.open(&path("/f")).await.unwrap().atomic(true);
        let error = third.write_at(0, Memory::from(vec![4; 100])).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Timeout, "{error}");
    });
}

#[test]
fn what_clients_append_is_whole_and_in_order() {
    const ROUNDS: usize = 5;
    for seed in 0..3 {
        let setting = setting(seed, ClusterOptions::with_iods(SERVERS));
        setting.world.block_on(async {
            let clients = join_all((1..=3).map(|id| opened(&setting, id))).await;
            let append = async |(who, (_, file)): (usize, &(Client, File))| {
                let mut places = Vec::new();
                for round in 0..ROUNDS {
                    let record = Memory::from(vec![(who * ROUNDS + round) as u8; LEN / 3]);
                    places.push(file.append(&record).await.unwrap());
                }
                places
            };
            let places = join_all(clients.iter().enumerate().map(append)).await.concat();
            let whole = Memory::from(vec![0xee; 3 * ROUNDS * LEN / 3]);
            assert_eq!(clients[0].1.read_at(0, &whole).await.unwrap(), whole.len() as u64);
            let bytes = whole.to_vec();
            for (number, place) in places.iter().enumerate() {
                let record = &bytes[*place as usize..][..LEN / 3];
                assert!(record.iter().all(|byte| usize::from(*byte) == number), "seed {seed}, record {number}");
            }
            assert!(places.chunks(ROUNDS).all(|own| own.is_sorted()));
        });
    }
}
