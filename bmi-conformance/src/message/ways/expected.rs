//! Expected messages: sizes, lists, tags, order, and messages that do not fit.

use bmi_core::{Access, Config, Counters, ErrorKind, MAX_TAG, Memory, OpKind, Options, Posted};
use bytes::Bytes;
use futures_util::future::{join, join_all};

use crate::data::{Guarded, filled, is_sole, memory, pattern};
use crate::message::{reads, tight};
use crate::net::{Net, SOON, all_end_well, fails, soon};
use crate::rng::Rng;

/// Every size around the limit between eager and rendezvous, and sizes of several transfer units,
/// arrive whole, whether the receive or the send comes first. The counters name the path of each.
pub async fn sizes_around_the_eager_limit(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let limit = pair.to_b.limits().expect("connected").eager;
    assert_eq!(limit, tight().credits.eager_limit, "both sides have the same limit");
    let sizes = [0, 1, 7, limit - 1, limit, limit + 1, 4096, 3 * 4096 + 1, 300_000];
    for (number, size) in sizes.into_iter().enumerate() {
        for receive_first in [true, false] {
            let what = format!("{size} bytes, {}", if receive_first { "receive first" } else { "send first" });
            let before = pair.a.counters();
            let target = Guarded::new(&[size]);
            let bytes = pattern(number as u64, size);
            let send = || pair.send(5, bytes.clone());
            let recv = || pair.recv(5, target.list());
            let (sent, received) = if receive_first {
                let recv = recv();
                net.turns(20).await;
                join(send(), recv).await
            } else {
                let send = send();
                net.turns(20).await;
                join(send, recv()).await
            };
            let sent = sent.unwrap_or_else(|error| panic!("{what}: {error}"));
            let received = received.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!((sent.len, sent.kind, sent.tag), (size as u64, OpKind::Send, 5), "{what}");
            assert_eq!((received.len, received.kind, received.tag), (size as u64, OpKind::Recv, 5), "{what}");
            assert_eq!((sent.peer, received.peer), (Some(pair.to_b.id()), Some(pair.to_a.id())), "{what}");
            target.check(&what, &bytes);
            let after = pair.a.counters();
            // A receive that was there first may be written directly, which saves the
            // rendezvous.
            let long = |counters: &Counters| counters.rendezvous + counters.offered;
            let ways = (after.eager - before.eager, long(&after) - long(&before));
            assert_eq!(ways, if size <= limit { (1, 0) } else { (0, 1) }, "{what}");
            assert_eq!(after.bytes_sent - before.bytes_sent, size as u64, "{what}");
        }
    }
    let total: usize = sizes.iter().sum();
    assert_eq!(pair.b.counters().bytes_received, 2 * total as u64);
    pair.settled(net, "after all sizes").await;
}

/// Lists on both sides with unrelated shapes, with empty pieces, out of address order.
pub async fn lists_of_different_shapes(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let many_small = [3; 200];
    let shapes: [(&[usize], &[usize]); 8] = [
        (&[], &[]),
        (&[0, 0], &[0]),
        (&[10, 20, 30], &[60]),
        (&[600], &[1, 599, 0]),
        (&many_small, &[100, 500]),
        (&[500, 524], &many_small[..]),
        (&[5000, 1, 4095, 0, 90_000], &[90_000, 9096]),
        (&[40_000, 40_000], &[1, 4096, 75_903]),
    ];
    for (number, (from, to)) in shapes.into_iter().enumerate() {
        let what = format!("shape {number}");
        let room: usize = to.iter().sum();
        let lens = if from.iter().sum::<usize>() > room { &[room][..] } else { from };
        let (source, target) = (Guarded::filled(number as u64, lens), Guarded::new(to));
        let recv = pair.recv(1, target.list());
        let send = pair.send(1, source.list());
        let (sent, received) = join(send, recv).await;
        sent.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(received.unwrap_or_else(|error| panic!("{what}: {error}")).len, source.len() as u64, "{what}");
        target.check(&what, &pattern(number as u64, source.len()));
        source.check(&what, &pattern(number as u64, source.len()));
    }
    pair.settled(net, "after all shapes").await;
}

/// A receive takes the oldest message of its tag and peer, regardless of other tags and of each
/// message's path.
pub async fn tags_match_in_order(net: &Net<'_>) {
    let pair = net.pair(&Config::default()).await;
    let limit = Config::default().credits.eager_limit;
    // Sizes on both sides of the limit in turn, so that a small message would like to overtake
    // a large one.
    let plan: Vec<(u64, usize)> =
        (0..24u64).map(|n| (n % 3, if n % 2 == 0 { limit * 3 } else { 10 + n as usize })).collect();
    let sends: Vec<_> =
        plan.iter().enumerate().map(|(n, (tag, size))| pair.send(*tag, pattern(n as u64, *size))).collect();
    net.turns(30).await;
    let mut receives = Vec::new();
    for tag in [2, 0, 1] {
        for (n, (_, size)) in plan.iter().enumerate().filter(|(_, (t, _))| *t == tag) {
            let target = memory(limit * 3);
            receives.push((n, *size, pair.recv(tag, &target), target));
        }
    }
    for (n, size, receive, target) in receives {
        let got = receive.await.unwrap_or_else(|error| panic!("message {n}: {error}"));
        assert_eq!(got.len, size as u64, "message {n}");
        assert!(target.to_vec()[..size] == pattern(n as u64, size), "message {n}: bytes");
    }
    for sent in join_all(sends).await {
        sent.expect("send");
    }
    pair.settled(net, "after all tags").await;
}

/// The extreme values of a tag are tags like any other.
pub async fn extreme_tags(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    for size in [10, 5000] {
        let tags = [0, MAX_TAG, 1 << 62, u64::from(u32::MAX)];
        let receives = join_all(tags.map(|tag| {
            let target = memory(5000);
            let receive = pair.recv(tag, &target);
            async move {
                receive.await.expect("receive");
                target.to_vec()[..size].to_vec()
            }
        }));
        let sends = join_all(tags.map(|tag| pair.send(tag, pattern(tag, size))).into_iter().rev());
        let (received, sent) = join(receives, sends).await;
        assert!(sent.iter().all(Result::is_ok), "{sent:?}");
        for (tag, bytes) in tags.iter().zip(received) {
            assert!(bytes == pattern(*tag, size), "tag {tag}");
        }
    }
}

/// A message shorter than its receive reports its own length and leaves the rest untouched.
pub async fn short_receives(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    for (size, room) in [(0, &[10][..]), (5, &[3, 900]), (1024, &[500, 500, 5000]), (9000, &[8000, 60_000])] {
        let target = Guarded::new(room);
        let recv = pair.recv(1, target.list());
        let send = pair.send(1, pattern(1, size));
        let (sent, received) = join(send, recv).await;
        assert_eq!(sent.expect("send").len, size as u64);
        assert_eq!(received.expect("receive").len, size as u64);
        target.check(&format!("{size} bytes"), &pattern(1, size));
    }
    pair.settled(net, "after short receives").await;
}

/// A message longer than its matching receive ends the receive with `TooLong`, and the send too if
/// it has not ended before. No guard byte is touched, and the connection goes on.
pub async fn too_long_for_the_receive(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let limit = tight().credits.eager_limit;
    for (size, room) in [(1, 0), (11, 10), (limit, limit - 1), (limit + 1, limit), (50_000, 49_999), (50_000, 10)] {
        for receive_first in [true, false] {
            let what = format!("{size} bytes into {room}");
            let target = Guarded::new(&[room]);
            let (sent, received) = if receive_first {
                let recv = pair.recv(1, target.list());
                net.turns(20).await;
                join(pair.send(1, pattern(1, size)), recv).await
            } else {
                let send = pair.send(1, pattern(1, size));
                net.turns(20).await;
                join(send, pair.recv(1, target.list())).await
            };
            fails(received, ErrorKind::TooLarge, "receive");
            match sent {
                Ok(_) => assert!(size <= limit, "{what}: a rendezvous send knows"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::TooLarge, "{what}: {error}"),
            }
            let image = target.memory().to_vec();
            let at = target.pieces()[0].offset();
            let outside = image[..at].iter().chain(&image[at + room..]);
            assert!(outside.copied().all(|byte| byte == crate::data::GUARD), "{what}: guard bytes");
            pair.ping(net, &what).await;
        }
    }
    pair.settled(net, "after messages that were too long").await;
}

/// Messages over `max_message` and lists over `max_pieces` are refused before anything is sent.
pub async fn limits_of_messages(net: &Net<'_>) {
    let config = tight().max_message(10_000).max_pieces(3);
    let pair = net.pair(&config).await;
    let limits = pair.to_b.limits().expect("connected");
    assert_eq!((limits.message, limits.pieces), (10_000, 3));
    let target = memory(10_000);
    pair.pass(1, pattern(1, 10_000), &target).await;
    let error = pair.send(1, pattern(1, 10_001)).await.expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    let four = Guarded::filled(1, &[1, 2, 3, 4]);
    let error = pair.send(1, four.list()).await.expect_err("too many pieces");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let error = pair.to_b.recv(1, four.list(), soon(&pair.a)).await.expect_err("too many pieces");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    pair.settled(net, "after refused messages").await;
}

/// Many messages in both directions at once, of all sizes, far more than there are credits. All
/// arrive, in order and whole.
pub async fn many_outstanding(net: &Net<'_>) {
    const MESSAGES: usize = 150;
    let pair = net.pair(&tight()).await;
    let mut rng = Rng::new(3);
    let sizes: Vec<usize> = (0..MESSAGES)
        .map(|_| match rng.below(3) {
            0 => rng.index(100),
            1 => rng.index(1100),
            _ => rng.index(20_000),
        })
        .collect();
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for (n, size) in sizes.iter().enumerate() {
        for (to, from) in [(&pair.to_b, &pair.to_a), (&pair.to_a, &pair.to_b)] {
            let target = memory(20_000);
            receives.push((n, from.recv(4, &target, from.within(SOON)), target));
            sends.push(to.send(4, pattern(n as u64, *size), to.within(SOON)));
        }
    }
    for (n, receive, target) in receives {
        let got = receive.await.unwrap_or_else(|error| panic!("message {n}: {error}"));
        assert_eq!(got.len, sizes[n] as u64, "message {n}");
        assert!(target.to_vec()[..sizes[n]] == pattern(n as u64, sizes[n]), "message {n}: bytes");
    }
    all_end_well(sends).await;
    pair.settled(net, "after all messages").await;
}

/// An operation holds its memory while it runs. The caller has it again when the operation has
/// ended.
pub async fn memory_comes_back(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    for size in [100, 1024, 1025, 100_000] {
        let (mut source, mut target) = (filled(1, size), memory(size));
        let recv = pair.recv(1, &target);
        assert!(!is_sole(&mut target), "a posted receive holds its memory");
        let (sent, received) = join(pair.send(1, &source), recv).await;
        sent.expect("send");
        received.expect("receive");
        net.released("the sender's memory", [&mut source]).await;
        net.released("the receiver's memory", [&mut target]).await;
        assert!(source.to_vec() == target.to_vec());
    }
}

/// Memory that was registered ahead is used directly, and is released with the region's last
/// handle.
pub async fn registered_ahead(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let (mut source, mut target) = (filled(1, 50_000), memory(50_000));
    let regions = (
        pair.a.with(|e| e.register(&source)).expect("register"),
        pair.b.with(|e| e.register(&target)).expect("register"),
    );
    for _ in 0..3 {
        pair.pass(1, &source, &target).await;
    }
    assert!(source.to_vec() == target.to_vec());
    pair.settled(net, "after the transfers").await;
    assert!(!is_sole(&mut source) && !is_sole(&mut target), "the regions hold their memory");
    drop(regions);
    net.until("memory back after the regions", || (is_sole(&mut source) && is_sole(&mut target)).then_some(())).await;
}

/// A send to, or a receive from, a peer that does not exist fails at once and names the operation.
pub async fn stale_peer_is_an_error(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    pair.to_b.disconnect(soon(&pair.a)).await.expect("disconnect");
    net.lost(&pair.to_b).await;
    let target: Memory = memory(10);
    let send = pair.send(1, vec![1]).await.expect_err("the peer is gone");
    let recv = pair.to_b.recv(1, &target, soon(&pair.a)).await.expect_err("the peer is gone");
    for (error, operation) in [(send, "send"), (recv, "receive")] {
        assert_eq!((error.kind(), error.operation()), (ErrorKind::PeerLost, Some(operation)), "{error}");
    }
    let posted = pair.a.with(|e| e.post_send(pair.to_b.id(), 1, vec![1], Options::default()));
    assert!(!matches!(posted, Ok(Posted::Pending(_))), "{posted:?}");
    net.settled(&pair.a, 0, "after the peer has gone").await;
}

/// Read-only memory, which is made of `Bytes`, can be sent, pushed and exposed for reading. To
/// receive or pull into it, to grant it, and to expose it for writing is `Invalid`, and nothing was
/// sent then. Sizes on both sides of the eager limit.
pub async fn read_only_memory_is_never_written(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    for len in [100, 100_000] {
        let bytes = Bytes::from(pattern(len, len as usize));
        let into = memory(bytes.len());
        pair.pass(1, bytes.clone(), &into).await;
        assert!(into.to_vec() == bytes, "{len} bytes, sent");

        let into = memory(bytes.len());
        let exposure = pair.expose(&into, Access::WRITE);
        pair.push(exposure.descriptor(), 0, bytes.clone()).await.expect("push");
        pair.ping(net, "behind the push").await;
        assert!(into.to_vec() == bytes, "{len} bytes, pushed");

        let source = pair.to_b.expose(bytes.clone(), Access::READ).expect("expose for reading");
        if reads(net) {
            let into = memory(bytes.len());
            let pull = pair.to_a.pull(source.descriptor(), 0, &into, soon(&pair.b));
            pull.await.expect("pull");
            assert!(into.to_vec() == bytes, "{len} bytes, pulled");
        }

        let receive = pair.to_b.recv(1, bytes.clone(), soon(&pair.a)).await;
        let pull = pair.pull(exposure.descriptor(), 0, bytes.clone()).await;
        let refused = [
            ("recv", receive.err()),
            ("pull", pull.err()),
            ("grant", pair.to_b.grant(bytes.clone(), soon(&pair.a)).err()),
            ("expose", pair.to_b.expose(bytes.clone(), Access::WRITE).err()),
            ("expose", pair.to_b.expose(bytes.clone(), Access::READ_WRITE).err()),
        ];
        for (what, error) in refused {
            let error = error.unwrap_or_else(|| panic!("{what} writes to read-only memory"));
            assert_eq!(error.kind(), ErrorKind::Invalid, "{what}: {error}");
        }
        assert_eq!(bytes, pattern(len, len as usize));
    }
    pair.settled(net, "after the refusals").await;
}
