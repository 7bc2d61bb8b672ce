//! Pacing on an I/O server in virtual time. Peers get equal shares however much each asks for,
//! small transfers pass bulk, and stalled peers do not hold up the others.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bmi_core::{Access, BulkDescriptor, Config, Endpoint, Memory, Options, Peer, PeerEvent, ServiceClass};
use bmi_sim::{Node, World};

const UNIT: usize = 64 << 10;
const SECOND: Duration = Duration::from_secs(1);

/// A server, and the clients whose memory it moves.
struct Crowd {
    world: World,
    server: Node,
    endpoint: Endpoint,
    clients: Vec<Node>,
    /// Each client as a peer of the server, and its exposed memory.
    peers: Vec<(Peer, BulkDescriptor)>,
}

fn config() -> Config {
    Config::default().transfer_unit(UNIT)
}

fn crowd(clients: usize, config: Config) -> Crowd {
    let world = World::new(1);
    let server = world.node("server");
    let endpoint = server.endpoint(config.clone()).unwrap();
    endpoint.listen(&server.addr(1)).unwrap();
    let nodes: Vec<_> = (0..clients).map(|n| world.node(&format!("client{n}"))).collect();
    let peers = world.block_on(async {
        let mut peers = Vec::new();
        for node in &nodes {
            let client = node.endpoint(config.clone()).unwrap();
            let to_server = client.connect(&server.addr(1), Options::default()).await.unwrap();
            let PeerEvent::Connected { peer, .. } = endpoint.next_event().await else { panic!("no peer") };
            let exposure = to_server.expose(Memory::zeroed(4 * UNIT).unwrap(), Access::READ_WRITE).unwrap();
            peers.push((peer, exposure.descriptor().clone()));
            // The client's endpoint and its memory stay until the end of the world.
            node.spawn(async move {
                client.next_unexpected().await;
                drop(exposure);
            });
        }
        peers
    });
    Crowd { world, server, endpoint, clients: nodes, peers }
}

impl Crowd {
    /// Moves `len` bytes again and again, pulling and pushing in turn, with `window` transfers at a
    /// time. Returns a counter of the bytes.
    fn load(&self, peer: usize, len: usize, window: usize) -> Rc<Cell<u64>> {
        let moved = Rc::new(Cell::new(0));
        for n in 0..window {
            let ((peer, remote), moved) = (self.peers[peer].clone(), moved.clone());
            self.server.spawn(async move {
                let memory = Memory::zeroed(len).unwrap();
                let options = Options::default().class(ServiceClass::Bulk);
                for turn in n.. {
                    let work = match turn % 2 {
                        0 => peer.pull(&remote, 0, &memory, options),
                        _ => peer.push(&remote, 0, &memory, options),
                    };
                    if work.await.is_err() {
                        return;
                    }
                    moved.set(moved.get() + len as u64);
                }
            });
        }
        moved
    }

    fn run_for(&self, time: Duration) {
        self.world.block_on(self.world.sim().sleep(time));
    }

    /// Returns how long a pull of 4 KiB takes.
    fn small(&self, peer: usize) -> Duration {
        let (peer, remote) = &self.peers[peer];
        self.world.block_on(async {
            let start = self.server.now();
            let memory = Memory::zeroed(4096).unwrap();
            let options = peer.within(SECOND).class(ServiceClass::Message);
            peer.pull(remote, 0, memory, options).await.unwrap();
            self.server.now() - start
        })
    }
}

/// Returns Jain's index: 1 if all shares are equal, 1/n if one has everything.
fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
fn peers_get_equal_shares_however_many_transfers_they_have() {
    let in_flight = (4 * UNIT) as u64;
    let crowd = crowd(16, config().in_flight_bytes(in_flight).peer_in_flight_bytes(in_flight / 2));
    let moved: Vec<_> = (0..16)
        .map(|peer| match peer {
            0 => crowd.load(peer, UNIT, 64),
            1 => crowd.load(peer, 4 * UNIT, 8),
            _ => crowd.load(peer, UNIT, 2),
        })
        .collect();
    crowd.run_for(Duration::from_millis(20));
    let shares: Vec<u64> = moved.iter().map(|moved| moved.get()).collect();
    assert!(jain(&shares) > 0.99, "{} of {shares:?}", jain(&shares));
    // At best 12.5 GB/s both ways; with four units in flight the adapter must be near that.
    let total: u64 = shares.iter().sum();
    assert!(total > 200 << 20, "{total} bytes in 20 ms");
}

#[test]
fn a_small_transfer_waits_for_one_unit_at_most() {
    let crowd = crowd(20, config().in_flight_bytes(UNIT as u64));
    let (near, far) = (crowd.small(0), crowd.small(19));
    assert_eq!(near, far, "nobody else is there");
    // All but the last have bulk transfers in flight, more than the server can move.
    (0..19).for_each(|peer| drop(crowd.load(peer, 4 * UNIT, 4)));
    crowd.run_for(Duration::from_millis(1));
    let unit = Duration::from_nanos(UNIT as u64 * 80 / 1000 + 1000);
    let mut longest = Duration::ZERO;
    for round in 0..50 {
        for peer in [round % 19, 19] {
            longest = longest.max(crowd.small(peer));
        }
    }
    assert!(longest <= near + unit, "{longest:?}; alone it takes {near:?}, a unit {unit:?}");
    assert!(longest > near, "there was something to wait for");
}

/// Of 16 clients, 8 can no longer be reached. The server's transfers with them would fill its limit
/// until the adapter gives them up after 10 ms.
#[test]
fn peers_that_have_stalled_leave_the_adapter_to_the_others() {
    let in_flight = (8 * UNIT) as u64;
    let crowd = crowd(16, config().in_flight_bytes(in_flight).peer_in_flight_bytes(in_flight / 2));
    let moved: Vec<_> = (0..16).map(|peer| crowd.load(peer, UNIT, 4)).collect();
    crowd.run_for(Duration::from_millis(1));
    let sum = |from: usize| moved[from..].iter().map(|moved| moved.get()).sum::<u64>();
    let before = sum(0);
    crowd.run_for(Duration::from_millis(1));
    let rate = sum(0) - before;
    crowd.clients[..8].iter().for_each(|node| crowd.world.partition(node, &crowd.server));
    // Long enough for the server to lose patience with them, too short for the adapter to notice.
    crowd.run_for(Duration::from_millis(4));
    let before = sum(8);
    crowd.run_for(Duration::from_millis(4));
    let after = sum(8) - before;
    assert!(after > rate * 4 * 3 / 4, "{after} bytes in 4 ms; {rate} in 1 ms before");
    crowd.run_for(SECOND);
    let resource_usage = crowd.endpoint.resource_usage();
    assert_eq!(resource_usage.peers, 8, "{resource_usage:?}");
}
