//! Reports the results of the tests in the machine, as text or as JSON.
//!
//! **Invariant.** A test that began and sent no result has failed. A group that was asked for and
//! ran no test has failed, too.

use std::collections::BTreeMap;
use std::io::Write;

use serde::Serialize;

use super::wire::{Record, Report, Verdict};
use crate::totals::Totals;

/// A test that has ended.
#[derive(Debug, Serialize)]
struct Line {
    group: String,
    name: String,
    verdict: Verdict,
    seconds: f64,
    output: String,
}

/// The number of failures whose output is shown. More failures than this mostly have one cause.
/// `--json` has the output of all.
const SHOWN: u64 = 20;

/// Collects the records of a machine, and prints them as they arrive.
pub(crate) struct Reporter {
    lines: Vec<Line>,
    /// The tests that began and have not ended.
    begun: Vec<(String, String)>,
    /// The exit status of a single program.
    status: Option<i32>,
    json: bool,
    verbose: bool,
}

impl Reporter {
    /// Creates a reporter. If `json` is true, it prints nothing until the end. If `verbose` is
    /// true, it also prints a line for each test that passed.
    pub(crate) fn new(json: bool, verbose: bool) -> Reporter {
        Reporter { lines: Vec::new(), begun: Vec::new(), status: None, json, verbose }
    }

    /// Takes in one record.
    pub(crate) fn take(&mut self, record: Record) {
        match record {
            // Go on if the terminal is closed: the results are still needed.
            Record::Out(bytes) => drop(std::io::stdout().write_all(&bytes).and_then(|()| std::io::stdout().flush())),
            Record::Err(bytes) => drop(std::io::stderr().write_all(&bytes)),
            Record::Report(Report::Begun { group, name }) => self.begun.push((group, name)),
            Record::Report(Report::Ended { group, name, verdict, seconds, output }) => {
                self.begun.retain(|(other, test)| (other, test) != (&group, &name));
                self.end(Line { group, name, verdict, seconds, output });
            }
            Record::Report(Report::Note(note)) => self.say(&note),
            Record::Report(Report::Exited(status)) => self.status = Some(status),
            Record::Report(Report::Up { kernel }) if self.verbose => self.say(&format!("kernel {kernel}")),
            Record::Report(Report::Up { .. } | Report::Done) => {}
        }
    }

    /// Records that the machine has stopped. The tests that were running have failed, for this
    /// reason.
    pub(crate) fn stopped(&mut self, why: &str) {
        let mut at = std::mem::take(&mut self.begun);
        if at.is_empty() {
            at.push(("machine".into(), "runs to its end".into()));
        }
        for (group, name) in at {
            self.end(Line { group, name, verdict: Verdict::Failed, seconds: 0.0, output: why.to_owned() });
        }
    }

    /// Records something that was not run on this machine, and why.
    pub(crate) fn skip(&mut self, group: &str, name: &str, why: &str) {
        let (group, name) = (group.to_owned(), name.to_owned());
        self.end(Line { group, name, verdict: Verdict::Skipped, seconds: 0.0, output: why.to_owned() });
    }

    /// Records a failure if no test of the group was reported. The group was asked for.
    pub(crate) fn expect(&mut self, group: &str) {
        if !self.lines.iter().any(|line| line.group == group) {
            let (group, name) = (group.to_owned(), "has tests".to_owned());
            let output = "nothing was heard of it".to_owned();
            self.end(Line { group, name, verdict: Verdict::Failed, seconds: 0.0, output });
        }
    }

    fn end(&mut self, line: Line) {
        let said = match line.verdict {
            Verdict::Passed if self.verbose => Some("ok     "),
            Verdict::Passed => None,
            Verdict::Failed => Some("FAILED "),
            Verdict::Skipped => Some("SKIPPED"),
        };
        if let Some(said) = said {
            self.say(&format!("{said} {:>6.1} s  {}: {}", line.seconds, line.group, line.name));
            if self.totals().failed < SHOWN {
                line.output.lines().for_each(|output| self.say(&format!("    {output}")));
            }
        }
        self.lines.push(line);
    }

    fn say(&self, line: &str) {
        if !self.json {
            println!("{line}");
        }
    }

    /// Returns the exit status of the single program that ran.
    pub(crate) fn status(&self) -> Option<i32> {
        self.status
    }

    /// Returns all counts.
    pub(crate) fn totals(&self) -> Totals {
        self.lines.iter().fold(Totals::NONE, |mut totals, line| {
            totals += count(line.verdict);
            totals
        })
    }

    /// Prints the counts of each group, in the order in which they ran, and the totals. Prints
    /// everything as JSON if that was asked for.
    pub(crate) fn print(&self, seconds: f64) {
        let totals = self.totals();
        if self.json {
            let (passed, failed, skipped) = (totals.passed, totals.failed, totals.skipped);
            let all = serde_json::json!({
                "tests": self.lines, "passed": passed, "failed": failed, "skipped": skipped, "seconds": seconds,
            });
            println!("{all:#}");
            return;
        }
        let mut order = Vec::new();
        let mut groups: BTreeMap<&str, (Totals, f64)> = BTreeMap::new();
        for line in &self.lines {
            let group = groups.entry(&line.group).or_insert_with(|| {
                order.push(line.group.as_str());
                (Totals::NONE, 0.0)
            });
            group.0 += count(line.verdict);
            group.1 += line.seconds;
        }
        println!("\nIn the machine, {seconds:.1} s in all:");
        for name in order {
            let (totals, seconds) = groups[name];
            println!("  {name:<16} {seconds:>6.1} s  {totals}");
        }
        println!("{totals}");
    }
}

fn count(verdict: Verdict) -> Totals {
    match verdict {
        Verdict::Passed => Totals::PASSED,
        Verdict::Failed => Totals::FAILED,
        Verdict::Skipped => Totals::SKIPPED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(name: &str, verdict: Verdict) -> Record {
        let (group, name) = ("faults".into(), name.into());
        Record::Report(Report::Ended { group, name, verdict, seconds: 0.1, output: String::new() })
    }

    #[test]
    fn what_began_and_did_not_end_has_failed() {
        let mut reporter = Reporter::new(true, false);
        reporter.take(ended("one", Verdict::Passed));
        reporter.take(Record::Report(Report::Begun { group: "faults".into(), name: "two".into() }));
        reporter.stopped("a panic");
        assert_eq!(reporter.totals(), Totals { passed: 1, failed: 1, skipped: 0 });
        assert_eq!(reporter.lines[1].name, "two");
    }

    #[test]
    fn a_machine_that_stops_between_two_tests_has_failed() {
        let mut reporter = Reporter::new(true, false);
        reporter.take(ended("one", Verdict::Passed));
        reporter.stopped("a panic");
        assert_eq!(reporter.totals(), Totals { passed: 1, failed: 1, skipped: 0 });
    }

    #[test]
    fn a_group_of_which_nothing_was_heard_has_failed() {
        let mut reporter = Reporter::new(true, false);
        reporter.take(ended("one", Verdict::Passed));
        reporter.expect("faults");
        reporter.expect("hostile");
        reporter.skip("peer", "all", "no libclang");
        assert_eq!(reporter.totals(), Totals { passed: 1, failed: 1, skipped: 1 });
    }
}
