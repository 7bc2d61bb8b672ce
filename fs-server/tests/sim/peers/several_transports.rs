//! A server on several endpoints at once, and the identity of a server.

use std::cell::Cell;
use std::rc::Rc;

use fs_proto::{ClusterId, Identity, Start, StoreId};
use fs_server::embedded::{Free, SimStore, datafiles};
use fs_server::iod::{Iod, IodSettings};
use fs_server::service::{Handler, Limits, Standing, serve_all};
use fs_server::store::MemDisk;
use futures_util::FutureExt;
use tokio::sync::oneshot;

use super::*;

async fn identity(client: &Client, peer: PeerId, role: Role) -> Identity {
    match client.ask(peer, RequestBody::Hello(Hello::to(role))).await.unwrap() {
        ReplyBody::Identity(identity) => identity,
        other => panic!("who are you? {other:?}"),
    }
}

fn identity_of(role: Role, addrs: Vec<Addr>) -> Identity {
    let (cluster, store) = (ClusterId(1), StoreId(2));
    Identity { cluster, role, store, start: Start { epoch: 1, instance: 7 }, host: "h".to_owned(), addrs }
}

#[test]
fn two_endpoints_serve_one_store_and_stop_together() {
    let world = World::new(1);
    let node = world.node("iod0");
    let disk = MemDisk::default();
    disk.exchange(datafiles(DatafileHandle(1), 1));
    let store = SimStore::open(&disk, Rc::new(Free)).unwrap();
    let endpoints: Vec<_> = (0..2).map(|_| node.endpoint(Config::named("iod0")).unwrap()).collect();
    let addrs: Vec<Addr> =
        endpoints.iter().zip(1..).map(|(endpoint, port)| endpoint.listen(&node.addr(port)).unwrap()).collect();
    let me = identity_of(Role::Iod(0), addrs.clone());
    let (stop, stopped) = oneshot::channel();
    let ended = Rc::new(Cell::new(false));
    let (told, who) = (ended.clone(), Standing::serving(me.clone()));
    node.spawn(async move {
        let first = Iod::new(endpoints[0].clone(), Rc::new(store), IodSettings::default()).unwrap();
        let second = first.beside(endpoints[1].clone(), 1);
        let iods = [first, second];
        let fronts: Vec<_> = endpoints.into_iter().zip(iods.iter().map(|iod| iod as &dyn Handler)).collect();
        serve_all(&fronts, &who, Limits::default(), stopped.map(|_| ())).await;
        told.set(true);
    });
    let client = Client::new(&world.node("client"), 1);
    world.block_on(async {
        let (one, two) = (client.connect(&addrs[0]).await, client.connect(&addrs[1]).await);
        let role = Role::Iod(0);
        assert_eq!((identity(&client, one, role).await, identity(&client, two, role).await), (me.clone(), me));
        let (file, bytes) = (DatafileHandle(1), pattern(3 << 20, 5));
        let whole = regions(&[(0, bytes.len() as u64)]);
        // Use bulk transfers, so that both endpoints move data with their shared buffers.
        client.write(one, file, &whole, &MemList::from(bytes.clone())).await.unwrap();
        assert!(client.read(two, file, &whole).await.unwrap() == bytes);
        client.iod(two, IodRequest::Truncate { datafile: file, size: 10 }).await.unwrap();
        let size = client.iod(one, IodRequest::Getsize { datafile: file }).await.unwrap();
        assert!(matches!(size, IodReply::Held { size: 10, .. }), "what one has cut off is cut off for the other");
        assert!(!ended.get());
        stop.send(()).unwrap();
        let open = |peer| client.endpoint.peer(peer).limits().is_some();
        while open(one) || open(two) {
            client.endpoint.sleep(Duration::from_millis(1)).await;
        }
        client.endpoint.sleep(Duration::from_millis(1)).await;
        assert!(ended.get(), "a stop ends every loop");
    });
}

#[test]
fn servers_say_who_they_are_and_another_start_is_another_instance() {
    with_client(2, ClusterOptions::with_iods(2), async |_, cluster, client| {
        let manager = client.connect(&cluster.manager()).await;
        let who = identity(client, manager, Role::Manager).await;
        assert_eq!((who.role, who.host.as_str(), who.addrs), (Role::Manager, "manager", vec![cluster.manager()]));
        let peer = client.connect(&cluster.iods()[1]).await;
        let before = identity(client, peer, Role::Iod(1)).await;
        assert_eq!((before.role, before.addrs.as_slice()), (Role::Iod(1), &cluster.iods()[1..]));
        client.endpoint.sleep(Duration::from_millis(1)).await;
        cluster.restart_iod(1);
        let peer = client.connect(&cluster.iods()[1]).await;
        let after = identity(client, peer, Role::Iod(1)).await;
        assert_eq!(after.role, Role::Iod(1));
        assert!(!after.is_same(&before) && after.is_same(&after.within(0)));
    });
}
