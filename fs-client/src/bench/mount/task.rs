//! What is done in a place, and the tasks that do it.
//!
//! | work | phases |
//! |---|---|
//! | data | a file of each task is written and synced; opened anew and read. One that is accessed at random places is there before; at most [`MOST_SHORT`] transfers of it are made |
//! | names | files in one directory are created, each is asked for, all are listed with their attributes by every task, and removed |
//! | a tree | small files are written and get a time, as `tar` does it, in a directory for each twenty |

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, SystemTime};

use bmi::driver::MonotonicClock;
use bmi::{Clock, Time};
use bmi_report::Unit;
use bmi_report::stats::Random;

use crate::bench::job::Part;

/// The flag of open(2) on this architecture.
pub(super) const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;
/// What `O_DIRECT` needs of memory.
const ALIGNMENT: usize = 4096;
/// Bytes of a transfer in order, and of those at random places.
const LONG: u64 = 1 << 20;
const SHORT: [u64; 2] = [4 << 10, 64 << 10];
/// Most transfers of a task at random places. A round would take minutes with all of a large file.
const MOST_SHORT: usize = 1024;
/// A tree has a part of the files, so many in a directory, of 1 KiB up to so much.
const PART_IN_TREE: u64 = 10;
const IN_A_DIRECTORY: u64 = 20;
const LARGEST_IN_TREE: u64 = 16 << 10;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Data { transfer: u64, is_random: bool, is_direct: bool },
    Names,
    Tree,
}

/// A part of a work that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Write,
    Read,
    Create,
    Stat,
    List,
    Remove,
    Tree,
}

impl Phase {
    pub(super) fn name(self) -> &'static str {
        match self {
            Phase::Write => "write",
            Phase::Read => "read",
            Phase::Create => "create",
            Phase::Stat => "stat",
            Phase::List => "ls -l",
            Phase::Remove => "remove",
            Phase::Tree => "write a tree",
        }
    }
}

impl Work {
    /// Returns all works, with files of `block` bytes.
    pub(super) fn all(block: u64) -> Vec<Work> {
        let ways = [(LONG, false), (SHORT[0], true), (SHORT[1], true)].map(|(size, random)| (size.min(block), random));
        let data = ways.into_iter().flat_map(|(transfer, is_random)| {
            [false, true].map(|is_direct| Work::Data { transfer, is_random, is_direct })
        });
        data.chain([Work::Names, Work::Tree]).collect()
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Work::Data { is_random: false, .. } => "data in order",
            Work::Data { .. } => "data at random places",
            Work::Names => "names",
            Work::Tree => "a tree",
        }
    }

    pub(super) fn phases(self) -> &'static [Phase] {
        match self {
            Work::Data { .. } => &[Phase::Write, Phase::Read],
            Work::Names => &[Phase::Create, Phase::Stat, Phase::List, Phase::Remove],
            Work::Tree => &[Phase::Tree],
        }
    }

    pub(super) fn is_direct(self) -> bool {
        matches!(self, Work::Data { is_direct: true, .. })
    }

    pub(super) fn size(self) -> Option<u64> {
        if let Work::Data { transfer, .. } = self { Some(transfer) } else { None }
    }

    pub(super) fn unit(self) -> Unit {
        if self.size().is_some() { Unit::BytesPerSecond } else { Unit::PerSecond }
    }

    /// Returns the settings of a row.
    pub(super) fn setup(self, files: u64) -> BTreeMap<String, String> {
        let settings = match self {
            Work::Data { is_random, is_direct, .. } => vec![
                ("access", if is_direct { "O_DIRECT" } else { "buffered" }.to_owned()),
                ("order", if is_random { "random" } else { "in order" }.to_owned()),
            ],
            Work::Names => vec![("files", files.to_string())],
            Work::Tree => vec![("files", in_tree(files).to_string())],
        };
        settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

fn in_tree(files: u64) -> u64 {
    files.div_ceil(PART_IN_TREE)
}

/// Tasks that do a work in a directory.
pub(super) struct Crew<'a> {
    pub(super) work: Work,
    pub(super) tasks: u32,
    pub(super) files: u64,
    pub(super) block: u64,
    pub(super) seed: u64,
    pub(super) dir: &'a Path,
    /// They end early.
    pub(super) stop: &'a AtomicBool,
}

/// What a task needs for a phase of data, made before the phase begins.
struct Transfers {
    file: File,
    offsets: Vec<u64>,
    memory: Vec<u8>,
}

impl Crew<'_> {
    /// Lets all tasks do a phase. Returns how long it took.
    pub(super) fn run(&self, phase: Phase) -> io::Result<(Duration, Part)> {
        let clock = MonotonicClock::new();
        let one = |rank, ready: Sender<()>, begin: Receiver<()>| {
            let prepared = self.prepare(phase, rank);
            drop(ready);
            // Nobody begins if the system has no thread for one of them.
            begin.recv().map_err(io::Error::other)?;
            let begun = clock.now();
            let mut part = Part::default();
            let done = prepared.and_then(|prepared| self.phase(phase, rank, prepared, &clock, &mut part));
            done.map(|()| (begun, clock.now(), part))
        };
        std::thread::scope(|scope| {
            let (one, (ready, until_ready)) = (&one, channel());
            let (mut tasks, mut begins) = (Vec::new(), Vec::new());
            for rank in 0..self.tasks {
                let (ready, (begin, begun)) = (ready.clone(), channel());
                let task = move || one(rank, ready, begun);
                tasks.push(Builder::new().name(format!("task-{rank}")).spawn_scoped(scope, task)?);
                begins.push(begin);
            }
            drop(ready);
            // It ends when all have dropped theirs.
            let _ = until_ready.recv();
            for begin in &begins {
                // Each task waits for this, so it arrives.
                let _ = begin.send(());
            }
            let done = tasks.into_iter().map(|task| task.join().expect("a task does not panic"));
            let done = done.collect::<io::Result<Vec<(Time, Time, Part)>>>()?;
            let first = done.iter().map(|(begun, ..)| *begun).min().unwrap_or_default();
            let last = done.iter().map(|(_, ended, _)| *ended).max().unwrap_or_default();
            let mut all = Part::default();
            done.into_iter().for_each(|(.., part)| all.add(part));
            Ok((last.since(first), all))
        })
    }

    /// Opens the file of a task, and draws the order of its transfers.
    fn prepare(&self, phase: Phase, rank: u32) -> io::Result<Option<Transfers>> {
        let Work::Data { transfer, is_random, is_direct } = self.work else { return Ok(None) };
        let (path, mut random) = (self.dir.join(format!("data-{rank}")), Random::stream(self.seed, rank.into()));
        let mut offsets: Vec<u64> = (0..self.block / transfer).map(|number| number * transfer).collect();
        let mut memory = vec![0; transfer as usize + ALIGNMENT];
        random.fill(0, &mut memory);
        if is_random {
            random.shuffle(&mut offsets);
            if phase == Phase::Write {
                let mut file = File::create(&path)?;
                offsets.iter().try_for_each(|_| file.write_all(&memory[..transfer as usize]))?;
            }
            offsets.truncate(MOST_SHORT);
        }
        let mut options = OpenOptions::new();
        options.custom_flags(if is_direct { O_DIRECT } else { 0 });
        let options = match phase {
            Phase::Write => options.write(true).create(true),
            _ => options.read(true),
        };
        Ok(Some(Transfers { file: options.open(&path)?, offsets, memory }))
    }

    fn phase(
        &self,
        phase: Phase,
        rank: u32,
        ready: Option<Transfers>,
        clock: &MonotonicClock,
        part: &mut Part,
    ) -> io::Result<()> {
        let each = |numbers: Range<u64>, part: &mut Part, work: &dyn Fn(u64) -> io::Result<u64>| {
            for number in numbers.take_while(|_| !self.stop.load(Ordering::Relaxed)) {
                let begun = clock.now();
                let amount = work(number)?;
                part.operation(clock.now().since(begun), amount);
            }
            Ok(())
        };
        match phase {
            Phase::Write | Phase::Read => {
                let Transfers { file, offsets, mut memory } = ready.ok_or(io::ErrorKind::InvalidInput)?;
                let start = memory.as_ptr().align_offset(ALIGNMENT);
                let len = memory.len() - ALIGNMENT;
                let bytes = std::cell::RefCell::new(&mut memory[start..start + len]);
                each(0..offsets.len() as u64, part, &|number| {
                    let at = offsets[number as usize];
                    match phase {
                        Phase::Write => file.write_all_at(&bytes.borrow(), at)?,
                        _ => file.read_exact_at(&mut bytes.borrow_mut(), at)?,
                    }
                    Ok(len as u64)
                })?;
                if phase == Phase::Write { file.sync_all() } else { Ok(()) }
            }
            Phase::Create => {
                each(self.share(self.files, rank), part, &|number| File::create_new(self.name(number)).map(|_| 1))
            }
            Phase::Stat => {
                each(self.share(self.files, rank), part, &|number| fs::metadata(self.name(number)).map(|_| 1))
            }
            Phase::List => each(0..1, part, &|_| self.list()),
            Phase::Remove => {
                each(self.share(self.files, rank), part, &|number| fs::remove_file(self.name(number)).map(|()| 1))
            }
            Phase::Tree => each(self.share(in_tree(self.files), rank), part, &|number| self.unpack(rank, number)),
        }
    }

    /// Returns the files of a task.
    fn share(&self, files: u64, rank: u32) -> Range<u64> {
        let from = |rank: u32| files * u64::from(rank) / u64::from(self.tasks);
        from(rank)..from(rank + 1)
    }

    fn name(&self, number: u64) -> PathBuf {
        self.dir.join(format!("file-{number}"))
    }

    /// Does what `ls -l` does.
    fn list(&self) -> io::Result<u64> {
        let mut found = 0;
        for entry in fs::read_dir(self.dir)? {
            entry?.metadata()?;
            found += 1;
        }
        match found == self.files {
            true => Ok(found),
            false => Err(io::Error::other(format!("{found} of {} files are listed", self.files))),
        }
    }

    /// Writes a file of a tree.
    fn unpack(&self, rank: u32, number: u64) -> io::Result<u64> {
        let dir = self.dir.join(format!("{rank}-{}", number / IN_A_DIRECTORY));
        if let Err(error) = fs::create_dir(&dir)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(error);
        }
        let mut file = File::create_new(dir.join(number.to_string()))?;
        file.write_all(&[7; LARGEST_IN_TREE as usize][..(1024 * (1 + number % (LARGEST_IN_TREE >> 10))) as usize])?;
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(number))?;
        Ok(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crew<'a>(dir: &'a Path, stop: &'a AtomicBool, work: Work) -> Crew<'a> {
        Crew { work, tasks: 3, files: 20, block: 128 << 10, seed: 1, dir, stop }
    }

    #[test]
    fn every_work_accesses_all_its_bytes_and_files_once() {
        let stop = AtomicBool::new(false);
        for work in Work::all(128 << 10).into_iter().filter(|work| !work.is_direct()) {
            let dir = tempfile::tempdir().unwrap();
            let crew = crew(dir.path(), &stop, work);
            for phase in work.phases() {
                let (_, part) = crew.run(*phase).unwrap();
                let expected = match phase {
                    Phase::Write | Phase::Read => 3 * (128 << 10),
                    Phase::List => 60,
                    Phase::Tree => 2,
                    _ => 20,
                };
                assert_eq!(part.amount, expected, "{work:?} {phase:?}");
            }
        }
    }

    #[test]
    fn a_task_that_fails_ends_the_phase_and_one_that_is_stopped_does_no_more() {
        let (dir, stop) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
        let crew = crew(dir.path(), &stop, Work::Names);
        assert_eq!(crew.run(Phase::Stat).unwrap_err().kind(), io::ErrorKind::NotFound);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(crew.run(Phase::Create).unwrap().1.amount, 0);
    }
}
