//! Files that lose their last name while clients have them open.

use fs_client::{FsPath, Publish};
use fs_proto::RemoveKind;

use super::truncate::{LONG, connect, contents, empty_cluster, left, long_file, options, path};
use super::*;

type FsClient = fs_client::Client;

const GRACE: Duration = Duration::from_secs(100);
/// Longer than a client has to say again what it holds.
const AGAIN: Duration = Duration::from_secs(70);

fn run(test: impl AsyncFnOnce(&World, &SimCluster, &[FsClient; 3])) {
    let (world, cluster) = empty_cluster(1, ClusterOptions { nameless_grace: GRACE, ..options(2) });
    world.block_on(async {
        let [one, two, three] = [1, 2, 3].map(|id| connect(&world, &cluster, id));
        let clients = [one.await, two.await, three.await];
        let keep = futures_util::future::join_all(clients.iter().map(FsClient::keep_held));
        let test = test(&world, &cluster, &clients);
        futures_util::future::select(std::pin::pin!(test), std::pin::pin!(keep)).await;
    });
}

/// Returns how many files have no name.
async fn nameless(client: &FsClient) -> u64 {
    client.statfs().await.unwrap().manager.nameless
}

async fn until_nothing_is_left(client: &FsClient) {
    for _ in 0..100 {
        let manager = client.statfs().await.unwrap().manager;
        if (manager.nameless, manager.orphans) == (0, 0) {
            break;
        }
        client.endpoint().sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(left(client).await, 0);
}

#[test]
fn an_open_file_outlives_its_name() {
    run(async |_, _, [one, two, three]| {
        let file = long_file(one, "file", 1).await;
        let of = FsPath::of(file.handle());
        let (first, second) = (one.hold(&path("file")).await.unwrap(), one.hold(&of).await.unwrap());
        let others = two.hold(&path("file")).await.unwrap();
        three.remove(&path("file"), RemoveKind::File).await.unwrap();
        assert_eq!(three.lookup(&path("file")).await.unwrap_err().code(), ErrorCode::NotFound);
        drop((first, others));
        one.endpoint().sleep(GRACE * 2).await;
        assert!(contents(one, &file).await == pattern(LONG, 1));
        let stat = one.stat(&of).await.unwrap();
        assert_eq!((stat.attr.nlink, stat.attr.size), (0, LONG as u64));
        drop(second);
        until_nothing_is_left(one).await;
        assert_eq!(one.stat(&of).await.unwrap_err().code(), ErrorCode::Stale);
    });
}

#[test]
fn a_file_is_held_again_while_it_is_released() {
    run(async |_, _, [one, two, _]| {
        let file = long_file(one, "file", 1).await;
        for _ in 0..100 {
            drop(one.hold(&path("file")).await.unwrap());
            // Most of the time that releases are gathered.
            one.endpoint().sleep(Duration::from_millis(97)).await;
        }
        let held = one.hold(&path("file")).await.unwrap();
        two.remove(&path("file"), RemoveKind::File).await.unwrap();
        one.endpoint().sleep(GRACE * 2).await;
        assert!(contents(one, &file).await == pattern(LONG, 1));
        drop(held);
        until_nothing_is_left(one).await;
    });
}

#[test]
fn an_open_file_outlives_what_replaces_it() {
    run(async |_, _, [one, two, _]| {
        let files = [long_file(one, "a", 1).await, long_file(one, "b", 2).await];
        let held = [one.hold(&path("a")).await.unwrap(), one.hold(&path("b")).await.unwrap()];
        two.rename(&path("b"), &path("a")).await.unwrap();
        two.draft(&path("a"), Default::default()).await.unwrap().publish(Publish::default()).await.unwrap();
        one.endpoint().sleep(GRACE * 2).await;
        for (file, salt) in files.iter().zip(1..) {
            assert!(contents(one, file).await == pattern(LONG, salt));
        }
        drop(held);
        two.remove(&path("a"), RemoveKind::File).await.unwrap();
        until_nothing_is_left(two).await;
    });
}

/// A regression test. The end of a hold removed a draft that its own client still wrote.
#[test]
fn a_draft_that_was_held_stays() {
    run(async |_, _, [one, two, _]| {
        let draft = one.draft(&path("file"), Default::default()).await.unwrap();
        drop(one.hold(&FsPath::of(draft.file().handle())).await.unwrap());
        one.endpoint().sleep(GRACE / 2).await;
        draft.publish(Publish::default()).await.unwrap();
        two.remove(&path("file"), RemoveKind::File).await.unwrap();
        until_nothing_is_left(two).await;
    });
}

#[test]
fn a_client_that_is_gone_holds_nothing() {
    run(async |world, cluster, [_, two, _]| {
        let gone = connect(world, cluster, 9).await;
        long_file(&gone, "file", 1).await;
        let held = gone.hold(&path("file")).await.unwrap();
        two.remove(&path("file"), RemoveKind::File).await.unwrap();
        world.cut(&world.node("client9"), &cluster.manager_node());
        two.endpoint().sleep(GRACE / 2).await;
        assert_eq!(nameless(two).await, 1);
        two.endpoint().sleep(GRACE).await;
        until_nothing_is_left(two).await;
        assert_eq!(gone.hold(&FsPath::of(held.1.handle)).await.err().unwrap().code(), ErrorCode::Stale);
    });
}

#[test]
fn holds_are_said_again_after_a_restart_of_the_manager() {
    run(async |_, cluster, [one, two, three]| {
        let files = [long_file(one, "a", 1).await, long_file(one, "b", 2).await, long_file(one, "c", 3).await];
        let held = [one.hold(&path("a")).await.unwrap(), one.hold(&path("b")).await.unwrap()];
        drop(three.hold(&path("c")).await.unwrap());
        one.endpoint().sleep(Duration::from_secs(15)).await;
        cluster.restart_manager();
        // One goes before its holder has said it again, one after that, and one was not held.
        remove(two, "a").await;
        remove(two, "c").await;
        two.endpoint().sleep(Duration::from_secs(30)).await;
        remove(two, "b").await;
        two.endpoint().sleep(AGAIN).await;
        assert_eq!(nameless(two).await, 2);
        for (file, salt) in files[..2].iter().zip(1..) {
            assert!(contents(one, file).await == pattern(LONG, salt), "file {salt}");
        }
        drop(held);
        until_nothing_is_left(two).await;
    });
}

async fn remove(client: &FsClient, name: &str) {
    while let Err(error) = client.remove(&path(name), RemoveKind::File).await {
        assert!(error.is_retryable(), "{error}");
    }
}
