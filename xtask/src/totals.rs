//! Reads the totals in the output of test runners: the summary line of `cargo nextest`, and the
//! `test result:` lines of libtest.

use std::fmt;
use std::ops::AddAssign;

/// Numbers of tests that passed, failed, and were not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Tests that passed.
    pub(crate) passed: u64,
    /// Tests that failed, timed out or could not be run.
    pub(crate) failed: u64,
    /// Tests that were not run: ignored, or impossible on this machine.
    pub(crate) skipped: u64,
}

impl Totals {
    /// No tests.
    pub(crate) const NONE: Totals = Totals { passed: 0, failed: 0, skipped: 0 };
    /// One test that passed.
    pub(crate) const PASSED: Totals = Totals { passed: 1, ..Totals::NONE };
    /// One test that failed.
    pub(crate) const FAILED: Totals = Totals { failed: 1, ..Totals::NONE };
    /// One test that was not run.
    pub(crate) const SKIPPED: Totals = Totals { skipped: 1, ..Totals::NONE };

    /// Returns what one line of a runner's output adds. Returns `None` for a line that is no
    /// summary.
    pub(crate) fn from_line(line: &str) -> Option<Totals> {
        let line = without_colour(line);
        // Only at the beginning of the line. `cargo nextest` repeats the output of failed tests
        // with an indentation, and their totals were counted already.
        let counts = if let Some(rest) = line.strip_prefix("test result:") {
            rest
        } else if line.trim_start().starts_with("Summary [") {
            // `Summary [ 1.2s] 9 tests run: 8 passed (1 slow), 1 failed, 2 skipped`, or
            // `9/12 tests run: …` if the run was cut short.
            line.split_once("run:")?.1
        } else {
            return None;
        };
        let count = |word: &str| -> u64 {
            counts
                .split([',', ';', '.', '('])
                .filter_map(|part| part.trim().strip_suffix(word)?.trim().parse::<u64>().ok())
                .sum()
        };
        // libtest prints "ok. 3 passed". The full stop ends the part before it.
        Some(Totals {
            passed: count("passed"),
            failed: count("failed") + count("timed out") + count("exec failed"),
            // Tests that a filter leaves out do not count, because they were not asked for. Ignored
            // tests count.
            skipped: count("skipped") + count("ignored"),
        })
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, more: Totals) {
        self.passed += more.passed;
        self.failed += more.failed;
        self.skipped += more.skipped;
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Returns the line without terminal escape sequences (`ESC [ … letter`).
fn without_colour(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(c);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_runners_print() {
        for (line, expected) in [
            ("     Summary [   0.012s] 12 tests run: 12 passed, 3 skipped", Some((12, 0, 3))),
            (
                "     Summary [   1.3s] 9 tests run: 6 passed (1 slow, 1 leaky), 2 failed, 1 timed out, 0 skipped",
                Some((6, 3, 0)),
            ),
            ("     Summary [   1.3s] 4/9 tests run: 3 passed, 1 failed, 0 skipped", Some((3, 1, 0))),
            ("     Summary [   1.3s] 2 tests run: 1 passed, 1 exec failed, 0 skipped", Some((1, 1, 0))),
            (
                "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.00s",
                Some((5, 0, 1)),
            ),
            ("test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out", Some((5, 2, 0))),
            (
                "\u{1b}[32;1m     Summary\u{1b}[0m [   0.0s] \u{1b}[1m1\u{1b}[0m test run: \u{1b}[1m1\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m",
                Some((1, 0, 0)),
            ),
            ("    test result: FAILED. 0 passed; 1 failed; 0 ignored; repeated by nextest", None),
            ("all 7 passed", None),
        ] {
            assert_eq!(Totals::from_line(line).map(|t| (t.passed, t.failed, t.skipped)), expected, "{line}");
        }
    }

    #[test]
    fn the_closing_line_has_its_form() {
        let mut totals = Totals::PASSED;
        totals += Totals::FAILED;
        totals += Totals::SKIPPED;
        totals += Totals { passed: 40, ..Totals::NONE };
        assert_eq!(totals.to_string(), "41 passed, 1 failed, 1 skipped");
    }
}
