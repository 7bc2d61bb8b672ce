//! Collective operations over real transports, with a thread for each member.

use std::thread::{self, Builder};
use std::time::Duration;

use bmi::config::HandleConfig;
use bmi::group::{GroupOptions, Groups};
use bmi::threading::AnyThread;
use bmi::{Addr, Config, Handle, OpenOptions};
use fs_client::{Client, ClientOptions};
use fs_server::embedded::{ClusterOptions, EmbeddedCluster};

use crate::support::bodies::{self, striped};
use crate::support::together;

const SIZE: u32 = 3;

fn open(at: &Addr) -> (Handle, Groups<AnyThread>) {
    let config = Config::named("member");
    let handle = bmi::handle(at.scheme(), &OpenOptions::default(), config, 1, HandleConfig::default()).unwrap();
    let groups = Groups::of(&handle).unwrap();
    (handle, groups)
}

/// The members' client and group share an endpoint, or the group has a handle of its own.
fn works_at(at: &Addr, manager: &Addr) {
    let host = open(at);
    let at = &host.1.listen(at).unwrap();
    let member = |(handle, groups): (Handle, Groups<AnyThread>), rank: u32| {
        let files = if at.scheme() == manager.scheme() { None } else { Some(open(manager).0) };
        let own = async {
            let endpoint = files.as_ref().unwrap_or(&handle).endpoints().next().unwrap().clone();
            let options = ClientOptions { timeout: Duration::from_secs(20), ..bodies::options() };
            let client = Client::connect(endpoint, manager.clone(), options).await.unwrap();
            let group = groups.meet(at, rank, SIZE, GroupOptions::default()).await.unwrap();
            together::everything(&client, &group, striped(65536, 2)).await;
            group.leave().await.unwrap();
        };
        handle.block_on(own);
    };
    let mut host = Some(host);
    thread::scope(|scope| {
        for rank in 0..SIZE {
            let this = host.take();
            let own = move || member(this.unwrap_or_else(|| open(at)), rank);
            Builder::new().name(format!("member-{rank}")).spawn_scoped(scope, own).unwrap();
        }
    });
}

#[test]
fn members_write_and_read_together() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = EmbeddedCluster::start(dir.path().join("data"), ClusterOptions::with_iods(2)).unwrap();
    works_at(&Addr::tcp("127.0.0.1", 0), cluster.manager());
    works_at(&Addr::shm(dir.path().join("group/place").to_str().unwrap()), cluster.manager());
    cluster.stop().unwrap();
}
