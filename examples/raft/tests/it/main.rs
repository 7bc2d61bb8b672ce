//! A cluster over TCP, over shared memory, and in simulated worlds.

mod outside;
mod world;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bmi::{Error, Server};
use bmi_raft_example::network::{self, Network};
use bmi_raft_example::node::Node;
use bmi_raft_example::store::{Disk, Observer};
use bmi_raft_example::{Members, client};
use bytes::Bytes;
use openraft::{BasicNode, Config, SnapshotPolicy};

/// Entries of the log between two snapshots.
const SNAPSHOT_EVERY: u64 = 20;

/// Returns settings with which a node that was away needs a snapshot.
fn config() -> Config {
    Config {
        heartbeat_interval: 50,
        election_timeout_min: 200,
        election_timeout_max: 400,
        install_snapshot_timeout: 5000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(SNAPSHOT_EVERY),
        max_in_snapshot_log_to_keep: 0,
        replication_lag_threshold: SNAPSHOT_EVERY,
        ..Config::default()
    }
}

/// A member that runs, and its server.
struct Running {
    node: Node,
    server: Server,
}

impl Running {
    async fn start(id: u64, members: &Members, disk: Disk, observer: Option<Observer>) -> Result<Running, Error> {
        let server = network::bind(&members[&id].addr).await?;
        let node = Node::start(id, members.clone(), config(), Network::default(), disk, observer).await?;
        Ok(Running { node, server })
    }
}

fn members(addrs: impl IntoIterator<Item = String>) -> Members {
    (1..).zip(addrs.into_iter().map(BasicNode::new)).collect()
}

fn client(members: &Members) -> client::KeyValue {
    client::KeyValue::new(members.values().map(|node| node.addr.clone()))
}

fn value(key: u64) -> Bytes {
    format!("value of {key}").into()
}
