//! Over TCP and shared memory, on tokio's default runtime.

use std::time::Duration;

use bmi_raft_example::Types;
use bmi_raft_example::store::{LogStore, StateMachine};
use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};

use super::*;

/// The time for what takes a second or two on an idle machine.
const LIMIT: Duration = Duration::from_secs(120);

fn on_tokio(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { bmi::timeout(LIMIT, test).await.expect("an end within two minutes") });
}

/// Returns free ports. Nothing else is likely to take them before a node does.
fn tcp(count: usize) -> Vec<String> {
    let listeners: Vec<_> =
        (0..count).map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    listeners.iter().map(|listener| format!("tcp://{}", listener.local_addr().expect("its port"))).collect()
}

fn shm(folder: &std::path::Path, count: usize) -> Vec<String> {
    (1..=count).map(|id| format!("shm://{}/n{id}/socket", folder.display())).collect()
}

async fn start(id: u64, members: &Members, disk: &Disk) -> Running {
    let running = Running::start(id, members, disk.clone(), None).await.expect("a node");
    let (server, node) = (running.server.clone(), running.node.clone());
    bmi::spawn(async move { network::serve(&server, node).await });
    running
}

/// Ends a node at once.
async fn kill(running: Running) {
    running.server.shutdown(Duration::ZERO).await;
    running.node.raft.shutdown().await.expect("it ends");
}

/// Makes stores for openraft's own tests of a store.
struct Empty;

impl StoreBuilder<Types, LogStore, StateMachine> for Empty {
    async fn build(&self) -> Result<((), LogStore, StateMachine), StorageError<u64>> {
        let disk = Disk::default();
        Ok(((), LogStore::open(disk.clone()), StateMachine::open(disk, None)?))
    }
}

#[test]
fn the_store_passes_the_tests_that_openraft_has_for_stores() {
    Suite::test_all(Empty).expect("a store as openraft wants it");
}

#[test]
fn one_node_elects_itself_and_takes_a_write() {
    on_tokio(async {
        let members = members(tcp(1));
        let running = start(1, &members, &Disk::default()).await;
        let store = client(&members);
        store.put(1, value(1)).await.expect("a write");
        assert_eq!(store.get(1).await.expect("a read"), Some(value(1)));
        assert_eq!(store.get(2).await.expect("a read"), None);
        kill(running).await;
    });
}

/// Elects, writes, reads, loses the leader, goes on, and takes it back with a snapshot.
async fn life_of_a_cluster(members: Members) {
    let disks: BTreeMap<u64, Disk> = members.keys().map(|id| (*id, Disk::default())).collect();
    let mut nodes = BTreeMap::new();
    for id in members.keys() {
        nodes.insert(*id, start(*id, &members, &disks[id]).await);
    }
    let store = client(&members);
    for key in 0..10 {
        store.put(key, value(key)).await.expect("a write");
        assert_eq!(store.get(key).await.expect("a read"), Some(value(key)));
    }
    let leader = loop {
        // There is none between two, if this machine is busy.
        match nodes[&1].node.raft.current_leader().await {
            Some(leader) => break leader,
            None => bmi::sleep(Duration::from_millis(10)).await,
        }
    };
    kill(nodes.remove(&leader).expect("it runs")).await;
    let most = 10 + 3 * SNAPSHOT_EVERY;
    for key in 10..most {
        store.put(key, value(key)).await.expect("a write without the first leader");
    }
    let back = start(leader, &members, &disks[&leader]).await;
    while (0..most).any(|key| back.node.state.value(key) != Some(value(key))) {
        bmi::sleep(Duration::from_millis(10)).await;
    }
    assert!(back.node.state.installed() > 0, "the others do not have the entries that it lacks");
    nodes.insert(leader, back);
    for key in 0..most {
        assert_eq!(store.get(key).await.expect("a read"), Some(value(key)));
    }
    for (_, running) in nodes {
        kill(running).await;
    }
}

#[test]
fn three_nodes_over_tcp_go_on_without_their_leader() {
    on_tokio(life_of_a_cluster(members(tcp(3))));
}

#[test]
fn three_nodes_over_shared_memory_go_on_without_their_leader() {
    let folder = tempfile::tempdir().expect("a folder");
    on_tokio(life_of_a_cluster(members(shm(folder.path(), 3))));
}
