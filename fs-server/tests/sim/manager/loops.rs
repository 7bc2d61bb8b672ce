//! A manager with several event loops: the first one makes all changes, the others answer what only
//! looks something up.

use bmi_sim::{Profile, SimConfig};
use fs_proto::{Handle, RemoveKind};
use futures_util::future::join_all;

use super::*;

const LOOPS: usize = 3;

fn start(options: ClusterOptions) -> (World, SimCluster) {
    let world = World::with(SimConfig::with_profile(Profile { cpu_cores: 4, ..Profile::default() }));
    let cluster = SimCluster::start(&world, ClusterOptions { threads: LOOPS, ..options }).unwrap();
    with_datafiles(&cluster);
    (world, cluster)
}

fn lookup(name: &str) -> ManagerRequest {
    ManagerRequest::Lookup { place: Place::root(name), open: false }
}

fn mkdir_and_lookups(name: &str) -> [ManagerRequest; 3] {
    let place = Place::root(name);
    let readdir = ManagerRequest::Readdir {
        dir: fs_proto::DirHandle::ROOT,
        after: fs_proto::BString::default(),
        max: 100,
        attributes: false,
    };
    [ManagerRequest::Mkdir { place, mode: 0o755, uid: 0, gid: 0 }, lookup(name), readdir]
}

/// Returns clients with connections to the manager. There are as many on each loop.
async fn clients(world: &World, cluster: &SimCluster) -> Vec<(Client, PeerId)> {
    let mut clients = Vec::new();
    for id in 0..2 * LOOPS as u128 {
        let client = Client::new(&world.node(&format!("client{id}")), id + 1);
        let manager = client.connect(&cluster.manager()).await;
        clients.push((client, manager));
    }
    clients
}

/// A change is visible over every loop when it was answered over one. Each loop has a core, and all
/// of them work. The run is the same each time.
#[test]
fn what_was_changed_over_one_loop_is_seen_over_all() {
    let run = || {
        let (world, cluster) = start(ClusterOptions::with_iods(2));
        let before = world.block_on(async {
            let clients = clients(&world, &cluster).await;
            let before = cluster.manager_node().load();
            for round in 0..4 {
                let names: Vec<_> = (0..clients.len()).map(|who| format!("{who}-{round}")).collect();
                join_all(clients.iter().zip(&names).map(async |((client, manager), name)| {
                    let [mkdir, own, _] = mkdir_and_lookups(name);
                    client.entry(*manager, mkdir).await.unwrap();
                    client.entry(*manager, own).await.unwrap();
                }))
                .await;
                for (client, manager) in &clients {
                    for name in &names {
                        client.entry(*manager, lookup(name)).await.unwrap();
                    }
                    let [.., readdir] = mkdir_and_lookups("");
                    let ManagerReply::Entries { entries, .. } = client.manager(*manager, readdir).await.unwrap() else {
                        panic!("another reply")
                    };
                    assert_eq!(entries.len(), (round + 1) * clients.len());
                    client.manager(*manager, ManagerRequest::Ping).await.unwrap();
                    client.manager(*manager, ManagerRequest::Statfs).await.unwrap();
                }
            }
            before
        });
        (cluster.manager_node().load().since(&before), world.digest())
    };
    let (load, digest) = run();
    assert!(load.cores[..LOOPS].iter().all(|core| !core.is_zero()), "{load:?}");
    assert_eq!(run(), (load, digest));
}

/// A client that begins to write over one loop ends the right of the creator, which is on another
/// loop, to record the size.
#[test]
fn a_writer_over_another_loop_ends_the_creators_right_to_record_a_size() {
    let (world, cluster) = start(ClusterOptions::with_iods(2));
    world.block_on(async {
        let clients = clients(&world, &cluster).await;
        for (number, (creator, own)) in clients.iter().enumerate() {
            for (other, others) in &clients {
                let name = format!("{number}-{}", other.id);
                let file = creator.entry(*own, create(&name)).await.unwrap().handle.file().unwrap();
                other.manager(*others, ManagerRequest::BeginWrite { file }).await.unwrap();
                creator.manager(*own, ManagerRequest::RecordSize { file, size: 100 }).await.unwrap();
                let recorded = creator.entry(*own, lookup(&name)).await.unwrap().recorded_size();
                assert_eq!(recorded, (other.id == creator.id).then_some(100), "{name}");
            }
        }
    });
}

/// A request that only the first loop can answer has its errors and its effects over every loop.
#[test]
fn every_loop_refuses_what_the_manager_refuses() {
    let (world, cluster) = start(ClusterOptions::with_iods(1));
    world.block_on(async {
        for (client, manager) in clients(&world, &cluster).await {
            let name = client.id.to_string();
            let [mkdir, ..] = mkdir_and_lookups(&name);
            let made = client.entry(manager, mkdir.clone()).await.unwrap();
            assert!(matches!(made.handle, Handle::Dir(_)));
            assert_eq!(code(client.manager(manager, mkdir).await), Some(ErrorCode::Exists));
            assert_eq!(code(client.manager(manager, lookup("none")).await), Some(ErrorCode::NotFound));
            let read = IodRequest::Statfs;
            assert_eq!(code(client.ask(manager, read).await), Some(ErrorCode::Invalid), "not an I/O server");
            let stranger = Request { id: RequestId { client: 99, seq: 1 }, ..client.request(create("x")) };
            let refused = client.send(manager, &stranger, Body::None).await.unwrap().result;
            assert_eq!(code(refused), Some(ErrorCode::Invalid), "the connection has another client");
            let remove = ManagerRequest::Remove { place: Place::root(name.as_str()), kind: RemoveKind::Dir };
            client.manager(manager, remove).await.unwrap();
            assert_eq!(code(client.manager(manager, lookup(&name)).await), Some(ErrorCode::NotFound));
        }
    });
}

/// An I/O server that has seen a later start of the manager stops it, on whichever loop its
/// connection is. Others with such a Hello do not.
#[test]
fn a_server_that_has_seen_a_later_start_stops_the_manager_over_any_loop() {
    for which in 0..LOOPS {
        let (world, cluster) = start(ClusterOptions::with_iods(1));
        world.block_on(async {
            let clients = clients(&world, &cluster).await;
            let (client, manager) = &clients[which];
            let ReplyBody::Identity(identity) =
                client.ask(*manager, RequestBody::Hello(Hello::to(Role::Manager))).await.unwrap()
            else {
                panic!("another reply")
            };
            let later = fs_proto::Start { epoch: identity.start.epoch + 1, instance: 1 };
            let cluster_id = Some(identity.cluster);
            let hello = Hello { cluster: cluster_id, seen: Some(later), ..Hello::to(Role::Manager) };
            let told = client.ask(*manager, RequestBody::Hello(hello.clone())).await;
            assert_eq!(code(told), Some(ErrorCode::OutOfDate), "a client");
            client.endpoint.sleep(Duration::from_millis(10)).await;
            client.manager(*manager, ManagerRequest::Ping).await.unwrap();

            let sender = Sender::Server(Role::Iod(0), later);
            let told = client.ask(*manager, RequestBody::Hello(Hello { sender, ..hello })).await;
            assert_eq!(code(told), Some(ErrorCode::OutOfDate));
            client.endpoint.sleep(Duration::from_secs(30)).await;
            for (client, manager) in &clients {
                assert!(client.manager(*manager, ManagerRequest::Ping).await.is_err(), "loop {which}");
            }
        });
    }
}
