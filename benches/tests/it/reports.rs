//! Runs programs with `--report`, and reads what they wrote. A figure only has to be a number.
//! `tests/it/fs_bench.rs` does the same with `fs_bench`.

use std::path::Path;
use std::process::Command;

use bmi_report::{Kind, Report, Unit};
use serde_json::Value;

/// Runs a program that has to succeed. Returns what it printed, and its report.
fn run(program: &str, arguments: &[&str]) -> (String, Report) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.json");
    let printed = succeeds(program, &[arguments, &["--report", file.to_str().unwrap()]].concat());
    (printed, Report::read(&file).unwrap())
}

fn succeeds(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(Path::new(program)).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const HANDLE: &str = env!("CARGO_BIN_EXE_handle");

#[test]
fn handle_reports_each_way_with_its_cost() {
    let few = ["--round-ms", "1", "--rounds", "2", "--transport", "shm", "--mode", "sleeping", "--only", "call, 64"];
    let (printed, report) = run(HANDLE, &few);
    let overs = ["single", "thread", "tokio", "task", "bridge"];
    assert_eq!(report.overs(), overs);
    for row in &report.rows {
        assert_eq!((row.what().as_str(), row.unit), ("call, 64 in flight, shm, sleeping", Unit::Seconds));
        assert!(row.rounds.len() == 2 && row.values().iter().all(|value| *value > 0.0), "{row:?}");
        assert!(row.cost["client"].cpu > 0.0, "{row:?}");
        assert!(printed.contains(&row.name()), "{printed}");
    }
    let printed = succeeds(HANDLE, &[&few[..], &["--json"]].concat());
    assert_eq!(Report::from_json(&printed).unwrap().overs(), overs);
}

/// `cargo xtask compare` knows the rows by these names.
#[test]
fn a_sample_of_handle_has_a_line_for_each_way() {
    let printed = succeeds(HANDLE, &["--sample", "--transport", "tcp", "--mode", "polling", "--only", "latency 8"]);
    let lines: Vec<Value> = serde_json::from_str(&printed).unwrap();
    let names: Vec<&str> = lines.iter().map(|line| line["name"].as_str().unwrap()).collect();
    let expected = ["single", "thread", "tokio", "task"].map(|way| format!("tcp latency 8 B, polling by {way}"));
    assert_eq!(names, expected);
    assert!(lines.iter().all(|line| line["value"].as_f64().unwrap() > 0.0 && line["unit"] == "s"), "{printed}");
}

/// Where counting is not allowed, the report says so.
#[test]
fn micro_counts_system_calls_for_its_report() {
    let few = ["--round-ms", "1", "--rounds", "2", "--mode", "sleeping", "--only", "latency 4 b"];
    let (_, report) = run(env!("CARGO_BIN_EXE_micro"), &few);
    assert_eq!(report.overs(), ["tcp", "sockets"]);
    let is_counted = !report.notes.iter().any(|note| note.starts_with("system calls were not counted: "));
    for row in &report.rows {
        let calls = row.cost["client and server"].calls;
        // Each of the two processes reads and writes once in a round trip.
        assert!(if is_counted { calls >= Some(4.0) } else { calls.is_none() }, "{calls:?}: {row:?}");
        assert_eq!(row.rounds.len(), 2, "the round that counts is no round of the row");
    }
}

#[test]
fn a_workload_reports_the_rounds_of_each_place() {
    let ab = env!("CARGO_BIN_EXE_ab");
    let few = ["workload", "--over", "tcp,sim,tcp", "--clients", "2", "--servers", "2", "--rounds", "2"];
    let (printed, report) = run(ab, &[&few[..], &["tile", "--tiles", "2x1", "--size", "64x24"]].concat());
    let kinds: Vec<(&str, Kind)> = report.rows.iter().map(|row| (&*row.over, row.kind)).collect();
    let (tcp, sim) = (("tcp", Kind::Library), ("sim", Kind::Model));
    assert_eq!(kinds, [tcp, tcp, sim, sim], "a place that is named twice is measured once");
    for row in &report.rows {
        assert_eq!((row.rounds.len(), row.size, row.unit), (2, Some(64 * 24 * 24), Unit::BytesPerSecond));
        assert!(printed.contains(&row.name()) && row.notes[0].starts_with("processor "), "{row:?}");
    }
    assert!(report.rows[0].pairs(&report.rows[2]).is_empty(), "places are not measured side by side");
    let access = ["access", "--sizes", "4096,1024,4096", "--read"];
    let (_, report) = run(ab, &[&few[..], &access].concat());
    let names: Vec<String> = report.rows.iter().map(|row| row.name()).collect();
    let expected = ["tcp access read 1 KiB", "tcp access read 4 KiB", "sim access read 1 KiB", "sim access read 4 KiB"];
    assert_eq!(names, expected.map(|name| format!("{name}, clients 2, new memory, servers 2")));
    assert!(report.rows.iter().all(|row| row.unit == Unit::Seconds && row.median().middle > 0.0));
}
