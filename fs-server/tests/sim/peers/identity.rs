//! Connections to the wrong server, stores that are not the ones that their servers had, and what
//! must not be served then.

use fs_proto::{ClusterId, Identity, StoreId};
use fs_server::embedded::SIM_CLUSTER;
use fs_server::store::Contents;

use super::*;

/// Sends a Hello and returns the answer.
async fn greet(client: &Client, peer: PeerId, hello: Hello) -> Result<Identity, FsError> {
    match client.ask(peer, RequestBody::Hello(hello)).await? {
        ReplyBody::Identity(identity) => Ok(identity),
        other => panic!("{other:?} for a Hello"),
    }
}

/// Creates a file, and returns its datafiles.
async fn file(client: &Client, cluster: &SimCluster, name: &str) -> Vec<(u32, DatafileHandle)> {
    let manager = client.connect(&cluster.manager()).await;
    client.entry(manager, create(name)).await.unwrap().layout.unwrap().datafiles().to_vec()
}

/// Returns true if a server refuses to serve for as long as this takes, and would have begun long
/// before.
async fn never_serves(client: &Client, addr: &Addr, role: Role) -> bool {
    for _ in 0..50 {
        if let Ok(peer) = client.endpoint.connect(addr, client.endpoint.within(PATIENCE)).await
            && greet(client, peer.id(), Hello::to(role)).await.is_ok()
        {
            return false;
        }
        client.endpoint.sleep(Duration::from_millis(100)).await;
    }
    true
}

#[test]
fn nothing_is_served_before_a_hello_that_fits() {
    with_client(1, ClusterOptions::with_iods(2), async |_, cluster, client| {
        for (addr, role) in [(cluster.manager(), Role::Manager), (cluster.iods()[1].clone(), Role::Iod(1))] {
            client.connect(&addr).await;
            let ping = || match role {
                Role::Manager => RequestBody::Manager(ManagerRequest::Ping),
                Role::Iod(_) => RequestBody::Iod(IodRequest::Ping),
            };
            let silent = client.connect_silently(&addr).await;
            assert_eq!(code(client.ask(silent, ping()).await), Some(ErrorCode::Protocol));
            let right = Hello { cluster: Some(SIM_CLUSTER), ..Hello::to(role) };
            let wrong = [
                Hello { cluster: Some(ClusterId(9)), ..right.clone() },
                Hello { role: Role::Iod(0), ..right.clone() },
                Hello { store: Some(StoreId(9)), ..right.clone() },
            ];
            for hello in wrong {
                let peer = client.connect_silently(&addr).await;
                let error = greet(client, peer, hello).await.unwrap_err();
                assert_eq!(error.code, ErrorCode::WrongServer, "{error}");
                assert_eq!(code(client.ask(peer, ping()).await), Some(ErrorCode::Protocol), "after {error}");
            }
            let identity = greet(client, silent, right.clone()).await.unwrap();
            client.ask(silent, ping()).await.unwrap();
            let newer = fs_proto::Start { epoch: identity.start.epoch + 1, instance: 1 };
            let peer = client.connect_silently(&addr).await;
            let error = greet(client, peer, Hello { seen: Some(newer), ..right }).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::OutOfDate, "a client does not stop the server: {error}");
        }
    });
}

/// Replays a bug: an I/O server whose disk was not mounted served zeros until the manager, which
/// was down, refused it.
#[test]
fn an_empty_directory_serves_nothing_while_the_manager_is_down() {
    with_client(2, ClusterOptions::with_iods(2), async |_, cluster, client| {
        for (iod, datafile) in file(client, cluster, "f").await {
            let peer = client.connect(&cluster.iods()[iod as usize]).await;
            client.write(peer, datafile, &regions(&[(0, 10)]), &vec![7; 10].into()).await.unwrap();
        }
        cluster.manager_node().kill();
        cluster.iod_node(1).kill();
        let disk = cluster.disk(1).exchange(Contents::default());
        cluster.iod_node(1).restart();
        assert!(never_serves(client, &cluster.iods()[1], Role::Iod(1)).await, "nobody has confirmed it");
        // Nor when the manager is back, which knows the store.
        cluster.manager_node().restart();
        assert!(never_serves(client, &cluster.iods()[1], Role::Iod(1)).await);
        assert_eq!(cluster.label(1), None, "an empty directory stays as it is");
        // The disk is mounted.
        cluster.iod_node(1).kill();
        cluster.disk(1).exchange(disk);
        cluster.iod_node(1).restart();
        client.connect(&cluster.iods()[1]).await;
    });
}

/// A server with its own label serves those who expect it, also while the manager is down.
#[test]
fn a_label_is_enough_while_the_manager_is_down() {
    with_client(3, ClusterOptions::with_iods(1), async |_, cluster, client| {
        let peer = client.connect(&cluster.iods()[0]).await;
        let before = greet(client, peer, Hello::to(Role::Iod(0))).await.unwrap();
        cluster.manager_node().kill();
        cluster.restart_iod(0);
        let peer = client.connect(&cluster.iods()[0]).await;
        let after = greet(client, peer, Hello { seen: Some(before.start), ..Hello::to(Role::Iod(0)) }).await.unwrap();
        assert_eq!((after.store, after.start.epoch), (before.store, before.start.epoch + 1));
    });
}

/// Replays a bug: a manager that was restored from an older copy assigned handles again that live
/// datafiles had.
#[test]
fn a_manager_that_has_gone_back_in_time_stops() {
    with_client(5, ClusterOptions::with_iods(1), async |_, cluster, client| {
        file(client, cluster, "before").await;
        // As old as an earlier start.
        let copy = cluster.metadata().copy();
        cluster.restart_manager();
        let datafiles = file(client, cluster, "after").await;
        let iod = client.connect(&cluster.iods()[0]).await;
        client.write(iod, datafiles[0].1, &regions(&[(0, 10)]), &vec![7; 10].into()).await.unwrap();
        cluster.manager_node().kill();
        let newest = cluster.metadata().exchange(copy);
        cluster.manager_node().restart();
        client.endpoint.sleep(Duration::from_secs(5)).await;
        assert!(never_serves(client, &cluster.manager(), Role::Manager).await);
        // As old as the current start, but more handles have been assigned since.
        cluster.manager_node().kill();
        cluster.metadata().exchange(newest);
        cluster.manager_node().restart();
        client.connect(&cluster.manager()).await;
        let copy = cluster.metadata().copy();
        for name in 0..300 {
            file(client, cluster, &format!("later{name}")).await;
        }
        cluster.manager_node().kill();
        cluster.metadata().exchange(copy);
        cluster.manager_node().restart();
        client.endpoint.sleep(Duration::from_secs(5)).await;
        assert!(never_serves(client, &cluster.manager(), Role::Manager).await);
        assert_eq!(client.read(iod, datafiles[0].1, &regions(&[(0, 10)])).await, Ok(vec![7; 10]));
    });
}

/// A copy that is as old as the last pool cannot be told apart. It must not reuse a handle.
#[test]
fn a_manager_that_was_restored_unnoticed_reuses_no_datafile() {
    with_client(6, ClusterOptions::with_iods(1), async |_, cluster, client| {
        file(client, cluster, "first").await;
        let copy = cluster.metadata().copy();
        let lost = file(client, cluster, "lost").await[0].1;
        let iod = client.connect(&cluster.iods()[0]).await;
        client.write(iod, lost, &regions(&[(0, 10)]), &vec![7; 10].into()).await.unwrap();
        cluster.manager_node().kill();
        cluster.metadata().exchange(copy);
        cluster.manager_node().restart();
        for name in 0..300 {
            let new = file(client, cluster, &format!("new{name}")).await[0].1;
            assert_ne!(new, lost);
        }
        client.endpoint.sleep(Duration::from_secs(60)).await;
        let iod = client.connect(&cluster.iods()[0]).await;
        assert_eq!(client.read(iod, lost, &regions(&[(0, 10)])).await, Ok(vec![7; 10]), "nor discard it");
    });
}

/// Replays a bug: the removal of orphans asked nobody for whom it removed.
#[test]
fn only_the_confirmed_manager_creates_and_removes() {
    with_client(7, ClusterOptions::with_iods(1), async |_, cluster, client| {
        let datafile = file(client, cluster, "f").await[0].1;
        let remove = || IodRequest::Remove { datafiles: vec![datafile] };
        let old = client.connect_as_manager(cluster, 0).await;
        cluster.restart_manager();
        file(client, cluster, "g").await;
        assert_eq!(code(client.iod(old, remove()).await), Some(ErrorCode::Permission), "an earlier start");
        let peer = client.connect(&cluster.iods()[0]).await;
        for request in [
            remove(),
            IodRequest::Create { first: DatafileHandle(u64::MAX - 9), count: 9 },
            IodRequest::Discard { first: datafile, count: 1 },
        ] {
            assert_eq!(code(client.iod(peer, request).await), Some(ErrorCode::Permission), "a client");
        }
        assert_eq!(client.read(peer, datafile, &regions(&[(0, 1)])).await, Ok(vec![0]));
    });
}

#[test]
fn a_create_may_come_again_and_an_old_handle_may_not() {
    with_client(8, ClusterOptions::with_iods(1), async |_, cluster, client| {
        file(client, cluster, "f").await;
        let highest = || cluster.label(0).unwrap().highest;
        let manager = client.connect_as_manager(cluster, 0).await;
        let make = |first: u64, count| client.iod(manager, IodRequest::Create { first: DatafileHandle(first), count });
        let first = highest().0 + 10;
        make(first, 5).await.unwrap();
        client.write(manager, DatafileHandle(first), &regions(&[(0, 1)]), &vec![7].into()).await.unwrap();
        make(first, 5).await.unwrap();
        assert_eq!(highest(), DatafileHandle(first + 4));
        assert_eq!(
            client.read(manager, DatafileHandle(first), &regions(&[(0, 1)])).await,
            Ok(vec![7]),
            "left as it is"
        );
        for (first, count) in
            [(first - 5, 5), (first, 4), (first + 1, 3), (first + 5, 0), (u64::MAX, 2), (first + 5, 2000)]
        {
            assert_eq!(code(make(first, count).await), Some(ErrorCode::Invalid), "{count} from {first} on");
        }
        assert_eq!(
            code(client.iod(manager, IodRequest::Getsize { datafile: DatafileHandle(first - 1) }).await),
            Some(ErrorCode::Lost)
        );
    });
}

#[test]
fn new_files_avoid_servers_that_are_down() {
    let (world, cluster) = cluster(9, ClusterOptions::with_iods(3));
    let client = Client::new(&world.node("client"), 1);
    let iods = |layout: Vec<(u32, DatafileHandle)>| {
        let mut iods: Vec<u32> = layout.into_iter().map(|(iod, _)| iod).collect();
        iods.sort_unstable();
        iods
    };
    world.block_on(async {
        assert_eq!(iods(file(&client, &cluster, "all").await), [0, 1, 2], "they are waited for at the start");
        cluster.iod_node(1).kill();
        client.endpoint.sleep(Duration::from_millis(10)).await;
        assert_eq!(iods(file(&client, &cluster, "two").await), [0, 2]);
        let manager = client.connect(&cluster.manager()).await;
        let Some(layout) = client.entry(manager, create_over("three", 3, vec![])).await.unwrap().layout else {
            panic!()
        };
        assert_eq!(iods(layout.datafiles().to_vec()), [0, 1, 2], "the number was asked for");
        let Some(layout) = client.entry(manager, create_over("avoid", 0, vec![2])).await.unwrap().layout else {
            panic!()
        };
        assert_eq!(iods(layout.datafiles().to_vec()), [0], "the client cannot reach another one");
        cluster.iod_node(1).restart();
        client.connect(&cluster.iods()[1]).await;
        assert_eq!(iods(file(&client, &cluster, "again").await), [0, 1, 2]);
        // A server that hangs is down after three heartbeats.
        world.partition(&cluster.manager_node(), &cluster.iod_node(0));
        client.endpoint.sleep(Duration::from_secs(5)).await;
        assert_eq!(iods(file(&client, &cluster, "cut").await), [1, 2]);
    });
}

fn create_over(path: &str, servers: u32, avoid: Vec<u32>) -> ManagerRequest {
    let place = Place::root(path);
    ManagerRequest::Create {
        place,
        mode: 0o644,
        uid: 1,
        gid: 2,
        strip_size: 0,
        servers,
        avoid,
        existing: Existing::Refuse,
        hold: false,
        small: false,
    }
}
