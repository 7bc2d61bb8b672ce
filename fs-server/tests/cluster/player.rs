//! A client and what it knows: its files with their histories, and the steps that are in doubt.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use bmi::Time;
use bmi_sim::Rng;
use bmi_sim::check::Case;
use fs_client::{Client, CreateOptions, Draft, Error, ErrorCode, File, FsPath};

use super::model::{Model, ZOMBIE};
use super::{SERVERS, insist};

/// Longest file, in bytes.
pub const LONGEST: u64 = 96 << 10;

/// A file and its history.
#[derive(Clone)]
pub struct Known {
    pub file: File,
    pub model: Rc<RefCell<Model>>,
}

/// A step that may have happened or not.
pub struct Doubt {
    pub step: Step,
    /// When it was given up; `None` while it is in progress.
    pub since: Option<Time>,
}

pub enum Step {
    /// The new file gets the name of the old one, if there is one.
    Publish { old: Option<Known>, new: Known },
    /// The file gets another size. This is the number of the change in the model.
    Cut { known: Known, op: usize },
}

impl Doubt {
    pub fn new(step: Step) -> Doubt {
        Doubt { step, since: None }
    }

    /// The client of a step in progress is gone.
    pub fn died(&mut self, writer: usize, now: Time) {
        self.since.get_or_insert(now);
        let models = match &self.step {
            Step::Publish { old, new } => vec![old.as_ref(), Some(new)],
            Step::Cut { known, .. } => vec![Some(known)],
        };
        models.into_iter().flatten().for_each(|known| known.model.borrow_mut().died(writer, now));
    }
}

/// A client and everything that it knows.
pub struct Player {
    pub who: usize,
    pub players: usize,
    /// The client, while the node is up.
    pub link: Option<Client>,
    /// Number of crashes of its node.
    pub lives: usize,
    pub world: Case,
    pub rng: Rng,
    pub dir: FsPath,
    pub files: BTreeMap<String, Known>,
    pub dirs: BTreeSet<String>,
    /// Names that may or may not exist, because a change of them failed.
    pub unsure: BTreeSet<String>,
    /// Files that a step may have changed as a whole.
    pub doubts: BTreeMap<String, Doubt>,
    /// A draft that is published after a long time: name, file, size and beginning.
    pub kept: Option<(String, Draft, Known, u64, Time)>,
    /// Names that are being changed right now.
    pub changing: Vec<String>,
    pub shared: Option<Known>,
    pub shared_path: FsPath,
    pub shared_model: Rc<RefCell<Model>>,
    pub names: u64,
    pub salts: u64,
    /// Number of errors that faults explain.
    pub errors: u64,
    /// True while something has happened that explains errors.
    pub disaster: bool,
    /// True while the disks of all servers fail.
    pub broken_disks: bool,
}

/// Returns the range of a whole file.
pub fn all() -> Vec<Range<u64>> {
    std::iter::once(0..LONGEST).collect()
}

pub type Outcome<T = ()> = Result<T, String>;

/// Returns true if faults explain the error.
fn excused(error: &Error) -> bool {
    let codes = [
        ErrorCode::Timeout,
        ErrorCode::Unreachable,
        ErrorCode::Io,
        ErrorCode::NoSpace,
        ErrorCode::Busy,
        ErrorCode::Unfinished,
    ];
    error.failures().iter().all(|failure| codes.contains(&failure.code))
}

/// Returns true if a disaster explains the error: servers are the wrong ones, or do not serve.
fn excused_by_disaster(error: &Error) -> bool {
    let codes = [
        ErrorCode::Timeout,
        ErrorCode::Unreachable,
        ErrorCode::Busy,
        ErrorCode::WrongServer,
        ErrorCode::OutOfDate,
        ErrorCode::Unfinished,
    ];
    error.failures().iter().all(|failure| codes.contains(&failure.code))
}

impl Player {
    pub fn now(&self) -> Time {
        self.world.now()
    }

    /// Returns the client.
    pub fn client(&self) -> Client {
        self.link.clone().expect("it acts only while it is up")
    }

    /// Returns its number in the models. After a crash it is a new one, because it does not know
    /// what the servers had told it before.
    pub fn writer(&self) -> usize {
        self.lives * self.players + self.who
    }

    /// Returns the times of all power failures of servers so far.
    pub fn crashes(&self) -> Vec<Time> {
        self.world.nodes[..SERVERS].iter().flat_map(bmi_sim::Node::crashes).collect()
    }

    /// Restarts after its node is up again: with a new client and new files, which it finds by
    /// their names.
    pub async fn get_up(&mut self, client: Client) -> Outcome {
        let open = CreateOptions { exclusive: false, ..CreateOptions::default() };
        let shared = insist(&self.world, || client.create(&self.shared_path, open)).await;
        insist(&self.world, || client.mkdir_all(&self.dir)).await;
        for (name, known) in &mut self.files {
            let path = self.dir.join(name).expect("a short name");
            known.file = insist(&self.world, || client.open(&path)).await;
        }
        self.shared = Some(Known { file: shared, model: self.shared_model.clone() });
        self.link = Some(client);
        Ok(())
    }

    /// Records that its node has crashed. An operation in progress may have happened or not, or may
    /// still happen.
    pub fn died(&mut self) {
        let (now, writer) = (self.now(), self.writer());
        self.link = None;
        for name in std::mem::take(&mut self.changing) {
            self.files.remove(&name);
            self.dirs.remove(&name);
            self.unsure.insert(name);
        }
        for known in self.files.values().chain(&self.shared) {
            known.model.borrow_mut().died(writer, now);
        }
        self.doubts.values_mut().for_each(|doubt| doubt.died(writer, now));
        self.kept = None;
        self.lives += 1;
    }

    pub fn calm(&self) -> bool {
        // Operations that began earlier may fail a while later.
        self.now() > self.world.calm_at() + ZOMBIE
    }

    /// Returns the value of a result. Returns `None` for an error that faults explain, while there
    /// are faults.
    pub fn settle<T>(&mut self, what: &str, result: Result<T, Error>) -> Outcome<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if self.disaster && excused_by_disaster(&error) => {
                self.errors += 1;
                Ok(None)
            }
            Err(error) if excused(&error) && (self.broken_disks || !self.calm()) => {
                self.errors += 1;
                Ok(None)
            }
            Err(error) => Err(format!("client {} at {}: {what}: {error}", self.who, self.now())),
        }
    }

    pub fn fresh_name(&mut self) -> String {
        self.names += 1;
        format!("n{}", self.names)
    }

    pub fn path(&self, name: &str) -> FsPath {
        self.dir.join(name).expect("a short name")
    }

    pub fn some<T: Clone>(&mut self, of: impl ExactSizeIterator<Item = T>) -> Option<T> {
        let mut of = of;
        let at = self.rng.below(of.len() as u64) as usize;
        of.nth(at)
    }

    /// Returns a name of a file.
    pub fn some_file(&mut self) -> Option<String> {
        self.some(self.files.keys().cloned().collect::<Vec<_>>().into_iter())
    }
}
