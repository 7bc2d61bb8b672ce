//! The namespace over messages, with each change executed once.

use bmi::Addr;
use fs_proto::{ClusterInfo, DirHandle, ErrorCode, IodInfo, ManagerReply, ManagerRequest, Place, RemoveKind, Replace};
use fs_server::embedded::ClusterOptions;

use super::*;

#[test]
fn files_are_made_found_moved_and_removed() {
    with_client(1, ClusterOptions::with_iods(3), async |_, cluster, client| {
        let manager = client.connect(&cluster.manager()).await;
        assert_eq!(client.manager(manager, ManagerRequest::Ping).await, Ok(ManagerReply::Done));
        client.entry(manager, mkdir("/a")).await.unwrap();
        let made = client.entry(manager, create("/a/file")).await.unwrap();
        let layout = made.layout.clone().unwrap();
        assert_eq!(layout.datafiles().len(), 3);
        assert_eq!(code(client.manager(manager, create("a//file")).await), Some(ErrorCode::Exists));
        let lookup = |path: &str| ManagerRequest::Lookup { place: Place::root(path), open: false };
        assert_eq!(client.entry(manager, lookup("a/file")).await.as_ref(), Ok(&made));
        let rename =
            ManagerRequest::Rename { from: Place::root("a/file"), to: Place::root("b"), replace: Replace::Anything };
        assert_eq!(client.manager(manager, rename).await, Ok(ManagerReply::Done));
        assert_eq!(code(client.manager(manager, lookup("a/file")).await), Some(ErrorCode::NotFound));
        assert_eq!(client.entry(manager, lookup("b")).await.unwrap().handle, made.handle);
        let remove = |path: &str| ManagerRequest::Remove { place: Place::root(path), kind: RemoveKind::Any };
        assert_eq!(client.manager(manager, remove("b")).await, Ok(ManagerReply::Done));
        assert_eq!(client.manager(manager, remove("a")).await, Ok(ManagerReply::Done));
        assert_eq!(code(client.manager(manager, remove("a")).await), Some(ErrorCode::NotFound));
    });
}

#[test]
fn a_directory_is_listed_page_by_page() {
    with_client(2, ClusterOptions::with_iods(1), async |_, cluster, client| {
        let manager = client.connect(&cluster.manager()).await;
        // The names are long, so that pages are limited by the message size and not by the count.
        let names: Vec<String> = (0..100).map(|index| format!("{index:04}{}", "x".repeat(200))).collect();
        for name in names.iter().rev() {
            client.manager(manager, create(name)).await.unwrap();
        }
        let (mut listed, mut after, mut pages) = (Vec::new(), fs_proto::BString::default(), 0);
        loop {
            let readdir =
                ManagerRequest::Readdir { dir: DirHandle::ROOT, after: after.clone(), max: 1000, attributes: false };
            let Ok(ManagerReply::Entries { entries, more }) = client.manager(manager, readdir).await else { panic!() };
            listed.extend(entries.into_iter().map(|entry| entry.name));
            pages += 1;
            if !more {
                break;
            }
            after = listed.last().unwrap().clone();
        }
        assert_eq!(listed, names);
        assert!((3..10).contains(&pages), "{pages} pages");
    });
}

#[test]
fn the_cluster_says_who_it_is() {
    with_client(3, ClusterOptions::with_iods(2), async |_, cluster, client| {
        let manager = client.connect(&cluster.manager()).await;
        for addr in cluster.iods() {
            client.connect(&addr).await;
        }
        let info = client.manager(manager, ManagerRequest::Cluster { first: 0 }).await;
        let info_of = |(addr, index): (Addr, usize)| {
            let store = cluster.label(index).map(|label| label.store);
            IodInfo { addr, store, up: true }
        };
        let iods: Vec<IodInfo> = cluster.iods().into_iter().zip(0..).map(info_of).collect();
        assert!(iods.iter().all(|iod| iod.store.is_some()));
        assert_eq!(info, Ok(ManagerReply::Cluster(ClusterInfo { iods, total: 2, strip_size: 65536 })));
        let rest = client.manager(manager, ManagerRequest::Cluster { first: 7 }).await;
        assert_eq!(rest, Ok(ManagerReply::Cluster(ClusterInfo { iods: vec![], total: 2, strip_size: 65536 })));
    });
}

#[test]
fn a_request_sent_again_is_answered_and_not_executed_again() {
    let (world, cluster) = cluster(5, ClusterOptions::with_iods(1));
    let node = world.node("client");
    let client = Client::new(&node, 1);
    let addr = cluster.manager();
    let (request, first) = world.block_on(async {
        let manager = client.connect(&addr).await;
        let request = client.request(create("once"));
        let first = client.send(manager, &request, Body::None).await.unwrap();
        assert_eq!(client.send(manager, &request, Body::None).await.unwrap(), first, "on the same connection");
        (request, first)
    });
    // The manager loses everything that it had not synced.
    cluster.restart_manager();
    let again = Client::new(&node, 1);
    let client = Client { seq: client.seq, ..again };
    world.block_on(async {
        let manager = client.connect(&addr).await;
        assert_eq!(client.send(manager, &request, Body::None).await.unwrap(), first, "after a crash");
        // Once the client has confirmed the reply, an old copy of the request that was delayed is
        // rejected.
        client.manager(manager, mkdir("later")).await.unwrap();
        let late = client.send(manager, &request, Body::None).await.unwrap();
        assert_eq!(code(late.result), Some(ErrorCode::Invalid));
    });
}
