//! The table of scenarios: several processes that work together. `scenarios.sh` has what they do.
//! Each is reported as a test.

use bmi_report::Report;

use super::LIMIT;
use super::machine::{Link, Machine, PATIENCE, Spec, folder};
use super::report::{Reporter, Verdict};
use crate::command::Failure;
use crate::setup::kernel::Kernel;

/// A scenario.
pub(crate) struct Scenario {
    /// The group in the report.
    pub(crate) group: &'static str,
    /// The name, a statement that is true if the scenario passes.
    pub(crate) name: &'static str,
    /// The function of `scenarios.sh`, with its arguments.
    run: &'static str,
    /// True if it runs with all others. Otherwise it runs only if it is asked for.
    pub(crate) usual: bool,
    /// The rows that its reports must have, in order: over, test.
    rows: fn() -> Vec<(String, String)>,
}

/// All scenarios, in the order in which they run.
#[rustfmt::skip]
pub(crate) const SCENARIOS: &[Scenario] = &[
    usual("machine", "perftest sends to itself", "perftest_alone"),
    usual("machine", "ping-pong of libibverbs has the right bytes", "ping_pong"),
    usual("c", "ping-pong in C over libbmi has the right bytes", "c_ping_pong"),
    usual("files", "a tree is stored and read back", "tree"),
    usual("files", "a tree is stored and read back with caches", "cached_tree"),
    usual("files", "several clients at once", "several_clients"),
    usual("files", "a server killed in the middle of a put ends it, and comes back", "killed_server"),
    usual("files", "clients killed in the middle of transfers harm nobody", "killed_clients"),
    usual("main-job", "ib against tcp", "ib_against_tcp"),
    Scenario { rows: perf_rows, ..usual("perf", "bmi-perf measures everything over ib and tcp", "every_test") },
    Scenario { rows: bench_rows, ..usual("perf", "pvfs bench measures a cluster over ib", "bench_cluster") },
    Scenario { usual: false, ..usual("bench", "the client's processor time in a stream", "stream") },
];

/// The tests of `bmi-perf` that have one row, with its name.
const TESTS: &[(&str, &str)] = &[
    ("latency", "latency"),
    ("bandwidth", "bandwidth"),
    ("both-ways", "bandwidth both ways"),
    ("rate", "message rate"),
    ("latency-at-rate", "latency at rate"),
    ("write-latency", "RDMA write latency"),
    ("write-bandwidth", "RDMA write bandwidth"),
    ("read-latency", "RDMA read latency"),
    ("read-bandwidth", "RDMA read bandwidth"),
    ("write-imm", "write with immediate"),
    ("list-write", "list write"),
    ("list-read", "list read"),
];
/// Those that have a row for each path, all with the same name.
const CALLS: [&str; 2] = ["call-write", "call-read"];
/// The path that is chosen, and all but the inline one: 20,000 bytes are too long for a message.
const PATHS: usize = 4;

const fn usual(group: &'static str, name: &'static str, run: &'static str) -> Scenario {
    Scenario { group, name, run, usual: true, rows: Vec::new }
}

/// The group of the test with two machines.
pub(crate) const PAIR: &str = "two-machines";

fn perf_rows() -> Vec<(String, String)> {
    let calls = || CALLS.into_iter().flat_map(|_| ["call"; PATHS]);
    let tests = || TESTS.iter().map(|(_, row)| *row).chain(calls()).map(str::to_owned);
    ["ib", "tcp"].into_iter().flat_map(|over| tests().map(move |test| (over.to_owned(), test))).collect()
}

fn bench_rows() -> Vec<(String, String)> {
    let tests = ["write", "read", "write", "read", "create", "stat", "list", "remove"];
    tests.map(|test| ("ib".to_owned(), test.to_owned())).to_vec()
}

/// Runs a scenario, and reports it.
pub(crate) fn run(machine: &mut Machine, scenario: &Scenario, reporter: &mut Reporter) -> Result<(), Failure> {
    reporter.begin();
    let line = match scenario.run {
        "every_test" => {
            let names: Vec<&str> = TESTS.iter().map(|(name, _)| *name).chain(CALLS).collect();
            format!("every_test {}", names.join(","))
        }
        other => other.to_owned(),
    };
    let (status, output) = machine.output(&script(&line))?;
    let result = match status {
        0 => check(&output, (scenario.rows)()),
        status => Err(format!("status {status}\n{output}")),
    };
    match result {
        Ok(notes) => {
            notes.iter().for_each(|note| reporter.say(note));
            reporter.end(scenario.group, scenario.name, Verdict::Passed, String::new());
        }
        Err(why) => reporter.end(scenario.group, scenario.name, Verdict::Failed, why),
    }
    Ok(())
}

/// Returns the command that runs a function of `scenarios.sh`.
pub(super) fn script(line: &str) -> String {
    format!("sh $RXE_FOLDER/scenarios.sh {line}")
}

/// Checks that the reports in the output of a scenario have these rows and no others, and that each
/// was measured. Returns what is for people: other lines, or the medians.
fn check(output: &str, mut expected: Vec<(String, String)>) -> Result<Vec<String>, String> {
    let mut notes = Vec::new();
    let mut rows = Vec::new();
    for line in output.lines() {
        if let Some(report) = line.strip_prefix("report: ") {
            let report: Report = serde_json::from_str(report).map_err(|error| format!("a report: {error}"))?;
            if let Some(why) = report.interrupted {
                return Err(why);
            }
            rows.extend(report.rows);
        } else if let Some(note) = line.strip_prefix("note: ") {
            notes.push(note.to_owned());
        }
    }
    for row in &rows {
        if row.values().iter().any(|value| !(value.is_finite() && *value > 0.0)) || row.values().is_empty() {
            return Err(format!("{}: {:?}", row.name(), row.rounds));
        }
        notes.push(format!("{}: {}", row.name(), row.unit.figure(row.median().middle)));
    }
    let mut found: Vec<(String, String)> = rows.into_iter().map(|row| (row.over, row.test)).collect();
    found.sort();
    expected.sort();
    if found == expected { Ok(notes) } else { Err(format!("the rows are {found:?}, not {expected:?}")) }
}

/// Boots two machines that are joined by a link with loss. One serves, and the other one stores
/// files there.
pub(crate) fn pair(kernel: &Kernel, setting: &str, reporter: &mut Reporter) -> Result<(), Failure> {
    let folder = folder()?;
    let start = |index: u8| {
        let link = Link::Pair { folder: folder.path(), index };
        let address = link.address();
        let spec = Spec { kernel, link, setting: setting.to_owned(), memory_mib: 1024, limit: LIMIT };
        Machine::start(&spec).map(|machine| (machine, address))
    };
    reporter.begin();
    let ((mut server, address), (mut user, _)) = (start(0)?, start(1)?);
    let mut transfer = || {
        server.await_device()?;
        server.begin(&script(&format!("serve {address}")))?;
        server.await_line("serving the other machine")?;
        user.await_device()?;
        let mut output = String::new();
        let status = user.run(&script(&format!("transfer {address}")), PATIENCE, &mut |line| output += line)?;
        Ok((status, output))
    };
    let (verdict, output) = match transfer() {
        Ok((0, output)) => {
            output.lines().filter_map(|line| line.strip_prefix("note: ")).for_each(|note| reporter.say(note));
            (Verdict::Passed, String::new())
        }
        Ok((status, output)) => (Verdict::Failed, format!("status {status}\n{output}")),
        Err::<_, Failure>(failure) => (Verdict::Failed, failure.reason),
    };
    reporter.end(PAIR, "files go both ways with 0.5 % loss", verdict, output);
    Ok(())
}

#[cfg(test)]
mod tests {
    use bmi_report::{Row, Step};

    use super::*;

    fn output(rows: &[(&str, f64)]) -> String {
        let rows = rows.iter().map(|(test, value)| Row {
            test: (*test).to_owned(),
            over: "ib".to_owned(),
            rounds: vec![Step { round: 0, value: *value }],
            ..Row::default()
        });
        let report = Report { rows: rows.collect(), ..Report::default() };
        format!("noise\nreport: {}\nnote: said\n", serde_json::to_string(&report).unwrap())
    }

    #[test]
    fn a_report_that_lacks_something_is_not_right() {
        let expected = || ["write", "read"].map(|test| ("ib".to_owned(), test.to_owned())).to_vec();
        assert_eq!(check(&output(&[("write", 1.0), ("read", 2.0)]), expected()).unwrap().len(), 3);
        for rows in [&[("write", 1.0)][..], &[("write", 1.0), ("read", 0.0)], &[("write", 1.0), ("stat", 1.0)]] {
            assert!(check(&output(rows), expected()).is_err(), "{rows:?}");
        }
        assert!(check("report: {", expected()).is_err());
        assert!(check("", expected()).is_err());
    }

    #[test]
    fn each_scenario_has_its_function() {
        let script = include_str!("scenarios.sh");
        let has = |name: &str| script.lines().any(|line| line.starts_with(&format!("{name}() {{")));
        assert!(SCENARIOS.iter().map(|one| one.run).chain(["serve", "transfer", "perf", "verbs", "perftest"]).all(has));
    }
}
