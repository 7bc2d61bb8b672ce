//! The choice of transports: a client with several endpoints and servers that listen on several, in
//! one simulated world. Simulated adapters under other addresses stand in for `shm://`, `ib://` and
//! `tcp://`.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bmi::{Addr, Endpoint, Scheme};
use bmi_sim::World;
use fs_client::{Client, ClientOptions, Endpoints, ErrorCode, Route, TransportChoice};
use fs_proto::{ClusterId, Identity, Role, Start, StoreId};
use fs_server::embedded::{Free, SimStore};
use fs_server::iod::{Iod, IodSettings, LabelLock, Membership};
use fs_server::manager::{Manager, ManagerSettings, format};
use fs_server::service::{Handler, Limits, Standing, serve_all};
use fs_server::store::{DataStore, MemDisk, MetaStore};

use crate::support::bodies::{self, path, pattern, striped};
use crate::support::relay::{Alias, Names};

/// The scheme by which servers are known in this world.
const KNOWN: Scheme = Scheme::Tcp;
const IODS: u32 = 2;

/// Returns a server's address over a scheme.
fn addr(server: &str, scheme: Scheme) -> Addr {
    match scheme {
        Scheme::Shm => Addr::shm(format!("/run/{server}")),
        Scheme::Ib => Addr::ib(None, server, 2),
        Scheme::Tcp => Addr::tcp(server, 1),
        Scheme::Sim | Scheme::Custom(_) => Addr::sim(server, 9),
    }
}

/// Returns the port of the simulated node for an address of a scheme.
fn port(scheme: Scheme) -> u16 {
    Scheme::ALL.iter().position(|other| *other == scheme).unwrap() as u16 + 1
}

/// The cluster of this world.
const CLUSTER: ClusterId = ClusterId(1);

fn empty_store() -> Rc<SimStore> {
    Rc::new(SimStore::open(&MemDisk::default(), Rc::new(Free)).unwrap())
}

/// Returns an I/O server over each of the endpoints.
fn iods(endpoints: &[Endpoint], store: &Rc<SimStore>) -> Vec<Iod<Rc<SimStore>>> {
    let first = Iod::new(endpoints[0].clone(), store.clone(), IodSettings::default()).unwrap();
    let others: Vec<_> =
        endpoints[1..].iter().zip(1..).map(|(endpoint, at)| first.beside(endpoint.clone(), at)).collect();
    std::iter::once(first).chain(others).collect()
}

/// A manager and two I/O servers. Each is on a node and a host of its own name, except that all but
/// `iod1` are on the client's host `here`.
struct Setting {
    world: World,
    names: Names,
    starts: Cell<u128>,
    stores: Vec<Rc<SimStore>>,
}

impl Setting {
    fn new(seed: u64) -> Setting {
        let stores = (0..IODS).map(|_| empty_store()).collect();
        let setting = Setting { world: World::new(seed), names: Names::default(), starts: Cell::new(1), stores };
        for server in ["manager", "iod0", "iod1"] {
            for scheme in [Scheme::Tcp, Scheme::Ib, Scheme::Shm] {
                let real = Addr::sim(server, port(scheme));
                setting.names.lock().unwrap().insert(addr(server, scheme), real);
            }
        }
        setting
    }

    /// Makes endpoints that listen over `over`. Returns them, and an identity for a server there.
    fn listen(&self, name: &str, role: Role, host: &str, over: &[Scheme]) -> (Vec<Endpoint>, Identity) {
        let node = self.world.node(name);
        let endpoints: Vec<_> = over.iter().map(|_| Alias::endpoint(&node, &self.names)).collect();
        for (endpoint, scheme) in endpoints.iter().zip(over) {
            endpoint.listen(&addr(name, *scheme)).unwrap();
        }
        let addrs = over.iter().map(|scheme| addr(name, *scheme)).collect();
        // Each start is a new instance.
        let instance = self.starts.replace(self.starts.get() + 1);
        let start = Start { epoch: 1, instance };
        (endpoints, Identity { cluster: CLUSTER, role, store: StoreId(0), start, host: host.to_owned(), addrs })
    }

    /// Starts a server that reports this identity.
    fn serve<H: Handler + 'static>(&self, name: &str, endpoints: Vec<Endpoint>, identity: Identity, handlers: Vec<H>) {
        self.world.node(name).spawn(async move {
            let handlers = handlers.iter().map(|handler| handler as &dyn Handler);
            let fronts: Vec<_> = endpoints.into_iter().zip(handlers).collect();
            serve_all(&fronts, &Standing::serving(identity), Limits::default(), std::future::pending()).await;
        });
    }

    /// Starts an I/O server that registers with the manager.
    fn start_iod(&self, number: u32, host: &str, over: &[Scheme]) {
        let (name, store) = (format!("iod{number}"), self.stores[number as usize].clone());
        let (endpoints, identity) = self.listen(&name, Role::Iod(number), host, over);
        let (instance, beat) = (identity.start.instance, Duration::from_secs(1));
        let mut membership =
            Membership::new(endpoints[0].clone(), addr("manager", KNOWN), number, instance, false, beat);
        let handlers = iods(&endpoints, &store);
        self.world.node(&name).spawn(async move {
            let labels = LabelLock::default();
            if store.label().is_none() {
                let label = membership.ask_for_label(StoreId(instance)).await.unwrap();
                store.relabel(&label).await.unwrap();
            }
            let start = membership.begin(&*store, &labels).await.unwrap();
            let identity = Identity { store: store.label().unwrap().store, start, ..identity };
            let standing = Standing::serving(identity);
            let handlers = handlers.iter().map(|handler| handler as &dyn Handler);
            let fronts: Vec<_> = endpoints.into_iter().zip(handlers).collect();
            let stop = async { drop(membership.keep(&*store, &labels, start).await) };
            serve_all(&fronts, &standing, Limits::default(), stop).await;
        });
    }

    fn start_manager(&self) {
        let iods = (0..IODS).map(|number| addr(&format!("iod{number}"), KNOWN)).collect();
        let (endpoints, identity) = self.listen("manager", Role::Manager, "here", &[KNOWN]);
        let store = MetaStore::in_memory().unwrap();
        format(&store, CLUSTER, identity.store, &fs_proto::Caller::ROOT, 0).unwrap();
        let (settings, instance) = (ManagerSettings::new(iods), identity.start.instance);
        let manager = Manager::new(endpoints[0].clone(), store, settings, instance, || 0).unwrap();
        assert_eq!(manager.identity().start, identity.start);
        self.serve("manager", endpoints, identity, vec![manager]);
    }

    /// Starts all servers: `iod0` on the client's host and `iod1` elsewhere, both over all
    /// transports.
    fn start_all(&self) {
        let all = [KNOWN, Scheme::Ib, Scheme::Shm];
        self.start_iod(0, "here", &all);
        self.start_iod(1, "there", &all);
        self.start_manager();
    }

    /// Creates a client on host `here` with an endpoint for each of `schemes`.
    async fn client(&self, schemes: &[Scheme], over: TransportChoice) -> Result<Client, fs_client::Error> {
        let node = self.world.node("client");
        let mut endpoints = Endpoints::one(schemes[0], Alias::endpoint(&node, &self.names));
        for scheme in &schemes[1..] {
            endpoints = endpoints.and(*scheme, Alias::endpoint(&node, &self.names));
        }
        if !schemes.contains(&Scheme::Ib) {
            endpoints = endpoints.without(Scheme::Ib, "no adapter");
        }
        let host = Some("here".to_owned());
        let options = ClientOptions { timeout: Duration::from_secs(8), over, host, ..ClientOptions::new(5) };
        Client::connect_over(endpoints, addr("manager", KNOWN), options).await
    }
}

const ALL: [Scheme; 3] = [Scheme::Tcp, Scheme::Ib, Scheme::Shm];

/// Writes and reads a file on both servers, small and large.
async fn moves_bytes(client: &Client) {
    let file = client.create(&path("/f"), striped(65536, IODS)).await.unwrap();
    let bytes = pattern(1 << 20, 3);
    file.write_at(0, bytes.clone()).await.unwrap();
    file.write_at(100, pattern(1000, 4)).await.unwrap();
    let found = bodies::read(&file, 0, 1 << 20).await;
    assert!(found[..100] == bytes[..100] && found[100..1100] == pattern(1000, 4) && found[1100..] == bytes[1100..]);
    client.remove(&path("/f"), fs_client::RemoveKind::File).await.unwrap();
}

async fn routes(client: &Client) -> Vec<Route> {
    client.routes().await.into_iter().map(|(_, route)| route.unwrap()).collect()
}

fn taken(routes: &[Route]) -> Vec<Scheme> {
    routes.iter().map(|route| route.addr.scheme()).collect()
}

#[test]
fn each_server_is_reached_over_the_best_that_both_have() {
    let setting = Setting::new(1);
    setting.start_all();
    setting.world.block_on(async {
        let client = setting.client(&ALL, TransportChoice::Auto).await.unwrap();
        let routes = routes(&client).await;
        assert_eq!(taken(&routes), [Scheme::Tcp, Scheme::Shm, Scheme::Ib]);
        assert_eq!(routes[0].reason, "nothing better is offered");
        assert_eq!(routes[1].to_string(), "tcp://iod0:1 (iod 0): over shm: on this host (shm:///run/iod0)");
        assert_eq!(routes[2].passed_over, [(addr("iod1", Scheme::Shm), "another host".to_owned())]);
        moves_bytes(&client).await;
        let sent: Vec<u64> = client.endpoints().map(|endpoint| endpoint.counters().unexpected).collect();
        assert!(sent[1] > 1 && sent[2] > 1, "requests went that way: {sent:?}");
        for endpoint in client.endpoints() {
            let left = endpoint.resource_usage();
            assert_eq!((left.operations, left.exposures, left.parked, left.peers), (0, 0, 0, 1), "{left:?}");
        }
    });
}

/// The path leads to another server of the same host: it has the right name, but was started for
/// another cluster.
#[test]
fn a_socket_that_is_another_servers_is_not_used() {
    let setting = Setting::new(2);
    setting.start_all();
    let node = setting.world.node("imp");
    setting.names.lock().unwrap().insert(addr("imp", Scheme::Shm), node.addr(1));
    let store = empty_store();
    let (endpoints, identity) = setting.listen("imp", Role::Iod(0), "here", &[Scheme::Shm]);
    let handlers = iods(&endpoints, &store);
    setting.serve("imp", endpoints, Identity { cluster: ClusterId(2), ..identity }, handlers);
    setting.names.lock().unwrap().insert(addr("iod0", Scheme::Shm), node.addr(1));
    setting.world.block_on(async {
        let client = setting.client(&[Scheme::Tcp, Scheme::Shm], TransportChoice::Auto).await.unwrap();
        let routes = routes(&client).await;
        assert_eq!(taken(&routes), [Scheme::Tcp; 3]);
        let expected = [
            (
                addr("iod0", Scheme::Shm),
                format!("this is iod 0 of cluster {}; a client expects iod 0 of cluster {CLUSTER}", ClusterId(2)),
            ),
            (addr("iod0", Scheme::Ib), "no adapter".to_owned()),
        ];
        assert_eq!(routes[1].passed_over, expected);
        moves_bytes(&client).await;
        assert_eq!(store.stat().await.unwrap().datafiles, 0, "not a byte went to the wrong one");
        let error =
            setting.client(&[Scheme::Tcp, Scheme::Shm], TransportChoice::Only(Scheme::Shm)).await.err().unwrap();
        assert!(error.to_string().contains("the server does not offer shm://"), "the manager has none: {error}");
    });
}

#[test]
fn a_way_that_does_not_work_is_passed_over_and_named() {
    let setting = Setting::new(3);
    setting.start_all();
    setting.names.lock().unwrap().remove(&addr("iod0", Scheme::Shm));
    setting.world.block_on(async {
        let client = setting.client(&ALL, TransportChoice::Auto).await.unwrap();
        let routes = routes(&client).await;
        assert_eq!(taken(&routes)[1], Scheme::Ib);
        let text = routes[1].to_string();
        assert!(text.contains("not shm:///run/iod0: ") && text.contains("nobody listens there"), "{text}");
        moves_bytes(&client).await;
    });
}

/// A socket whose server has stalled. The attempt costs its time limit, but no request fails.
#[test]
fn a_way_that_says_nothing_is_given_up_in_time() {
    let setting = Setting::new(4);
    setting.start_all();
    let halted = setting.world.node("halted");
    setting.names.lock().unwrap().insert(addr("iod0", Scheme::Shm), halted.addr(1));
    let endpoint = Alias::endpoint(&halted, &setting.names);
    endpoint.listen(&addr("iod0", Scheme::Shm)).unwrap();
    setting.world.block_on(async {
        let client = setting.client(&[Scheme::Tcp, Scheme::Shm], TransportChoice::Auto).await.unwrap();
        assert_eq!(taken(&routes(&client).await)[1], Scheme::Tcp);
        moves_bytes(&client).await;
    });
}

#[test]
fn what_was_asked_for_is_taken_or_is_an_error() {
    let setting = Setting::new(5);
    let all = [KNOWN, Scheme::Ib, Scheme::Shm];
    setting.start_iod(0, "here", &all);
    setting.start_iod(1, "there", &[KNOWN]);
    setting.start_manager();
    setting.world.block_on(async {
        let client = setting.client(&ALL, TransportChoice::Only(Scheme::Tcp)).await.unwrap();
        let all = routes(&client).await;
        assert_eq!(taken(&all), [Scheme::Tcp; 3]);
        assert!(all.iter().all(|route| route.reason == "as asked for"));
        let error = setting.client(&ALL, TransportChoice::Only(Scheme::Shm)).await.err().unwrap();
        assert_eq!(error.code(), ErrorCode::Unreachable);
        assert!(error.to_string().contains("(manager)") && error.to_string().contains("does not offer shm"), "{error}");
    });
}

#[test]
fn a_server_that_was_started_again_is_found_over_the_same_way() {
    let setting = Setting::new(6);
    setting.start_all();
    setting.world.block_on(async {
        let client = setting.client(&ALL, TransportChoice::Auto).await.unwrap();
        moves_bytes(&client).await;
        let node = setting.world.node("iod0");
        node.kill();
        node.restart();
        // First without shared memory, then with it again.
        setting.start_iod(0, "here", &[KNOWN]);
        moves_after_loss(&client).await;
        assert_eq!(taken(&routes(&client).await), [Scheme::Tcp, Scheme::Tcp, Scheme::Ib]);
        node.kill();
        node.restart();
        setting.start_iod(0, "here", &[KNOWN, Scheme::Shm]);
        moves_after_loss(&client).await;
        assert_eq!(taken(&routes(&client).await), [Scheme::Tcp, Scheme::Shm, Scheme::Ib]);
    });
}

/// The loss may be noticed only by the first requests after it.
async fn moves_after_loss(client: &Client) {
    while client.ping().await.iter().any(|pong| pong.result.is_err()) {
        client.endpoint().sleep(Duration::from_millis(10)).await;
    }
    moves_bytes(client).await;
}

/// An address that leads to the wrong server would give one file's data to another.
#[test]
fn a_server_that_is_another_than_it_is_known_as_is_refused() {
    let setting = Setting::new(7);
    let (endpoints, identity) = setting.listen("iod0", Role::Iod(1), "here", &[KNOWN]);
    let handlers = iods(&endpoints, &empty_store());
    setting.serve("iod0", endpoints, identity, handlers);
    setting.start_iod(1, "there", &[KNOWN]);
    setting.start_manager();
    setting.world.block_on(async {
        let client = setting.client(&ALL, TransportChoice::Auto).await.unwrap();
        let results = client.routes().await;
        let error = results[1].1.as_ref().unwrap_err();
        assert!(error.to_string().contains("this is iod 1 of cluster"), "{error}");
        assert!(results[2].1.is_ok());
    });
}
