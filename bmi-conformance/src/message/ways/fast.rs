//! Fast RDMA: messages of middle size in slots that the peer registered when the connection was
//! made.

use bmi_core::{Config, ErrorKind, MemList, Memory, Options, Peer};

use crate::data::{Guarded, memory, pattern};
use crate::net::{Net, Pair, SOON, soon};

/// Creates a pair whose sides know each other's slots.
pub(in crate::message) async fn ready(net: &Net<'_>, config: &Config) -> Pair {
    let pair = net.pair(config).await;
    if config.tuning.fast_slots > 0 {
        let known = || {
            let fast = |peer: &Peer| peer.limits().is_some_and(|limits| limits.fast > 0);
            (fast(&pair.to_b) && fast(&pair.to_a)).then_some(())
        };
        net.until("both sides know the other's slots", known).await;
    }
    pair
}

/// Returns two pieces, so that the receive is not offered and the message is not written directly.
fn halves(len: usize) -> Guarded {
    Guarded::new(&[len / 2, len - len / 2])
}

/// Returns a pattern in two pieces of plain memory. Shareable pages would be announced to a peer
/// that can map them.
fn apart(seed: u64, len: usize) -> MemList {
    let mut front = pattern(seed, len);
    let back = front.split_off(len / 3);
    [front, back].map(|bytes| Memory::from(bytes).all()).into_iter().collect()
}

/// Expected messages longer than the eager limit and up to the slot's length use fast RDMA, whether
/// their receive is posted before or after them.
pub async fn messages_of_middle_size_go_fast(net: &Net<'_>) {
    let config = Config::default();
    let pair = ready(net, &config).await;
    let (eager, fast) = (config.credits.eager_limit, config.credits.fast_slot_bytes);
    for (number, len) in [eager, eager + 1, 20_000, fast - 1, fast, fast + 1].into_iter().enumerate() {
        for early in [true, false] {
            let what = format!("{len} bytes, receive {}", if early { "first" } else { "last" });
            let before = pair.a.counters().fast;
            let (source, target) = (apart(number as u64, len), halves(len));
            let (receive, send);
            if early {
                receive = pair.recv(1, target.list());
                pair.ping(net, &what).await;
                send = pair.send(1, source);
            } else {
                send = pair.send(1, source);
                pair.ping(net, &what).await;
                receive = pair.recv(1, target.list());
            }
            assert_eq!(receive.await.unwrap_or_else(|error| panic!("{what}: {error}")).len, len as u64, "{what}");
            send.await.unwrap_or_else(|error| panic!("{what}: {error}"));
            target.check(&what, &pattern(number as u64, len));
            let went_fast = len > eager && len <= fast;
            assert_eq!(pair.a.counters().fast - before, u64::from(went_fast), "{what}");
        }
    }
    pair.settled(net, "after all sizes").await;
}

/// A list without pieces goes into a slot if it prefers one. Nothing is staged then, and nothing is
/// registered.
pub async fn lists_without_pieces(net: &Net<'_>) {
    let pair = ready(net, &Config::default()).await;
    let empty = || std::iter::empty().collect::<MemList>();
    let before = pair.a.counters().fast;
    let options = Options { slot: true, ..soon(&pair.a) };
    let receive = pair.recv(1, memory(1));
    pair.to_b.send(1, empty(), options).await.expect("send");
    assert_eq!(receive.await.expect("receive").len, 0);
    pair.to_b.send_unexpected(2, empty(), options).await.expect("send unexpected");
    let message = pair.b.next_unexpected().await;
    assert_eq!((message.tag(), message.len()), (2, 0));
    assert_eq!(pair.a.counters().fast - before, 2, "in slots");
    drop(message);
    pair.settled(net, "after both").await;
}

/// Messages of one tag arrive in the order in which they were posted, although they take different
/// paths: eager, fast RDMA, rendezvous and offered receive.
pub async fn order_across_all_paths(net: &Net<'_>) {
    let pair = ready(net, &Config::default().fast_slots(2)).await;
    let lens = [10usize, 20_000, 200_000, 30_000, 40_000, 50_000, 100, 9000, 70_000, 8192, 60_000, 1];
    for split in [0, 4, lens.len()] {
        // Some of the receives are posted before the messages, some after.
        let targets: Vec<_> = lens.iter().map(|len| memory(*len)).collect();
        let post = |at: usize| pair.recv(7, &targets[at]);
        let mut receives: Vec<_> = (0..split).map(post).collect();
        pair.ping(net, "early receives").await;
        let sends: Vec<_> = lens.iter().enumerate().map(|(at, len)| pair.send(7, pattern(at as u64, *len))).collect();
        pair.ping(net, "messages").await;
        receives.extend((split..lens.len()).map(post));
        for (at, receive) in receives.into_iter().enumerate() {
            assert_eq!(receive.await.expect("receive").len, lens[at] as u64, "message {at}, {split} early");
            assert!(targets[at].to_vec() == pattern(at as u64, lens[at]), "message {at}, {split} early");
        }
        for send in sends {
            send.await.expect("send");
        }
    }
    pair.settled(net, "after all orders").await;
}

/// Unexpected messages may be as long as a slot. The next one waits until the program has dropped
/// the earlier ones.
pub async fn unexpected_messages_of_middle_size(net: &Net<'_>) {
    let config = Config::default().fast_slots(2);
    let pair = ready(net, &config).await;
    let len = config.credits.fast_slot_bytes;
    let sends: Vec<_> = (0..5).map(|tag| pair.send_unexpected(tag, pattern(tag, len))).collect();
    for tag in 0..5 {
        let message = pair.b.next_unexpected().await;
        assert_eq!((message.tag(), message.len()), (tag, len));
        assert!(message.bytes() == pattern(tag, len), "message {tag}");
    }
    for send in sends {
        send.await.expect("send");
    }
    let refused = pair.send_unexpected(9, pattern(9, len + 1)).await;
    assert_eq!(refused.expect_err("too long").kind(), ErrorKind::TooLarge);
    pair.settled(net, "after all messages").await;
}

/// Registered memory is gathered from its place, with a small piece copied before it. The operation
/// then ends when the adapter has finished.
pub async fn registered_memory_is_gathered(net: &Net<'_>) {
    let pair = ready(net, &Config::default()).await;
    let source = crate::data::filled(1, 30_000);
    let region = net.until("a registration", || pair.a.with(|e| e.register(&source)).ok()).await;
    let before = pair.a.counters();
    let front = pattern(2, 50);
    let list: MemList = [bmi_core::Memory::from(front.clone()).all(), source.all()].into_iter().collect();
    let receive = pair.recv(1, halves(30_050).list());
    let target = halves(30_050);
    receive.cancel();
    receive.await.expect_err("cancelled");
    pair.pass(1, list, target.list()).await;
    target.check("the message", &[front, pattern(1, 30_000)].concat());
    let after = pair.a.counters();
    assert_eq!((after.fast - before.fast, after.fast_gathered - before.fast_gathered), (1, 1));
    drop(region);
    pair.settled(net, "after the message").await;
}

/// If one side has no slots, everything works without them, in both directions.
pub async fn without_slots(net: &Net<'_>) {
    let (a, b) = (net.endpoint("a", &Config::default().fast_slots(0)), net.endpoint("b", &Config::default()));
    let addr = b.listen(&net.listen_addr("b")).expect("listen");
    let (to_b, to_a) = net.connect(&a, &b, &addr).await;
    net.until("a knows b's slots", || to_b.limits().filter(|limits| limits.fast > 0)).await;
    assert_eq!(to_a.limits().map(|limits| limits.fast), Some(0));
    for (to, from, fast) in [(&to_b, &to_a, 1), (&to_a, &to_b, 0)] {
        let target = halves(20_000);
        let receive = from.recv(1, target.list(), from.within(SOON));
        to.send(1, pattern(5, 20_000), to.within(SOON)).await.expect("send");
        receive.await.expect("receive");
        target.check("the message", &pattern(5, 20_000));
        assert_eq!(to.endpoint().counters().fast, fast);
    }
    net.settled(&a, 1, "a").await;
    net.settled(&b, 1, "b").await;
}
