//! Who a peer is, and who is let in.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bmi_core::{Config, ErrorKind, Options, PeerEvent, PeerIdentity};

use crate::data::pattern;
use crate::message::tight;
use crate::net::{Net, fails, soon};

/// Both sides learn who the other one is: with the event, and as long as the peer is connected.
pub async fn both_sides_learn_who_is_there(net: &Net<'_>) {
    let (a, b) = (net.endpoint("a", &tight()), net.endpoint("b", &tight()));
    let addr = b.listen(&net.listen_addr("b")).expect("listen");
    let to_b = a.connect(&addr, soon(&a)).await.expect("connect");
    for (endpoint, there) in [(&a, "b"), (&b, "a")] {
        let known = net.backend().identity(there);
        match net.next_event(endpoint, "connected").await {
            PeerEvent::Connected { identity, peer, .. } => assert_eq!([&identity, &peer.identity()], [&known; 2]),
            other => panic!("{other:?}"),
        }
    }
    to_b.disconnect(soon(&a)).await.expect("disconnect");
    net.lost(&to_b).await;
    assert_eq!(to_b.identity(), PeerIdentity::Nobody, "who is gone is nobody");
}

/// What a policy was asked: who it is, and whether this side connects.
type Asked = Arc<Mutex<Vec<(PeerIdentity, bool)>>>;

/// Returns settings with a policy that lets nobody in until the flag is set, and what it was asked.
fn closed() -> (Config, Arc<AtomicBool>, Asked) {
    let (open, asked) = (Arc::new(AtomicBool::new(false)), Asked::default());
    let (is_open, notes) = (Arc::clone(&open), Arc::clone(&asked));
    let config = tight().admit(move |newcomer| {
        notes.lock().expect("nobody panics with it").push((newcomer.identity.clone(), newcomer.outgoing));
        is_open.load(Ordering::Relaxed).then_some(()).ok_or_else(|| "only the manager may".to_owned())
    });
    (config, open, asked)
}

/// A peer that is not let in learns so, with the reason, and that it need not try again. What it
/// has sent meanwhile is not delivered, and it leaves nothing behind. The next one is let in.
pub async fn who_is_not_let_in_is_told(net: &Net<'_>) {
    let (config, open, asked) = closed();
    let (a, b) = (net.endpoint("a", &tight()), net.endpoint("b", &config));
    let addr = b.listen(&net.listen_addr("b")).expect("listen");
    let (peer, _) = a.with(|e| e.connect(&addr, soon(&a))).expect("connect starts");
    let early = a.peer(peer).send_unexpected(1, pattern(1, 100), Options::default());
    fails(early.await, ErrorKind::Denied, "send unexpected");
    let error = fails(a.connect(&addr, soon(&a)).await, ErrorKind::Denied, "connect");
    assert!(!error.is_retryable() && error.to_string().contains("only the manager may"), "{error}");
    net.settled(&b, 0, "at the side that refused").await;

    open.store(true, Ordering::Relaxed);
    let to_b = a.connect(&addr, soon(&a)).await.expect("connect");
    to_b.send_unexpected(2, pattern(2, 100), soon(&a)).await.expect("send");
    assert_eq!(b.next_unexpected().await.tag(), 2, "nothing of the others was delivered");
    let known = (net.backend().identity("a"), false);
    assert_eq!(*asked.lock().expect("nobody panics with it"), [known.clone(), known.clone(), known], "once for each");
}

/// A side that connects lets nobody in, either, whom it does not want: what waits for the
/// connection ends, and none of it is sent.
pub async fn a_listener_that_is_not_the_right_one_gets_nothing(net: &Net<'_>) {
    let (config, _, asked) = closed();
    let (a, b) = (net.endpoint("a", &config), net.endpoint("b", &tight()));
    let addr = b.listen(&net.listen_addr("b")).expect("listen");
    let (peer, _) = a.with(|e| e.connect(&addr, soon(&a))).expect("connect starts");
    let early = a.peer(peer).send_unexpected(1, pattern(1, 100), Options::default());
    let error = fails(early.await, ErrorKind::Denied, "send unexpected");
    assert!(error.to_string().contains("only the manager may"), "{error}");
    assert_eq!(*asked.lock().expect("nobody panics with it"), [(net.backend().identity("b"), true)]);
    net.settled(&b, 0, "after the end").await;
    assert_eq!(a.counters().bytes_sent, 0);
}
