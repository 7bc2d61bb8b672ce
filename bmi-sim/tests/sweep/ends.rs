//! Ends: of connections, of exposures, of operations at their deadline, and of credits.

use std::collections::VecDeque;
use std::time::Duration;

use bmi_conformance::data::{filled, memory, pattern};
use bmi_core::{Access, Config, ErrorKind, Memory, PeerEvent, ResourceUsage};
use bmi_sim::{Rng, SimConfig, World};
use futures_util::future::Either;

use crate::{GRACE, SOON, Side, check_idle, pair, pair_with};

/// Messages that were sent before a disconnect arrive.
pub(crate) fn an_orderly_end(world: &World, sides: &[Side; 2], rng: &mut Rng) {
    let [a, b] = sides;
    let lens: Vec<usize> = (0..6).map(|_| [10, 200, 5000, 120_000][rng.below(4) as usize]).collect();
    world.block_on(async {
        let soon = b.peer.within(SOON);
        let receives: Vec<_> = lens.iter().map(|len| (memory(*len), *len)).collect();
        let receives: Vec<_> =
            receives.into_iter().map(|(target, len)| (b.peer.recv(3, &target, soon), target, len)).collect();
        let sends: Vec<_> = lens
            .iter()
            .map(|len| a.peer.send(3, Memory::from(pattern(*len as u64, *len)), a.peer.within(SOON)))
            .collect();
        a.peer.disconnect(a.peer.within(SOON)).await.expect("disconnect");
        for send in sends {
            send.await.expect("sent before the disconnect");
        }
        for (receive, target, len) in receives {
            assert_eq!(receive.await.expect("sent before the disconnect").len as usize, len);
            assert!(target.to_vec() == pattern(len as u64, len));
        }
    });
    world.run_for(SOON);
    sides.iter().for_each(|side| check_idle(side, 0, "after an orderly end"));
}

/// A descriptor or grant is useless when its exposure is over. Using it costs the connection, and
/// no byte moves.
pub(crate) fn stale_keys(world: &World, rng: &mut Rng) {
    for (round, granted) in [(0, false), (1, true)] {
        let [c, d] = &pair(world, rng, [["c0", "d0"], ["c1", "d1"]][round]);
        let target = filled(1, 2000);
        world.block_on(async {
            let soon = c.peer.within(SOON);
            let descriptor = if granted {
                let (grant, written) = d.peer.grant(&target, d.peer.within(SOON)).expect("grant");
                c.peer.push_granted(&grant, filled(2, 2000).all(), soon).await.expect("push");
                written.await.expect("written");
                grant.descriptor
            } else {
                let exposure = d.peer.expose(&target, Access::READ_WRITE).expect("expose");
                c.peer.push(exposure.descriptor(), 0, filled(2, 2000).all(), soon).await.expect("push");
                exposure.descriptor().clone()
            };
            d.node.sleep(Duration::from_millis(1)).await;
            let again = c.peer.push(&descriptor, 0, filled(3, 2000).all(), soon).await;
            assert!(again.is_err(), "a key of {} is still good", if granted { "a grant" } else { "an exposure" });
        });
        assert!(target.to_vec() == pattern(2, 2000), "bytes were changed with a key that was over");
        world.run_for(SOON);
        for side in [c, d] {
            assert_eq!(side.peer.endpoint().resource_usage(), ResourceUsage::default(), "after a stale key");
        }
    }
}

/// When a peer dies, everything with it ends, and its unread messages are gone.
pub(crate) fn a_lost_peer(world: &World, rng: &mut Rng) {
    let [d, e] = &pair(world, rng, ["doomed", "e"]);
    world.block_on(async {
        for _ in 0..3 {
            d.peer.send_unexpected(9, vec![9; 100], d.peer.within(SOON)).await.expect("send");
        }
        let shown = d.peer.expose(memory(400_000), Access::READ_WRITE).expect("expose");
        let remote = shown.descriptor().clone();
        e.node.sleep(Duration::from_millis(1)).await;
        let never = bmi_core::Options::default();
        let reads = e.peer.endpoint().with(|engine| engine.capabilities().rdma_read);
        let operations = [
            e.peer.recv(1, memory(100), never),
            e.peer.recv(2, memory(20_000), never),
            e.peer.send(3, memory(300_000), never),
            match reads {
                true => e.peer.pull(&remote, 0, memory(400_000), never),
                false => e.peer.push(&remote, 0, memory(400_000), never),
            },
        ];
        e.node.sleep(Duration::from_nanos(rng.below(60_000))).await;
        d.node.kill();
        for operation in operations {
            if let Err(error) = operation.await {
                assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
            }
        }
        loop {
            if let PeerEvent::Lost { peer, .. } = e.peer.endpoint().next_event().await {
                assert_eq!(peer, e.peer);
                break;
            }
        }
    });
    assert!(e.peer.endpoint().with(|engine| engine.poll_unexpected()).is_none(), "a message of a peer that is gone");
    check_idle(e, 0, "after its peer was killed");
}

/// Operations without an answer end by their deadline, at the latest one grace period later, and
/// the connection remains.
pub(crate) fn deadlines(world: &World, rng: &mut Rng) {
    let sides = pair(world, rng, ["f", "g"]);
    let [f, g] = &sides;
    world.block_on(async {
        let patience = Duration::from_millis(1 + rng.below(3));
        let options = f.peer.within(patience);
        let begin = f.peer.endpoint().now();
        let operations = [
            f.peer.recv(1, memory(100), options),
            f.peer.recv(2, memory(20_000), options),
            f.peer.recv(2, memory(20_000), options),
            f.peer.send(3, memory(300_000), options),
        ];
        for operation in operations {
            assert_eq!(operation.await.expect_err("nobody answers").kind(), ErrorKind::TimedOut);
            let took = f.peer.endpoint().now() - begin;
            assert!(took >= patience && took < patience + GRACE, "{took:?} instead of {patience:?}");
        }
        // The tags are free for the next operations.
        for tag in 1..4 {
            let target = memory(30_000);
            let receive = f.peer.recv(tag, &target, f.peer.within(SOON));
            g.peer.send(tag, Memory::from(pattern(tag, 30_000)), g.peer.within(SOON)).await.expect("send");
            receive.await.expect("receive");
            assert!(target.to_vec() == pattern(tag, 30_000));
        }
    });
    world.run_for(SOON);
    sides.iter().for_each(|side| check_idle(side, 1, "after deadlines"));
}

/// Both sides have spent all their credits, and return them in small pieces that cross on a long
/// link, until neither may send one more. Then both want to send a long message. The last control
/// credit was kept for this.
pub(crate) fn both_run_out_of_credits(seed: u64, rng: &mut Rng) {
    const EAGER: usize = 256;
    let mut config = SimConfig::drawn(seed);
    config.profile.link_latency_ns = 1_000_000;
    let world = World::with(config);
    let settings = small_windows(EAGER);
    let sides = pair_with(&world, [settings.clone(), settings], ["h", "i"]);
    let (kept, gap) = (rng.below(8) as usize, Duration::from_micros(10 + rng.below(60)));
    let talk = sides.iter().map(|side| async move {
        for _ in 0..16 {
            side.peer.send_unexpected(1, vec![1; 16], side.peer.within(SOON)).await.expect("send");
        }
        let long = side.peer.send_unexpected(2, vec![2; EAGER], side.peer.within(SOON));
        let mut messages = Vec::new();
        for _ in 0..16 {
            messages.push(side.peer.endpoint().next_unexpected().await);
        }
        // One after the other, all before anything from the other side can arrive.
        while messages.len() > kept {
            messages.pop();
            side.node.sleep(gap).await;
        }
        let came = side.peer.endpoint().next_unexpected();
        long.await.expect("a long message");
        assert_eq!(came.await.tag(), 2);
    });
    world.block_on(futures_util::future::join_all(talk));
    world.run_for(SOON);
    sides.iter().for_each(|side| check_idle(side, 1, "after all credits were spent"));
}

/// Returns small credit windows. The window in bytes is four messages of `eager` bytes, which is
/// sixteen short ones. So is the window in messages.
fn small_windows(eager: usize) -> Config {
    Config::default()
        .eager_limit(eager)
        .credit_messages(16)
        .credit_bytes(4 * (eager as u32 + 64))
        .fast_slots(0)
        .fence_grace(GRACE)
}

/// Many short messages each way, received as they arrive, some before their receive is posted, by
/// adapters with inline receives. The window in bytes is so small that a few credits that do not
/// come back stop it.
pub(crate) fn long_streams_of_short_messages(seed: u64, rng: &mut Rng) {
    const EAGER: usize = 256;
    const MESSAGES: usize = 160;
    let config = SimConfig { inline_receive_bytes: 64 << 10, ..SimConfig::seeded(seed) };
    let world = World::with(config);
    let settings = small_windows(EAGER);
    let sides = pair_with(&world, [settings.clone(), settings], ["j", "k"]);
    let lens: Vec<usize> = (0..MESSAGES).map(|_| rng.below(EAGER as u64 + 1) as usize).collect();
    let gaps: Vec<Duration> = (0..MESSAGES).map(|_| Duration::from_micros(rng.below(30))).collect();
    let ahead = 1 + rng.below(4) as usize;
    let (lens, gaps) = (&lens, &gaps);
    let talk = sides.iter().flat_map(|side| {
        let sends = async move {
            for (number, len) in lens.iter().enumerate() {
                let bytes = pattern(number as u64, *len);
                side.peer.send(1, bytes, side.peer.within(SOON)).await.expect("send");
            }
        };
        let receives = async move {
            let mut posted = VecDeque::new();
            for number in 0..MESSAGES + ahead {
                if let Some(len) = lens.get(number) {
                    // Some have room to spare.
                    let target = memory(len + number % 2);
                    let receive = side.peer.recv(1, &target, side.peer.within(SOON));
                    posted.push_back((receive, target));
                }
                if number < ahead {
                    continue;
                }
                let ((receive, target), number) = (posted.pop_front().expect("posted"), number - ahead);
                assert_eq!(receive.await.expect("receive").len as usize, lens[number], "message {number}");
                assert!(target.to_vec()[..lens[number]] == pattern(number as u64, lens[number]), "message {number}");
                if number % 8 == 0 {
                    side.node.sleep(gaps[number]).await;
                }
            }
        };
        [Either::Left(sends), Either::Right(receives)]
    });
    world.block_on(futures_util::future::join_all(talk));
    world.run_for(SOON);
    sides.iter().for_each(|side| check_idle(side, 1, "after long streams"));
}
