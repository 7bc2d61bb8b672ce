//! Bulk transfers: expose, pull, push.

use bmi_core::{
    Access, BulkDescriptor, Config, ErrorKind, Lists, OpKind, PeerEvent, Registration, RemoteKey, RemoteSlice,
};
use futures_util::future::{join, join_all};

use crate::data::{Guarded, is_sole, memory, pattern};
use crate::message::{reads, tight};
use crate::net::{Net, fails, soon};

/// Shapes of the exposed list and of the local list, and the offset in the exposed list at which
/// the transfer begins.
const SHAPES: [(&[usize], &[usize], u64); 9] = [
    (&[], &[], 0),
    (&[10], &[], 10),
    (&[100], &[100], 0),
    (&[100], &[1, 0, 50], 49),
    (&[10, 0, 20, 30], &[60], 0),
    (&[10, 20, 30], &[7, 7, 7], 25),
    (&[5000, 5000, 5000], &[4096, 1, 8000], 1234),
    (&[100_000], &[30_000, 30_000, 40_000], 0),
    (&[1, 70_000, 1], &[3; 20], 40_000),
];

/// A pull copies any part of the exposed list into a list of any shape. Without `rdma_read` the
/// pull is refused locally, and nothing else happens.
pub async fn pull_between_any_two_lists(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    if !reads(net) {
        let (source, target) = (Guarded::filled(1, &[100]), Guarded::new(&[100]));
        let exposure = pair.expose(source.list(), Access::READ);
        let refused = pair.pull(exposure.descriptor(), 0, target.list()).await;
        fails(refused, ErrorKind::Unsupported, "pull");
        drop(exposure);
        target.check_untouched("a refused pull");
        return pair.settled(net, "after a refused pull").await;
    }
    let mut moved = 0;
    for (number, (exposed, local, at)) in SHAPES.into_iter().enumerate() {
        let what = format!("shape {number}");
        let (source, target) = (Guarded::filled(number as u64, exposed), Guarded::new(local));
        let exposure = pair.expose(source.list(), Access::READ);
        assert_eq!((exposure.peer(), exposure.descriptor().len()), (pair.to_a.id(), source.len() as u64), "{what}");
        let done = pair.pull(exposure.descriptor(), at, target.list()).await;
        let done = done.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!((done.len, done.kind), (target.len() as u64, OpKind::Pull), "{what}");
        let all = pattern(number as u64, source.len());
        target.check(&what, &all[at as usize..at as usize + target.len()]);
        source.check(&what, &all);
        moved += target.len() as u64;
    }
    let counters = pair.a.counters();
    assert_eq!((counters.pulls, counters.bytes_pulled), (SHAPES.len() as u64, moved));
    pair.settled(net, "after all pulls").await;
}

/// A push copies a list of any shape to any part of the exposed list, and touches nothing else. A
/// message sent after the push has ended arrives after its bytes.
pub async fn push_between_any_two_lists(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    for (number, (exposed, local, at)) in SHAPES.into_iter().enumerate() {
        let what = format!("shape {number}");
        let (source, target) = (Guarded::filled(number as u64, local), Guarded::filled(99, exposed));
        let exposure = pair.expose(target.list(), Access::WRITE);
        let told = pair.recv(1, memory(1));
        let done = pair.push(exposure.descriptor(), at, source.list()).await;
        assert_eq!(done.unwrap_or_else(|error| panic!("{what}: {error}")).len, source.len() as u64, "{what}");
        pair.send(1, vec![1]).await.expect("send");
        told.await.expect("receive");
        let mut expected = pattern(99, target.len());
        expected[at as usize..at as usize + source.len()].copy_from_slice(&pattern(number as u64, source.len()));
        target.check(&what, &expected);
    }
    assert_eq!(pair.a.counters().pushes, SHAPES.len() as u64);
    pair.settled(net, "after all pushes").await;
}

/// A descriptor travels as a list of remote slices and works at the receiver as at the sender.
pub async fn descriptors_travel(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let source = Guarded::filled(1, &[3000, 20, 7000]);
    let exposure = pair.expose(source.list(), Access::READ_WRITE);
    let wire: Vec<u8> = exposure.descriptor().pieces().iter().flat_map(RemoteSlice::to_wire).collect();
    pair.to_a.send_unexpected(1, wire, soon(&pair.b)).await.expect("send the request");
    let request = pair.a.next_unexpected().await;
    let pieces: Vec<RemoteSlice> = request
        .bytes()
        .chunks_exact(RemoteSlice::WIRE_LEN)
        .map(|wire| RemoteSlice::from_wire(wire.try_into().expect("exact chunks")))
        .collect();
    let descriptor = BulkDescriptor::try_from(pieces).expect("a sum that fits");
    assert_eq!(&descriptor, exposure.descriptor());
    if reads(net) {
        let target = Guarded::new(&[10_020]);
        request.peer().pull(&descriptor, 0, target.list(), soon(&pair.a)).await.expect("pull");
        target.check("pulled by a descriptor that travelled", &pattern(1, 10_020));
    }
    let other = Guarded::filled(2, &[10_020]);
    request.peer().push(&descriptor, 0, other.list(), soon(&pair.a)).await.expect("push");
    pair.ping(net, "behind the push").await;
    source.check("pushed by a descriptor that travelled", &pattern(2, 10_020));
}

/// Thousands of pieces on both sides, of unrelated shapes. They are moved piece by piece, where
/// only the last request of a unit is signalled, and packed. The description of the exposed list
/// takes a few bytes per piece and travels in a message.
pub async fn thousands_of_pieces(net: &Net<'_>) {
    let pair = net.pair(&Config::default()).await;
    let exposed: Vec<usize> = (0..3000).map(|n| 1 + n * 7 % 60).collect();
    let total: usize = exposed.iter().sum();
    let mut local: Vec<usize> = (0..2000).map(|n| n * 13 % 45).collect();
    local.push(total - local.iter().sum::<usize>());
    let queue = pair.a.with(|engine| engine.capabilities().send_queue_depth as u64);
    for (seed, lists) in [Lists::Chain, Lists::Pack, Lists::PackExposed].into_iter().enumerate() {
        let before = pair.a.counters();
        let seed = seed as u64;
        let (far, near) = (Guarded::filled(seed, &exposed), Guarded::new(&local));
        let exposure = pair.expose(far.list(), Access::READ_WRITE);
        let described = exposure.descriptor().encode(Vec::new());
        assert!(described.len() < exposed.len() * 20, "{} bytes", described.len());
        let remote = BulkDescriptor::decode(&described, exposed.len()).expect("what was encoded");
        let options = soon(&pair.a).lists(lists);
        if reads(net) {
            pair.to_b.pull(&remote, 0, near.list(), options).await.expect("pull");
            near.check("pulled", &pattern(seed, total));
        }
        near.list().copy_from(0, &pattern(seed + 10, total));
        pair.to_b.push(&remote, 0, near.list(), options).await.expect("push");
        pair.ping(net, "behind the push").await;
        far.check("pushed", &pattern(seed + 10, total));
        let after = pair.a.counters();
        let (requests, units) =
            (after.transfer_requests - before.transfer_requests, after.transfer_units - before.transfer_units);
        let transfers = 1 + u64::from(reads(net));
        assert!(requests >= transfers * 3000, "a request for each exposed piece, {requests}");
        assert!(units <= 2 + 2 * requests / (queue / 2).max(1), "{units} completions for {requests} requests");
        let packed = after.units_packed - before.units_packed;
        assert_eq!(packed, if lists == Lists::Pack { units } else { 0 }, "{lists:?}");
        drop(exposure);
        pair.settled(net, "after all pieces").await;
    }
}

/// A transfer of many pieces that is cancelled in the middle of a unit ends, and all its resources
/// are released.
pub async fn cancelled_between_pieces(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    for turns in 0..12 {
        let lists = if turns % 2 == 0 { Lists::Chain } else { Lists::Pack };
        let (far, near) = (Guarded::filled(1, &[11; 2000]), Guarded::new(&[7; 3000]));
        let exposure = pair.expose(far.list(), Access::READ_WRITE);
        let options = soon(&pair.a).lists(lists);
        let remote = exposure.descriptor();
        let work = match turns % 3 {
            turn if turn == 0 || !reads(net) => pair.to_b.push(remote, 0, near.list(), options),
            _ => pair.to_b.pull(remote, 0, near.list(), options),
        };
        net.turns(turns / 2).await;
        work.cancel();
        if let Err(error) = work.await {
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        }
        pair.ping(net, "after a cancelled transfer").await;
        drop(exposure);
        pair.settled(net, "after a cancelled transfer").await;
        net.released("a transfer", &mut [far, near].map(Guarded::into_sole)).await;
    }
}

/// A range outside the descriptor is refused before anything is sent. The connection remains.
pub async fn out_of_range_is_refused_here(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let exposed = Guarded::filled(1, &[60, 40]);
    let exposure = pair.expose(exposed.list(), Access::READ_WRITE);
    for (at, len) in [(0, 101), (100, 1), (101, 0), (u64::MAX, 1), (u64::MAX, 0), (50, 51)] {
        let local = memory(len);
        let pull = pair.pull(exposure.descriptor(), at, &local).await;
        let push = pair.push(exposure.descriptor(), at, &local).await;
        for (result, operation) in [(pull, "pull"), (push, "push")] {
            fails(result, ErrorKind::Invalid, operation);
        }
    }
    exposed.check("nothing was written", &pattern(1, 100));
    pair.ping(net, "after refused transfers").await;
}

/// Many transfers of both kinds at a time, more than may be in flight, each get their own bytes. A
/// long transfer does not keep a short one waiting.
pub async fn many_transfers(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let work = (0..24usize).map(|n| {
        let pair = &pair;
        async move {
            let size = 1 + n * 3001;
            let (here, there) = (Guarded::filled(n as u64, &[size]), Guarded::filled(100 + n as u64, &[size]));
            let exposure = pair.expose(there.list(), Access::READ_WRITE);
            let descriptor = exposure.descriptor();
            if n % 2 == 0 || !reads(net) {
                pair.push(descriptor, 0, here.list()).await.expect("push");
                // The push has ended at the peer's adapter. A message sent after it shows that
                // the bytes are in place.
                let told = pair.recv(n as u64, memory(1));
                pair.send(n as u64, vec![1]).await.expect("send");
                told.await.expect("receive");
                there.check(&format!("push {n}"), &pattern(n as u64, size));
            } else {
                pair.pull(descriptor, 0, here.list()).await.expect("pull");
                here.check(&format!("pull {n}"), &pattern(100 + n as u64, size));
            }
        }
    });
    join_all(work).await;
    pair.settled(net, "after all transfers").await;
}

/// Transfers run in both directions, and at the same time as messages.
pub async fn bulk_beside_messages(net: &Net<'_>) {
    let pair = net.pair(&Config::default()).await;
    let size = 1 << 20;
    let (near, far) = (Guarded::filled(1, &[size]), Guarded::filled(2, &[size]));
    let (at_a, at_b) = (Guarded::new(&[size]), Guarded::new(&[size]));
    let reads = reads(net);
    // The memory that the other side reads, or writes.
    let (near_exposed, far_exposed) = match reads {
        true => (near.list(), far.list()),
        false => (at_a.list(), at_b.list()),
    };
    let near_exposed = pair.to_b.expose(near_exposed, Access::READ_WRITE).expect("expose");
    let far_exposed = pair.expose(far_exposed, Access::READ_WRITE);
    let soon_b = soon(&pair.b);
    let (one, other) = match reads {
        true => (
            pair.pull(far_exposed.descriptor(), 0, at_a.list()),
            pair.to_a.pull(near_exposed.descriptor(), 0, at_b.list(), soon_b),
        ),
        false => (
            pair.push(far_exposed.descriptor(), 0, near.list()),
            pair.to_a.push(near_exposed.descriptor(), 0, far.list(), soon_b),
        ),
    };
    let talk = async {
        for _ in 0..20 {
            pair.ping(net, "beside bulk").await;
        }
    };
    let (transfers, ()) = join(join(one, other), talk).await;
    transfers.0.expect("a transfer");
    transfers.1.expect("a transfer");
    // After the pushes.
    pair.ping(net, "behind bulk").await;
    at_a.check("moved to a", &pattern(2, size));
    at_b.check("moved to b", &pattern(1, size));
}

/// Exposed memory is held until the exposure is dropped. It is counted once for each piece. Where
/// registration costs something, or the peer gets whole pages, it is counted once for each memory.
/// After the drop it belongs to the program again.
pub async fn exposures_are_held_and_come_back(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let exposed = Guarded::new(&[10, 20, 30]);
    let exposure = pair.expose(exposed.list(), Access::READ);
    let mut memory = exposed.into_sole();
    net.turns(10).await;
    let whole = pair.b.with(|e| e.capabilities().registration != Registration::Free || e.capabilities().shares_pages);
    assert_eq!(pair.b.resource_usage().exposures, if whole { 1 } else { 3 });
    assert!(!is_sole(&mut memory), "exposed memory is held");
    drop(exposure);
    pair.settled(net, "after the exposure was dropped").await;
    net.released("the memory", [&mut memory]).await;
}

/// An exposure outlives its peer without harm.
pub async fn exposures_outlive_their_peer(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let mut bytes = memory(100);
    let exposure = pair.expose(&bytes, Access::READ);
    pair.to_b.disconnect(soon(&pair.a)).await.expect("disconnect");
    net.lost(&pair.to_a).await;
    net.settled(&pair.b, 0, "the peer is gone, the exposure is kept").await;
    net.released("the memory", [&mut bytes]).await;
    drop(exposure);
    net.turns(5).await;
    net.settled(&pair.b, 0, "the exposure is dropped").await;
    fails(pair.to_a.expose(&bytes, Access::READ), ErrorKind::PeerLost, "expose");
}

/// A way to forge a descriptor: its name, what the memory is exposed for, whether it is used for a
/// push, and the forged piece.
type Lie = (&'static str, Access, bool, fn(RemoteSlice) -> RemoteSlice);

/// A forged descriptor costs its user the connection. The operation ends in an error that names it,
/// not one byte moves, and a third party is not affected.
pub async fn forged_descriptors_cut_only_the_forger(net: &Net<'_>) {
    let lies: [Lie; 7] = [
        ("a wrong key", Access::READ_WRITE, false, |s| RemoteSlice { key: RemoteKey(s.key.0 ^ 1), ..s }),
        ("a longer piece, pulled", Access::READ_WRITE, false, |s| RemoteSlice { len: s.len + 1, ..s }),
        ("a longer piece, pushed", Access::READ_WRITE, true, |s| RemoteSlice { len: s.len + 1, ..s }),
        ("a moved piece", Access::READ_WRITE, true, |s| RemoteSlice { addr: s.addr.wrapping_sub(1), ..s }),
        ("pushing to what may be read", Access::READ, true, |s| s),
        ("pulling what may be written", Access::WRITE, false, |s| s),
        ("an address that overflows", Access::READ_WRITE, true, |s| RemoteSlice { addr: u64::MAX - 1, ..s }),
    ];
    let pair = net.pair(&tight()).await;
    let c = net.endpoint("c", &tight());
    let (c_to_b, b_to_c) = net.connect(&c, &pair.b, &pair.addr).await;
    let (mut to_b, mut to_a) = (pair.to_b, pair.to_a);
    for (what, access, push, forge) in lies.into_iter().filter(|lie| lie.2 || reads(net)) {
        let exposed = Guarded::filled(1, &[100]);
        let exposure = to_a.expose(exposed.list(), access).expect("expose");
        let forged: Vec<_> = exposure.descriptor().pieces().iter().map(|slice| forge(*slice)).collect();
        let forged = BulkDescriptor::try_from(forged).expect("a sum that fits");
        let local = Guarded::filled(2, &[forged.len() as usize]);
        let work = if push {
            to_b.push(&forged, 0, local.list(), soon(&pair.a))
        } else {
            to_b.pull(&forged, 0, local.list(), soon(&pair.a))
        };
        let operation = if push { "push" } else { "pull" };
        match work.await {
            // A write may have been handed over before the peer's adapter checked it.
            Ok(_) => assert!(push, "{what}: the bytes of a refused read"),
            Err(error) => {
                assert_eq!(error.operation(), Some(operation), "{what}: {error}");
                assert!(error.peer().is_some(), "{what}: {error}");
            }
        }
        net.lost(&to_b).await;
        net.lost(&to_a).await;
        exposed.check(what, &pattern(1, 100));
        local.check(what, &pattern(2, local.len()));
        net.ping(&c_to_b, &b_to_c, what).await;
        drop(exposure);
        (to_b, to_a) = net.connect(&pair.a, &pair.b, &pair.addr).await;
    }
    to_b.disconnect(soon(&pair.a)).await.expect("disconnect");
    net.lost(&to_a).await;
    net.settled(&pair.b, 1, "only the honest peer is left").await;
}

/// A descriptor that was given to one peer is useless to another.
pub async fn descriptors_belong_to_one_peer(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let c = net.endpoint("c", &tight());
    let (c_to_b, b_to_c) = net.connect(&c, &pair.b, &pair.addr).await;
    let exposed = Guarded::filled(1, &[100]);
    let exposure = pair.expose(exposed.list(), Access::READ_WRITE);
    let local = Guarded::filled(2, &[100]);
    if reads(net) {
        let error = c_to_b.pull(exposure.descriptor(), 0, local.list(), soon(&c)).await;
        let error = error.expect_err("another peer's descriptor");
        assert_eq!(error.operation(), Some("pull"), "{error}");
        local.check("the thief's memory", &pattern(2, 100));
    } else if let Err(error) = c_to_b.push(exposure.descriptor(), 0, local.list(), soon(&c)).await {
        assert_eq!(error.operation(), Some("push"), "{error}");
    }
    net.lost(&b_to_c).await;
    exposed.check("the owner's memory", &pattern(1, 100));
    pair.push(exposure.descriptor(), 0, local.list()).await.expect("its peer's push");
    pair.ping(net, "behind the push").await;
    exposed.check("its peer's push", &pattern(2, 100));
}

/// When an exposure is dropped, its descriptor becomes invalid, and using it costs the connection.
pub async fn revoked_descriptors_are_dead(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let exposed = Guarded::filled(1, &[100]);
    let exposure = pair.expose(exposed.list(), Access::READ_WRITE);
    let descriptor = exposure.descriptor().clone();
    drop(exposure);
    pair.settled(net, "the exposure is dropped").await;
    let local = Guarded::filled(2, &[100]);
    let pushed = pair.push(&descriptor, 0, local.list()).await;
    if let Err(error) = pushed {
        assert_eq!(error.operation(), Some("push"), "{error}");
    }
    assert!(matches!(pair.b.next_event().await, PeerEvent::Lost { peer, .. } if peer == pair.to_a));
    net.lost(&pair.to_b).await;
    exposed.check("revoked memory", &pattern(1, 100));
}
