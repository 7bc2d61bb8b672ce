//! Flow control: more is sent than the receiver has room for.

use bmi_core::{Config, ErrorKind};

use crate::data::{memory, pattern};
use crate::message::tight;
use crate::net::{Net, SOON, all_end_well, fails, soon};

/// The cost of a parked message beside its bytes, as [`bmi_core::Config::validate`] counts it.
const MESSAGE_OVERHEAD: usize = 64;

/// Sends messages of `size` without receives, then receives them all.
async fn more_sends_than_credits(net: &Net<'_>, config: &Config, size: usize, messages: u64) {
    let pair = net.pair(config).await;
    let sends: Vec<_> = (0..messages).map(|n| pair.send(1, pattern(n, size))).collect();
    net.until("messages to be parked", || (pair.b.resource_usage().parked > 0).then_some(())).await;
    net.turns(100).await;
    let resource_usage = pair.b.resource_usage();
    assert!(resource_usage.slots <= usize::from(config.credits.messages), "{resource_usage:?}");
    assert!(resource_usage.parked * (size + MESSAGE_OVERHEAD) <= config.credits.bytes as usize, "{resource_usage:?}");
    assert!(pair.a.counters().credit_waits > 0, "nobody waited for a credit");
    assert!(pair.b.counters().unmatched > 0, "nothing was counted as unmatched");
    for n in 0..messages {
        let target = memory(size);
        let got = pair.recv(1, &target).await;
        assert_eq!(got.unwrap_or_else(|error| panic!("message {n}: {error}")).len, size as u64);
        assert!(target.to_vec() == pattern(n, size), "message {n}");
    }
    all_end_well(sends).await;
    pair.settled(net, "after all messages").await;
}

/// Credits in messages run out: small messages.
pub async fn exhausted_in_messages(net: &Net<'_>) {
    more_sends_than_credits(net, &tight(), 1, 200).await;
}

/// Credits in bytes run out before those in messages: messages of the eager limit.
pub async fn exhausted_in_bytes(net: &Net<'_>) {
    let config = tight().credit_messages(64);
    more_sends_than_credits(net, &config, config.credits.eager_limit, 50).await;
}

/// Both sides send more than there are credits before either receives. No side waits without end.
pub async fn exhausted_in_both_directions(net: &Net<'_>) {
    const MESSAGES: u64 = 40;
    let pair = net.pair(&tight()).await;
    let peers = [&pair.to_b, &pair.to_a];
    let mut sends = Vec::new();
    for n in 0..MESSAGES {
        for peer in peers {
            let size = if n % 3 == 2 { 5000 } else { 1000 };
            sends.push(peer.send(1, pattern(n, size), peer.within(SOON)));
        }
    }
    net.turns(100).await;
    let mut receives = Vec::new();
    for n in 0..MESSAGES {
        for peer in peers {
            let target = memory(5000);
            receives.push((n, peer.recv(1, &target, peer.within(SOON)), target));
        }
    }
    for (n, receive, target) in receives {
        let len = receive.await.unwrap_or_else(|error| panic!("message {n}: {error}")).len as usize;
        assert!(target.to_vec()[..len] == pattern(n, len), "message {n}");
    }
    all_end_well(sends).await;
    pair.settled(net, "after all messages").await;
}

/// One-way traffic gives credits back without a message to carry them.
pub async fn credits_return_on_their_own(net: &Net<'_>) {
    const MESSAGES: u64 = 200;
    let pair = net.pair(&tight()).await;
    for n in 0..MESSAGES {
        let target = memory(100);
        pair.pass(1, pattern(n, 100), &target).await;
    }
    let counters = pair.b.counters();
    assert!(counters.credit_messages > 0, "{counters:?}");
    assert!(counters.credit_messages < MESSAGES, "a credit message for each message: {counters:?}");
    pair.settled(net, "after all messages").await;
}

/// A peer whose messages are not received uses up its own credits, not those of another peer.
pub async fn one_peer_cannot_starve_another(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let c = net.endpoint("c", &tight());
    let (c_to_b, b_to_c) = net.connect(&c, &pair.b, &pair.addr).await;
    let crowd: Vec<_> = (0..30).map(|n| pair.send(9, pattern(n, 1000))).collect();
    net.turns(50).await;
    for _ in 0..20 {
        net.ping(&c_to_b, &b_to_c, "beside a crowd").await;
    }
    drop(crowd);
    pair.to_b.disconnect(soon(&pair.a)).await.expect("disconnect");
}

/// A send that gets no credit ends at its deadline, in an error that names peer and operation.
/// Later sends go on.
pub async fn a_starved_send_times_out(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let first: Vec<_> = (0..20).map(|n| pair.send(1, pattern(n, 1000))).collect();
    let short = pair.a.within(std::time::Duration::from_millis(30));
    let starved = pair.to_b.send(1, pattern(99, 1000), short);
    let after = pair.send(1, pattern(20, 1000));
    let error = fails(starved.await, ErrorKind::TimedOut, "send");
    assert!(error.peer().is_some(), "{error}");
    for n in 0..=20 {
        let target = memory(1000);
        pair.recv(1, &target).await.expect("receive");
        assert!(target.to_vec() == pattern(n, 1000), "message {n}: the one that timed out was never sent");
    }
    all_end_well(first).await;
    after.await.expect("send");
    pair.settled(net, "at the end").await;
}

/// Eager messages that come before their receive are parked, counted, and delivered in order.
pub async fn unmatched_are_parked(net: &Net<'_>) {
    let pair = net.pair(&Config::default()).await;
    for n in 0..10u64 {
        pair.send(n % 2, pattern(n, 100 + n as usize)).await.expect("eager send");
    }
    net.until("all messages parked", || (pair.b.resource_usage().parked == 10).then_some(())).await;
    assert_eq!(pair.b.counters().unmatched, 10);
    for n in [1, 3, 0, 2, 4, 5, 6, 7, 8, 9u64] {
        let target = memory(200);
        let len = pair.recv(n % 2, &target).await.expect("receive").len as usize;
        assert_eq!(len, 100 + n as usize);
        assert!(target.to_vec()[..len] == pattern(n, len), "message {n}");
    }
    pair.settled(net, "all handed over").await;
}
