//! A timeline is correct and a browser can read it: rows are in order, arrows have both ends.

use std::collections::BTreeMap;
use std::time::Duration;

use bmi_core::{Config, Memory, Options};
use bmi_sim::{Profile, SimConfig, Trace, TraceOptions, World};
use serde_json::Value;

/// Runs a client that sends small and large messages to a server, which computes and writes to its
/// disk. Returns the digest and the timeline.
fn run(trace: Option<TraceOptions>) -> (u64, Option<Trace>, Duration) {
    let profile = Profile::named("vapi-2003").unwrap();
    let world = World::with(SimConfig { trace, ..SimConfig::with_profile(profile) });
    let trace = trace.map(|options| world.trace(options));
    let (server, client) = (world.node("server \"one\""), world.node("client"));
    let (s, c) = (server.endpoint(Config::default()).unwrap(), client.endpoint(Config::default()).unwrap());
    let addr = s.listen(&server.addr(1)).unwrap();
    let node = server.clone();
    let serve = server.spawn(async move {
        for _ in 0..4 {
            let message = s.next_unexpected().await;
            let memory = Memory::zeroed(300_000).unwrap();
            message.peer().recv(7, memory, Options::default()).await.unwrap();
            node.compute(Duration::from_micros(50)).await;
            node.disk().write(300_000).await.unwrap();
        }
    });
    let send = client.spawn(async move {
        let peer = c.connect(&addr, Options::default()).await.unwrap();
        for _ in 0..4 {
            peer.send_unexpected(7, Memory::from(b"next".to_vec()), Options::default()).await.unwrap();
            peer.send(7, Memory::zeroed(300_000).unwrap(), Options::default()).await.unwrap();
        }
    });
    world.block_on(async {
        serve.await.unwrap();
        send.await.unwrap();
    });
    (world.digest(), trace, server.usage().busy())
}

fn parsed(trace: &Trace) -> Vec<Value> {
    let mut text = Vec::new();
    trace.write_chrome(&mut text).unwrap();
    let document: Value = serde_json::from_slice(&text).unwrap();
    document["traceEvents"].as_array().unwrap().clone()
}

/// Converts a time in µs to nanoseconds.
fn ns(value: &Value) -> u64 {
    (value.as_f64().unwrap() * 1e3).round() as u64
}

type Row = (u64, u64);

fn row(event: &Value) -> Row {
    (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap())
}

#[test]
fn rows_are_in_order_and_arrows_have_two_ends() {
    let (_, trace, busy) = run(Some(TraceOptions::default()));
    let events = parsed(&trace.unwrap());
    let of = |phase: &'static str| events.iter().filter(move |event| event["ph"] == phase);
    let mut names: BTreeMap<Row, String> = BTreeMap::new();
    for event in of("M").filter(|event| event["name"] == "thread_name") {
        names.insert(row(event), event["args"]["name"].as_str().unwrap().to_owned());
    }
    for name in ["core 0", "core 1", "adapter transmit", "adapter receive", "disk"] {
        assert!(names.values().any(|known| known == name), "{name} is in {names:?}");
    }
    // They have rows of their own: a thread of that name would be an empty row beside it.
    for (phase, name) in [("b", "link"), ("C", "switch port")] {
        assert!(of(phase).all(|event| event["name"] == name) && !names.values().any(|known| known == name));
    }
    let processes: Vec<_> =
        of("M").filter(|event| event["name"] == "process_name").map(|event| &event["args"]["name"]).collect();
    assert_eq!(processes, ["server \"one\"", "client"]);

    let mut spans: BTreeMap<Row, Vec<(u64, u64)>> = BTreeMap::new();
    for event in of("X") {
        assert!(names.contains_key(&row(event)));
        let start = ns(&event["ts"]);
        spans.entry(row(event)).or_default().push((start, start + ns(&event["dur"])));
    }
    for (row, spans) in &spans {
        for pair in spans.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "{}: {pair:?}: one after the other", names[row]);
        }
    }
    let cores = spans.iter().filter(|((pid, _), _)| *pid == 1).filter(|(row, _)| names[row].starts_with("core"));
    let shown: u64 = cores.flat_map(|(_, spans)| spans).map(|(start, end)| end - start).sum();
    assert_eq!(Duration::from_nanos(shown), busy, "the cores' rows are the processor's time");

    let ends = |phase| -> BTreeMap<u64, (Row, u64)> {
        of(phase).map(|event| (event["id"].as_u64().unwrap(), (row(event), ns(&event["ts"])))).collect()
    };
    let (from, to) = (ends("s"), ends("f"));
    assert!(from.len() > 8 && from.len() == of("s").count() && to.len() == of("f").count());
    assert_eq!(from.keys().collect::<Vec<_>>(), to.keys().collect::<Vec<_>>());
    for (id, (row, at)) in &from {
        assert!(spans[row].iter().any(|(start, end)| start <= at && at <= end), "an arrow leaves a span");
        assert!(to[id].1 > *at && to[id].0 != *row, "and comes later elsewhere");
    }
    let (begun, ended) = (ends("b"), ends("e"));
    assert!(begun.len() > 8 && begun.keys().eq(ended.keys()));
    assert!(begun.iter().all(|(id, (_, at))| ended[id].1 > *at));
}

#[test]
fn recording_changes_nothing_and_stays_within_its_room() {
    let (digest, none, _) = run(None);
    assert!(none.is_none());
    let few = TraceOptions { max_spans: 20 };
    for options in [TraceOptions::default(), few] {
        assert_eq!(run(Some(options)).0, digest);
    }
    let trace = run(Some(few)).1.unwrap();
    let (kept, lost) = trace.spans();
    assert!(kept == 20 && lost > 100);
    let events = parsed(&trace);
    let count = |phase: &str| events.iter().filter(|event| event["ph"] == phase).count();
    assert_eq!(count("s"), count("f"), "no arrow without its other end");
}

/// Checks the format's rules, event by event, as its description has them: the fields that each
/// phase must have, numbers that are numbers, spans that nest, arrows that begin and end within a
/// span. A counter that never returned to zero showed bytes at a port for the rest of the run.
#[test]
fn every_event_is_as_the_format_says() {
    let (_, trace, _) = run(Some(TraceOptions::default()));
    let events = parsed(&trace.unwrap());
    let mut open: BTreeMap<(String, u64), u64> = BTreeMap::new();
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    let mut spans: BTreeMap<Row, Vec<(u64, u64)>> = BTreeMap::new();
    let mut arrows = Vec::new();
    let mut named: Vec<u64> = Vec::new();
    for event in &events {
        let phase = event["ph"].as_str().unwrap();
        let pid = event["pid"].as_u64().unwrap();
        assert!(event["name"].is_string(), "{event}");
        if phase == "M" {
            assert!(event["args"].is_object(), "{event}");
            named.push(pid);
            continue;
        }
        assert!(named.contains(&pid), "{event}: its process has a name");
        let (ts, tid) = (ns(&event["ts"]), event["tid"].as_u64());
        assert!(event["ts"].is_number() && tid.is_some(), "{event}");
        match phase {
            "X" => {
                assert!(event["dur"].as_f64().unwrap() >= 0.0 && event["cat"].is_string(), "{event}");
                spans.entry(row(event)).or_default().push((ts, ts + ns(&event["dur"])));
            }
            "b" => assert!(open.insert(("link".to_owned(), event["id"].as_u64().unwrap()), ts).is_none(), "{event}"),
            "e" => {
                let begun = open.remove(&(event["cat"].as_str().unwrap().to_owned(), event["id"].as_u64().unwrap()));
                assert!(begun.is_some_and(|begun| begun <= ts), "{event}");
            }
            "s" | "f" => {
                assert!(event["cat"] == "flow" && (phase == "s" || event["bp"] == "e"), "{event}");
                arrows.push((row(event), ts));
            }
            "C" => {
                let value = event["args"]["bytes"].as_u64().unwrap();
                last.insert(pid, value);
            }
            other => panic!("{other} is no phase of ours"),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    assert!(!last.is_empty() && last.values().all(|value| *value == 0), "{last:?}: a port that is empty at the end");
    for (row, at) in arrows {
        assert!(spans[&row].iter().any(|(start, end)| *start <= at && at <= *end), "an arrow at {at} in row {row:?}");
    }
}
