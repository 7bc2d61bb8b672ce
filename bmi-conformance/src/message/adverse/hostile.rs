//! A peer that breaks the protocol is cut off, with a reason in words, and no other peer notices.

use bmi_core::transport::{Event, MAX_PRIVATE_DATA, WriteTarget};
use bmi_core::{Access, Endpoint, ErrorKind, OneSided, Options, Peer, RemoteKey, RemoteSlice, Transport};
use futures_util::future::join;

use super::intruder::{
    ANNOUNCE, CANCEL, CREDIT, EAGER, FINISH, Forged, Intruder, READY, SLOTS, UNEXPECTED, WANT, WITHDRAW, WITHDRAWN,
    WRITTEN, word,
};
use crate::data::{Guarded, memory, pattern};
use crate::message::{reads, tight};
use crate::net::{Net, Pair, fails, soon};
use crate::rig::conn_of;
use crate::rng::Rng;

fn slice(len: u64) -> RemoteSlice {
    RemoteSlice { key: RemoteKey(0x1234_5678), addr: 0, len }
}

/// Creates a victim with an honest peer: `a` and `b` of the pair, where `b` is the victim.
async fn scene(net: &Net<'_>) -> (Pair, Intruder) {
    let pair = net.pair(&tight().max_pieces(8).max_message(1 << 20)).await;
    let intruder = Intruder::new(net).await;
    (pair, intruder)
}

/// Waits until the victim has only the honest peer, holds nothing, and works.
async fn unharmed(net: &Net<'_>, pair: &Pair, what: &str) {
    pair.ping(net, what).await;
    while pair.b.with(|e| e.poll_unexpected()).is_some() {}
    pair.settled(net, what).await;
}

/// A hello that is garbage, cut off, or offers too little is rejected with words. No other peer
/// notices.
pub async fn garbage_hello_is_refused(net: &Net<'_>) {
    let (pair, intruder) = scene(net).await;
    let mut garbage: Vec<Vec<u8>> =
        vec![vec![], vec![0; MAX_PRIVATE_DATA], vec![255; MAX_PRIVATE_DATA], b"GET / HTTP/1.1".to_vec()];
    garbage.extend((0..intruder.hello.len()).step_by(5).map(|len| intruder.hello[..len].to_vec()));
    let mut rng = Rng::new(5);
    for _ in 0..10 {
        let len = rng.index(MAX_PRIVATE_DATA);
        garbage.push(pattern(rng.next_u64(), len));
    }
    // All fields behind the magic bytes, version and features are all ones or all zero.
    for fill in [0, 255] {
        let mut hello = intruder.hello.clone();
        hello[24..].fill(fill);
        garbage.push(hello);
    }
    for (number, hello) in garbage.iter().enumerate() {
        let refusal = match intruder.knock(net, &pair.addr, hello).await {
            Err(refusal) => refusal,
            Ok(_) => panic!("hello {number} was accepted: {hello:?}"),
        };
        let words = String::from_utf8_lossy(&refusal);
        assert!(words.contains("hello") || words.contains("lacks") || words.contains("version"), "{words:?}");
        pair.ping(net, "beside a refused hello").await;
    }
    unharmed(net, &pair, "after all refused hellos").await;
}

/// A version or feature that does not fit is named, both to the refused peer and by its endpoint.
/// Bytes appended to a hello are ignored.
pub async fn mismatch_names_what_is_missing(net: &Net<'_>) {
    let (pair, intruder) = scene(net).await;
    let spoil = |at: usize, bytes: &[u8]| {
        let mut hello = intruder.hello.clone();
        hello[at..at + bytes.len()].copy_from_slice(bytes);
        hello
    };
    let cases = [
        (spoil(4, &[9, 0, 8, 0]), "version"),
        (spoil(4, &[0, 0, 0, 0]), "version"),
        (spoil(8, &(7u64 & !2).to_le_bytes()), "bulk"),
        (spoil(8, &0u64.to_le_bytes()), "rendezvous"),
        (spoil(16, &(7u64 | 1 << 40).to_le_bytes()), "0x10000000000"),
    ];
    let mut refusals = Vec::new();
    for (hello, word) in cases {
        let Err(refusal) = intruder.knock(net, &pair.addr, &hello).await else { panic!("accepted, for {word}") };
        let words = String::from_utf8_lossy(&refusal).into_owned();
        assert!(words.contains(word), "{words:?} does not name {word}");
        refusals.push((refusal, word));
    }
    let mut longer = intruder.hello.clone();
    longer.extend([1, 2, 3]);
    let Ok(breach) = intruder.knock(net, &pair.addr, &longer).await else { panic!("a later version may append") };
    intruder.leave(&breach);
    // The other way round: the error of an endpoint that gets such an answer.
    let addr = intruder.bare.with(|t| t.listen(&net.listen_addr("intruder"))).expect("listen");
    for (refusal, word) in refusals {
        let connecting = pair.a.connect(&addr, soon(&pair.a));
        let answer = async {
            let asked = |event: &Event| matches!(event, Event::ConnectRequest { .. });
            let event = net.event(&intruder.bare, "a request", asked).await;
            intruder.bare.with(|t| t.reject(conn_of(&event), &refusal));
        };
        let error = fails(join(connecting, answer).await.0, ErrorKind::Incompatible, "connect");
        assert!(error.to_string().contains(word), "{error} does not name {word}");
    }
    unharmed(net, &pair, "after all refusals").await;
}

/// A listener accepts with garbage instead of a hello. Connecting ends in an error.
pub async fn garbage_acceptance(net: &Net<'_>) {
    let (pair, intruder) = scene(net).await;
    let addr = intruder.bare.with(|t| t.listen(&net.listen_addr("intruder"))).expect("listen");
    for answer in [&b""[..], b"welcome", &[0; MAX_PRIVATE_DATA], &intruder.hello[..40]] {
        let connecting = pair.b.connect(&addr, soon(&pair.b));
        let answer = async {
            let asked = |event: &Event| matches!(event, Event::ConnectRequest { .. });
            let event = net.event(&intruder.bare, "a request", asked).await;
            intruder.bare.with(|t| t.accept(conn_of(&event), answer)).expect("accept");
        };
        let error = join(connecting, answer).await.0.expect_err("garbage instead of a hello");
        assert!(matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Incompatible), "{error}");
        assert_eq!(error.operation(), Some("connect"), "{error}");
    }
    unharmed(net, &pair, "after all answers").await;
}

/// Returns messages that contradict themselves or the protocol, one for each rule.
fn bad_messages() -> Vec<(&'static str, Vec<u8>)> {
    let zero = Forged::default();
    let table = |lens: &[u64]| -> Vec<u8> { lens.iter().flat_map(|len| slice(*len).to_wire()).collect() };
    vec![
        ("no bytes", vec![]),
        ("a header cut off", Forged { kind: EAGER, ..zero }.with(&[])[..31].to_vec()),
        ("kind 0", zero.with(&[])),
        ("kind 11", Forged { kind: 11, ..zero }.with(&[])),
        ("kind 255", Forged { kind: 255, ..zero }.with(&[1; 100])),
        ("an eager message longer than it says", Forged { kind: EAGER, len: 3, ..zero }.with(&[1; 4])),
        ("an eager message shorter than it says", Forged { kind: EAGER, len: u64::MAX, ..zero }.with(&[1; 4])),
        ("an eager message with an operation", Forged { kind: EAGER, len: 4, op: 1, ..zero }.with(&[1; 4])),
        ("an unexpected message of another length", Forged { kind: UNEXPECTED, len: 5, ..zero }.with(&[1; 4])),
        ("half a piece", Forged { kind: ANNOUNCE, len: 5, ..zero }.with(&table(&[5])[..12])),
        ("pieces that do not add up", Forged { kind: ANNOUNCE, len: 6, ..zero }.with(&table(&[5]))),
        ("pieces that overflow", Forged { kind: ANNOUNCE, len: 4, ..zero }.with(&table(&[u64::MAX, 5]))),
        ("more than the longest message", Forged { kind: ANNOUNCE, len: 1 << 50, ..zero }.with(&table(&[1 << 50]))),
        ("too many pieces", Forged { kind: ANNOUNCE, len: 9000, ..zero }.with(&table(&[1000; 9]))),
        ("a finish of nothing", Forged { kind: FINISH, op: 5, ..zero }.with(&[])),
        ("a finish of nothing, far away", Forged { kind: FINISH, op: u64::MAX, ..zero }.with(&[])),
        ("a finish with a payload", Forged { kind: FINISH, ..zero }.with(&[1])),
        ("a finish of unknown status", Forged { kind: FINISH, tag: 77, ..zero }.with(&[])),
        ("a cancel with a payload", Forged { kind: CANCEL, ..zero }.with(&[1])),
        ("a cancel with a tag", Forged { kind: CANCEL, tag: 1, ..zero }.with(&[])),
        ("a credit message with a length", Forged { kind: CREDIT, len: 1, ..zero }.with(&[])),
        ("a credit message with a payload", Forged { kind: CREDIT, ..zero }.with(&[0])),
        ("an offer of nothing", Forged { kind: READY, ..zero }.with(&[])),
        ("an offer of two pieces", Forged { kind: READY, ..zero }.with(&table(&[5, 5]))),
        ("an offer behind messages that were not sent", Forged { kind: READY, len: 1, ..zero }.with(&table(&[5]))),
        ("written into nothing", Forged { kind: WRITTEN, len: 5, op: 3, ..zero }.with(&[])),
        ("written with a payload", Forged { kind: WRITTEN, len: 5, op: 3, ..zero }.with(&[0; 5])),
        ("a withdrawal with a length", Forged { kind: WITHDRAW, len: 1, ..zero }.with(&[])),
        ("a withdrawal confirmed with a tag", Forged { kind: WITHDRAWN, tag: 1, ..zero }.with(&[])),
        ("a ClearToWrite for nothing", Forged { kind: WANT, len: 5, op: 3, ..zero }.with(&table(&[5]))),
        ("a ClearToWrite for half a piece", Forged { kind: WANT, len: 5, op: 3, ..zero }.with(&table(&[5])[..12])),
        ("slots without a place", Forged { kind: SLOTS, len: 4096, op: 1, ..zero }.with(&[])),
        ("no slots", Forged { kind: SLOTS, len: 4096, ..zero }.with(&table(&[4096]))),
        ("nine slots", Forged { kind: SLOTS, len: 4096, op: 9, ..zero }.with(&table(&[1 << 20]))),
        ("slots beyond their memory", Forged { kind: SLOTS, len: 4096, op: 2, ..zero }.with(&table(&[8191]))),
        ("slots that overflow", Forged { kind: SLOTS, len: u64::MAX / 2, op: 8, ..zero }.with(&table(&[u64::MAX]))),
        ("slots shorter than a header", Forged { kind: SLOTS, len: 31, op: 1, ..zero }.with(&table(&[4096]))),
        ("a slot that was never used", Forged { kind: CREDIT, slots: 1, ..zero }.with(&[])),
        ("message credits never spent", Forged { kind: CREDIT, messages: 1, ..zero }.with(&[])),
        ("byte credits never spent", Forged { kind: CREDIT, bytes: 1, ..zero }.with(&[])),
        ("control credits never spent", Forged { kind: CREDIT, control: 1, ..zero }.with(&[])),
        (
            "all credits there are",
            Forged { kind: CREDIT, control: 15, slots: 255, messages: u16::MAX, bytes: u32::MAX, ..zero }.with(&[]),
        ),
    ]
}

/// Each message that breaks a rule costs the intruder its connection and is counted. It disturbs no
/// other peer.
pub async fn bad_messages_cut_their_sender(net: &Net<'_>) {
    let (pair, intruder) = scene(net).await;
    for (what, message) in bad_messages() {
        let before = pair.b.counters().violations;
        let breach = intruder.breach(net, &pair.addr).await;
        intruder.say(net, &breach, &message).await;
        intruder.is_cut(net, &breach, what).await;
        assert_eq!(pair.b.counters().violations, before + 1, "{what} is counted");
        pair.ping(net, what).await;
    }
    unharmed(net, &pair, "after all bad messages").await;
}

/// The contents of a fast-RDMA slot, and the number of the slot, are checked like any other
/// message.
pub async fn forged_slots(net: &Net<'_>) {
    let pair = net.pair(&tight().fast_slots(2).fast_slot_bytes(4096)).await;
    let mut intruder = Intruder::new(net).await;
    intruder.hello[8] |= 16;
    let zero = Forged::default();
    let message = Forged { kind: UNEXPECTED, len: 3000, ..zero }.with(&[7; 3000]);
    let cases: [(&str, u32, Vec<u8>, u32); 7] = [
        ("a slot that is not there", 2, message.clone(), 1),
        ("a slot far away", u32::MAX >> 1, message.clone(), 1),
        ("the same slot twice", 0, message.clone(), 2),
        ("a message longer than its slot", 1, Forged { kind: UNEXPECTED, len: 8192, ..zero }.with(&[]), 1),
        ("a length that overflows", 1, Forged { kind: EAGER, len: u64::MAX, ..zero }.with(&[]), 1),
        ("a finish in a slot", 1, Forged { kind: FINISH, ..zero }.with(&[]), 1),
        ("credits never spent, in a slot", 1, Forged { kind: UNEXPECTED, bytes: 1, ..zero }.with(&[]), 1),
    ];
    for (what, immediate, bytes, times) in cases {
        let breach = intruder.breach(net, &pair.addr).await;
        let told = intruder.hear(net, &breach).await;
        assert_eq!(told[0] & 15, SLOTS, "{what}: slots are described first");
        let remote = RemoteSlice::from_wire(told[32..56].try_into().expect("24 bytes"));
        let target = WriteTarget { remote, immediate: Some(immediate) };
        for _ in 0..times {
            intruder.write(net, &breach, &bytes, target).await;
        }
        intruder.is_cut(net, &breach, what).await;
        pair.ping(net, what).await;
    }
    unharmed(net, &pair, "after all forged slots").await;
}

/// Messages without credit, and messages longer than any receive, cost the connection. The number
/// of messages before that is bounded.
pub async fn overdrawn_credits(net: &Net<'_>) {
    let (pair, intruder) = scene(net).await;
    let zero = Forged::default();
    for kind in [EAGER, UNEXPECTED] {
        let breach = intruder.breach(net, &pair.addr).await;
        for _ in 0..40 {
            intruder.say(net, &breach, &Forged { kind, len: 1000, tag: 5, ..zero }.with(&[7; 1000])).await;
        }
        intruder.is_cut(net, &breach, "messages without credits").await;
        unharmed(net, &pair, "after messages without credits").await;
    }
    let breach = intruder.breach(net, &pair.addr).await;
    for _ in 0..40 {
        intruder.say(net, &breach, &Forged { kind: CREDIT, ..zero }.with(&[])).await;
    }
    // Some of them are answered. In the end there are more messages than credits, unless each
    // credit came back in time.
    intruder.leave(&breach);
    let breach = intruder.breach(net, &pair.addr).await;
    intruder.say(net, &breach, &Forged { kind: EAGER, len: 5000, ..zero }.with(&[7; 5000])).await;
    intruder.is_cut(net, &breach, "a message longer than any receive").await;
    unharmed(net, &pair, "after all excesses").await;
}

/// A forged end of a rendezvous, the intruder's own or another peer's, ends only the intruder.
pub async fn forged_finish(net: &Net<'_>) {
    let (pair, intruder) = scene(net).await;
    let zero = Forged { kind: FINISH, ..Forged::default() };
    // Of its own rendezvous, with a wrong length or name.
    for wrong in ["length", "name"] {
        let breach = intruder.breach(net, &pair.addr).await;
        let peer = newest_peer(net, &pair.b).await;
        let mut bytes = memory(50_000);
        let send = peer.send(1, &bytes, Options::default());
        let announce = intruder.hear(net, &breach).await;
        assert_eq!(announce[0], ANNOUNCE, "a long message is announced");
        let op = word(&announce, 24);
        let finish = match wrong {
            "length" => Forged { len: 49_999, op, ..zero },
            _ => Forged { len: 50_000, op: op ^ 1 << 32, ..zero },
        };
        intruder.say(net, &breach, &finish.with(&[])).await;
        intruder.is_cut(net, &breach, wrong).await;
        fails(send.await, ErrorKind::PeerLost, "send");
        net.released("the memory", [&mut bytes]).await;
    }
    // Of another peer's rendezvous, by every name that it may have.
    let honest = pair.to_a.send(1, pattern(1, 50_000), soon(&pair.b));
    net.until("the announcement", || (pair.a.resource_usage().parked > 0).then_some(())).await;
    for name in (0..6u64).flat_map(|slot| [slot, slot | 1 << 32, slot | 2 << 32]) {
        let breach = intruder.breach(net, &pair.addr).await;
        intruder.say(net, &breach, &Forged { len: 50_000, op: name, ..zero }.with(&[])).await;
        intruder.is_cut(net, &breach, "a finish of another's operation").await;
    }
    let target = memory(50_000);
    pair.to_b.recv(1, &target, soon(&pair.a)).await.expect("the honest peer's receive");
    honest.await.expect("the honest peer's send");
    assert!(target.to_vec() == pattern(1, 50_000));
    unharmed(net, &pair, "after all forgeries").await;
}

/// A peer that claims to have written into an offered receive, beyond its end or twice, is cut off.
/// The receive ends.
pub async fn forged_written(net: &Net<'_>) {
    let (pair, intruder) = scene(net).await;
    for (what, lens) in [("beyond its end", &[3001][..]), ("twice", &[3000, 3000]), ("far beyond", &[u64::MAX])] {
        let breach = intruder.breach(net, &pair.addr).await;
        let peer = newest_peer(net, &pair.b).await;
        let mut target = memory(3000);
        let receive = peer.recv(1, &target, Options::default());
        let offer = intruder.hear(net, &breach).await;
        assert_eq!(offer[0], READY, "a receive of middle size is offered");
        let op = word(&offer, 24);
        for len in lens {
            let written = Forged { kind: WRITTEN, len: *len, op, ..Forged::default() };
            intruder.say(net, &breach, &written.with(&[])).await;
        }
        intruder.is_cut(net, &breach, what).await;
        match receive.await {
            Ok(done) => assert!(lens.len() == 2 && done.len == 3000, "{what}"),
            Err(error) => assert_eq!((error.kind(), error.operation()), (ErrorKind::PeerLost, Some("receive"))),
        }
        net.released("the memory", [&mut target]).await;
    }
    unharmed(net, &pair, "after all forgeries").await;
}

/// A peer that answers an announcement with ClearToWrite gets the message written there, once.
/// Adapters without RDMA read receive in this way. A ClearToWrite that lies costs the connection,
/// and the send ends.
pub async fn wants(net: &Net<'_>) {
    let (pair, intruder) = scene(net).await;
    let zero = Forged { kind: WANT, tag: 77, ..Forged::default() };
    // The claimed length, the number of requests, and whether the memory is exposed.
    let cases = [(5000, 1, true), (5000, 2, true), (4999, 1, true), (u64::MAX, 1, true), (5000, 1, false)];
    for (len, times, exposed) in cases {
        let what = format!("a ClearToWrite for {len}, {times} times");
        let breach = intruder.breach(net, &pair.addr).await;
        let peer = newest_peer(net, &pair.b).await;
        let mut source = bmi_core::Memory::from(pattern(1, 5000));
        let send = peer.send(1, &source, Options::default());
        let announced = intruder.hear(net, &breach).await;
        assert_eq!(announced[0] & 15, ANNOUNCE, "{what}: a long message is announced");
        let op = word(&announced, 24);
        let target = memory(5000);
        let mine = intruder.bare.with(|t| {
            let region = t.register(&target);
            let region = (0..100).fold(region, |region, _| region.or_else(|_| t.register(&target)));
            t.expose(breach.conn, &region.expect("register").segment(0, 5000), Access::WRITE).expect("expose")
        });
        let place = if exposed { mine } else { slice(5000) };
        for _ in 0..times {
            intruder.say(net, &breach, &Forged { len, op, ..zero }.with(&place.to_wire())).await;
        }
        if (len, times, exposed) == (5000, 1, true) {
            let written = intruder.hear(net, &breach).await;
            let words = [written[0].into(), word(&written, 16), word(&written, 24)];
            assert_eq!(words, [u64::from(WRITTEN), 5000, 77], "{what}");
            assert_eq!(target.to_vec(), pattern(1, 5000), "{what}");
            assert_eq!(send.await.expect("a send that was wanted").len, 5000, "{what}");
            intruder.leave(&breach);
        } else if let Err(error) = send.await {
            assert_eq!(error.operation(), Some("send"), "{what}: {error}");
        } else {
            // An emulated adapter may have ended the write before it learns that the peer has
            // no such memory.
            let told_late = net.backend().expected_capabilities().one_sided == OneSided::Emulated && !exposed;
            assert!(times == 2 || told_late, "{what}: it was sent nowhere");
        }
        intruder.is_cut(net, &breach, &what).await;
        net.released("the memory", [&mut source]).await;
    }
    unharmed(net, &pair, "after all wants").await;
}

/// An announcement of memory that was never exposed. The receive that it matches ends in an error,
/// and its memory is released untouched.
pub async fn announced_but_not_exposed(net: &Net<'_>) {
    let (pair, intruder) = scene(net).await;
    let breach = intruder.breach(net, &pair.addr).await;
    let peer = newest_peer(net, &pair.b).await;
    let target = Guarded::new(&[5000]);
    let receive = peer.recv(1, target.list(), Options::default());
    let announce = Forged { kind: ANNOUNCE, tag: 1, len: 5000, op: 3, ..Forged::default() };
    intruder.say(net, &breach, &announce.with(&slice(5000).to_wire())).await;
    if !reads(net) {
        // The intruder is asked to write instead, and does not.
        let wanted = intruder.hear(net, &breach).await;
        assert_eq!(wanted[0] & 15, WANT, "a want");
        intruder.leave(&breach);
    }
    let error = receive.await.expect_err("there is nothing to read");
    assert_eq!(error.operation(), Some("receive"), "{error}");
    intruder.is_cut(net, &breach, "its own adapter cuts").await;
    target.check_untouched("a receive of nothing");
    unharmed(net, &pair, "after a lying announcement").await;
}

/// Many messages of random bytes, and of real headers with random fields. Nothing panics, hangs or
/// leaks.
pub async fn random_messages(net: &Net<'_>) {
    let (pair, intruder) = scene(net).await;
    let mut rng = Rng::new(42);
    for round in 0..40 {
        let breach = intruder.breach(net, &pair.addr).await;
        for _ in 0..6 {
            let payload = {
                let len = rng.index(100);
                pattern(rng.next_u64(), len)
            };
            let small = |rng: &mut Rng| if rng.chance(700) { 0 } else { rng.next_u64() >> rng.index(64) };
            let message = if rng.chance(200) {
                payload
            } else {
                let kind = 1 + rng.index(12) as u8;
                let len = if rng.chance(800) && kind <= 2 { payload.len() as u64 } else { small(&mut rng) };
                let (tag, op) = (small(&mut rng), if kind <= 2 { 0 } else { small(&mut rng) });
                let bare = kind >= FINISH && rng.chance(800);
                Forged { kind, tag, len, op, ..Forged::default() }.with(if bare { &[] } else { &payload })
            };
            intruder.say(net, &breach, &message).await;
        }
        intruder.leave(&breach);
        intruder.is_cut(net, &breach, "it left or was cut").await;
        pair.ping(net, &format!("beside round {round} of random messages")).await;
    }
    unharmed(net, &pair, "after all random messages").await;
}

/// Returns the peer that connected last to an endpoint.
async fn newest_peer(net: &Net<'_>, endpoint: &Endpoint) -> Peer {
    let mut newest = None;
    net.until("the intruder's connection", || {
        while let Some(event) = endpoint.with(|e| e.poll_event()) {
            if let bmi_core::PeerEvent::Connected { peer, .. } = event {
                newest = Some(endpoint.peer(peer));
            }
        }
        newest.take_if(|peer| peer.limits().is_some())
    })
    .await
}
