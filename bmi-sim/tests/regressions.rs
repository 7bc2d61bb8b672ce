//! Bugs of the protocol that only show when endpoints sleep: one test each, named for what went wrong.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use bmi_core::{AsyncEndpoint, Config, ErrorKind, Memory, Options, PeerEvent, PeerId};
use bmi_sim::{Node, SimTransport, World};

type Endpoint = AsyncEndpoint<SimTransport>;

const SECOND: Duration = Duration::from_secs(1);

struct Pair {
    /// Keeps the nodes.
    _nodes: [Node; 2],
    a: Endpoint,
    b: Endpoint,
    to_b: PeerId,
    to_a: PeerId,
}

fn pair(world: &World, config: &Config) -> Pair {
    let (near, far) = (world.node("a"), world.node("b"));
    let (a, b) = (near.endpoint(config.clone()).unwrap(), far.endpoint(config.clone()).unwrap());
    b.listen(&far.addr(1)).unwrap();
    let (to_b, to_a) = world.block_on(async {
        let to_b = a.connect(&far.addr(1), Options::default()).await.unwrap();
        let PeerEvent::Connected { peer, .. } = b.next_event().await else { panic!("no peer") };
        (to_b, peer)
    });
    Pair { _nodes: [near, far], a, b, to_b, to_a }
}

/// The grace of a cancel was counted from the last poll: after a long sleep it was over at once, and the connection was cut.
#[test]
fn a_cancel_after_a_long_sleep_has_its_grace() {
    let world = World::new(1);
    let Pair { a, b, to_b, to_a, .. } = &pair(&world, &Config::default());
    world.block_on(async {
        let offered = a.recv(*to_b, 1, Memory::zeroed(50_000).unwrap(), Options::default());
        let announced = a.send(*to_b, 2, Memory::zeroed(50_000).unwrap(), Options::default());
        b.sleep(5 * SECOND).await;
        offered.cancel();
        announced.cancel();
        assert_eq!(offered.await.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(announced.await.unwrap_err().kind(), ErrorKind::Cancelled);
        let ping = b.recv(*to_a, 3, Memory::zeroed(10).unwrap(), b.within(SECOND));
        a.send(*to_b, 3, vec![1; 10], a.within(SECOND)).await.unwrap();
        assert_eq!(ping.await.unwrap().len, 10, "the connection stands");
    });
}
