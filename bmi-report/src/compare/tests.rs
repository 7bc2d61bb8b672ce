//! Verdicts on reports whose truth is known.

use super::*;
use crate::report::{Kind, Step};

fn row(over: &str, unit: Unit, values: &[f64]) -> Row {
    let step = |(round, value): (usize, &f64)| Step { round: round as u32, value: *value };
    let rounds = values.iter().enumerate().map(step).collect();
    Row { test: "latency".into(), over: over.into(), unit, rounds, ..Row::default() }
}

/// Eight values around one, up to `spread` away.
fn around(value: f64, spread: f64) -> Vec<f64> {
    (0..8).map(|round| value * (1.0 + spread * (f64::from(round) / 3.5 - 1.0))).collect()
}

fn report(rows: Vec<Row>) -> Report {
    Report { rows, ..Report::new("bench 1", "a title") }
}

fn changes(a: &[f64], b: &[f64], unit: Unit) -> Change {
    compare(&report(vec![row("tcp", unit, a)]), &report(vec![row("tcp", unit, b)])).rows[0].change
}

#[test]
fn verdicts_follow_the_interval_and_the_rounds() {
    let base = around(1e-6, 0.01);
    let verdicts = [
        changes(&base, &around(1.2e-6, 0.01), Unit::Seconds),
        changes(&base, &around(0.8e-6, 0.01), Unit::Seconds),
        changes(&base, &base, Unit::Seconds),
        changes(&base, &around(1e-6, 0.4), Unit::Seconds),
        changes(&base, &around(2e-6, 0.01)[..7], Unit::Seconds),
        changes(&base, &around(1.2e-6, 0.01), Unit::BytesPerSecond),
        changes(&[100.0, 100.0], &[103.0, 103.0], Unit::Instructions),
        changes(&[2.0, 2.0], &[2.0, 2.001], Unit::Calls),
        changes(&[0.0, 0.0], &[1.0, 1.0], Unit::Calls),
        changes(&[1.0], &[2.0], Unit::Calls),
    ];
    use Change::{Faster, Same, Slower, Unclear};
    assert_eq!(verdicts, [Slower, Faster, Same, Unclear, Unclear, Faster, Slower, Same, Slower, Unclear]);
}

#[test]
fn the_same_is_said_only_of_a_narrow_interval() {
    let at = |low, high| change(Unit::Seconds, Interval { middle: 1.0, low, high }, 8);
    assert_eq!([at(0.96, 1.04), at(0.9, 1.04), at(0.96, 1.1)], [Change::Same, Change::Unclear, Change::Unclear]);
    let counted = change(Unit::Calls, Interval { middle: 1.0, low: 0.97, high: 1.0 }, 8);
    assert_eq!(counted, Change::Unclear);
}

#[test]
fn rows_of_one_report_only_and_of_another_unit_are_not_compared() {
    let values = around(1e-6, 0.01);
    let a = report(vec![row("tcp", Unit::Seconds, &values), row("ib", Unit::Seconds, &values)]);
    let b = report(vec![row("tcp", Unit::Calls, &values), row("ib", Unit::Seconds, &values)]);
    let comparison = compare(&a, &b);
    let found: Vec<(&str, Change)> = comparison.rows.iter().map(|line| (line.name.as_str(), line.change)).collect();
    let expected = [("tcp latency", Change::OnlyInA), ("ib latency", Change::Same), ("tcp latency", Change::OnlyInB)];
    assert_eq!(found, expected);
    assert_eq!(comparison.sentence(), "Of 1 row in both reports, B is same in 1, 1 only in A, 1 only in B.");
    assert!(compare(&a, &report(Vec::new())).sentence().starts_with("Nothing can be compared"));
}

#[test]
fn a_rule_is_broken_only_if_the_whole_interval_is_above_it() {
    let rule = |text: &str| text.parse::<FailIf>().unwrap();
    let at = |low: f64| Some(Interval { middle: low + 0.02, low, high: low + 0.04 });
    assert!(rule("slower:5%").is_broken(at(1.051)) && !rule("slower:5%").is_broken(at(1.049)));
    assert!(rule("slower:0%").is_broken(at(1.001)) && !rule("slower:2.5%").is_broken(None));
    assert_eq!(rule("slower:2.5%").to_string(), "slower:2.5%");
    let why = |text: &str| text.parse::<FailIf>().unwrap_err();
    assert!(why("5%").contains("no colon") && why("faster:5%").contains("not `slower`"));
    assert!(why("slower:1.05x").contains("does not end with %") && why("slower:-5%").contains("not a number"));
    assert!(why("slower:%").contains("not a number") && why("slower:inf%").contains("not a number"));
    assert!(why("slower:2000%").contains("at most 1000"));

    let rows = |factor: f64| report(vec![row("tcp", Unit::Seconds, &around(factor * 1e-6, 0.01))]);
    let comparison = compare(&rows(1.0), &rows(1.1));
    assert_eq!(comparison.fails(&rule("slower:5%")).len(), 1);
    assert_eq!(comparison.fails(&rule("slower:20%")).len(), 0);
    assert_eq!(compare(&rows(1.1), &rows(1.0)).fails(&rule("slower:5%")).len(), 0);
    let few = |factor: f64| report(vec![row("tcp", Unit::Seconds, &around(factor * 1e-6, 0.01)[..3])]);
    assert_eq!(compare(&few(1.0), &few(3.0)).fails(&rule("slower:5%")).len(), 0);
}

/// Two runs of one program: the machine was 6 % slower in the second, plain sockets as much.
/// Every row of the library was *surely slower*, and the gate failed.
#[test]
fn a_machine_that_became_slower_is_no_change_of_the_program() {
    let baseline =
        |value, spread| Row { kind: Kind::Baseline, ..row("sockets", Unit::Seconds, &around(value, spread)) };
    let run = |machine: f64, cost: f64, spread: f64| {
        let library = row("tcp", Unit::Seconds, &around(cost * machine * 1e-6, spread));
        report(vec![library, baseline(machine * 0.8e-6, spread)])
    };
    let rule: FailIf = "slower:5%".parse().unwrap();
    let found = |a: &Report, b: &Report| {
        let comparison = compare(a, b);
        (comparison.rows.iter().map(|line| line.change).collect::<Vec<_>>(), comparison.fails(&rule).len())
    };
    // The baseline moved, so nothing is claimed, in either direction.
    let moved = (vec![Change::BaselineMoved; 2], 0);
    assert_eq!(found(&run(1.0, 1.0, 0.01), &run(1.06, 1.0, 0.01)), moved);
    assert_eq!(found(&run(1.06, 1.0, 0.01), &run(1.0, 1.0, 0.01)), moved);
    assert_eq!(found(&run(1.0, 1.0, 0.01), &run(1.06, 1.3, 0.01)), moved);
    // It moved by less than its intervals tell. Round by round the program costs as much as before.
    assert_eq!(found(&run(1.0, 1.0, 0.08), &run(1.06, 1.0, 0.08)), (vec![Change::Same, Change::Unclear], 0));
    // It stayed: the program is slower, or it is faster.
    let slower = (vec![Change::Slower, Change::Same], 1);
    assert_eq!(found(&run(1.0, 1.0, 0.01), &run(1.0, 1.1, 0.01)), slower);
    let faster = (vec![Change::Faster, Change::Same], 0);
    assert_eq!(found(&run(1.0, 1.1, 0.01), &run(1.0, 1.0, 0.01)), faster);
    // A baseline that only one run has does not help.
    let alone = report(run(1.0, 1.0, 0.01).rows[..1].to_vec());
    assert_eq!(found(&alone, &run(1.0, 1.0, 0.01)).0, [Change::Same, Change::OnlyInB]);
    assert!(compare(&alone, &run(1.0, 1.0, 0.01)).warnings[0].contains("1 row has no baseline"));
    let both = compare(&run(1.0, 1.0, 0.01), &run(1.06, 1.0, 0.01));
    assert!(both.warnings.is_empty() && both.render().contains("in terms of sockets, as measured in each run"));
    assert_eq!(compare(&alone, &alone).terms(), None);
}

#[test]
fn hosts_that_differ_are_warned_of() {
    let host = |name: &str, facts: &[(&str, &str)]| Host {
        role: "client".into(),
        name: name.into(),
        facts: facts.iter().map(|(name, fact)| ((*name).to_owned(), (*fact).to_owned())).collect(),
    };
    let mut a = report(Vec::new());
    let mut b = a.clone();
    a.hosts = vec![host("one", &[("kernel", "6.1"), ("MTU", "1500"), ("load", "0.40"), ("frequency", "2100.4 MHz")])];
    b.hosts = vec![host("one", &[("kernel", "6.2"), ("CPU", "fast"), ("load", "1.31"), ("frequency", "2600.0 MHz")])];
    b.hosts.push(Host { role: "server".into(), ..Host::default() });
    b.interrupted = Some("a signal".into());
    assert_eq!(
        compare(&a, &b).warnings,
        [
            "the run of B was interrupted: a signal",
            "the client differs in its kernel: 6.1 in A, 6.2 in B",
            "the client differs in its MTU: 1500 in A, unknown in B",
            "the client differs in its frequency: 2100.4 MHz in A, 2600.0 MHz in B",
            "the client differs in its CPU: unknown in A, fast in B",
            "A has no server",
        ]
    );
    assert!(compare(&a, &a).warnings.is_empty());
}

#[test]
fn text_and_json_have_every_row() {
    let rows = |factor: f64| report(vec![row("tcp", Unit::Seconds, &around(factor * 1e-6, 0.0))]);
    let comparison = compare(&rows(1.0), &rows(2.0));
    let expected = "\
Of 1 row in both reports, B is slower in 1.
A: a title (bench 1)
B: a title (bench 1)
warning: 1 row has no baseline in both reports: a change of the machine looks like a change of the program

row                A        B  cost of B      interval    B is
--------------------------------------------------------------
tcp latency  1.00 us  2.00 us     x 2.00  2.00 to 2.00  slower
";
    assert_eq!(comparison.render(), expected);
    let json: serde_json::Value = serde_json::from_str(&comparison.to_json()).unwrap();
    assert_eq!(json["rows"][0]["change"], "slower");
    assert!((json["rows"][0]["ratio"]["middle"].as_f64().unwrap() - 2.0).abs() < 1e-9);
}
