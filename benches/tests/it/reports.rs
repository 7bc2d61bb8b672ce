//! Runs programs with `--report`, and reads what they wrote. A figure only has to be a number.

use std::process::Command;

use bmi_report::{Kind, Report, Unit};

/// Runs a program that has to succeed. Returns what it printed, and its report.
fn run(program: &str, arguments: &[&str]) -> (String, Report) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.json");
    let output = Command::new(program).args(arguments).arg("--report").arg(&file).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    (String::from_utf8(output.stdout).unwrap(), Report::read(&file).unwrap())
}

#[test]
fn a_workload_reports_the_rounds_of_each_place() {
    let benches = env!("CARGO_BIN_EXE_benches");
    let few = ["workload", "--over", "tcp,sim,tcp", "--clients", "2", "--servers", "2", "--rounds", "2"];
    let (printed, report) = run(benches, &[&few[..], &["tile", "--tiles", "2x1", "--size", "64x24"]].concat());
    let kinds: Vec<(&str, Kind)> = report.rows.iter().map(|row| (&*row.over, row.kind)).collect();
    let (tcp, sim) = (("tcp", Kind::Library), ("sim", Kind::Model));
    // Lines of prose are broken at spaces.
    let printed = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(kinds, [tcp, tcp, sim, sim], "a place that is named twice is measured once");
    for row in &report.rows {
        assert_eq!((row.rounds.len(), row.size, row.unit), (2, Some(64 * 24 * 24), Unit::BytesPerSecond));
        assert!(printed.contains(&row.name()) && row.notes[0].starts_with("processor "), "{row:?}");
    }
    assert!(report.rows[0].pairs(&report.rows[2]).is_empty(), "places are not measured side by side");
    let access = ["access", "--sizes", "4096,1024,4096", "--read"];
    let (_, report) = run(benches, &[&few[..], &access].concat());
    let names: Vec<String> = report.rows.iter().map(|row| row.name()).collect();
    let expected = ["tcp access read 1 KiB", "tcp access read 4 KiB", "sim access read 1 KiB", "sim access read 4 KiB"];
    assert_eq!(names, expected.map(|name| format!("{name}, clients 2, new memory, servers 2")));
    assert!(report.rows.iter().all(|row| row.unit == Unit::Seconds && row.median().middle > 0.0));
}

#[test]
fn datatypes_report_both_directions_of_each_way_side_by_side() {
    let few = ["datatypes", "--quick", "--over", "sim", "--pattern", "hpio-c-c,interleaved", "--way", "list,view"];
    let (printed, report) = run(env!("CARGO_BIN_EXE_benches"), &[&few[..], &["--bytes", "4K"]].concat());
    let (cursors, rows) = report.rows.split_at(6);
    assert!(cursors.iter().all(|row| row.unit == Unit::PerSecond && row.median().middle > 0.0), "{cursors:?}");
    let names: Vec<String> = rows.iter().map(|row| row.name()).collect();
    // Both sizes of a piece mean the same.
    let expected =
        ["hpio-c-c write 4 KiB, clients 4, 1024 regions of 4 B", "hpio-c-c read 4 KiB, clients 4, 1024 regions of 4 B"];
    let expected = expected.map(|name| format!("sim {name}, servers 2, list"));
    assert_eq!((names.len(), &names[..2]), (2 * 2 * 2, &expected[..]));
    for (at, row) in rows.iter().enumerate() {
        assert_eq!((row.unit, row.rounds[0].round), (Unit::BytesPerSecond, 1 + at as u32 / 4), "{row:?}");
        let wire = report.summary.iter().find(|(name, ..)| *name == format!("{}, wire", row.name())).unwrap();
        assert!(wire.1 >= 1.0 && wire.1 < 1.3, "{wire:?}");
    }
    assert!(["cursor vector", "interleaved", "view"].iter().all(|word| printed.contains(word)), "{printed}");
}
