//! Rough faults: registrations refused and connections cut at random, in addition to the mild kind.
//! Every operation ends, and everything is released.

use std::time::Duration;

use bmi_core::{Access, Endpoint, ErrorKind, MemList, Options, Peer, PeerEvent};
use futures_util::future::join_all;

use crate::data::memory;
use crate::faulty::{FaultyBackend, Plan};
use crate::message::{reads, tight};
use crate::net::Net;
use crate::rng::Rng;

/// Number of plans to try.
const SEEDS: u64 = 6;
/// Rounds of operations under each plan.
const ROUNDS: u32 = 12;
/// The time limit of each operation. Under faults many reach it.
const BRIEF: Duration = Duration::from_millis(60);

/// Random operations of every kind between three endpoints, under several seeds. Each ends in time,
/// with an error that names the operation. Then nothing is held any more, and all memory is
/// released.
pub async fn everything_ends_and_comes_back(net: &Net<'_>) {
    for seed in 0..SEEDS {
        let faulty = FaultyBackend::new(net.backend(), Plan::rough(seed));
        let net = Net::new(&faulty);
        net.run(storm(&net, seed));
    }
}

/// An endpoint and its peers.
struct Station {
    end: Endpoint,
    addr: bmi_core::Addr,
    peers: Vec<Peer>,
}

impl Station {
    /// Records new and lost peers, and discards unexpected messages.
    fn attend(&mut self) {
        while let Some(event) = self.end.with(|e| e.poll_event()) {
            match event {
                PeerEvent::Connected { peer, .. } => self.peers.push(self.end.peer(peer)),
                PeerEvent::Lost { peer, .. } => self.peers.retain(|other| other.id() != peer),
            }
        }
        while self.end.with(|e| e.poll_unexpected()).is_some() {}
    }
}

async fn storm(net: &Net<'_>, seed: u64) {
    let mut rng = Rng::new(seed);
    let config = tight().fence_grace(Duration::from_millis(50));
    let mut stations: Vec<Station> = ["a", "b", "c"]
        .into_iter()
        .map(|name| {
            let end = net.endpoint(name, &config);
            let addr = end.listen(&net.listen_addr(name)).expect("listen");
            Station { end, addr, peers: Vec::new() }
        })
        .collect();
    let mut buffers: Vec<_> = (0..8).map(|_| memory(100_000)).collect();
    for _ in 0..ROUNDS {
        // Two attempts to connect. Most of the connections live for a while.
        for _ in 0..2 {
            let (from, to) = (rng.index(3), rng.index(3));
            let options = stations[from].end.within(BRIEF);
            if let Err(error) = stations[from].end.connect(&stations[to].addr, options).await {
                assert_eq!(error.operation(), Some("connect"), "{error}");
            }
        }
        stations.iter_mut().for_each(Station::attend);
        let mut work = Vec::new();
        let mut exposures = Vec::new();
        for _ in 0..30 {
            let station = &stations[rng.index(3)];
            let Some(peer) = (!station.peers.is_empty()).then(|| &station.peers[rng.index(station.peers.len())]) else {
                continue;
            };
            let buffer = &buffers[rng.index(buffers.len())];
            let limit = [1000, 1024, 100_000][rng.index(3)];
            let list: MemList = MemList::from(buffer).range(rng.index(64), rng.index(limit)).collect();
            let (options, tag) = (peer.within(BRIEF), rng.below(3));
            match rng.below(6) {
                0 | 1 => work.push(("send", peer.send(tag, list, options))),
                2 | 3 => work.push(("receive", peer.recv(tag, list, options))),
                4 => {
                    let short: MemList = list.range(0, 1000).collect();
                    work.push(("send unexpected", peer.send_unexpected(tag, short, options)));
                }
                _ => match peer.expose(buffer, Access::READ_WRITE) {
                    Ok(exposure) => exposures.push(exposure),
                    Err(error) => assert_eq!(error.operation(), Some("expose"), "{error}"),
                },
            }
        }
        // Any holder of an exposure may use it, including a peer for which it was not made. A wrong
        // one costs a connection, as a cut does.
        for exposure in exposures.iter().take(6) {
            let station = &stations[rng.index(3)];
            if let Some(peer) = station.peers.first() {
                let (list, options) = (MemList::from(&buffers[0]), peer.within(BRIEF));
                work.push(if rng.chance(500) && reads(net) {
                    ("pull", peer.pull(exposure.descriptor(), 0, list, options))
                } else {
                    ("push", peer.push(exposure.descriptor(), 0, list, options))
                });
            }
        }
        net.turns(rng.below(30) as u32).await;
        for (_, operation) in work.iter().filter(|_| rng.chance(200)) {
            operation.cancel();
        }
        let (names, operations): (Vec<_>, Vec<_>) = work.into_iter().unzip();
        for (name, result) in names.into_iter().zip(join_all(operations).await) {
            if let Err(error) = result {
                assert_eq!(error.operation(), Some(name), "{error}");
                assert!(error.peer().is_some(), "{error}");
                assert_ne!(error.kind(), ErrorKind::Unsupported, "{error}");
            }
        }
        drop(exposures);
    }
    calm(net, &mut stations).await;
    net.released(&format!("seed {seed}"), &mut buffers).await;
}

/// Ends all connections and checks that nothing is held.
async fn calm(net: &Net<'_>, stations: &mut [Station]) {
    for station in stations.iter_mut() {
        station.attend();
        for peer in std::mem::take(&mut station.peers) {
            // It may be gone already.
            let _ = peer.disconnect(Options::default()).await;
        }
    }
    for station in stations.iter_mut() {
        // An attempt that this side gave up may have been established on the other side meanwhile.
        net.until("all peers gone", || {
            station.attend();
            let peers = std::mem::take(&mut station.peers);
            for peer in peers {
                if let Ok(op) = station.end.with(|e| e.disconnect(peer.id(), Options::default())) {
                    station.end.with(|e| e.abandon(op));
                }
            }
            (station.end.resource_usage().peers == 0).then_some(())
        })
        .await;
        station.attend();
        net.settled(&station.end, 0, "after the storm").await;
    }
}
