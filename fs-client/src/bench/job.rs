//! What is to be measured, in the form in which it goes from host to host.
//!
//! **Invariants**
//! 1. A job is checked before it is run, also one that another host sent ([`Job::check`]): no size
//!    of it makes a host allocate more than [`LARGEST_TRANSFER`] for a task.

use std::time::Duration;

use crate::{FsPath, TransportChoice};
use bmi_report::{Histogram, Host};
use serde::{Deserialize, Serialize};

use super::layout::{Layout, TRANSFERS_OF_A_GROUP};

/// Bytes of the largest transfer.
const LARGEST_TRANSFER: u64 = 1 << 30;
/// The most transfers of a task in a phase. Their order is kept in memory.
const MOST_TRANSFERS: u64 = 16 << 20;
/// The most tasks of a host.
pub(crate) const MOST_TASKS: u32 = 1024;
/// The most files of a task.
const MOST_FILES: u64 = 10_000_000;
/// The most bytes of a file that is measured for its name: such a file is on one server.
const SMALL_FILE: u64 = fs_proto::limits::DEFAULT_STRIP;
/// The most directories above a file.
const DEEPEST: u32 = 64;
/// The most operations of a task that are in flight.
const MOST_IN_FLIGHT: u32 = 1024;
/// The most pieces of a transfer.
const MOST_PIECES: u64 = 4096;
/// The most complaints about wrong bytes that a host sends of a phase.
pub(crate) const MOST_COMPLAINTS: usize = 8;

/// What every host is told before the first phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The clusters that are measured, each over each of the transports.
    pub(crate) clusters: Vec<Cluster>,
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
    /// The directory for local files, on each host; in memory without it.
    pub(crate) local: Option<String>,
    /// What is measured, one after the other.
    pub(crate) works: Vec<Work>,
}

/// A cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cluster {
    /// Its name in the report.
    pub(crate) name: String,
    /// The manager's address.
    pub(crate) manager: String,
}

/// The benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Work {
    Io(Io),
    Meta(Meta),
    Copy(Copying),
}

/// Reads and writes, as IOR does them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Io {
    pub(crate) transfer: u64,
    pub(crate) block: u64,
    pub(crate) segments: u64,
    /// Parts of a transfer that are apart in the file and in memory.
    pub(crate) pieces: u64,
    /// The pieces are named by a type and a view, and not by lists.
    pub(crate) view: bool,
    /// Transfers of a task that are in flight.
    pub(crate) in_flight: u32,
    pub(crate) shared: bool,
    pub(crate) random: bool,
    /// The bytes are there before they are written.
    pub(crate) overwrite: bool,
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
    /// Operations of a task that are in flight.
    pub(crate) in_flight: u32,
    /// Bytes that are written to each file after it was created.
    pub(crate) bytes: u64,
}

/// Whole files, copied from and to this host as `pvfs put` and `pvfs get` do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Copying {
    /// Bytes of the file of each task.
    pub(crate) size: u64,
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
    /// What is to be overwritten is written.
    Fill,
    Write,
    Read,
    Create,
    Stat,
    List,
    Remove,
    /// A local file is stored, without waiting for the servers' disks.
    Put,
    /// A stored file is removed, so that it can be stored again.
    Clear,
    /// A local file is stored durably.
    PutSynced,
    Get,
    /// What was fetched is compared.
    Check,
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
            Phase::Put => Some("put"),
            Phase::PutSynced => Some("put and sync"),
            Phase::Get => Some("get"),
            Phase::Begin | Phase::Make | Phase::Open | Phase::Fill => None,
            Phase::Clear | Phase::Check | Phase::Unmake | Phase::End => None,
        }
    }
}

/// A phase of one of the job's works, to one of its clusters over one of its transports.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) phase: Phase,
    /// The number of the work.
    pub(crate) work: usize,
    /// The number of the lane ([`Job::lanes`]).
    pub(crate) lane: usize,
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
    /// By lane of the job: the schemes over which servers are reached.
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
        if self.lanes() == 0 {
            return Err("no transport".to_owned());
        }
        if self.works.is_empty() {
            return Err("nothing is to be measured".to_owned());
        }
        self.works.iter().try_for_each(|work| match work {
            Work::Io(io) => io.check(self.all),
            Work::Meta(meta) => meta.check(self.all),
            Work::Copy(copy) if copy.size == 0 => Err("a file to copy has at least one byte".to_owned()),
            Work::Copy(_) => Ok(()),
        })
    }

    /// Returns the number of lanes: one for each cluster and transport. Those of a cluster follow
    /// each other.
    pub(crate) fn lanes(&self) -> usize {
        self.clusters.len() * self.overs.len()
    }

    /// Returns the bytes of memory that a task needs.
    pub(crate) fn memory(&self) -> usize {
        let of = |work: &Work| if let Work::Io(io) = work { io.footprint() * u64::from(io.in_flight) } else { 1 };
        self.works.iter().map(of).max().unwrap_or(1) as usize
    }

    /// Parses the directory.
    pub(crate) fn dir(&self) -> Result<FsPath, String> {
        self.dir.parse().map_err(|error: crate::Error| error.to_string())
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
        let Io { transfer, block, segments, pieces, shared, .. } = *self;
        Layout { transfer, block, segments, pieces, tasks, shared }
    }

    /// Returns the bytes of memory of a transfer: pieces are as far apart as they are long.
    pub(crate) fn footprint(&self) -> u64 {
        if self.pieces == 1 { self.transfer } else { 2 * self.transfer }
    }

    fn check(&self, tasks: u32) -> Result<(), String> {
        let Io { transfer, block, segments, .. } = *self;
        if !(1..=LARGEST_TRANSFER).contains(&transfer) {
            return Err(format!("a transfer has 1 byte to 1G, not {transfer}"));
        }
        if block == 0 || !block.is_multiple_of(transfer) {
            return Err(format!("a block of {block} bytes does not consist of whole transfers of {transfer}"));
        }
        check_in_flight(self.in_flight)?;
        if u64::from(self.in_flight) * self.footprint() > LARGEST_TRANSFER {
            return Err("the transfers in flight of a task have at most 1G of memory".to_owned());
        }
        if !(1..=MOST_PIECES).contains(&self.pieces) || !transfer.is_multiple_of(self.pieces) {
            let pieces = self.pieces;
            return Err(format!(
                "a transfer of {transfer} bytes does not consist of {pieces} pieces of the same length"
            ));
        }
        if self.pieces > 1 && !(block / transfer).is_multiple_of(TRANSFERS_OF_A_GROUP) {
            return Err(format!("with pieces, a block has {TRANSFERS_OF_A_GROUP} transfers, or a multiple of that"));
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

fn check_in_flight(number: u32) -> Result<(), String> {
    let text = || format!("a task has 1 to {MOST_IN_FLIGHT} operations in flight, not {number}");
    if (1..=MOST_IN_FLIGHT).contains(&number) { Ok(()) } else { Err(text()) }
}

impl Meta {
    fn check(&self, tasks: u32) -> Result<(), String> {
        check_in_flight(self.in_flight)?;
        if !(1..=MOST_FILES).contains(&self.files) {
            return Err(format!("a task has 1 to {MOST_FILES} files, not {}", self.files));
        }
        if self.files.checked_mul(u64::from(tasks)).is_none() || self.depth > DEEPEST {
            return Err(format!("files are at most {DEEPEST} directories deep"));
        }
        if self.bytes > SMALL_FILE {
            return Err(format!("files of names have at most {SMALL_FILE} bytes; pvfs bench io measures data"));
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
            pieces: 1,
            view: false,
            in_flight: 1,
            shared: true,
            random: false,
            overwrite: false,
            sync: false,
            verify: false,
            existing: false,
        };
        Job {
            clusters: vec![Cluster { name: "this".into(), manager: "tcp://h:1".into() }],
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
            local: None,
            works: vec![Work::Io(io)],
        }
    }

    #[test]
    fn a_job_survives_its_json_and_is_checked() {
        let good = job();
        good.check().unwrap();
        assert_eq!(serde_json::from_str::<Job>(&serde_json::to_string(&good).unwrap()).unwrap(), good);
        let Work::Io(io) = good.works[0] else { panic!("io") };
        let of = |work: Work| Job { works: vec![work], ..good.clone() };
        let with = |io: Io| of(Work::Io(io));
        let names = |meta: Meta| of(Work::Meta(meta));
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
            (with(Io { in_flight: 0, ..io }), "in flight, not 0"),
            (with(Io { in_flight: 1024, transfer: 2 << 20, block: 2 << 20, ..io }), "1G of memory"),
            (with(Io { pieces: 3, ..io }), "3 pieces"),
            (with(Io { pieces: 5, ..io }), "4 transfers"),
            (names(Meta { files: 0, unique: false, depth: 0, in_flight: 1, bytes: 0 }), "1 to 10000000"),
            (names(Meta { files: 1, unique: false, depth: 65, in_flight: 1, bytes: 0 }), "directories deep"),
            (names(Meta { files: 1, unique: false, depth: 0, in_flight: 1025, bytes: 0 }), "not 1025"),
            (names(Meta { files: 1, unique: false, depth: 0, in_flight: 1, bytes: 65_537 }), "at most 65536 bytes"),
            (of(Work::Copy(Copying { size: 0 })), "at least one byte"),
            (Job { works: Vec::new(), ..good.clone() }, "nothing is to be measured"),
        ] {
            let error = bad.check().unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
