//! Who may use which datafile: tickets that are right, forged, stolen, old, and of other files.

use bmi::PeerIdentity;
use fs_proto::{Access, Caller, FileHandle, Name, SetAttr, Ticket};

use super::*;

/// Who plays: a user with this number, or the administrator.
fn who(world: &World, name: &str, uid: u32, may: &[&str]) -> Client {
    let node = world.node(name);
    let own = [format!("pvfs:user/{name}"), format!("pvfs:uid/{uid}"), format!("pvfs:gid/{uid}")];
    node.identify(PeerIdentity::named(own.into_iter().chain(may.iter().map(|duty| format!("pvfs:may/{duty}")))));
    Client::new(&node, uid.into())
}

/// A file that was opened: its datafile, and the ticket for it.
#[derive(Clone, Copy, Debug)]
struct Opened {
    file: FileHandle,
    datafile: DatafileHandle,
    ticket: Ticket,
    access: Access,
}

async fn opened(client: &Client, manager: PeerId, request: ManagerRequest) -> Result<Opened, ErrorCode> {
    match client.manager(manager, request).await.map_err(|error| error.code)? {
        ManagerReply::Opened { entry, access, grant: Some(grant) } => {
            let (datafile, ticket) = grant.tickets(entry.layout.as_ref().unwrap())[0];
            Ok(Opened { file: entry.handle.file().unwrap(), datafile, ticket, access })
        }
        other => panic!("no grant but {other:?}"),
    }
}

fn open(file: FileHandle) -> ManagerRequest {
    ManagerRequest::Getattr { handle: file.into(), open: true }
}

/// Writes or reads a byte, and perhaps shows a ticket.
async fn uses(
    client: &Client,
    iod: PeerId,
    datafile: DatafileHandle,
    needed: Access,
    shown: Option<Ticket>,
) -> Result<(), ErrorCode> {
    let (regions, memory) = (regions(&[(0, 1)]), Memory::from(vec![7]));
    let (body, data) = match needed {
        Access::READ => (IodRequest::Read { datafile, regions }, Body::In(MemList::from(&memory))),
        _ => (IodRequest::Write { datafile, regions, sync: false }, Body::Out(MemList::from(&memory))),
    };
    let request = Request { ticket: shown, ..client.request(body) };
    let reply = client.send(iod, &request, data).await.unwrap();
    reply.result.map(drop).map_err(|error| error.code)
}

const NONE: Result<(), ErrorCode> = Err(ErrorCode::NoTicket);

/// Starts a cluster with tickets. Anna has created a file, and Bob may read it.
fn with_file(seed: u64, mode: u32, test: impl AsyncFnOnce(&World, &SimCluster, [&Client; 2], [PeerId; 2], Opened)) {
    let world = World::new(seed);
    let cluster = SimCluster::start(&world, ClusterOptions { tickets: true, ..ClusterOptions::with_iods(1) }).unwrap();
    let clients = [("anna", 1000), ("bob", 1001)].map(|(name, uid)| who(&world, name, uid, &[]));
    let admin = who(&world, "admin", 1, &["admin"]);
    world.block_on(async {
        let manager = admin.connect(&cluster.manager()).await;
        let mkdir = ManagerRequest::Mkdir { place: Place::root("d"), mode: 0o777, uid: 0, gid: 0 };
        let request = Request { caller: Some(Caller::ROOT), ..admin.request(mkdir) };
        admin.send(manager, &request, Body::None).await.unwrap().result.unwrap();
        let [anna, bob] = &clients;
        let managers = [anna.connect(&cluster.manager()).await, bob.connect(&cluster.manager()).await];
        let ManagerRequest::Create { strip_size, servers, avoid, existing, hold, small, .. } = create("") else {
            unreachable!()
        };
        let place = Place::root("d/f");
        let create =
            ManagerRequest::Create { place, mode, uid: 0, gid: 0, strip_size, servers, avoid, existing, hold, small };
        let own = opened(anna, managers[0], create).await.unwrap();
        test(&world, &cluster, [anna, bob], managers, own).await;
    });
}

#[test]
fn a_datafile_is_used_with_the_ticket_for_it_and_nothing_else() {
    with_file(1, 0o644, async |_, cluster, [anna, bob], [_, manager], own| {
        let addr = &cluster.iods()[0];
        let (a, b) = (anna.connect(addr).await, bob.connect(addr).await);
        let (read, write) = (Access::READ, Access::WRITE);
        assert_eq!(uses(anna, a, own.datafile, write, None).await, NONE, "she has shown none yet");
        assert_eq!(uses(anna, a, own.datafile, write, Some(own.ticket)).await, Ok(()));
        assert_eq!(uses(anna, a, own.datafile, read, None).await, Ok(()), "this connection has the right now");
        let other = anna.connect(addr).await;
        assert_eq!(uses(anna, other, own.datafile, read, None).await, NONE, "another one has not");
        // Bob replays hers, and changes his.
        let his = opened(bob, manager, open(own.file)).await.unwrap();
        assert_eq!((his.datafile, his.access), (own.datafile, read));
        assert_eq!(uses(bob, b, own.datafile, read, Some(own.ticket)).await, NONE);
        let more = Ticket { access: Access::BOTH, ..his.ticket };
        assert_eq!(uses(bob, b, own.datafile, write, Some(more)).await, NONE);
        assert_eq!(uses(bob, b, DatafileHandle(own.datafile.0 + 1), read, Some(his.ticket)).await, NONE);
        assert_eq!(uses(bob, b, own.datafile, read, Some(his.ticket)).await, Ok(()));
        assert_eq!(uses(bob, b, own.datafile, write, Some(his.ticket)).await, Err(ErrorCode::Permission));
        let (offset, len) = (0, 1);
        for request in [
            IodRequest::Truncate { datafile: own.datafile, size: 0 },
            IodRequest::Lock {
                datafile: DatafileHandle(own.datafile.0 + 1),
                range: Region::new(offset, len),
                exclusive: true,
                number: 1,
                held: false,
            },
            IodRequest::ReadShared { datafile: DatafileHandle(own.datafile.0 + 1), offset, len },
            IodRequest::List { after: None },
        ] {
            let name = request.name();
            let refused = code(bob.iod(b, request).await);
            assert!(matches!(refused, Some(ErrorCode::NoTicket | ErrorCode::Permission)), "{name}: {refused:?}");
        }
        bob.iod(b, IodRequest::Getsize { datafile: own.datafile }).await.unwrap();
    });
}

#[test]
fn what_is_open_goes_on_and_what_is_opened_anew_is_asked_for() {
    with_file(2, 0o644, async |world, cluster, [anna, bob], [manager, his_manager], own| {
        let addr = &cluster.iods()[0];
        let (a, b) = (anna.connect(addr).await, bob.connect(addr).await);
        let his = opened(bob, his_manager, open(own.file)).await.unwrap();
        assert_eq!(uses(bob, b, own.datafile, Access::READ, Some(his.ticket)).await, Ok(()));
        let shut = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        anna.manager(manager, ManagerRequest::Setattr { handle: own.file.into(), set: shut }).await.unwrap();
        assert_eq!(uses(bob, b, own.datafile, Access::READ, None).await, Ok(()), "he has it open");
        assert_eq!(opened(bob, his_manager, open(own.file)).await.map(drop), Err(ErrorCode::Permission));
        // After a minute a ticket that was never shown is too old, and what was shown goes on.
        world.sleep(Duration::from_secs(63)).await;
        assert_eq!(uses(anna, a, own.datafile, Access::WRITE, Some(own.ticket)).await, NONE);
        let new = opened(anna, manager, open(own.file)).await.unwrap();
        assert_eq!(uses(anna, a, own.datafile, Access::WRITE, Some(new.ticket)).await, Ok(()));
        assert_eq!(uses(bob, b, own.datafile, Access::READ, None).await, Ok(()));
        let late = bob.connect(addr).await;
        assert_eq!(uses(bob, late, own.datafile, Access::READ, Some(his.ticket)).await, NONE);
    });
}

#[test]
fn open_files_go_on_without_the_manager_for_ten_minutes_and_across_one_restart_of_it() {
    with_file(3, 0o644, async |world, cluster, [anna, _], _, own| {
        let addr = &cluster.iods()[0];
        let idle = || world.sleep(Duration::from_secs(60));
        let mut a = anna.connect(addr).await;
        assert_eq!(uses(anna, a, own.datafile, Access::WRITE, Some(own.ticket)).await, Ok(()));
        cluster.manager_node().kill();
        idle().await;
        // The server closes idle connections.
        a = anna.connect(addr).await;
        assert_eq!(uses(anna, a, own.datafile, Access::WRITE, Some(own.ticket)).await, Ok(()), "nothing is older now");
        for _ in 0..9 {
            assert_eq!(uses(anna, a, own.datafile, Access::READ, None).await, Ok(()));
            for _ in 0..8 {
                world.sleep(Duration::from_secs(7)).await;
                uses(anna, a, own.datafile, Access::READ, None).await.unwrap();
            }
        }
        idle().await;
        a = anna.connect(addr).await;
        let late = uses(anna, a, own.datafile, Access::READ, Some(own.ticket)).await;
        assert_eq!(late, Err(ErrorCode::Busy), "nobody says any more who may do what");
        cluster.manager_node().restart();
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(uses(anna, a, own.datafile, Access::READ, Some(own.ticket)).await, Ok(()), "of the last start");
        cluster.manager_node().kill();
        cluster.manager_node().restart();
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(uses(anna, a, own.datafile, Access::READ, None).await, NONE, "that was two starts ago");
        let manager = anna.connect(&cluster.manager()).await;
        let new = opened(anna, manager, open(own.file)).await.unwrap();
        assert_eq!(uses(anna, a, own.datafile, Access::READ, Some(new.ticket)).await, Ok(()));
    });
}

/// An I/O server that was started while the manager is down has no keys, and lets nobody in.
#[test]
fn a_server_that_knows_no_keys_yet_serves_no_datafile() {
    with_file(4, 0o644, async |world, cluster, [anna, _], _, own| {
        cluster.manager_node().kill();
        cluster.restart_iod(0);
        let a = anna.connect(&cluster.iods()[0]).await;
        for shown in [None, Some(own.ticket)] {
            assert_eq!(uses(anna, a, own.datafile, Access::READ, shown).await, Err(ErrorCode::Busy));
        }
        cluster.manager_node().restart();
        world.sleep(Duration::from_secs(5)).await;
        let manager = anna.connect(&cluster.manager()).await;
        let new = opened(anna, manager, open(own.file)).await.unwrap();
        assert_eq!(uses(anna, a, own.datafile, Access::READ, Some(new.ticket)).await, Ok(()));
    });
}

/// Somebody is shut out while he has a file open.
#[test]
fn who_is_shut_out_is_refused_everywhere_within_two_seconds() {
    with_file(5, 0o644, async |world, cluster, [anna, bob], [manager, his_manager], own| {
        let admin = who(world, "admin", 2, &["admin"]);
        let at = admin.connect(&cluster.manager()).await;
        let b = bob.connect(&cluster.iods()[0]).await;
        let his = opened(bob, his_manager, open(own.file)).await.unwrap();
        assert_eq!(uses(bob, b, own.datafile, Access::READ, Some(his.ticket)).await, Ok(()));
        let revoke = |back| ManagerRequest::Revoke { holder: Name("pvfs:user/bob".to_owned()), back };
        assert_eq!(code(anna.manager(manager, revoke(false)).await), Some(ErrorCode::Permission), "not her business");
        admin.manager(at, revoke(false)).await.unwrap();
        assert_eq!(opened(bob, his_manager, open(own.file)).await.map(drop), Err(ErrorCode::Permission));
        world.sleep(Duration::from_secs(2)).await;
        assert_eq!(uses(bob, b, own.datafile, Access::READ, None).await, Err(ErrorCode::Permission));
        // Also after a restart of the manager.
        cluster.manager_node().kill();
        cluster.manager_node().restart();
        let again = bob.connect(&cluster.manager()).await;
        assert_eq!(opened(bob, again, open(own.file)).await.map(drop), Err(ErrorCode::Permission));
        let at = admin.connect(&cluster.manager()).await;
        admin.manager(at, revoke(true)).await.unwrap();
        world.sleep(Duration::from_secs(5)).await;
        let b = bob.connect(&cluster.iods()[0]).await;
        let again = bob.connect(&cluster.manager()).await;
        let his = opened(bob, again, open(own.file)).await.unwrap();
        assert_eq!(uses(bob, b, own.datafile, Access::READ, Some(his.ticket)).await, Ok(()));
    });
}
