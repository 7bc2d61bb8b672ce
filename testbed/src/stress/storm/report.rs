//! What a storm counted and found, as text and as JSON.

use std::collections::BTreeMap;

use serde::Serialize;
use testbed::command::{Ended, Verdict};

use crate::measured::Measured;

/// Most wrong results that are kept in detail.
const MOST_WRONG: usize = 100;

/// What all parts of a storm count together.
#[derive(Debug, Default)]
pub(super) struct Tally {
    kinds: BTreeMap<&'static str, Measured>,
    pub(super) wrong: Vec<Wrong>,
    pub(super) wrong_in_all: usize,
}

/// A result that no correct file system gives.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Wrong {
    pub(super) what: String,
    /// Milliseconds since the storm began.
    pub(super) at_ms: u64,
    pub(super) worker: String,
    pub(super) name: String,
    /// The command and its standard error.
    pub(super) command: String,
    pub(super) errors: String,
    pub(super) possible: Vec<String>,
    pub(super) seen: String,
    /// The last operations on this name, oldest first.
    pub(super) before: Vec<String>,
    /// The file with the bytes that were fetched.
    pub(super) saved: Option<String>,
}

/// Operations of one kind.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Operations {
    kind: &'static str,
    acknowledged: u64,
    failed: u64,
    /// Of acknowledged operations, in milliseconds.
    p50_ms: f64,
    p99_ms: f64,
    reasons: BTreeMap<String, u64>,
}

/// What the killer did.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Blows {
    pub(super) kills: BTreeMap<String, u64>,
    pub(super) stops: BTreeMap<String, u64>,
    /// Servers that ended without being killed, with the last line of their logs.
    pub(super) ended_by_themselves: Vec<String>,
}

/// What is at the servers when everything is quiet.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Space {
    /// Datafiles at all I/O servers.
    pub(super) datafiles: u64,
    /// Those that were created in advance and are in a pool of the manager.
    pub(super) prepared: u64,
    /// Those of the files in the listing.
    pub(super) of_files: u64,
    /// The remaining ones.
    pub(super) orphans: i64,
    /// Files in the listing.
    pub(super) files: u64,
    /// Files that the manager counts beyond those in the listing.
    pub(super) without_a_name: i64,
    /// Seconds from the end of the storm until there were no orphans, or until the limit.
    pub(super) quiet_after_s: f64,
    /// Datafiles on disk that belong to no file.
    pub(super) unowned: Vec<String>,
}

/// The whole result.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) seed: u64,
    pub(super) seconds: f64,
    pub(super) blows: Blows,
    pub(super) operations: Vec<Operations>,
    pub(super) space: Space,
    pub(super) wrong_in_all: usize,
    pub(super) wrong: Vec<Wrong>,
    /// The directory, if it was kept.
    pub(super) kept: Option<String>,
}

impl Tally {
    /// Counts an operation.
    pub(super) fn count(&mut self, kind: &'static str, ended: &Ended) {
        self.kinds.entry(kind).or_default().add(match ended.verdict {
            Verdict::Acknowledged => Ok(ended.end_us - ended.begin_us),
            _ => Err(ended.reason()),
        });
    }

    /// Adds a wrong result.
    pub(super) fn wrong(&mut self, wrong: Wrong) {
        self.wrong_in_all += 1;
        if self.wrong.len() < MOST_WRONG {
            self.wrong.push(wrong);
        }
    }

    /// Returns the number of operations that were acknowledged and that failed.
    pub(super) fn sums(&self) -> (u64, u64) {
        (self.kinds.values().map(Measured::succeeded).sum(), self.kinds.values().map(Measured::failed).sum())
    }

    /// Returns true if an operation of this kind was acknowledged.
    pub(super) fn has(&self, kind: &str) -> bool {
        self.kinds.get(kind).is_some_and(|kind| kind.succeeded() > 0)
    }

    /// Returns the operations by kind.
    pub(super) fn operations(&self) -> Vec<Operations> {
        let of = |(kind, measured): (&&'static str, &Measured)| {
            let [p50_ms, p99_ms] = measured.quantiles_us([0.5, 0.99]).map(|time_us| time_us as f64 / 1e3);
            let (acknowledged, failed) = (measured.succeeded(), measured.failed());
            Operations { kind, acknowledged, failed, p50_ms, p99_ms, reasons: measured.reasons.clone() }
        };
        self.kinds.iter().map(of).collect()
    }
}

impl Report {
    /// Returns true if nothing was wrong.
    pub(super) fn is_good(&self) -> bool {
        self.wrong_in_all == 0
    }

    /// Formats the report for people.
    pub(super) fn render(&self) -> String {
        let each = |counts: &BTreeMap<String, u64>| {
            let each: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
            format!("{} ({})", counts.values().sum::<u64>(), each.join(", "))
        };
        let mut text = format!("seed {}, {:.1} s\n", self.seed, self.seconds);
        text += &format!("kills  {}\nstops  {}\n", each(&self.blows.kills), each(&self.blows.stops));
        for line in &self.blows.ended_by_themselves {
            text += &format!("ended by itself: {line}\n");
        }
        text += "\noperation    acknowledged    failed   rate  p50 ms  p99 ms\n";
        for of in &self.operations {
            let rate = 100.0 * of.failed as f64 / (of.acknowledged as f64 + of.failed as f64).max(1.0);
            let (kind, acknowledged, failed) = (of.kind, of.acknowledged, of.failed);
            text +=
                &format!("{kind:<14}{acknowledged:>11}{failed:>10}{rate:>6.1}%{:>8.1}{:>8.1}\n", of.p50_ms, of.p99_ms);
        }
        text += "\nreasons of failures\n";
        for of in &self.operations {
            of.reasons.iter().for_each(|(reason, count)| text += &format!("{count:>7}  {:<12} {reason}\n", of.kind));
        }
        let Space { datafiles, prepared, of_files, orphans, files, without_a_name, quiet_after_s, unowned } =
            &self.space;
        text += &format!(
            "\ndatafiles {datafiles}: {of_files} of {files} files, {prepared} prepared, {orphans} orphans; \
             {without_a_name} files without a name; quiet after {quiet_after_s:.1} s\n",
        );
        unowned.iter().for_each(|datafile| text += &format!("  unowned: {datafile}\n"));
        self.wrong.iter().for_each(|wrong| text += &wrong.render());
        self.kept.iter().for_each(|kept| text += &format!("\nkept: {kept}\n"));
        text + &format!("\n{} wrong results\n", self.wrong_in_all)
    }
}

impl Wrong {
    fn render(&self) -> String {
        let mut text =
            format!("\nWRONG at {:.3} s, {}: {} {}\n", self.at_ms as f64 / 1e3, self.worker, self.name, self.what);
        for (label, value) in [("command", &self.command), ("errors", &self.errors), ("seen", &self.seen)] {
            if !value.is_empty() {
                text += &format!("  {label:<9}{value}\n");
            }
        }
        self.possible.iter().for_each(|state| text += &format!("  possible {state}\n"));
        self.before.iter().for_each(|line| text += &format!("  before   {line}\n"));
        self.saved.iter().for_each(|path| text += &format!("  saved    {path}\n"));
        text
    }
}
