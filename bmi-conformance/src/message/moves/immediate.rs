//! Short pulls and pushes, which may complete when they are posted
//! ([`bmi_core::Transport::write_now`]).
//!
//! Some transports never complete a transfer at once. Over them these tests check that such
//! transfers end as any other. The counter `immediate` shows which case it was.

use bmi_core::{Access, Completion, Config, ErrorKind, Lists, OpKind, Options, Posted, Time};

use crate::data::{Guarded, memory, pattern};
use crate::message::{reads, tight};
use crate::net::{Net, Pair, fails, soon};

/// Returns the completion of a transfer, and whether it was complete when it was posted.
async fn end_of(net: &Net<'_>, pair: &Pair, posted: Result<Posted, bmi_core::Error>) -> (Completion, bool) {
    match posted.expect("post") {
        Posted::Done(end) => {
            let op = end.op;
            pair.a.with(|engine| {
                assert!(engine.is_issued(op), "what is over has been issued");
                engine.cancel(op);
                engine.abandon(op);
                assert_eq!(engine.poll_op(op), None, "it is told of once");
                assert_eq!(engine.poll_all(&mut Vec::new()), 0, "by its post alone");
            });
            (end, true)
        }
        Posted::Pending(op) => (net.until("a transfer", || pair.a.with(|e| e.poll_op(op))).await, false),
    }
}

/// A short transfer completes in the same way, immediately or later. Its completion reports the
/// same, its bytes are in place before a message that is sent after it, it is counted, and nothing
/// remains.
pub async fn over_when_posted(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let far = Guarded::filled(1, &[900, 3000, 100]);
    let exposure = pair.expose(far.list(), Access::READ_WRITE);
    let mut image = pattern(1, 4000);
    pair.ping(net, "before the first").await;
    let (mut at_once, mut pulls, mut pushes) = (0, 0, 0);
    // Within one piece of the peer's list, and across two; lists of one piece and of more.
    let shapes: [(u64, &[usize]); 5] = [(0, &[64]), (900, &[3000]), (1000, &[10, 0, 20]), (890, &[20]), (3999, &[1])];
    for (number, (at, lens)) in (0..20).flat_map(|_| shapes).enumerate() {
        let (what, user) = (format!("transfer {number}"), number as u64);
        let lists = [Lists::Auto, Lists::Chain, Lists::Pack, Lists::PackExposed][number % 4];
        let options = soon(&pair.a).user(user).lists(lists);
        let source = Guarded::filled(user, lens);
        let told = pair.recv(1, memory(1));
        let posted = pair.a.with(|e| e.post_push(pair.to_b.id(), exposure.descriptor(), at, source.list(), options));
        let (end, over) = end_of(net, &pair, posted).await;
        assert_eq!((end.kind, end.peer, end.status), (OpKind::Push, Some(pair.to_b.id()), Ok(())), "{what}");
        assert_eq!((end.len, end.user), (source.len() as u64, user), "{what}");
        assert!(!over || lists != Lists::Pack || lens.len() == 1, "{what}: packing was asked for");
        (at_once, pushes) = (at_once + u64::from(over), pushes + 1);
        pair.send(1, vec![1]).await.expect("send");
        told.await.expect("receive");
        image[at as usize..at as usize + source.len()].copy_from_slice(&pattern(user, source.len()));
        far.check(&what, &image);
        if reads(net) {
            let target = Guarded::new(lens);
            let posted =
                pair.a.with(|e| e.post_pull(pair.to_b.id(), exposure.descriptor(), at, target.list(), options));
            let (end, over) = end_of(net, &pair, posted).await;
            assert_eq!((end.kind, end.status), (OpKind::Pull, Ok(())), "{what}");
            assert_eq!((end.len, end.user), (target.len() as u64, user), "{what}");
            (at_once, pulls) = (at_once + u64::from(over), pulls + 1);
            target.check(&what, &image[at as usize..at as usize + target.len()]);
        }
    }
    let counters = pair.a.counters();
    assert_eq!((counters.pushes, counters.pulls, counters.immediate), (pushes, pulls, at_once));
    assert_eq!(counters.bytes_pushed, 20 * 3115);
    assert_eq!(counters.bytes_pulled, if reads(net) { 20 * 3115 } else { 0 });
    drop(exposure);
    pair.settled(net, "after all transfers").await;
}

/// Short transfers run while long ones are in flight. All end, each with its own bytes, and none
/// waits without end.
pub async fn beside_long_ones(net: &Net<'_>) {
    let pair = net.pair(&Config::default()).await;
    let (long, short) = (3 << 20, 500);
    let far = Guarded::filled(1, &[long, 40 * short]);
    let exposure = pair.expose(far.list(), Access::READ_WRITE);
    pair.ping(net, "before the first").await;
    let mut bulk = Vec::new();
    let sources: Vec<_> = (0..40).map(|number| Guarded::filled(100 + number, &[short])).collect();
    for (number, source) in sources.iter().enumerate() {
        if number % 8 == 0 {
            let part = Guarded::filled(2, &[long]);
            bulk.push(pair.push(exposure.descriptor(), 0, part.list()));
        }
        let at = (long + number * short) as u64;
        let pushed = pair.push(exposure.descriptor(), at, source.list());
        assert_eq!(pushed.await.expect("a short push").len, short as u64);
    }
    for push in bulk {
        assert_eq!(push.await.expect("a long push").len, long as u64);
    }
    pair.ping(net, "behind all").await;
    let mut image = pattern(2, long);
    (0..40).for_each(|number| image.extend(pattern(100 + number, short)));
    far.check("all bytes", &image);
    drop(exposure);
    pair.settled(net, "after all transfers").await;
}

/// Errors are reported as usual: a range out of bounds, a peer that is gone, a deadline that has
/// passed.
pub async fn what_is_wrong_is_said(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let far = Guarded::filled(1, &[100]);
    let exposure = pair.expose(far.list(), Access::READ_WRITE);
    pair.ping(net, "before the first").await;
    let post = |at, len, options| {
        let list = memory(len);
        pair.a.with(|e| e.post_push(pair.to_b.id(), exposure.descriptor(), at, &list, options))
    };
    for (at, len) in [(0, 101), (100, 1), (101, 1), (u64::MAX, 1), (u64::MAX - 5, 20)] {
        fails(post(at, len, Options::default()), ErrorKind::Invalid, "push");
    }
    // The transfer may complete before its deadline is checked, but it must not complete when
    // it is posted.
    let late = post(0, 100, Options::by(Time::ZERO)).expect("post").pending().expect("its deadline has passed");
    let end = net.until("the late push", || pair.a.with(|e| e.poll_op(late))).await;
    assert!(matches!(end.status, Ok(()) | Err(ErrorKind::TimedOut)), "{end:?}");
    pair.to_b.disconnect(soon(&pair.a)).await.expect("disconnect");
    fails(post(0, 100, Options::default()), ErrorKind::PeerLost, "push");
}
