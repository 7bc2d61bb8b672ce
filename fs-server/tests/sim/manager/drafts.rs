//! Files without a name: whose they are, and how long they are kept.

use fs_client::{CreateOptions, Draft, Publish};

use super::truncate::{connect, contents, empty_cluster, left, long_file, options, path, with_fs};
use super::*;

type FsClient = fs_client::Client;

const GRACE: Duration = Duration::from_secs(2);
/// Most of the grace.
const MOST: Duration = Duration::from_millis(1500);
const LEN: usize = 30_000;

fn graced() -> ClusterOptions {
    ClusterOptions { nameless_grace: GRACE, ..options(2) }
}

/// Creates and writes a draft.
async fn draft(client: &FsClient, name: &str, salt: u64) -> Draft {
    let draft = client.draft(&path(name), CreateOptions::default()).await.unwrap();
    draft.file().write_at(0, &Memory::from(pattern(LEN, salt))).await.unwrap();
    draft.file().sync().await.unwrap();
    draft
}

async fn nameless(client: &FsClient) -> u64 {
    client.statfs().await.unwrap().manager.nameless
}

async fn published(client: &FsClient, draft: &Draft, salt: u64) {
    draft.publish(Publish { size: Some(LEN as u64), ..Publish::default() }).await.unwrap();
    let file = client.open(draft.file().path()).await.unwrap();
    assert!(contents(client, &file).await == pattern(LEN, salt));
}

#[test]
fn a_client_that_comes_back_in_time_keeps_its_draft() {
    with_fs(1, graced(), async |world, cluster, client| {
        let kept = draft(client, "file", 1).await;
        for _ in 0..3 {
            world.cut(&world.node("client1"), &cluster.manager_node());
            client.endpoint().sleep(MOST).await;
            assert_eq!(nameless(client).await, 1, "this connects again");
            client.endpoint().sleep(MOST).await;
        }
        published(client, &kept, 1).await;
        assert_eq!(nameless(client).await, 0);
    });
}

#[test]
fn a_client_that_does_not_come_back_in_time_loses_its_draft() {
    let (world, cluster) = empty_cluster(1, graced());
    world.block_on(async {
        let (client, other) = (connect(&world, &cluster, 1).await, connect(&world, &cluster, 2).await);
        let lost = draft(&client, "file", 1).await;
        world.cut(&world.node("client1"), &cluster.manager_node());
        other.endpoint().sleep(MOST).await;
        assert_eq!(nameless(&other).await, 1);
        other.endpoint().sleep(MOST).await;
        assert_eq!(nameless(&other).await, 0);
        let refused = lost.publish(Publish::default()).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::Stale);
        assert_eq!(left(&other).await, 0);
    });
}

#[test]
fn a_manager_that_was_restarted_keeps_drafts_for_the_whole_grace() {
    let (world, cluster) = empty_cluster(1, graced());
    world.block_on(async {
        let (client, other) = (connect(&world, &cluster, 1).await, connect(&world, &cluster, 2).await);
        let (kept, _lost) = (draft(&client, "file", 1).await, draft(&client, "other", 2).await);
        world.cut(&world.node("client1"), &cluster.manager_node());
        for _ in 0..3 {
            other.endpoint().sleep(MOST).await;
            cluster.restart_manager();
        }
        other.endpoint().sleep(MOST).await;
        published(&client, &kept, 1).await;
        assert_eq!(nameless(&other).await, 1);
        world.node("client1").kill();
        other.endpoint().sleep(GRACE * 2).await;
        assert_eq!(nameless(&other).await, 0, "the dead one's is removed after a restart too");
    });
}

#[test]
fn a_reader_of_a_replaced_file_gets_its_bytes_or_is_told() {
    let (world, cluster) = empty_cluster(1, graced());
    world.block_on(async {
        let (client, reader) = (connect(&world, &cluster, 1).await, connect(&world, &cluster, 2).await);
        long_file(&client, "file", 1).await;
        let old = reader.open(&path("file")).await.unwrap();
        let new = draft(&client, "file", 2).await;
        assert!(contents(&reader, &old).await == contents(&reader, &reader.open(&path("file")).await.unwrap()).await);
        published(&client, &new, 2).await;
        let (mut told, expected) = (0, pattern(LEN, 1));
        for _ in 0..100 {
            let memory = Memory::from(vec![0xee; LEN]);
            match old.read_at(0, &memory).await {
                Ok(_) => assert!(memory.to_vec() == expected),
                Err(error) => {
                    assert_eq!(error.code(), ErrorCode::Stale, "{error}");
                    told += 1;
                }
            }
        }
        assert!(told > 50, "{told}");
    });
}

/// With such a size, a datafile would seem to be cut off.
#[test]
fn a_draft_with_a_hole_at_its_end_is_not_published_with_its_size() {
    with_fs(1, graced(), async |_, _, client| {
        let draft = draft(client, "file", 1).await;
        let size = Some(2 * LEN as u64);
        let refused = draft.publish(Publish { size, ..Publish::default() }).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::Invalid, "{refused}");
        draft.file().set_len(2 * LEN as u64).await.unwrap();
        draft.publish(Publish { size, ..Publish::default() }).await.unwrap();
        let file = client.open(&path("file")).await.unwrap();
        let found = contents(client, &file).await;
        assert!(found[..LEN] == pattern(LEN, 1) && found[LEN..].iter().all(|byte| *byte == 0));
        assert_eq!(file.size().await.unwrap(), 2 * LEN as u64);
    });
}
