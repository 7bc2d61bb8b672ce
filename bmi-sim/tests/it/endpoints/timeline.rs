//! What endpoints record of themselves, from both sides, in virtual time: the clocks are aligned to
//! a known skew, everything that happens is in the picture, and recording changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bmi_core::comm::{Body, Incoming, Path, serve};
use bmi_core::driver::Waiting;
use bmi_core::timeline::{Class, Direction, Way, What, align, merge};
use bmi_core::{Clock, Config, Endpoint, Memory, OpKind, Options, Peer, Time, Timeline, TimelineOptions};
use bmi_sim::{Node, Profile, SimClock, SimConfig, World};
use serde_json::Value;

const SECOND: Duration = Duration::from_secs(1);
/// A message of 8 bytes takes 6 µs with this profile, and the two processors some more.
const LATENCY_NS: i128 = 20_000;
const LONG: usize = 300_000;
const ROUNDS: usize = 6;

/// A clock that is ahead of another one.
struct Skewed(SimClock, u64);

impl Clock for Skewed {
    fn now(&self) -> Time {
        Time::from_nanos(self.0.now().as_nanos() + self.1)
    }
}

/// What the two sides record: whether they do, and how far their clocks are ahead of the world's.
#[derive(Clone, Copy)]
struct Recording {
    events: usize,
    ahead_ns: [u64; 2],
}

fn record(node: &Node, endpoint: &Endpoint, events: usize, ahead: u64) {
    let clock = Skewed(node.clock(), ahead);
    endpoint.with(|engine| engine.record(TimelineOptions { events }, clock)).unwrap();
}

/// Exchanges messages of every length, and makes calls by every path.
async fn talk(peer: &Peer) {
    let options = Options::default();
    for round in 0..ROUNDS as u64 {
        for len in [8, 5_000, 20_000, LONG] {
            let answer = peer.recv(round, Memory::zeroed(len).unwrap(), options);
            let request = (len as u64).to_le_bytes().to_vec();
            peer.send_unexpected(round, Memory::from(request), options).await.unwrap();
            peer.send(round, Memory::zeroed(len).unwrap(), options).await.unwrap();
            answer.await.unwrap();
        }
        for path in [Path::Inline, Path::FastRdma, Path::ServerBased, Path::ClientBased] {
            let data = Memory::zeroed(2_000).unwrap();
            let call = peer.call(b"put", Body::Out(data.into()), options.path(path)).unwrap();
            call.reply().await.unwrap();
        }
        peer.call(b"none", Body::None, options).unwrap().reply().await.unwrap();
    }
}

/// Answers what [`talk`] sends: first all messages of a round, then its calls.
async fn answer(server: &Endpoint) {
    for round in 0..ROUNDS as u64 {
        for _ in 0..4 {
            let request = server.next_unexpected().await;
            let len = usize::try_from(u64::from_le_bytes(request.bytes().try_into().unwrap())).unwrap();
            let (peer, options) = (request.peer(), Options::default());
            peer.recv(round, Memory::zeroed(len).unwrap(), options).await.unwrap();
            peer.send(round, Memory::zeroed(len).unwrap(), options).await.unwrap();
        }
        for _ in 0..5 {
            let call = Incoming::new(server.next_unexpected().await).unwrap();
            if !call.is_empty() {
                call.fetch(0, Memory::zeroed(2_000).unwrap(), call.within(SECOND)).await.unwrap();
            }
            let options = call.within(SECOND);
            call.reply(b"", None, options).await.unwrap();
        }
    }
}

/// Runs a client that sleeps and a server that polls. Returns the digest, and what both recorded.
fn run(recording: Option<Recording>) -> (u64, Option<[Timeline; 2]>) {
    let profile = Profile::named("vapi-2003").unwrap();
    let world = World::with(SimConfig::with_profile(profile));
    let (server, client) = (world.node("server"), world.node("client"));
    let s = server.endpoint(Config::default()).unwrap();
    let c = client.endpoint_waiting(Config::default(), Waiting::Event).unwrap();
    let addr = s.listen(&server.addr(1)).unwrap();
    if let Some(Recording { events, ahead_ns: [first, second] }) = recording {
        record(&client, &c, events, first);
        record(&server, &s, events, second);
    }
    let both = [c.clone(), s.clone()];
    let serving = server.spawn(async move { answer(&s).await });
    let talking = client.spawn(async move {
        let peer = c.connect(&addr, Options::default()).await.unwrap();
        talk(&peer).await;
    });
    world.block_on(async {
        serving.await.unwrap();
        talking.await.unwrap();
        world.sim().sleep(SECOND).await;
    });
    let timelines = recording.map(|_| both.map(|endpoint| endpoint.with(|engine| engine.timeline()).unwrap()));
    (world.digest(), timelines)
}

fn recorded(ahead_ns: [u64; 2]) -> [Timeline; 2] {
    run(Some(Recording { events: 1 << 16, ahead_ns })).1.unwrap()
}

fn count(timeline: &Timeline, is: impl Fn(What) -> bool) -> usize {
    timeline.entries.iter().filter(|entry| is(entry.what)).count()
}

#[test]
fn a_known_skew_is_found_within_the_latency() {
    for ahead in [[0, 0], [0, 123_456_789], [5_000_000_000, 0]] {
        let [client, server] = recorded(ahead);
        let found = align(&client, &server).unwrap();
        let skew = i128::from(ahead[1]) - i128::from(ahead[0]);
        assert!(found.error_ns > 0 && found.error_ns < LATENCY_NS, "{found:?}");
        assert!((found.offset_ns - skew).abs() <= found.error_ns, "{found:?} for {skew}");
        let messages = |timeline| count(timeline, |what| matches!(what, What::Send(..)));
        assert_eq!(found.messages, messages(&client) + messages(&server), "each message has two ends");
    }
}

#[test]
fn everything_that_happens_is_recorded() {
    let [client, server] = recorded([0, 0]);
    let seen = |timeline: &Timeline, what: What| count(timeline, |seen| seen == what);
    for timeline in [&client, &server] {
        assert_eq!((timeline.lost, timeline.peers.len()), (0, 1));
        for way in [Way::Eager, Way::Announced] {
            assert!(seen(timeline, What::Send(Class::Expected, way)) >= ROUNDS, "{way:?}");
            assert!(seen(timeline, What::Arrive(Class::Expected, way)) >= ROUNDS, "{way:?}");
        }
        assert!(seen(timeline, What::Deliver(Class::Expected)) >= 4 * ROUNDS);
        assert!(seen(timeline, What::Register { hit: false }) > ROUNDS);
        let registering = timeline.entries.iter().filter(|entry| entry.what == What::Register { hit: false });
        assert!(registering.clone().any(|entry| entry.duration_ns > 1_000), "registering takes time");
        assert!(seen(timeline, What::End { op: OpKind::Send, ok: true }) >= ROUNDS);
        let units = timeline.entries.iter().filter(|entry| entry.what == What::Unit(Direction::Read));
        // A message of this length is one unit or several, and the bytes are all there.
        let bytes: u64 = units.clone().map(|entry| entry.bytes).sum();
        assert!(bytes >= (ROUNDS * LONG) as u64);
        assert!(units.clone().all(|entry| entry.duration_ns > 1_000), "a unit takes a round trip");
        let ways: BTreeSet<u8> = timeline
            .entries
            .iter()
            .filter_map(|entry| match entry.what {
                What::Arrive(_, way) => Some(way as u8),
                _ => None,
            })
            .collect();
        assert!(ways.contains(&(Way::Slot as u8)) || ways.contains(&(Way::Offered as u8)), "{ways:?}");
    }
    assert_eq!(seen(&server, What::Deliver(Class::Unexpected)), 9 * ROUNDS);
    assert!(seen(&client, What::Unit(Direction::Write)) >= ROUNDS, "client-based calls");
    let asleep = client.entries.iter().filter(|entry| entry.what == What::Sleep && entry.duration_ns > 1_000);
    assert!(asleep.count() > ROUNDS, "the client sleeps until its answers");
    for path in Path::TAKEN {
        assert_eq!(seen(&client, What::Call(Some(path))), ROUNDS, "{path}");
    }
    assert_eq!((seen(&client, What::Call(None)), seen(&client, What::CallEnd)), (ROUNDS, 5 * ROUNDS));
}

#[test]
fn recording_changes_nothing_and_stays_within_its_room() {
    let (digest, none) = run(None);
    assert!(none.is_none());
    for events in [1 << 16, 50] {
        let (recorded, timelines) = run(Some(Recording { events, ahead_ns: [0, 7] }));
        assert_eq!(recorded, digest, "{events} entries");
        for timeline in timelines.unwrap() {
            assert_eq!((timeline.entries.len() == events, timeline.lost > 100), (events == 50, events == 50));
        }
    }
    // What is left of the ends of both sides is paired, and no more.
    let [client, server] = run(Some(Recording { events: 50, ahead_ns: [0, 7] })).1.unwrap();
    let (found, events) = (merge(&client, &server), parsed(&client, &server).1);
    assert!(found.arrows() > 0 && of(&events, "s").count() == found.arrows());
    assert!(found.alignment().is_some_and(|found| (found.offset_ns - 7).abs() <= found.error_ns));
}

fn parsed(client: &Timeline, server: &Timeline) -> (Value, Vec<Value>) {
    let mut text = Vec::new();
    merge(client, server).write_chrome(&mut text).unwrap();
    let document: Value = serde_json::from_slice(&text).unwrap();
    (document["otherData"].clone(), document["traceEvents"].as_array().unwrap().clone())
}

fn of<'a>(events: &'a [Value], phase: &'static str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| event["ph"] == phase)
}

/// Converts a time in µs to nanoseconds.
fn ns(value: &Value) -> u64 {
    (value.as_f64().unwrap() * 1e3).round() as u64
}

fn row(event: &Value) -> (u64, u64) {
    (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap())
}

#[test]
fn the_picture_of_both_sides_has_rows_in_order_and_arrows_with_two_ends() {
    let [client, server] = recorded([9_000_000, 0]);
    let (other, events) = parsed(&client, &Timeline::decode(&server.encode()).unwrap());
    let found = align(&client, &server).unwrap();
    assert_eq!(other["error bound ns"].as_i64().map(i128::from), Some(found.error_ns));
    assert_eq!(other["server clock ahead ns"].as_i64().map(i128::from), Some(found.offset_ns));
    let processes: Vec<_> =
        of(&events, "M").filter(|event| event["name"] == "process_name").map(|event| &event["args"]["name"]).collect();
    assert_eq!(processes, ["client", "server"]);

    let mut spans: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    for event in of(&events, "X") {
        let start = ns(&event["ts"]);
        spans.entry(row(event)).or_default().push((start, start + ns(&event["dur"])));
    }
    for (row, spans) in &spans {
        let mut open: Vec<(u64, u64)> = Vec::new();
        for span in spans {
            open.retain(|around| around.1 > span.0);
            assert!(open.iter().all(|around| around.1 >= span.1), "{row:?}: {span:?} nests in {open:?}");
            open.push(*span);
        }
    }
    let ends = |phase| -> BTreeMap<u64, ((u64, u64), u64)> {
        of(&events, phase).map(|event| (event["id"].as_u64().unwrap(), (row(event), ns(&event["ts"])))).collect()
    };
    let (from, to) = (ends("s"), ends("f"));
    assert!(from.len() == found.messages && from.keys().eq(to.keys()));
    for (id, (row, at)) in &from {
        let (to_row, to_at) = to[id];
        for (row, at) in [(*row, *at), (to_row, to_at)] {
            assert!(spans[&row].iter().any(|(start, end)| *start <= at && at < *end), "{id}: an arrow meets a span");
        }
        assert!(to_at >= *at && to_row.0 != row.0, "{id}: it leads to the other side, and not back in time");
    }
    // Overlapping spans end, and calls have the names of their paths.
    let (begun, ended) = (ends("b"), ends("e"));
    assert!(begun.keys().eq(ended.keys()) && begun.iter().all(|(id, (_, at))| ended[id].1 >= *at));
    for path in Path::TAKEN {
        let name = format!("call {path}");
        assert_eq!(of(&events, "b").filter(|event| event["name"] == name.as_str()).count(), ROUNDS, "{name}");
    }
}

/// A server with many clients pairs each with its own connection, and all have one offset.
#[test]
fn one_client_is_found_among_several() {
    let world = World::new(5);
    let node = world.node("server");
    let server = node.endpoint(Config::default()).unwrap();
    let addr = server.listen(&node.addr(1)).unwrap();
    record(&node, &server, 1 << 16, 77_000);
    let serving = server.clone();
    node.spawn(async move {
        serve(&serving, 8, async |call| {
            let (request, options) = (call.request_bytes(), call.within(SECOND));
            call.reply(&request, None, options).await
        })
        .await
    });
    let clients = ["a", "b", "c"].map(|name| {
        let node = world.node(name);
        let endpoint = node.endpoint(Config::default()).unwrap();
        record(&node, &endpoint, 1 << 16, 0);
        endpoint
    });
    world.block_on(async {
        for (number, client) in clients.iter().enumerate() {
            let peer = client.connect(&addr, client.within(SECOND)).await.unwrap();
            for _ in 0..=number {
                let request = vec![0; number + 1];
                let call = peer.call(&request, Body::None, peer.within(SECOND));
                call.unwrap().reply().await.unwrap();
            }
        }
        world.sim().sleep(SECOND).await;
    });
    let servers = server.with(|engine| engine.timeline()).unwrap();
    assert_eq!(servers.peers.len(), 3);
    for (number, client) in clients.iter().enumerate() {
        let found = align(&client.with(|engine| engine.timeline()).unwrap(), &servers).unwrap();
        assert_eq!(found.messages, 2 * (number + 1));
        assert!((found.offset_ns - 77_000).abs() <= found.error_ns, "{found:?}");
    }
    let last = server.with(|engine| engine.stop_recording()).unwrap();
    assert!(last.entries.len() >= servers.entries.len());
    assert!(server.with(|engine| engine.timeline()).is_none());
}
