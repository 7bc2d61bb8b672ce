//! Offered receives: messages of middle size whose receive was posted first. The receiver offers
//! its memory, and the sender writes into it. Offers and messages cross on the wire, and both sides
//! must still pair the same message with the same receive.

use bmi_core::{ErrorKind, Options};
use futures_util::future::join;

use crate::data::{Guarded, memory, pattern};
use crate::message::tight;
use crate::net::{Net, Pair, all_end_well};

/// A size above the eager limit of [`tight`] and below its transfer unit.
const MIDDLE: usize = 3000;

/// Receives posted ahead, of one piece each. Their messages arrive whole and in order, short ones
/// leave the rest untouched, and the counters show that the receives were written directly.
pub async fn receives_posted_ahead(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let sizes = [MIDDLE, 1025, 4096, 1024, 0, 2000, 5000, MIDDLE];
    let targets: Vec<_> = sizes.iter().map(|_| Guarded::new(&[4096])).collect();
    let receives: Vec<_> = targets.iter().map(|target| pair.recv(1, target.list())).collect();
    // A ping after the offers: as many as there are credits for have arrived.
    pair.ping(net, "behind the offers").await;
    let sends: Vec<_> = (0u64..).zip(sizes).map(|(n, size)| pair.send(1, pattern(n, size))).collect();
    for (n, (receive, send)) in receives.into_iter().zip(sends).enumerate() {
        let (sent, received) = join(send, receive).await;
        if sizes[n] > 4096 {
            assert_eq!(received.expect_err("too long").kind(), ErrorKind::TooLarge, "message {n}");
            assert_eq!(sent.expect_err("too long").kind(), ErrorKind::TooLarge, "message {n}");
            targets[n].check_untouched("too long");
            continue;
        }
        sent.unwrap_or_else(|error| panic!("message {n}: {error}"));
        let len = received.unwrap_or_else(|error| panic!("message {n}: {error}")).len;
        assert_eq!(len, sizes[n] as u64, "message {n}");
        targets[n].check(&format!("message {n}"), &pattern(n as u64, sizes[n]));
    }
    assert!(pair.a.counters().offered > 0, "{:?}", pair.a.counters());
    pair.settled(net, "after all messages").await;
}

/// A message that left before the offer arrived takes the offered receive, and the sender drops the
/// offer.
pub async fn offers_cross_messages(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    for (n, first) in [10, 1024, MIDDLE, 9000].into_iter().enumerate() {
        // The offer goes out while `a` does not poll.
        net.pause("a", true);
        let (one, two) = (memory(MIDDLE * 3), memory(MIDDLE));
        let receive_one = pair.recv(1, &one);
        let receive_two = pair.recv(1, &two);
        net.turns(20).await;
        let sends = vec![pair.send(1, pattern(1, first)), pair.send(1, pattern(2, MIDDLE))];
        net.pause("a", false);
        let what = format!("round {n}");
        let got = receive_one.await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(got.len, first as u64, "{what}");
        assert!(one.to_vec()[..first] == pattern(1, first), "{what}");
        receive_two.await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(two.to_vec() == pattern(2, MIDDLE), "{what}");
        all_end_well(sends).await;
    }
    pair.settled(net, "at the end").await;
}

/// First an eager message of one tag, then a message written into an offered receive of another
/// tag. Then the offer of the first tag's receive arrives late. It belongs to the eager message,
/// and the next message of that tag must not be written into it.
pub async fn an_offer_that_is_late_beside_another_tag(net: &Net<'_>) {
    const LATE: u64 = 1;
    const EARLY: u64 = 2;
    let pair = net.pair(&tight()).await;
    let (early, late, next) = (memory(MIDDLE), memory(MIDDLE), memory(MIDDLE));
    let early_receive = pair.recv(EARLY, &early);
    pair.ping(net, "behind the early offer").await;
    net.pause("a", true);
    let late_receive = pair.recv(LATE, &late);
    // The late offer leaves, and `a` has not seen it when it sends.
    net.turns(20).await;
    let sends = vec![pair.send(LATE, pattern(1, 100)), pair.send(EARLY, pattern(2, MIDDLE))];
    net.pause("a", false);
    assert_eq!(late_receive.await.expect("the eager message").len, 100);
    early_receive.await.expect("the message of the early offer");
    assert!(early.to_vec() == pattern(2, MIDDLE));
    all_end_well(sends).await;
    let send = pair.send(LATE, pattern(3, MIDDLE));
    net.turns(20).await;
    let (sent, received) = join(send, pair.recv(LATE, &next)).await;
    sent.expect("the next message of the late offer's tag");
    received.expect("the next message of the late offer's tag");
    assert!(next.to_vec() == pattern(3, MIDDLE));
    assert!(late.to_vec()[..100] == pattern(1, 100), "the late receive has the eager message");
    assert!(late.to_vec()[100..].iter().all(|byte| *byte == 0), "and nothing else");
    pair.settled(net, "at the end").await;
}

/// An offered receive that is cancelled, or times out, ends correctly at any time. A message that
/// is sent later goes to the next receive.
pub async fn offers_are_withdrawn(net: &Net<'_>) {
    let pair: Pair = net.pair(&tight().fence_grace(crate::net::SOON)).await;
    for turns in (0..12).chain([20, 40]) {
        for with_message in [false, true] {
            let what = format!("withdrawn after {turns} turns, {}", if with_message { "written" } else { "unused" });
            let mut target = memory(MIDDLE);
            let receive = pair.to_a.recv(1, &target, Options::default());
            if with_message {
                pair.ping(net, "behind the offer").await;
            }
            let send = with_message.then(|| pair.send(1, pattern(1, MIDDLE)));
            net.turns(turns).await;
            receive.cancel();
            match receive.await {
                Ok(_) => {
                    assert!(with_message && target.to_vec() == pattern(1, MIDDLE), "{what}");
                    send.expect("there was one").await.unwrap_or_else(|error| panic!("{what}: {error}"));
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Cancelled, "{what}: {error}");
                    if let Some(send) = send {
                        let other = memory(MIDDLE);
                        let receive = pair.recv(1, &other);
                        // The transfer may have been in flight. Then it was cancelled on both
                        // sides, and the other receive waits.
                        match send.await {
                            Ok(_) => {
                                receive.await.unwrap_or_else(|error| panic!("{what}: {error}"));
                                assert!(other.to_vec() == pattern(1, MIDDLE), "{what}");
                            }
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::Cancelled, "{what}: {error}");
                                receive.cancel();
                                receive.await.expect_err("nothing is left for it");
                            }
                        }
                    }
                }
            }
            pair.ping(net, &what).await;
            pair.settled(net, &what).await;
            net.released("the memory", [&mut target]).await;
        }
    }
}
