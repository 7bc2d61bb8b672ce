//! Every kind of operation ends at its deadline, in an error that names operation and peer.

use std::time::Duration;

use bmi_core::{Access, Completion, Error, ErrorKind, Options};

use crate::data::{Guarded, is_sole, memory, pattern};
use crate::message::{reads, tight};
use crate::net::{Net, fails, soon};

/// A deadline that is reached in a test that succeeds.
const SHORT: Duration = Duration::from_millis(40);

/// Checks that an operation ended `TimedOut`, not before its deadline, naming itself and the peer.
fn timed_out(net: &Net<'_>, result: Result<Completion, Error>, options: Options, operation: &str) {
    let error = result.expect_err(operation);
    assert_eq!((error.kind(), error.operation()), (ErrorKind::TimedOut, Some(operation)), "{error}");
    assert!(error.peer().is_some(), "{operation}: the error names no peer: {error}");
    let deadline = options.deadline.expect("the test set one");
    assert!(net.backend().now() >= deadline, "{operation}: ended before its deadline");
}

/// A receive without a matching message.
pub async fn receive_never_matched(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let mut target = memory(100);
    let options = pair.b.within(SHORT);
    let result = pair.to_a.recv(1, &target, options).await;
    timed_out(net, result, options, "receive");
    assert!(is_sole(&mut target), "the memory is the caller's again");
    pair.ping(net, "after the time-out").await;
    pair.settled(net, "after the time-out").await;
    pair.send(1, pattern(1, 100)).await.expect("send");
    pair.recv(1, &target).await.expect("the next receive of the tag gets it");
    assert!(target.to_vec() == pattern(1, 100));
}

/// An announced send without a matching receive. A receive posted later does not get it.
pub async fn rendezvous_never_matched(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let options = pair.a.within(SHORT);
    let result = pair.to_b.send(1, pattern(1, 50_000), options).await;
    timed_out(net, result, options, "send");
    pair.ping(net, "after the time-out").await;
    pair.settled(net, "after the time-out").await;
    let target = memory(50_000);
    assert_eq!(
        pair.pass(1, pattern(2, 40_000), &target).await.len,
        40_000,
        "the message that timed out is not the next one's"
    );
    assert!(target.to_vec()[..40_000] == pattern(2, 40_000));
}

/// Connecting to a listener that never answers. Without a deadline of its own the configured one is
/// used.
pub async fn connect_to_a_silent_listener(net: &Net<'_>) {
    use bmi_core::Transport;
    let silent = net.bare("silent");
    let addr = silent.with(|t| t.listen(&net.listen_addr("silent"))).expect("listen");
    let config = tight().connect_timeout(SHORT);
    let a = net.endpoint("a", &config);
    for options in [a.within(SHORT), Options::default()] {
        let started = a.now();
        let error = fails(a.connect(&addr, options).await, ErrorKind::TimedOut, "connect");
        assert!(error.to_string().contains(&addr.to_string()), "the error names the address: {error}");
        assert!(a.now().since(started) >= SHORT, "ended before its deadline");
        net.settled(&a, 0, "after the time-out").await;
    }
}

/// The peer of a transfer stops polling in the middle. Both kinds of send, receive, pull and push
/// end in bounded time, and all memory is released.
pub async fn peer_stops_polling(net: &Net<'_>) {
    let config = tight();
    let pair = net.pair(&config).await;
    // A thousand times the limit of bytes in flight: no transfer is near its end after a few
    // turns.
    let big = 8 << 20;
    let exposure = pair.expose(memory(big), Access::READ_WRITE);
    let mut buffers: Vec<_> = (0..4).map(|_| memory(big)).collect();
    let incoming = pair.to_b.recv(3, &buffers[0], pair.a.within(SHORT));
    let outgoing = pair.to_a.send(3, memory(big), soon(&pair.b));
    let landing = pair.recv(4, memory(big));
    let options = pair.a.within(SHORT);
    let sending = pair.to_b.send(4, &buffers[1], options);
    let (second, pulling) = match reads(net) {
        true => ("pull", pair.to_b.pull(exposure.descriptor(), 0, &buffers[2], options)),
        false => ("push", pair.to_b.push(exposure.descriptor(), 0, &buffers[2], options)),
    };
    let pushing = pair.to_b.push(exposure.descriptor(), 0, &buffers[3], options);
    net.turns(6).await;
    net.pause("b", true);
    // On a backend whose adapter works without its program, the transfers may finish in time.
    // All others reach the deadline.
    for (operation, work) in [("receive", incoming), ("send", sending), (second, pulling), ("push", pushing)] {
        if let Err(error) = work.await {
            let kinds = [ErrorKind::TimedOut, ErrorKind::PeerLost];
            assert!(kinds.contains(&error.kind()), "{operation}: {error}");
            assert_eq!(error.operation(), Some(operation), "{error}");
        }
    }
    let late = pair.a.now().since(options.deadline.expect("set above"));
    assert!(
        late <= config.timeouts.fence_grace + net.backend().patience() / 4,
        "the last operation ended {late:?} late"
    );
    net.released("buffers", &mut buffers).await;
    net.pause("b", false);
    drop((outgoing, landing, exposure));
    let peers = pair.a.resource_usage().peers;
    net.settled(&pair.a, peers, "the side that timed out").await;
    net.settled(&pair.b, peers, "the side that stopped").await;
}

/// A deadline that has already passed when the operation is posted.
pub async fn already_passed(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    net.turns(5).await;
    let past = Options::by(bmi_core::Time::from_nanos(1));
    timed_out(net, pair.to_a.recv(1, memory(10), past).await, past, "receive");
    timed_out(net, pair.to_b.send(1, pattern(1, 50_000), past).await, past, "send");
    pair.ping(net, "after both").await;
    pair.settled(net, "after both").await;
}

/// Memory of an operation that timed out is not touched by bytes that arrive later.
pub async fn late_bytes_touch_nothing(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    for size in [500, 50_000] {
        let target = Guarded::new(&[size]);
        let options = pair.b.within(SHORT);
        let result = pair.to_a.recv(1, target.list(), options).await;
        timed_out(net, result, options, "receive");
        let second = memory(size);
        pair.pass(1, pattern(1, size), &second).await;
        target.check_untouched("the receive that timed out");
        assert!(second.to_vec() == pattern(1, size));
    }
}

/// Timers end in the order of their times, even if one poll finds several of them due. `sleep` ends
/// at its time, not before.
pub async fn timers_in_order(net: &Net<'_>) {
    let a = net.endpoint("a", &tight());
    let started = a.now();
    for ms in [30, 10, 20, 0, 25] {
        a.with(|e| e.post_timer(started + Duration::from_millis(ms), ms));
    }
    let mut ended = Vec::new();
    net.until("all timers", || {
        let before = ended.len();
        a.with(|e| e.poll_all(&mut ended));
        for timer in &ended[before..] {
            assert!(a.now() >= started + Duration::from_millis(timer.user), "ended early: {timer:?}");
        }
        (ended.len() == 5).then_some(())
    })
    .await;
    assert_eq!(ended.iter().map(|timer| timer.user).collect::<Vec<_>>(), [0, 10, 20, 25, 30]);
    let before = a.now();
    a.sleep(SHORT).await;
    assert!(a.now().since(before) >= SHORT);
    drop(Box::pin(a.sleep(Duration::from_secs(3600))));
    net.settled(&a, 0, "after all timers").await;
}

/// Deadlines far ahead cost nothing and end nothing. An endpoint reports when it needs to be
/// polled.
pub async fn next_deadline_is_the_earliest(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let far = Options::by(bmi_core::Time::from_nanos(u64::MAX));
    let waiting = pair.to_a.recv(1, memory(10), far);
    let near = pair.b.within(Duration::from_secs(2));
    let sooner = pair.to_a.recv(2, memory(10), near);
    net.turns(5).await;
    let next = pair.b.next_deadline().expect("a deadline is pending");
    assert!(next <= near.deadline.expect("set above"), "{next}");
    for tag in [1, 2] {
        pair.send(tag, vec![1]).await.expect("send");
    }
    waiting.await.expect("receive");
    sooner.await.expect("receive");
    pair.settled(net, "at the end").await;
}
