//! Servers whose places are all taken: idle clients make room, and do not notice.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bmi::driver::{MonotonicClock, event};
use bmi::{Addr, Clock, Config, Endpoint, ErrorKind, OpenOptions, Scheme, Time};
use bmi_sim::World;
use fs_client::{Client, ClientOptions, Publish};
use fs_server::embedded::{ClusterOptions, EmbeddedCluster, SimCluster};
use futures_util::FutureExt;

use crate::support::bodies::{self, path, pattern, striped};

const SECOND: Duration = Duration::from_secs(1);

/// A monotonic clock that can be set forward.
#[derive(Clone)]
struct Shifted(MonotonicClock, Rc<Cell<Duration>>);

impl Clock for Shifted {
    fn now(&self) -> Time {
        self.0.now() + self.1.get()
    }
}

/// Connects to a server as often as it has places, and more. Each newcomer waits until there is a
/// place for it, and says nothing.
async fn crowd(endpoint: &Endpoint, server: &Addr, peers: usize) {
    for _ in 0..peers {
        while let Err(error) = endpoint.connect(server, endpoint.within(20 * SECOND)).await {
            // A peer that was closed for a newcomer may count until its end is known.
            assert!(matches!(error.kind(), ErrorKind::Refused | ErrorKind::PeerLost), "{error}");
            endpoint.sleep(Duration::from_millis(5)).await;
        }
    }
}

fn options(idle: Duration) -> ClusterOptions {
    let endpoint = Config::default().max_peers(5).evict_idle_after(Some(idle));
    ClusterOptions { endpoint, nameless_grace: SECOND, ..ClusterOptions::with_iods(1) }
}

/// A client that nothing drives does not know that its connections were closed. A write, which is
/// never sent twice, went over such a connection and failed.
#[test]
fn a_client_that_slept_while_its_place_was_taken_writes_on() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = EmbeddedCluster::start(dir.path(), options(Duration::from_millis(1))).unwrap();
    let clock = Shifted(MonotonicClock::new(), Rc::default());
    let open =
        |name: &str| bmi::endpoint(Scheme::Tcp, &OpenOptions::default(), Config::named(name), clock.clone()).unwrap();
    let (endpoint, crowded) = (open("client"), open("crowd"));
    let begin = async {
        let options = ClientOptions { timeout: 20 * SECOND, ..ClientOptions::new(11) };
        let client = Client::connect(endpoint.clone(), cluster.manager().clone(), options).await.unwrap();
        let file = client.create(&path("/f"), striped(65536, 1)).await.unwrap();
        file.write_at(0, pattern(1000, 1)).await.unwrap();
        (client, file)
    };
    let (client, file) = event::block_on(endpoint.clone(), begin).unwrap();
    for round in 1..3u64 {
        // Nothing drives the client meanwhile.
        event::block_on(crowded.clone(), crowd(&crowded, &cluster.iods()[0], 6)).unwrap();
        clock.1.set(clock.1.get() + 5 * SECOND);
        let mut write = pin!(file.write_at(1000 * round, pattern(1000, round)));
        assert!(write.as_mut().now_or_never().is_none(), "it begins before the endpoint is polled");
        event::block_on(endpoint.clone(), async {
            write.await.unwrap();
            assert_eq!(bodies::read(&file, 1000 * round, 1000).await, pattern(1000, round));
        })
        .unwrap();
    }
    drop((file, client, endpoint, crowded));
    cluster.stop().unwrap();
}

/// Waves of idle peers take all places of all servers. The client is idle meanwhile, and its draft
/// stays.
#[test]
fn an_idle_client_reconnects_unnoticed_and_keeps_its_drafts() {
    let world = World::new(7);
    let cluster = SimCluster::start(&world.sim(), options(10 * SECOND)).unwrap();
    let (node, far) = (world.node("client"), world.node("crowd"));
    world.block_on(async {
        let endpoint = node.endpoint(Config::named("client")).unwrap();
        let options = ClientOptions { timeout: 3 * SECOND, ..ClientOptions::new(11) };
        let client = Client::connect(endpoint.clone(), cluster.manager(), options).await.unwrap();
        let file = client.create(&path("/f"), striped(65536, 1)).await.unwrap();
        file.write_at(0, pattern(1000, 1)).await.unwrap();
        let draft = client.draft(&path("/g"), striped(65536, 1)).await.unwrap();
        draft.file().write_at(0, pattern(1000, 2)).await.unwrap();
        let iod = client.iods().first().map(|iod| iod.addr.clone()).unwrap();
        for wave in 1..4u64 {
            let crowded = far.endpoint(Config::named("crowd")).unwrap();
            endpoint.sleep(11 * SECOND).await;
            crowd(&crowded, &cluster.manager(), 4).await;
            crowd(&crowded, &iod, 4).await;
            endpoint.sleep(11 * SECOND).await;
            file.write_at(1000 * wave, pattern(1000, wave)).await.unwrap();
        }
        draft.publish(Publish::default()).await.unwrap();
        let found = client.open(&path("/g")).await.unwrap();
        assert_eq!(bodies::read(&found, 0, 1000).await, pattern(1000, 2));
    });
}
