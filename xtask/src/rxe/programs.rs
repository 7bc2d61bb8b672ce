//! Runs test programs in the machine, each in one process.
//!
//! **Invariants**
//! 1. A test passes only if the program says so. One of which nothing was heard runs again, alone
//!    in a process: the program may have died or hung at another test.
//! 2. A test that says nothing when it is alone has failed.

use std::path::PathBuf;
use std::process::Command;

use super::machine::{Machine, PATIENCE};
use super::quoted;
use super::report::{Reporter, Verdict};
use crate::command::Failure;
use crate::totals::Totals;

/// A test program.
pub(crate) struct Program {
    /// Its name.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The options that select its tests: those that need a device are ignored elsewhere.
    pub(crate) options: &'static str,
    /// The tests to run.
    pub(crate) tests: Vec<String>,
    /// True if these are all.
    pub(crate) is_whole: bool,
}

/// The prefix of functions that are no tests but the second process of one. The test starts that
/// process.
pub(super) const PART: &str = "child_";

/// A program with several modules; each is a group of the report.
const MODULES: &str = "it";

impl Program {
    /// Lists the tests of a program.
    pub(crate) fn new(name: &str, path: PathBuf, options: &'static str) -> Result<Program, Failure> {
        let failed = |why: String| Failure::new(format!("{} --list: {why}", path.display()));
        let output =
            Command::new(&path).args(["--list", "--format", "terse"]).args(options.split_whitespace()).output();
        let output = output.map_err(|error| failed(error.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let tests = text.lines().filter_map(|line| line.strip_suffix(": test")).filter(|name| !name.contains(PART));
        let tests: Vec<String> = tests.map(str::to_owned).collect();
        match tests.is_empty() {
            true => Err(failed(String::from_utf8_lossy(&output.stderr).into_owned())),
            false => Ok(Program { name: name.into(), path, options, tests, is_whole: true }),
        }
    }

    /// Returns a test's group and its name within that.
    pub(crate) fn place<'a>(&'a self, test: &'a str) -> (&'a str, &'a str) {
        match test.split_once("::") {
            Some(place) if self.name == MODULES => place,
            _ => (&self.name, test),
        }
    }

    /// Keeps only the tests for which `keep` is true of the group and the name.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str, &str) -> bool) {
        let (kept, rest): (Vec<String>, Vec<String>) = self.tests.iter().cloned().partition(|test| {
            let (group, name) = self.place(test);
            keep(group, name)
        });
        self.tests = kept;
        self.is_whole &= rest.is_empty();
    }

    /// Runs the tests, and reports each.
    pub(crate) fn run(&self, machine: &mut Machine, reporter: &mut Reporter) -> Result<(), Failure> {
        let path = quoted(&self.path.to_string_lossy());
        let names = if self.is_whole { String::new() } else { format!("--exact {}", self.tests.join(" ")) };
        let line = format!("{path} --test-threads=1 --skip {PART} {} {names}", self.options);
        let mut heard = Heard::new(&self.tests);
        let mut output = String::new();
        reporter.begin();
        let status = machine.run(&line, PATIENCE, &mut |line| {
            output += line;
            if let Some((test, true)) = heard.line(line) {
                let (group, name) = self.place(test);
                reporter.end(group, name, Verdict::Passed, String::new());
            }
        });
        let status = status.map_err(|failure| self.at(&heard, failure))?;
        for test in heard.with(Some(false)) {
            let (group, name) = self.place(test);
            reporter.end(group, name, Verdict::Failed, of_failure(&output, test));
        }
        let missing: Vec<&str> = heard.with(None).collect();
        if missing.is_empty() {
            if status != 0 && heard.with(Some(false)).next().is_none() {
                reporter.end(&self.name, "ends well", Verdict::Failed, format!("status {status}\n{output}"));
            }
            return Ok(());
        }
        let rest = missing.len();
        reporter.say(&format!("{}: status {status}; {rest} of which nothing was heard run again, alone", self.name));
        for test in missing {
            let (group, name) = self.place(test);
            let (verdict, output) = self.alone(machine, &path, test).map_err(|failure| self.at(&heard, failure))?;
            reporter.end(group, name, verdict, output);
        }
        Ok(())
    }

    fn alone(&self, machine: &mut Machine, path: &str, test: &str) -> Result<(Verdict, String), Failure> {
        let (status, output) = machine.output(&format!("{path} --exact {test} {} --nocapture", self.options))?;
        // The status alone is not enough: it is also good if the program found no such test.
        let passed = output.lines().rev().find_map(Totals::from_line).is_some_and(|totals| totals.passed == 1);
        Ok(match status {
            0 if passed => (Verdict::Passed, String::new()),
            status => (Verdict::Failed, format!("status {status}\n{output}")),
        })
    }

    /// Adds to the failure of the machine what it was doing.
    fn at(&self, heard: &Heard<'_>, failure: Failure) -> Failure {
        let test = heard.at.map_or("no test", |at| &heard.tests[at]);
        Failure::new(format!("in {}, at {test}: {failure}", self.name))
    }
}

/// What a test program has said.
struct Heard<'a> {
    tests: &'a [String],
    /// Whether each has passed.
    passed: Vec<Option<bool>>,
    /// The test that runs.
    at: Option<usize>,
}

impl<'a> Heard<'a> {
    fn new(tests: &'a [String]) -> Heard<'a> {
        Heard { tests, passed: vec![None; tests.len()], at: None }
    }

    /// Takes in a line of output. Returns the test that has ended, and whether it has passed.
    ///
    /// A program with one thread prints `test NAME ... ` before a test, with blanks behind the name
    /// if it likes columns, and the result behind it. A test may start other processes, which print
    /// in between, even results of their own.
    fn line(&mut self, line: &str) -> Option<(&'a str, bool)> {
        let mut result = line.trim();
        if let Some((name, rest)) = line.strip_prefix("test ").and_then(|line| line.split_once(" ... "))
            && let Some(at) = self.tests.iter().position(|test| test == name.trim_end())
        {
            self.at = Some(at);
            result = rest.trim();
        }
        let passed = match result {
            "ok" => true,
            "FAILED" => false,
            _ => return None,
        };
        let at = self.at.take()?;
        self.passed[at] = Some(passed);
        Some((&self.tests[at], passed))
    }

    /// Returns the tests with this result.
    fn with(&self, passed: Option<bool>) -> impl Iterator<Item = &'a str> {
        let results = self.tests.iter().zip(&self.passed);
        results.filter(move |(_, result)| **result == passed).map(|(test, _)| test.as_str())
    }
}

/// Returns what a test printed that failed, from the end of the program's output.
fn of_failure(output: &str, test: &str) -> String {
    let Some((_, from)) = output.split_once(&format!("---- {test} stdout ----\n")) else { return output.to_owned() };
    from.lines().take_while(|line| !line.starts_with("---- ")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        ["faults::one", "faults::two", "wait::three"].map(str::to_owned).to_vec()
    }

    #[test]
    fn results_are_read_between_those_of_other_processes() {
        let names = names();
        let mut heard = Heard::new(&names);
        let output = "running 3 tests\ntest faults::one ... \nrunning 1 test\ntest faults::child_of_one ... ok\n\n\
                      test result: ok. 1 passed\n\nok\ntest faults::two ... FAILED\ntest wait::three ... ";
        for line in output.lines() {
            let _ = heard.line(line);
        }
        assert_eq!(heard.passed, [Some(true), Some(false), None]);
        assert_eq!(heard.at, Some(2));
        assert_eq!(heard.with(None).collect::<Vec<_>>(), ["wait::three"]);
    }

    #[test]
    fn a_failure_has_its_own_output() {
        let output = "failures:\n\n---- a::one stdout ----\npanicked\n\n---- a::two stdout ----\nother\n";
        assert_eq!(of_failure(output, "a::one"), "panicked\n");
        assert_eq!(of_failure("died", "a::one"), "died");
    }

    #[test]
    fn modules_of_the_one_program_are_groups() {
        let program = |name: &str| Program {
            name: name.into(),
            path: PathBuf::new(),
            options: "--ignored",
            tests: names(),
            is_whole: true,
        };
        let mut it = program("it");
        assert_eq!(it.place("faults::one"), ("faults", "one"));
        assert_eq!(program("peer").place("layout::one"), ("peer", "layout::one"));
        it.retain(|group, _| group == "wait");
        assert_eq!((it.tests.len(), it.is_whole), (1, false));
    }
}
