//! `bmi-perf` in a pair: beside what is known, and beside `iperf3` and `sockperf`.
//!
//! | value | known | allowed |
//! |---|---|---|
//! | latency of 64 bytes | grows by the delay, because it is half a round trip | 5 % |
//! | bandwidth of 1 MiB at a rate | what the headers leave to TCP | 3 % |
//! | latency over sockets | half the round trip of `sockperf` that also waits in `poll` | 10 % |
//! | bandwidth over sockets, no rate | that of `iperf3` with the same buffers | 10 % |
//!
//! The two values of a comparison are measured in turns. Each is a median, and the best of its
//! rounds counts, as in `check`.
//! Both sides sleep while they wait: pollers would take the processors from the cable. `sockperf`
//! with one socket blocks in `recvfrom`, which saves system calls and a fifth of the time. With two
//! sockets it waits in `poll`, as `bmi-perf` does.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bmi_report::{Report, stats};
use tempfile::NamedTempFile;

use super::measure::{self, PLAIN, served, undelayed};
use super::report::Row;
use crate::command::{Failure, Invocation};
use crate::pair::cable::{Pair, SERVER};
use crate::pair::link::{Cable, Link, Rate};
use crate::pair::shape;

/// The name of the program, and of its crate.
const PROGRAM: &str = "bmi-perf";
/// The rounds of a measurement.
const ROUNDS: usize = 5;
/// Time limit for building it, and for one run.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
const RUN_LIMIT: Duration = Duration::from_secs(60);
/// How far it may be from the program of others.
const PEER_ERROR: f64 = 0.1;
/// What it measures over: the library, and the sockets that it has beside it.
const OVER: [&str; 2] = ["sockets", "tcp"];

/// Returns the program: from a directory, or built. Returns `None` in a workspace without it.
pub(super) fn program(root: &Path, folder: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    if let Some(folder) = folder {
        let path = std::path::absolute(folder.join(PROGRAM)).map_err(|error| Failure::new(error.to_string()))?;
        return match path.is_file() {
            true => Ok(Some(path)),
            false => Err(Failure::new(format!("there is no {}", path.display()))),
        };
    }
    if !root.join(PROGRAM).join("Cargo.toml").is_file() {
        return Ok(None);
    }
    Invocation::cargo(root, "build --release --package bmi-perf --bin bmi-perf").run_aside(BUILD_LIMIT)?;
    Ok(Some(crate::target(root).join("release").join(PROGRAM)))
}

/// Makes a pair whose server runs `bmi-perf` too.
fn pair(program: &Path, link: Link) -> Result<Pair, String> {
    let mut pair = served(link)?;
    pair.serve(&format!("exec {} serve {SERVER} >/dev/null 2>&1", program.display()))?;
    Ok(pair)
}

/// Measures one test over several transports. Returns the median of the rounds of each.
fn measured(pair: &Pair, program: &Path, over: &[&str], test: &[&str]) -> Result<Vec<f64>, String> {
    let fixed = ["run", SERVER, "--json", "-", "--waiting", "sleeping", "--rounds", "5", "--least-rounds", "5"];
    let list = over.join(",");
    let args: Vec<String> = [&fixed[..], &["--over", &list], test].concat().into_iter().map(str::to_owned).collect();
    let text = pair.client.limited(&program.to_string_lossy(), &args).output(RUN_LIMIT);
    let report = Report::from_json(&text.map_err(|failure| failure.reason)?);
    let report = report.map_err(|error| format!("bmi-perf: {error}"))?;
    over.iter().map(|over| value(&report, over)).collect()
}

/// Finds the rounds of the row of a transport, and returns their median.
fn value(report: &Report, over: &str) -> Result<f64, String> {
    let row = report.rows.iter().find(|row| row.over == over);
    let mut values = row.ok_or_else(|| format!("bmi-perf reports nothing over {over}"))?.values();
    match values.is_empty() {
        true => Err(format!("bmi-perf reports no round over {over}")),
        false => Ok(stats::middle(&mut values)),
    }
}

const LATENCY: [&str; 6] = ["--test", "latency", "--size", "64", "--round-ms", "200"];
const BANDWIDTH: [&str; 6] = ["--test", "bandwidth", "--size", "1M", "--round-ms", "300"];

/// All rows.
pub(super) fn rows(program: &Path, delay: Duration, delay_error: f64, rate: Rate, rate_error: f64) -> Vec<Row> {
    let broken = |what: &str, why| vec![Row::broken(what, PROGRAM, why)];
    let delays = delays(program, delay, delay_error).unwrap_or_else(|why| broken("delay", why));
    let rates = rates(program, rate, rate_error).unwrap_or_else(|why| broken("rate", why));
    let peers = peers(program).unwrap_or_else(|why| broken("other programs", why));
    [delays, rates, peers].concat()
}

/// How much longer a message is in flight over a delayed cable.
fn delays(program: &Path, delay: Duration, error: f64) -> Result<Vec<Row>, String> {
    let far = pair(program, Link { delay, ..PLAIN })?;
    let cable = if far.is_relayed() { Cable::Relay } else { Cable::Netem };
    let near = pair(program, undelayed(cable))?;
    let mut lowest = vec![[f64::INFINITY; 2]; OVER.len()];
    for _ in 0..ROUNDS {
        let bare = measured(&near, program, &OVER, &LATENCY)?;
        let delayed = measured(&far, program, &OVER, &LATENCY)?;
        for (lowest, values) in lowest.iter_mut().zip(bare.into_iter().zip(delayed)) {
            *lowest = [lowest[0].min(values.0), lowest[1].min(values.1)];
        }
    }
    let known = delay.as_micros() as f64;
    let row = |(over, [bare, delayed]): (&&str, &[f64; 2])| {
        let what = format!("delay {known} us: latency over {over} beyond that without");
        Row::within(what, PROGRAM, "us", known, error, 1e6 * (delayed - bare))
    };
    Ok(OVER.iter().zip(&lowest).map(row).collect())
}

/// Bandwidths at a rate. The highest value counts, as in `check`.
fn rates(program: &Path, rate: Rate, error: f64) -> Result<Vec<Row>, String> {
    let pair = pair(program, Link { rate: Some(rate), ..PLAIN })?;
    let known = shape::goodput(rate, PLAIN.mtu, pair.is_relayed()) / 1e6;
    let mut highest = [0.0_f64; OVER.len()];
    for _ in 0..ROUNDS {
        for (highest, value) in highest.iter_mut().zip(measured(&pair, program, &OVER, &BANDWIDTH)?) {
            *highest = highest.max(8.0 * value / 1e6);
        }
    }
    let row = |(over, highest): (&&str, &f64)| {
        Row::within(format!("rate {rate}: bandwidth over {over}"), PROGRAM, "Mb/s", known, error, *highest)
    };
    Ok(OVER.iter().zip(&highest).map(row).collect())
}

/// The same beside programs of others, over a bare cable.
fn peers(program: &Path) -> Result<Vec<Row>, String> {
    let mut pair = pair(program, PLAIN)?;
    let feed = feed().map_err(|error| format!("a file for sockperf: {error}"))?;
    let name = feed.path().to_string_lossy();
    pair.serve(&format!("exec sockperf server -f {name} -F poll >/dev/null 2>&1"))?;
    let (mut latency, mut bandwidth) = ([f64::INFINITY; 2], [0.0_f64; 2]);
    for _ in 0..ROUNDS {
        let their = measure::round_trip(&pair, &["-f", &name, "-F", "poll", "-m", "64"])? / 2.0;
        let our = 1e6 * measured(&pair, program, &["sockets"], &LATENCY)?[0];
        latency = [latency[0].min(their), latency[1].min(our)];
        // One buffer of 1 MiB, as iperf3 has: more would be a question of caches.
        let one = [&BANDWIDTH[..], &["--depth", "1"]].concat();
        let their = measure::bandwidth(&pair, &["-l", "1M"])?;
        let our = 8.0 * measured(&pair, program, &["sockets"], &one)?[0] / 1e6;
        bandwidth = [bandwidth[0].max(their), bandwidth[1].max(our)];
    }
    let row = |what, unit, [their, our]: [f64; 2]| Row::within(what, PROGRAM, unit, their, PEER_ERROR, our);
    Ok(vec![
        row("latency of 64 B over sockets, beside sockperf", "us", latency),
        row("bandwidth of 1 MiB over sockets, beside iperf3", "Mb/s", bandwidth),
    ])
}

/// Writes a file that names two sockets of `sockperf`.
fn feed() -> std::io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new()?;
    write!(file, "T:{SERVER}:11112\nT:{SERVER}:11113\n")?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use bmi_report::{Row, Step};

    use super::*;

    #[test]
    fn the_rounds_of_a_transport_are_found() {
        let row = |over: &str, values: &[f64]| Row {
            over: over.to_owned(),
            rounds: values.iter().map(|value| Step { round: 0, value: *value }).collect(),
            ..Row::default()
        };
        let rows = vec![row("tcp", &[1.0]), row("sockets", &[3.0, 9.0, 2.0]), row("shm", &[])];
        let report = Report { rows, ..Report::default() };
        assert_eq!([value(&report, "tcp"), value(&report, "sockets")], [Ok(1.0), Ok(3.0)]);
        assert!(value(&report, "ib").unwrap_err().contains("nothing over ib"));
        assert!(value(&report, "shm").unwrap_err().contains("no round"));
        assert!(value(&Report::default(), "tcp").is_err());
    }

    #[test]
    fn a_directory_without_the_program_is_named() {
        let why = program(Path::new("/"), Some(Path::new("/no/such"))).unwrap_err();
        assert!(why.reason.contains("/no/such/bmi-perf"), "{why}");
        assert!(program(Path::new("/no/such/root"), None).unwrap().is_none());
    }
}
