//! Runs the tests of a libtest program, each in a process of its own.

use std::time::Duration;

use super::Channel;
use super::process::{captured, command};
use crate::rxe::wire::Verdict;
use crate::totals::Totals;

/// For listing the tests of a program.
const LIST_LIMIT: Duration = Duration::from_secs(30);

/// Runs every test of `program` whose name contains `filter`, and reports each.
pub(crate) fn run(
    group: &str,
    program: &str,
    filter: Option<&str>,
    env: &[(String, String)],
    limit: Duration,
    channel: &Channel,
) {
    let lists = list(program, env, &[]).and_then(|all| Ok((all, list(program, env, &["--ignored"])?)));
    let (all, ignored) = match lists {
        Ok(lists) => lists,
        Err(why) => return channel.test(group, "its tests are listed", || (Verdict::Failed, why)),
    };
    for name in all.iter().filter(|name| filter.is_none_or(|filter| name.contains(filter))) {
        channel.test(group, name, || {
            if ignored.contains(name) {
                return (Verdict::Skipped, "ignored by its own attribute".into());
            }
            one(program, name, env, limit)
        });
        super::process::end_leftovers();
    }
}

/// The names of the tests.
fn list(program: &str, env: &[(String, String)], more: &[&str]) -> Result<Vec<String>, String> {
    let args = [&[program, "--list", "--format", "terse"], more].concat();
    let finished = captured(command(&args, env), LIST_LIMIT);
    if finished.status != 0 {
        return Err(format!("{program} --list: status {}\n{}", finished.status, finished.output));
    }
    Ok(finished.output.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

fn one(program: &str, name: &str, env: &[(String, String)], limit: Duration) -> (Verdict, String) {
    let finished = captured(command(&[program, "--exact", name, "--nocapture"], env), limit);
    // A good status alone would also come from a program that found no such test.
    let passed = finished.output.lines().rev().find_map(Totals::from_line).is_some_and(|totals| totals.passed == 1);
    match finished.status {
        0 if passed => (Verdict::Passed, String::new()),
        0 => (Verdict::Failed, format!("it did not run\n{}", finished.output)),
        status => (Verdict::Failed, format!("status {status}\n{}", finished.output)),
    }
}
