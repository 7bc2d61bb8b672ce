//! A mounted directory beside a pass-through and memory: `pvfs bench mount`.
//!
//! **Why.** A figure of a mount is made of the kernel's part, that of `/dev/fuse`, and that of the
//! client library and the servers. The pass-through is a directory in memory behind the protocol
//! code of `pvfs-mount`, and nothing else. So the ratio to it is the part of the file system.
//!
//! **How.** In each round, each work is done in each place, one right after the other, both in
//! random order. Tasks are threads that begin a phase together. Its time is from the first begin to
//! the last end.
//!
//! **Invariants**
//! 1. However a run ends, what it made is removed, and the pass-through unmounted. If this process
//!    is killed, the pass-through ends too, and its directories stay.

mod place;
mod table;
mod task;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bmi::Clock;
use bmi::driver::MonotonicClock;
use bmi_report::stats::Random;
use bmi_report::{Histogram, Kind, Report, Row, Step, output, units};

use super::leader::Ended;
use place::{Place, Places};
pub(crate) use table::render;
use task::{Crew, Phase, Work};

/// What to do.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The directory that is measured, and where those beside it are made.
    pub(crate) dir: PathBuf,
    pub(crate) beside: PathBuf,
    /// The program that serves the pass-through.
    pub(crate) program: PathBuf,
    /// How many tasks, one number after the other.
    pub(crate) tasks: Vec<u32>,
    /// Files of all tasks together, and bytes of a task's file.
    pub(crate) files: u64,
    pub(crate) block: u64,
    pub(crate) rounds: u32,
    /// No round begins after this time.
    pub(crate) at_most: Option<Duration>,
    pub(crate) seed: u64,
}

/// What was measured in one place.
#[derive(Default)]
struct Figure {
    rounds: Vec<Step>,
    operations: Histogram,
}

/// A work by so many tasks. Each has the same place in every list of figures.
type Job = (Work, u32);

impl Plan {
    /// Returns what is measured.
    fn jobs(&self) -> Vec<Job> {
        let of = |tasks: u32| Work::all(self.block).into_iter().map(move |work| (work, tasks));
        self.tasks.iter().copied().flat_map(of).collect()
    }

    /// Returns the number of steps that are told.
    pub(crate) fn steps(&self) -> u64 {
        self.jobs().len() as u64 * u64::from(self.rounds)
    }

    /// Measures everything. Returns the report, and why it ended early. `say` is told before each
    /// step.
    ///
    /// # Errors
    /// If there is no place to measure.
    pub(crate) fn run(&self, stop: &AtomicBool, mut say: impl FnMut(&str)) -> Result<(Report, Option<Ended>), String> {
        let places = Places::new(&self.dir, &self.beside, &self.program)?;
        let (jobs, mut figures) = (self.jobs(), BTreeMap::new());
        let ended = self.rounds(&jobs, &places, stop, &mut figures, &mut say).err();
        Ok((self.report(&jobs, &places, figures, ended.as_ref()), ended))
    }

    fn rounds(
        &self,
        jobs: &[Job],
        places: &Places,
        stop: &AtomicBool,
        figures: &mut BTreeMap<(usize, Phase, usize), Figure>,
        say: &mut impl FnMut(&str),
    ) -> Result<(), Ended> {
        let (clock, mut random) = (MonotonicClock::new(), Random::new(self.seed));
        let begun = clock.now();
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        let mut turns: Vec<usize> = (0..places.all.len()).collect();
        for round in 0..self.rounds {
            if round > 0 && self.at_most.is_some_and(|most| clock.now().since(begun) >= most) {
                break;
            }
            random.shuffle(&mut order);
            for job in &order {
                random.shuffle(&mut turns);
                let (work, tasks) = jobs[*job];
                say(&format!("round {} of {}: {}, {tasks} tasks", round + 1, self.rounds, work.name()));
                for turn in &turns {
                    let place = &places.all[*turn];
                    if work.is_direct() && !place.takes_direct {
                        continue;
                    }
                    for (phase, value, operations) in self.step(place, work, tasks, stop)? {
                        let figure: &mut Figure = figures.entry((*job, phase, *turn)).or_default();
                        figure.rounds.push(Step { round, value });
                        figure.operations.add(&operations);
                    }
                }
            }
        }
        Ok(())
    }

    /// Does a work in a place. Returns the rate of each phase.
    fn step(
        &self,
        place: &Place,
        work: Work,
        tasks: u32,
        stop: &AtomicBool,
    ) -> Result<Vec<(Phase, f64, Histogram)>, Ended> {
        let failed = |error: std::io::Error| Ended::Failed(format!("{} in {}: {error}", work.name(), place.name));
        let dir = tempfile::tempdir_in(&place.dir).map_err(failed)?;
        let crew = Crew { work, tasks, files: self.files, block: self.block, seed: self.seed, dir: dir.path(), stop };
        let mut measured = Vec::new();
        for phase in work.phases() {
            let (took, part) = crew.run(*phase).map_err(failed)?;
            if stop.load(Ordering::Relaxed) {
                return Err(Ended::Interrupted);
            }
            measured.push((*phase, part.amount as f64 / took.as_secs_f64().max(1e-9), part.operations));
        }
        dir.close().map_err(failed)?;
        Ok(measured)
    }

    fn report(
        &self,
        jobs: &[Job],
        places: &Places,
        figures: BTreeMap<(usize, Phase, usize), Figure>,
        ended: Option<&Ended>,
    ) -> Report {
        let title = format!("pvfs bench mount: {} beside {}", self.dir.display(), self.beside.display());
        let mut report = output::begin("pvfs", &title);
        let rows = figures.into_iter().map(|((job, phase, place), figure)| {
            let (work, tasks) = jobs[job];
            let mut setup = work.setup(self.files);
            setup.insert("tasks".to_owned(), tasks.to_string());
            Row {
                test: phase.name().to_owned(),
                over: places.all[place].name.clone(),
                kind: if place == 0 { Kind::Library } else { Kind::Baseline },
                size: work.size(),
                setup,
                unit: work.unit(),
                rounds: figure.rounds,
                histogram: Some(figure.operations),
                ..Row::default()
            }
        });
        report.rows = rows.collect();
        report.interrupted = ended.map(|ended| match ended {
            Ended::Interrupted => "interrupted by the user".to_owned(),
            Ended::Failed(why) => why.clone(),
        });
        report.notes.clone_from(&places.notes);
        report.notes.push(format!("A task has a file of {}. The seed is {}.", units::amount(self.block), self.seed));
        report.notes.push("A write ends with fsync. A file is opened anew to be read.".to_owned());
        report
    }
}
