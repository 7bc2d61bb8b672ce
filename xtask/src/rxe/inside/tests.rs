//! Runs the tests of a libtest program, each in a process of its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::Channel;
use super::process::{captured, command};
use crate::rxe::wire::Verdict;
use crate::totals::Totals;

/// Time limit for listing the tests of a program.
const LIST_LIMIT: Duration = Duration::from_secs(60);

/// A test program.
pub(crate) struct Program<'a> {
    /// The group in the report.
    pub(crate) group: &'a str,
    /// The path of the program.
    pub(crate) path: &'a str,
    /// The environment of its tests.
    pub(crate) env: &'a [(String, String)],
    /// Time limit for one test.
    pub(crate) limit: Duration,
    /// The number of tests that run at the same time.
    pub(crate) workers: usize,
}

/// The prefix of functions that are no tests but the second process of one. The test starts that
/// process. The functions are ignored, so that nothing else runs them.
const PART: &str = "child_";

fn is_part(name: &str) -> bool {
    name.rsplit("::").next().is_some_and(|last| last.starts_with(PART))
}

impl Program<'_> {
    /// Runs every test whose name contains `filter`, and reports each.
    pub(crate) fn run(&self, filter: Option<&str>, channel: &Channel) {
        let (all, ignored) = match self.list(&[]).and_then(|all| Ok((all, self.list(&["--ignored"])?))) {
            Ok(lists) => lists,
            Err(why) => return channel.test(self.group, "its tests are listed", || (Verdict::Failed, why)),
        };
        let chosen: Vec<&String> = all
            .iter()
            .filter(|name| filter.is_none_or(|filter| name.contains(filter)))
            .filter(|name| !is_part(name))
            .collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(name) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                channel.test(self.group, name, || match ignored.contains(name) {
                    true => (Verdict::Skipped, "ignored by its own attribute".into()),
                    false => self.one(name),
                });
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.workers {
                // If a thread cannot be started, the others do its share.
                let _ = std::thread::Builder::new().name("tests".into()).spawn_scoped(scope, work);
            }
            work();
        });
    }

    /// Returns the names of the tests.
    fn list(&self, more: &[&str]) -> Result<Vec<String>, String> {
        let args = [&[self.path, "--list", "--format", "terse"], more].concat();
        let finished = captured(command(&args, self.env), LIST_LIMIT);
        if finished.status != 0 {
            return Err(format!("{} --list: status {}\n{}", self.path, finished.status, finished.output));
        }
        Ok(finished.output.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }

    fn one(&self, name: &str) -> (Verdict, String) {
        let finished = captured(command(&[self.path, "--exact", name, "--nocapture"], self.env), self.limit);
        // The status alone is not enough: it is also good if the program found no such test.
        let passed = finished.output.lines().rev().find_map(Totals::from_line).is_some_and(|totals| totals.passed == 1);
        match finished.status {
            0 if passed => (Verdict::Passed, String::new()),
            0 => (Verdict::Failed, format!("it did not run\n{}", finished.output)),
            status => (Verdict::Failed, format!("status {status}\n{}", finished.output)),
        }
    }
}
