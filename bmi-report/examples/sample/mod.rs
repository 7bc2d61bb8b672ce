//! A report with everything that a report can have. Its figures are invented: each is computed from
//! a time for a message and a time for a byte, with seeded noise. The tests use it too.

mod events;

use std::collections::BTreeMap;

use bmi_report::stats::Random;
use bmi_report::{Cost, Histogram, Host, Kind, Plan, Report, Row, Step, Unit};

/// The sizes, as powers of two.
const SIZES: [u32; 11] = [3, 6, 8, 10, 12, 14, 16, 18, 20, 21, 22];
/// The rounds of a row.
const ROUNDS: u32 = 12;
/// The operations in a histogram.
const OPERATIONS: u32 = 120_000;

/// What a row runs over, and what a message costs there.
#[derive(Clone, Copy)]
struct Over {
    name: &'static str,
    kind: Kind,
    /// Seconds of a message, and bytes per second.
    message: f64,
    rate: f64,
    /// How much single operations differ from each other.
    spread: f64,
}

const fn over(name: &'static str, kind: Kind, message: f64, rate: f64, spread: f64) -> Over {
    Over { name, kind, message, rate, spread }
}

const OVERS: [Over; 7] = [
    over("tcp", Kind::Library, 10.6e-6, 2.5e9, 0.35),
    over("ib", Kind::Library, 2.1e-6, 11.4e9, 0.12),
    over("shm", Kind::Library, 0.52e-6, 7.8e9, 0.2),
    over("sockets", Kind::Baseline, 9.7e-6, 2.5e9, 0.35),
    over("memcpy", Kind::Baseline, 0.03e-6, 12.5e9, 0.05),
    over("tcp model", Kind::Model, 9.9e-6, 2.7e9, 0.0),
    over("ib model", Kind::Model, 2.0e-6, 12.0e9, 0.0),
];

/// Returns the report.
pub(crate) fn report() -> Report {
    let mut random = Random::new(11);
    let mut report =
        Report::new("bmi-report example 0.1.0", "Example (invented figures): three transports, 8 B to 4 MiB");
    report.began = 1_772_366_400;
    report.command = ["bmi-bench", "run", "--over", "tcp,ib,shm", "--sizes", "8..4M", "--out", "a report.json"]
        .map(str::to_owned)
        .to_vec();
    report.hosts = vec![host("client", "alpha", "6.8.0"), host("server", "beta", "6.8.0")];
    report.notes = vec!["Both hosts were otherwise idle; frequencies were not fixed.".to_owned()];
    for power in SIZES {
        report.rows.extend(OVERS.iter().map(|over| latency(&mut random, over, 1 << power, "polling")));
    }
    for power in SIZES {
        let overs = OVERS.iter().filter(|over| over.name != "ib model");
        report.rows.extend(overs.map(|over| bandwidth(&mut random, over, 1 << power)));
    }
    for power in [3, 8, 12, 16, 20] {
        let sleeping = OVERS[..3].iter().map(|over| Over { message: over.message + 6.5e-6, spread: 0.5, ..*over });
        report.rows.extend(sleeping.map(|over| latency(&mut random, &over, 1 << power, "sleeping")));
    }
    for rate in [10_000.0, 20_000.0, 40_000.0, 80_000.0, 160_000.0, 320_000.0] {
        report.rows.extend(OVERS[..3].iter().filter_map(|over| offered(&mut random, over, rate)));
    }
    calls(&mut random, &mut report);
    report.timeline = Some(events::timeline());
    report
}

fn host(role: &str, name: &str, kernel: &str) -> Host {
    let facts = [
        ("processor", "AMD EPYC 7543, 32 cores"),
        ("kernel", kernel),
        ("adapter", "ConnectX-6 Dx, 100 Gb/s"),
        ("MTU", "9000"),
        ("memory", "256 GiB"),
        ("frequency governor", "performance"),
        ("NUMA node of the adapter", "0"),
    ];
    Host { role: role.into(), name: name.into(), facts: facts.map(|(name, fact)| (name.into(), fact.into())).to_vec() }
}

/// Returns a number from 0 to 1.
fn uniform(random: &mut Random) -> f64 {
    random.below(1_000_000) as f64 / 1e6
}

/// Rounds around a value, each up to two percent away and now and then further.
fn rounds(random: &mut Random, value: f64, kind: Kind) -> Vec<Step> {
    let count = if kind == Kind::Model { 1 } else { ROUNDS };
    let mut factor = |kind| match kind {
        Kind::Model => 1.0,
        _ if random.below(15) == 0 => 1.08,
        _ => 0.98 + 0.04 * uniform(random),
    };
    (0..count).map(|round| Step { round, value: value * factor(kind) }).collect()
}

fn histogram(random: &mut Random, median: f64, spread: f64) -> Histogram {
    let mut histogram = Histogram::new();
    for _ in 0..OPERATIONS {
        // A tail that becomes thinner with the fourth power.
        let late = spread * (uniform(random).max(1e-6).powf(-0.35) - 1.27);
        histogram.record((median * (1.0 + late.max(-0.2)) * 1e9) as u64);
    }
    histogram
}

fn latency(random: &mut Random, over: &Over, size: u64, waiting: &str) -> Row {
    let time = over.message + size as f64 / over.rate;
    let row = Row {
        test: "latency".into(),
        over: over.name.into(),
        kind: over.kind,
        size: Some(size),
        setup: BTreeMap::from([("waiting".into(), waiting.into())]),
        rounds: rounds(random, time, over.kind),
        ..Row::default()
    };
    if over.kind == Kind::Model {
        return row;
    }
    let sleeps = if waiting == "sleeping" { 1.0 } else { 0.001 };
    let calls = Some(if over.name == "tcp" || over.name == "sockets" { 2.0 } else { sleeps });
    let cpu = if sleeps == 1.0 { 0.45 * time } else { time };
    let cost = Cost { cpu, switches: sleeps, calls };
    let server = Cost { cpu: 1.1 * cpu, ..cost };
    let cost = BTreeMap::from([("client".into(), cost), ("server".into(), server)]);
    Row { histogram: Some(histogram(random, time, over.spread)), cost, stages: stages(over, size), ..row }
}

fn stages(over: &Over, size: u64) -> Vec<(String, f64)> {
    let bytes = size as f64 / over.rate;
    let parts = match (over.kind, over.name) {
        (Kind::Library, "tcp") => {
            [("protocol", 0.12, 0.02), ("kernel", 0.6, 0.25), ("copy", 0.03, 0.33), ("wire", 0.25, 0.4)]
        }
        (Kind::Library, "ib") => {
            [("protocol", 0.25, 0.01), ("doorbell", 0.2, 0.0), ("copy", 0.05, 0.0), ("wire", 0.5, 0.99)]
        }
        (Kind::Library, "shm") => {
            [("protocol", 0.6, 0.01), ("notify", 0.2, 0.0), ("copy", 0.1, 0.97), ("wait", 0.1, 0.02)]
        }
        _ => return Vec::new(),
    };
    parts.map(|(name, message, byte)| (name.to_owned(), message * over.message + byte * bytes)).to_vec()
}

fn bandwidth(random: &mut Random, over: &Over, size: u64) -> Row {
    let value = size as f64 / (over.message / 8.0 + size as f64 / over.rate);
    Row {
        test: "bandwidth".into(),
        over: over.name.into(),
        kind: over.kind,
        size: Some(size),
        setup: BTreeMap::from([("depth".into(), "16".into())]),
        unit: Unit::BytesPerSecond,
        rounds: rounds(random, value, over.kind),
        ..Row::default()
    }
}

/// A queue that grows as the rate comes close to what the transport can do.
fn offered(random: &mut Random, over: &Over, rate: f64) -> Option<Row> {
    let busy = rate * over.message * 0.45;
    let time = over.message / (1.0 - busy).max(0.02);
    let setup = BTreeMap::from([("rate".into(), rate.to_string())]);
    let test = "latency at rate".into();
    let row = Row { test, over: over.name.into(), size: Some(4096), setup, ..Row::default() };
    let rounds = rounds(random, time, over.kind);
    (busy < 0.97).then(|| Row { rounds, histogram: Some(histogram(random, time, over.spread / (1.0 - busy))), ..row })
}

/// The four paths, in both directions: what a call costs, and what a byte does.
fn calls(random: &mut Random, report: &mut Report) {
    let paths = [
        ("inline", 1.0, 2.1, "a copy costs less than another message"),
        ("fast-rdma", 1.25, 1.3, "one write from the user's memory into a slot"),
        ("server-based", 2.1, 1.0, "read by the server when it has room: no copy"),
        ("client-based", 2.5, 1.0, "moved by the client, as the server grants"),
    ];
    for over in &OVERS[..2] {
        for (direction, factor) in [("write", 1.0), ("read", 0.92)] {
            for power in (9..=20).step_by(1) {
                let size = 1u64 << power;
                let time =
                    |message: f64, byte: f64| factor * (2.0 * message * over.message + byte * size as f64 / over.rate);
                for (path, message, byte, _) in paths {
                    let setup = [("path", path), ("direction", direction)];
                    report.rows.push(Row {
                        test: "call".into(),
                        over: over.name.into(),
                        size: Some(size),
                        setup: setup.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
                        rounds: rounds(random, time(message, byte), over.kind),
                        ..Row::default()
                    });
                }
                let of = |path: &(&str, f64, f64, &str)| time(path.1, path.2);
                let best = paths.iter().min_by(|a, b| of(a).total_cmp(&of(b))).expect("there are paths");
                let (over, direction) = (over.name.to_owned(), direction.to_owned());
                report.plans.push(Plan {
                    over,
                    direction,
                    size,
                    path: best.0.replace('-', " "),
                    why: best.3.to_owned(),
                });
            }
        }
    }
}
