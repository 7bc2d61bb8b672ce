use std::collections::BTreeMap;

use super::*;

fn row(test: Test, over: &str, size: u64, setup: &[(&str, &str)]) -> Row {
    let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Row {
        test: test.name().to_owned(),
        over: over.to_owned(),
        size: Some(size),
        setup: setup.iter().map(pair).collect::<BTreeMap<_, _>>(),
        unit: test.unit(),
        rounds: (0..8).map(|round| Step { round, value: 1e-5 }).collect(),
        ..Row::default()
    }
}

const ONE: [(&str, &str); 1] = [("waiting", "polling")];
const STREAM: [(&str, &str); 2] = [("depth", "16"), ("waiting", "polling")];

fn report() -> Report {
    let mut report = Report::new("bmi-perf", "one and two");
    for over in ["tcp", "sockets"] {
        let kind = if over == "tcp" { Kind::Library } else { Kind::Baseline };
        let mut add = |test, size, setup: &[_]| report.rows.push(Row { kind, ..row(test, over, size, setup) });
        add(Test::Latency, 8, &ONE);
        add(Test::Latency, 8, &[("waiting", "sleeping")]);
        add(Test::Latency, 32 << 10, &ONE);
        add(Test::Bandwidth, 4 << 10, &STREAM);
        add(Test::Bandwidth, 1 << 20, &STREAM);
        add(Test::Rate, 8, &STREAM);
        add(Test::WriteLatency, 8, &ONE);
        add(Test::ReadLatency, 8, &ONE);
        add(Test::WriteBandwidth, 256 << 10, &STREAM);
        add(Test::ReadBandwidth, 256 << 10, &STREAM);
        add(Test::Latency, 8, &[("connections", "2"), ("waiting", "polling")]);
        add(Test::BothWays, 4 << 10, &STREAM);
    }
    report
}

fn models(text: &str) -> Vec<Model> {
    text.split(',').map(|name| Model::parse(name).unwrap()).collect()
}

fn with(text: &str) -> Report {
    let mut report = report();
    add(&mut report, &models(text));
    report
}

/// Returns the figure of a model.
fn figure(report: &Report, test: Test, size: u64, waiting: &str, profile: &str) -> f64 {
    let is_one = |row: &&Row| {
        row.over == format!("{profile} model")
            && row.test == test.name()
            && row.size == Some(size)
            && row.setup["waiting"] == waiting
    };
    report.rows.iter().find(is_one).unwrap().median().middle
}

#[test]
fn predictions_are_beside_what_was_measured_and_claim_nothing() {
    let report = with("vapi-2003,gige-2008");
    let groups = bmi_report::groups::groups(&report);
    assert_eq!(groups.len(), 12);
    for (number, group) in groups.iter().enumerate() {
        let overs: Vec<&str> = group.figures.iter().map(|figure| figure.row.over.as_str()).collect();
        let models: &[&str] = if number < 10 { &["vapi-2003 model", "gige-2008 model"] } else { &[] };
        assert_eq!(overs[2..], *models, "{}", group.row().what());
        for figure in &group.figures[2..] {
            assert_eq!((figure.row.kind, figure.row.rounds.len()), (Kind::Model, 1));
            assert_eq!(figure.ratios().count(), 0);
        }
    }
    assert!(report.notes.iter().any(|note| note.contains("2 groups of rows have no prediction")), "{:?}", report.notes);
    assert_eq!(report.notes.len(), 1);
    // It can be written and read, and drawn.
    assert_eq!(Report::from_json(&report.to_json()).unwrap().rows.len(), report.rows.len());
    assert!(bmi_report::html::render(&report).contains("vapi-2003 model"));
}

#[test]
fn the_same_profile_predicts_the_same_twice() {
    let once = with("vapi-2003");
    assert_eq!(with("vapi-2003"), once);
    assert_eq!(with("vapi-2003,vapi-2003"), once);
    let mut again = once.clone();
    add(&mut again, &models("vapi-2003"));
    assert_eq!(again, once);
    let mut none = once.clone();
    add(&mut none, &[]);
    assert_eq!(none, once);
}

/// The prices of a profile bound what can be measured of it.
#[test]
fn predictions_agree_with_the_prices() {
    let report = with("vapi-2003,gige-2008");
    let profile = Profile::vapi_2003();
    let of = |test, size| figure(&report, test, size, "polling", "vapi-2003");
    let (write, read) = (1e12 / profile.adapter_ps_per_byte as f64, 1e12 / profile.read_ps_per_byte as f64);
    for (test, size, most) in [
        (Test::Bandwidth, 1 << 20, write),
        (Test::WriteBandwidth, 256 << 10, write),
        (Test::ReadBandwidth, 256 << 10, read),
    ] {
        let got = of(test, size);
        assert!(got < most * 1.001 && got > most * 0.85, "{test:?}: {got} of {most}");
    }
    // Measured with 4 bytes by the program of the paper, which has no library in between.
    let raw = bmi_sim::Measurements::of(&profile, &bmi_sim::Measurements::default()).unwrap();
    let (latency, alone) = (of(Test::Latency, 8), raw.send_one_way_us.unwrap() * 1e-6);
    assert!(latency > alone * 0.99 && latency < alone * 1.5, "{latency} and {alone}");
    let (read, alone) = (of(Test::ReadLatency, 8), raw.read_round_trip_us.unwrap() * 1e-6);
    assert!(read > alone * 0.99 && read < alone * 1.5, "{read} and {alone}");
    assert!(of(Test::Latency, 32 << 10) > of(Test::Latency, 8) + 32768.0 / write);
    assert!(of(Test::Rate, 8) > 1.0 / of(Test::Latency, 8), "messages overlap");
    for profile in ["vapi-2003", "gige-2008"] {
        let waiting = |waiting| figure(&report, Test::Latency, 8, waiting, profile);
        assert!(waiting("sleeping") > waiting("polling"), "{profile}: waking up takes time");
    }
    let gigabit = figure(&report, Test::Bandwidth, 1 << 20, "polling", "gige-2008");
    assert!(gigabit > 80e6 && gigabit < 125e6, "{gigabit}");
}

#[test]
fn what_is_too_much_is_not_run() {
    let of = |size, depth: &str| {
        Question::of(&row(Test::Bandwidth, "tcp", size, &[("depth", depth), ("waiting", "polling")]))
    };
    assert!(of(1 << 20, "16").is_some());
    for (size, depth) in [(0, "1"), (u64::MAX, "2"), (8, "0"), (8, "99999999"), (8, "x"), (1 << 20, "17")] {
        assert_eq!(of(size, depth), None, "{size} {depth}");
    }
    assert_eq!(Question::of(&row(Test::Latency, "tcp", 8, &[("waiting", "praying")])), None);
    assert_eq!(Question::of(&row(Test::Bandwidth, "tcp", 8, &ONE)), None, "a stream without a depth");
}

#[test]
fn an_unknown_profile_is_answered_with_the_names() {
    use clap::Parser;
    let parse = |name| crate::cli::Cli::try_parse_from(["bmi-perf", "show", "r.json", "--model", name]);
    assert!(parse("vapi-2003,gige-2008+nvme").is_ok());
    let why = parse("vapi-2003,abacus").unwrap_err().to_string();
    assert!(why.contains("no profile \"abacus\"") && why.contains("cx7-400"), "{why}");
}
