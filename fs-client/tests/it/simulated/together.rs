//! Collective operations in the simulator.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bmi::group::{Group, GroupError, GroupOptions, Groups};
use bmi::{Config, Memory, Time};
use bmi_sim::Node;
use fs_client::{Client, ClientOptions, CollectiveError, CollectiveOptions, Datatype, Done, FileView, Way};
use fs_server::embedded::ClusterOptions;
use futures_util::future::{join, join_all};

use super::file_system::{Setting, setting};
use crate::support::bodies::{self, path, striped};
use crate::support::together;

/// The limit of an operation of the group.
const LIMIT: Duration = Duration::from_secs(5);

/// A member of a group, on a node of its own.
async fn member(setting_of: (&Node, bmi::Addr), place: bmi::Addr, (rank, size): (u32, u32)) -> (Client, Group) {
    let (node, manager) = setting_of;
    let endpoint = node.endpoint(Config::named("member")).unwrap();
    let groups = Groups::new(&endpoint);
    groups.listen(&node.addr(1)).unwrap();
    let options = ClientOptions { timeout: Duration::from_secs(3), ..ClientOptions::new(u128::from(rank) + 100) };
    let client = Client::connect(endpoint, manager, options).await.unwrap();
    let group = groups.meet(&place, rank, size, GroupOptions::default().limit(LIMIT)).await.unwrap();
    (client, group)
}

/// Runs a program at each of some members.
fn run<F: Future<Output = ()> + 'static>(
    setting: &Setting,
    size: u32,
    program: impl Fn(Client, Group) -> F + Clone + 'static,
) {
    let nodes: Vec<Node> = (0..size).map(|rank| setting.world.node(&format!("member{rank}"))).collect();
    let place = nodes[0].addr(1);
    let running = (0..size).zip(&nodes).map(|(rank, node)| {
        let (node, manager, place, program) = (node.clone(), setting.cluster.manager(), place.clone(), program.clone());
        let own = node.clone();
        node.spawn(async move {
            let (client, group) = member((&own, manager), place, (rank, size)).await;
            program(client, group).await;
        })
    });
    let running: Vec<_> = running.collect();
    setting.world.block_on(join_all(running)).into_iter().for_each(|ended| ended.expect("nobody was killed"));
}

#[test]
fn every_way_moves_the_same_bytes() {
    for (iods, strip, size) in [(1, 65536, 2), (3, 4096, 4), (4, 65536, 3), (2, 4096, 1)] {
        let setting = setting(40 + u64::from(size), ClusterOptions::with_iods(iods));
        run(&setting, size, move |client, group| async move {
            together::everything(&client, &group, striped(strip, iods as u32)).await;
            group.leave().await.unwrap();
        });
    }
}

/// All members write the same bytes of the file, while another client does so, too.
#[test]
fn an_atomic_operation_is_done_as_a_whole() {
    for way in [None, Some(Way::Extended), Some(Way::Independent)] {
        let setting = setting(51, ClusterOptions::with_iods(2));
        run(&setting, 3, move |client, group| async move {
            let file = together::open(&client, &group, "/whole", &striped(4096, 2)).await.atomic(true);
            let (view, rank) = (FileView::new(0, Datatype::BYTE, Datatype::BYTE).unwrap(), group.rank() as u8);
            let options = way.into_iter().fold(CollectiveOptions::default(), CollectiveOptions::way).buffer(1 << 16);
            for _ in 0..3 {
                let memory = Memory::from(vec![rank; 300_000]);
                let together = file.write_all(&group, &view, 0, (&memory).into(), options.clone());
                let alone = async {
                    if rank == 1 {
                        file.write_at(100_000, Memory::from(vec![9; 150_000])).await.unwrap();
                    }
                };
                let (together, ()) = join(together, alone).await;
                together.unwrap();
                group.barrier().await.unwrap();
                let found = Memory::from(vec![0; 300_000]);
                file.read_all(&group, &view, 0, (&found).into(), options.clone()).await.unwrap();
                let found = found.to_vec();
                let same = |bytes: &[u8]| bytes.windows(2).all(|two| two[0] == two[1]);
                assert!(same(&found[100_000..250_000]), "{way:?}");
                assert!(same(&[&found[..100_000], &found[250_000..]].concat()) && found[0] == 2, "{way:?}");
            }
            group.leave().await.unwrap();
        });
    }
}

#[test]
fn an_operation_that_is_dropped_is_told_to_all() {
    let setting = setting(50, ClusterOptions::with_iods(2));
    run(&setting, 3, |client, group| async move {
        together::dropped(&client, &group, striped(4096, 2)).await;
    });
}

/// Runs a write of all members and ends at the strike or with the work. Returns the setting, the
/// results of the members, and the number of events.
fn struck(way: Way, strike: Option<(u64, u32)>) -> (Setting, Vec<Option<Result<Done, CollectiveError>>>, u64) {
    let setting = setting(60, ClusterOptions::with_iods(2));
    let nodes: Vec<Node> = (0..SIZE).map(|rank| setting.world.node(&format!("member{rank}"))).collect();
    let (place, started) = (nodes[0].addr(1), Rc::new(Cell::new(0)));
    let running = (0..SIZE).zip(&nodes).map(|(rank, node)| {
        let (own, manager, place) = (node.clone(), setting.cluster.manager(), place.clone());
        let started = started.clone();
        node.spawn(async move {
            let (client, group) = member((&own, manager), place, (rank, SIZE)).await;
            let file = together::open(&client, &group, "/struck", &striped(4096, 2)).await;
            let piece = together::interleaved(rank.into(), SIZE.into());
            if rank == 0 {
                file.write_at(0, vec![OLD; WHOLE]).await.unwrap();
            }
            group.barrier().await.unwrap();
            started.set(started.get() + 1);
            let memory = piece.filled(rank.into());
            let options = CollectiveOptions::default().way(way).buffer(1 << 16);
            file.write_all(&group, &piece.view, 0, piece.typed(&memory), options).await
        })
    });
    let mut running: Vec<_> = running.collect();
    while started.get() < SIZE {
        assert!(setting.world.step(Time::ZERO + 4 * LIMIT));
    }
    let begun = setting.world.events();
    if let Some((events, victim)) = strike {
        while setting.world.events() - begun < events && setting.world.step(Time::ZERO + 4 * LIMIT) {}
        nodes[victim as usize].kill();
        drop(running.remove(victim as usize));
    }
    let struck = setting.world.now();
    let ended = setting.world.block_on(join_all(running));
    assert!(setting.world.now() < struck + 3 * LIMIT, "{way}, {strike:?}: it took too long");
    let events = setting.world.events() - begun;
    (setting, ended.into_iter().map(Result::ok).collect(), events)
}

const SIZE: u32 = 3;
/// Bytes of the file, and what they are before.
const WHOLE: usize = 4 * 9_000 * SIZE as usize;
const OLD: u8 = 0x99;

/// A member dies at any time. The others get an error that names it, or all was done before; and
/// each byte is the old one or the new one, for those that succeeded the new one.
#[test]
fn a_member_that_dies_is_named_and_leaves_old_and_new_bytes() {
    let strikes = 24;
    for way in Way::ALL {
        let (_, all, events) = struck(way, None);
        assert!(all.iter().all(|done| matches!(done, Some(Ok(_)))), "{way}: {all:?}");
        let mut failures = 0;
        for number in 0..strikes {
            let victim = number as u32 % SIZE;
            let at = events * number / strikes;
            let (setting, ended, _) = struck(way, Some((at, victim)));
            let survivors: Vec<u32> = (0..SIZE).filter(|rank| *rank != victim).collect();
            for (rank, ended) in survivors.iter().zip(&ended) {
                let named = match ended.as_ref().expect("it was not struck") {
                    Ok(_) => continue,
                    Err(CollectiveError::Group(GroupError::Member { rank, .. })) => *rank,
                    Err(other) => panic!("{way}, strike {at} of rank {victim}, rank {rank}: {other}"),
                };
                assert_eq!(named, victim, "{way}, strike {at}: rank {rank} names another: {ended:?}");
                failures += 1;
            }
            setting.world.block_on(async {
                let client = setting.client(7).await;
                let Ok(file) = client.open(&path("/struck")).await else { return };
                let bytes = bodies::read(&file, 0, WHOLE).await;
                for rank in 0..SIZE {
                    let piece = together::interleaved(rank.into(), SIZE.into());
                    let (source, (in_memory, in_file)) = (piece.filled(rank.into()).to_vec(), piece.places());
                    let succeeded =
                        survivors.iter().zip(&ended).any(|(of, ended)| *of == rank && matches!(ended, Some(Ok(_))));
                    for (from, to) in in_memory.iter().zip(&in_file).filter(|(_, to)| **to < bytes.len()) {
                        let is_new = bytes[*to] == source[*from];
                        assert!(
                            is_new || !succeeded && bytes[*to] == OLD,
                            "{way}, strike {at}: byte {to} of rank {rank}"
                        );
                    }
                }
            });
        }
        assert!(failures > strikes, "{way}: {failures} failures");
    }
}
