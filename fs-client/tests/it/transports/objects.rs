//! The cluster as a store of the crate `object_store`: the tests that its stores share, and what is
//! promised beyond them.

use bmi::config::HandleConfig;
use bmi::{Addr, Config, Memory, OpenOptions, Scheme};
use fs_client::{ClientOptions, CreateOptions, FsPath, Publish, PvfsStore, SharedClient};
use fs_server::embedded::{ClusterOptions, EmbeddedCluster};
use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutPayload, integration};

/// Runs `body` with the manager of a new cluster.
async fn with_cluster<F: Future<Output = ()>>(over: Scheme, body: impl FnOnce(Addr) -> F) {
    let dir = tempfile::tempdir().unwrap();
    let options = ClusterOptions { over: vec![over], ..ClusterOptions::with_iods(3) };
    let cluster = EmbeddedCluster::start(dir.path().join("data"), options).unwrap();
    body(cluster.manager().clone()).await;
    tokio::task::block_in_place(|| cluster.stop()).unwrap();
}

async fn store(manager: &Addr, id: u128, root: &str) -> PvfsStore {
    let (options, settings) = (OpenOptions::default(), HandleConfig::default());
    let handle = bmi::handle(manager.scheme(), &options, Config::named("store"), 1, settings).unwrap();
    let client = SharedClient::connect_through(handle, manager.clone(), ClientOptions::new(id)).await.unwrap();
    PvfsStore::new(client, root.parse().unwrap())
}

/// Returns the number of files without a name.
async fn nameless(store: &PvfsStore) -> u64 {
    store.client().statfs().await.unwrap().manager.nameless
}

async fn text(store: &PvfsStore, path: &Path) -> String {
    String::from_utf8(store.get(path).await.unwrap().bytes().await.unwrap().to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tests_that_stores_share() {
    with_cluster(Scheme::Shm, async |manager| {
        let names = store(&manager, 1, "/names").await;
        integration::put_get_delete_list(&names).await;
        integration::list_with_offset_exclusivity(&names).await;
        integration::list_uses_directories_correctly(&names).await;
        integration::list_with_delimiter(&names).await;
        integration::get_opts(&names).await;
        integration::put_opts(&names, true).await;
        integration::put_get_attributes(&names).await;
        integration::rename_and_copy(&names).await;
        integration::copy_if_not_exists(&names).await;
        integration::copy_rename_nonexistent_object(&names).await;
        let error = integration::get_nonexistent_object(&names, None).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
        let data = PvfsStore::new(names.client().clone(), "/deep/data".parse().unwrap());
        integration::stream_get(&data).await;
        integration::multipart_out_of_order(&data).await;
        integration::multipart_race_condition(&data, true).await;
        assert_eq!(nameless(&names).await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_hold_against_other_clients() {
    with_cluster(Scheme::Tcp, async |manager| {
        let stores = join_all((1..=4).map(|id| store(&manager, id, "/"))).await;
        let path = Path::from("a/lock");
        let create = async |store: &PvfsStore| store.put_opts(&path, "mine".into(), PutMode::Create.into()).await;
        let created = join_all(stores.iter().map(create)).await;
        let mut won: Vec<_> = created.iter().flatten().collect();
        let tag = won.pop().unwrap().e_tag.clone().unwrap();
        assert!(won.is_empty(), "{created:?}");
        for lost in created.iter().filter_map(|created| created.as_ref().err()) {
            assert!(matches!(lost, Error::AlreadyExists { .. }), "{lost}");
        }
        assert_eq!(nameless(&stores[0]).await, 0);
        // It moves with a rename, which is refused over another object.
        let (one, two) = (Path::from("b/one"), Path::from("two"));
        stores[0].rename_if_not_exists(&path, &one).await.unwrap();
        assert_eq!(stores[1].head(&one).await.unwrap().e_tag.unwrap(), tag);
        let other = stores[1].put(&two, "other".into()).await.unwrap();
        let refused = stores[2].rename_if_not_exists(&one, &two).await.unwrap_err();
        assert!(matches!(refused, Error::AlreadyExists { path, .. } if path == "two"));
        assert_eq!((text(&stores[3], &one).await, text(&stores[3], &two).await), ("mine".into(), "other".into()));
        // A client that writes in place takes the ETag away.
        let client = stores[3].client();
        let file = client.open(&"/two".parse().unwrap()).await.unwrap();
        file.write_at(0, Memory::from(b"OTHER".to_vec())).await.unwrap();
        assert_eq!(stores[0].head(&two).await.unwrap().e_tag, None);
        let update = PutMode::Update(other.clone().into()).into();
        let refused = stores[0].put_opts(&two, "lost".into(), update).await.unwrap_err();
        assert!(matches!(refused, Error::Precondition { .. }), "{refused}");
        let matching = GetOptions::new().with_if_match(other.e_tag);
        let refused = stores[0].get_opts(&two, matching).await.unwrap_err();
        assert!(matches!(refused, Error::Precondition { .. }), "{refused}");
        assert_eq!(text(&stores[0], &two).await, "OTHER");
        assert_eq!(nameless(&stores[0]).await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_half_written_is_seen_or_left() {
    with_cluster(Scheme::Tcp, async |manager| {
        let store = store(&manager, 1, "/x").await;
        let path = Path::from("d/f");
        store.put(&path, "old".into()).await.unwrap();
        let mut upload = store.put_multipart(&path).await.unwrap();
        let (first, second) = (upload.put_part("ne".into()), upload.put_part("w".into()));
        second.await.unwrap();
        assert_eq!(text(&store, &path).await, "old");
        let incomplete = upload.complete().await.unwrap_err();
        assert!(incomplete.to_string().contains("a part was not written"), "{incomplete}");
        assert!(upload.put_part("late".into()).await.is_err() && upload.complete().await.is_err());
        assert_eq!((text(&store, &path).await, nameless(&store).await), ("old".into(), 1), "the first part has it");
        drop(first);
        // One that is dropped goes with the next put.
        drop(store.put_multipart(&path).await.unwrap());
        assert!(store.put(&Path::from("d"), "a directory".into()).await.is_err());
        assert_eq!(nameless(&store).await, 0);
        // The directory is removed under an upload.
        let mut upload = store.put_multipart(&Path::from("gone/f")).await.unwrap();
        upload.put_part("kept".into()).await.unwrap();
        store.client().remove(&"/x/gone".parse().unwrap(), fs_client::RemoveKind::Dir).await.unwrap();
        upload.complete().await.unwrap();
        assert_eq!(text(&store, &Path::from("gone/f")).await, "kept");
        let found: Vec<_> = store.list(None).map_ok(|meta| meta.location.to_string()).try_collect().await.unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            matches!(store.delete(&Path::from("d")).await, Err(Error::NotFound { .. })),
            "a directory is no object"
        );
        assert!(matches!(store.rename(&Path::from("d"), &path).await, Err(Error::NotFound { .. })));
        assert!(store.get_opts(&path, GetOptions::new().with_version(Some("1"))).await.is_err());
        assert!(store.head(&Path::from("n".repeat(256))).await.is_err());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_get_is_of_one_publication() {
    with_cluster(Scheme::Shm, async |manager| {
        let store = store(&manager, 1, "/").await;
        let path = Path::from("long");
        let put = async |byte: u8| store.put(&path, PutPayload::from(vec![byte; 20 << 20])).await.unwrap();
        put(1).await;
        let whole = store.get(&path).await.unwrap().bytes().await.unwrap();
        assert!(whole.len() == 20 << 20 && whole.iter().all(|byte| *byte == 1));
        let mut parts = store.get(&path).await.unwrap().into_stream();
        put(2).await;
        // The first part was read at once. How many follow depends on when servers remove files.
        let (mut seen, mut failed) = (0, false);
        while let Some(part) = parts.next().await {
            match part {
                Ok(part) => {
                    assert!(part.iter().all(|byte| *byte == 1));
                    seen += part.len();
                }
                Err(_) => {
                    failed = true;
                    break;
                }
            }
        }
        assert!(seen >= 8 << 20 && (failed || seen == 20 << 20), "{seen}");
        let bytes = store.get_ranges(&path, &[5..7, (20 << 20) - 1..30 << 20, 6..8]).await.unwrap();
        assert_eq!(bytes.iter().map(|bytes| bytes.to_vec()).collect::<Vec<_>>(), [vec![2; 2], vec![2], vec![2; 2]]);
        assert!(store.get_ranges(&path, &[5..7, 20 << 20..21 << 20]).await.is_err(), "behind the end");
        store.copy(&path, &Path::from("copy")).await.unwrap();
        let copy = store.get(&Path::from("copy")).await.unwrap().bytes().await.unwrap();
        assert!(copy.len() == 20 << 20 && copy.iter().all(|byte| *byte == 2));
        // What `pvfs put` and others publish has an ETag; what is created in place has none.
        let options = CreateOptions::default();
        let draft = store.client().draft(&"/d".parse::<FsPath>().unwrap(), options).await.unwrap();
        draft.publish(Publish { size: Some(0), ..Publish::default() }).await.unwrap();
        store.client().create(&"/c".parse::<FsPath>().unwrap(), options).await.unwrap();
        let tag = async |name: &str| store.head(&Path::from(name)).await.unwrap().e_tag.is_some();
        assert!(tag("d").await && !tag("c").await);
    })
    .await;
}
