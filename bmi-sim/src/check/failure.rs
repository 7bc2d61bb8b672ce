//! What a sweep says at its end.

use std::fmt;

use crate::faults::Plan;

/// What a sweep without a failure did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The sweep's name.
    pub name: String,
    /// Seeds that were run.
    pub seeds: u64,
    /// Faults in their plans.
    pub faults: u64,
    /// Events of the worlds, all together.
    pub events: u64,
    /// A number over the digests of all runs: the same wherever the same sweep is run, in debug and in release.
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

/// How a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The test returned an error.
    Error(String),
    /// The test, or a task of its world, panicked.
    Panicked(String),
    /// The world could not go on; the text says what stood waiting.
    Stalled(String),
    /// Endpoints held what they should have given back; one in a line.
    Leaked(String),
    /// Two runs with the same seed and plan had different digests.
    Differs(u64, u64),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Error(text) => write!(f, "error: {text}"),
            Why::Panicked(text) => write!(f, "panic: {text}"),
            Why::Stalled(text) => write!(f, "stall: {text}"),
            Why::Leaked(text) => write!(f, "leak:\n{text}"),
            Why::Differs(one, other) => {
                write!(f, "not repeatable: digest {one:016x}, and {other:016x} when run again")
            }
        }
    }
}

/// A run that failed, and how to run it again.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The sweep's name.
    pub name: String,
    /// The seed.
    pub seed: u64,
    /// What happened.
    pub why: Why,
    /// The faults that the seed drew.
    pub drawn: Plan,
    /// Fewer and simpler faults with which it still fails.
    pub shrunk: Plan,
    /// What happens with those.
    pub shrunk_why: Why,
    /// Runs that shrinking took.
    pub runs: u64,
}

impl Failure {
    /// One command that runs the seed with the shrunk plan, and nothing else.
    pub fn command(&self) -> String {
        let package = std::env::var("CARGO_PKG_NAME").map(|name| format!(" -p {name}")).unwrap_or_default();
        // The test harness names its threads after the tests; the main thread's name says nothing.
        let thread = std::thread::current();
        let test = thread.name().filter(|name| *name != "main").unwrap_or(&self.name);
        let plan = self.shrunk.to_text();
        format!("BMI_SEED={} BMI_PLAN='{plan}' cargo test{package} {test} -- --nocapture", self.seed)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { name, seed, why, drawn, shrunk, shrunk_why, runs } = self;
        writeln!(f, "check {name:?} fails at seed {seed}")?;
        writeln!(f, "{why}")?;
        if shrunk != drawn {
            let (before, after) = (drawn.events.len(), shrunk.events.len());
            writeln!(f, "its {before} faults shrink to {after}, in {runs} runs:")?;
        }
        write!(f, "{shrunk}")?;
        if shrunk_why != why {
            writeln!(f, "with which it is: {shrunk_why}")?;
        }
        write!(f, "replay: {}", self.command())
    }
}

impl std::error::Error for Failure {}
