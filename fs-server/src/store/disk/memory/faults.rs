//! The steps of a disk in memory that fail.

use std::fmt;
use std::io;

use super::super::DATABASE;
use super::MemDisk;

/// What a program asks a disk to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskStep {
    /// Looks at names and lengths.
    Look,
    /// Reads from a file.
    Read,
    /// Writes to a file.
    Write,
    /// Sets the length of a file.
    Length,
    /// Changes names.
    Names,
    /// Makes a file, or the names in a directory, durable.
    Sync,
}

/// Returns the error of a step on a name, if it fails.
type Refusal = Box<dyn Fn(DiskStep, &str) -> Option<io::ErrorKind> + Send>;

/// The error of a step, and whether half of a write was done.
pub(super) struct Failed {
    error: io::Error,
    pub(super) by_half: bool,
}

impl From<Failed> for io::Error {
    fn from(failed: Failed) -> io::Error {
        failed.error
    }
}

fn whole(error: io::Error) -> Failed {
    Failed { error, by_half: false }
}

/// Returns true if a step fails on a full disk. The records of a store have their room.
fn needs_room(step: DiskStep, name: &str) -> bool {
    match step {
        DiskStep::Write => name.contains('/') || name == DATABASE,
        DiskStep::Length => name == DATABASE,
        DiskStep::Look | DiskStep::Read | DiskStep::Names | DiskStep::Sync => false,
    }
}

/// Which steps fail.
#[derive(Default)]
pub(super) struct Faults {
    /// The error for what needs room. If the flag is set, it is that of all other steps too.
    all: Option<(io::ErrorKind, bool)>,
    /// Number of changes and syncs until the power fails during one of them; 0 if it has failed.
    fuse: Option<u32>,
    /// Number of changes and syncs so far.
    changes: u64,
    /// The changes that fail: the first one, how many, and the error.
    failing: Option<(u64, u64, io::ErrorKind)>,
    syncs_fail: bool,
    /// The number of syncs until one that fails although it writes everything; 0 if none does.
    doubted: u32,
    refusal: Option<Refusal>,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").field("all", &self.all).field("changes", &self.changes).finish_non_exhaustive()
    }
}

impl Faults {
    /// Fails if a step fails.
    pub(super) fn step(&mut self, step: DiskStep, name: &str) -> Result<(), Failed> {
        let changes = !matches!(step, DiskStep::Look | DiskStep::Read);
        if let Some(left) = &mut self.fuse {
            *left = left.saturating_sub(u32::from(changes));
            if *left == 0 {
                return Err(whole(io::Error::other("the power has failed")));
            }
        }
        match self.all {
            Some((error, all)) if all || needs_room(step, name) => return Err(whole(error.into())),
            _ => {}
        }
        if changes {
            self.changes += 1;
            if let Some((first, count, error)) = self.failing
                && (first..first.saturating_add(count)).contains(&self.changes)
            {
                return Err(Failed { error: error.into(), by_half: true });
            }
        }
        if step == DiskStep::Sync && self.syncs_fail {
            return Err(whole(io::Error::other("the disk failed")));
        }
        match self.refusal.as_ref().and_then(|refusal| refusal(step, name)) {
            Some(error) => Err(whole(error.into())),
            None => Ok(()),
        }
    }

    /// A sync has written everything. Fails if it is the one that is doubted.
    pub(super) fn synced(&mut self) -> io::Result<()> {
        let is_doubted = self.doubted == 1;
        self.doubted = self.doubted.saturating_sub(1);
        if is_doubted { Err(io::Error::other("the disk does not say what it has")) } else { Ok(()) }
    }

    /// The power has failed as it was announced.
    pub(super) fn end_cut(&mut self) {
        self.fuse = None;
    }
}

impl MemDisk {
    fn faults<R>(&self, change: impl FnOnce(&mut Faults) -> R) -> R {
        change(&mut super::lock(&self.state).faults)
    }

    /// Makes the disk fail what needs room with this error and, if the flag is set, all other steps
    /// too. `None` makes it work again.
    pub fn refuse(&self, fault: Option<(io::ErrorKind, bool)>) {
        self.faults(|faults| faults.all = fault);
    }

    /// Makes those steps fail for which `refusal` returns an error. It is called with the name of a
    /// file or a directory, and must not use the disk.
    pub fn refuse_if(&self, refusal: impl Fn(DiskStep, &str) -> Option<io::ErrorKind> + Send + 'static) {
        self.faults(|faults| faults.refusal = Some(Box::new(refusal)));
    }

    /// Makes `count` changes from the one with number `first` on fail with an error. A write is
    /// then half done, another change not at all, and a sync drops the data. `None` makes none
    /// fail.
    pub fn fail_at(&self, failing: Option<(u64, u64, io::ErrorKind)>) {
        self.faults(|faults| faults.failing = failing);
    }

    /// Makes all syncs fail, and only these.
    pub fn fail_syncs(&self, fail: bool) {
        self.faults(|faults| faults.syncs_fail = fail);
    }

    /// Makes the sync with this number, counted from now, write everything and fail all the same. 0
    /// makes none fail.
    pub fn doubt_sync(&self, nth: u32) {
        self.faults(|faults| faults.doubted = nth);
    }

    /// Returns the number of changes so far: of files, of names, and syncs.
    pub fn changes(&self) -> u64 {
        self.faults(|faults| faults.changes)
    }

    /// Schedules a power failure at the `changes`th change or sync from now. That step and all
    /// later ones change nothing. `None` cancels it. [`MemDisk::power_fails`] then decides what is
    /// left.
    pub fn cut_off(&self, changes: Option<u32>) {
        self.faults(|faults| faults.fuse = changes);
    }

    /// Returns true if the scheduled power failure has happened.
    pub fn is_cut_off(&self) -> bool {
        self.faults(|faults| faults.fuse == Some(0))
    }
}
