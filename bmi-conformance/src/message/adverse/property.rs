//! Properties: for all lists, sizes, orders and cancels, exactly the right bytes arrive, nothing
//! else is touched, and nothing leaks.
//!
//! Cases come from a fixed seed, so a failure is repeatable.

use std::collections::BTreeMap;

use bmi_core::{Access, ErrorKind, Exposure, Lists, Peer};
use futures_util::future::join_all;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, RngAlgorithm, TestRng, TestRunner};

use crate::data::{Guarded, memory, pattern};
use crate::message::{reads, tight};
use crate::net::{Net, Pair, SOON, soon};

/// One message: its two lists, when each side is posted, whether one of them is cancelled, and
/// after how many turns.
#[derive(Clone, Debug)]
struct Message {
    to_b: bool,
    tag: u64,
    from: Vec<usize>,
    into: Vec<usize>,
    send_at: u16,
    recv_at: u16,
    cancel: Option<(bool, u32)>,
}

/// One bulk transfer: the two lists, how they are moved, and the offset in the exposed list, in
/// thousandths of the possible range.
#[derive(Clone, Debug)]
struct Bulk {
    push: bool,
    lists: Lists,
    exposed: Vec<usize>,
    local: Vec<usize>,
    at: u64,
}

/// Draws lengths of pieces: mostly small, sometimes several eager limits.
fn lens() -> impl Strategy<Value = Vec<usize>> {
    let piece = prop_oneof![3 => 0..40usize, 3 => 0..600usize, 1 => 1000..1050usize, 1 => 0..9000usize];
    // One piece between the eager limit and the transfer unit is received by an offered receive.
    prop_oneof![3 => vec(piece, 0..6), 2 => (900..4200usize).prop_map(|len| Vec::from([len]))]
}

fn message() -> impl Strategy<Value = Message> {
    let cancel = prop_oneof![3 => Just(None), 1 => (any::<bool>(), 0..20u32).prop_map(Some)];
    (any::<bool>(), 0..3u64, lens(), lens(), any::<u16>(), any::<u16>(), cancel).prop_map(
        |(to_b, tag, from, into, send_at, recv_at, cancel)| Message { to_b, tag, from, into, send_at, recv_at, cancel },
    )
}

fn bulk() -> impl Strategy<Value = Bulk> {
    // Sometimes more pieces than a request has entries, or more than a connection has room for
    // requests.
    let many = |least| prop_oneof![4 => lens(), 1 => vec(0..20usize, least..400)];
    let lists = prop_oneof![Just(Lists::Auto), Just(Lists::Chain), Just(Lists::Pack), Just(Lists::PackExposed)];
    (any::<bool>(), lists, many(100), many(10), 0..=1000u64).prop_map(|(push, lists, exposed, local, at)| Bulk {
        push,
        lists,
        exposed,
        local,
        at,
    })
}

/// Tries a property on the backend's number of cases, each with a net of its own.
fn check<S: Strategy>(net: &Net<'_>, strategy: &S, property: impl Fn(&Net<'_>, S::Value)) {
    let cases = Cases {
        cases: net.backend().property_cases(),
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Cases::default()
    };
    let mut runner = TestRunner::new_with_rng(cases, TestRng::from_seed(RngAlgorithm::ChaCha, &[0x5a; 32]));
    let tried = runner.run(strategy, |case| {
        property(&Net::new(net.backend()), case);
        Ok(())
    });
    tried.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Any messages in both directions, posted in any order, some cancelled. Each receive gets the
/// bytes of the send that it matches in the order of its tag, or `TooLong`. Guard bytes stay, and
/// nothing leaks.
pub async fn any_messages(net: &Net<'_>) {
    check(net, &vec(message(), 1..14), |net, messages| {
        net.run(async {
            let config = tight().fence_grace(SOON);
            let pair = net.pair(&config).await;
            exchange(net, &pair, &messages).await;
        });
    });
}

/// Returns the peers that a message goes to and comes from.
fn peers<'p>(pair: &'p Pair, message: &Message) -> (&'p Peer, &'p Peer) {
    if message.to_b { (&pair.to_b, &pair.to_a) } else { (&pair.to_a, &pair.to_b) }
}

/// Returns the tag of a message. A message that may be cancelled has a tag of its own, so that it
/// does not affect the matching of the others.
fn tag_of(number: usize, message: &Message) -> u64 {
    if message.cancel.is_some() { 1000 + number as u64 } else { message.tag }
}

async fn exchange(net: &Net<'_>, pair: &Pair, messages: &[Message]) {
    let sources: Vec<_> = messages.iter().enumerate().map(|(n, m)| Guarded::filled(n as u64, &m.from)).collect();
    let targets: Vec<_> = messages.iter().map(|m| Guarded::new(&m.into)).collect();
    let mut posts: Vec<(u16, bool, usize)> =
        messages.iter().enumerate().flat_map(|(n, m)| [(m.send_at, true, n), (m.recv_at, false, n)]).collect();
    posts.sort_unstable();
    let (mut sends, mut receives) = (BTreeMap::new(), BTreeMap::new());
    // By direction and tag, in posting order: which send matches which receive.
    let mut queues: BTreeMap<(bool, u64), (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    for (at, is_send, n) in posts {
        let message = &messages[n];
        let (to, from) = peers(pair, message);
        let tag = tag_of(n, message);
        let queue = queues.entry((message.to_b, tag)).or_default();
        if is_send {
            queue.0.push(n);
            sends.insert(n, to.send(tag, sources[n].list(), to.within(SOON)));
        } else {
            queue.1.push(n);
            receives.insert(n, from.recv(tag, targets[n].list(), from.within(SOON)));
        }
        net.turns(u32::from(at % 4)).await;
    }
    for (n, message) in messages.iter().enumerate() {
        if let Some((send, turns)) = message.cancel {
            net.turns(turns).await;
            if send { sends[&n].cancel() } else { receives[&n].cancel() }
        }
    }
    // The partner of a cancelled operation may have nothing to wait for.
    net.turns(3).await;
    pair.ping(net, "behind all cancels").await;
    for (n, _) in messages.iter().enumerate().filter(|(_, m)| m.cancel.is_some()) {
        sends[&n].cancel();
        receives[&n].cancel();
    }
    let (mut sent, mut received) = (BTreeMap::new(), BTreeMap::new());
    for n in 0..messages.len() {
        sent.insert(n, sends.remove(&n).expect("posted").await);
        received.insert(n, receives.remove(&n).expect("posted").await);
    }
    for ((_, tag), (senders, receivers)) in queues {
        for (sender, receiver) in senders.into_iter().zip(receivers) {
            let (size, room) = (sources[sender].len(), targets[receiver].len());
            let what = format!("message {sender} into receive {receiver} of tag {tag}");
            match &received[&receiver] {
                Ok(done) => {
                    assert_eq!(done.len, size as u64, "{what}");
                    assert!(size <= room, "{what}: it does not fit");
                    targets[receiver].check(&what, &pattern(sender as u64, size));
                }
                Err(error) if messages[receiver].cancel.is_some() => {
                    assert!(matches!(error.kind(), ErrorKind::Cancelled | ErrorKind::TooLarge), "{what}: {error}");
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::TooLarge, "{what}: {error}");
                    assert!(size > room, "{what}: it fits");
                }
            }
            if let Err(error) = &sent[&sender] {
                assert!(matches!(error.kind(), ErrorKind::Cancelled | ErrorKind::TooLarge), "{what}: {error}");
                assert!(messages[sender].cancel.is_some() || size > room, "{what}: {error}");
            }
            sources[sender].check(&what, &pattern(sender as u64, size));
        }
    }
    sweep(net, pair, messages).await;
    let mut memory: Vec<_> = sources.into_iter().chain(targets).map(Guarded::into_sole).collect();
    net.released("messages", &mut memory).await;
}

/// Receives messages that were sent eagerly to cancelled receives, then checks that nothing is
/// left.
async fn sweep(net: &Net<'_>, pair: &Pair, messages: &[Message]) {
    pair.ping(net, "behind all messages").await;
    for (n, message) in messages.iter().enumerate().filter(|(_, m)| m.cancel.is_some()) {
        let (_, from) = peers(pair, message);
        let leftover = from.recv(tag_of(n, message), memory(50_000), from.within(SOON));
        leftover.cancel();
        // A parked message is delivered at once. Otherwise there was none.
        drop(leftover.await);
    }
    pair.settled(net, "after all messages").await;
}

/// Any pulls and pushes, all at once. Exactly the bytes of the range move, nothing else is touched,
/// and nothing leaks.
pub async fn any_bulk(net: &Net<'_>) {
    check(net, &vec(bulk(), 1..10), |net, transfers| {
        net.run(async {
            let pair = net.pair(&tight()).await;
            let work = transfers.iter().enumerate().map(|(n, bulk)| transfer(&pair, n as u64, bulk));
            let moved = join_all(work).await;
            // After every push: its bytes are in place.
            pair.ping(net, "behind all transfers").await;
            for (n, (exposed, local, at, exposure)) in moved.into_iter().enumerate() {
                drop(exposure);
                let what = format!("transfer {n}");
                let (near, mut far) = (pattern(n as u64, local.len()), pattern(1000 + n as u64, exposed.len()));
                let range = at..at + local.len();
                if transfers[n].push || !reads(net) {
                    far[range].copy_from_slice(&near);
                    local.check(&what, &near);
                } else {
                    local.check(&what, &far[range]);
                }
                exposed.check(&what, &far);
                net.released("a transfer", &mut [exposed, local].map(Guarded::into_sole)).await;
            }
            pair.settled(net, "after all transfers").await;
        });
    });
}

/// Does one transfer. Returns both lists, and the offset in the exposed list.
async fn transfer(pair: &Pair, n: u64, bulk: &Bulk) -> (Guarded, Guarded, usize, Exposure) {
    let exposed = Guarded::filled(1000 + n, &bulk.exposed);
    // The local list is cut to the length of the exposed one.
    let mut room = exposed.len();
    let mut local = bulk.local.clone();
    for len in &mut local {
        *len = (*len).min(room);
        room -= *len;
    }
    let local = Guarded::filled(n, &local);
    let at = room as u64 * bulk.at / 1000;
    let exposure = pair.expose(exposed.list(), Access::READ_WRITE);
    let descriptor = exposure.descriptor();
    let options = soon(&pair.a).lists(bulk.lists);
    let work = if bulk.push || !pair.a.with(|engine| engine.capabilities().rdma_read) {
        pair.to_b.push(descriptor, at, local.list(), options)
    } else {
        pair.to_b.pull(descriptor, at, local.list(), options)
    };
    let done = work.await.unwrap_or_else(|error| panic!("transfer {n}: {error}"));
    assert_eq!(done.len, local.len() as u64, "transfer {n}");
    // The end of a push does not imply that its bytes are in place. The exposure is kept until a
    // message sent after the push has arrived.
    (exposed, local, at as usize, exposure)
}
