//! Collective operations in the simulator.

use std::time::Duration;

use bmi::Config;
use bmi::group::{Group, GroupOptions, Groups};
use bmi_sim::Node;
use fs_client::{Client, ClientOptions};
use fs_server::embedded::ClusterOptions;
use futures_util::future::join_all;

use super::file_system::{Setting, setting};
use crate::support::bodies::striped;
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

#[test]
fn an_operation_that_is_dropped_is_told_to_all() {
    let setting = setting(50, ClusterOptions::with_iods(2));
    run(&setting, 3, |client, group| async move {
        together::dropped(&client, &group, striped(4096, 2)).await;
    });
}
