use std::collections::BTreeMap;

use bmi_report::Step;
use bmi_sim::{Measurements, Profile, fit};

use super::*;

fn row(over: &str, test: Test, size: u64, waiting: Waiting, value: f64) -> Row {
    let mut setup = BTreeMap::from([("waiting".to_owned(), waiting.name().to_owned())]);
    if test.streams() {
        setup.insert("depth".to_owned(), "16".to_owned());
    }
    Row {
        test: test.name().to_owned(),
        over: over.to_owned(),
        size: Some(size),
        setup,
        unit: test.unit(),
        rounds: (0..8).map(|round| Step { round, value }).collect(),
        ..Row::default()
    }
}

/// Returns a report of what the simulator measures of a profile.
fn measured(profile: &Profile, over: &str) -> Report {
    let of = Measurements::of(profile, &Measurements::default()).unwrap();
    let waiting = if over == "tcp" { Waiting::Sleeping } else { Waiting::Polling };
    let mut report = Report::new("bmi-perf", "one and two");
    let mut add = |test: Test, size, value: Option<f64>| {
        let scale = if test.streams() { MB } else { 1e-6 };
        report.rows.extend(value.map(|value| row(over, test, size, waiting, value * scale)));
    };
    add(Test::Latency, 8, of.send_one_way_us);
    add(Test::Bandwidth, 256 << 10, of.send_mb_per_s);
    add(Test::WriteBandwidth, 256 << 10, of.write_mb_per_s);
    add(Test::ReadBandwidth, 256 << 10, of.read_mb_per_s);
    add(Test::ReadLatency, 8, of.read_round_trip_us);
    report
}

fn near(fitted: u64, known: u64) {
    assert!(fitted.abs_diff(known) * 100 <= known * 5, "{fitted}, it was {known}");
}

/// From the bases that the file names, and for TCP from another one.
#[test]
fn a_known_profile_is_fitted_back_from_its_report() {
    for (known, base, over, figures) in
        [("vapi-2003", "cx7-400", "ib", 4), ("elan4-2005", "cx7-400", "shm", 4), ("gige-2008", "ibnice-2003", "tcp", 2)]
    {
        let known = Profile::named(known).unwrap();
        let text = text(&measured(&known, over), None).unwrap();
        let parsed = Measurements::parse(&text).unwrap();
        let of = Measurements::of(&known, &Measurements::default()).unwrap();
        for (read, known) in [(parsed.send_one_way_us, of.send_one_way_us), (parsed.send_mb_per_s, of.send_mb_per_s)] {
            assert!((read.unwrap() / known.unwrap() - 1.0).abs() < 1e-3, "{read:?}, it was {known:?}");
        }
        let fitted = fit(&Profile::named(base).unwrap(), &parsed).unwrap();
        assert_eq!((fitted.residuals.len(), fitted.left_out.len()), (figures, 0), "{text}");
        for residual in &fitted.residuals {
            assert!(residual.error().abs() < 0.05, "{over}: {residual:?}");
        }
        if over != "tcp" {
            near(fitted.profile.adapter_ps_per_byte, known.adapter_ps_per_byte);
            near(fitted.profile.read_ps_per_byte, known.read_ps_per_byte);
        }
    }
}

#[test]
fn figures_say_from_which_row_they_come() {
    let mut report = measured(&Profile::vapi_2003(), "ib");
    // Rows that are not asked for: long, short, of another kind, on two connections.
    report.rows.insert(0, row("ib", Test::Latency, 4096, Waiting::Polling, 1.0));
    report.rows.insert(0, row("ib", Test::Latency, 64, Waiting::Polling, 1.0));
    report.rows.insert(0, row("ib", Test::Latency, 8, Waiting::Sleeping, 1.0));
    report.rows.push(row("ib", Test::Bandwidth, 4096, Waiting::Polling, 1.0));
    report.rows.push(Row { kind: Kind::Model, ..row("ib", Test::Latency, 4, Waiting::Polling, 1.0) });
    let mut two = row("ib", Test::Latency, 4, Waiting::Polling, 1.0);
    two.setup.insert("connections".to_owned(), "2".to_owned());
    report.rows.push(two);
    let text = text(&report, None).unwrap();
    let line = |key: &str| text.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    assert!(line("send_one_way_us").contains("# ib latency 8 B, polling: the median of 8 rounds"), "{text}");
    assert!(line("send_mb_per_s").contains("# ib bandwidth 256 KiB, depth 16, polling"), "{text}");
    assert!(line("# read_round_trip_us").contains("# ib RDMA read latency 8 B"), "{text}");
    assert!(text.contains("register") && text.contains("# Without the time of a write"), "{text}");
    // With the time of a write of the backend alone, that of a read counts.
    report.rows.push(row("ib backend", Test::WriteSeen, 8, Waiting::Polling, 6e-6));
    let text = super::text(&report, None).unwrap();
    assert!(text.contains("\nwrite_one_way_us = 6.0000 # ib backend RDMA write until seen 8 B, polling"), "{text}");
    assert!(text.contains("\nread_round_trip_us = "), "{text}");
}

#[test]
fn what_is_missing_is_named_with_the_run_that_measures_it() {
    let report = measured(&Profile::vapi_2003(), "ib");
    for (index, test) in ["latency", "bandwidth", "write-bandwidth", "read-bandwidth"].iter().enumerate() {
        let mut report = report.clone();
        report.rows.remove(index);
        let why = text(&report, None).unwrap_err();
        assert!(why.contains(&format!("(--test {test})")) && !why.contains("and no"), "{why}");
        assert!(why.contains("run HOST --over ib --test latency,bandwidth,write-bandwidth,read-bandwidth"), "{why}");
        assert!(why.contains("--size 8,256K --waiting polling"), "{why}");
    }
    let why = text(&report, Some("tcp")).unwrap_err();
    assert!(why.contains("--over tcp --test latency,bandwidth --size 8,256K --waiting sleeping"), "{why}");
    assert!(text(&report, Some("sockets")).unwrap_err().contains("baseline"));
    assert!(text(&Report::new("", ""), None).unwrap_err().contains("no measurement of the library"));
}

/// The error has a command line that the program accepts.
#[test]
fn the_named_run_is_accepted() {
    use clap::Parser;
    for over in ["tcp", "ib", "shm"] {
        let why = text(&Report::new("", ""), Some(over)).unwrap_err();
        let (_, line) = why.split_once("one run: ").unwrap();
        assert!(crate::cli::Cli::try_parse_from(line.split_whitespace()).is_ok(), "{line}");
    }
}
