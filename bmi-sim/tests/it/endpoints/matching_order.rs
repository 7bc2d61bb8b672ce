//! The k-th message of a tag goes to the k-th receive of that tag, whichever path each message
//! takes.
//!
//! This tests above all `engine::message::offered_receive` of bmi-core: offers of receives cross
//! messages on the wire, and both sides must reach the same matching. Sizes are around every limit
//! between two paths, credits are scarce, and both sides post at random times.

use std::time::Duration;

use bmi_core::{Config, Counters, Memory, Options, PeerEvent};
use bmi_sim::{Node, Rng, World};

const MESSAGES: usize = 40;
const UNIT: usize = 64 << 10;
const SIZES: [usize; 8] = [0, 100, 8192, 8193, 30_000, UNIT, UNIT + 1, 200_000];

/// One message and its receive.
#[derive(Clone)]
struct Exchange {
    tag: u64,
    len: usize,
    room: usize,
    /// Waits before sending and before receiving. Short times are zero, so that bursts occur.
    send_gap: Duration,
    recv_gap: Duration,
    cancelled: bool,
}

fn draw(rng: &mut Rng, cancels: bool) -> Exchange {
    let len = SIZES[rng.below(SIZES.len() as u64) as usize];
    let mut gap = || match rng.below(30_000) {
        short if short < 8_000 => Duration::ZERO,
        long => Duration::from_nanos(long),
    };
    let (send_gap, recv_gap) = (gap(), gap());
    let room = len + rng.below(2) as usize * 1000;
    Exchange { tag: rng.below(3), len, room, send_gap, recv_gap, cancelled: cancels && rng.below(6) == 0 }
}

fn content(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31) ^ (number as u8)).collect()
}

async fn pause(node: &Node, gap: Duration) {
    if gap > Duration::ZERO {
        node.sleep(gap).await;
    }
}

/// Carries out the exchanges of one seed and checks them. Returns the sender's counters.
fn run(seed: u64, cancels: bool) -> Counters {
    let world = World::new(seed);
    let (receiver, sender) = (world.node("receiver"), world.node("sender"));
    let credit_messages = 4 + u16::try_from(seed % 13).unwrap();
    let credit_bytes = 40_000 + u32::try_from(seed % 7).unwrap() * 20_000;
    let config = Config::default().credit_messages(credit_messages).credit_bytes(credit_bytes).transfer_unit(UNIT);
    let (incoming, outgoing) = (receiver.endpoint(config.clone()).unwrap(), sender.endpoint(config).unwrap());
    let addr = incoming.listen(&receiver.addr(7)).unwrap();
    let mut rng = Rng::new(seed);
    let exchanges: Vec<Exchange> = (0..MESSAGES).map(|_| draw(&mut rng, cancels)).collect();
    let timeout = Duration::from_millis(200);

    world.block_on(async {
        let received = receiver.spawn({
            let (incoming, exchanges, node) = (incoming.clone(), exchanges.clone(), receiver.clone());
            async move {
                let PeerEvent::Connected { peer, .. } = incoming.next_event().await else { panic!("expected a peer") };
                let mut operations = Vec::new();
                for exchange in &exchanges {
                    pause(&node, exchange.recv_gap).await;
                    let memory = Memory::zeroed(exchange.room).unwrap();
                    let operation = peer.recv(exchange.tag, &memory, peer.within(timeout));
                    if exchange.cancelled {
                        pause(&node, exchange.send_gap).await;
                        operation.cancel();
                    }
                    operations.push((memory, operation));
                }
                let mut results = Vec::new();
                for (memory, operation) in operations {
                    results.push((operation.await, memory));
                }
                results
            }
        });
        let peer = outgoing.connect(&addr, Options::default()).await.unwrap();
        let mut sends = Vec::new();
        for (number, exchange) in exchanges.iter().enumerate() {
            pause(&sender, exchange.send_gap).await;
            sends.push(peer.send(exchange.tag, content(number, exchange.len), peer.within(timeout)));
        }
        for (number, send) in sends.into_iter().enumerate() {
            let sent = send.await;
            assert!(cancels || sent.is_ok(), "seed {seed}, message {number}: {sent:?}");
        }
        for (number, (result, mut memory)) in received.await.unwrap().into_iter().enumerate() {
            let bytes = memory.get_mut().expect("an ended receive holds no memory");
            match result {
                Ok(done) if !cancels => {
                    let len = exchanges[number].len;
                    assert_eq!(done.len as usize, len, "seed {seed}, message {number}");
                    assert!(bytes[..len] == content(number, len), "seed {seed}: message {number} went elsewhere");
                    assert!(
                        bytes[len..].iter().all(|byte| *byte == 0),
                        "seed {seed}, message {number}: bytes behind it"
                    );
                }
                Ok(_) => {}
                Err(error) => assert!(cancels, "seed {seed}, receive {number}: {error}"),
            }
        }
        sender.sleep(Duration::from_millis(500)).await;
        for endpoint in [&incoming, &outgoing] {
            let held = endpoint.resource_usage();
            assert_eq!((held.peers, held.operations, held.exposures, held.work), (1, 0, 0, 0), "seed {seed}: {held:?}");
            assert_eq!(endpoint.counters().violations, 0, "seed {seed}");
        }
        outgoing.counters()
    })
}

#[test]
fn every_message_goes_to_its_receive() {
    let counters: Vec<Counters> = (0..400).map(|seed| run(seed, false)).collect();
    let total = |count: fn(&Counters) -> u64| counters.iter().map(count).sum::<u64>();
    for (path, count) in
        [("eager", total(|c| c.eager)), ("offered", total(|c| c.offered)), ("rendezvous", total(|c| c.rendezvous))]
    {
        assert!(count > 500, "the path {path} was taken only {count} times: this test no longer tests it");
    }
}

#[test]
fn cancelled_receives_leave_nothing_behind() {
    for seed in 0..400 {
        run(seed, true);
    }
}
