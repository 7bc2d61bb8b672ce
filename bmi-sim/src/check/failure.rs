//! The results of a sweep: a report, or a failure.

use std::fmt;

use crate::faults::Plan;

/// What a sweep without a failure ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The sweep's name.
    pub name: String,
    /// Number of seeds that were run.
    pub seeds: u64,
    /// Number of faults in their plans.
    pub faults: u64,
    /// Number of events of all worlds together.
    pub events: u64,
    /// A hash of the digests of all runs. The same sweep gives the same value everywhere, in debug
    /// and in release.
    pub digest: u64,
}

impl Report {
    pub(super) fn add(&mut self, plan: &Plan, events: u64, digest: u64) {
        self.seeds += 1;
        self.faults += plan.events.len() as u64;
        self.events += events;
        self.digest = (self.digest.rotate_left(23) ^ digest).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { name, seeds, faults, events, digest } = self;
        write!(f, "check {name:?}: {seeds} seeds, {faults} faults, {events} events, digest {digest:016x}")
    }
}

/// What to do when tokio panics because its runtime is missing.
const INSTEAD_OF_TOKIO: &str = "a world is no tokio runtime: write bmi::spawn, bmi::sleep, bmi::timeout and bmi::Instant \
                                in place of those of tokio";

/// How a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The test returned an error.
    Error(String),
    /// The test, or a task of its world, panicked.
    Panicked(String),
    /// The world could not go on. The text lists what was waiting.
    Stalled(String),
    /// Endpoints still held resources that they should have given back, one per line.
    Leaked(String),
    /// Two runs with the same seed and plan had different digests.
    Differs(u64, u64),
    /// The run passed, and failed when it was run again with the same seed and plan.
    Again(Box<Why>),
}

impl Why {
    /// Returns whether two failures look the same: they are of the same kind, and a panic is at the
    /// same place. A smaller plan that fails in another way explains nothing.
    pub(super) fn is_like(&self, other: &Why) -> bool {
        // The text of a panic ends with its location.
        let place = |text: &str| text.rsplit_once(" (").map(|(_, place)| place.to_owned());
        match (self, other) {
            (Why::Panicked(one), Why::Panicked(other)) => place(one) == place(other),
            (one, other) => std::mem::discriminant(one) == std::mem::discriminant(other),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Error(text) => write!(f, "error: {text}"),
            Why::Panicked(text) if text.contains("Tokio 1.x") => write!(f, "panic: {text}\n{INSTEAD_OF_TOKIO}"),
            Why::Panicked(text) => write!(f, "panic: {text}"),
            Why::Stalled(text) => write!(f, "stall: {text}"),
            Why::Leaked(text) => write!(f, "leak:\n{text}"),
            Why::Differs(one, other) => {
                write!(f, "not repeatable: digest {one:016x}, and {other:016x} when run again")
            }
            Why::Again(why) => write!(f, "not repeatable: it passes, and when run again: {why}"),
        }
    }
}

/// A run that failed, and how to run it again.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The sweep's name.
    pub name: String,
    /// The seed of the run.
    pub seed: u64,
    /// The failure with the drawn plan.
    pub why: Why,
    /// The faults that the seed drew.
    pub drawn: Plan,
    /// Fewer and simpler faults with which the test still fails.
    pub shrunk: Plan,
    /// The failure with the shrunk plan.
    pub shrunk_why: Why,
    /// Number of runs that shrinking took.
    pub runs: u64,
    /// The messages between nodes around the faults and before the failure, as lines of a table in
    /// order of time. They come from one more run with the shrunk plan.
    ///
    /// The line of a message has the virtual times at which it was sent and at which it arrived, in
    /// µs, then its nodes and its length. A message of an endpoint also has its kind and tag. A `-`
    /// in place of the arrival means that the message did not arrive, or had not arrived when the
    /// run failed. The arrival of a read is that of its data. Connections that ended have a line of
    /// their own, with the requests that ended with them. A line that begins with `*` is a fault or
    /// the end of one. The last line begins with `!`: it is the failure.
    ///
    /// Empty if no message was sent, or if the failure did not repeat.
    pub messages: Vec<String>,
}

impl Failure {
    /// Returns one command that runs the seed with the shrunk plan, and nothing else.
    pub fn command(&self) -> String {
        let package = std::env::var("CARGO_PKG_NAME").map(|name| format!(" -p {name}")).unwrap_or_default();
        let test = test_of(std::thread::current().name(), std::env::args().skip(1));
        let plan = self.shrunk.to_text();
        format!("BMI_SEED={} BMI_PLAN='{plan}' cargo test{package}{test} --nocapture", self.seed)
    }
}

/// Returns the arguments that make the harness run this test and no other. The harness names its
/// threads after the tests. If it runs the test on its main thread, the test's name may be among
/// its arguments. If it is not, all tests of the package run with this seed, including this one.
fn test_of(thread: Option<&str>, args: impl IntoIterator<Item = String>) -> String {
    if let Some(test) = thread.filter(|name| *name != "main") {
        return format!(" {test} -- --exact");
    }
    let named = args.into_iter().find(|arg| !arg.starts_with('-'));
    named.map_or_else(|| " --".to_owned(), |test| format!(" {test} --"))
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { name, seed, why, drawn, shrunk, shrunk_why, runs, messages } = self;
        writeln!(f, "check {name:?} fails at seed {seed}")?;
        writeln!(f, "{why}")?;
        if shrunk != drawn {
            let (before, after) = (drawn.events.len(), shrunk.events.len());
            writeln!(f, "its {before} faults shrink to {after}, in {runs} runs:")?;
        }
        write!(f, "{shrunk}")?;
        if shrunk_why != why {
            writeln!(f, "the shrunk plan fails with: {shrunk_why}")?;
        }
        messages.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        write!(f, "replay: {}", self.command())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: on the harness's main thread the command contained the sweep's own name, which
    /// no test has. The command ran nothing and passed.
    #[test]
    fn a_replay_names_the_test_and_not_the_sweep() {
        let args = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
        assert_eq!(test_of(Some("tests::a"), args(&[])), " tests::a -- --exact");
        assert_eq!(test_of(Some("main"), args(&["--exact", "tests::b", "--nocapture"])), " tests::b --");
        assert_eq!(test_of(Some("main"), args(&["--test-threads=1"])), " --");
    }

    #[test]
    fn failures_are_alike_by_kind_and_place() {
        let panicked = |text: &str| Why::Panicked(text.to_owned());
        assert!(panicked("41 and not 40 (a.rs:7)").is_like(&panicked("42 and not 40 (a.rs:7)")));
        assert!(!panicked("41 and not 40 (a.rs:7)").is_like(&panicked("no faults at all (a.rs:9)")));
        assert!(!panicked("x (a.rs:7)").is_like(&Why::Stalled("x".to_owned())));
        assert!(Why::Leaked("a".to_owned()).is_like(&Why::Leaked("b".to_owned())));
    }
}
