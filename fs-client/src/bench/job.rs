//! What is to be measured, in the form in which it goes from host to host.
//!
//! **Invariants**
//! 1. A job is checked before it is run, also one that another host sent ([`Job::check`]): no size
//!    of it makes a host allocate more than [`LARGEST_TRANSFER`] for a task.

use std::time::Duration;

use bmi_report::{Histogram, Host};
use fs_client::{FsPath, TransportChoice};
use serde::{Deserialize, Serialize};

use super::layout::Layout;

/// Bytes of the largest transfer.
const LARGEST_TRANSFER: u64 = 1 << 30;
/// The most transfers of a task in a phase. Their order is kept in memory.
const MOST_TRANSFERS: u64 = 16 << 20;
/// The most tasks of a host.
pub(crate) const MOST_TASKS: u32 = 1024;
/// The most files of a task.
const MOST_FILES: u64 = 10_000_000;
/// The most directories above a file.
const DEEPEST: u32 = 64;
/// The most complaints about wrong bytes that a host sends of a phase.
pub(crate) const MOST_COMPLAINTS: usize = 8;

/// What every host is told before the first phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The manager's address.
    pub(crate) manager: String,
    /// The transports: `tcp`, `auto`.
    pub(crate) overs: Vec<String>,
    /// Wait by polling.
    pub(crate) busy: bool,
    pub(crate) timeout_ms: u64,
    pub(crate) retry_ms: u64,
    pub(crate) seed: u64,
    /// The directory of the files.
    pub(crate) dir: String,
    /// Tasks of each host.
    pub(crate) tasks: u32,
    /// Tasks of all hosts.
    pub(crate) all: u32,
    /// The first task of the host that gets this job.
    pub(crate) first: u32,
    /// A task reads what the task with this distance wrote.
    pub(crate) shift: u32,
    pub(crate) work: Work,
}

/// The two benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Work {
    Io(Io),
    Meta(Meta),
}

/// Reads and writes, as IOR does them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Io {
    pub(crate) transfer: u64,
    pub(crate) block: u64,
    pub(crate) segments: u64,
    pub(crate) shared: bool,
    pub(crate) random: bool,
    pub(crate) sync: bool,
    pub(crate) verify: bool,
    /// The files are there already.
    pub(crate) existing: bool,
}

/// Names, as mdtest makes them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Meta {
    /// Files of each task.
    pub(crate) files: u64,
    /// A directory for each task.
    pub(crate) unique: bool,
    /// Directories between that of the run and the files.
    pub(crate) depth: u32,
}

/// What all tasks do between two barriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    /// The first task makes the directory of the run.
    Begin,
    /// Files of `io`, or directories of `meta`, are made.
    Make,
    /// Files are opened.
    Open,
    Write,
    Read,
    Create,
    Stat,
    List,
    Remove,
    /// What [`Phase::Make`] made is removed.
    Unmake,
    /// The first task removes the directory of the run with everything in it.
    End,
}

impl Phase {
    /// Returns the name of the row, if the phase is measured.
    pub(crate) fn test(self) -> Option<&'static str> {
        match self {
            Phase::Write => Some("write"),
            Phase::Read => Some("read"),
            Phase::Create => Some("create"),
            Phase::Stat => Some("stat"),
            Phase::List => Some("list"),
            Phase::Remove => Some("remove"),
            Phase::Begin | Phase::Make | Phase::Open | Phase::Unmake | Phase::End => None,
        }
    }
}

/// A phase, and over which of the job's transports.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) phase: Phase,
    pub(crate) over: usize,
}

/// What a host, or a task, did in a phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// How long each operation took.
    pub(crate) operations: Histogram,
    /// Bytes that were moved, or names that were made, asked for, listed or removed.
    pub(crate) amount: u64,
    /// Processor time in seconds.
    pub(crate) cpu: f64,
    /// Context switches.
    pub(crate) switches: f64,
    /// The first places where something else was read than was written.
    pub(crate) complaints: Vec<String>,
    /// The number of all such bytes.
    pub(crate) wrong: u64,
    /// The phase was ended early.
    pub(crate) stopped: bool,
}

impl Part {
    /// Records an operation.
    pub(crate) fn operation(&mut self, took: Duration, amount: u64) {
        self.operations.record(took.as_nanos() as u64);
        self.amount += amount;
    }

    /// Adds what another task or host did at the same time.
    pub(crate) fn add(&mut self, other: Part) {
        self.operations.add(&other.operations);
        self.amount = self.amount.saturating_add(other.amount);
        self.cpu += other.cpu;
        self.switches += other.switches;
        self.wrong = self.wrong.saturating_add(other.wrong);
        self.stopped |= other.stopped;
        self.complaints.extend(other.complaints);
        self.complaints.truncate(MOST_COMPLAINTS);
    }

    /// Returns a line about the wrong bytes, if there are any.
    pub(crate) fn complaint(&self) -> Option<String> {
        let first = self.complaints.first()?;
        Some(format!("{first}; wrong bytes in all: {}", self.wrong))
    }
}

/// What a host is after it was told the job: who it is, and what each of its transports turned out
/// to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) host: Host,
    /// By transport of the job: the schemes over which servers are reached.
    pub(crate) labels: Vec<Vec<String>>,
    /// The servers, with what they serve.
    pub(crate) servers: Vec<(String, String)>,
}

impl Job {
    /// Checks the sizes.
    ///
    /// # Errors
    /// A line that says which is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !(1..=MOST_TASKS).contains(&self.tasks) {
            return Err(format!("a host has 1 to {MOST_TASKS} tasks, not {}", self.tasks));
        }
        if self.first.checked_add(self.tasks).is_none_or(|end| end > self.all) {
            return Err("the tasks of this host are not among all".to_owned());
        }
        if self.overs.is_empty() {
            return Err("no transport".to_owned());
        }
        match self.work {
            Work::Io(io) => io.check(self.all),
            Work::Meta(meta) => meta.check(self.all),
        }
    }

    /// Parses the directory.
    pub(crate) fn dir(&self) -> Result<FsPath, String> {
        self.dir.parse().map_err(|error: fs_client::Error| error.to_string())
    }

    /// Parses the transports.
    pub(crate) fn choices(&self) -> Result<Vec<TransportChoice>, String> {
        let choice = |text: &String| match text.as_str() {
            "auto" => Ok(TransportChoice::Auto),
            text => text.parse().map(TransportChoice::Only).map_err(|why: &str| format!("{text}: {why}")),
        };
        self.overs.iter().map(choice).collect()
    }
}

impl Io {
    pub(crate) fn layout(&self, tasks: u32) -> Layout {
        let Io { transfer, block, segments, shared, .. } = *self;
        Layout { transfer, block, segments, tasks, shared }
    }

    fn check(&self, tasks: u32) -> Result<(), String> {
        let Io { transfer, block, segments, .. } = *self;
        if !(1..=LARGEST_TRANSFER).contains(&transfer) {
            return Err(format!("a transfer has 1 byte to 1G, not {transfer}"));
        }
        if block == 0 || !block.is_multiple_of(transfer) {
            return Err(format!("a block of {block} bytes does not consist of whole transfers of {transfer}"));
        }
        if segments == 0 {
            return Err("a file has at least one segment".to_owned());
        }
        let whole = u64::from(tasks).checked_mul(block).and_then(|all| all.checked_mul(segments));
        if whole.is_none_or(|all| all > i64::MAX as u64) {
            return Err("all blocks together are more than a file can hold".to_owned());
        }
        if self.layout(tasks).transfers() > MOST_TRANSFERS {
            return Err(format!("a task does at most {MOST_TRANSFERS} transfers in a phase; take larger ones"));
        }
        Ok(())
    }
}

impl Meta {
    fn check(&self, tasks: u32) -> Result<(), String> {
        if !(1..=MOST_FILES).contains(&self.files) {
            return Err(format!("a task has 1 to {MOST_FILES} files, not {}", self.files));
        }
        if self.files.checked_mul(u64::from(tasks)).is_none() || self.depth > DEEPEST {
            return Err(format!("files are at most {DEEPEST} directories deep"));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::bench) fn job() -> Job {
        let io = Io {
            transfer: 10,
            block: 30,
            segments: 2,
            shared: true,
            random: false,
            sync: false,
            verify: false,
            existing: false,
        };
        Job {
            manager: "tcp://h:1".into(),
            overs: vec!["tcp".into()],
            busy: false,
            timeout_ms: 1000,
            retry_ms: 0,
            seed: 1,
            dir: "/bench".into(),
            tasks: 2,
            all: 4,
            first: 2,
            shift: 2,
            work: Work::Io(io),
        }
    }

    #[test]
    fn a_job_survives_its_json_and_is_checked() {
        let good = job();
        good.check().unwrap();
        assert_eq!(serde_json::from_str::<Job>(&serde_json::to_string(&good).unwrap()).unwrap(), good);
        let Work::Io(io) = good.work else { panic!("io") };
        let with = |io: Io| Job { work: Work::Io(io), ..good.clone() };
        let names = |meta: Meta| Job { work: Work::Meta(meta), ..good.clone() };
        for (bad, why) in [
            (Job { tasks: 0, ..good.clone() }, "1 to 1024"),
            (Job { tasks: u32::MAX, ..good.clone() }, "1 to 1024"),
            (Job { first: 3, ..good.clone() }, "not among all"),
            (Job { first: u32::MAX, ..good.clone() }, "not among all"),
            (Job { overs: Vec::new(), ..good.clone() }, "no transport"),
            (with(Io { transfer: 0, ..io }), "1 byte to 1G"),
            (with(Io { transfer: 2 << 30, ..io }), "1 byte to 1G"),
            (with(Io { block: 35, ..io }), "whole transfers"),
            (with(Io { block: 0, ..io }), "whole transfers"),
            (with(Io { segments: 0, ..io }), "at least one segment"),
            (with(Io { segments: u64::MAX, ..io }), "can hold"),
            (with(Io { transfer: 1, block: 1 << 30, ..io }), "take larger ones"),
            (names(Meta { files: 0, unique: false, depth: 0 }), "1 to 10000000"),
            (names(Meta { files: 1, unique: false, depth: 65 }), "directories deep"),
        ] {
            let error = bad.check().unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
