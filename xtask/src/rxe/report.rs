//! Reports the results of the tests in the machine, as text or as JSON.

use std::time::Instant;

use serde::Serialize;

use crate::totals::Totals;

/// The result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    /// It was not run. The output has the reason.
    Skipped,
}

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

/// Collects results, and prints them as they arrive.
pub(crate) struct Reporter {
    lines: Vec<Line>,
    json: bool,
    verbose: bool,
    /// When this began, and the test that runs.
    begin: (Instant, Instant),
}

#[expect(clippy::disallowed_methods, reason = "tells a person how long each test took")]
impl Reporter {
    /// Creates a reporter. If `json` is true, it prints nothing until the end. If `verbose` is
    /// true, it also prints a line for each test that passed.
    pub(crate) fn new(json: bool, verbose: bool) -> Reporter {
        Reporter { lines: Vec::new(), json, verbose, begin: (Instant::now(), Instant::now()) }
    }

    /// A test begins. Behind one that has ended this is not needed.
    pub(crate) fn begin(&mut self) {
        self.begin.1 = Instant::now();
    }

    /// A test has ended.
    pub(crate) fn end(&mut self, group: &str, name: &str, verdict: Verdict, output: String) {
        let seconds = self.begin.1.elapsed().as_secs_f64();
        self.begin();
        let said = match verdict {
            Verdict::Passed if self.verbose => Some("ok     "),
            Verdict::Passed => None,
            Verdict::Failed => Some("FAILED "),
            Verdict::Skipped => Some("SKIPPED"),
        };
        if let Some(said) = said {
            self.say(&format!("{said} {seconds:>6.1} s  {group}: {name}"));
            if self.totals().failed < SHOWN {
                output.lines().for_each(|line| self.say(&format!("    {line}")));
            }
        }
        self.lines.push(Line { group: group.into(), name: name.into(), verdict, seconds, output });
    }

    /// Prints a line for people.
    pub(crate) fn say(&self, line: &str) {
        if !self.json {
            println!("{line}");
        }
    }

    /// Returns all counts.
    pub(crate) fn totals(&self) -> Totals {
        total(self.lines.iter())
    }

    /// Prints the counts of each group, in the order in which they ran, and the totals. Prints
    /// everything as JSON if that was asked for.
    pub(crate) fn print(&self) {
        let (totals, seconds) = (self.totals(), self.begin.0.elapsed().as_secs_f64());
        if self.json {
            let Totals { passed, failed, skipped } = totals;
            let all = serde_json::json!({
                "tests": self.lines, "passed": passed, "failed": failed, "skipped": skipped, "seconds": seconds,
            });
            println!("{all:#}");
            return;
        }
        println!("\nIn the machine, {seconds:.1} s in all:");
        let mut groups: Vec<&str> = self.lines.iter().map(|line| line.group.as_str()).collect();
        groups.dedup();
        for group in groups {
            let of_group = || self.lines.iter().filter(|line| line.group == group);
            let seconds: f64 = of_group().map(|line| line.seconds).sum();
            println!("  {group:<16} {seconds:>6.1} s  {}", total(of_group()));
        }
        println!("{totals}");
    }
}

fn total<'a>(lines: impl Iterator<Item = &'a Line>) -> Totals {
    let mut totals = Totals::NONE;
    lines.for_each(|line| {
        totals += match line.verdict {
            Verdict::Passed => Totals::PASSED,
            Verdict::Failed => Totals::FAILED,
            Verdict::Skipped => Totals::SKIPPED,
        }
    });
    totals
}
