//! What servers log of clients that do nothing wrong.

use std::time::Duration;

use bmi_conformance::log::capture;
use bmi_core::Config;
use bmi_sim::World;
use fs_client::{Client, ClientOptions};
use fs_server::embedded::{ClusterOptions, SimCluster};
use tracing::Level;

use crate::bodies::path;

const SECOND: Duration = Duration::from_secs(1);

/// Each command connects to all servers, and leaves them. That is no news for an operator.
#[test]
fn a_client_that_does_nothing_wrong_causes_no_log_lines() {
    let world = World::new(1);
    let cluster = SimCluster::start(&world.sim(), ClusterOptions::with_iods(4)).unwrap();
    let node = world.node("client");
    world.block_on(async { node.sleep(5 * SECOND).await }); // the servers come up
    let ((), lines) = capture(|| {
        world.block_on(async {
            for id in 1..4 {
                let endpoint = node.endpoint(Config::named("client")).unwrap();
                let client =
                    Client::connect(endpoint.clone(), cluster.manager(), ClientOptions::new(id)).await.unwrap();
                if id == 1 {
                    crate::bodies::everything(&client, 4, 500).await;
                }
                client.lookup(&path("/")).await.unwrap();
                drop((client, endpoint));
                node.sleep(SECOND).await;
            }
        });
    });
    assert!(lines.iter().any(|line| line.text.starts_with("connected")), "lines of the servers are captured");
    let loud: Vec<_> = lines.iter().filter(|line| line.level <= Level::INFO).collect();
    assert!(loud.is_empty(), "{loud:?}");
}
