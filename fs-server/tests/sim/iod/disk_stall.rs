//! A disk that stops answering for a while, in virtual time.

use std::cell::RefCell;

use async_trait::async_trait;
use bmi::Time;
use bmi_sim::{Sim, SimConfig};
use fs_proto::CacheHints;
use fs_server::embedded::Medium;
use fs_server::iod::IodSettings;

use super::server::{BEGIN, Server, file};
use super::*;

/// How long the disk does not answer.
const STALL: Duration = Duration::from_secs(5);
/// A request that needs no disk takes less.
const SOON: Duration = Duration::from_millis(5);
/// Clients whose requests wait for the disk, and how many requests each of them sends. Together
/// they take all places of the server.
const CLIENTS: u64 = 12;
const REQUESTS: usize = 40;

/// The operations of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Read,
    Write,
    Sync,
}

/// A disk on which some operations stall until a time.
#[derive(Clone)]
struct Stalling {
    sim: Sim,
    stalled: Rc<RefCell<Vec<(Op, Time)>>>,
}

impl Stalling {
    async fn pass(&self, op: Op) {
        let until = self.stalled.borrow().iter().find(|(stalled, _)| *stalled == op).map(|(_, until)| *until);
        if let Some(until) = until {
            self.sim.sleep_until(until).await;
        }
    }
}

#[async_trait(?Send)]
impl Medium for Stalling {
    async fn read(&self, _bytes: u64) {
        self.pass(Op::Read).await;
    }

    async fn write(&self, _bytes: u64) {
        self.pass(Op::Write).await;
    }

    async fn sync(&self) {
        self.pass(Op::Sync).await;
    }
}

/// Returns how long the longest request took that needs no disk, over a connection that was open
/// before, and over new ones.
async fn watch(client: &Client, addr: &Addr, until: Time) -> Duration {
    let (mut longest, mut count) = (Duration::ZERO, 0);
    let known = client.connect(addr).await;
    client.endpoint.sleep_until(BEGIN + Duration::from_millis(10)).await;
    while client.endpoint.now() < until {
        let begun = client.endpoint.now();
        let new = client.connect(addr).await;
        for peer in [known, new] {
            client.iod(peer, IodRequest::Ping).await.unwrap();
            let IodReply::Stat(_) = client.iod(peer, IodRequest::Statfs).await.unwrap() else { panic!() };
        }
        longest = longest.max(client.endpoint.now().since(begun));
        count += 1;
        client.endpoint.peer(new).disconnect(client.endpoint.within(PATIENCE)).await.unwrap();
        client.endpoint.sleep(Duration::from_millis(100)).await;
    }
    assert!(count > 10, "{count}");
    longest
}

/// Starts a server with a disk on which `op` stalls until a time.
fn server_on_stalling_disk(op: Op, until: Time) -> Server {
    server_in(SimConfig::seeded(7), op, until)
}

fn server_in(config: SimConfig, op: Op, until: Time) -> Server {
    Server::start_on(config, IodSettings::default(), |node| {
        let stalled = Rc::new(RefCell::new(vec![(op, until)]));
        Stalling { sim: node.sim().clone(), stalled }
    })
}

/// Lets many clients use a disk on which `op` stalls. Returns when the last of their requests has
/// ended, and how long the others' requests took.
fn stalled(op: Op) -> (Time, Duration) {
    let until = BEGIN + STALL;
    let server = server_on_stalling_disk(op, until);
    let clients: Vec<_> =
        (0..CLIENTS).map(|id| Client::new(&server.world.node(&format!("c{id}")), id.into())).collect();
    let watcher = Client::new(&server.world.node("watcher"), 99);
    server.world.block_on(async {
        let busy = clients.iter().zip(0..).map(async |(client, index)| {
            let iod = client.connect(&server.addr).await;
            client.endpoint.sleep_until(BEGIN).await;
            let (whole, bytes) = (regions(&[(0, 4096)]), pattern(4096, index));
            let list = MemList::from(bytes.clone());
            let one = async || match op {
                Op::Read => assert_eq!(client.read(iod, file(index), &whole).await.unwrap(), vec![0; 4096]),
                Op::Write => drop(client.write(iod, file(index), &whole, &list).await.unwrap()),
                Op::Sync => drop(client.iod(iod, IodRequest::Sync { datafiles: vec![file(index)] }).await.unwrap()),
            };
            futures_util::future::join_all((0..REQUESTS).map(|_| one())).await;
            if op == Op::Write {
                assert!(client.read(iod, file(index), &whole).await.unwrap() == bytes);
            }
            client.endpoint.now()
        });
        let (ends, longest) =
            futures_util::future::join(futures_util::future::join_all(busy), watch(&watcher, &server.addr, until))
                .await;
        (ends.into_iter().max().unwrap(), longest)
    })
}

/// Replays a bug: with all places taken by requests that waited for the disk, the server did not
/// answer a ping, and nobody could connect.
#[test]
fn what_needs_no_disk_is_answered_while_the_disk_stalls() {
    for op in [Op::Read, Op::Write, Op::Sync] {
        let (end, longest) = stalled(op);
        assert!(end >= BEGIN + STALL && end < BEGIN + STALL + Duration::from_secs(1), "{op:?}: {end}");
        assert!(longest < SOON, "{op:?}: {longest:?}");
    }
}

/// A client whose own requests take all the places that it may have asks for what needs no disk,
/// over the same connection.
#[test]
fn a_client_whose_requests_all_wait_gets_answers_from_memory() {
    let until = BEGIN + STALL;
    let server = server_on_stalling_disk(Op::Read, until);
    let client = Client::new(&server.world.node("client"), 1);
    server.world.block_on(async {
        let iod = client.connect(&server.addr).await;
        let page = regions(&[(0, 4096)]);
        let reads = (0..REQUESTS).map(|_| client.read(iod, file(0), &page));
        let ask = async {
            client.endpoint.sleep(Duration::from_millis(1)).await;
            for request in [
                IodRequest::Ping,
                IodRequest::Statfs,
                IodRequest::Advise { datafile: file(0), hints: CacheHints::default() },
                IodRequest::CacheState { after: None, files: 5 },
                IodRequest::CacheCoverage { datafile: file(0), offset: 0, len: 1 },
            ] {
                let (begun, name) = (client.endpoint.now(), request.name());
                client.iod(iod, request).await.unwrap();
                let took = client.endpoint.now().since(begun);
                assert!(took < SOON, "{name}: {took:?}");
            }
        };
        let (reads, ()) = futures_util::future::join(futures_util::future::join_all(reads), ask).await;
        assert!(reads.iter().all(Result::is_ok) && client.endpoint.now() >= until);
    });
}

/// Replays a bug: the server took every client that had ever been lent a view for a stalled one,
/// because the client might still look at it. So when its disk stalled and one client without a
/// view waited for a place, the connections of all others were cut.
#[test]
fn clients_that_were_lent_views_are_not_cut_because_the_disk_stalls() {
    let until = BEGIN + STALL;
    let mut config = SimConfig::seeded(7);
    let mut capabilities = config.capabilities();
    capabilities.shares_pages = true;
    config.capabilities_override = Some(capabilities);
    let server = server_in(config, Op::Read, until);
    server.lend_views();
    let clients: Vec<_> =
        (0..CLIENTS).map(|id| Client::new(&server.world.node(&format!("c{id}")), id.into())).collect();
    server.world.block_on(async {
        let busy = clients.iter().zip(0..).map(async |(client, index)| {
            let iod = client.connect(&server.addr).await;
            if index > 0 {
                let view = IodRequest::ReadShared { datafile: file(index), offset: 0, len: 4096 };
                let lent = client.iod(iod, view).await;
                assert!(matches!(lent, Ok(IodReply::Shared(Ok(_)))), "{lent:?}");
            }
            client.endpoint.sleep_until(BEGIN).await;
            let page = regions(&[(0, 4096)]);
            let reads = (0..REQUESTS).map(|_| client.read(iod, file(index), &page));
            let failed = futures_util::future::join_all(reads).await.into_iter().find_map(Result::err);
            (failed, client.endpoint.now())
        });
        for (index, (failed, end)) in futures_util::future::join_all(busy).await.into_iter().enumerate() {
            assert_eq!(failed, None, "client {index}");
            assert!(end >= until && end < until + Duration::from_secs(1), "client {index}: {end}");
        }
    });
}

#[test]
fn a_stall_is_the_same_in_every_run() {
    assert_eq!(stalled(Op::Write), stalled(Op::Write));
}
