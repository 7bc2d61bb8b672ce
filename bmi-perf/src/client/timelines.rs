//! Where the time of a message goes: from recordings of both sides.
//!
//! **Stages.** A round trip is cut at the entries of both timelines. What is in flight is the time
//! from the end of a send to the arrival, in both directions together, so the offset between the
//! clocks cancels out.
//!
//! ```text
//!   client   post ├── send ──┤                                            arrive ├─ deliver ─┤ post
//!   server                    in flight   arrive ├─ deliver ─┤ program ├─ send ─┤ in flight
//! ```

use std::io;

use bmi::timeline::{Class, Entry, Timeline, What, merge};
use bmi_report::stats;
use serde_json::{Value, json};

use crate::case::{Case, Test};
use crate::work::DATA;

/// What both sides have recorded of a case.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) case: Case,
    pub(crate) client: Timeline,
    pub(crate) server: Timeline,
}

/// What one side recorded of one message and its answer.
#[derive(Clone, Copy, Debug)]
struct Turn {
    sends: Entry,
    arrives: Entry,
    has: Entry,
}

/// Returns the turns of a side. `answers` is true of the side that receives first.
fn turns(timeline: &Timeline, answers: bool) -> Vec<Turn> {
    let of = |is: fn(&What) -> bool| -> Vec<Entry> {
        timeline.entries.iter().filter(|entry| entry.tag == DATA && is(&entry.what)).copied().collect()
    };
    let sends = of(|what| matches!(what, What::Send(Class::Expected, _)));
    let arrivals = of(|what| matches!(what, What::Arrive(Class::Expected, _)));
    let deliveries = of(|what| matches!(what, What::Deliver(Class::Expected)));
    let number = sends.len().min(arrivals.len()).min(deliveries.len());
    let turn = |index: usize| Turn { sends: sends[index], arrives: arrivals[index], has: deliveries[index] };
    let is_in_order = |turn: &Turn| match answers {
        true => turn.arrives.start <= turn.has.end() && turn.has.start <= turn.sends.end(),
        false => turn.sends.start <= turn.arrives.end() && turn.arrives.start <= turn.has.end(),
    };
    (0..number).map(turn).filter(is_in_order).collect()
}

/// Returns where the time of a message goes, in seconds: the medians of half of each stage of a
/// round trip. Returns nothing if the case is no exchange of messages.
pub(crate) fn stages(recorded: &Recorded) -> Vec<(String, f64)> {
    let Recorded { case, client, server } = recorded;
    if case.test != Test::Latency || case.station.connections > 1 {
        return Vec::new();
    }
    let (asks, answers) = (turns(client, false), turns(server, true));
    if asks.is_empty() || asks.len() != answers.len() {
        return Vec::new();
    }
    let turns: Vec<[f64; 4]> = asks.iter().zip(&answers).map(|(ask, answer)| stages_of(ask, answer)).collect();
    let median = |stage: usize| {
        // The clocks are read by both sides, so a stage of nothing may seem to be negative.
        let mut halves: Vec<f64> = turns.iter().map(|turn| turn[stage].max(0.0) / 2e9).collect();
        stats::middle(&mut halves)
    };
    STAGES.iter().enumerate().map(|(stage, name)| ((*name).to_owned(), median(stage))).collect()
}

/// The stages of a message.
const STAGES: [&str; 4] = ["send", "in flight", "deliver", "the server's program"];

/// Returns the nanoseconds of the stages of a round trip, both directions together.
fn stages_of(ask: &Turn, answer: &Turn) -> [f64; 4] {
    let (begin, end) = (|entry: &Entry| entry.start.as_nanos() as f64, |entry: &Entry| entry.end().as_nanos() as f64);
    let send = |turn: &Turn| end(&turn.sends) - begin(&turn.sends);
    let deliver = |turn: &Turn| end(&turn.has) - begin(&turn.arrives);
    // What the client waits for, without what the server takes.
    let waits = begin(&ask.arrives) - end(&ask.sends);
    let served = end(&answer.sends) - begin(&answer.arrives);
    let program = begin(&answer.sends) - end(&answer.has);
    [send(ask) + send(answer), waits - served, deliver(ask) + deliver(answer), program]
}

/// Returns the cases that are drawn: the first and the last one of each test over each transport,
/// without forced paths. More of them make a picture in which nobody finds anything.
fn drawn(all: &[Recorded]) -> Vec<&Recorded> {
    let fits = |a: &Recorded, b: &Recorded| (a.case.test, a.case.station) == (b.case.test, b.case.station);
    let chosen: Vec<&Recorded> = all.iter().filter(|one| one.case.path.is_none()).collect();
    let is_end = |index: usize| {
        let is_other = |other: &&Recorded| fits(other, chosen[index]);
        !chosen[..index].iter().any(is_other) || !chosen[index + 1..].iter().any(is_other)
    };
    (0..chosen.len()).filter(|index| is_end(*index)).map(|index| chosen[index]).collect()
}

/// Returns the timelines in Chrome's trace event format, one after the other. Each case has two
/// processes.
pub(crate) fn trace(all: &[Recorded]) -> io::Result<Value> {
    let (mut events, mut other) = (Vec::new(), Vec::new());
    let mut shift = 0.0;
    for (index, Recorded { case, client, server }) in drawn(all).into_iter().enumerate() {
        let mut bytes = Vec::new();
        merge(client, server).write_chrome(&mut bytes)?;
        let mut one: Value = serde_json::from_slice(&bytes)?;
        let name = case.row().name();
        other.push((name.clone(), one["otherData"].take()));
        let mut last: f64 = 0.0;
        for event in one["traceEvents"].as_array_mut().into_iter().flatten() {
            // Processes and arrows of cases have numbers of their own.
            for (field, step) in [("pid", 2), ("id", 1 << 20)] {
                if let Some(number) = event[field].as_u64() {
                    event[field] = json!(number + step * index as u64);
                }
            }
            if event["name"] == "process_name" {
                let side = event["args"]["name"].as_str().unwrap_or_default().to_owned();
                event["args"]["name"] = json!(format!("{side}: {name}"));
            }
            if let Some(at) = event["ts"].as_f64() {
                last = last.max(at + event["dur"].as_f64().unwrap_or(0.0));
                event["ts"] = json!(at + shift);
            }
            events.push(event.take());
        }
        shift += last + 10.0;
    }
    let other: serde_json::Map<String, Value> = other.into_iter().collect();
    Ok(json!({ "displayTimeUnit": "ns", "otherData": other, "traceEvents": events }))
}
