//! Clients that stop in the middle of their transfers, and clients that are only slow.

use bmi_sim::{Profile, SimConfig};
use fs_server::iod::IodSettings;

use super::server::{BEGIN, Server, file};
use super::*;

/// How many clients stop.
const STOPPED: u64 = 40;
/// Requests that each of them has in progress.
const OUTSTANDING: usize = 32;
/// How long the other client is watched.
const WATCHED: Duration = Duration::from_secs(20);
/// Pause between two requests of the other client.
const PAUSE: Duration = Duration::from_millis(50);

/// Returns a world in which an adapter does not notice that its peer is unreachable.
fn patient(seed: u64) -> SimConfig {
    let profile = Profile { detection_ns: 1_000_000_000_000, ..Profile::default() };
    SimConfig { profile, ..SimConfig::seeded(seed) }
}

fn server(seed: u64) -> Server {
    Server::start(patient(seed), IodSettings::default())
}

/// Starts a client with several transfers in progress, until one fails.
fn start_client(server: &Server, index: u64, path: Path, len: u64, reads: bool) -> Node {
    let node = server.world.node(&format!("stopped{index}"));
    let (client, addr) = (Client::new(&node, index.into()).forcing(path), server.addr.clone());
    node.spawn(async move {
        let iod = client.connect(&addr).await;
        client.endpoint.sleep_until(BEGIN).await;
        let (whole, memory) = (regions(&[(0, len)]), MemList::from(vec![index as u8; len as usize]));
        let one = async || {
            let mut good = true;
            while good {
                good = match reads {
                    true => client.read(iod, file(index), &whole).await.is_ok(),
                    false => client.write(iod, file(index), &whole, &memory).await.is_ok(),
                };
            }
        };
        futures_util::future::join_all((0..OUTSTANDING).map(|_| one())).await;
    });
    node
}

/// How clients stop.
#[derive(Clone, Copy, Debug)]
enum Stop {
    /// Nobody stops, because there are no clients.
    Nobody,
    /// Nothing reaches their adapters any more, as with a stopped process over TCP.
    Adapter,
    /// The adapters go on without their programs, as with a stopped process over RDMA.
    Program,
}

/// Writes and reads until `WATCHED` is over. Returns the number of requests and the longest time of
/// one. Checks afterwards that the server has everything back.
fn requests_beside(stop: Stop, path: Path, len: u64, reads: bool) -> (u32, Duration) {
    let server = server(31);
    let stopped = if let Stop::Nobody = stop { 0 } else { STOPPED };
    let nodes: Vec<_> = (0..stopped).map(|index| start_client(&server, index, path, len, reads)).collect();
    server.world.run_until(BEGIN + Duration::from_millis(3));
    for node in &nodes {
        match stop {
            Stop::Program => node.pause(),
            _ => server.world.partition(&server.world.node("iod"), node),
        }
    }
    let client = Client::new(&server.world.node("client"), 99).forcing(path);
    let watched = server.world.block_on(async {
        let iod = client.connect(&server.addr).await;
        let (whole, bytes, end) = (regions(&[(0, len)]), pattern(len as usize, 6), client.endpoint.now() + WATCHED);
        let (list, mut count, mut longest) = (MemList::from(bytes.clone()), 0, Duration::ZERO);
        while client.endpoint.now() < end {
            let started = client.endpoint.now();
            client.write(iod, file(99), &whole, &list).await.unwrap();
            assert!(client.read(iod, file(99), &whole).await.unwrap() == bytes, "{path}");
            longest = longest.max(client.endpoint.now().since(started));
            count += 1;
            client.endpoint.sleep(PAUSE).await;
        }
        client.endpoint.peer(iod).disconnect(client.endpoint.within(PATIENCE)).await.unwrap();
        (count, longest)
    });
    server.world.run_for(Duration::from_secs(100));
    assert_eq!(server.zones.counters().leased, 0, "{path} {stop:?}");
    let (usage, idle) = (server.endpoint.resource_usage(), server.idle);
    assert_eq!((usage.exposures, usage.work, usage.slots), (idle.exposures, idle.work, idle.slots), "{path} {stop:?}");
    watched
}

/// Replays a bug: clients that had stopped kept all buffers until the time limits of their
/// requests, and nobody else was served.
fn check(stop: Stop, path: Path, len: u64) {
    for reads in [true, false] {
        let (alone, _) = requests_beside(Stop::Nobody, path, len, reads);
        let (beside, longest) = requests_beside(stop, path, len, reads);
        // Once, a request waits until the clients are recognised as stopped: for 2.5 s.
        assert!(longest < Duration::from_millis(2600), "{path}, {stop:?}, reads {reads}: {longest:?}");
        assert!(beside * 100 >= alone * 86, "{path}, {stop:?}, reads {reads}: {beside} of {alone} requests");
    }
}

#[test]
fn clients_that_stop_in_server_based_transfers_do_not_stop_others() {
    check(Stop::Adapter, Path::ServerBased, 512 << 10);
}

#[test]
fn clients_that_stop_in_client_based_transfers_do_not_stop_others() {
    check(Stop::Adapter, Path::ClientBased, 512 << 10);
    check(Stop::Program, Path::ClientBased, 512 << 10);
}

#[test]
fn clients_that_stop_in_inline_and_fast_transfers_do_not_stop_others() {
    check(Stop::Program, Path::Inline, 4 << 10);
    check(Stop::Program, Path::FastRdma, 60 << 10);
}

/// A client whose link is up only for moments is slow, but moves.
#[test]
fn a_slow_client_is_not_cut_off() {
    let mut config = patient(32);
    // Some 30 MB/s, so that the others wait for buffers, but move little.
    config.profile.disk.read_ps_per_byte *= 100;
    let server = Server::start(config, IodSettings { unit: 64 << 10, buffers: 8, depth: 3 });
    let slow = Client::new(&server.world.node("slow"), 1).forcing(Path::ServerBased);
    let addr = server.addr.clone();
    for index in 0..3 {
        start_client(&server, index, Path::ServerBased, 256 << 10, true);
    }
    let task = server.world.node("slow").spawn(async move {
        let iod = slow.connect(&addr).await;
        slow.endpoint.sleep_until(BEGIN).await;
        let started = slow.endpoint.now();
        let read = slow.read(iod, file(99), &regions(&[(0, 400 << 10)])).await;
        (read.map(|bytes| bytes.len()), slow.endpoint.now().since(started))
    });
    let (node, slow) = (server.world.node("iod"), server.world.node("slow"));
    server.world.run_until(BEGIN);
    let mut awaited = 0;
    while !task.is_finished() {
        server.world.partition(&node, &slow);
        server.world.run_for(Duration::from_secs(1));
        awaited += u32::from(server.zones.is_awaited_by(|_| true));
        server.world.heal(&node, &slow);
        server.world.run_for(Duration::from_micros(10));
    }
    let (read, took) = server.world.block_on(async { task.await.unwrap() });
    assert_eq!(read, Ok(400 << 10));
    assert!(took > Duration::from_secs(4), "{took:?}, and a client that has stopped is cut off after 2 s");
    assert!(awaited > 2, "others wait for buffers");
}
