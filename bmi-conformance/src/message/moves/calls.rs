//! Calls: a request with its data by each of the four paths, in both directions.

use bmi_core::comm::{Body, Direction, Incoming, Miss, Path, Policy};
use bmi_core::{Access, Config, Endpoint, ErrorKind, Lists, MemList, MemSlice, Memory, Options, PeerEvent};
use futures_util::future::{join, join_all};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};

use crate::data::{Guarded, filled, memory, pattern};
use crate::message::ways::fast::ready;
use crate::message::{LEFT, tight};
use crate::net::{Net, Pair, next_call, soon};

/// Size of the units in which a server of these tests stages data, in bytes.
const UNIT: usize = 16 << 10;

/// Answers the next call as a storage server does, in units, whatever the path. The bytes of a
/// write are returned; those of a read are `pattern(seed)`. The reply repeats the request.
async fn answer(b: &Endpoint, seed: u64) -> Vec<u8> {
    let incoming = next_call(b).await;
    let (len, options) = (usize::try_from(incoming.len()).expect("a test's length"), soon(b));
    let request = incoming.request().to_vec();
    let staged = memory(len);
    match incoming.direction() {
        Some(Direction::Write) => {
            let units = (0..len)
                .step_by(UNIT)
                .map(|at| incoming.fetch(at as u64, staged.slice(at, UNIT.min(len - at)), options));
            join_all(units).await.into_iter().for_each(|unit| unit.expect("fetch"));
            assert!(incoming.data().is_none_or(|data| data.to_vec() == staged.to_vec()), "data in place");
            incoming.reply(&request, None, options).await.expect("reply");
        }
        Some(Direction::Read) => {
            staged.copy_from(0, &pattern(seed, len));
            // On any path, a reply may bring the data.
            if incoming.replies_with_data() || seed % 2 == 1 {
                incoming.reply(&request, Some(staged.into()), options).await.expect("reply with data");
                return Vec::new();
            }
            let units = (0..len)
                .step_by(UNIT)
                .map(|at| incoming.store(at as u64, staged.slice(at, UNIT.min(len - at)), options));
            join_all(units).await.into_iter().for_each(|unit| unit.expect("store"));
            incoming.reply(&request, None, options).await.expect("reply");
        }
        None => incoming.reply(&request, None, options).await.expect("reply"),
    }
    staged.to_vec()
}

/// Makes one write and one read of `list`, by `forced` or by the policy. Returns the paths that
/// they took.
async fn both_ways(pair: &Pair, seed: u64, lens: &[usize], forced: Option<Path>, what: &str) -> [Path; 2] {
    let source = Guarded::filled(seed, lens);
    let call = pair.call(b"write it", Body::Out(source.list()), forced);
    let (reply, written) = join(call.reply(), answer(&pair.b, 0)).await;
    let reply = reply.unwrap_or_else(|error| panic!("{what}: write: {error}"));
    assert_eq!((&reply.bytes[..], reply.data), (&b"write it"[..], 0), "{what}");
    assert!(written == pattern(seed, source.len()), "{what}: the bytes of the write");
    let wrote = reply.choice.expect("a call with data").path;

    let target = Guarded::new(lens);
    let call = pair.call(b"read it", Body::In(target.list()), forced);
    let (reply, _) = join(call.reply(), answer(&pair.b, seed + 1)).await;
    let reply = reply.unwrap_or_else(|error| panic!("{what}: read: {error}"));
    assert_eq!((&reply.bytes[..], reply.data), (&b"read it"[..], target.len() as u64), "{what}");
    target.check(what, &pattern(seed + 1, target.len()));
    [wrote, reply.choice.expect("a call with data").path]
}

/// Every path, when forced, moves lists of any length in both directions. The forced path is taken
/// wherever it fits.
pub async fn every_path_both_ways(net: &Net<'_>) {
    let reads = net.backend().expected_capabilities().rdma_read;
    let pair = ready(net, &Config::default()).await;
    let lists: [&[usize]; 8] =
        [&[], &[1], &[100, 0, 7], &[4096], &[1000; 6], &[30_000, 1, 20_000], &[65_536], &[100_000, 200_000, 3]];
    for forced in Path::TAKEN.into_iter().chain([Path::Hybrid]) {
        for (number, lens) in lists.into_iter().enumerate() {
            let what = format!("{forced} of {lens:?}");
            let [wrote, read] = both_ways(&pair, 1 + number as u64, lens, Some(forced), &what).await;
            let len: usize = lens.iter().sum();
            let fits = match forced {
                _ if len == 0 => false,
                Path::Inline => len <= 4096,
                Path::FastRdma => len <= 65_536,
                _ => reads,
            };
            if fits {
                assert_eq!(wrote, forced.resolve(Direction::Write), "{what}");
                assert_eq!(read, forced.resolve(Direction::Read), "{what}");
            }
        }
    }
    pair.settled(net, "after all paths").await;
}

/// With small limits and without slots the same calls work, by the remaining paths.
pub async fn calls_with_little_of_everything(net: &Net<'_>) {
    let pair = ready(net, &tight()).await;
    for forced in [None, Some(Path::Inline), Some(Path::FastRdma), Some(Path::ClientBased), Some(Path::ServerBased)] {
        for (number, lens) in [&[10usize][..], &[900], &[1, 2000, 3], &[40_000]].into_iter().enumerate() {
            both_ways(&pair, 1 + number as u64, lens, forced, &format!("{forced:?} of {lens:?}")).await;
        }
    }
    pair.settled(net, "after all calls").await;
}

/// A server gets the client's own pages where the backend announces it, and nowhere else. The
/// server reads the data of a write in them, and leaves the data of a read in them, in one piece or
/// in many. The pages are given back with the list.
pub async fn pages_are_lent_as_announced(net: &Net<'_>) {
    let capabilities = net.backend().expected_capabilities();
    const ROUNDS: u64 = 20;
    let pair = ready(net, &Config::default()).await;
    let b = &pair.b;
    let mut lent = 0;
    for round in 0..ROUNDS {
        let shared = Memory::shareable(400_000).expect("memory");
        let list: MemList =
            if round % 2 == 0 { shared.slice(77, 300_000).into() } else { striped(&shared, 50_000, 4).collect() };
        list.copy_from(0, &pattern(round, list.len()));
        let (forced, at) = (Some(Path::ServerBased), 1000);
        let call = pair.call(b"w", Body::Out(list.clone()), forced);
        let serve = async {
            let incoming = next_call(b).await;
            assert!(incoming.pages(1, incoming.len()).is_none(), "beyond the data");
            let pages = incoming.pages(at, incoming.len() - at);
            if let Some(pages) = &pages {
                assert!(
                    pages.to_vec() == pattern(round, list.len())[at as usize..],
                    "round {round}: the data of a write"
                );
            }
            let some = pages.is_some();
            drop(pages);
            incoming.reply(b"", None, soon(b)).await.expect("reply");
            some
        };
        let (reply, some) = join(call.reply(), serve).await;
        reply.expect("write");
        lent += u64::from(some);

        let call = pair.call(b"r", Body::In(list.clone()), forced);
        let serve = async {
            let incoming = next_call(b).await;
            let pages = incoming.pages(0, incoming.len());
            let some = pages.is_some();
            if let Some(pages) = pages {
                pages.copy_from(0, &pattern(round + 1, list.len()));
            }
            incoming.reply(b"", None, soon(b)).await.expect("reply");
            some
        };
        let (reply, some) = join(call.reply(), serve).await;
        reply.expect("read");
        if some {
            assert!(list.to_vec() == pattern(round + 1, list.len()), "round {round}: the data of a read");
        }
    }
    // Memory that was passed with a call may not be mapped yet when the call has arrived.
    let announced = capabilities.shares_pages && capabilities.rdma_read;
    assert!(if announced { lent > 0 } else { lent == 0 }, "{lent} of {ROUNDS} had their pages lent");
    pair.settled(net, "after all pages were given back").await;
}

/// Returns pieces of `len` bytes of `memory`, each followed by a gap of the same length.
fn striped(memory: &Memory, len: usize, count: usize) -> impl Iterator<Item = MemSlice> {
    (0..count).map(move |piece| memory.slice(2 * len * piece, len))
}

/// The policy chooses by size. Its counters and the plan report the choice.
pub async fn the_policy_is_followed_and_told(net: &Net<'_>) {
    let reads = net.backend().expected_capabilities().rdma_read;
    let pair = ready(net, &Config::default()).await;
    let large = if reads { Path::ServerBased } else { Path::ClientBased };
    for (len, write, read) in [
        (4096, Path::Inline, Path::Inline),
        (20_000, Path::FastRdma, Path::FastRdma),
        (65_536, Path::FastRdma, Path::FastRdma),
        (65_537, large, Path::ServerBased),
    ] {
        assert_eq!(both_ways(&pair, 1, &[len], None, "by the policy").await, [write, read], "{len} bytes");
    }
    let paths = pair.a.with(|e| e.path_counters());
    assert_eq!(paths.requests(Direction::Write, Path::FastRdma), 2);
    assert_eq!(paths.bytes(Direction::Read, Path::Inline), 4096);
    assert_eq!(paths.missed(Miss::NoSlot), 0);
    let plan = pair.a.with(|e| e.plan(Some(pair.to_b.id()))).to_string();
    assert!(plan.contains("4 KiB  inline") && plan.contains("64 KiB  fast-rdma"), "{plan}");
    let forced = Policy { forced: Some(Path::ServerBased), ..Policy::default() };
    pair.a.with(|e| e.set_policy(forced));
    assert_eq!(both_ways(&pair, 1, &[100], None, "forced").await[1], Path::ServerBased);
    assert!(pair.a.with(|e| e.plan(None)).to_string().contains("thresholds: forced"));
    pair.settled(net, "after all calls").await;
}

/// When all slots hold requests that the server is still processing, the next request takes another
/// path and reports why. When the requests are answered, the slots are free again.
pub async fn slots_run_out_and_come_back(net: &Net<'_>) {
    let pair = ready(net, &Config::default().fast_slots(2)).await;
    for round in 0..3 {
        let before = pair.a.with(|e| e.path_counters());
        let calls: Vec<_> = (0..4u64)
            .map(|seed| {
                let body = Body::Out(filled(seed, 30_000).into());
                pair.call(b"", body, None)
            })
            .collect();
        let since = pair.a.with(|e| e.path_counters()).since(&before);
        let (fast, missed) = (since.requests(Direction::Write, Path::FastRdma), since.missed(Miss::NoSlot));
        // An adapter that hands a request back leaves it in the queue, and the requests behind
        // it do not wait for the second slot.
        assert!((1..=2).contains(&fast) && fast + missed == 4, "round {round}: {fast} fast, {missed} without a slot");
        let served = async {
            for tag in 0..4 {
                assert!(answer(&pair.b, 0).await == pattern(tag, 30_000), "round {round}, call {tag}");
            }
        };
        let (replies, ()) = join(join_all(calls.into_iter().map(|call| call.reply())), served).await;
        replies.into_iter().for_each(|reply| drop(reply.expect("reply")));
        pair.settled(net, "after a round").await;
    }
}

/// A reply that is longer than the room in a head, with and without requested data; and the longest
/// request.
pub async fn long_replies_and_requests(net: &Net<'_>) {
    let pair = ready(net, &Config::default()).await;
    let long = pattern(3, 1000);
    for body in [Body::None, Body::In(memory(50).into()), Body::In(memory(200_000).into())] {
        let call = pair.call(b"?", body, None);
        let serve = async {
            let incoming = next_call(&pair.b).await;
            incoming.reply(&long, None, soon(&pair.b)).await.expect("reply");
        };
        let (reply, ()) = join(call.reply(), serve).await;
        assert_eq!(reply.expect("reply").bytes, long);
    }
    let room = pair.to_b.request_room();
    let call = pair.call(&pattern(4, room), Body::None, None);
    let serve = async {
        let incoming = next_call(&pair.b).await;
        assert!(incoming.request() == pattern(4, room), "the longest request");
        incoming.reply(b"", None, soon(&pair.b)).await.expect("reply");
    };
    let (reply, ()) = join(call.reply(), serve).await;
    reply.expect("reply");
    let refused = pair.to_b.call(&pattern(4, room + 1), Body::None, soon(&pair.a));
    assert_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::TooLarge));
    pair.settled(net, "after long messages").await;
}

/// A grant is used once and ends its operation. A grant that was cancelled or has expired can no
/// longer be written, and what is announced for it is dropped.
pub async fn grants_end(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let target = memory(10_000);
    let (grant, written) = pair.grant(&target);
    pair.push_granted(&grant, pattern(1, 10_000)).await.expect("push");
    assert_eq!(written.await.expect("written").len, 10_000);
    assert!(target.to_vec() == pattern(1, 10_000));
    let (_, cancelled) = pair.grant(&target);
    cancelled.cancel();
    assert_eq!(cancelled.await.expect_err("cancelled").kind(), ErrorKind::Cancelled);
    let passed = Options::by(pair.b.now());
    let (_, late) = pair.to_a.grant(&target, passed).expect("grant");
    assert_eq!(late.await.expect_err("late").kind(), ErrorKind::TimedOut);
    // The token of a grant that is over, with other memory that may be written: the
    // announcement is ignored.
    let other = memory(100);
    let exposure = pair.expose(&other, Access::WRITE);
    let stale = bmi_core::Grant { descriptor: exposure.descriptor().clone(), token: grant.token };
    pair.push_granted(&stale, pattern(2, 100)).await.expect("push");
    pair.ping(net, "behind a stale token").await;
    assert!(other.to_vec() == pattern(2, 100));
    drop(exposure);
    pair.settled(net, "after all grants").await;
}

/// A client that dies in the middle of its calls leaves nothing behind at the server.
pub async fn a_dead_client_leaves_nothing(net: &Net<'_>) {
    let pair = ready(net, &Config::default()).await;
    let sizes =
        [(100, Path::Inline), (30_000, Path::FastRdma), (200_000, Path::ServerBased), (50_000, Path::ClientBased)];
    let calls = sizes.into_iter().map(|(len, path)| {
        let body = Body::Out(filled(1, len).into());
        pair.call(b"", body, Some(path))
    });
    let calls: Vec<_> = calls.collect();
    let mut incoming = Vec::new();
    for _ in 0..calls.len() {
        incoming.push(next_call(&pair.b).await);
    }
    let gone = pair.to_b.disconnect(Options::by(pair.a.now()));
    drop(calls);
    let _ = gone.await;
    net.until("the client is lost", || {
        pair.b.with(|e| e.poll_event()).filter(|event| matches!(event, PeerEvent::Lost { .. })).map(|_| ())
    })
    .await;
    drop(incoming);
    net.settled(&pair.b, 0, "after the client is gone").await;
    net.settled(&pair.a, 0, "the client itself").await;
}

/// Two lists of any shapes move exactly the right bytes by every path.
pub async fn any_lists_by_any_path(net: &Net<'_>) {
    let few = || proptest::collection::vec(prop_oneof![0usize..20, 500usize..6000, 20_000usize..70_000], 0..6);
    // More pieces than a message describes.
    let many = || proptest::collection::vec(0usize..100, 2000..3000);
    let shape = || prop_oneof![9 => few(), 1 => many()];
    let set = vec![Lists::Auto, Lists::Auto, Lists::Chain, Lists::Pack, Lists::PackExposed];
    let lists = || proptest::sample::select(set.clone());
    let path = prop_oneof![Just(None), (0usize..4).prop_map(|path| Some(Path::TAKEN[path])), Just(Some(Path::Hybrid))];
    let held = any::<bool>();
    let shapes = (proptest::collection::vec((shape(), path, held, lists()), 1..6), any::<bool>());
    let mut runner = TestRunner::new(Cases { cases: 12, failure_persistence: None, ..Cases::default() });
    let result = runner.run(&shapes, |(calls, small)| {
        let net = &Net::new(net.backend());
        let config = if small { tight().fast_slots(1).fast_slot_bytes(4096) } else { Config::default() };
        net.run(async {
            let pair = ready(net, &config).await;
            for (number, (lens, path, held, lists)) in calls.iter().enumerate() {
                any_lists(&pair, number, lens, *path, *held, *lists).await;
            }
            pair.settled(net, "after all calls").await;
        });
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// Makes one write and one read of a list of `lens`, whose memory is registered before if `held`.
async fn any_lists(pair: &Pair, number: usize, lens: &[usize], path: Option<Path>, held: bool, lists: Lists) {
    let seed = 1 + 2 * number as u64;
    // A list that a message cannot describe is packed, unless that was ruled out.
    let lists = if lens.len() > 1000 && lists == Lists::Chain { Lists::Auto } else { lists };
    let what = format!("call {number}, {path:?} of {} pieces, {lists:?}: {lens:.40?}", lens.len());
    let list: MemList = Guarded::filled(seed, lens).list();
    // Memory that is already registered takes other paths.
    let register = |piece: &MemSlice| pair.a.with(|e| e.register(piece.memory())).ok();
    let regions: Vec<_> = list.pieces().iter().filter(|_| held).filter_map(register).collect();
    let options = soon(&pair.a).lists(lists).path(path);
    let call = pair.to_b.call(b"w", Body::Out(list.clone()), options).expect(&what);
    let (reply, written) = join(call.reply(), answer(&pair.b, 0)).await;
    reply.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(written == list.to_vec(), "{what}: written");
    let call = pair.to_b.call(b"r", Body::In(list.clone()), options).expect(&what);
    let (reply, _) = join(call.reply(), answer(&pair.b, seed + 1)).await;
    reply.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(list.to_vec() == pattern(seed + 1, list.len()), "{what}: read");
    drop(regions);
}

/// With one setting on both sides, the lists of a call are packed by neither side, by the one that
/// exposes its list, or by both.
pub async fn lists_are_packed_on_no_side_on_one_or_on_both(net: &Net<'_>) {
    let (exposed, local) = ([70; 300], [300; 70]);
    for (seed, lists) in (1..).zip([Lists::Chain, Lists::PackExposed, Lists::Pack]) {
        let pair = ready(net, &Config::default().lists(lists)).await;
        let (target, source) = (Guarded::new(&exposed), Guarded::filled(seed, &local));
        let before = pair.b.counters();
        // Reads by the server are pushed wherever there is RDMA.
        let call = pair.call(b"r", Body::In(target.list()), Some(Path::ServerBased));
        let serve = async {
            let incoming = next_call(&pair.b).await;
            incoming.store(0, source.list(), soon(&pair.b)).await.expect("store");
            incoming.reply(b"", None, soon(&pair.b)).await.expect("reply");
        };
        let (reply, ()) = join(call.reply(), serve).await;
        reply.expect("read");
        target.check("read", &pattern(seed, source.len()));
        let after = pair.b.counters();
        let requests = after.transfer_requests - before.transfer_requests;
        assert_eq!(
            requests >= exposed.len() as u64,
            lists == Lists::Chain,
            "{lists:?}: {requests} for the exposed list"
        );
        let packed = after.units_packed - before.units_packed;
        let units = if lists == Lists::Pack { after.transfer_units - before.transfer_units } else { 0 };
        assert_eq!(packed, units, "{lists:?}: units of the side that pushes");
        assert!(lists != Lists::Pack || packed > 0, "{lists:?}");
        pair.settled(net, "after the call").await;
    }
}

/// Bytes that are not a call are refused, and so are calls with false claims.
pub async fn nonsense_is_no_call(net: &Net<'_>) {
    let pair = ready(net, &Config::default()).await;
    for (number, len) in [0usize, 1, 23, 24, 100, 8000, 30_000].into_iter().enumerate() {
        let bytes: Memory = Memory::from(pattern(number as u64, len));
        pair.send_unexpected(1, bytes).await.expect("send");
        let message = pair.b.next_unexpected().await;
        assert_eq!(message.len(), len);
        let error = Incoming::new(message).expect_err("no call");
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    }
    pair.settled(net, "after nonsense").await;
}

/// A reply that cannot be right ends the call with `Protocol`: lengths that wrap, grants for more
/// than the data, kinds that do not exist.
pub async fn replies_that_cannot_be_right(net: &Net<'_>) {
    /// Returns the header of a reply: kind, bytes, place.
    fn header(kind: u8, bytes: usize, at: u64) -> Vec<u8> {
        let bytes = u32::try_from(bytes).expect("a test's length").to_le_bytes();
        [&[kind, 0, 0, 0][..], &bytes[..], &at.to_le_bytes()].concat()
    }
    let pair = ready(net, &Config::default().dropped_call(LEFT)).await;
    let forged = [
        header(0, 0, u64::MAX),
        header(0, 0, u64::MAX - 111),
        header(0, u32::MAX as usize, 0),
        header(1, 0, 0),
        header(2, 0, u64::MAX),
        header(3, u32::MAX as usize, 0),
        header(0, 0, 101),
        header(5, 0, 0),
        Vec::new(),
    ];
    for (number, forged) in forged.into_iter().enumerate() {
        let body = Body::In(memory(100).into());
        let call = pair.call(b"r", body, Some(Path::Inline));
        let serve = async {
            let asked = pair.b.next_unexpected().await;
            pair.to_a.send(asked.tag(), forged, soon(&pair.b)).await.expect("send");
        };
        let (reply, ()) = join(call.reply(), serve).await;
        assert_eq!(reply.expect_err("a lie").kind(), ErrorKind::Protocol, "lie {number}");
    }
    // The server grants memory for the same bytes again and again.
    let body = Body::Out(filled(1, 5000).into());
    let call = pair.call(b"w", body, Some(Path::ClientBased));
    let serve = async {
        let asked = pair.b.next_unexpected().await;
        let target = memory(5000);
        for number in 0..2 {
            let (grant, written) = pair.grant(&target);
            let wire = grant.descriptor.encode(grant.token.to_le_bytes().to_vec());
            let message = [header(1, wire.len(), 0), wire].concat();
            pair.to_a.send(asked.tag(), message, soon(&pair.b)).await.expect("send");
            // The second grant ends the call, and with it a push that is still in flight.
            if number == 0 {
                written.await.expect("the first one is used");
            }
        }
    };
    let (reply, ()) = join(call.reply(), serve).await;
    assert_eq!(reply.expect_err("a lie").kind(), ErrorKind::Protocol, "grants without end");
    pair.settled(net, "after all lies").await;
}
