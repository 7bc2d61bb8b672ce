//! Changes of the namespace whose answer does not tell the client whether they were made. The
//! client sends them again, and must get the answer of the one time that they were made.

use fs_client::{ClientOptions, CreateOptions, Draft, File, Publish};
use fs_proto::{RemoveKind, SetAttr};
use futures_util::future::{join_all, join3};

use super::truncate::{empty_cluster, options, path};
use super::*;

type FsClient = fs_client::Client;

/// The changes that a client can request.
const CHANGES: [&str; 10] =
    ["mkdir", "create", "draft", "setattr", "rename", "remove", "record", "publish", "abandon", "truncate"];

/// How many syncs are tried, one after the other: more than a change needs.
const SYNCS: u32 = 4;

/// Connects a client that waits for its servers as long as `pvfs` does.
async fn connect(world: &World, cluster: &SimCluster) -> FsClient {
    connect_with(world, cluster, ClientOptions::new(1)).await
}

async fn connect_with(world: &World, cluster: &SimCluster, options: ClientOptions) -> FsClient {
    let endpoint = world.node("client1").endpoint(Config::named("client")).unwrap();
    // The servers have to begin first.
    endpoint.sleep(Duration::from_secs(2)).await;
    FsClient::connect(endpoint, cluster.manager(), options).await.unwrap()
}

/// Makes a change. Its objects are there, and are not changed by any other one.
async fn make(what: &str, client: &FsClient, file: &File, draft: Draft) -> Result<(), fs_client::Error> {
    match what {
        "mkdir" => client.mkdir(&path("dir")).await.map(drop),
        "create" => client.create(&path("new"), CreateOptions::default()).await.map(drop),
        "draft" => client.draft(&path("other"), CreateOptions::default()).await.map(drop),
        "setattr" => client.setattr(&path("file"), SetAttr { mode: Some(0o600), ..SetAttr::default() }).await.map(drop),
        "rename" => client.rename(&path("file"), &path("moved")).await,
        "remove" => client.remove(&path("file"), RemoveKind::File).await,
        "record" => file.record_size(0).await,
        "publish" => draft.publish(Publish::default()).await,
        "abandon" => draft.abandon().await,
        _ => file.set_len(1000).await,
    }
}

/// Replays a bug: after a sync that failed, the manager told that it does not know what its disk
/// has, and stopped. The client took that for an answer, and sent the change to the next start
/// under a new number. If the disk had it, a `mkdir` was told *Exists*, and a `rename` *NotFound*.
#[test]
fn a_change_that_was_made_although_a_sync_failed_has_its_answer() {
    for what in CHANGES {
        let mut resent = 0;
        for nth in 1..=SYNCS {
            let (world, cluster) = empty_cluster(nth.into(), options(2));
            world.block_on(async {
                let client = connect(&world, &cluster).await;
                let file = client.create(&path("file"), CreateOptions::default()).await.unwrap();
                let draft = client.draft(&path("draft"), CreateOptions::default()).await.unwrap();
                client.endpoint().sleep(Duration::from_secs(2)).await;
                cluster.metadata().doubt_sync(nth);
                match make(what, &client, &file, draft).await {
                    // It is decided, and a server has not met the next start of the manager.
                    Err(error) if what == "truncate" && error.code() == ErrorCode::Unfinished => {}
                    result => assert!(result.is_ok(), "{what}, sync {nth}: {result:?}"),
                }
                cluster.metadata().doubt_sync(0);
                let nameless = client.statfs().await.unwrap().manager.nameless;
                let expected = match what {
                    "draft" => 2,
                    "publish" | "abandon" => 0,
                    _ => 1,
                };
                assert_eq!(nameless, expected, "{what}, sync {nth}");
                resent += client.stats().resent;
            });
        }
        assert!(resent > 0, "{what}: no sync failed");
    }
}

/// Replays a bug: the reply to a change was lost. When it came again, the manager was too busy to
/// look, and the client sent it once more under a new number.
#[test]
fn a_change_whose_manager_is_busy_when_it_comes_again_has_its_answer() {
    let mut options = ClusterOptions { commit_time: Duration::from_secs(4), ..options(2) };
    options.limits.requests = 16;
    let (world, cluster) = empty_cluster(1, options);
    let others: Vec<_> = (2..=5).map(|id| Client::new(&world.node(&format!("client{id}")), id)).collect();
    world.block_on(async {
        let client = connect(&world, &cluster).await;
        client.endpoint().sleep(Duration::from_secs(60)).await;
        let changed = async { client.mkdir(&path("dir")).await };
        let crowd = join_all(others.iter().map(async |other| {
            let manager = other.connect(&cluster.manager()).await;
            other.endpoint.sleep(Duration::from_secs(1)).await;
            let names = (0..4).map(|number| format!("{}-{number}", other.id));
            join_all(names.map(|name| other.manager(manager, mkdir(&name)))).await
        }));
        let cut = async {
            client.endpoint().sleep(Duration::from_secs(2)).await;
            world.cut(&world.node("client1"), &cluster.manager_node());
        };
        let (changed, crowd, ()) = join3(changed, crowd, cut).await;
        assert!(crowd.iter().flatten().any(|result| code(result.clone()) == Some(ErrorCode::Busy)), "{crowd:?}");
        assert!(changed.is_ok(), "{changed:?}");
        assert!(client.stats().resent > 1, "{:?}", client.stats());
    });
}

/// Replays a bug: a mount that waited for its manager longer than the time limit sent the change
/// again under a new number. So an `open` with `O_EXCL` was told *Exists* of the file that it had
/// made itself.
#[test]
fn a_change_whose_manager_was_killed_before_it_answered_is_made_once_by_a_hard_client() {
    for what in CHANGES {
        let options = ClusterOptions { commit_time: Duration::from_millis(400), ..options(2) };
        let (world, cluster) = empty_cluster(1, options);
        world.block_on(async {
            let timeout = Duration::from_secs(1);
            let options = ClientOptions { timeout, retry_for: timeout, hard: true, ..ClientOptions::new(1) };
            let client = connect_with(&world, &cluster, options).await;
            let file = client.create(&path("file"), CreateOptions::default()).await.unwrap();
            let draft = client.draft(&path("draft"), CreateOptions::default()).await.unwrap();
            client.endpoint().sleep(Duration::from_secs(60)).await;
            let (begun, manager) = (client.endpoint().now(), cluster.manager_node());
            let killed = async {
                client.endpoint().sleep(Duration::from_millis(100)).await;
                // The answer does not arrive, and the manager makes the change.
                world.partition(&world.node("client1"), &manager);
                client.endpoint().sleep(Duration::from_millis(900)).await;
                manager.kill();
                client.endpoint().sleep(3 * timeout).await;
                manager.restart();
                world.heal(&world.node("client1"), &manager);
            };
            let (result, ()) = futures_util::future::join(make(what, &client, &file, draft), killed).await;
            assert!(client.endpoint().now().since(begun) > 3 * timeout, "{what}");
            match result {
                // It is decided, and the servers have not met the next start of the manager.
                Err(error) if what == "truncate" && error.code() == ErrorCode::Unfinished => {}
                result => assert!(result.is_ok(), "{what}: {result:?}"),
            }
        });
    }
}
